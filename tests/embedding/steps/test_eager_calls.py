"""Eager steps become functions once they came often, and stay the same."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed.embedding.steps import eager_calls

_STEPS = 30


def _embedding(rule=None):
    table = tfembed.TableConfig(
        50, 4, initializer=tf.constant_initializer(0.5), name="table"
    )
    features = {
        "a": tfembed.FeatureConfig(table),
        "b": tfembed.FeatureConfig(table),
    }
    return tfembed.TPUEmbedding(features, rule or tfembed.Adagrad(0.1))


def _batches():
    rng = np.random.default_rng(3)
    for _ in range(_STEPS):
        yield {
            name: tf.RaggedTensor.from_row_lengths(
                rng.integers(0, 50, 2 * lengths.sum()), 2 * lengths
            )
            for name in ("a", "b")
            for lengths in [rng.integers(1, 4, 8)]
        }


def _sparse_batches():
    for batch in _batches():
        yield {name: one.to_sparse() for name, one in batch.items()}


def _dense_batches():
    rng = np.random.default_rng(3)
    for _ in range(_STEPS):
        yield {
            name: tf.constant(rng.integers(0, 50, [8, 1]))
            for name in ("a", "b")
        }


def _train(embedding, batches, pack=tfembed.pack_features):
    found = []
    for batch in batches:
        embedding.enqueue(pack(batch))
        activations = embedding.dequeue()
        found.append(activations["b"].numpy())
        embedding.apply_gradients(
            tf.nest.map_structure(lambda one: one * 0.1 + 1.0, activations)
        )
    (table,) = embedding.embedding_tables.values()
    return np.stack(found), table.numpy()


def test_functions_train_as_ops_do(monkeypatch):
    traced = _train(_embedding(), _batches())
    monkeypatch.setattr(eager_calls, "_AS_THEY_ARE", _STEPS)
    plain = _train(_embedding(), _batches())
    for a, b in zip(traced, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batches", [_batches, _sparse_batches, _dense_batches])
def test_functions_of_structures_train_as_packed_input_does(batches):
    def as_it_is(batch):
        return batch

    structures = _train(_embedding(), batches(), as_it_is)
    packed = _train(_embedding(), batches())
    for a, b in zip(structures, packed, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batches", [_batches, _sparse_batches])
def test_functions_of_structures_take_weights(monkeypatch, batches):
    def found():
        embedding = _embedding()
        outputs = []
        for i, batch in enumerate(batches()):
            ids = batch["a"]
            weights = {
                "a": ids.with_values(tf.cast(ids.values % 5, tf.float32) + i),
                "b": None,
            }
            embedding.enqueue(batch, weights, training=False)
            outputs.append(embedding.dequeue()["a"].numpy())
        return np.stack(outputs)

    traced = found()
    monkeypatch.setattr(eager_calls, "_AS_THEY_ARE", _STEPS)
    np.testing.assert_array_equal(traced, found())


def test_other_inputs_are_still_taken_and_refused_as_before():
    embedding = _embedding()
    _train(embedding, _batches(), lambda batch: batch)
    batch = next(_batches())
    with pytest.raises(ValueError, match="b"):
        embedding.enqueue({"a": batch["a"], "b": batch["b"][:4]})
    with pytest.raises(tfembed.errors.DtypeError):
        embedding.enqueue(
            {"a": batch["a"], "b": tf.cast(batch["b"], tf.float32)}
        )
    with pytest.raises((ValueError, TypeError)):
        embedding.enqueue({"a": batch["a"]})
    embedding.enqueue({**batch, "b": batch["b"] + 50})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="In feature 'b': id"
    ):
        embedding.dequeue()


def test_calls_that_come_often_are_traced_once(monkeypatch):
    traced = []
    embedding = _embedding()
    look_up = tfembed.ops.step.lookup

    def spy(*args, **kwargs):
        traced.append(tf.executing_eagerly())
        return look_up(*args, **kwargs)

    monkeypatch.setattr("tfembed.ops.step.lookup", spy)
    _train(embedding, _batches())
    assert traced == [True] * 8 + [False]


def test_a_rate_that_changes_counts_in_every_step():
    rates = iter(np.linspace(0.1, 1.0, _STEPS))
    embedding = _embedding(tfembed.SGD(lambda: next(rates)))
    _train(embedding, _batches())
    assert next(rates, None) is None


def test_errors_are_those_of_the_first_calls():
    embedding = _embedding()
    _train(embedding, _batches())
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="finds nothing enqueued"
    ):
        embedding.dequeue()
    batch = next(_batches())
    bad = {**batch, "b": batch["b"] + 50}
    embedding.enqueue(tfembed.pack_features(bad))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="In feature 'b': id"
    ):
        embedding.dequeue()
    other = {"a": batch["a"], "b": batch["b"][:4]}
    with pytest.raises(ValueError, match="b"):
        embedding.enqueue(tfembed.pack_features(other))


def test_gradients_of_another_shape_are_refused_and_of_another_dtype_taken():
    embedding = _embedding()
    _train(embedding, _batches())
    embedding.enqueue(tfembed.pack_features(next(_batches())))
    activations = embedding.dequeue()
    ones = {key: tf.ones_like(one) for key, one in activations.items()}
    with pytest.raises(ValueError, match="shape"):
        embedding.apply_gradients({**ones, "b": ones["b"][:4]})
    (table,) = embedding.embedding_tables.values()
    before = table.numpy()
    halves = {key: tf.cast(one, tf.float16) for key, one in ones.items()}
    embedding.apply_gradients(halves)
    assert (table.numpy() < before).any()


def test_a_batch_is_still_refused_while_gradients_are_due():
    embedding = _embedding()
    _train(embedding, _batches())
    embedding.enqueue(tfembed.pack_features(next(_batches())))
    embedding.dequeue()
    embedding.enqueue(tfembed.pack_features(next(_batches())))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="waiting for its apply_gradients"
    ):
        embedding.dequeue()


def test_functions_can_be_run_eagerly():
    embedding = _embedding()
    tf.config.run_functions_eagerly(True)
    try:
        _train(embedding, _batches())
    finally:
        tf.config.run_functions_eagerly(False)
