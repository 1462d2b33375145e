"""Exported Keras models answer in a session, as TensorFlow Serving runs them.

A session runs the graph's own restore op, and nothing of tfembed's Python.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import policies
from tfembed.tables import HashTable

IDS = np.array([[3], [8], [8], [5]])


def served(folder, ids):
    """The first output of the model in `folder` for `ids`."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        graph = v1.saved_model.load(session, ["serve"], str(folder))
        signature = graph.signature_def["serving_default"]
        (given,) = signature.inputs.values()
        (output,) = signature.outputs.values()
        return session.run(output.name, {given.name: ids})


def functional(layer, dtype="int64"):
    ids = keras.Input((1,), dtype=dtype, name="ids")
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


class Subclassed(keras.Model):
    """A model that looks its table up by a layer, or by itself."""

    def __init__(self, look_up):
        super().__init__()
        self.look_up = look_up
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.look_up(ids))


class ReadBySelf(keras.Model):
    """A model that reads a bare table, which nothing trains."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        # Keras 3.15 traces the model with floats, too.
        rows = self.table.lookup(tf.cast(ids, tf.int64))
        return self.dense(rows[0] if isinstance(rows, tuple) else rows)


def filled(table):
    table.upsert([3, 8], np.arange(8.0, dtype=np.float32).reshape(2, 4))
    return table


def distributed():
    table = tfembed.TableConfig(100, 4, name="users")
    return tfembed.keras.layers.DistributedEmbedding(
        tfembed.FeatureConfig(table), optimizer=tfembed.Adagrad(0.1)
    )


MODELS = {
    "Embedding": lambda: functional(
        tfembed.keras.layers.Embedding(4, name="users")
    ),
    "Embedding of strings": lambda: functional(
        tfembed.keras.layers.Embedding(4, name="users"), "string"
    ),
    "Embedding with a policy": lambda: functional(
        tfembed.keras.layers.Embedding(
            4,
            name="users",
            expiry=policies.Expiry(limit=100, every=10),
            eviction=policies.LeastRecent(),
        )
    ),
    "subclassed": lambda: Subclassed(
        tfembed.keras.layers.Embedding(4, key_dtype="int64", name="users")
    ),
    "DistributedEmbedding": lambda: functional(distributed()),
    "de Embedding": lambda: functional(
        de.keras.layers.Embedding(4, name="users")
    ),
    "HashTable": lambda: ReadBySelf(filled(HashTable(4, name="users"))),
    "Variable": lambda: ReadBySelf(filled(de.Variable(dim=4, name="users"))),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_session_answers_as_the_model(kind, tmp_path):
    ids = IDS
    if kind == "Embedding of strings":
        ids = IDS.astype(str).astype(object)
    model = MODELS[kind]()
    inner = keras.optimizers.Adam(0.1)
    is_de = kind.startswith("de ")
    model.compile(
        de.DynamicEmbeddingOptimizer(inner) if is_de else inner, "mse"
    )
    model.fit(tf.constant(ids), np.ones([4, 1]), batch_size=2, verbose=0)
    expected = model.predict(tf.constant(ids), verbose=0)
    spec = tf.TensorSpec(
        [None, 1], tf.string if ids.dtype == object else "int64"
    )
    model.export(tmp_path / "model", verbose=False, input_signature=[spec])

    np.testing.assert_allclose(
        served(tmp_path / "model", ids), expected, rtol=1e-5, atol=1e-6
    )
