"""Turns that public programs take, and what they meet."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator.tpu import replica_model
from tfembed import errors, estimator
from tfembed.estimator import ModeKeys

v1 = tf.compat.v1


def receiver():
    features = {"x": v1.placeholder(tf.float32, [None, 3])}
    return estimator.export.ServingInputReceiver(features, features)


def test_a_model_fn_that_asks_for_its_context_is_exported(tmp_path):
    found = []

    def model_fn(features, labels, mode, params):
        if mode == ModeKeys.PREDICT:
            context = params["context"]
            found.append((context.num_replicas, context.num_hosts))
        return replica_model.model_fn(features, labels, mode, params)

    model = replica_model.make(tmp_path / "model", model=model_fn)
    model.train(replica_model.train_fn, steps=1)
    model.export_saved_model(str(tmp_path / "export"), receiver)

    assert found == [(1, 1), (1, 1)]  # For CPUs, and for TPUs.


@pytest.mark.parametrize("replicas", [0, 2])
def test_an_input_fn_without_a_return_is_named(tmp_path, replicas):
    model = replica_model.make(tmp_path, replicas)
    with pytest.raises(errors.ArgumentError, match="input_fn returned None"):
        model.train(lambda params: None, steps=1)


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "returned 3, of type int"),
        ("rows", "returned 'rows', of type str"),
        (len, "returned <built-in function len>, of type builtin"),
        (({"x": [1.0]}, 4.5), "returned as labels 4.5, of type float"),
        ((object, [1.0]), "returned as features <class 'object'>"),
    ],
)
def test_a_result_that_is_no_batch_is_named(tmp_path, given, said, replicas):
    model = replica_model.make(tmp_path, replicas)
    for method in (model.train, model.evaluate):
        with pytest.raises(errors.ArgumentError, match=f"input_fn {said}"):
            method(lambda params: given, steps=1)


@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_a_feature_that_is_no_batch_is_named(tmp_path, method):
    model = replica_model.make(tmp_path, 2)
    said = "input_fn returned 'abc', of type str, as 'features/x'"
    with pytest.raises(errors.ArgumentError, match=said):
        getattr(model, method)(lambda params: {"x": "abc"}, steps=1)


@pytest.mark.parametrize("iterations", [1, 2])
def test_no_call_of_ours_is_deprecated(tmp_path, caplog, iterations):
    model = replica_model.make(tmp_path, iterations=iterations)
    with caplog.at_level("WARNING"):
        model.train(replica_model.train_fn, steps=2)
        model.evaluate(replica_model.some(21))
        list(model.predict(replica_model.some(21)))

    assert "deprecated" not in caplog.text


@pytest.mark.parametrize("replicas", [0, 2])
def test_arrays_are_dealt_as_tensors_are(tmp_path, replicas):
    def arrays(params):
        size = params["batch_size"]
        return {"x": replica_model.X[:size]}, replica_model.Y[:size]

    def tensors(params):
        return tf.nest.map_structure(tf.constant, arrays(params))

    found = []
    for input_fn in (arrays, tensors):
        model = replica_model.make(tmp_path / input_fn.__name__, replicas)
        model.train(input_fn, steps=2)
        found.append(model.get_variable_value("w").tolist())

    assert found[0] == found[1]


def test_a_prediction_without_a_batch_is_named(tmp_path):
    def model_fn(features, labels, mode, params):
        weight = tf.identity(v1.get_variable("w", []))
        return estimator.tpu.TPUEstimatorSpec(mode, predictions={"y": weight})

    model = replica_model.make(tmp_path, 0, model=model_fn)
    with pytest.raises(errors.ArgumentError, match=r"\['y'\] are scalars"):
        next(model.predict(replica_model.some(9)))


def test_a_checkpoint_that_was_cut_short_is_named(tmp_path):
    model = replica_model.make(tmp_path)
    model.train(replica_model.train_fn, steps=1)
    for path in tmp_path.glob("model.ckpt-1.data*"):
        path.write_bytes(b"")

    with pytest.raises(tf.errors.OpError, match="model.ckpt-1' is damaged"):
        model.train(replica_model.train_fn, steps=1)
