"""The last batch of a data set may be smaller than the others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import counting
from embedding.marks import NEEDS_XLA
from tfembed import errors

IDS = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
COUNTS = [1, 2, 3, 4]
WAYS = r"(?s)drop_remainder=True.*fill it up.*any size"


def batches(kind="dense", size=4):
    dataset = tf.data.Dataset.from_tensor_slices(
        tf.constant(IDS, tf.int64)[:, tf.newaxis]
        if kind != "dense"
        else tf.constant(IDS, tf.int64)
    ).batch(size)
    if kind == "ragged":
        dataset = dataset.map(tf.RaggedTensor.from_tensor)
    if kind == "sparse":
        # The id 0 would not be there: all are one more, and one less again.
        dataset = dataset.map(lambda ids: tf.sparse.from_dense(ids + 1)).map(
            lambda ids: ids.with_values(ids.values - 1)
        )
    return dataset.map(lambda ids: {"clicks": ids})


def step(embedding, batch):
    embedding.enqueue(batch)
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
    return activations["clicks"]


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("in_function", [False, True])
def test_it_is_looked_up_and_trained(kind, in_function):
    embedding = counting.embedding()
    run = tf.function(step) if in_function else step
    sizes = [len(run(embedding, batch)) for batch in batches(kind)]
    assert sizes == [4, 4, 2]
    assert counting.moved(embedding) == COUNTS


def test_many_epochs_of_eager_steps_train_all():
    embedding = counting.embedding()
    for _ in range(12):  # The calls become functions on the way.
        for batch in batches():
            step(embedding, batch)
    assert counting.moved(embedding) == [12 * n for n in COUNTS]


def test_activations_are_those_of_the_batch():
    embedding = counting.embedding()
    for batch in batches():
        step(embedding, batch)
    for batch in batches(size=3):
        embedding.enqueue(batch, training=False)
        rows = embedding.dequeue()["clicks"]
        expected = [-COUNTS[i] for i in batch["clicks"].numpy()]
        np.testing.assert_array_equal(rows[:, 0], expected)


def test_packed_batches_may_be_smaller_too():
    embedding = counting.embedding()
    for batch in batches().map(tfembed.pack_features):
        step(embedding, batch)
    assert counting.moved(embedding) == COUNTS


def test_gradients_have_the_shape_of_their_own_batch():
    embedding = counting.embedding()
    for batch in batches().take(1):
        step(embedding, batch)
    embedding.enqueue({"clicks": tf.constant([1, 2])})
    embedding.dequeue()
    with pytest.raises(errors.ArgumentError, match=r"\(2, 2\)"):
        embedding.apply_gradients({"clicks": tf.ones([4, 2])})
    embedding.apply_gradients({"clicks": tf.ones([2, 2])})
    assert counting.moved(embedding) == [1, 3, 2, 0]


def test_names_of_steps_have_sizes_of_their_own():
    embedding = counting.embedding()
    for i, batch in enumerate(batches()):
        embedding.enqueue(batch, name=f"step {i}")
        counting.count(embedding, f"step {i}")
    assert counting.moved(embedding) == COUNTS


def test_a_batch_is_enqueued_ahead_of_the_last_ones_gradients():
    embedding = counting.embedding()
    first, second = {"clicks": tf.constant([1, 2])}, {"clicks": [3]}
    embedding.enqueue(first)
    embedding.enqueue(second)
    for n in (2, 1):
        assert len(counting.count(embedding)["clicks"]) == n
    assert counting.moved(embedding) == [0, 1, 1, 1]


def test_replicas_with_the_same_smaller_batch_train():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    run = tf.function(lambda batch: strategy.run(step, (embedding, batch)))
    for ids in ([0, 1, 2, 3], [3]):
        run({"clicks": tf.constant(ids)})
    assert counting.moved(embedding) == [2, 2, 2, 4]


def test_replicas_with_batches_of_their_own_size_are_told_the_ways_out():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    embedding.build()
    of_two = strategy.experimental_distribute_values_from_function(
        lambda c: tf.zeros([4 + c.replica_id_in_sync_group], tf.int64)
    )
    with pytest.raises(errors.ArgumentError, match="Inconsistent shape"):
        embedding.enqueue({"clicks": of_two})
    strategy.run(step, (embedding, {"clicks": tf.zeros([4], tf.int64)}))
    with pytest.raises(errors.ArgumentError, match=WAYS):
        strategy.run(step, (embedding, {"clicks": of_two}))
    with pytest.raises(errors.ArgumentError, match=WAYS):
        embedding.enqueue({"clicks": of_two})
    assert counting.moved(embedding) == [8, 0, 0, 0]


GIVEN = {
    "build": lambda: _built(counting.embedding()),
    "a FeatureConfig": lambda: tfembed.TPUEmbedding(
        {
            "clicks": tfembed.FeatureConfig(
                counting.table(combiner="sum"), output_shape=[4]
            )
        },
        tfembed.SGD(1.0),
    ),
    "pipelined": lambda: counting.embedding(
        pipeline_execution_with_tensor_core=True
    ),
    "xla": lambda: counting.embedding(engine="xla"),
}


def _built(embedding):
    embedding.build(per_replica_batch_size=4)
    return embedding


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[NEEDS_XLA] if name == "xla" else [])
        for name, make in GIVEN.items()
    ],
)
def test_where_the_size_is_fixed_the_error_says_the_ways_out(make):
    embedding = make()
    step(embedding, {"clicks": tf.constant([0, 1, 2, 3])})
    with pytest.raises(errors.ArgumentError, match=WAYS):
        embedding.enqueue({"clicks": tf.constant([3])})
    step(embedding, {"clicks": tf.constant([0, 1, 2, 3])})
    embedding.flush()
    assert counting.moved(embedding) == [2, 2, 2, 2]


def test_a_size_that_only_a_run_knows_is_refused_then_with_the_ways_out():
    embedding = counting.embedding()
    run = tf.function(
        lambda ids: step(embedding, {"clicks": ids}),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    step(embedding, {"clicks": tf.constant([0, 1])})
    run(tf.constant([2, 3], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match=WAYS):
        run(tf.constant([3], tf.int64))
    assert counting.moved(embedding) == [1, 1, 1, 1]


@pytest.mark.parametrize("value", [[[1], [2]], tf.zeros([2, 3, 1], tf.int64)])
def test_a_batch_that_differs_by_more_than_its_size_is_refused(value):
    embedding = counting.embedding()
    if not tf.is_tensor(value):
        value = tf.constant(value)[:, :, tf.newaxis]
    step(embedding, {"clicks": tf.constant([0, 1, 2, 3])})
    with pytest.raises(errors.ArgumentError, match="Inconsistent shape"):
        embedding.enqueue({"clicks": value})


def test_features_of_different_sizes_in_one_batch_are_refused():
    table = counting.table(combiner="sum")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(table), tfembed.FeatureConfig(table)],
        tfembed.SGD(1.0),
    )
    embedding.enqueue([[1, 2], [1, 2, 3, 3]])
    counting.count(embedding)
    embedding.enqueue([[1], [3, 3]])
    counting.count(embedding)
    with pytest.raises(errors.ArgumentError, match="Inconsistent shape"):
        embedding.enqueue([[1], [3, 3, 3]])
    assert counting.moved(embedding) == [0, 3, 2, 4]
