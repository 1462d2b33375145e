"""The CPU kernels of TensorFlow's ops between replicas."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.tpu.ops import tpu_ops

import tfembed  # noqa: F401 - loads the kernels

v1 = tf.compat.v1
DTYPES = [
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int32,
    tf.uint32,
]


def _meets(op, replica, replicas, key="key"):
    for name, value in (
        ("_tfembed_replica", attr_value_pb2.AttrValue(i=replica)),
        ("_tfembed_replicas", attr_value_pb2.AttrValue(i=replicas)),
        ("_tfembed_key", attr_value_pb2.AttrValue(s=key.encode())),
    ):
        op._set_attr(name, value)


def _hidden(x):
    return v1.placeholder_with_default(x, None)


def _together(make, terms):
    """Runs copies of an op that meet, one for each term."""
    with tf.Graph().as_default(), v1.Session() as session:
        results = [make(term) for term in terms]
        for replica, result in enumerate(results):
            _meets(result.op, replica, len(terms))
        return session.run(results)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_sum_outside_of_replicas_is_an_identity(dtype):
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant([[1, 2], [3, 4]], dtype)
        found = session.run(v1.tpu.cross_replica_sum(x, [[0, 1], [2, 3]]))

    assert found.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_sums_are_those_of_the_group(dtype):
    groups = [[0, 2], [3, 1]]
    terms = [tf.constant([i + 1, 10 * i]).numpy() for i in range(4)]

    found = _together(
        lambda x: tpu_ops.cross_replica_sum(tf.cast(x, dtype), groups), terms
    )

    assert [f.tolist() for f in found] == [[4, 20], [6, 40]] * 2


def test_a_large_sum_adds_in_the_order_of_replicas():
    draw = np.random.RandomState(0)
    terms = [draw.normal(size=70001).astype(np.float32) for _ in range(5)]
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term

    found = _together(
        lambda x: tpu_ops.cross_replica_sum(x, [[4, 0, 3, 1, 2]]), terms
    )

    for result in found:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.complex128])
@pytest.mark.parametrize("split, concat", [(0, 0), (0, 2), (2, 1), (1, 1)])
def test_all_to_all_exchanges_parts(split, concat, dtype):
    draw = np.random.RandomState(1)
    terms = [draw.randint(0, 2, size=(4, 2, 6)).astype(dtype) for _ in range(4)]
    groups = [[0, 3], [2, 1]]

    found = _together(
        lambda x: tpu_ops.all_to_all(x, concat, split, 2, groups), terms
    )

    for group in groups:
        for i, replica in enumerate(group):
            expected = np.concatenate(
                [np.split(terms[m], 2, split)[i] for m in group], concat
            )
            np.testing.assert_array_equal(found[replica], expected)


def test_a_permutation_gives_zeros_to_who_is_no_target():
    terms = [np.full([2], i + 1, np.int64) for i in range(3)]

    found = _together(
        lambda x: tpu_ops.collective_permute(x, [[0, 2], [2, 0]]), terms
    )

    assert [f.tolist() for f in found] == [[3, 3], [0, 0], [1, 1]]


def test_alone_an_exchange_means_what_one_replica_means():
    x = np.arange(4.0)
    with tf.Graph().as_default(), v1.Session() as session:
        found = session.run(
            [
                tpu_ops.all_to_all(x, 0, 0, 1, [[0]]),
                tpu_ops.collective_permute(x, [[0, 0]]),
                tpu_ops.collective_permute(x, np.zeros([0, 2], np.int32)),
            ]
        )

    assert [f.tolist() for f in found] == [x.tolist(), x.tolist(), [0] * 4]


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda x: tpu_ops.all_to_all(x, 0, 0, 3, [[0] * 3]), "each of the 1"),
        (lambda x: tpu_ops.all_to_all(x, 0, 1, 1, [[0]]), "out of range"),
        (lambda x: tpu_ops.all_to_all(_hidden(x), 0, 1, 1, [[0]]), "not allow"),
        (lambda x: tpu_ops.all_to_all(x, 0, 0, 1, [[1]]), "each of the 1"),
        (lambda x: tpu_ops.collective_permute(x, [[0, 1]]), "at most once"),
        (lambda x: tpu_ops.collective_permute(x, [0, 1]), "pairs, 2"),
    ],
)
def test_a_bad_exchange_is_refused(make, text):
    with (
        tf.Graph().as_default(),
        v1.Session() as session,
        pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=text),
    ):
        session.run(make(tf.zeros([2])))


@pytest.mark.parametrize(
    "groups", [[[0, 0]], [[0]], [[0, 2]], [[0, -1]], [[1], [1]]]
)
def test_groups_that_do_not_name_each_replica_once_are_refused(groups):
    with pytest.raises(tf.errors.InvalidArgumentError, match="replicas"):
        _together(
            lambda x: tpu_ops.cross_replica_sum(x, groups), [np.zeros(2)] * 2
        )


def test_different_shapes_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="one shape"):
        _together(
            lambda x: tpu_ops.cross_replica_sum(x, [[0, 1]]),
            [np.zeros(2), np.zeros(3)],
        )


def test_a_session_closes_while_a_replica_waits():
    with tf.Graph().as_default():
        alone = tpu_ops.cross_replica_sum(tf.zeros([2]), [[0, 1]])
        _meets(alone.op, 0, 2)
        session = v1.Session()
        ended = []

        def run():
            try:
                session.run(alone)
            except tf.errors.CancelledError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        session.close()
        thread.join(timeout=10)

    assert not thread.is_alive()
    assert len(ended) == 1


def test_an_error_elsewhere_is_what_a_waiting_step_reports():
    with tf.Graph().as_default(), v1.Session() as session:
        alone = tpu_ops.cross_replica_sum(tf.zeros([2]), [[0, 1]])
        _meets(alone.op, 0, 2)

        @tf.function
        def fails(x):
            tf.debugging.assert_positive(x, "not this one")
            return x

        for _ in range(3):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match="not this one"
            ):
                session.run([alone, fails(v1.placeholder_with_default(-1, []))])


def test_a_step_times_out_while_a_replica_waits():
    with tf.Graph().as_default(), v1.Session() as session:
        alone = tpu_ops.cross_replica_sum(tf.zeros([2]), [[0, 1]])
        _meets(alone.op, 0, 2)
        options = v1.RunOptions(timeout_in_ms=300)

        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(alone, options=options)


def test_many_steps_at_once_do_not_mix():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [])
        sums = [tpu_ops.cross_replica_sum(x, [[0, 1]]) for _ in range(2)]
        for replica, result in enumerate(sums):
            _meets(result.op, replica, 2)
        wrong = []

        def run(number):
            for i in range(50):
                value = float(number * 1000 + i)
                if session.run(sums, {x: value}) != [2 * value] * 2:
                    wrong.append(value)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)

    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_cross_shard_optimizer_trains_without_replicas():
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable(
            "weight", [], initializer=v1.ones_initializer()
        )
        optimizer = v1.tpu.CrossShardOptimizer(
            v1.train.GradientDescentOptimizer(0.25)
        )
        train = optimizer.minimize(tf.square(weight))
        session.run(v1.global_variables_initializer())
        session.run(train)

        assert session.run(weight) == 0.5
