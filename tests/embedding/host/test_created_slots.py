"""Slot_variable_creation_fn: the user makes the slots of static tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from tfembed import errors, optimizers

SHAPE = (4, 2)


def zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def make(creator, rule=optimizers.Adagrad, vocabulary=4):
    table = tfembed.TableConfig(vocabulary, 2, name="users")
    if vocabulary is not None:
        table = tfembed.TableConfig(vocabulary, 2, zeros, name="users")
    optimizer = rule(1.0, slot_variable_creation_fn=creator)
    return tfembed.TPUEmbedding(tfembed.FeatureConfig(table), optimizer)


def train(embedding):
    embedding.enqueue(tf.constant([1]))
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.ones_like(activations))


def test_the_function_gets_variable_names_and_initializers():
    seen = []

    def creator(variable, names, initializers):
        seen.append((variable, names))
        return {
            name: tf.Variable(initializer(variable.shape))
            for name, initializer in zip(names, initializers, strict=True)
        }

    embedding = make(creator, optimizers.FTRL)
    embedding.build()
    (variable, names) = seen[0]
    assert variable is embedding._variables["users"]["parameters"]
    assert names == ["accumulators", "linears"]
    slots = embedding._variables["users"]
    np.testing.assert_array_equal(
        slots["accumulators"], np.full(SHAPE, 0.1, np.float32)
    )
    np.testing.assert_array_equal(slots["linears"], np.zeros(SHAPE))


def test_the_slots_train():
    slot = tf.Variable(tf.ones(SHAPE))
    embedding = make(lambda *_: {"accumulators": slot})
    train(embedding)
    assert slot.numpy()[:, 0].tolist() == [1, 2, 1, 1]
    rows = embedding._variables["users"]["parameters"].numpy()
    np.testing.assert_allclose(rows[1], -1 / np.sqrt(2), rtol=1e-6)


@marks.REPLICAS
def test_a_strategy_does_not_mirror_them():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        embedding = make(
            lambda *_: {"accumulators": tf.Variable(tf.ones(SHAPE))}
        )
        embedding.build()
    slot = embedding._variables["users"]["accumulators"]
    assert not isinstance(slot, tf.distribute.DistributedValues)


def test_checkpoints_have_them_under_tensorflows_key(tmp_path):
    embedding = make(lambda *_: {"accumulators": tf.Variable(tf.ones(SHAPE))})
    train(embedding)
    path = tf.train.Checkpoint(embedding=embedding).save(str(tmp_path / "c"))
    keys = [key for key, _ in tf.train.list_variables(path)]
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert f"embedding/_variables/users/accumulators{end}" in keys
    assert f"embedding/users.Saccumulators{end}" not in keys

    other = make(lambda *_: {"accumulators": tf.Variable(tf.zeros(SHAPE))})
    other.build()
    tf.train.Checkpoint(embedding=other).restore(path).assert_consumed()
    slot = other._variables["users"]["accumulators"]
    assert slot.numpy()[:, 0].tolist() == [1, 2, 1, 1]


def _marked(slot):
    """As layers give slots that an optimizer of Keras made and saves."""
    return {"accumulators": tf.Module()._no_dependency(slot)}


def test_a_slot_that_is_marked_as_somebody_elses_trains_and_is_not_saved(
    tmp_path,
):
    slot = tf.Variable(tf.ones(SHAPE))
    embedding = make(lambda *_: _marked(slot))
    train(embedding)
    assert slot.numpy()[:, 0].tolist() == [1, 2, 1, 1]
    assert embedding._variables["users"]["accumulators"] is slot
    path = tf.train.Checkpoint(embedding=embedding).save(str(tmp_path / "c"))
    keys = [key for key, _ in tf.train.list_variables(path)]
    assert not [key for key in keys if "accumulators" in key]


@pytest.mark.parametrize(
    "cls", [tfembed.TPUEmbeddingV0, tfembed.TPUEmbeddingForServing]
)
def test_other_classes_take_marked_slots_too(cls):
    slot = tf.Variable(tf.ones(SHAPE))
    table = tfembed.TableConfig(4, 2, name="users")
    rule = optimizers.Adagrad(
        slot_variable_creation_fn=lambda *_: _marked(slot)
    )
    embedding = cls(tfembed.FeatureConfig(table), rule)
    assert embedding.variables["users"]["accumulators"] is slot


def test_a_checkpoint_of_tensorflows_restores(tmp_path):
    theirs = tf.tpu.experimental.embedding
    table = theirs.TableConfig(4, 2, zeros, name="users")
    source = theirs.TPUEmbedding(
        theirs.FeatureConfig(table),
        theirs.Adagrad(
            slot_variable_creation_fn=lambda *_: {
                "accumulators": tf.Variable(tf.fill(SHAPE, 3.0))
            }
        ),
    )
    source.build()
    path = tf.train.Checkpoint(embedding=source).save(str(tmp_path / "c"))
    slot = tf.Variable(tf.zeros(SHAPE))
    embedding = make(lambda *_: {"accumulators": slot})
    embedding.build()
    tf.train.Checkpoint(embedding=embedding).restore(path)
    assert slot.numpy().tolist() == [[3.0, 3.0]] * 4


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (None, "dict of the slots.*accumulators.*None"),
        ({}, r"got \[\]"),
        ({"accumulators": tf.zeros(SHAPE)}, "must make slot 'accumulators'"),
        (_marked(tf.zeros(SHAPE)), "must make slot 'accumulators'"),
        ({"accumulators": tf.Variable(tf.zeros([4, 3]))}, r"\[4, 2\]"),
        ({"accumulators": tf.Variable(tf.zeros(SHAPE, tf.float64))}, "float32"),
        ({"accumulators": 1, "momenta": 2}, "momenta"),
    ],
)
def test_what_the_function_returns_is_checked(made, text):
    with pytest.raises(errors.ArgumentError, match=text):
        make(lambda *_: made).build()


@marks.GROWS
def test_a_table_without_vocabulary_has_its_slots_in_its_rows():
    with pytest.raises(errors.ArgumentError, match="'users' has no vocabulary"):
        make(lambda *_: {}, vocabulary=None)


def test_a_row_wise_slot_has_one_float_a_row():
    slot = tf.Variable(tf.zeros([4, 1]))
    embedding = make(
        lambda *_: {"accumulators": slot}, optimizers.RowWiseAdagrad
    )
    train(embedding)
    assert slot.numpy().tolist() == [[0.0], [1.0], [0.0], [0.0]]
