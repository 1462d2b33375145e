"""The arguments that a `ShadowVariable` takes, and refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.shadows import shadow_ops, shadowed
from tfembed import errors


@pytest.fixture(autouse=True)
def train_mode():
    yield
    de.enable_train_mode()


def test_a_shadow_may_keep_its_ids_in_a_variable_that_is_given():
    v = de.Variable(dim=1)
    ids = tf.Variable(
        tf.zeros([0], tf.int64), shape=tf.TensorShape(None), trainable=False
    )
    shadow = shadow_ops.ShadowVariable(v, ids=ids)
    shadow_ops.embedding_lookup(shadow, [7])
    assert ids.numpy().tolist() == [7]


@pytest.mark.parametrize("name", ["sparse_read", "gather_nd"])
def test_methods_of_dense_variables_are_not_there(name):
    _, shadow = shadowed()
    with pytest.raises(AttributeError, match=name):
        getattr(shadow, name)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda v, s: shadow_ops.ShadowVariable(tf.Variable(1.0)),
            TypeError,
            "must be a tfembed Variable",
        ),
        (
            lambda v, s: shadow_ops.ShadowVariable(v, ids=[1]),
            TypeError,
            "`ids` of a ShadowVariable",
        ),
        (
            lambda v, s: shadow_ops.embedding_lookup(
                s, tf.constant([1], tf.uint64)
            ),
            ValueError,
            "int64",
        ),
        (
            lambda v, s: shadow_ops.embedding_lookup(v, [1]),
            TypeError,
            "must be a ShadowVariable",
        ),
        (
            lambda v, s: shadow_ops.embedding_lookup_unique(s, [1], 3),
            ValueError,
            "`embedding_size` must be",
        ),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call(*shadowed())
    assert isinstance(caught.value, errors.TfembedError)


def test_shadows_are_made_in_eager_mode():
    v = de.Variable(dim=1)

    @tf.function
    def make():
        shadow_ops.ShadowVariable(v)

    with pytest.raises(NotImplementedError, match="eager mode only"):
        make()
    with (
        tf.Graph().as_default(),
        pytest.raises(NotImplementedError, match="eager mode only"),
    ):
        shadow_ops.ShadowVariable(v)


def test_arguments_may_be_given_by_place_and_by_name():
    v = de.Variable(dim=1)
    shadow = shadow_ops.ShadowVariable(v, "mine", max_norm=1.0, trainable=False)
    assert (shadow.name, shadow.max_norm) == ("mine", 1.0)
    assert not shadow.trainable
    wrapper = de.TrainableWrapper(
        v, tf.constant([1], tf.int64), max_norm=None, trainable=True
    )
    assert wrapper.trainable


def test_ragged_ids_give_ragged_rows_and_gradients():
    v = de.Variable(dim=2, initializer=1.0, name="ragged")
    shadow = shadow_ops.ShadowVariable(v)
    ids = tf.ragged.constant([[3, 1], [], [3]], dtype=tf.int64)

    with tf.GradientTape() as tape:
        rows = shadow_ops.embedding_lookup(shadow, ids)
        loss = tf.reduce_sum(rows.flat_values * [[1.0, 2.0]])
    gradient = tape.gradient(loss, shadow)

    assert rows.row_lengths().numpy().tolist() == [2, 0, 1]
    assert rows.flat_values.shape == [3, 2]
    assert float(tf.reduce_sum(gradient.values)) == 9.0
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(0.5))
    optimizer.apply_gradients([(gradient, shadow)])
    np.testing.assert_allclose(
        v.lookup([1, 3, 4]), [[0.5, 0.0], [0.0, -1.0], [1.0, 1.0]]
    )


@pytest.mark.parametrize(
    "ids",
    [
        tf.ragged.constant([[1], [2, 3]], dtype=tf.int64),
        tf.sparse.from_dense(tf.constant([[1, 2]], tf.int64)),
    ],
    ids=["ragged", "sparse"],
)
@pytest.mark.parametrize(
    "look_up",
    [
        lambda v, ids: de.embedding_lookup(v, ids, name="n"),
        lambda v, ids: v.lookup(ids),
    ],
    ids=["embedding_lookup", "lookup"],
)
def test_dense_lookups_name_those_for_ragged_and_sparse_ids(ids, look_up):
    v = de.Variable(dim=1)
    with pytest.raises(
        (TypeError, ValueError), match="embedding_lookup_sparse"
    ):
        look_up(v, ids)
