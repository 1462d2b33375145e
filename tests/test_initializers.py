"""Translation of initializers into descriptions of keyed rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.initializers import RowInitializer, row_initializer

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
