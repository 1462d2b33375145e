"""Lookups in graphs of TensorFlow 1, and the wrappers that stand for them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    start,
    table,
    v1,
    wrapped,
)
from tests.dynamic_embedding.optimizer_makers import V1_TRAIN
from tfembed import errors


def test_each_lookup_has_a_wrapper_with_its_own_gradient():
    with graph_and_session() as session:
        v = table(dim=1)
        one, first = de.embedding_lookup(v, [1], return_trainable=True)
        two, second = de.embedding_lookup(v, [2], return_trainable=True)
        loss = tf.reduce_sum(3 * one + 5 * two)
        step = wrapped().minimize(loss, var_list=[second])
        of_all = tf.gradients(loss, v)[0]
        start(session)
        session.run(step)
        assert session.run(v.lookup([1, 2]))[:, 0].tolist() == [1.0, -1.5]
        assert sorted(session.run(of_all).indices) == [1, 2]
    assert first.name != second.name
    assert first.shape == [1, 1]


def sparse_ids():
    ids = tf.constant([1, 2, 1], tf.int64)
    return tf.SparseTensor([[0, 0], [0, 1], [2, 0]], ids, [3, 2])


@pytest.mark.parametrize("return_trainable", [False, True])
@pytest.mark.parametrize(
    "look_up",
    [
        lambda v, **kw: de.embedding_lookup_unique(v, [1, 2, 1], **kw),
        lambda v, **kw: de.embedding_lookup_sparse(
            v, sparse_ids(), None, combiner="sum", **kw
        ),
        lambda v, **kw: de.safe_embedding_lookup_sparse(
            v, sparse_ids(), combiner="sum", **kw
        ),
    ],
    ids=["unique", "sparse", "safe_sparse"],
)
def test_every_kind_of_lookup_is_trained(look_up, return_trainable):
    with graph_and_session() as session:
        v = table(dim=1, shards=1)
        found = look_up(v, return_trainable=return_trainable)
        rows = found[0] if return_trainable else found
        (listed,) = v1.trainable_variables()
        step = wrapped().minimize(tf.reduce_sum(rows), var_list=[listed])
        start(session)
        session.run(step)
        assert session.run(v.lookup([1, 2, 3]))[:, 0].tolist() == [0, 0.5, 1]
    assert listed is found[1] if return_trainable else True


def test_rows_of_string_keys_are_trained():
    with graph_and_session() as session:
        v = table(dim=1, key_dtype=tf.string)
        rows = de.embedding_lookup(v, tf.constant(["a", "b", "a"]))
        step = wrapped().minimize(tf.reduce_sum(rows))
        start(session)
        session.run(step)
        found = session.run(v.lookup(["a", "b", "c"]))
    assert found[:, 0].tolist() == [0.0, 0.5, 1.0]


def test_lookups_and_steps_of_functions_are_trained():
    with graph_and_session() as session:
        v, w = table("one", dim=1), table("two", dim=1)
        optimizer = wrapped(V1_TRAIN["v1 Momentum"](0.5))

        @tf.function(autograph=False)
        def loss():
            return tf.reduce_sum(v.embedding_lookup([1]))

        @tf.function(autograph=False)
        def whole_step():
            return optimizer.minimize(
                lambda: tf.reduce_sum(w.embedding_lookup([1])), var_list=[w]
            )

        steps = [wrapped().minimize(loss()), whole_step()]
        start(session)
        session.run(steps)
        assert session.run([v.lookup([1]), w.lookup([1])]) == [[[0.5]], [[0.5]]]


def test_a_wrapper_reads_and_writes_what_its_lookup_reads():
    with graph_and_session() as session:
        v = table(dim=1, shards=3)
        _, wrapper = de.embedding_lookup(
            v, [0, 1, 2, 3, 4], return_trainable=True, name="mine"
        )
        assert v.get_trainable_by_name("mine") is wrapper
        session.run(wrapper.update_op())
        assert session.run([v.size(i) for i in range(3)]) == [2, 2, 1]
        session.run(v.upsert([4], [[7.0]]))
        for value in (wrapper, wrapper.read_value(), wrapper.prefetch_values()):
            assert session.run(value)[:, 0].tolist() == [1, 1, 1, 1, 7]
        loss = tf.nn.l2_loss(wrapper) + tf.reduce_sum(wrapper**2)
        gradient = session.run(tf.gradients(loss, wrapper)[0])
        by_key = dict.fromkeys(range(5), 0)
        for key, row in zip(gradient.indices, gradient.values, strict=True):
            by_key[key] += row[0]
        assert by_key == {0: 3, 1: 3, 2: 3, 3: 3, 4: 21}


def test_initializers_and_meta_graphs_know_nothing_of_wrappers(caplog):
    with tf.Graph().as_default():
        v, dense = table(), v1.get_variable("dense", initializer=1.0)
        _, wrapper = de.embedding_lookup(v, [1], return_trainable=True)
        assert v1.trainable_variables() == [dense, wrapper]
        assert v1.global_variables() == [dense]
        exported = v1.train.export_meta_graph()
    listed = exported.collection_def["trainable_variables"].bytes_list.value
    assert len(listed) == 1
    assert "serializing" not in caplog.text


def test_tables_that_are_not_trained_are_no_trainable_variables():
    with tf.Graph().as_default():
        for options in ({"trainable": False}, {"value_dtype": tf.int64}):
            v = de.Variable(name="v", initializer=1, **options)
            de.embedding_lookup(v, [1])
        assert not v1.trainable_variables()


def test_a_plain_optimizer_is_told_to_leave_tables_out():
    with graph_and_session() as session:
        v, dense = table(dim=1), v1.get_variable("dense", initializer=1.0)
        loss = tf.reduce_sum(de.embedding_lookup(v, [1])) * dense
        plain = v1.train.GradientDescentOptimizer(0.5)
        with pytest.raises(errors.UnsupportedError, match="var_list"):
            plain.minimize(loss)
        step = plain.minimize(loss, var_list=[dense])
        start(session)
        session.run(step)
        assert session.run(dense) == 0.5


def test_a_wrapper_is_refused_in_a_branch_of_a_graph():
    with tf.Graph().as_default():
        v, is_time = table(), v1.placeholder(tf.bool, [])

        def look_up():
            return de.embedding_lookup(v, [1], return_trainable=True)[0]

        with pytest.raises(errors.UnsupportedError, match="eager mode only"):
            tf.cond(is_time, look_up, lambda: tf.ones([1, 3]))


@pytest.mark.parametrize("shards", [1, 2])
def test_ragged_ids_of_a_placeholder_without_a_shape_are_trained(shards):
    look_up = de.ragged_embedding_ops.embedding_lookup_sparse
    with graph_and_session() as session:
        v, ids = table(dim=1, shards=shards), v1.ragged.placeholder(tf.int64, 1)
        rows = look_up(v, ids, None, combiner="sum")
        step = wrapped().minimize(tf.reduce_sum(rows))
        start(session)
        bags = v1.ragged.constant_value([[1, 2], [], [1]], dtype=np.int64)
        session.run(step, {ids: bags})
        assert session.run(v.lookup([1, 2, 3]))[:, 0].tolist() == [0, 0.5, 1]
        pairs = v1.ragged.constant_value(
            [[[1, 2]]], dtype=np.int64, ragged_rank=1
        )
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(rows, {ids: pairs})


def test_wrappers_are_listed_by_variable_scope_also_when_it_is_entered_again():
    with tf.Graph().as_default():
        for name, scope in (("a", "wide"), ("b", "deep"), ("c", "wide")):
            with tf.name_scope("tower"), v1.variable_scope(scope):
                v = de.get_variable(name)
                de.embedding_lookup(v, [1], name="one")
                de.safe_embedding_lookup_sparse(v, sparse_ids(), name="bags")
        names = {
            scope: [wrapper.name for wrapper in v1.trainable_variables(scope)]
            for scope in ("deep/", "wide/")
        }
    assert names["deep/"] == ["deep/one/one:0", "deep/bags/bags:0"]
    assert names["wide/"] == [
        "wide/one/one:0",
        "wide/bags/bags:0",
        "wide/one/one_1:0",
        "wide/bags/bags_1:0",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("one/", "one/one:0"), ("a/one", "a/one/one:0"), ("_one", "_one/_one:0")],
)
def test_a_lookup_may_have_any_name_that_a_scope_may_have(name, expected):
    with tf.Graph().as_default():
        with v1.variable_scope("wide"):
            _, wrapper = de.embedding_lookup(
                table(), [1], name=name, return_trainable=True
            )
        assert wrapper.name == f"wide/{expected}"
        with tf.name_scope("tower"):
            de.embedding_lookup(table(), [1], name=name, return_trainable=True)


def test_a_session_fetches_wrappers_of_a_graph_that_is_finished():
    with graph_and_session() as session:
        v = table(dim=1)
        rows, wrapper = de.embedding_lookup(v, [7], return_trainable=True)
        other = de.TrainableWrapper(v, [7])
        session.run(v.upsert([7], [[3.0]]))
        session.run(other)
        session.graph.finalize()
        found = session.run([rows, wrapper, wrapper, other])
        assert found == [[[3.0]]] * 4


def test_a_wrapper_has_nothing_to_initialize():
    with graph_and_session() as session:
        v, dense = table(), v1.get_variable("dense", initializer=1.0)
        de.embedding_lookup(v, [1])
        listed = v1.trainable_variables()
        assert len(listed) == 2
        missing = v1.report_uninitialized_variables(listed)
        assert session.run(missing).tolist() == [b"dense"]
        session.run(v1.variables_initializer(listed))
        assert session.run(missing).size == 0
        assert session.run(dense) == 1.0


@pytest.mark.parametrize(
    ("give", "hint"),
    [
        (lambda: tf.train.ExponentialMovingAverage(0.9).apply(), "dense ones"),
        (lambda: v1.train.Saver(v1.trainable_variables()), "no `var_list`"),
    ],
    ids=["average", "Saver"],
)
def test_what_copies_variables_is_told_to_leave_wrappers_out(give, hint):
    with tf.Graph().as_default():
        de.embedding_lookup(table(), [1])
        with pytest.raises(errors.UnsupportedError, match=hint):
            give()


def test_lookups_in_loops_of_old_control_flow_have_no_gradient():
    v1.disable_control_flow_v2()
    try:
        with graph_and_session():
            v = table(dim=1)

            def add(i, total):
                return i + 1, total + tf.reduce_sum(de.embedding_lookup(v, [1]))

            _, loss = tf.while_loop(lambda i, _: i < 3, add, (0, 0.0))
            with pytest.raises(errors.UnsupportedError, match="loop"):
                wrapped().minimize(loss)
    finally:
        v1.enable_control_flow_v2()


def test_lookups_of_one_name_are_all_in_the_store():
    with tf.Graph().as_default():
        v = table()
        for _ in range(2):
            de.embedding_lookup(v, [1], name="same")
        first, second = v1.trainable_variables()
        assert list(v.trainable_store.values()) == [first, second]
        assert v.get_trainable_by_name("same") is second
        assert v.get_trainable_by_name(first.name) is first
