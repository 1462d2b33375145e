"""Enqueue under strategies: inside of strategy.run, outside, and with a device."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding import counting, marks


def test_enqueue_takes_sparse_and_ragged_input_together():
    names = ("dense", "ragged", "sparse")
    table = counting.table(combiner="sum")
    embedding = tfembed.TPUEmbedding(
        {n: tfembed.FeatureConfig(table) for n in names}, tfembed.SGD(1.0)
    )
    ragged = tf.ragged.constant([[1], [2, 2]], dtype=tf.int64)
    counting.train(
        embedding,
        {
            "dense": tf.constant([0, 1]),
            "ragged": ragged,
            "sparse": ragged.to_sparse(),
        },
    )
    assert counting.moved(embedding) == [1, 3, 4, 0]


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
    embedding = counting.embedding()
    counting.train(embedding, {"clicks": values[kind]()})
    assert counting.moved(embedding) == [0, 0, 0, 1]


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.int32])
def test_weights_are_cast_to_float32(dtype):
    ids = tf.ragged.constant([[3]])
    weights = ids.with_values(tf.constant([2], dtype))
    embedding = counting.embedding()
    counting.train(embedding, {"clicks": ids}, {"clicks": weights})
    assert counting.moved(embedding) == [0, 0, 0, 2]


def test_weights_of_some_features_may_be_none():
    table = counting.table(combiner="sum")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(table)] * 2, tfembed.SGD(1.0)
    )
    ids = tf.ragged.constant([[3]])
    counting.train(embedding, [ids, ids], [None, ids.with_values([0.5])])
    assert counting.moved(embedding) == [0, 0, 0, 1.5]


@marks.REPLICAS
def test_enqueue_inside_of_strategy_run_is_the_replicas_own_batch():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)

    def step(ids):
        return counting.train(embedding, {"clicks": ids})

    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([context.replica_id_in_sync_group])
    )
    tf.function(lambda: strategy.run(step, args=(batches,)))()
    assert counting.moved(embedding) == [1, 1, 0, 0]


@marks.REPLICAS
def test_enqueue_outside_of_strategy_run_takes_distributed_values():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([context.replica_id_in_sync_group + 1])
    )
    embedding.enqueue({"clicks": batches})
    strategy.run(lambda: counting.count(embedding))
    assert counting.moved(embedding) == [0, 1, 1, 0]


@marks.REPLICAS
def test_a_distributed_dataset_feeds_both_ways():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    dataset = tf.data.Dataset.from_tensor_slices(
        {"clicks": tf.constant([[0], [1], [2], [2]], tf.int64)}
    ).batch(4, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def outside(batch):
        embedding.enqueue(batch)
        strategy.run(lambda: counting.count(embedding))

    @tf.function
    def inside(batch):
        strategy.run(lambda b: counting.train(embedding, b), args=(batch,))

    for step in (outside, inside):
        for batch in batches:
            step(batch)
    assert counting.moved(embedding) == [2, 2, 4, 0]


@marks.REPLICAS
def test_enqueue_for_a_device_is_that_replicas():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    for i in (1, 0):
        embedding.enqueue(
            {"clicks": tf.constant([i])}, device=f"/device:CPU:{i}"
        )
    outputs = strategy.run(
        tf.function(lambda: (counting.count(embedding), tf.constant(0))[0])
    )
    assert counting.moved(embedding) == [1, 1, 0, 0]
    assert len(strategy.experimental_local_results(outputs["clicks"])) == 2


def test_training_false_is_inference_and_apply_gradients_raises():
    """On a TPU it may deadlock; here it is an error."""
    embedding = counting.embedding()
    embedding.enqueue({"clicks": tf.constant([1])}, training=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="training=False"):
        counting.count(embedding)
    assert counting.moved(embedding) == [0] * 4


@marks.REPLICAS
def test_the_documentations_enqueue_per_core():
    """As TensorFlow's page of enqueue has it, imports and strategy changed."""
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)

    def dataset_fn(context):
        ids = tf.constant([context.input_pipeline_id + 1, 3], tf.int64)
        return tf.data.Dataset.from_tensors({"clicks": ids}).repeat()

    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    iterator = iter(
        strategy.distribute_datasets_from_function(dataset_fn, options)
    )

    @tf.function
    def training_step():
        per_core = strategy.experimental_local_results(next(iterator))

        def per_core_enqueue(context):
            core = context.replica_id_in_sync_group
            device = strategy.extended.worker_devices[core]
            embedding.enqueue(per_core[core], device=device)
            return tf.constant(0)

        strategy.experimental_distribute_values_from_function(per_core_enqueue)
        strategy.run(lambda: counting.count(embedding))

    training_step()
    assert counting.moved(embedding) == [0, 2, 0, 2]
