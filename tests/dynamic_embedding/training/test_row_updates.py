"""Optimizers that run their own update on rows: options and shapes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.optimizer_makers import V1, K
from tests.dynamic_embedding.plain_sgd import PlainSgd, column, slices, wrapped

ONE = tf.constant([1], tf.int64)
NAN, INF = float("nan"), float("inf")


def test_a_step_is_traced_once_whatever_the_batch_has():
    v, optimizer = de.Variable(dim=2), wrapped(K.RMSprop(0.1))
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids):
        traces.append(ids)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.embedding_lookup(v, ids, name="x"))
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    for n in (3, 0, 5, 1):
        step(tf.range(n, dtype=tf.int64))
    assert len(traces) == 1
    assert int(v.size()) == 5


@pytest.mark.parametrize(
    "make", [K.RMSprop, K.Nadam, K.Lion, lambda: V1.MomentumOptimizer(0.1, 0.9)]
)
@pytest.mark.parametrize(("keys", "rows"), [([], []), ([1], [[NAN, 0.0]])])
def test_an_eager_step_may_move_no_row(make, keys, rows):
    v, optimizer = de.Variable(dim=2), wrapped(make())
    gradient = tf.reshape(tf.constant(rows, tf.float32), [-1, 2])
    optimizer.apply_gradients([(slices(keys, gradient), v)])
    assert int(v.size()) == 0
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("optimizer", [K.Lion(0.5), V1.MomentumOptimizer(1, 0)])
def test_only_keys_of_the_step_move(optimizer):
    v = de.Variable(initializer=2.0)
    v.upsert([7], [[5.0]])
    wrapped(optimizer).apply_gradients([(slices([1], [[0.5]]), v)])
    assert column(v, [1, 7, 8]) == [1.5, 5, 2]
    assert int(v.size()) == 2


def test_weight_decay_is_on_the_rows_of_the_step():
    v = de.Variable(initializer=8.0)
    v.upsert([7], [[8.0]])
    optimizer = wrapped(K.SGD(0.5, weight_decay=0.25))
    optimizer.apply_gradients([(slices([1], [[0.0]]), v)])
    assert column(v, [1, 7]) == [7, 8]


def test_a_table_can_be_excluded_from_weight_decay():
    v, other = (de.Variable(initializer=8.0, name=n) for n in ("in", "out"))
    optimizer = K.SGD(0.5, weight_decay=0.25)
    optimizer.exclude_from_weight_decay(var_names=["out"])
    wrapped(optimizer).apply_gradients(
        [(slices([1], [[0.0]]), v), (slices([1], [[0.0]]), other)]
    )
    assert column(v, [1]) == [7]
    assert column(other, [1]) == [8]


@pytest.mark.parametrize("make", [PlainSgd, lambda **o: K.SGD(1.0, **o)])
@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"clipvalue": 2.0}, [-2, -2, -2, -2, -2]),
        ({"clipnorm": 2.5}, [-1.5, -2, -1.5, -2, -2.5]),
        ({"global_clipnorm": 66**0.5 / 2}, [-1.5, -2, -1.5, -2, -2]),
        ({"loss_scale_factor": 2.0}, [-1.5, -2, -1.5, -2, -2]),
    ],
)
def test_clipping_is_over_the_sums_of_distinct_keys(make, options, moved):
    first, second = de.Variable(name="first"), de.Variable(name="second")
    weights = tf.Variable([0.0])
    optimizer = wrapped(make(**options))
    pairs = [
        (slices([1, 2, 1], [[1.0], [4.0], [2.0]]), first),
        (slices([1, 2], [[3.0], [4.0]]), second),
        (tf.constant([4.0]), weights),
    ]
    optimizer.apply_gradients(pairs)
    found = column(first, [1, 2]) + column(second, [1, 2])
    np.testing.assert_allclose([*found, weights.numpy()[0]], moved, rtol=1e-6)


def test_minimize_scales_the_loss_that_the_update_unscales():
    v = de.Variable()
    optimizer = wrapped(K.SGD(1.0, loss_scale_factor=1024.0))
    loss = optimizer.minimize(
        lambda: tf.reduce_sum(de.embedding_lookup(v, ONE, name="x")), [v]
    )
    assert float(loss) == 0
    assert column(v, [1]) == [-1]


def test_dense_variables_are_the_optimizers_own():
    v, weights = de.Variable(), tf.Variable([1.0])
    optimizer = wrapped(V1.MomentumOptimizer(1.0, 0.5))
    step = tf.Variable(0, dtype=tf.int64)
    for _ in range(2):
        optimizer.apply_gradients(
            [(slices([1], [[1.0]]), v), (tf.constant([1.0]), weights)],
            global_step=step,
        )
    assert column(v, [1]) == [-2.5]
    assert weights.numpy().tolist() == [-1.5]
    assert int(step) == int(optimizer.iterations) == 2


def test_a_v1_optimizers_own_state_moves_once_a_step():
    class Counting(V1.AdamOptimizer):
        """No class of TensorFlow's own, so not fused."""

    v, weights = de.Variable(), tf.Variable([0.0])
    optimizer = Counting(0.1)
    both, table_only = wrapped(optimizer), slices([1], [[1.0]])
    both.apply_gradients([(table_only, v)])
    both.apply_gradients([(table_only, v), (tf.constant([1.0]), weights)])
    powers = {x.name: float(x) for x in optimizer.variables()}
    assert powers["beta1_power:0"] == pytest.approx(0.9**3)
    assert powers["beta2_power:0"] == pytest.approx(0.999**3)


def test_schedules_count_steps_as_keras_does():
    schedule = K.schedules.PiecewiseConstantDecay([0], [1.0, 10.0])
    v, optimizer = de.Variable(), wrapped(PlainSgd(schedule))
    for _ in range(2):
        optimizer.apply_gradients([(slices([1], [[1.0]]), v)])
    assert column(v, [1]) == [-11]
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize(
    ("nonfinite", "rows", "size", "count"),
    [("skip", [-2, 0], 1, 2), ("allow", None, 3, 0)],
)
def test_sums_that_are_not_finite_are_skipped_or_allowed(
    nonfinite, rows, size, count
):
    v = de.Variable()
    optimizer = wrapped(PlainSgd(), nonfinite=nonfinite)
    gradient = slices([1, 2, 3, 1], [[1.0], [NAN], [INF], [1.0]])
    optimizer.apply_gradients([(gradient, v)])
    assert int(optimizer.nonfinite_rows) == count
    assert int(v.size()) == size
    if rows:
        assert column(v, [1, 2]) == rows
    else:
        assert np.isnan(column(v, [2])[0])


def test_a_step_with_a_refused_sum_changes_nothing():
    first, second = de.Variable(), de.Variable(name="second")
    optimizer = wrapped(PlainSgd(), nonfinite="refuse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="second"):
        optimizer.apply_gradients(
            [(slices([1], [[1.0]]), first), (slices([2], [[NAN]]), second)]
        )
    assert int(first.size()) == int(second.size()) == 0
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize(
    ("bp_v2", "by_variable", "value"),
    [(False, False, -1), (True, False, 9), (False, True, 9)],
)
def test_with_bp_v2_what_another_worker_wrote_meanwhile_stays(
    bp_v2, by_variable, value
):
    v = de.Variable(bp_v2=by_variable)
    v.upsert([1], [[0.0]])
    worker = []

    def before():
        for write in worker:
            write()

    optimizer = wrapped(PlainSgd(before=before), bp_v2=bp_v2)
    worker.append(lambda: v.upsert([1], [[10.0]]))
    optimizer.apply_gradients([(slices([1], [[1.0]]), v)])
    assert column(v, [1]) == [value]


def test_two_steps_that_looked_up_the_same_rows_add_up():
    for optimizer in (wrapped(K.SGD(1.0)), wrapped(PlainSgd(), bp_v2=True)):
        v = de.Variable()
        tapes = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(de.embedding_lookup(v, ONE, name="x"))
            tapes.append((tape, loss))
        gradients = [tape.gradient(loss, v) for tape, loss in tapes]
        for gradient in gradients:
            optimizer.apply_gradients([(gradient, v)])
        assert column(v, [1]) == [-2]


def test_a_persistent_tape_gives_gradients_again():
    v, optimizer = de.Variable(), wrapped(PlainSgd())
    with tf.GradientTape(persistent=True) as tape:
        rows = de.embedding_lookup(v, ONE, name="x")
        first, second = tf.reduce_sum(rows), 3 * tf.reduce_sum(rows)
    for loss in (first, second):
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])
    assert column(v, [1]) == [-4]


@pytest.mark.parametrize("bp_v2", [False, True])
@pytest.mark.parametrize(
    ("key_dtype", "value_dtype"),
    [
        (tf.int64, tf.float16),
        (tf.int64, tf.bfloat16),
        (tf.int32, tf.float32),
    ],
)
def test_rows_of_other_dtypes_have_slots_of_floats(
    key_dtype, value_dtype, bp_v2
):
    v = de.Variable(key_dtype, value_dtype, 3, initializer=2.0)
    optimizer = wrapped(K.SGD(0.5, momentum=0.5), bp_v2=bp_v2)
    keys = tf.constant([4, 4, 9], key_dtype)
    gradient = tf.IndexedSlices(tf.ones([3, 3]), keys)
    optimizer.apply_gradients([(gradient, v)])
    (momentum,) = v.get_slot_variables(optimizer)
    assert v.lookup(keys).dtype == value_dtype
    assert column(v, keys) == [1, 1, 1.5]
    assert momentum.lookup(keys).numpy()[:, 2].tolist() == [-1, -1, -0.5]


def test_a_policy_is_told_of_rows_that_move():
    v = de.Variable(restrict_policy=de.FrequencyRestrictPolicy)
    optimizer = wrapped(K.SGD(1.0, momentum=0.5))
    for keys in ([1, 2], [2, 3], [2, 3]):
        gradient = slices(keys, [[1.0]] * 2)
        optimizer.apply_gradients([(gradient, v)])
    v.restrict(2)
    (momentum,) = v.get_slot_variables(optimizer)
    assert sorted(momentum.export()[0].numpy()) == [2, 3]
