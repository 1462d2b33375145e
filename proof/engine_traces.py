"""Traces a TPUEstimator whose tables lie in a TPU's embedding engine.

The TPU is on paper: the graphs are those that sessions would run.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2
from tensorflow.python.tpu import tpu_system_metadata

from proof.paper_tpu import paper_metadata
from tfembed.estimator import tpu
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig
from tfembed.estimator.tpu.experimental import (
    AdagradParameters,
    AdamParameters,
    EmbeddingConfigSpec,
)

__all__ = [
    "MODES",
    "ROWS",
    "EngineGraph",
    "check_engine",
    "engine_spec",
    "trace_engine",
]

v1 = tf.compat.v1

MODES = ("train", "eval", "infer")
ROWS, CORES, PLACES = 4, 8, 3
_HOST_OPS = (
    "EnqueueTPUEmbeddingArbitraryTensorBatch",
    "InfeedEnqueueTuple",
    "OutfeedDequeueTuple",
)


@dataclasses.dataclass(frozen=True)
class EngineGraph:
    """A mode's graph.

    Attributes:
      hosts: how many the TPU has.
      mode: a mode key.
      graph: the graph.
      hooks: those of the mode's spec.
    """

    hosts: int
    mode: str
    graph: tf.Graph
    hooks: list[Any]

    def ops(self, kind: str) -> list[tf.Operation]:
        """Lists the ops of a type, in the order in which they were made."""
        return [op for op in self.graph.get_operations() if op.type == kind]

    def proto(self, op: tf.Operation) -> Any:
        """Reads the configuration that an op brings."""
        return tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration.FromString(
            op.get_attr("config")
        )


def engine_spec(**options: Any) -> EmbeddingConfigSpec:
    """Two tables for the engine, one of sequences among their features, and one
    without a vocabulary.
    """
    return EmbeddingConfigSpec(
        feature_to_config_dict={
            "user": FeatureConfig("users", weight_key="weight"),
            "item": FeatureConfig("items"),
            "seen": FeatureConfig("items", max_sequence_length=PLACES),
            "word": FeatureConfig("words"),
        },
        table_to_config_dict={
            "users": TableConfig(66, 8),
            "items": TableConfig(
                32,
                4,
                combiner=None,
                optimization_parameters=AdamParameters(0.2),
                learning_rate_fn=lambda step: (
                    0.1 / (1.0 + tf.cast(step, tf.float32))
                ),
            ),
            "words": TableConfig(None, 2, combiner="sum"),
        },
        optimization_parameters=AdagradParameters(0.1),
        **options,
    )


def trace_engine(
    hosts: int,
    mode: str,
    spec: EmbeddingConfigSpec | None = None,
    model_fn: Any = None,
    input_fn: Any = None,
) -> EngineGraph:
    """The graph of a mode on a TPU of 8 cores a host.

    Args:
      hosts: how many.
      mode: a mode key.
      spec: the tables; None: those of `engine_spec`.
      model_fn, input_fn: that go with other tables.
    """
    model_fn, input_fn = model_fn or _model_fn, input_fn or _input_fn
    query = paper_metadata(hosts, CORES, embedding_engine=1)
    environment = {
        key: value
        for key, value in os.environ.items()
        if key != "TFEMBED_SIMULATED_CORES"
    }
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(
            tpu_system_metadata, "_query_tpu_system_metadata", query
        ),
        tempfile.TemporaryDirectory() as folder,
        tf.Graph().as_default() as graph,
    ):
        size = ROWS * hosts * CORES
        estimator = tpu.TPUEstimator(
            model_fn,
            config=tpu.RunConfig(
                master="grpc://10.0.0.2:8470",
                model_dir=folder,
                tpu_config=tpu.TPUConfig(
                    iterations_per_loop=4,
                    per_host_input_for_training=(
                        tpu.InputPipelineConfig.PER_HOST_V2
                    ),
                ),
            ),
            train_batch_size=size,
            eval_batch_size=size,
            predict_batch_size=size,
            embedding_config_spec=spec or engine_spec(),
        )
        estimator._create_and_assert_global_step(graph)
        if mode == "eval":
            found = estimator._call_model_fn_eval(input_fn)[0]
        else:
            batches = estimator._steps.take_input(input_fn, mode).features
            found = estimator._steps.call_model_fn(
                batches, None, mode, estimator.config
            )
        hooks = [
            *found.training_hooks,
            *found.evaluation_hooks,
            *found.prediction_hooks,
        ]
        return EngineGraph(hosts, mode, graph, hooks)


def _input_fn(params: Any) -> tf.data.Dataset:
    size = params["batch_size"]

    def features(i: tf.Tensor) -> Any:
        bag = tf.sparse.from_dense(tf.fill([size, 2], i % 32 + 1))
        return {
            "user": bag,
            "weight": tf.SparseTensor(
                bag.indices,
                tf.ones_like(bag.values, tf.float32),
                bag.dense_shape,
            ),
            "item": tf.fill([size], i % 32),
            "seen": bag,
            "word": tf.fill([size, 2], i),
            "x": tf.ones([size, 3]),
        }, tf.ones([size, 1])

    return tf.data.Dataset.range(1000).map(features)


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    for key, shape in {
        "user": [ROWS, 8],
        "item": [ROWS, 4],
        "seen": [ROWS, PLACES, 4],
        "word": [ROWS, 2],
        "x": [ROWS, 3],
    }.items():
        assert features[key].shape == shape, f"{key}: {features[key].shape}"
    x = tf.concat(
        [
            features["user"],
            features["item"],
            tf.reduce_sum(features["seen"], 1),
            features["word"],
            features["x"],
        ],
        1,
    )
    kernel = v1.get_variable("kernel", [x.shape[1], 1])
    found = tf.matmul(x, kernel)
    if mode == "infer":
        return tpu.TPUEstimatorSpec(mode, predictions={"y": found})
    loss = tf.reduce_mean((found - labels) ** 2)
    train = v1.tpu.CrossShardOptimizer(
        v1.train.GradientDescentOptimizer(0.1)
    ).minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train,
        eval_metrics=(
            lambda found, labels: {
                "mae": v1.metrics.mean_absolute_error(labels, found)
            },
            [found, labels if labels is not None else found],
        ),
    )


def check_engine(traced: EngineGraph) -> str:
    """Describes in words where the engine's ops are.

    Raises:
      AssertionError: they are not where they should be.
    """
    hosts, training = traced.hosts, traced.mode == "train"
    devices = [f"/job:tpu_worker/task:{h}/device:CPU:0" for h in range(hosts)]
    (receive,) = traced.ops("RecvTPUEmbeddingActivations")
    sent = traced.ops("SendTPUEmbeddingGradients")
    assert len(sent) == training, f"{len(sent)} ops send gradients"
    for op in (receive, *sent):
        assert _is_on_tpu(op), f"{op.name} is outside of the program"
        assert traced.proto(op) == traced.proto(receive)
    for op in traced.graph.get_operations():
        if _is_on_tpu(op):
            assert all(t.dtype != tf.string for t in op.outputs), op.name
    if traced.mode != "infer":
        for op in (receive, *sent):
            context = op._get_control_flow_context()
            assert context.GetWhileContext(), f"{op.name} is not in the loop"
    cores = [(device, core) for device in devices for core in range(CORES)]
    for kind in _HOST_OPS[: 1 if traced.mode == "infer" else None]:
        found = [
            (op.device, op.get_attr("device_ordinal"))
            for op in traced.ops(kind)
        ]
        assert found == cores, f"{kind}: {found}"
    for enqueued in traced.ops(_HOST_OPS[0]):
        assert not _is_on_tpu(enqueued)
        (mode,) = enqueued.inputs[-1].op.get_attr("value").string_val
        assert mode == (b"train" if training else b"inference"), mode
        ids = enqueued.inputs[3:6]
        assert [one.dtype for one in ids] == [tf.int64] * 3
        assert enqueued.get_attr("combiners") == [b"sum", b"mean"]
    proto = traced.proto(receive)
    assert proto.num_hosts == hosts
    assert proto.num_tensor_cores == hosts * CORES
    assert proto.mode == (proto.TRAINING if training else proto.INFERENCE)
    assert [
        (one.name, one.vocabulary_size, one.dimension)
        for one in proto.table_descriptor
    ] == [("items", 32, 4), ("users", 66, 8)]
    assert [
        (one.name, one.table_id, list(one.input_shape))
        for one in proto.feature_descriptor
    ] == [
        ("item", 0, [ROWS]),
        ("seen", 0, [ROWS, PLACES]),
        ("user", 1, [ROWS]),
    ]
    _check_transfers(traced, devices)
    lookups = traced.ops("Tfembed>GroupedLookup")
    updates = traced.ops("Tfembed>GroupedUpdate")
    assert len(lookups) == 1 and len(updates) == training
    assert not any(map(_is_on_tpu, lookups + updates))
    assert [type(hook).__name__ for hook in traced.hooks[:1]] == ["SystemHook"]
    return (
        f"{len(proto.table_descriptor)} tables, {proto.num_tensor_cores} cores "
        "in the proto, 1 table on the host"
    )


def _check_transfers(traced: EngineGraph, devices: list[str]) -> None:
    """Each host's rows are loaded and retrieved there, with their slots."""
    wanted = (
        {"ADAM": 3, "Adagrad": 2}
        if traced.mode == "train"
        else {"StochasticGradientDescent": 1}
    )
    found = 0
    for stem, num_values in wanted.items():
        for kind in ("Load", "Retrieve"):
            ops = traced.ops(f"{kind}TPUEmbedding{stem}Parameters")
            found += len(ops)
            for op in ops:
                assert op.device == devices[op.get_attr("shard_id")], op.name
                assert op.get_attr("num_shards") == len(devices)
                values = op.inputs if kind == "Load" else op.outputs
                assert len(values) == num_values, f"{op.name}: {len(values)}"
    assert found == 2 * 2 * len(devices), f"{found} loads and retrievals"


def _is_on_tpu(op: tf.Operation) -> bool:
    return "_tpu_replicate" in op.node_def.attr
