"""Models to save, and what their tables hold."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfembed.tables import HashTable

DIM = 3


class Model(tf.Module):
    """A table and a variable, as a model has them."""

    def __init__(self, table: HashTable) -> None:
        super().__init__()
        self.table = table
        self.bias = tf.Variable(0.0)


def model_of(num_shards=1, *, dim=DIM, optimizer=None, **options) -> Model:
    """A model with an empty table."""
    options = {"name": "user", "initializer": 0.5, **options}
    table = HashTable(dim, devices=["/CPU:0"] * num_shards, **options)
    if optimizer is not None:
        table.attach(optimizer)
    return Model(table)


def trained_model(
    num_keys=1000, num_shards=1, first_key=-500, **options
) -> Model:
    """A model with rows, and with slots if it has an optimizer."""
    model = model_of(num_shards, **options)
    keys = np.arange(first_key, first_key + num_keys)
    shape = [num_keys, model.table.dim]
    rng = np.random.default_rng(abs(first_key))
    model.table.upsert(keys, rng.normal(size=shape))
    if model.table.optimizer is not None:
        model.table.apply_gradients(keys, rng.normal(size=shape))
    model.bias.assign(float(first_key))
    return model


def content(table: HashTable) -> dict[str, np.ndarray]:
    """Keys in order, with their values and slots."""
    keys, values = table.export()
    order = np.argsort(keys)
    columns = {"keys": keys, "values": values, **table.export_slots()[1]}
    return {name: x.numpy()[order] for name, x in columns.items()}


def assert_same_content(a: dict, b: dict) -> None:
    """Equal to the last bit."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], name)
