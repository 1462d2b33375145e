"""A program of the shape of TFRA's demo of estimators: train, export, serve.

Told again in few lines, with the import changed: `tf.estimator` is
`tfembed.estimator`, and `tfra.dynamic_embedding` tfembed's.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import estimator

v1 = tf.compat.v1
USERS = np.arange(64) % 7
FILMS = np.arange(64) % 11 + 10**12
STARS = (1 + (USERS + FILMS) % 5).astype(np.float32)


def input_fn():
    ratings = tf.data.Dataset.from_tensor_slices(
        {"user": USERS, "film": FILMS, "stars": STARS}
    )
    return ratings.shuffle(64, seed=1).batch(16)


def rows_of(table, ids, name):
    distinct, places = tf.unique(tf.concat(ids, axis=0))
    rows, _ = de.embedding_lookup(
        params=table, ids=distinct, name=name, return_trainable=True
    )
    return tf.gather(rows, places)


def model_fn(features, labels, mode, params):
    is_training = mode == estimator.ModeKeys.TRAIN
    devices = ["/job:localhost/replica:0/task:0/CPU:0"] * params["shards"]
    initializers = tf.keras.initializers
    tables = [
        de.get_variable(
            name=f"{name}_embeddings",
            dim=4,
            devices=devices,
            initializer=initializers.RandomNormal(-1, 1)
            if is_training
            else initializers.Zeros(),
        )
        for name in ("user", "film")
    ]
    hidden = tf.concat(
        [
            rows_of(tables[0], features["user"], "user-rows"),
            rows_of(tables[1], features["film"], "film-rows"),
        ],
        axis=1,
    )
    hidden = tf.keras.layers.Dense(8, activation="relu")(hidden)
    out = tf.reshape(tf.keras.layers.Dense(1)(hidden), [-1])
    loss = tf.keras.losses.MeanSquaredError()(features["stars"], out)
    if mode == estimator.ModeKeys.EVAL:
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={})
    if not is_training:
        outputs = {"predictions": estimator.export.PredictOutput({"out": out})}
        return estimator.EstimatorSpec(
            mode, predictions={"out": out}, export_outputs=outputs
        )
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.01))
    warm_start = params.get("warm_start")
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(
            loss, global_step=v1.train.get_or_create_global_step()
        ),
        training_hooks=[
            estimator.LoggingTensorHook(
                {"users": tables[0].size()}, every_n_iter=10
            )
        ],
        training_chief_hooks=[de.WarmStartHook(warm_start)]
        if warm_start
        else [],
    )


def model_in(folder, **params):
    return estimator.Estimator(
        model_fn,
        str(folder),
        params={"shards": 2, **params},
        config=estimator.RunConfig(
            save_checkpoints_steps=4, save_checkpoints_secs=None
        ),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = model_in(tmp_path_factory.mktemp("ratings"))
    estimator.train_and_evaluate(
        made,
        estimator.TrainSpec(input_fn=input_fn),
        estimator.EvalSpec(input_fn=input_fn),
    )
    return made


def test_a_trained_model_is_exported_and_served(model, tmp_path):
    receiver_fn = estimator.export.build_raw_serving_input_receiver_fn(
        {
            "user": tf.constant([1], tf.int64),
            "film": tf.constant([1], tf.int64),
            "stars": tf.constant([1.0]),
        }
    )
    de.enable_inference_mode()
    try:
        folder = model.export_saved_model(str(tmp_path), receiver_fn)
    finally:
        de.enable_train_mode()
    loaded = tf.saved_model.load(tf.compat.as_str(folder))
    served = loaded.signatures["serving_default"](
        user=tf.constant(USERS),
        film=tf.constant(FILMS),
        stars=tf.constant(STARS),
    )

    def in_order():
        return tf.data.Dataset.from_tensors(
            {"user": USERS, "film": FILMS, "stars": STARS}
        )

    predicted = [one["out"] for one in model.predict(in_order)]
    np.testing.assert_allclose(served["out"], predicted, rtol=1e-5)
    assert np.std(predicted) > 0


def test_another_model_begins_with_the_rows_of_a_trained_one(model, tmp_path):
    other = model_in(tmp_path, warm_start=model.model_dir)
    other.train(input_fn, max_steps=1)
    reader = tf.train.load_checkpoint(other.model_dir)
    keys = [
        name
        for name in reader.get_variable_to_shape_map()
        if name.endswith("-keys") and name.startswith("user")
    ]
    found = np.concatenate([reader.get_tensor(name) for name in keys])
    assert sorted(found) == sorted(set(USERS))
