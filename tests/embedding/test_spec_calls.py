"""Section 1.1 of the specification: TPUEmbedding's methods, row by row."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def _table(name="users", configs=tfembed, **arguments):
    return configs.TableConfig(4, 2, _zeros, name=name, **arguments)


def _embedding(strategy=None, **arguments):
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        return tfembed.TPUEmbedding(
            {"clicks": tfembed.FeatureConfig(_table(combiner="sum"))},
            tfembed.SGD(1.0),
            **arguments,
        )


def _mirrored(replicas=2):
    return tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)]
    )


def _moved(embedding):
    """How often each row was counted down."""
    (table,) = embedding.embedding_tables.values()
    return (-table.numpy()[:, 0]).tolist()


def _count(embedding, name=None):
    activations = embedding.dequeue(name)
    embedding.apply_gradients(
        tf.nest.map_structure(tf.ones_like, activations), name
    )
    return activations


def _train(embedding, features, weights=None):
    embedding.enqueue(features, weights)
    return _count(embedding)


# __init__


def test_the_strategy_in_scope_is_the_embeddings():
    strategy = _mirrored()
    embedding = _embedding(strategy)
    embedding.enqueue({"clicks": tf.constant([1])})
    strategy.run(lambda: _count(embedding))
    assert _moved(embedding) == [0, 2, 0, 0]


def test_a_single_feature_config_is_a_structure():
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(_table()), tfembed.SGD(1.0)
    )
    embedding.enqueue(tf.constant([1, 2]))
    assert embedding.dequeue().shape == [2, 2]


def test_features_may_be_any_structure_of_tf_nest():
    features = [tfembed.FeatureConfig(_table()) for _ in range(1)]
    config = {"b": (features[0], [features[0]]), "a": features[0]}
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.enqueue(tf.nest.map_structure(lambda _: tf.constant([1]), config))
    tf.nest.assert_same_structure(config, embedding.dequeue())


def test_tables_are_deduplicated_by_identity_in_order_of_first_occurrence():
    """Of the flat structure, in which the keys of dicts are sorted."""
    tables = [_table(name) for name in ("zebra", "ant", "bee")]
    config = {
        "z": tfembed.FeatureConfig(tables[2]),
        "a": [
            tfembed.FeatureConfig(tables[0]),
            tfembed.FeatureConfig(tables[1]),
        ],
        "m": tfembed.FeatureConfig(tables[0]),
    }
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    assert embedding._table_config == tables
    assert list(embedding.embedding_tables) == tables


@pytest.mark.parametrize("configs", [tfembed, THEIRS], ids=["ours", "theirs"])
def test_the_table_config_gets_the_global_optimizer_and_a_name(configs):
    own = configs.SGD(0.5)
    tables = [
        configs.TableConfig(4, 2),
        configs.TableConfig(4, 2, name="named", optimizer=own),
        configs.TableConfig(4, 2),
    ]
    default = configs.SGD(1.0)
    tfembed.TPUEmbedding([configs.FeatureConfig(t) for t in tables], default)
    assert [t.name for t in tables] == ["table_0", "named", "table_2"]
    assert [t.optimizer for t in tables] == [default, own, default]


def test_callable_learning_rates_are_deduplicated_in_table_order():
    def one():
        return 1.0

    def two():
        return 0.5

    tables = [
        _table(name, optimizer=tfembed.SGD(rate))
        for name, rate in (("a", two), ("b", one), ("c", two), ("d", 0.1))
    ]
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(t) for t in tables], None
    )
    assert embedding._dynamic_learning_rates == [two, one]
    _train(embedding, [tf.constant([1])] * 4)
    moved = [-t.numpy()[1, 0] for t in embedding.embedding_tables.values()]
    np.testing.assert_allclose(moved, [0.5, 1.0, 0.5, 0.1])


# build


def test_build_is_idempotent():
    embedding = _embedding()
    embedding.build(per_replica_batch_size=3)
    (table,) = embedding.embedding_tables.values()
    embedding.build(per_replica_batch_size=5)
    assert next(iter(embedding.embedding_tables.values())) is table
    assert embedding._output_shapes == [tf.TensorShape([3])]


def test_build_takes_an_int_as_shapes_for_the_batch_size():
    embedding = _embedding()
    embedding.build(3)
    assert embedding._output_shapes == [tf.TensorShape([3])]


def test_enqueue_builds_inside_of_a_function():
    embedding = _embedding()

    @tf.function
    def step():
        return _train(embedding, {"clicks": tf.constant([1])})

    assert not embedding._built
    step()
    step()
    assert embedding._built
    assert _moved(embedding) == [0, 2, 0, 0]


# enqueue


def test_enqueue_takes_sparse_and_ragged_input_together():
    names = ("dense", "ragged", "sparse")
    table = _table(combiner="sum")
    embedding = tfembed.TPUEmbedding(
        {n: tfembed.FeatureConfig(table) for n in names}, tfembed.SGD(1.0)
    )
    ragged = tf.ragged.constant([[1], [2, 2]], dtype=tf.int64)
    _train(
        embedding,
        {
            "dense": tf.constant([0, 1]),
            "ragged": ragged,
            "sparse": ragged.to_sparse(),
        },
    )
    assert _moved(embedding) == [1, 3, 4, 0]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8])
@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_ids_of_any_integer_dtype_are_cast(dtype, kind):
    values = {
        "dense": lambda: tf.constant([3], dtype),
        "ragged": lambda: tf.RaggedTensor.from_row_splits(
            tf.constant([3], dtype), tf.constant([0, 1], tf.int32)
        ),
        "sparse": lambda: tf.SparseTensor(
            [[0, 0]], tf.constant([3], dtype), [1, 1]
        ),
    }
    embedding = _embedding()
    _train(embedding, {"clicks": values[kind]()})
    assert _moved(embedding) == [0, 0, 0, 1]


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.int32])
def test_weights_are_cast_to_float32(dtype):
    ids = tf.ragged.constant([[3]])
    weights = ids.with_values(tf.constant([2], dtype))
    embedding = _embedding()
    _train(embedding, {"clicks": ids}, {"clicks": weights})
    assert _moved(embedding) == [0, 0, 0, 2]


def test_weights_of_some_features_may_be_none():
    table = _table(combiner="sum")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(table)] * 2, tfembed.SGD(1.0)
    )
    ids = tf.ragged.constant([[3]])
    _train(embedding, [ids, ids], [None, ids.with_values([0.5])])
    assert _moved(embedding) == [0, 0, 0, 1.5]


def test_enqueue_inside_of_strategy_run_is_the_replicas_own_batch():
    strategy = _mirrored()
    embedding = _embedding(strategy)

    def step(ids):
        return _train(embedding, {"clicks": ids})

    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([context.replica_id_in_sync_group])
    )
    tf.function(lambda: strategy.run(step, args=(batches,)))()
    assert _moved(embedding) == [1, 1, 0, 0]


def test_enqueue_outside_of_strategy_run_takes_distributed_values():
    strategy = _mirrored()
    embedding = _embedding(strategy)
    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([context.replica_id_in_sync_group + 1])
    )
    embedding.enqueue({"clicks": batches})
    strategy.run(lambda: _count(embedding))
    assert _moved(embedding) == [0, 1, 1, 0]


def test_a_distributed_dataset_feeds_both_ways():
    strategy = _mirrored()
    embedding = _embedding(strategy)
    dataset = tf.data.Dataset.from_tensor_slices(
        {"clicks": tf.constant([[0], [1], [2], [2]], tf.int64)}
    ).batch(4, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def outside(batch):
        embedding.enqueue(batch)
        strategy.run(lambda: _count(embedding))

    @tf.function
    def inside(batch):
        strategy.run(lambda b: _train(embedding, b), args=(batch,))

    for step in (outside, inside):
        for batch in batches:
            step(batch)
    assert _moved(embedding) == [2, 2, 4, 0]


def test_enqueue_for_a_device_is_that_replicas():
    strategy = _mirrored()
    embedding = _embedding(strategy)
    for i in (1, 0):
        embedding.enqueue(
            {"clicks": tf.constant([i])}, device=f"/device:CPU:{i}"
        )
    outputs = strategy.run(
        tf.function(lambda: (_count(embedding), tf.constant(0))[0])
    )
    assert _moved(embedding) == [1, 1, 0, 0]
    assert len(strategy.experimental_local_results(outputs["clicks"])) == 2


def test_training_false_is_inference_and_apply_gradients_raises():
    """On a TPU it may deadlock; here it is an error."""
    embedding = _embedding()
    embedding.enqueue({"clicks": tf.constant([1])}, training=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="training=False"):
        _count(embedding)
    assert _moved(embedding) == [0] * 4


# dequeue


def test_dequeue_has_the_structure_of_the_features_and_output_shape_and_dim():
    table = _table()
    config = {
        "one": tfembed.FeatureConfig(table),
        "more": [tfembed.FeatureConfig(table, max_sequence_length=3)],
    }
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    ragged = tf.ragged.constant([[1], [2, 2]], dtype=tf.int64)
    embedding.enqueue({"one": ragged, "more": [ragged]})
    shapes = tf.nest.map_structure(
        lambda a: a.shape.as_list(), tf.function(embedding.dequeue)()
    )
    assert shapes == {"one": [2, 2], "more": [[2, 3, 2]]}


# apply_gradients


def test_a_gradient_of_none_is_zero_and_warns(caplog):
    embedding = _embedding()
    embedding.enqueue({"clicks": tf.constant([1])})
    embedding.dequeue()
    with caplog.at_level(logging.WARNING, logger="absl"):
        embedding.apply_gradients({"clicks": None})
    assert "may not be correct behavior for certain optimizers like Adam" in (
        caplog.text
    )
    assert _moved(embedding) == [0] * 4


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_gradients_are_cast_to_float32(dtype):
    embedding = _embedding()
    embedding.enqueue({"clicks": tf.constant([1])})
    embedding.dequeue()
    embedding.apply_gradients({"clicks": tf.ones([1, 2], dtype)})
    assert _moved(embedding) == [0, 1, 0, 0]


def test_callable_rates_are_evaluated_when_gradients_are_applied():
    rate = tf.Variable(1.0)
    embedding = tfembed.TPUEmbedding(
        {"clicks": tfembed.FeatureConfig(_table())},
        tfembed.SGD(lambda: rate.read_value()),
    )
    embedding.enqueue({"clicks": tf.constant([1])})
    rate.assign(0.25)
    _count(embedding)
    assert _moved(embedding) == [0, 0.25, 0, 0]


# embedding_tables


def test_embedding_tables_builds_and_is_keyed_by_table_config():
    table = _table()
    embedding = tfembed.TPUEmbedding(tfembed.FeatureConfig(table), None)
    variable = embedding.embedding_tables[table]
    assert embedding._built
    assert (variable.shape, variable.dtype) == ([4, 2], tf.float32)


# What tests and layers read under private names.


def test_the_private_names_are_there():
    table = _table()
    feature = tfembed.FeatureConfig(table)
    embedding = tfembed.TPUEmbedding(feature, tfembed.Adagrad(1.0))
    assert not embedding._built
    assert embedding._feature_config is feature
    assert embedding._table_config == [table]
    assert embedding._output_shapes == [tf.TensorShape(None)]
    assert embedding._dynamic_learning_rates == []
    assert list(embedding._variables["users"]) == ["parameters", "accumulators"]
    assert embedding._load_variables() is None
    assert embedding._retrieve_variables() is None
    assert embedding._verify_output_shapes_on_enqueue


# The gradient trap.


def _trapped(embedding, name):
    """Activations whose gradient trains the tables, as layers on top do it."""

    @tf.custom_gradient
    def trap(value):
        activations = embedding.dequeue(name)["clicks"]

        def gradient(upstream):
            embedding.apply_gradients({"clicks": upstream}, name)
            return tf.zeros_like(value)

        return activations, gradient

    return trap


@pytest.mark.parametrize("in_function", [False, True])
def test_the_gradient_trap_of_several_lookups_in_a_step(in_function):
    embedding = _embedding()
    dummy = tf.Variable(0.0)

    def step():
        with tf.GradientTape() as tape:
            loss = 0.0
            for name, i in (("one", 1), ("two", 2)):
                embedding.enqueue({"clicks": tf.constant([i])}, name=name)
                loss += i * tf.reduce_sum(_trapped(embedding, name)(dummy))
        tape.gradient(loss, dummy)

    (tf.function(step) if in_function else step)()
    assert _moved(embedding) == [0, 1, 2, 0]


def test_the_gradient_trap_of_two_replicas():
    strategy = _mirrored()
    embedding = _embedding(strategy)
    with strategy.scope():
        dummy = tf.Variable(0.0)

    @tf.function
    def step():
        def one_replica():
            context = tf.distribute.get_replica_context()
            ids = tf.reshape(context.replica_id_in_sync_group, [1])
            embedding.enqueue({"clicks": ids}, name="trap")
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(_trapped(embedding, "trap")(dummy))
            tape.gradient(loss, dummy)

        strategy.run(one_replica)

    step()
    assert _moved(embedding) == [1, 1, 0, 0]


# Further cases of the issue.


def test_two_embeddings_in_one_program_do_not_meet():
    one, two = _embedding(), _embedding()
    one.enqueue({"clicks": tf.constant([1])})
    two.enqueue({"clicks": tf.constant([2])})
    _count(two)
    _count(one)
    assert (_moved(one), _moved(two)) == ([0, 1, 0, 0], [0, 0, 1, 0])


def test_another_strategy_than_its_own_is_refused_by_every_call():
    embedding = _embedding()
    embedding.enqueue({"clicks": tf.constant([1])})
    strategy = _mirrored()
    calls = [
        lambda: embedding.enqueue({"clicks": tf.constant([1])}),
        embedding.dequeue,
        lambda: embedding.apply_gradients({"clicks": None}),
    ]
    for call in calls:
        with pytest.raises(
            errors.StateError, match="Mirrored.*made under the default strategy"
        ):
            strategy.run(call)
    _count(embedding)
    assert _moved(embedding) == [0, 1, 0, 0]


def test_a_program_that_enqueues_too_far_ahead_is_told():
    embedding = _embedding(max_enqueued=2, enqueue_timeout=0.01)
    for _ in range(2):
        embedding.enqueue({"clicks": tf.constant([1])})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="2 batches.*max_enqueued"
    ):
        embedding.enqueue({"clicks": tf.constant([1])})
    _count(embedding)
    assert _moved(embedding) == [0, 1, 0, 0]
