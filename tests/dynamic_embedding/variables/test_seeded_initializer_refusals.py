"""Which functions draw initial rows by a seed, and what they go with."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.dynamic_embedding.seeded_variables import DIM, gamma, variable
from tfembed import TableConfig, errors, optimizers, policies


def ones_unless_seeded(shape, dtype=tf.float32, seed=None):
    return tf.ones(shape, dtype) if seed is None else gamma(shape, dtype, seed)


def test_a_constant_with_an_optional_seed_is_one():
    v = variable(
        ones_unless_seeded, eviction=policies.LeastRecent(), max_size=10
    )
    np.testing.assert_array_equal(v.lookup([3])[0], np.ones(DIM))


def test_an_optional_seed_is_given():
    def normal(shape, dtype=tf.float32, seed=(1, 2)):
        return tf.random.stateless_normal(shape, seed, dtype=dtype)

    v = variable(normal)
    np.testing.assert_array_equal(
        v.lookup([3])[0], normal((1, DIM), seed=[v.table.seed, 3])[0]
    )


def trained_by_itself(table):
    table.attach(optimizers.SGD(1.0))
    table.apply_gradients([1], np.ones([1, DIM]))


def unseeded(shape, dtype=tf.float32):
    return tf.random.normal(shape, dtype=dtype)


def heedless(shape, dtype, seed):
    return tf.random.normal(shape, dtype=dtype)


def heedless_of_numpy(shape, dtype, seed):
    return np.random.default_rng().normal(size=shape)


def heedless_with_a_seed(shape, dtype, seed):
    return tf.random.normal(shape, dtype=dtype, seed=42)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: variable(unseeded), errors.ArgumentError, "Known forms"),
        (
            lambda: variable(tf.random.normal),
            errors.ArgumentError,
            "Known forms",
        ),
        (lambda: variable(heedless), errors.ArgumentError, "`seed` alone"),
        (
            lambda: variable(heedless_of_numpy),
            errors.ArgumentError,
            "`seed` alone",
        ),
        (
            lambda: variable(heedless_with_a_seed),
            errors.ArgumentError,
            "`seed` alone",
        ),
        (
            lambda: variable(functools.partial(gamma, seed=[1, 2])),
            errors.ArgumentError,
            "Known forms",
        ),
        (
            lambda: variable(lambda shape, seed: tf.zeros([7])),
            errors.ArgumentError,
            r"shape \(1, 3\)",
        ),
        (
            lambda: variable(admission=policies.CountAdmission(2)),
            errors.UnsupportedError,
            "`admission`",
        ),
        (
            lambda: variable(
                eviction=policies.LeastRecent(), max_size=10, name="bounded"
            ),
            errors.UnsupportedError,
            "`max_size`",
        ),
        (
            lambda: TableConfig(None, DIM, initializer=gamma),
            errors.ArgumentError,
            "Known forms",
        ),
        (
            lambda: trained_by_itself(variable().table),
            errors.StateError,
            "Python function",
        ),
    ],
    ids=[
        "draws without a seed",
        "TensorFlow's function of another seed",
        "draws in spite of the seed",
        "draws in spite of the seed by NumPy",
        "draws by another seed",
        "a seed that is bound",
        "gives no row",
        "admission",
        "bound",
        "TPUEmbedding",
        "a table by itself",
    ],
)
def test_what_does_not_go_with_them_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_function_that_fails_leaves_strategies_alone():
    with pytest.raises(errors.ArgumentError):
        variable(lambda shape, seed: tf.zeros([7]))
    with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
        assert tf.Variable(1.0).numpy() == 1
