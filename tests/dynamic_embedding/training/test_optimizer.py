"""`DynamicEmbeddingOptimizer`: one right step, whatever the lookups."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import optimizers, policies

SHARDS = pytest.mark.parametrize("shards", [1, 3])


def sgd(rate=1.0, **options):
    return de.DynamicEmbeddingOptimizer(optimizers.SGD(rate), **options)


def variable(dim=2, shards=1, **options):
    return de.Variable(dim=dim, devices=["/CPU:0"] * shards, **options)


def step(optimizer, v, *lookups):
    """One step on the sum of all rows of all lookups."""
    with tf.GradientTape() as tape:
        rows = [de.embedding_lookup(v, ids, name="x") for ids in lookups]
        loss = tf.add_n([tf.reduce_sum(r) for r in rows])
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])


def column(v, keys):
    return v.lookup(keys).numpy()[:, 0].tolist()


@SHARDS
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_sparse_lookups_are_trained(shards, combiner):
    v, optimizer = variable(shards=shards), sgd()
    ids = tf.SparseTensor(
        [[0, 0], [0, 1], [1, 0]], tf.constant([7, 7, 8], tf.int64), [2, 2]
    )

    def loss():
        return tf.reduce_sum(
            de.embedding_lookup_sparse(v, ids, None, combiner=combiner)
        )

    optimizer.minimize(loss, [v])
    assert column(v, [7, 8]) == [-2 if combiner == "sum" else -1, -1]


def test_a_key_that_is_inserted_starts_from_its_initial_row():
    normal = tf.keras.initializers.RandomNormal(seed=1)
    v = variable(4, initializer=normal)
    before = v.lookup([9]).numpy()
    step(sgd(0.5), v, tf.constant([9], tf.int64))
    np.testing.assert_allclose(v.lookup([9]), before - 0.5, rtol=1e-6)


def test_a_looked_up_key_is_inserted_even_if_its_gradient_is_zero():
    v = variable()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(0.0 * de.embedding_lookup(v, [1, 2], name="x"))
    sgd().apply_gradients([(tape.gradient(loss, v), v)])
    assert int(v.size()) == 2


def test_trainables_stand_for_their_lookups():
    v = variable()
    with tf.GradientTape() as tape:
        one, first = de.embedding_lookup(
            v, [1, 2], name="a", return_trainable=True
        )
        two, second = de.embedding_lookup(
            v, [2], name="b", return_trainable=True
        )
        loss = tf.reduce_sum(one) + 10 * tf.reduce_sum(two)
    trainables = [first, second]
    sgd().apply_gradients(zip(tape.gradient(loss, trainables), trainables))
    assert column(v, [1, 2]) == [-1, -11]


def test_minimize_asks_for_its_variables_after_the_loss():
    v = variable()
    trainables = []

    def loss():
        rows, trainable = de.embedding_lookup(
            v, [1], name="x", return_trainable=True
        )
        trainables[:] = [trainable]
        return tf.reduce_sum(rows**2 + rows)

    assert float(sgd().minimize(loss, lambda: trainables)) == 0
    assert column(v, [1]) == [-1]


def test_several_variables_are_updated_in_one_step():
    narrow, wide = variable(1), variable(3, shards=2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(de.embedding_lookup(narrow, [1], name="n")) + (
            2 * tf.reduce_sum(de.embedding_lookup(wide, [1, 2, 1], name="w"))
        )
    variables = [narrow, wide]
    sgd().apply_gradients(zip(tape.gradient(loss, variables), variables))
    assert column(narrow, [1]) == [-1]
    assert column(wide, [1, 2]) == [-4, -2]


def test_a_learning_rate_may_be_a_function_or_a_schedule():
    rate = tf.Variable(1.0)
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
        [0], [1.0, 10.0]
    )
    for given, second in ((lambda: rate, 3.0), (schedule, 10.0)):
        v = variable()
        optimizer = sgd(given)
        train = tf.function(step)
        train(optimizer, v, tf.constant([1], tf.int64))
        rate.assign(3.0)
        train(optimizer, v, tf.constant([1], tf.int64))
        assert column(v, [1]) == [-1 - second]
        rate.assign(1.0)


def gradient(v, keys, values):
    return tf.IndexedSlices(tf.constant(values), tf.constant(keys, tf.int64)), v


def test_a_lookup_in_a_branch_trains():
    v, optimizer = variable(1), sgd()

    @tf.function
    def branching_step(is_double):
        def look_up(ids):
            return tf.reduce_sum(de.embedding_lookup(v, ids, name="x"))

        with tf.GradientTape() as tape:
            loss = tf.cond(
                is_double,
                lambda: 2 * look_up(tf.constant([1, 1, 2], tf.int64)),
                lambda: look_up(tf.constant([3], tf.int64)),
            )
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    branching_step(tf.constant(True))
    branching_step(tf.constant(False))
    assert column(v, [1, 2, 3]) == [-4, -2, -1]


@pytest.mark.parametrize("fused", [False, True])
def test_a_lookup_in_a_loop_cannot_be_trained_and_says_so(fused):
    v, optimizer = variable(1), sgd()

    def look_up(key):
        if not fused:
            return de.embedding_lookup(v, key, name="x")
        bag = tf.SparseTensor([[0, 0]], [key], [1, 1])
        return de.embedding_lookup_sparse(v, bag, None)[0]

    @tf.function
    def looping_step(keys):
        with tf.GradientTape() as tape:
            rows = tf.map_fn(look_up, keys, fn_output_signature=tf.float32)
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    with pytest.raises(NotImplementedError, match="before the loop"):
        looping_step(tf.constant([1, 2], tf.int64))
    assert int(v.size()) == 0


NAN, INF = float("nan"), float("inf")


@SHARDS
def test_rows_with_a_gradient_that_is_not_finite_are_skipped_and_counted(
    shards,
):
    v, optimizer = variable(1, shards), sgd()
    optimizer.apply_gradients(
        [gradient(v, [1, 2, 3, 2], [[1.0], [NAN], [INF], [1.0]])]
    )
    assert column(v, [1, 2, 3]) == [-1, 0, 0]
    assert int(optimizer.nonfinite_rows) == 2


@SHARDS
def test_a_step_with_a_refused_gradient_changes_nothing(shards):
    first, second = variable(1, shards), variable(1, shards)
    optimizer = sgd(nonfinite="refuse")
    with pytest.raises(tf.errors.InvalidArgumentError):
        optimizer.apply_gradients(
            [gradient(first, [1], [[1.0]]), gradient(second, [2], [[NAN]])]
        )
    assert int(first.size()) == int(second.size()) == 0
    assert int(optimizer.iterations) == 0


def test_a_dense_gradient_is_refused_before_any_table_moves():
    v, weights = variable(1), tf.Variable([1.0])
    optimizer = de.DynamicEmbeddingOptimizer(
        tf.keras.optimizers.SGD(1.0), nonfinite="refuse"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        optimizer.apply_gradients(
            [gradient(v, [1], [[1.0]]), (tf.constant([NAN]), weights)]
        )
    assert int(v.size()) == 0
    assert weights.numpy() == [1]


@pytest.mark.parametrize("rule", ["SGD", "Lion"])
@pytest.mark.parametrize("cause", ["not finite", "too many keys"])
def test_a_function_moves_nothing_in_a_step_that_a_table_refuses(rule, cause):
    bounded = cause == "too many keys"
    policy = policies.LeastRecent() if bounded else None
    v = de.Variable(
        max_size=2 if bounded else None,
        eviction=policy,
        restrict_policy=de.FrequencyRestrictPolicy,
        name="refusing",
    )
    dense = [tf.Variable([1.0]) for _ in range(8)]
    optimizer = de.DynamicEmbeddingOptimizer(
        getattr(tf.keras.optimizers, rule)(1.0),
        nonfinite="skip" if bounded else "refuse",
    )
    value = 1.0 if bounded else NAN

    @tf.function
    def refused_step():
        optimizer.apply_gradients(
            [
                gradient(v, [1, 2, 3], [[1.0], [value], [1.0]]),
                *[(tf.constant([1.0]), weights) for weights in dense],
            ]
        )

    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError):
            refused_step()
    assert int(v.size()) == int(v.restrict_policy.status.size()) == 0
    assert [float(weights[0]) for weights in dense] == [1.0] * 8
    assert int(optimizer.iterations) == 0


def test_gradients_that_are_not_finite_can_be_allowed():
    v = variable(1)
    optimizer = sgd(nonfinite="allow")
    optimizer.apply_gradients([gradient(v, [1, 2], [[NAN], [1.0]])])
    assert np.isnan(column(v, [1])[0])
    assert column(v, [2]) == [-1]


def test_a_second_optimizer_is_refused():
    v = variable()
    step(sgd(), v, tf.constant([1], tf.int64))
    with pytest.raises(ValueError, match="optimizer"):
        step(
            de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1)),
            v,
            tf.constant([1], tf.int64),
        )


@pytest.mark.parametrize(
    ("pairs", "error", "text"),
    [
        (lambda v: [], ValueError, "No variable has a gradient"),
        (lambda v: [(None, v)], ValueError, "No variable has a gradient"),
        (lambda v: [(tf.zeros([1, 2]), v)], ValueError, "IndexedSlices"),
        (
            lambda v: [(tf.zeros([1]), tf.Variable([0.0]))],
            NotImplementedError,
            "Keras optimizer",
        ),
    ],
)
def test_pairs_that_cannot_be_applied_are_refused(pairs, error, text):
    with pytest.raises(error, match=text):
        sgd().apply_gradients(pairs(variable()))


def test_an_unknown_treatment_of_nonfinite_gradients_is_refused():
    with pytest.raises(ValueError, match="must be one of"):
        sgd(nonfinite="hope")


def test_the_step_count_is_saved(tmp_path):
    v, optimizer = variable(), sgd()
    for _ in range(3):
        step(optimizer, v, tf.constant([1], tf.int64))
    path = tf.train.Checkpoint(optimizer=optimizer).save(tmp_path / "c")

    restored = sgd()
    tf.train.Checkpoint(optimizer=restored).restore(path)
    assert int(restored.iterations) == 3
