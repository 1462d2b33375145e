"""Small Keras models over tables, and what their tables hold."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed.dynamic_embedding.keras import layers

DIM = 4


def model_of(optimizer=None, *, width=2, **options):
    """Ids [batch, width] to one number, compiled; not yet trained."""
    ids = keras.Input((width,), dtype="int64")
    options = {"name": "users", "initializer": 0.5, **options}
    rows = layers.SquashedEmbedding(DIM, **options)(ids)
    weights = keras.initializers.Constant(0.25)
    out = keras.layers.Dense(1, kernel_initializer=weights)(rows)
    model = keras.Model(ids, out)
    inner = optimizer or keras.optimizers.Adam(0.01)
    model.compile(de.DynamicEmbeddingOptimizer(inner), loss="mse")
    return model


def batches(first_id=0, steps=4, batch=8, width=2):
    """A data set that gives the same ids and targets each time."""
    ids = first_id + np.arange(steps * batch * width) % 37
    ids = ids.reshape(-1, width).astype(np.int64)
    targets = np.sin(np.arange(len(ids), dtype=np.float32))[:, None]
    return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(batch)


def table_of(model, layer="users"):
    """The layer's `Variable`."""
    return model.get_layer(layer).params


def rows_of(params):
    """Keys in order, their values and slots, as one array."""
    keys, values = params.export()
    slot_keys, slots = params.table.export_slots()
    np.testing.assert_array_equal(keys, slot_keys)
    columns = [np.asarray(keys)[:, None], values, *slots.values()]
    return np.concatenate(columns, 1)[np.argsort(keys)]
