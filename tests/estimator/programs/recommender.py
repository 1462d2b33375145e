"""Users and items in tables of an EmbeddingConfigSpec, in the shape of NCF.

There are features and no labels. The items' table has no vocabulary.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.estimator.programs.images import weights
from tfembed.estimator import ModeKeys, tpu
from tfembed.estimator.tpu import experimental

v1 = tf.compat.v1

BATCH, USERS, WIDTH = 16, 20, 4
_random = np.random.default_rng(4)
USER = _random.integers(0, USERS, 64).astype(np.int64)
ITEM = _random.integers(-(2**40), 2**40, 30)[_random.integers(0, 30, 64)]
LIKED = ((USER + ITEM) % 2).astype(np.float32)


def rows(shape, dtype=tf.float32, partition_info=None):
    """Rows that differ, the same in every graph."""
    values = np.arange(np.prod(shape)).reshape(shape) % 7 / 10 - 0.3
    return tf.constant(values, dtype)


def spec():
    table, feature = experimental.TableConfig, experimental.FeatureConfig
    return experimental.EmbeddingConfigSpec(
        table_to_config_dict={
            "users": table(USERS, WIDTH, rows, None),
            "items": table(None, WIDTH, combiner=None, seed=3),
        },
        feature_to_config_dict={
            "user": feature("users"),
            "item": feature("items"),
        },
        optimization_parameters=experimental.AdamParameters(
            0.05, lazy_adam=True, sum_inside_sqrt=True
        ),
    )


def data():
    return tf.data.Dataset.from_tensor_slices(
        {"user": USER, "item": ITEM, "liked": LIKED}
    )


def train_fn(params):
    return data().repeat().batch(params["batch_size"], drop_remainder=True)


def eval_fn(params):
    return data().take(50).batch(params["batch_size"])


def metric_fn(liked, logits, losses):
    hits = tf.cast(tf.equal(logits > 0, liked > 0.5), tf.float32)
    return {"hits": v1.metrics.mean(hits), "losses": v1.metrics.mean(losses)}


def model_fn(features, mode, params):
    liked = features["liked"]
    both = tf.concat([features["user"], features["item"]], 1)
    hidden = tf.nn.relu(tf.matmul(both, weights("hidden", [2 * WIDTH, 8])))
    logits = tf.reduce_sum(features["user"] * features["item"], 1)
    logits += tf.squeeze(tf.matmul(hidden, weights("scores", [8, 1])), 1)
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
    losses = tf.nn.sigmoid_cross_entropy_with_logits(liked, logits)
    loss, train_op = tf.reduce_mean(losses), None
    if mode == ModeKeys.TRAIN:
        optimizer = v1.train.AdamOptimizer(0.01)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        pairs = optimizer.compute_gradients(
            loss, colocate_gradients_with_ops=True
        )
        train_op = optimizer.apply_gradients(
            pairs, global_step=v1.train.get_global_step()
        )
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metrics=(metric_fn, [liked, logits, losses]),
    )
