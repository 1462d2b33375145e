"""Initial rows depend on a table's seed and the key alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.initializers import RowInitializer
from tfembed.tables import HashTable

KEYS = np.arange(50)
UNIFORM = RowInitializer("uniform", (-1.0, 1.0))


@pytest.fixture(autouse=True)
def global_seed():
    tf.random.set_seed(1)
    yield
    tf.random.set_seed(1)


def initial_rows(**options):
    options = {"name": "t", "initializer": UNIFORM, **options}
    return HashTable(4, **options).lookup(KEYS)[0].numpy()


def test_the_same_name_and_global_seed_give_the_same_rows():
    np.testing.assert_array_equal(initial_rows(), initial_rows())


def test_shards_do_not_change_initial_rows():
    np.testing.assert_array_equal(
        initial_rows(), initial_rows(devices=["/CPU:0"] * 3)
    )


def test_another_name_gives_other_rows():
    assert not np.allclose(initial_rows(), initial_rows(name="other"))


def test_another_global_seed_gives_other_rows():
    before = initial_rows()

    tf.random.set_seed(2)

    assert not np.allclose(before, initial_rows())


def test_a_seed_is_all_that_counts_where_one_is_given():
    before = initial_rows(seed=-7)

    tf.random.set_seed(2)

    np.testing.assert_array_equal(before, initial_rows(seed=-7, name="other"))


def test_an_initializers_seed_is_the_tables():
    initializer = tf.keras.initializers.RandomUniform(-1.0, 1.0, seed=5)

    np.testing.assert_array_equal(
        initial_rows(initializer=initializer), initial_rows(seed=5)
    )


def test_a_seed_inside_of_a_function_is_the_same_as_outside():
    made = []

    @tf.function
    def make():
        if not made:
            made.append(HashTable(4, name="t", initializer=UNIFORM))
        return made[0].lookup(KEYS)[0]

    np.testing.assert_array_equal(make(), initial_rows())
