"""Section 2 of the specification, TPUEmbeddingV0, row by row."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding
ROWS = np.array([[2.0 * i + 1, 2.0 * i + 2] for i in range(4)], np.float32)
# Sample 0 has ids 1 and 3, sample 1 none, sample 2 id 2 with weight 0.
SPARSE = tf.SparseTensor([[0, 0], [0, 2], [2, 0]], [1, 3, 2], [3, 3])
WEIGHTS = SPARSE.with_values(tf.constant([1.0, 0.5, 0.0]))
RAGGED = tf.ragged.constant([[1, 3], [], [2]])
RAGGED_WEIGHTS = tf.ragged.constant([[1.0, 0.5], [], [0.0]])
ZERO = [0.0, 0.0]


def _rows(shape, dtype):
    return tf.constant(ROWS[: shape[0], : shape[1]], dtype)


def _table(configs=tfembed, **arguments):
    return configs.TableConfig(4, 2, _rows, name="users", **arguments)


def _embedding(combiner="mean", optimizer=None, **feature):
    config = tfembed.FeatureConfig(_table(combiner=combiner), **feature)
    return tfembed.TPUEmbeddingV0(config, optimizer)


def _look_up(value, weights=None, **arguments):
    return _embedding(**arguments)(value, weights).numpy()


def _table_of(embedding):
    return next(iter(embedding.embedding_tables.values()))


def _mirrored(replicas):
    # Collectives of several strategies in one process share their keys.
    return tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/CPU:0"),
    "mirrored": lambda: _mirrored(2),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_made_and_called_under_any_single_client_strategy(strategy):
    """The RuntimeError off a TPU is exempt: removing it is the point."""
    strategy = STRATEGIES[strategy]()
    with strategy.scope():
        embedding = _embedding()
    outputs = strategy.run(tf.function(lambda: embedding(tf.constant([1, 3]))))
    for output in strategy.experimental_local_results(outputs):
        assert output.numpy().tolist() == ROWS[[1, 3]].tolist()


def test_the_base_class_refuses_an_unknown_optimizer():
    with pytest.raises(errors.ArgumentError, match="unsupported optimizer"):
        _embedding(optimizer="sgd")


def test_the_base_class_refuses_a_name_used_twice():
    features = [tfembed.FeatureConfig(_table()) for _ in range(2)]
    with pytest.raises(errors.ArgumentError, match="with name users found"):
        tfembed.TPUEmbeddingV0(features, None)


def test_build_makes_trainable_tables_and_slots_that_are_not():
    embedding = _embedding(optimizer=tfembed.Adam(0.1))
    embedding.build()
    embedding.build()
    made = embedding._variables["users"]
    assert list(made) == ["parameters", "momenta", "velocities"]
    assert [v.trainable for v in made.values()] == [True, False, False]
    assert [v.name for v in made.values()] == [
        "users:0",
        "users/momenta:0",
        "users/velocities:0",
    ]


def test_tables_are_replicated_where_the_strategy_has_replicas():
    with STRATEGIES["mirrored"]().scope():
        embedding = _embedding()
    assert isinstance(_table_of(embedding), tf.distribute.DistributedValues)


def test_embedding_tables_build():
    embedding = _embedding()
    assert _table_of(embedding).numpy().tolist() == ROWS.tolist()


def test_a_call_builds_in_a_function_too():
    embedding = _embedding()
    tf.function(embedding)(tf.constant([1]))
    assert embedding._built


def test_a_call_is_an_embedding_lookup():
    embedding = _embedding()
    for one, other in zip(
        embedding(SPARSE, WEIGHTS),
        embedding.embedding_lookup(SPARSE, weights=WEIGHTS),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_the_engines_calls_are_not_there():
    for call in ("enqueue", "dequeue", "apply_gradients"):
        assert not hasattr(tfembed.TPUEmbeddingV0, call)


KERAS = [
    lambda: keras.optimizers.SGD(0.5),
    lambda: keras.optimizers.Adagrad(0.5),
    lambda: keras.optimizers.Adam(0.5),
]


@pytest.mark.parametrize("make", KERAS, ids=["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_keras_optimizer_trains_the_tables_from_a_tape(make, strategy):
    strategy = STRATEGIES[strategy]()
    with strategy.scope():
        embedding = _embedding(combiner="sum")
        embedding.build()
        optimizer = make()
    table = _table_of(embedding)
    with strategy.scope():
        optimizer.build([table])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(SPARSE))
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, table)])

    strategy.run(step)
    moved = table.numpy() != ROWS
    assert moved[:, 0].tolist() == [False, True, True, True]


def test_a_tf_keras_optimizer_trains_the_tables():
    tf_keras = pytest.importorskip("tf_keras")
    _check_one_step(tf_keras.optimizers.SGD(0.5).apply_gradients)


def test_an_optimizer_of_tensorflow_1_trains_the_tables():
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
    _check_one_step(optimizer.apply_gradients)


def _check_one_step(apply_gradients):
    embedding = _embedding(combiner="sum")
    table = _table_of(embedding)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(SPARSE, WEIGHTS))
    apply_gradients([(tape.gradient(loss, table), table)])
    moved = ROWS - table.numpy()
    assert moved[:, 0].tolist() == [0.0, 0.5, 0.0, 0.25]


def test_a_table_without_a_vocabulary_trains_with_a_dynamic_optimizer():
    table = tfembed.TableConfig(None, 2, name="users", combiner="sum", seed=3)
    embedding = tfembed.TPUEmbeddingV0(tfembed.FeatureConfig(table), None)
    rows = embedding.embedding_tables[table]
    optimizer = tfembed.dynamic_embedding.DynamicEmbeddingOptimizer(
        keras.optimizers.SGD(0.5)
    )
    ids = tf.ragged.constant([[10**12, -3], [], [-3]], dtype=tf.int64)
    before = embedding(ids).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(ids))
    optimizer.apply_gradients([(tape.gradient(loss, rows), rows)])
    np.testing.assert_allclose(
        before - embedding(ids).numpy(), [[1.5] * 2, [0] * 2, [1.0] * 2], 1e-6
    )


COMBINED = [("sum", 1.0), ("mean", 1.5), ("sqrtn", np.sqrt(1.25))]


@pytest.mark.parametrize(
    ("value", "weights"), [(SPARSE, WEIGHTS), (RAGGED, RAGGED_WEIGHTS)]
)
@pytest.mark.parametrize(("combiner", "divisor"), COMBINED)
def test_samples_that_are_empty_or_without_weight_are_zero(
    combiner, divisor, value, weights
):
    first = (ROWS[1] + 0.5 * ROWS[3]) / divisor
    result = _look_up(value, weights, combiner=combiner)
    np.testing.assert_allclose(result, [first, ZERO, ZERO], 1e-6)


def test_ids_are_not_pruned_and_minus_one_is_an_error():
    value = tf.SparseTensor([[0, 0], [0, 1]], [-1, 1], [1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError):
        _look_up(value)


def test_weights_below_zero_are_not_pruned():
    value = tf.SparseTensor([[0, 0], [0, 1]], [1, 2], [1, 2])
    weights = value.with_values([-1.0, 3.0])
    assert _look_up(value, weights).tolist() == [[6.0, 7.0]]


def test_large_sparse_input_is_not_made_dense():
    """A dense matrix of these samples would take 16 TB."""
    value = tf.SparseTensor(
        [[0, 0], [2**20, 2**21]], [1, 3], [2**20 + 1, 2**21 + 1]
    )
    assert _look_up(value, combiner="sum")[2**20].tolist() == ROWS[3].tolist()


def test_sparse_sequences_are_cut_and_padded_with_zeros():
    result = _look_up(SPARSE, max_sequence_length=2)
    assert result.tolist() == [
        [ROWS[1].tolist(), ZERO],
        [ZERO, ZERO],
        [ROWS[2].tolist(), ZERO],
    ]
    longer = _look_up(SPARSE, max_sequence_length=5)
    assert longer[0, 2].tolist() == ROWS[3].tolist()
    assert longer.shape == (3, 5, 2)


def test_ragged_sequences_are_padded_with_zeros_and_not_with_row_0():
    """TensorFlow's pads them with row 0: a known bug."""
    result = _look_up(RAGGED, max_sequence_length=3)
    assert result[0].tolist() == [*ROWS[[1, 3]].tolist(), ZERO]
    assert not result[1].any()


def test_a_sparse_output_shape_makes_sequences_as_a_ragged_one():
    """TensorFlow's takes it for no sequence and combines: a known bug."""
    for value in (SPARSE, RAGGED):
        result = _look_up(value, max_sequence_length=3, output_shape=[3, 3])
        assert result.shape == (3, 3, 2)
        assert result[2].tolist() == [ROWS[2].tolist(), ZERO, ZERO]


@pytest.mark.parametrize("value", [SPARSE, RAGGED], ids=["sparse", "ragged"])
def test_an_output_shape_of_the_batch_combines_and_reshapes(value):
    result = _look_up(value, output_shape=[3, 1], combiner="sum")
    assert result.shape == (3, 1, 2)
    assert result[0, 0].tolist() == (ROWS[1] + ROWS[3]).tolist()


@pytest.mark.parametrize("value", [SPARSE, RAGGED], ids=["sparse", "ragged"])
def test_an_output_shape_that_the_batch_does_not_divide_is_refused(value):
    with pytest.raises(
        errors.ArgumentError,
        match="FeatureConfig should be the factor of the input",
    ):
        _look_up(value, output_shape=[4])


def test_an_output_shape_is_evaluated_in_a_function_too():
    embedding = _embedding(output_shape=[3, 2])
    result = tf.function(lambda: embedding(RAGGED))()
    assert result.shape == [3, 2, 2]


def test_sparse_input_above_rank_2_combines_its_last_dimension():
    value = tf.sparse.reshape(SPARSE, [1, 3, 3])
    assert _look_up(value).tolist() == [_look_up(SPARSE).tolist()]


@pytest.mark.parametrize(
    "shape", [[2], [2, 1], [1, 2, 1]], ids=lambda s: f"rank{len(s)}"
)
def test_dense_input_keeps_all_dimensions(shape):
    ids = tf.reshape(tf.constant([1, 3]), shape)
    result = _look_up(ids)
    assert result.shape == (*shape, 2)
    assert result.reshape([2, 2]).tolist() == ROWS[[1, 3]].tolist()


WRONG = [
    (tf.constant([1]), tf.constant([1.0]), {}, "Weight specified for .*dense"),
    (SPARSE, RAGGED_WEIGHTS, {}, "does not match type of the input"),
    (SPARSE, WEIGHTS, {"max_sequence_length": 2}, "this is a sequence feature"),
    (
        tf.constant([1]),
        None,
        {"max_sequence_length": 2},
        "sequence feature but a dense tensor was passed",
    ),
    (3, None, {}, "Tensor, SparseTensor or RaggedTensor expected"),
    (tf.ragged.constant([[[1]]]), None, {}, "Only rank 2 ragged"),
]


@pytest.mark.parametrize(("value", "weights", "feature", "text"), WRONG)
def test_an_error_row_is_a_value_error_that_names_the_feature(
    value, weights, feature, text
):
    with pytest.raises(ValueError, match=text) as raised:
        _look_up(value, weights, **feature)
    assert "the only feature" in str(raised.value)


def test_an_unknown_combiner_is_a_value_error():
    table = THEIRS.TableConfig(4, 2, _rows, name="users")
    table.combiner = "max"
    with pytest.raises(ValueError, match="max"):
        tfembed.TPUEmbeddingV0(THEIRS.FeatureConfig(table), None)


def test_a_structure_that_does_not_match_is_refused():
    with pytest.raises((ValueError, TypeError), match="features must have"):
        _look_up([tf.constant([1])])
    with pytest.raises((ValueError, TypeError), match="weights must have"):
        _look_up(SPARSE, [None])


def test_the_checkpoint_keys_are_those_of_tpu_embedding(tmp_path):
    embedding = _embedding(optimizer=tfembed.Adagrad(0.1))
    embedding.build()
    path = tf.train.Checkpoint(embedding=embedding).save(tmp_path / "v0")
    theirs = THEIRS.TPUEmbedding(
        THEIRS.FeatureConfig(_table(THEIRS)), THEIRS.Adagrad(0.1)
    )
    checkpoint = tf.train.Checkpoint(embedding=theirs)
    theirs.build()
    checkpoint.restore(path).assert_consumed()
    again = checkpoint.save(tmp_path / "theirs")
    assert tf.train.list_variables(again) == tf.train.list_variables(path)


def test_clipping_and_decay_of_the_rule_are_the_optimizers_alone():
    """The embedding optimizer makes slots and nothing else."""
    rule = tfembed.SGD(0.1, clipvalue=1e-6, weight_decay_factor=0.5)
    embedding = _embedding(optimizer=rule, combiner="sum")
    table = _table_of(embedding)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(tf.constant([1])))
    keras.optimizers.SGD(1.0).apply_gradients(
        [(tape.gradient(loss, table), table)]
    )
    assert (ROWS - table.numpy())[1].tolist() == [1.0, 1.0]


def test_static_tables_run_under_xla():
    embedding = _embedding(combiner="sum")
    embedding.build()

    @tf.function(jit_compile=True)
    def look_up(ids):
        return embedding(ids)

    assert (
        look_up(tf.constant([1, 3])).numpy().tolist() == ROWS[[1, 3]].tolist()
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_train_as_one_batch_does(replicas):
    strategy = _mirrored(replicas)
    with strategy.scope():
        embedding = _embedding(combiner="sum")
        embedding.build()
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(embedding.trainable_variables)
    table = _table_of(embedding)
    ids = np.array([[1, 3], [3, 2]])
    shares = np.split(ids, replicas)

    @tf.function
    def step(share):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(tf.reshape(share, [-1])))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(shares[context.replica_id_in_sync_group])
    )
    strategy.run(step, args=(values,))
    moved = (ROWS - table.numpy())[:, 0]
    assert moved.tolist() == [0.0, 0.5, 0.5, 1.0]
