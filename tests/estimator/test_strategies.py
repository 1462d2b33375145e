"""Estimators under strategies of one process."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tfembed import errors, estimator

CPUS = ["CPU:0", "CPU:1"]


def test_two_mirrored_replicas_take_two_batches_a_step(tmp_path):
    strategy = tf.distribute.MirroredStrategy(CPUS)
    model = linear_model.make(
        tmp_path, train_distribute=strategy, eval_distribute=strategy
    )

    model.train(linear_model.input_fn, steps=1)
    results = model.evaluate(linear_model.once)

    x, y = linear_model.FEATURES[:2].reshape(-1, 3), linear_model.LABELS[:2]
    error = x @ np.ones(3) - y.reshape(-1)
    weight = np.ones(3) - linear_model.RATE * 2 * x.T @ error / len(x)
    bias = -linear_model.RATE * 2 * error.mean()
    np.testing.assert_allclose(
        model.get_variable_value("weight"), weight, rtol=1e-5
    )
    predicted = linear_model.FEATURES @ weight + bias
    np.testing.assert_allclose(
        results["loss"],
        ((predicted - linear_model.LABELS) ** 2).mean(),
        rtol=1e-5,
    )
    np.testing.assert_allclose(results["mean"], predicted.mean(), rtol=1e-4)
    assert results["global_step"] == 1


def test_one_device_trains_as_no_strategy_does(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    model = linear_model.make(tmp_path, train_distribute=strategy)

    model.train(linear_model.input_fn, steps=3)

    np.testing.assert_allclose(
        model.get_variable_value("weight"),
        linear_model.trained(3)[0],
        rtol=1e-5,
    )
    assert len(list(model.predict(linear_model.once))) == 24


class MultiWorkerMirroredStrategy:
    pass


class TPUStrategyV2:
    pass


@pytest.mark.parametrize(
    ("strategy", "way"),
    [
        (MultiWorkerMirroredStrategy(), "TF_CONFIG with train_and_evaluate"),
        (TPUStrategyV2(), "TPUEstimator"),
    ],
)
def test_other_strategies_are_refused_with_a_way_out(tmp_path, strategy, way):
    with pytest.raises(errors.UnsupportedError, match=way):
        estimator.Estimator(
            linear_model.model_fn,
            tmp_path,
            config=estimator.RunConfig(train_distribute=strategy),
        )
