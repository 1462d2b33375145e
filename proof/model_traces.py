"""Traces the functions of a TPUEstimator's model object under a TPUStrategy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from proof.paper_tpu import eager_on_paper
from proof.v0_traces import operations
from tfembed.estimator import tpu
from tfembed.estimator.tpu.context import DeploymentContext, TPUSystem
from tfembed.estimator.tpu.models import model_state
from tfembed.estimator.tpu.models.model_state import ReplicaInput

__all__ = ["MODELS", "MODES", "check_model", "trace_model"]

MODES = ("train", "eval", "infer")
ROWS, WIDTH, CLASSES = 4, 6, 3


def _keras() -> Any:
    """A Keras model whose layers assign: statistics and a seed."""
    x = inputs = keras.Input((WIDTH,), name="x")
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.1)(x)
    model = keras.Model({"x": inputs}, keras.layers.Dense(CLASSES)(x))
    model.compile(
        keras.optimizers.Adam(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class _Plain(tf.Module):
    """An object that is no Keras model."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.zeros([WIDTH, CLASSES]))
        self.bias = tf.Variable(tf.zeros([CLASSES]))
        self.optimizer = keras.optimizers.SGD(0.1)
        self.metrics = [keras.metrics.SparseCategoricalAccuracy()]

    def __call__(self, features: Any) -> Any:
        return tf.matmul(features["x"], self.kernel) + self.bias

    def loss(self, labels: Any, logits: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


# By name, what makes a model, and how many weights are trained.
MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "Keras model": (_keras, 4),
    "tf.Module": (_Plain, 2),
}


def trace_model(name: str, replicas: int, mode: str) -> list[tf.Operation]:
    """The operations of a loop of steps, or of a step that does not train."""
    strategy = eager_on_paper(replicas)
    run = strategy.run

    def traced(function: Any, args: Any = ()) -> Any:
        """Runs in functions that are traced; elsewhere only traces."""
        if tf.inside_function():
            return run(function, args)

        def build() -> tf.Tensor:
            run(function, args)
            return tf.constant(0)

        return tf.function(build).get_concrete_function()

    strategy.run = traced
    with (
        mock.patch.object(
            model_state, "_strategy_for", lambda context: strategy
        ),
        tempfile.TemporaryDirectory() as folder,
    ):
        config = tpu.RunConfig(
            model_dir=folder, tpu_config=tpu.TPUConfig(num_shards=replicas)
        )
        deployment = DeploymentContext(
            config,
            batch_sizes=dict.fromkeys(MODES, ROWS * replicas),
            use_tpu=True,
            eval_on_tpu=True,
        )
        deployment._systems[""] = TPUSystem(replicas, 1, replicas)
        context = deployment.in_mode(mode)
        state = model_state.ModelState(MODELS[name][0], context, None)
        inputs = ReplicaInput(
            lambda user: _data(ROWS * replicas),
            context,
            is_static=context.system.is_strict,
        )
        state.build(inputs)
        if mode == "train":
            function, more = state._loop, (tf.constant(2),)
        else:
            function = {"eval": state.evaluate, "infer": state.predict}[mode]
            more = ()
        graph = function.get_concrete_function(inputs.iterators, *more).graph
        return list(operations(graph))


def _data(rows: int) -> tf.data.Dataset:
    x = np.ones([rows, WIDTH], np.float32)
    y = np.ones([rows], np.int64)
    data = tf.data.Dataset.from_tensor_slices(({"x": x}, y))
    return data.batch(rows, drop_remainder=True)


def check_model(name: str, mode: str, found: list[tf.Operation]) -> str:
    """Describes in words how a function is dealt to the TPU and its host.

    Raises:
      AssertionError: it is not what it should be.
    """
    step = [op for op in found if "_tpu_replicate" in op.node_def.attr]
    types = [op.type for op in step]
    assert "MatMul" in types, "the model is not in the step"
    for op in step:
        attributes = op.node_def.attr
        assert "_xla_outside_compilation" not in attributes, f"{op.name}"
        for tensor in op.outputs:
            assert tensor.dtype != tf.string, f"{op.name} has strings"
            assert tensor.shape.is_fully_defined(), f"{op.name}: {tensor.shape}"
    # The data come from the host; a loop of training is one program.
    assert "IteratorGetNext" not in types
    assert any(op.type == "IteratorGetNext" for op in found)
    assert any(op.type == "While" for op in found) == (mode == "train")
    sums = types.count("CrossReplicaSum")
    _, num_weights = MODELS[name]
    assert sums == (num_weights if mode == "train" else 0), f"{sums} sums"
    return f"{len(step)} ops in the step, {sums} sums over replicas"
