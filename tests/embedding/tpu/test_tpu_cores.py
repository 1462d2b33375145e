"""Replicas of several TPU cores (SPMD): a core gets its part of a batch.

Beside TensorFlow's own TPUEmbedding, traced on the same TPUs of paper.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from proof.paper_tpu import paper_strategy, traced_on_paper
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding
IDS = [1, 2, 3, 4]


def _embedding(configs=tfembed, **feature):
    table = configs.TableConfig(8, 4, name="t")
    return configs.TPUEmbedding(
        {"a": configs.FeatureConfig(table, **feature)}, configs.SGD(0.1)
    )


def _spmd():
    return traced_on_paper(1, 4, embedding_engine=1, cores_per_replica=2)


def _sparse():
    return tf.SparseTensor(
        [[0, 1], [3, 0]], tf.constant([5, 6], tf.int64), [4, 2]
    )


def _enqueued(graph):
    """The device, ordinal and shape of the first input, of each op."""
    return [
        (
            op.device,
            op.get_attr("device_ordinal"),
            [one.shape.as_list() for one in op.inputs],
            op.get_attr("combiners"),
        )
        for op in graph.get_operations()
        if op.type == "EnqueueTPUEmbeddingArbitraryTensorBatch"
    ]


@pytest.mark.parametrize("make", [lambda: tf.constant(IDS), _sparse])
def test_a_batch_is_split_over_the_cores_as_tensorflow_does(make):
    found = []
    for configs in (tfembed, THEIRS):
        with _spmd() as (graph, _):
            embedding = _embedding(configs)
            embedding.enqueue({"a": make()})
            found.append(_enqueued(graph))
    ours, theirs = found
    assert ours == theirs
    assert [ordinal for _, ordinal, *_ in ours] == [0, 1, 2, 3]


def test_a_core_gets_its_samples_in_their_order():
    from tfembed.embedding.replicas import split_over_cores

    parts = split_over_cores(
        [tf.constant(IDS), _sparse(), None], ["a", "b", "c"], 2
    )
    assert [dense.numpy().tolist() for dense, *_ in parts] == [[1, 2], [3, 4]]
    assert [
        tf.sparse.to_dense(sparse).numpy().tolist() for _, sparse, _ in parts
    ] == [[[0, 5], [0, 0]], [[0, 0], [6, 0]]]
    assert [nothing for *_, nothing in parts] == [None, None]


def test_activations_and_gradients_are_of_the_whole_replica():
    with _spmd() as (graph, strategy):
        embedding = _embedding()
        embedding.build(per_replica_batch_size=2)

        def step():
            activations = embedding.dequeue()
            with pytest.raises(errors.ArgumentError, match=r"\(4, 4\)"):
                embedding.apply_gradients({"a": tf.ones([2, 4])})
            embedding.apply_gradients({"a": tf.ones([4, 4])})
            return activations["a"]

        assert strategy.run(step).values[0].shape == [4, 4]
        sent = [
            op
            for op in graph.get_operations()
            if op.type == "SendTPUEmbeddingGradients"
        ]
    assert len(sent) == 1


def test_spmd_does_not_support_ragged_tensors():
    with (
        _spmd(),
        pytest.raises(ValueError, match="SPMD does not support ragged"),
    ):
        _embedding().enqueue({"a": tf.ragged.constant([[1], [2], [3], [4]])})


def test_a_batch_that_the_cores_do_not_divide_is_refused():
    with _spmd(), pytest.raises(errors.ArgumentError, match="a has 3 samples"):
        _embedding().enqueue({"a": tf.constant([1, 2, 3])})


def test_a_core_may_get_a_batch_of_its_own():
    with _spmd() as (graph, _):
        _embedding().enqueue({"a": tf.constant(IDS)}, device="/device:TPU:3")
        ((host, ordinal, shapes, _),) = _enqueued(graph)
    assert host == "/job:worker/replica:0/task:0/device:CPU:0"
    assert ordinal == 3
    assert [4] in shapes


def test_inside_of_run_a_batch_cannot_be_split():
    with _spmd() as (_, strategy):
        embedding = _embedding()
        with pytest.raises(
            errors.UnsupportedError, match="outside of strategy"
        ):
            strategy.run(embedding.enqueue, args=({"a": tf.constant(IDS)},))


def test_sequences_are_not_trained():
    with _spmd() as (_, strategy):
        embedding = _embedding(max_sequence_length=3)
        embedding.build(per_replica_batch_size=2)

        def step():
            activations = embedding.dequeue()
            assert activations["a"].shape == [4, 3, 4]
            embedding.apply_gradients(activations)

        with pytest.raises(errors.UnsupportedError, match="rank 3"):
            strategy.run(step)


def test_tables_of_other_engines_have_replicas_of_one_core():
    with (
        tf.Graph().as_default(),
        paper_strategy(1, cores_per_replica=2).scope(),
        pytest.raises(
            errors.UnsupportedError, match="'t'.*no embedding engine"
        ),
    ):
        _embedding()
