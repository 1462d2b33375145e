"""Models of every front door: built, fitted, evaluated, exported and dropped.

A step that is traced may stay in a registry of the process, and with it all that
the trace captured. Each repetition of a kind makes a model with rows and slots of
about 2 MB, drops it, and has Keras forget it.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import estimator

Repeat = Callable[[int], object]
Model = Callable[[], object]

v1 = tf.compat.v1
NUM_IDS = 10_000
DIM = 16
IDS = np.arange(NUM_IDS)[:, None]
LABELS = np.ones([NUM_IDS, 1], np.float32)
BATCH = NUM_IDS // 2


def dropped(run: Model) -> Callable[[], Repeat]:
    """A kind that runs a model and drops it."""

    def repeat(i: int) -> None:
        run()
        gc.collect()
        keras.backend.clear_session()

    return lambda: repeat


def features(vocabulary: int | None = None) -> dict[str, Any]:
    table = tfembed.TableConfig(vocabulary, DIM, combiner="sum", name="table")
    return {"ids": tfembed.FeatureConfig(table)}


def run_keras(
    layer: Any, activation: str = "silu", optimizer: Any = "adam"
) -> None:
    """Runs a model of Keras 3; silu is a tf.custom_gradient of TensorFlow."""
    inputs = keras.Input((1,), dtype="int64")
    rows = keras.layers.Flatten()(layer(inputs))
    hidden = keras.layers.Dense(8, activation)(rows)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse")
    model.fit(IDS, LABELS, batch_size=BATCH, verbose=0)
    model.evaluate(IDS, LABELS, batch_size=BATCH, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)


def run_embedding() -> None:
    run_keras(tfembed.keras.layers.Embedding(DIM))


def run_stock_embedding() -> None:
    """Without silu, with which TensorFlow alone keeps the model."""
    run_keras(keras.layers.Embedding(NUM_IDS, DIM), "relu")


class OneFeature(keras.layers.Layer):
    """A DistributedEmbedding of one feature."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tfembed.keras.layers.DistributedEmbedding(
            features(), tfembed.Adam(0.1)
        )

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.rows({"ids": ids})["ids"]


def run_distributed_embedding() -> None:
    run_keras(OneFeature())


def run_dynamic_layer() -> None:
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    run_keras(de.keras.layers.Embedding(DIM), optimizer=optimizer)


def run_tf_keras(*, stock: bool = False) -> None:
    """Runs a model of tf_keras, whose own `save` keeps what it traces."""
    import tf_keras

    layers = tf_keras.layers if stock else de.keras.layers

    class Model(tf_keras.Model):
        def __init__(self) -> None:
            super().__init__()
            sizes = (NUM_IDS, DIM) if stock else (DIM,)
            self.rows = layers.Embedding(*sizes)
            self.out = tf_keras.layers.Dense(1)

        def call(self, ids: tf.Tensor) -> tf.Tensor:
            return self.out(self.rows(ids)[:, 0])

    model = Model()
    optimizer = tf_keras.optimizers.Adam()
    if not stock:
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)
    model.compile(optimizer, "mse")
    model.fit(IDS, LABELS, batch_size=BATCH, verbose=0)
    model.evaluate(IDS, LABELS, batch_size=BATCH, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
    tf_keras.backend.clear_session()


def run_stock_tf_keras() -> None:
    run_tf_keras(stock=True)


def export(look_up: Callable[[tf.Tensor], tf.Tensor], **has: Any) -> None:
    """Saves a lookup, and loads and asks it."""
    module = tf.Module()
    module.has = has
    module.serve = tf.function(
        look_up, input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        loaded.serve(tf.constant([1], tf.int64))


def run_tpu_embedding() -> None:
    embedding = tfembed.TPUEmbedding(features(), tfembed.Adam(0.1))

    @tf.function
    def step(ids: tf.Tensor) -> None:
        embedding.enqueue({"ids": ids})
        with tf.GradientTape() as tape:
            activations = embedding.dequeue()
            tape.watch(activations)
            loss = tf.reduce_sum(tf.nn.silu(activations["ids"]))
        embedding.apply_gradients(tape.gradient(loss, activations))

    step(tf.constant(IDS))
    table = embedding.embedding_tables["table"]
    export(lambda ids: table.lookup(ids)[0], table=table)


def run_embedding_v0() -> None:
    embedding = tfembed.TPUEmbeddingV0(features(NUM_IDS), None)
    (table,) = embedding.embedding_tables.values()
    optimizer = keras.optimizers.Adam()
    optimizer.build([table])

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = embedding({"ids": ids})["ids"]
            loss = tf.reduce_sum(rows**2)
        optimizer.apply([tape.gradient(loss, table)], [table])

    step(tf.constant(IDS))
    export(lambda ids: embedding({"ids": ids})["ids"], embedding=embedding)


def model_fn(
    features: Any, labels: Any, mode: str, params: Any
) -> estimator.tpu.TPUEstimatorSpec:
    """A linear model over `x`, or over the rows of `ids`."""
    x = features["x"] if "x" in features else features["ids"]
    kernel = v1.get_variable("kernel", [DIM, 1])
    predictions = tf.nn.silu(x) @ kernel
    spec = estimator.tpu.TPUEstimatorSpec
    if mode == estimator.ModeKeys.PREDICT:
        return spec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean((predictions - labels) ** 2)
    if mode == estimator.ModeKeys.EVAL:
        return spec(mode, loss=loss)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    if params.get("use_tpu"):
        optimizer = estimator.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return spec(mode, loss=loss, train_op=train_op)


def dense_model_fn(features: Any, labels: Any, mode: str) -> Any:
    return model_fn(features, labels, mode, {}).as_estimator_spec()


def run_stages(made: Any, input_fn: Any, receiver: Any) -> None:
    """Trains, evaluates, predicts and exports an estimator."""
    made.train(input_fn, steps=2)
    made.evaluate(input_fn, steps=1)
    next(made.predict(input_fn))
    made.export_saved_model(made.model_dir + "/export", receiver)


def run_estimator() -> None:
    rows = np.ones([8, DIM], np.float32)

    def input_fn() -> Any:
        data = tf.data.Dataset.from_tensors(({"x": rows}, LABELS[:8]))
        return data.repeat()

    def receiver() -> Any:
        x = v1.placeholder(tf.float32, [None, DIM])
        return estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    with tempfile.TemporaryDirectory() as folder:
        made = estimator.Estimator(dense_model_fn, folder)
        run_stages(made, input_fn, receiver)


def run_tpu_estimator() -> None:
    experimental = estimator.tpu.experimental
    spec = experimental.EmbeddingConfigSpec(
        feature_to_config_dict={"ids": experimental.FeatureConfig("table")},
        table_to_config_dict={
            "table": experimental.TableConfig(None, DIM, combiner=None)
        },
        optimization_parameters=experimental.AdagradParameters(0.1),
    )

    def input_fn(params: Any) -> Any:
        data = tf.data.Dataset.from_tensor_slices(
            ({"ids": IDS[:, 0]}, LABELS)
        ).repeat()
        return data.batch(params["batch_size"], drop_remainder=True)

    def receiver() -> Any:
        ids = v1.placeholder(tf.int64, [None])
        return estimator.export.ServingInputReceiver({"ids": ids}, {"ids": ids})

    with tempfile.TemporaryDirectory() as folder:
        made = estimator.tpu.TPUEstimator(
            model_fn,
            config=estimator.tpu.RunConfig(
                model_dir=folder,
                tpu_config=estimator.tpu.TPUConfig(num_shards=2),
            ),
            use_tpu=True,
            train_batch_size=BATCH,
            eval_batch_size=BATCH,
            predict_batch_size=BATCH,
            export_to_tpu=False,
            embedding_config_spec=spec,
        )
        run_stages(made, input_fn, receiver)


MODELS: dict[str, tuple[Model, Model | None]] = {
    "models of Embedding": (run_embedding, run_stock_embedding),
    "models of DistributedEmbedding": (
        run_distributed_embedding,
        run_stock_embedding,
    ),
    "models of dynamic_embedding layers": (
        run_dynamic_layer,
        run_stock_embedding,
    ),
    "models of tf_keras": (run_tf_keras, run_stock_tf_keras),
    "models of TPUEmbedding": (run_tpu_embedding, None),
    "models of TPUEmbeddingV0": (run_embedding_v0, None),
    "Estimators": (run_estimator, None),
    "TPUEstimators": (run_tpu_estimator, None),
}
