"""Refusals of a model_fn's spec that no step is needed for."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.estimator.tpu import replica_model
from tfembed import errors, estimator
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1


@pytest.mark.parametrize("field", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(
    ("pair", "error", "builtin", "text"),
    [
        (
            lambda x: x,
            errors.ArgumentError,
            ValueError,
            "should be tuple or list",
        ),
        (
            (dict,),
            errors.ArgumentError,
            ValueError,
            "should have two elements",
        ),
        (
            ("f", [1.0]),
            errors.DtypeError,
            TypeError,
            r"\[0\] should be callable",
        ),
        (
            (lambda x: {}, 1.0),
            errors.ArgumentError,
            ValueError,
            r"\[1\] should be tuple or list, or dict",
        ),
        (
            (lambda x, y: {}, [1.0]),
            errors.StateError,
            RuntimeError,
            r"length of tensors 1 does not .* takes 2: \['x', 'y'\]",
        ),
        (
            (lambda x, y: {}, [1.0, {"b": None}]),
            errors.ArgumentError,
            ValueError,
            r"\[1\] has None, which is no tensor",
        ),
    ],
)
def test_a_function_of_the_host_comes_with_its_tensors(
    field, pair, error, builtin, text
):
    assert issubclass(error, builtin)
    with tf.Graph().as_default(), pytest.raises(error, match=text) as raised:
        tpu.TPUEstimatorSpec(
            ModeKeys.EVAL, loss=tf.constant(1.0), **{field: pair}
        )
    assert field in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"scaffold_fn": 1}, errors.DtypeError, "scaffold_fn must be a func"),
        ({"training_hooks": ["hook"]}, errors.DtypeError, "SessionRunHook"),
        ({"evaluation_hooks": [1]}, errors.DtypeError, "SessionRunHook"),
        ({"prediction_hooks": [None]}, errors.DtypeError, "SessionRunHook"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(fields, error, text):
    with tf.Graph().as_default(), pytest.raises(error, match=text):
        tpu.TPUEstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0), **fields)


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_names_of_the_estimators_own_metrics_are_refused(
    tmp_path, name, replicas
):
    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        metric = (lambda x: {name: v1.metrics.mean(x)}, [labels])
        return spec._replace(eval_metrics=metric)

    model = replica_model.make(tmp_path, replicas, model=model_fn)
    with pytest.raises(errors.ArgumentError, match=f"name .?{name}.? is not"):
        model.evaluate(replica_model.some(16))


def test_an_optimizer_of_keras_is_not_for_cross_shard_optimizer():
    with pytest.raises(TypeError, match="CrossShardOptimizer|tf.train"):
        tpu.CrossShardOptimizer(keras.optimizers.SGD(0.1))


def test_a_scaffold_of_a_plain_spec_is_said_to_be_ignored(tmp_path, caplog):
    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        return estimator.EstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            scaffold=v1.train.Scaffold(init_fn=lambda scaffold, session: 1 / 0)
            if params["scaffold"]
            else None,
        )

    for scaffold in (False, True):
        caplog.clear()
        model = replica_model.make(
            tmp_path / str(scaffold),
            model=model_fn,
            params={"scaffold": scaffold},
        )
        with caplog.at_level("WARNING", "tensorflow"):
            model.train(replica_model.train_fn, steps=1)

        said = "scaffold is ignored in TPU training; ['init_fn']" in caplog.text
        assert said == scaffold


def test_a_global_step_of_the_models_own_is_refused(tmp_path):
    model = replica_model.make(tmp_path)
    with tf.Graph().as_default() as graph:
        v1.train.create_global_step()
        with pytest.raises(errors.ArgumentError, match="already exists"):
            model._create_and_assert_global_step(graph)


@pytest.mark.parametrize("replicas", [0, 2])
def test_training_that_has_reached_its_last_step_makes_no_more(
    tmp_path, caplog, replicas
):
    model = replica_model.make(tmp_path, replicas)
    model.train(replica_model.train_fn, steps=4)
    with caplog.at_level("INFO", "tensorflow"):
        model.train(replica_model.train_fn, max_steps=4)

    assert model.get_variable_value("global_step") == 4
    assert "Skipping training since max_steps" in caplog.text
