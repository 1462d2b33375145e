"""What a `ShadowVariable` may be given, and what it refuses."""

from __future__ import annotations

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
            lambda v, s: shadow_ops.embedding_lookup(s, tf.constant([1])),
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
