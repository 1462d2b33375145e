"""SavedModels of a TPUEstimator: graphs for CPUs and for TPUs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import X
from tfembed import errors
from tfembed.estimator import ModeKeys, tpu
from tfembed.estimator import export as export_names

v1 = tf.compat.v1


def receiver():
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    return export_names.ServingInputReceiver({"x": x}, {"x": x})


def graphs(folder):
    """The graphs of a SavedModel by their tags."""
    found = loader_impl.parse_saved_model(tf.compat.as_str(folder)).meta_graphs
    return {tuple(sorted(g.meta_info_def.tags)): g for g in found}


def ops_of(graph):
    nodes = list(graph.graph_def.node)
    for function in graph.graph_def.library.function:
        nodes.extend(function.node_def)
    return {node.op for node in nodes}


def served(folder, rows):
    model = tf.saved_model.load(tf.compat.as_str(folder), tags=["serve"])
    signature = model.signatures["serving_default"]
    return signature(x=tf.constant(rows))["y"].numpy()


@pytest.fixture
def trained(tmp_path):
    def make(**options):
        model = replica_model.make(tmp_path / "model", **options)
        if model.latest_checkpoint() is None:
            model.train(replica_model.train_fn, steps=3)
        return model

    return make


def test_an_export_has_a_graph_for_cpus_and_one_for_tpus(tmp_path, trained):
    folder = trained().export_saved_model(str(tmp_path / "out"), receiver)

    found = graphs(folder)
    assert set(found) == {("serve",), ("serve", "tpu")}
    assert "TPUPartitionedCall" in ops_of(found["serve", "tpu"])
    assert "TPUReplicateMetadata" in ops_of(found["serve", "tpu"])
    assert "TPUPartitionedCall" not in ops_of(found["serve",])
    weight, bias = replica_model.trained(3)
    np.testing.assert_allclose(
        served(folder, X[:5]), X[:5] @ weight + bias, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "options, tags",
    [
        ({"export_to_tpu": False}, {("serve",)}),
        ({"export_to_cpu": False}, {("serve", "tpu")}),
    ],
)
def test_an_export_has_the_graphs_that_are_asked_for(
    tmp_path, trained, options, tags
):
    folder = trained(**options).export_saved_model(
        str(tmp_path / "out"), receiver
    )
    assert set(graphs(folder)) == tags
    saved = tf.train.list_variables(
        tf.compat.as_str(folder) + "/variables/variables"
    )
    assert {"w", "b"} <= {name for name, _ in saved}


def test_an_export_of_no_graph_is_refused(tmp_path, trained):
    model = trained(export_to_cpu=False, export_to_tpu=False)
    with pytest.raises(errors.ArgumentError, match="must be true"):
        model.export_saved_model(str(tmp_path / "out"), receiver)


def test_an_export_has_no_batch_size_and_says_where_it_runs(tmp_path, trained):
    told = []

    def model_fn(features, labels, mode, params):
        if mode == ModeKeys.PREDICT:
            assert "batch_size" not in params
            told.append(params["use_tpu"])
        return replica_model.model_fn(features, labels, mode, params)

    trained(model=model_fn).export_saved_model(str(tmp_path / "out"), receiver)
    assert told == [False, True]


def test_a_model_fn_may_put_its_own_part_on_a_tpu(tmp_path, trained):
    def model_fn(features, labels, mode, params):
        if mode != ModeKeys.PREDICT or not params["use_tpu"]:
            return replica_model.model_fn(features, labels, mode, params)
        weight = v1.get_variable("w", [3, 1], use_resource=True)
        bias = v1.get_variable("b", [1], use_resource=True)
        (predictions,) = v1.tpu.rewrite(
            lambda x: tf.matmul(x, weight) + bias, [features["x"]]
        )
        return tpu.TPUEstimatorSpec(mode, predictions={"y": predictions})

    model = trained(
        model=model_fn,
        export_saved_model_api_version=tpu.ExportSavedModelApiVersion.V2,
    )
    folder = model.export_saved_model(str(tmp_path / "out"), receiver)

    ops = ops_of(graphs(folder)["serve", "tpu"])
    assert "TPUReplicateMetadata" in ops
    assert "TPUPartitionedCall" not in ops  # Which V1 puts around it all.


def test_all_kinds_of_export_outputs_come_back_from_a_tpu(tmp_path, trained):
    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        if mode != ModeKeys.PREDICT:
            return spec
        y = spec.predictions["y"]
        outputs = {
            "serving_default": export_names.PredictOutput({"a": y, "b": y}),
            "classes": export_names.ClassificationOutput(scores=y),
            "value": export_names.RegressionOutput(y),
        }
        return tpu.TPUEstimatorSpec(mode, {"y": y}, export_outputs=outputs)

    examples = export_names.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    folder = trained(model=model_fn).export_saved_model(
        str(tmp_path / "out"), examples
    )

    signatures = graphs(folder)["serve", "tpu"].signature_def
    assert {name: set(each.outputs) for name, each in signatures.items()} == {
        "serving_default": {"a", "b"},
        "classes": {"scores"},
        "value": {"outputs"},
    }


def test_a_model_that_no_tpu_can_run_is_exported_for_cpus(tmp_path, trained):
    def model_fn(features, labels, mode, params):
        if mode == ModeKeys.PREDICT and params["use_tpu"]:
            raise NotImplementedError("AsString is not for TPUs")
        return replica_model.model_fn(features, labels, mode, params)

    folder = trained(model=model_fn).export_saved_model(
        str(tmp_path / "out"), receiver
    )
    assert set(graphs(folder)) == {("serve",)}
    with pytest.raises(NotImplementedError, match="AsString"):
        trained(model=model_fn, export_to_cpu=False).export_saved_model(
            str(tmp_path / "other"), receiver
        )


def test_a_prediction_may_be_a_feature_as_it_came(tmp_path, trained):
    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        if mode != ModeKeys.PREDICT:
            return spec
        return tpu.TPUEstimatorSpec(
            mode, predictions={**spec.predictions, "x": features["x"]}
        )

    folder = trained(model=model_fn).export_saved_model(
        str(tmp_path / "out"), receiver
    )
    found = graphs(folder)
    assert set(found) == {("serve",), ("serve", "tpu")}
    signature = found["serve", "tpu"].signature_def["serving_default"]
    assert set(signature.outputs) == {"x", "y"}
