"""Tables that SGD trains by steps of 1, for tests that follow a dict."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import optimizers
from tfembed.tables import HashTable

SHARDS = pytest.mark.parametrize("shards", [1, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])
INITIAL = 0.5


def table_of(shards=1, dim=2, **options):
    table = HashTable(
        dim,
        name="t",
        initializer=INITIAL,
        devices=["/CPU:0"] * shards,
        **options,
    )
    table.attach(optimizers.SGD(1.0))
    return table


def train(table, keys):
    """One step that takes 1 from the row of each occurrence of a key."""
    keys = tf.convert_to_tensor(keys, tf.int64)
    table.apply_gradients(keys, tf.ones([*keys.shape, table.dim]))


def contents(table):
    keys, values = (x.numpy() for x in table.export())
    return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def batches(seed, steps=30, keys=40, size=15):
    random = np.random.default_rng(seed)
    return [random.integers(0, keys, size) for _ in range(steps)]
