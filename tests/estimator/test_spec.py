"""EstimatorSpec: what a mode needs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, estimator
from tfembed.estimator import spec as spec_lib

v1 = tf.compat.v1
TRAIN, EVAL, PREDICT = (
    estimator.ModeKeys.TRAIN,
    estimator.ModeKeys.EVAL,
    estimator.ModeKeys.PREDICT,
)


@pytest.fixture(autouse=True)
def in_a_graph():
    with tf.Graph().as_default():
        yield


def test_modes_have_the_names_of_old():
    assert (TRAIN, EVAL, PREDICT) == ("train", "eval", "infer")


def test_a_loss_of_one_element_becomes_a_scalar():
    spec = estimator.EstimatorSpec(EVAL, loss=tf.constant([2.0]))

    assert spec.loss.shape == []
    with v1.Session() as session:
        assert session.run(spec.loss) == 2.0


def test_fields_that_are_not_given_have_their_defaults():
    spec = estimator.EstimatorSpec(EVAL, loss=tf.constant(1.0))

    assert spec.predictions == {}
    assert spec.eval_metric_ops == {}
    assert spec.training_hooks == spec.evaluation_hooks == ()
    assert isinstance(spec.scaffold, v1.train.Scaffold)


def test_predictions_are_exported_where_nothing_else_is():
    spec = estimator.EstimatorSpec(PREDICT, predictions=tf.constant([1.0]))

    assert list(spec.export_outputs) == ["serving_default"]


def test_a_replaced_field_is_checked():
    spec = estimator.EstimatorSpec(EVAL, loss=tf.constant(1.0))

    assert spec._replace(predictions=tf.constant([3.0])).predictions.shape == 1
    with pytest.raises(errors.DtypeError, match="predictions must be Tensor"):
        spec._replace(predictions=3.0)
    with pytest.raises(errors.ArgumentError, match="'eval'; 'infer'"):
        spec._replace(mode=PREDICT)
    with pytest.raises(errors.ArgumentError, match="no fields"):
        spec._replace(metrics={})


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: {"mode": TRAIN, "loss": tf.constant(1.0)},
            errors.ArgumentError,
            "Missing train_op.*'train'",
        ),
        (
            lambda: {"mode": EVAL},
            errors.ArgumentError,
            "Missing loss.*'eval'",
        ),
        (
            lambda: {"mode": PREDICT},
            errors.ArgumentError,
            "Missing predictions",
        ),
        (
            lambda: {"mode": EVAL, "loss": tf.constant([1.0, 2.0])},
            errors.ArgumentError,
            "Loss must be scalar",
        ),
        (
            lambda: {"mode": EVAL, "loss": 1.0},
            errors.DtypeError,
            "loss must be Tensor, given: 1.0",
        ),
        (
            lambda: {
                "mode": TRAIN,
                "loss": tf.constant(1.0),
                "train_op": "step",
            },
            errors.DtypeError,
            "train_op must be Operation or Tensor, given: step",
        ),
        (
            lambda: {"mode": PREDICT, "predictions": {"y": [1.0]}},
            errors.DtypeError,
            r"predictions\[y\] must be Tensor",
        ),
        (
            lambda: {
                "mode": EVAL,
                "loss": tf.constant(1.0),
                "eval_metric_ops": [1.0],
            },
            errors.DtypeError,
            "eval_metric_ops must be a dict",
        ),
        (
            lambda: {
                "mode": EVAL,
                "loss": tf.constant(1.0),
                "eval_metric_ops": {"m": tf.constant(1.0)},
            },
            errors.DtypeError,
            "tuples, given.*for key: m",
        ),
        (
            lambda: {
                "mode": EVAL,
                "loss": tf.constant(1.0),
                "evaluation_hooks": ["hook"],
            },
            errors.DtypeError,
            "must be SessionRunHook instances, given: hook",
        ),
        (
            lambda: {
                "mode": EVAL,
                "loss": tf.constant(1.0),
                "scaffold": "scaffold",
            },
            errors.DtypeError,
            "scaffold must be tf.train.Scaffold",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        estimator.EstimatorSpec(**make())


def test_a_tensor_of_another_graph_is_named():
    loss = tf.constant(1.0, name="far_away")

    with (
        tf.Graph().as_default(),
        pytest.raises(errors.ArgumentError, match="far_away.*default graph"),
    ):
        estimator.EstimatorSpec(EVAL, loss=loss)


def test_metrics_of_tf_keras_become_pairs():
    keras = pytest.importorskip("tf_keras")
    metric = keras.metrics.Mean()
    metric.update_state([1.0, 3.0])

    spec = estimator.EstimatorSpec(
        EVAL, loss=tf.constant(1.0), eval_metric_ops={"mean": metric}
    )

    value, update = spec.eval_metric_ops["mean"]
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        session.run(update)
        np.testing.assert_allclose(session.run(value), 2.0)


def test_a_metric_of_tf_keras_that_was_not_updated_is_refused():
    keras = pytest.importorskip("tf_keras")

    with pytest.raises(errors.ArgumentError, match=r"update_state\(...\)"):
        estimator.EstimatorSpec(
            EVAL,
            loss=tf.constant(1.0),
            eval_metric_ops={"mean": keras.metrics.Mean()},
        )


@pytest.mark.parametrize(
    ("model_fn", "params", "text"),
    [
        (lambda labels: None, None, "must include features"),
        (lambda features: None, {"a": 1}, "does not include params"),
        (lambda features, rate: None, None, r"not expected args: \['rate'\]"),
    ],
)
def test_a_model_fn_of_other_arguments_is_refused(model_fn, params, text):
    with pytest.raises(errors.ArgumentError, match=text):
        spec_lib.check_model_fn_arguments(model_fn, params)


def test_a_logit_fn_gets_what_it_names():
    def logit_fn(features, mode):
        return tf.constant([float(len(mode))]) + features

    logits = estimator.experimental.call_logit_fn(
        logit_fn, tf.constant([1.0]), TRAIN, {"a": 1}, None
    )

    with v1.Session() as session:
        assert session.run(logits) == [6.0]
    with pytest.raises(errors.ArgumentError, match="logit_fn should return"):
        estimator.experimental.call_logit_fn(
            lambda features: 1.0, None, TRAIN, None, None
        )
