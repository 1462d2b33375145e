"""Tables whose rows count steps: each step moves each row by -1."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.estimator import processes
from tfembed import estimator
from tfembed.estimator import ModeKeys, tpu
from tfembed.estimator.tpu import experimental

v1 = tf.compat.v1

BATCH = ROWS = 10
NAMES = np.array([f"name {i}" for i in range(ROWS)])
FAR = 2**40 + np.arange(ROWS)


def spec():
    table, feature = experimental.TableConfig, experimental.FeatureConfig
    zeros = v1.zeros_initializer()
    return experimental.EmbeddingConfigSpec(
        table_to_config_dict={
            "small": table(ROWS, 2, zeros, None),
            "far": table(None, 2, 0.0, None),
            "names": table(None, 2, 0.0, None, key_dtype=tf.string),
        },
        feature_to_config_dict={
            "small": feature("small"),
            "far": feature("far"),
            "name": feature("names"),
        },
        optimization_parameters=experimental.StochasticGradientDescentParameters(
            1.0
        ),
    )


def input_fn(params):
    data = {"small": np.arange(ROWS), "far": FAR, "name": NAMES}
    return tf.data.Dataset.from_tensor_slices(data).repeat().batch(ROWS)


def once(params):
    return input_fn(params).take(1)


def model_fn(features, mode, params):
    """The sum of all rows; each row's gradient is 1."""
    own = de.get_variable("own", dim=2, initializer=0.0)
    ids = tf.range(ROWS, dtype=tf.int64)
    looked_up = de.embedding_lookup(own, ids)
    rows = {key: features[key] for key in ("small", "far", "name")} | {
        "own": looked_up
    }
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions=rows)
    bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
    loss = tf.add_n([tf.reduce_sum(each) for each in rows.values()]) + bias
    train_op = None
    if mode == ModeKeys.TRAIN:
        step = v1.train.get_global_step()
        optimizer = de.DynamicEmbeddingOptimizer(
            v1.train.GradientDescentOptimizer(1.0)
        )
        train_op = optimizer.minimize(loss, global_step=step)
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metrics=(lambda bias: {"bias": v1.metrics.mean(bias)}, [bias]),
    )


def make(folder, **options):
    """An estimator of one replica; `options` are of its RunConfig."""
    return tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            model_dir=folder, log_step_count_steps=None, **options
        ),
        use_tpu=False,
        embedding_config_spec=spec(),
    )


def rows_of(model):
    """The rows of each table in the latest checkpoint, as predicted."""
    predicted = list(model.predict(once))
    return {
        key: np.array([each[key] for each in predicted]) for key in predicted[0]
    }


def train_and_evaluate(folder, steps):
    """Trains and evaluates, in each task of a cluster."""
    model = make(
        folder,
        save_checkpoints_steps=10,
        experimental_max_worker_delay_secs=0,
    )
    estimator.train_and_evaluate(
        model,
        estimator.TrainSpec(
            input_fn, max_steps=steps, hooks=[processes.Slow()]
        ),
        estimator.EvalSpec(
            once, steps=None, start_delay_secs=0, throttle_secs=1
        ),
    )
