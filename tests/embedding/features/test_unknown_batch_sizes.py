"""Numbers of samples that no trace knows: they are checked when it runs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from cpu_replicas import mirrored
from embedding import counting, marks
from tfembed import errors

ROWS = [[1], [2, 3], [], [1], [0, 0, 3], [2], [3], [1, 2]]
SPECS = {
    "dense": tf.TensorSpec([None], tf.int64),
    "sparse": tf.SparseTensorSpec([None, None], tf.int64),
    "ragged": tf.RaggedTensorSpec([None, None], tf.int64),
}


def _batch(kind, rows):
    if kind == "dense":
        return tf.constant([len(row) for row in rows], tf.int64)
    ragged = tf.ragged.constant(rows, dtype=tf.int64)
    return ragged.to_sparse() if kind == "sparse" else ragged


@pytest.mark.parametrize(
    "settled", ["by the config", "by build", "by an eager batch"]
)
@pytest.mark.parametrize("kind", SPECS)
def test_they_are_those_that_are_known_otherwise(kind, settled):
    shape = [3] if settled == "by the config" else None
    feature = tfembed.FeatureConfig(
        counting.table(combiner="sum"), output_shape=shape
    )
    embedding = tfembed.TPUEmbedding({"clicks": feature}, tfembed.SGD(1.0))
    if settled == "by build":
        embedding.build(per_replica_batch_size=3)
    if settled == "by an eager batch":
        counting.train(embedding, {"clicks": _batch(kind, [[], [], []])})
    before = np.array(counting.moved(embedding))

    @tf.function(input_signature=[SPECS[kind]])
    def step(ids):
        counting.train(embedding, {"clicks": ids})

    step(_batch(kind, ROWS[:3]))
    counts = [0, 1, 1, 1] if kind != "dense" else [1, 1, 1, 0]
    assert (counting.moved(embedding) - before).tolist() == counts
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="clicks must have 3 samples"
    ):
        step(_batch(kind, ROWS[:4]))


def test_ragged_samples_for_a_shape_of_higher_rank_must_be_known():
    feature = tfembed.FeatureConfig(counting.table(), output_shape=[3, 2])
    embedding = tfembed.TPUEmbedding({"clicks": feature}, tfembed.SGD(1.0))

    @tf.function(input_signature=[SPECS["ragged"]])
    def enqueue(ids):
        embedding.enqueue({"clicks": ids})

    with pytest.raises(
        errors.ArgumentError, match="clicks.*number of rows is unknown"
    ):
        enqueue(_batch("ragged", ROWS[:3]))


@marks.REPLICAS
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loop_over_a_distributed_dataset_forgets_them(replicas):
    """Only an iterator's batches have static shapes in a function."""
    strategy = mirrored(replicas)
    table = counting.table(combiner="sum")
    features = {
        "bag": tfembed.FeatureConfig(table),
        "last": tfembed.FeatureConfig(table, max_sequence_length=1),
        "one": tfembed.FeatureConfig(table),
    }
    with strategy.scope():
        embedding = tfembed.TPUEmbedding(features, tfembed.SGD(1.0))
    embedding.build(per_replica_batch_size=2)
    data = {
        "bag": _batch("ragged", ROWS),
        "last": _batch("ragged", ROWS),
        "one": _batch("dense", ROWS),
    }
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = strategy.experimental_distribute_dataset(
        dataset.ragged_batch(2 * replicas, drop_remainder=True)
    )

    @tf.function
    def loop():
        for batch in dataset:
            embedding.enqueue(batch)
            strategy.run(counting.count, args=(embedding,))

    loop()
    expected = np.zeros(4)
    for row in ROWS:
        np.add.at(expected, row + row[:1] + [len(row)], 1)
    assert counting.moved(embedding) == expected.tolist()
