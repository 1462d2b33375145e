"""TFRA's demos of games, reviews and ratings, told again in few lines each."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import estimator

SLOTS, MOST = 3, 60


class Games(keras.Model):
    """Fields of ids, each with its mean row, under dense layers."""

    def __init__(self):
        super().__init__()
        self.fields = de.keras.layers.FieldWiseEmbedding(
            4,
            SLOTS,
            initializer=keras.initializers.RandomNormal(0.0, 0.05),
            restrict_policy=de.FrequencyRestrictPolicy,
            slot_map_fn=lambda ids: ids % SLOTS,
            bp_v2=False,
            combiner="mean",
            name="fields",
        )
        self.store = self.fields.params
        self.head = keras.Sequential(
            [
                keras.layers.Flatten(),
                keras.layers.Dense(1, activation="sigmoid", use_bias=False),
            ]
        )

    def call(self, ids):
        return self.head(self.fields(ids))


def _games_model(kind):
    model = kind()
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
    model.compile(optimizer, "binary_crossentropy", metrics=["AUC"])
    return model


def test_the_games_demo_trains_and_bounds_its_table(tmp_path):
    draw = np.random.default_rng(0)
    model = _games_model(Games)
    for _ in range(6):
        ids = draw.integers(0, 200, [32, 6])
        labels = (ids[:, :1] % 2).astype(np.float32)
        model.fit(ids, labels, steps_per_epoch=1, batch_size=32, verbose=0)
        model.store.restrict(int(MOST * 0.8), trigger=MOST)
    assert int(model.store.size()) <= MOST

    few = tf.constant(draw.integers(0, 200, [4, 6]))
    de.keras.models.save_model(
        model,
        str(tmp_path / "games"),
        options=tf.saved_model.SaveOptions(namespace_whitelist=["Tfembed"]),
        signatures=tf.function(
            model.call, input_signature=[tf.TensorSpec([None, None], tf.int64)]
        ),
    )
    served = tf.saved_model.load(str(tmp_path / "games"))
    (scores,) = served.signatures["serving_default"](few).values()
    np.testing.assert_allclose(scores, model(few), 1e-5)


class GamesInFunction(Games):
    """As the demo has it: Keras 3 finds no gradients of its dense layers."""

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.int64)])
    def call(self, ids):
        return self.head(self.fields(ids))


def test_dense_layers_that_a_traced_call_builds_are_told_the_way_out():
    ids, labels = np.zeros([8, 6], np.int64), np.ones([8, 1], np.float32)
    with pytest.warns(UserWarning, match="under @tf.function has built: leave"):
        _games_model(GamesInFunction).fit(ids, labels, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _games_model(Games).fit(ids, labels, verbose=0)


def _reviews(repeats):
    """Reviews of four words; a word below 5 makes a good one."""
    draw = np.random.default_rng(1)
    words = draw.integers(0, 10, [64, 4]).astype(np.int32)
    labels = (words < 5).any(1).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices(({"x": words}, labels))
    return data.repeat(repeats).batch(32)


def _model_fn(features, labels, mode):
    ids, places = tf.unique(tf.reshape(features["x"], [-1]))
    words = de.get_variable(
        name="w",
        devices=["/job:localhost/replica:0/task:0/CPU:0"],
        initializer=tf.compat.v1.random_normal_initializer(0, 0.5),
        dim=4,
        bp_v2=True,
        key_dtype=tf.int32,
    )
    rows = de.embedding_lookup(params=words, ids=ids, name="a")
    rows = tf.reshape(tf.gather(rows, places), [-1, 4, 4])
    weights = tf.compat.v1.get_variable("weights", [4, 2])
    logits = tf.matmul(tf.reduce_mean(rows, axis=1), weights)
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == estimator.ModeKeys.TRAIN:
        optimizer = de.DynamicEmbeddingOptimizer(
            tf.compat.v1.train.AdamOptimizer(0.1)
        )
        step = tf.compat.v1.train.get_or_create_global_step()
        train_op = optimizer.minimize(loss, global_step=step)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    accuracy = tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    return estimator.EstimatorSpec(
        mode, loss=loss, eval_metric_ops={"accuracy": accuracy}
    )


def test_the_reviews_demo_adds_its_updates_in_an_estimator(tmp_path):
    classifier = estimator.Estimator(model_fn=_model_fn, model_dir=tmp_path)
    metrics, _ = estimator.train_and_evaluate(
        classifier,
        estimator.TrainSpec(input_fn=lambda: _reviews(20), max_steps=40),
        estimator.EvalSpec(input_fn=lambda: _reviews(1), steps=2),
    )
    assert metrics["global_step"] == 40
    assert metrics["accuracy"] > 0.9
