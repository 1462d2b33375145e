"""Translation of initializers into descriptions of keyed rows."""

from __future__ import annotations

import math
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfembed
from tfembed import errors, policies
from tfembed.embedding.host.tables import hash_table_of
from tfembed.initializers import RowInitializer, row_initializer
from tfembed.tables import HashTable

KERAS = tf.keras.initializers


@pytest.mark.parametrize(
    ("given", "kind", "arguments"),
    [
        (None, "constant", (0.0,)),
        (-1, "constant", (-1.0,)),
        (2.5, "constant", (2.5,)),
        ([-1.0], "constant", (-1.0,)),
        (np.array([1, 2, 3, 4]), "vector", (1.0, 2.0, 3.0, 4.0)),
        (tf.constant([1, 2, 3, 4], tf.int64), "vector", (1.0, 2.0, 3.0, 4.0)),
        (tf.constant(-1.0), "constant", (-1.0,)),
        (lambda: 3.0, "constant", (3.0,)),
        (lambda shape: tf.fill(shape, 2.0), "vector", (2.0,) * 4),
        (lambda shape=None: 2.0, "vector", (2.0,) * 4),
        (tf.ones, "vector", (1.0,) * 4),
        (lambda shape, dtype: tf.ones(shape, dtype), "vector", (1.0,) * 4),
        ("zeros", "constant", (0.0,)),
        (KERAS.Ones, "constant", (1.0,)),
        (KERAS.Zeros(), "constant", (0.0,)),
        (KERAS.Constant(2.5), "constant", (2.5,)),
        (KERAS.RandomUniform(-2.0, 3.0), "uniform", (-2.0, 3.0)),
        (KERAS.RandomNormal(1.0, 0.5), "normal", (1.0, 0.5)),
        (KERAS.TruncatedNormal(1.0, 0.5), "truncated_normal", (1.0, 0.5)),
        (tf.random_normal_initializer(1.0, 0.5), "normal", (1.0, 0.5)),
        (tf.constant_initializer(7), "constant", (7.0,)),
        (tf.compat.v1.random_uniform_initializer(), "uniform", (0.0, 1.0)),
        (tf.compat.v1.ones_initializer(), "constant", (1.0,)),
    ],
)
def test_known_forms_are_translated(given, kind, arguments):
    assert row_initializer(given, 4) == RowInitializer(kind, arguments)


@pytest.mark.parametrize(
    ("given", "fan", "scale", "distribution"),
    [
        (KERAS.GlorotUniform(), (1 + 8) / 2, 1.0, "uniform"),
        (KERAS.GlorotNormal(), (1 + 8) / 2, 1.0, "truncated_normal"),
        (KERAS.HeNormal(), 1, 2.0, "truncated_normal"),
        (KERAS.HeUniform(), 1, 2.0, "uniform"),
        (KERAS.LecunNormal(), 1, 1.0, "truncated_normal"),
        (KERAS.LecunUniform(), 1, 1.0, "uniform"),
        (KERAS.VarianceScaling(3.0, "fan_out", "uniform"), 8, 3.0, "uniform"),
        (
            KERAS.VarianceScaling(3.0, "fan_out", "untruncated_normal"),
            8,
            3.0,
            "normal",
        ),
    ],
)
def test_variance_scaling_takes_a_row_for_a_matrix_of_one_row(
    given, fan, scale, distribution
):
    described = row_initializer(given, 8)

    assert described.kind == distribution
    low, high = described.arguments
    if distribution == "uniform":
        assert (low, high) == pytest.approx(
            (-math.sqrt(3 * scale / fan), math.sqrt(3 * scale / fan))
        )
    else:
        correction = 0.87962566103423978 if "truncated" in distribution else 1
        assert high == pytest.approx(math.sqrt(scale / fan) / correction)


@pytest.mark.parametrize(
    "given",
    [KERAS.GlorotUniform(), KERAS.HeNormal(), KERAS.VarianceScaling(2.0)],
    ids=lambda x: type(x).__name__,
)
def test_variance_scaling_has_the_spread_that_keras_draws(given):
    low, high = row_initializer(given, 30_000).arguments
    drawn = np.asarray(given((1, 30_000)))

    if row_initializer(given, 30_000).kind == "uniform":
        assert drawn.max() == pytest.approx(high, rel=1e-3)
        assert drawn.min() == pytest.approx(low, rel=1e-3)
    else:
        # Truncation at two standard deviations shows in the extremes.
        assert np.abs(drawn).max() == pytest.approx(2 * high, rel=1e-2)


# The kind: what Keras computes of a table's size, where the size is not in the
# call. Other initializers of Keras take no size; Orthogonal is refused.
@pytest.mark.parametrize("name", ["Glorot", "He", "Lecun"])
@pytest.mark.parametrize("draw", ["Normal", "Uniform"])
@pytest.mark.parametrize(
    "library",
    [keras.initializers, tf_keras.initializers, KERAS, tf.compat.v1],
    ids=["keras", "tf_keras", "tf.keras", "tf.compat.v1"],
)
def test_a_known_size_gives_the_rows_the_spread_of_keras(library, draw, name):
    kind = f"{name}{draw}"
    if library is tf.compat.v1:
        kind = f"{name.lower()}_{draw.lower()}_initializer"
        library = (
            tf.compat.v1 if name == "Glorot" else tf.compat.v1.initializers
        )
        kind = kind if name == "Glorot" else kind.removesuffix("_initializer")
    given = getattr(library, kind)()
    table = HashTable(16, name="t", initializer=given, seed=3, fan_in=60)
    rows = table.lookup(tf.range(4000, dtype=tf.int64))[0].numpy()
    expected = np.asarray(
        getattr(keras.initializers, f"{name}{draw}")(seed=1)((60, 16))
    )

    assert rows.std() == pytest.approx(expected.std(), rel=0.1)


def test_rows_scaled_by_a_fan_are_keyed():
    tables = [
        HashTable(8, name="t", initializer="he_normal", seed=3, fan_in=60)
        for _ in range(2)
    ]
    rows = tables[0].lookup(tf.constant([5, 6, 5], tf.int64))[0].numpy()

    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_array_equal(
        rows[1], tables[1].lookup(tf.constant(6, tf.int64))[0]
    )


def _layer(**size):
    layer = tfembed.keras.layers.Embedding(
        16, embeddings_initializer="he_normal", key_dtype="int64", **size
    )
    return layer.table


def _layer_of_tfra(**size):
    layers = tfembed.dynamic_embedding.keras.layers
    return layers.Embedding(16, initializer="he_normal", **size).params


def _variable(**size):
    return tfembed.dynamic_embedding.Variable(
        dim=16, initializer=keras.initializers.HeNormal(), **size
    )


def _config(**size):
    return tfembed.FeatureConfig(
        tfembed.TableConfig(None, 16, "he_normal", name="t", **size)
    )


def _embedding(**size):
    embedding = tfembed.TPUEmbedding(_config(**size), tfembed.SGD(0.1))
    embedding.build()
    return embedding.embedding_tables["t"]


def _serving(**size):
    serving = tfembed.TPUEmbeddingForServing(_config(**size), None)
    serving.build()
    return serving.embedding_tables["t"]


def _described(**size):
    """A layer's table after its configs went through JSON."""
    layer = tfembed.keras.layers.DistributedEmbedding(_config(**size), "sgd")
    return (
        type(layer).from_config(layer.get_config()).get_embedding_tables()["t"]
    )


def _of_keras_rs(**size):
    layers = tfembed.keras.layers
    table = layers.TableConfig("t", None, 16, "he_normal", **size)
    feature = layers.FeatureConfig("f", table, (None,), (None, 16))
    return layers.DistributedEmbedding(feature).get_embedding_tables()["t"]


def _column(**size):
    column = tfembed.estimator.embedding_column(
        "user", 16, initializer="he_normal", **size
    )
    return hash_table_of(column.table_config, 16, "t", None)


DOORS = [
    _layer,
    _layer_of_tfra,
    _variable,
    _embedding,
    _serving,
    _described,
    _of_keras_rs,
    _column,
]


def _spread(table):
    found = table.lookup(tf.range(4000, dtype=tf.int64))
    return np.std(found[0] if isinstance(found, tuple) else found)


@pytest.mark.parametrize("door", DOORS)
def test_every_front_door_takes_the_number_of_rows(door):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        spread = _spread(door(fan_in=60))

    assert spread == pytest.approx(math.sqrt(2 / 60), rel=0.03)


@pytest.mark.parametrize("door", [d for d in DOORS if d is not _described])
def test_a_table_of_unknown_size_tells_the_fan_once(door):
    with pytest.warns(UserWarning, match="by fan_in=1.*Give `fan_in`") as told:
        table = door()
        spread = _spread(table)

    assert len([one for one in told if "fan_in" in str(one.message)]) == 1
    assert spread == pytest.approx(math.sqrt(2), rel=0.03)


@pytest.mark.parametrize(
    ("door", "size"),
    [
        (_layer, {"max_size": 60, "eviction": policies.LeastRecent()}),
        (_embedding, {"max_size": 60, "eviction": policies.LeastRecent()}),
        (_layer_of_tfra, {"init_capacity": 60}),
        (_variable, {"init_size": 60}),
    ],
)
def test_a_bound_or_a_capacity_is_the_number_of_rows(door, size):
    assert _spread(door(**size)) == pytest.approx(math.sqrt(2 / 60), rel=0.03)
    assert _spread(door(**size, fan_in=6)) == pytest.approx(
        math.sqrt(2 / 6), rel=0.03
    )


def test_a_number_of_rows_that_makes_no_sense_is_refused():
    with pytest.raises(errors.ArgumentError, match="fan_in"):
        _layer(fan_in=0)
    with pytest.raises(errors.ArgumentError, match="Leave `fan_in` out"):
        tfembed.TableConfig(60, 16, name="t", fan_in=60)


def test_an_initializers_own_seed_is_kept():
    assert row_initializer(KERAS.RandomNormal(seed=7), 4).seed == 7
    assert row_initializer(KERAS.RandomNormal(), 4).seed is None


class _Doubled(KERAS.RandomNormal):
    def __call__(self, shape, dtype=None):
        return 2 * super().__call__(shape, dtype)


@pytest.mark.parametrize(
    "given",
    [
        KERAS.Orthogonal(),
        lambda shape: tf.random.normal(shape),
        lambda: np.random.default_rng().normal(),
        lambda shape: tf.random.stateless_normal(shape, seed=[1, 2]),
        lambda one, two, three: 0.0,
        _Doubled(),
        "no_such_initializer",
        1j,
        10**400,
        object(),
    ],
)
def test_unknown_forms_are_refused_with_the_list_of_known_ones(given):
    with pytest.raises(
        errors.ArgumentError, match="Known forms: None, a number"
    ):
        row_initializer(given, 4)


@pytest.mark.parametrize(
    "given",
    [
        2**53 + 1,
        [1, 2, 3, -(2**60) - 1],
        tf.constant(2**62 + 1, tf.int64),
        lambda: 2**53 + 1,
        [2**70 + 1],
        [2**53 + 1, 0.5, 1, 2],
    ],
)
def test_integers_that_would_be_rounded_are_refused(given):
    with pytest.raises(errors.ArgumentError, match="integers up to 2"):
        row_initializer(given, 4)
    assert row_initializer(2**62, 4).arguments == (2.0**62,)


@pytest.mark.parametrize("given", [[1.0, 2.0], np.zeros((2, 4)), tf.zeros([3])])
def test_another_number_of_elements_is_refused(given):
    with pytest.raises(errors.ArgumentError, match="give 1 or 4 elements"):
        row_initializer(given, 4)


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("gamma", (1.0,), "must be one of"),
        ("uniform", (1.0,), "takes 2 arguments"),
        ("vector", (), "takes some arguments"),
        ("constant", (math.nan,), "finite"),
        ("uniform", (1.0, 0.0), "low <= high"),
        ("truncated_normal", (0.0, -1.0), "stddev >= 0"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(kind, arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        RowInitializer(kind, arguments)


def test_a_name_of_an_initializer_with_arguments_asks_for_an_instance():
    with pytest.raises(
        errors.ArgumentError, match="'constant' takes arguments"
    ):
        row_initializer("constant", 2)
