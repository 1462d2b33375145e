"""Tables without a vocabulary in a model_fn: train, save, restore, export."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tfembed import dynamic_embedding as de
from tfembed import estimator

v1 = tf.compat.v1
RATE = 0.1
KEYS = np.array([[3, 10**12], [3, -7], [5, 10**12]])
LABELS = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 2.5]], np.float32)
BATCH = {"keys": KEYS}


def input_fn(epochs=None):
    return tf.data.Dataset.from_tensor_slices((BATCH, LABELS)).repeat(epochs)


def once():
    return input_fn(epochs=1)


def model_fn(features, labels, mode):
    table = de.get_variable("table", dim=1, initializer=0.5)
    rows, trainable = de.embedding_lookup(
        table, features["keys"], return_trainable=True, name="rows"
    )
    predictions = tf.squeeze(rows, -1)
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_sum((predictions - labels) ** 2)
    optimizer = de.DynamicEmbeddingOptimizer(
        v1.train.GradientDescentOptimizer(RATE)
    )
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(
            loss,
            global_step=v1.train.get_global_step(),
            var_list=[trainable],
        ),
    )


def trained(steps):
    rows = {}
    for step in range(steps):
        for key, label in zip(KEYS[step % 3], LABELS[step % 3]):
            row = rows.get(key, 0.5)
            rows[key] = row - RATE * 2 * (row - label)
    return rows


def expected(steps):
    rows = trained(steps)
    return [[rows.get(key, 0.5) for key in keys] for keys in KEYS]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = estimator.Estimator(
        model_fn,
        str(tmp_path_factory.mktemp("tables")),
        config=estimator.RunConfig(save_checkpoints_steps=2),
    )
    return made.train(input_fn, steps=4)


def predictions_of(model, **options):
    found = [one["y"] for one in model.predict(once, **options)]
    return np.reshape(found, KEYS.shape)


def test_rows_train_as_numpy_says(model):
    np.testing.assert_allclose(predictions_of(model), expected(4), rtol=1e-5)


def test_an_evaluation_reads_the_rows_of_the_checkpoint(model):
    loss = np.square(np.array(expected(4)) - LABELS).sum(axis=1).mean()

    np.testing.assert_allclose(model.evaluate(once)["loss"], loss, rtol=1e-5)


def test_an_earlier_checkpoint_has_its_own_rows(model):
    np.testing.assert_allclose(
        predictions_of(
            model, checkpoint_path=f"{model.model_dir}/model.ckpt-2"
        ),
        expected(2),
        rtol=1e-5,
    )


def test_training_goes_on_from_the_rows_that_were_saved(model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(model.model_dir, folder)
    other = estimator.Estimator(model_fn, str(folder))

    other.train(lambda: input_fn().skip(4 % 3), steps=3)

    np.testing.assert_allclose(predictions_of(other), expected(7), rtol=1e-5)


def test_an_export_serves_the_rows(model, tmp_path):
    def receiver_fn():
        keys = {"keys": v1.placeholder(tf.int64, [None, 2], name="keys")}
        return estimator.export.ServingInputReceiver(keys, keys)

    folder = model.export_saved_model(str(tmp_path), receiver_fn)

    loaded = tf.saved_model.load(tf.compat.as_str(folder))
    served = loaded.signatures["serving_default"](keys=tf.constant(KEYS))
    np.testing.assert_allclose(served["y"], expected(4), rtol=1e-5)
