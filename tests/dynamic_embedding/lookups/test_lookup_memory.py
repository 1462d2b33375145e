"""The memory of what large lookups return: used again, by one tensor at a time."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de

KEYS, DIM = 40_000, 64  # 10 MB of rows.

FAULTS = """
import resource
import sys
import tensorflow as tf
import tfembed.dynamic_embedding as de

v = de.Variable(dim=64, name="v")
keys = tf.range(150_000, dtype=tf.int64)
v.upsert(keys, tf.ones([150_000, 64]))

def loop():
    return tf.while_loop(
        lambda i, total: i < 5,
        lambda i, total: (i + 1, total + v.lookup(keys)[0, 0]),
        (0, 0.0),
    )

calls = {
    "eager": lambda: v.lookup(keys),
    "call": tf.function(lambda: v.lookup(keys)),
    "loop": tf.function(loop),
}
look_up = calls[sys.argv[1]]
for _ in range(5):
    look_up()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    look_up()
after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print("faults", (after - before) / 10)
"""


@pytest.fixture
def table():
    v = de.Variable(dim=DIM)
    keys = tf.range(KEYS, dtype=tf.int64)
    v.upsert(keys, tf.repeat(tf.range(KEYS, dtype=tf.float32)[:, None], DIM, 1))
    return v


def keys_from(first):
    return tf.range(first, first + KEYS, dtype=tf.int64) % KEYS


def expected(first):
    column = (np.arange(first, first + KEYS) % KEYS).astype(np.float32)
    return np.repeat(column[:, None], DIM, 1)


@pytest.mark.parametrize("in_function", [False, True])
def test_results_keep_their_rows_while_others_are_looked_up(table, in_function):
    look_up = tf.function(table.lookup) if in_function else table.lookup
    results = [look_up(keys_from(100 * i)) for i in range(6)]
    del results[2]
    results.append(look_up(keys_from(7)))
    firsts = [0, 100, 300, 400, 500, 7]
    for first, result in zip(firsts, results, strict=True):
        np.testing.assert_array_equal(result, expected(first))


def test_an_array_of_a_result_outlives_the_tensor(table):
    result = table.lookup(keys_from(3))
    array, view = result.numpy(), memoryview(result)
    del result
    for i in range(4):
        table.lookup(keys_from(50 * i))
    np.testing.assert_array_equal(array, expected(3))
    np.testing.assert_array_equal(np.asarray(view), expected(3))


def test_a_result_is_changed_by_none_of_what_follows(table):
    """TensorFlow may write into the memory of an input that nobody else has."""

    @tf.function
    def step(keys):
        rows = table.lookup(keys)
        doubled = rows * 2.0
        again = table.lookup(keys)
        return doubled, again + 1.0

    for first in (0, 11, 22):
        doubled, more = step(keys_from(first))
        np.testing.assert_array_equal(doubled, 2 * expected(first))
        np.testing.assert_array_equal(more, expected(first) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["eager", "call", "loop"])
def test_large_lookups_have_no_page_faults(form):
    """38 MB have 9,375 pages, which malloc gives back each time."""
    words = fresh_process.output_of(FAULTS, form, new_interpreter=True).split()
    assert float(words[words.index("faults") + 1]) < 500
