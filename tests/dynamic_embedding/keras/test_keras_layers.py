"""Inputs and outputs of the Keras layers."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.dynamic_embedding.keras import callbacks, layers

RAGGED = tf.RaggedTensor.from_row_lengths(
    tf.constant([1, 2, 2, 7], tf.int64), [2, 0, 2]
)


@keras.saving.register_keras_serializable("tests")
def registered_gamma(shape, seed):
    return tf.random.stateless_gamma(shape, seed, alpha=2.0)


def _counting(cls, *arguments, **options):
    """A layer whose row of id i is [i, i]."""
    layer = cls(2, *arguments, initializer=0.0, **options)
    ids = tf.range(10, dtype=tf.int64)
    values = tf.repeat(tf.cast(ids, tf.float32)[:, None], 2, 1)
    layer.params.upsert(ids, values)
    return layer


@pytest.mark.parametrize("with_unique", [True, False])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (1, 2, 3), (0,), (2, 0)])
def test_ids_of_any_shape_give_a_row_each(shape, with_unique):
    layer = _counting(layers.Embedding, with_unique=with_unique)
    ids = np.arange(np.prod(shape, dtype=int)).reshape(shape)

    rows = layer(tf.constant(ids, tf.int64))

    np.testing.assert_array_equal(rows, np.repeat(ids[..., None], 2, -1))


@pytest.mark.parametrize(
    "make",
    [
        layers.Embedding,
        layers.SquashedEmbedding,
        functools.partial(
            layers.FieldWiseEmbedding, nslots=2, slot_map_fn=lambda ids: ids % 2
        ),
        tfembed.keras.layers.Embedding,
    ],
)
@pytest.mark.parametrize(
    ("ids", "tensor"),
    [
        ([[1, 2], [3, 4]], tf.constant([[1, 2], [3, 4]])),
        ([[1, 2], [3]], tf.ragged.constant([[1, 2], [3]])),
    ],
)
def test_lists_of_ids_are_taken_as_tensors_are(make, ids, tensor):
    layer = make(2)

    rows, expected = layer(ids), layer(tensor)

    tf.nest.map_structure(
        np.testing.assert_array_equal,
        *(tf.nest.flatten(x, expand_composites=True) for x in (rows, expected)),
    )


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
@pytest.mark.parametrize(
    "make", [layers.Embedding, tfembed.keras.layers.Embedding]
)
def test_lists_without_ids_give_no_rows(make, key_dtype):
    layer = make(2, key_dtype=key_dtype)

    assert layer([]).shape == (0, 2)
    assert layer([[], []]).shape == (2, 0, 2)


def test_ragged_ids_give_ragged_rows():
    rows = _counting(layers.Embedding)(RAGGED)

    assert rows.to_list() == [[[1, 1], [2, 2]], [], [[2, 2], [7, 7]]]


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [
        ("sum", [3, 0, 9]),
        ("mean", [1.5, 0, 4.5]),
        ("sqrtn", [2.1213203, 0, 6.363961]),
    ],
)
def test_ragged_ids_are_squashed_with_zeros_for_none(combiner, expected):
    rows = _counting(layers.SquashedEmbedding, combiner=combiner)(RAGGED)

    np.testing.assert_allclose(rows[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "combiner", ["sum", "mean", "max", "min", "prod", "std"]
)
def test_dense_ids_are_squashed_as_numpy_does(combiner):
    layer = _counting(layers.SquashedEmbedding, combiner=combiner)
    ids = np.array([[[1, 2], [3, 9]], [[4, 4], [5, 0]]])

    expected = getattr(np, combiner)(ids, (1, 2))

    np.testing.assert_allclose(layer(ids)[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(
        layer(ids.ravel())[0], getattr(np, combiner)(ids), rtol=1e-6
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "std"])
@pytest.mark.parametrize("shape", [(3, 0), (3, 2, 0), (0,), (0, 2)])
@pytest.mark.parametrize("in_function", [False, True])
def test_no_dense_ids_are_squashed_to_zeros(combiner, shape, in_function):
    layer = _counting(layers.SquashedEmbedding, combiner=combiner)
    ids = tf.zeros(shape, tf.int64)

    def step(ids):
        with tf.GradientTape() as tape:
            rows = layer(ids)
            loss = tf.reduce_sum(rows)
        return rows, tape.gradient(loss, layer.params).values

    if in_function:
        unknown = tf.TensorSpec([None] * len(shape), tf.int64)
        step = tf.function(step, input_signature=[unknown])
    rows, gradient = step(ids)

    batch = shape[:1] if len(shape) > 1 else ()
    np.testing.assert_array_equal(rows, np.zeros([*batch, 2]))
    assert not np.isnan(gradient).any()


def test_a_function_may_squash():
    layer = _counting(
        layers.SquashedEmbedding,
        combiner=lambda rows, axes: -tf.reduce_sum(rows, axes),
    )

    np.testing.assert_array_equal(layer(np.array([[1, 2]])), [[-3, -3]])


def test_fields_combine_the_ids_that_map_to_them():
    layer = _counting(layers.FieldWiseEmbedding, 3, lambda ids: ids % 3)

    rows = layer(np.array([[3, 6, 1], [2, 5, 8]]))

    assert rows[..., 0].numpy().tolist() == [[9, 1, 0], [0, 0, 15]]
    assert layer(RAGGED)[..., 0].numpy().tolist() == [
        [0, 1, 2],
        [0, 0, 0],
        [0, 7, 2],
    ]


def test_a_field_that_is_not_there_is_refused():
    layer = _counting(layers.FieldWiseEmbedding, 3, lambda ids: ids)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 3\)"):
        layer(np.array([[1, 5]]))


def test_max_norm_scales_rows_down():
    layer = layers.Embedding(2, initializer=3.0, max_norm=1.0, name="norm")

    np.testing.assert_allclose(
        layer(np.array([1])), [[0.70710678, 0.70710678]], rtol=1e-6
    )


def test_the_arguments_reach_the_table():
    layer = layers.BasicEmbedding(
        3, devices=["/CPU:0"] * 2, name="a", bp_v2=True, init_capacity=99
    )

    params = layer.params
    assert (params.name, params.dim, params.shard_num) == ("a-parameter", 3, 2)
    assert (params.bp_v2, params.init_size) == (True, 99)


def test_rows_are_random_normal_by_default_and_differ_by_layer():
    keras.utils.set_random_seed(1)
    ids = np.arange(1 << 14)
    one, two = (layers.Embedding(8, name=name)(ids) for name in ("one", "two"))

    assert abs(float(tf.math.reduce_std(one)) - 0.05) < 1e-3
    assert not np.array_equal(one, two)


def test_a_functional_model_knows_the_shapes():
    ids = keras.Input((5,), dtype="int64")

    assert layers.Embedding(4, name="f1")(ids).shape == (None, 5, 4)
    assert layers.SquashedEmbedding(4, name="f2")(ids).shape == (None, 4)
    fields = layers.FieldWiseEmbedding(4, 3, lambda ids: ids % 3, name="f3")
    assert fields(ids).shape == (None, 3, 4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: layers.Embedding(0), errors.ArgumentError, "embedding_size"),
        (
            lambda: layers.Embedding(2, combiner="median"),
            errors.ArgumentError,
            "combiner",
        ),
        (
            lambda: layers.Embedding(2, distribute_strategy=object()),
            errors.UnsupportedError,
            "distribute_strategy",
        ),
        (
            lambda: layers.FieldWiseEmbedding(2, 3, slot_map_fn=7),
            ValueError,
            "slot_map_fn",
        ),
        (
            lambda: layers.FieldWiseEmbedding(2, 0, lambda ids: ids),
            errors.ArgumentError,
            "nslots",
        ),
        (
            lambda: layers.HvdAllToAllEmbedding(embedding_size=2),
            errors.UnsupportedError,
            "Horovod",
        ),
        (
            lambda: callbacks.DEHvdBroadcastGlobalVariablesCallback(0),
            errors.UnsupportedError,
            "Horovod",
        ),
        (
            lambda: layers.Embedding(
                2, value_dtype=tf.int32, initializer=0, max_norm=1.0, name="n"
            ),
            errors.DtypeError,
            "`max_norm`.*'n-parameter'.*int32",
        ),
        (
            lambda: layers.Embedding(2, name="x")(tf.constant([0.5])),
            errors.DtypeError,
            "int64",
        ),
        (
            lambda: layers.FieldWiseEmbedding(2, 3, lambda ids: ids % 3)(
                np.zeros([1, 2, 3], np.int64)
            ),
            NotImplementedError,
            "rank 2",
        ),
    ],
)
def test_what_is_not_allowed_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "initializer",
    [
        None,
        0.25,
        "ones",
        [1.0, 2.0],
        keras.initializers.RandomUniform(-1, 1, seed=7),
        tfembed.RowInitializer("normal", (0.0, 2.0), seed=3),
        registered_gamma,
    ],
)
def test_a_config_makes_an_equal_layer_with_an_empty_table(initializer):
    layer = layers.SquashedEmbedding(
        2,
        combiner="mean",
        initializer=initializer,
        devices=["/CPU:0"] * 2,
        name="config",
        with_unique=False,
        max_norm=3.0,
        kv_creator=de.CuckooHashTableCreator(),
    )
    layer.params.upsert([1], [[9.0, 9.0]])

    other = layers.SquashedEmbedding.from_config(layer.get_config())

    assert other.get_config() == layer.get_config()
    assert int(other.params.size()) == 0
    if initializer is not None:
        ids = np.arange(5, 10)
        np.testing.assert_array_equal(other(ids), layer(ids))


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.FieldWiseEmbedding(2, 3, lambda ids: ids % 3, name="fn"),
        lambda: layers.Embedding(
            2, initializer=lambda shape, seed: registered_gamma(shape, seed)
        ),
        lambda: layers.Embedding(
            2, initializer=functools.partial(registered_gamma)
        ),
    ],
    ids=["slot_map_fn", "initializer", "partial"],
)
def test_a_function_that_is_not_registered_has_no_config(make):
    layer = make()

    with pytest.raises(
        errors.ArgumentError, match="register_keras_serializable"
    ):
        layer.get_config()


def test_layer_normalization_is_keras_own():
    assert layers.LayerNormalization is keras.layers.LayerNormalization


def test_a_shadow_looks_up_in_the_layers_table():
    layer = _counting(layers.Embedding, name="shadowed")
    ids = tf.constant([3, 4], tf.int64)

    with tf.GradientTape() as tape:
        rows = de.shadow_ops.embedding_lookup(layer.shadow, ids)
    gradient = tape.gradient(rows, layer.shadow)

    assert layer.shadow.name == "shadowed-shadow"
    np.testing.assert_array_equal(rows, layer(ids))
    np.testing.assert_array_equal(gradient.indices, ids)


@pytest.mark.parametrize("in_function", [False, True])
def test_a_loop_may_differentiate_a_layers_calls_by_its_shadow(in_function):
    layer = layers.Embedding(1, initializer=0.0, name="looped")
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    def step(ids):
        with tf.GradientTape() as tape:
            rows = de.shadow_ops.embedding_lookup(layer.shadow, ids[:1])
            loss = tf.reduce_sum(layer(ids)) + 10 * tf.reduce_sum(rows)
        gradients = tape.gradient(loss, [layer.shadow])
        optimizer.apply_gradients(zip(gradients, [layer.shadow], strict=True))

    ids = tf.constant([5, 6, 6], tf.int64)
    (tf.function(step) if in_function else step)(ids)

    assert layer.params.lookup([5, 6]).numpy().tolist() == [[-11], [-2]]


def test_the_default_partitioner_may_be_given_to_a_layer_that_is_saved():
    layer = layers.Embedding(2, partitioner=de.default_partition_fn)
    assert layer.get_config()["partitioner"] is None
    assert layer.keep_distribution


def test_a_layer_refuses_sparse_ids_and_says_what_to_give():
    ids = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [2, 2])
    with pytest.raises(errors.DtypeError, match="RaggedTensor.from_sparse"):
        layers.Embedding(2)(ids)


@pytest.mark.parametrize("size", ["x", 0, 1.5])
def test_an_embedding_size_that_is_not_allowed_is_called_by_its_name(size):
    with pytest.raises(errors.ArgumentError, match="`embedding_size`"):
        layers.Embedding(size)
