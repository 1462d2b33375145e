"""A gradient of a layer's table passes where slices pass, and is never dense.

The kind of fault: code that makes gradients dense meets rows by key. Looked at
too: tables without a layer, what stands for a lookup, shadows, clipping, functions
that return gradients, means, a LossScaleOptimizer; tapes around functions and
branches; `while_loop`, strategies and exports, which make new slices of the parts.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.keras.layers import Embedding

LAYERS = {
    "Embedding": lambda: Embedding(2, name="users"),
    "de": lambda: de.keras.layers.Embedding(2, name="users"),
}
DENSE = {
    "isfinite": keras.ops.isfinite,
    "mean": keras.ops.mean,
    "mean of columns": lambda gradient: keras.ops.mean(gradient, axis=0),
    "sum": keras.ops.sum,
    "convert_to_tensor": tf.convert_to_tensor,
    "reduce_sum": tf.reduce_sum,
    "zeros_like": tf.zeros_like,
    "isfinite of clipped": lambda gradient: keras.ops.isfinite(
        tf.clip_by_norm(gradient, 1.0)
    ),
    "add of another": lambda gradient: keras.ops.add(
        gradient, tf.IndexedSlices(gradient.values, gradient.indices + 1)
    ),
}


def gradient_of(layer, ids):
    with tf.GradientTape() as tape:
        loss = 3.0 * tf.reduce_sum(layer(tf.constant(ids)))
    return tape.gradient(loss, layer.trainable_weights)[0]


def of_a_layer(layer):
    return lambda ids: gradient_of(layer, ids)


def of_a_table(*, by_lookup=False):
    table = de.Variable(dim=2, name="users")

    def gradient(ids):
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(
                *(table, tf.constant(ids)),
                return_trainable=by_lookup,
                name="lookup",
            )
            rows, source = rows if by_lookup else (rows, table)
        return tape.gradient(rows, source)

    return gradient


def of_a_shadow():
    shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2, name="users"))

    def gradient(ids):
        with tf.GradientTape() as tape:
            rows = de.shadow_ops.embedding_lookup(shadow, tf.constant(ids))
        return tape.gradient(rows, shadow)

    return gradient


# Source -> () -> (ids) -> its gradient.
BARE = {
    "table": of_a_table,
    "lookup": lambda: of_a_table(by_lookup=True),
    "shadow": of_a_shadow,
}
GRADIENTS = BARE | {
    name: lambda make=make: of_a_layer(make()) for name, make in LAYERS.items()
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("use", DENSE)
def test_a_gradient_that_would_become_dense_says_what_to_do(kind, use):
    gradient = GRADIENTS[kind]()([10**15, 5])
    with pytest.raises(errors.DtypeError, match="`values`.*loss_scale_factor"):
        DENSE[use](gradient)


@pytest.mark.parametrize("kind", ["table", "shadow"])
def test_a_gradient_taken_in_a_function_is_clipped_and_leaves_it(kind):
    take = BARE[kind]()

    @tf.function(autograph=False)
    def clipped():
        gradient = take([10**15, 5])
        with pytest.raises(errors.DtypeError, match="`values`"):
            keras.ops.isfinite(gradient)
        return tf.clip_by_global_norm([gradient], 1.0)

    (gradient,), norm = clipped()
    assert float(norm) == 2
    assert gradient.indices.numpy().tolist() == [10**15, 5]
    np.testing.assert_array_equal(gradient.values, np.full([2, 2], 0.5))


def look_up(kind):
    """A source, and a function of ids that looks rows of it up."""
    if kind == "layer":
        layer = LAYERS["Embedding"]()
        layer(tf.constant([0]))
        return layer.trainable_weights[0], layer
    table = de.Variable(dim=2, name="users")
    if kind == "table":
        return table, lambda ids: de.embedding_lookup(table, ids)
    if kind == "sparse lookup":
        return table, lambda ids: de.safe_embedding_lookup_sparse(
            table, tf.sparse.from_dense(ids[None]), combiner="sum"
        )
    shadow = de.shadow_ops.ShadowVariable(table)
    return shadow, lambda ids: de.shadow_ops.embedding_lookup(shadow, ids)


def in_branch(found, *, is_first=True):
    def branched(ids):
        branches = [lambda: tf.reduce_sum(found(ids)), lambda: 0.0]
        branches = branches if is_first else branches[::-1]
        return tf.cond(ids[0] > 6, *branches)

    return branched


# How the rows of `found` are looked up under the tape.
RECORDED = {
    "at once": lambda found: found,
    "twice": lambda found: lambda ids: found(ids) + found(ids),
    "in a function": tf.function,
    "in a branch": in_branch,
    "in the other branch": lambda found: in_branch(found, is_first=False),
    "in a function, called in a branch": lambda f: in_branch(tf.function(f)),
}
LEAVING = [
    *(("table", how) for how in RECORDED),
    *(("layer", how) for how in ("twice", "in the other branch")),
    ("sparse lookup", "at once"),
    *(("shadow", how) for how in ("at once", "twice", "in a function")),
]


@pytest.mark.parametrize(("kind", "how"), LEAVING)
def test_a_gradient_that_left_functions_is_still_never_dense(kind, how):
    source, found = look_up(kind)
    recorded = RECORDED[how](found)

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(recorded(tf.constant([7, 5], tf.int64)))
        return tape.gradient(loss, source)

    inner = tf.function(gradient, autograph=False)
    for taken in (inner(), tf.function(lambda: [inner()])()[0]):
        with pytest.raises(errors.DtypeError, match="`values`"):
            keras.ops.mean(taken)


@pytest.mark.parametrize("kind", ["layer", "table", "sparse lookup", "shadow"])
def test_a_tape_around_a_function_gives_gradients_in_words(kind):
    source, found = look_up(kind)
    with tf.GradientTape() as tape:
        loss = tf.function(found)(tf.constant([7, 5], tf.int64))
    taken = tape.gradient(loss, source)
    for use in (keras.ops.mean, keras.ops.isfinite, keras.ops.norm):
        with pytest.raises(errors.DtypeError, match="`values`"):
            use(taken)


def test_a_loss_scale_optimizer_in_a_loop_says_what_to_do():
    layer = LAYERS["Embedding"]()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    gradient = gradient_of(layer, [7])
    with pytest.raises(errors.DtypeError, match="loss_scale_factor"):
        scaled.apply([gradient], layer.trainable_weights)
    assert int(layer.table.size()) == 0


@pytest.mark.parametrize("kind", LAYERS)
def test_clipped_gradients_leave_a_function_and_train(kind):
    layer = LAYERS[kind]()
    layer(tf.constant([0]))
    optimizer = keras.optimizers.SGD(1.0)
    if kind == "de":
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)

    @tf.function
    def clipped():
        gradient = gradient_of(layer, [10**15, 5])
        return tf.clip_by_global_norm([gradient], 1.0)[0]

    before = layer(tf.constant([5, 10**15, 6])).numpy()
    optimizer.apply(clipped(), layer.trainable_weights)
    change = layer(tf.constant([5, 10**15, 6])).numpy() - before
    np.testing.assert_allclose(change, [[-0.5] * 2, [-0.5] * 2, [0] * 2], 1e-6)
