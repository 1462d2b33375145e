"""A model that was trained is given back when it is dropped.

Kind: whatever is made once per trace and stays in a registry of the process.
Looked for in: custom gradients of TensorFlow (ours, Keras' sums over replicas,
activations like silu, functions inside of functions), of graphs of TensorFlow 1,
Python functions of tf.numpy_function, classes registered with Keras, and the
module-level state of tfembed. benchmarks/soak/models.py counts bytes.
"""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import deleted
import tfembed
import tfembed.dynamic_embedding as de
from benchmarks.soak import models

IDS = np.arange(8)[:, None]
LABELS = np.ones([8, 1], np.float32)


def configs(vocabulary):
    table = tfembed.TableConfig(vocabulary, 4, combiner="sum", name="table")
    return {"ids": tfembed.FeatureConfig(table)}


def trained(layer, rows=lambda layer, ids: layer(ids), optimizer="adam"):
    """Trains a model of Keras 3 with a sum over replicas and with silu."""
    inputs = keras.Input((1,), dtype="int64")
    hidden = keras.layers.Flatten()(rows(layer, inputs))
    hidden = keras.layers.Dense(2, "silu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse")
    model.train_on_batch(IDS, LABELS)


def embedding():
    layer = tfembed.keras.layers.Embedding(4)
    trained(layer)
    return layer.table.handle


def dynamic_layer():
    layer = de.keras.layers.Embedding(4)
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    trained(layer, optimizer=optimizer)
    return layer.params.table.handle


def distributed(vocabulary):
    layer = tfembed.keras.layers.DistributedEmbedding(
        configs(vocabulary), tfembed.Adagrad(0.1)
    )
    trained(layer, lambda layer, ids: layer({"ids": ids})["ids"])
    return layer.get_embedding_tables()["table"].handle


def tpu_embedding():
    layer = tfembed.TPUEmbedding(configs(None), tfembed.Adagrad(0.1))

    @tf.function
    def step(ids):
        layer.enqueue({"ids": ids})
        with tf.GradientTape() as tape:
            activations = layer.dequeue()
            tape.watch(activations)
            loss = tf.reduce_sum(tf.nn.silu(activations["ids"]))
        layer.apply_gradients(tape.gradient(loss, activations))

    step(tf.constant(IDS))
    return layer.embedding_tables["table"].handle


def embedding_v0():
    layer = tfembed.TPUEmbeddingV0(configs(8), None)
    (table,) = layer.embedding_tables.values()

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer({"ids": ids})["ids"] ** 2)
        return tape.gradient(loss, table).values

    gradient(tf.constant(IDS))
    return table.handle


DOORS = {
    "Embedding": embedding,
    "DistributedEmbedding, a table that grows": lambda: distributed(None),
    "DistributedEmbedding, a vocabulary": lambda: distributed(8),
    "a layer of dynamic_embedding": dynamic_layer,
    "TPUEmbedding": tpu_embedding,
    "TPUEmbeddingV0": embedding_v0,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_trained_table_goes_with_its_model(door):
    handle = weakref.ref(DOORS[door]())
    keras.backend.clear_session()

    assert not deleted.holders(handle)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [models.run_estimator, models.run_tpu_estimator]
)
def test_graphs_of_an_estimator_go_with_its_calls(run, monkeypatch):
    graphs = []
    model_fn = models.model_fn

    def noting(features, labels, mode, params):
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return model_fn(features, labels, mode, params)

    monkeypatch.setattr(models, "model_fn", noting)
    run()
    gc.collect()

    assert len(graphs) >= 4  # To train, evaluate, predict and export.
    assert not [graph for graph in graphs if graph() is not None]
