"""The conditions that TPUs set for enqueued tensors, checked anywhere.

On a TPU, ids go from the host's input pipeline to the embedding engine and never
through the step: a program that computes them in the step, or that has them on a
device, works elsewhere and fails there. Under a TPUStrategy it is refused, and
everywhere by `TPUEmbedding(strict_tpu=True)`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.plan import feature_paths

__all__ = ["check_plumbing"]


def check_plumbing(features: Any, strategy: Any) -> None:
    """Raises where a TPU could not take `features`.

    Inside of strategy.run, ids must be arguments of its function, and enqueue
    must not stand in a conditional, a loop or a function of its own. Everywhere,
    ids must be on the host.

    Args:
      features: as `TPUEmbedding.enqueue` is given them.
      strategy: the strategy whose replicas they are for.

    Raises:
      tfembed.errors.StateError: enqueue in control flow or a nested function.
      tfembed.errors.ArgumentError: ids that are computed inside of strategy.run,
        or are not on a CPU.
    """
    functions = private.functions_since_run()
    if functions:
        raise errors.StateError(
            f"Current graph {tf.compat.v1.get_default_graph()} does not match "
            "graph which contains TPUReplicateContext: enqueue is called in "
            "control flow or in a tf.function inside of strategy.run, which "
            "TPUs and strict_tpu=True do not allow, since a TPU takes the ids "
            "from the head of the replica's function. Enqueue before the "
            "conditional or loop, or outside of strategy.run."
        )
    paths = feature_paths(features)
    for path, leaf in zip(paths, tf.nest.flatten(features), strict=True):
        for tensor in _tensors(leaf, strategy):
            _check_device(tensor, path or "the only feature")
            if functions is not None:
                _check_is_argument(tensor, path or "the only feature")


def _tensors(value: Any, strategy: Any) -> list[tf.Tensor]:
    """The tensors that make up a leaf, on all replicas."""
    if isinstance(value, tf.distribute.DistributedValues):
        local = strategy.experimental_local_results(value)
        return [tensor for one in local for tensor in _tensors(one, strategy)]
    parts = tf.nest.flatten(value, expand_composites=True)
    return [part for part in parts if isinstance(part, tf.Tensor)]


def _check_device(tensor: tf.Tensor, path: str) -> None:
    for name in _devices(tensor):
        kind = tf.DeviceSpec.from_string(name or "").device_type
        if kind not in (None, "CPU"):
            raise errors.ArgumentError(
                f"Received input tensor {path} which is on a {kind} input device "
                f"{name}. On TPUs and with strict_tpu=True, inputs must be on the "
                "CPU. Have the dataset leave them on the host: tf.distribute."
                "InputOptions(experimental_fetch_to_device=False)."
            )


def _devices(tensor: tf.Tensor) -> list[str]:
    """The devices of a tensor or of a replica's argument."""
    if _is_eager(tensor) or tensor.op.type != "Identity":
        return [tensor.device]
    (source,) = tensor.op.inputs
    if source.op.type != "TPUReplicatedInput":
        return [tensor.device]
    return [one.device for one in source.op.inputs]


def _check_is_argument(tensor: tf.Tensor, path: str) -> None:
    if _is_eager(tensor) or _is_tpu_argument(tensor.op):
        return
    if private.is_made_inside_run(tensor.op):
        raise errors.ArgumentError(
            f"Received input tensor {path} which is the output of op "
            f"{tensor.op.name} (type {tensor.op.type}) which does not have the "
            "`_tpu_input_identity` attr: it is computed inside of strategy.run. "
            "On TPUs and with strict_tpu=True, inputs must be taken directly from "
            "the arguments of the function that strategy.run calls. Compute them "
            "in the dataset, or enqueue outside of strategy.run."
        )


def _is_eager(tensor: tf.Tensor) -> bool:
    return isinstance(tensor, tf.__internal__.EagerTensor)


def _is_tpu_argument(op: tf.Operation) -> bool:
    """Whether TPUStrategy made the tensor of an argument."""
    if op.type == "Placeholder":
        return True
    try:
        return bool(op.get_attr("_tpu_input_identity"))
    except ValueError:
        return False
