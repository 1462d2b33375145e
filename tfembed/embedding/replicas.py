"""The replicas of a strategy, and checks of a TPU's conditions for enqueue.

On a TPU, ids go from the host's input pipeline to the embedding engine and
never through the step: a program that computes ids in the step, or has them on
a device, works on other devices and fails on a TPU. It is refused under a
TPUStrategy, and under any strategy by `TPUEmbedding(strict_tpu=True)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.plan import EmbeddingPlan, feature_paths
from tfembed.ops.private import traced_for_xla

__all__ = [
    "ReplicaInputs",
    "Replicas",
    "THIS_REPLICA",
    "check_plumbing",
    "cores_of",
    "is_tpu",
    "public_name",
    "replica_inputs",
    "split_over_cores",
    "summed_over_replicas",
]

# One trace of a TPUStrategy's function serves all replicas; the replica's index
# is known only on the device.
THIS_REPLICA = -1

_TPU = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)

_SUPPORTED = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    *_TPU,
)

# Class name -> public name of strategies.
_PUBLIC_NAMES = {
    "CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy",
    "_CollectiveAllReduceStrategyExperimental": "MultiWorkerMirroredStrategy",
    "ParameterServerStrategyV2": "ParameterServerStrategy",
}


def public_name(strategy: Any) -> str:
    """Returns the public name of a strategy's class."""
    name = type(strategy).__name__
    return _PUBLIC_NAMES.get(name, name)


def is_tpu(strategy: Any) -> bool:
    """Says whether a strategy is a TPUStrategy."""
    return isinstance(strategy, _TPU)


def cores_of(strategy: Any) -> int:
    """Returns the cores of a replica; several under SPMD of a TPUStrategy."""
    return private.cores_per_replica(strategy) or 1


class Replicas:
    """The replicas of the strategy in whose scope this object is made.

    Args:
      owner: the object's name in errors.

    Attributes:
      strategy: the strategy.
      count: the number of replicas.
      cores: the cores of a replica, as `cores_of` says.
      is_tpu: whether the strategy is a TPUStrategy.
      devices: for each replica, the devices of its cores.

    Raises:
      tfembed.errors.UnsupportedError: a strategy that no engine supports yet.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        # Read once: the calls of every step use them.
        self.strategy = tf.distribute.get_strategy()
        self._check_supported(self.strategy)
        self.count = int(self.strategy.num_replicas_in_sync)
        self.cores = cores_of(self.strategy)
        self.is_tpu = is_tpu(self.strategy)
        self.devices = self._devices()
        self._is_one = self.count == 1 and not self.is_tpu

    def _devices(self) -> list[list[str]]:
        if not isinstance(self.strategy, _SUPPORTED):  # The default one.
            return [["/device:CPU:0"]]
        if self.cores > 1:
            return private.tpu_devices(self.strategy)
        return [[name] for name in self.strategy.extended.worker_devices]

    def check_strategy(self, call: str) -> None:
        """Raises if a call runs under another strategy than this one.

        Raises:
          tfembed.errors.StateError: under another strategy.
          tfembed.errors.UnsupportedError: under a strategy that no engine
            supports yet.
        """
        if not tf.distribute.has_strategy():
            return
        current = tf.distribute.get_strategy()
        if current is not self.strategy:
            self._check_supported(current)
            others = "another" if type(current) is type(self.strategy) else "a"
            raise errors.StateError(
                f"{call} is called under {others} {public_name(current)}, but "
                f"the object was made under {_description(self.strategy)}. Make "
                "it inside of strategy.scope() of the strategy that runs it."
            )

    def _check_supported(self, strategy: Any) -> None:
        if tf.distribute.has_strategy() and not isinstance(
            strategy, _SUPPORTED
        ):
            raise errors.UnsupportedError(
                f"{self._owner} under {public_name(strategy)} is not in this "
                "release; use the default strategy, OneDeviceStrategy, "
                "MirroredStrategy over the devices of one machine, or "
                "TPUStrategy."
            )

    def current(self) -> int | None:
        """Returns the replica on which this call runs; None in no replica.

        Inside of a TPUStrategy's function it is THIS_REPLICA.
        """
        if self._is_one:
            return 0
        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not self.strategy:
            return None
        if self.is_tpu:
            return THIS_REPLICA
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    def current_for(self, call: str) -> int:
        """Returns the replica of a call that must run in replica context.

        Raises:
          tfembed.errors.StateError: outside of strategy.run, or under another
            strategy.
        """
        self.check_strategy(call)
        if self._is_one:
            return 0
        replica = self.current()
        if replica is None:
            raise errors.StateError(
                f"{call} must be called inside of strategy.run: the "
                f"{type(self.strategy).__name__} has {self.count} replicas, "
                "each with activations of its own."
            )
        return replica

    def is_inside_run(self) -> bool:
        """Says whether this call is inside strategy.run of several replicas."""
        return not self._is_one and self.current() is not None

    def of_device(self, device: str) -> tuple[int, str]:
        """Returns the replica that has `device`, and the device's full name.

        Raises:
          tfembed.errors.ArgumentError: no replica has the device.
        """
        if self.is_tpu and _spec(device)[0] != "TPU":
            raise errors.ArgumentError(
                f"Non-TPU device {device} passed to enqueue."
            )
        for replica, names in enumerate(self.devices):
            for name in names:
                if _spec(name) == _spec(device):
                    return replica, name
        raise errors.ArgumentError(
            f"Device {device} passed to enqueue is not one of the replicas' "
            f"devices: {[name for names in self.devices for name in names]}."
        )

    def split(self, values: Sequence[Any]) -> list[list[Any]]:
        """Splits values over the replicas.

        Values that are not distributed belong to every replica.
        """
        if self.count == 1:
            only = []
            for value in values:
                if isinstance(value, tf.distribute.DistributedValues):
                    value = self._shares(value)[0]
                only.append(value)
            return [only]
        shares = [self._shares(value) for value in values]
        return [[share[i] for share in shares] for i in range(self.count)]

    def _shares(self, value: Any) -> Sequence[Any]:
        if isinstance(value, tf.distribute.DistributedValues):
            local: Sequence[Any] = self.strategy.experimental_local_results(
                value
            )
            if len(local) == self.count:
                return local
        return [value] * self.count

    def merge(
        self, function: Callable[[list[list[Any]]], None], values: list[Any]
    ) -> None:
        """Calls function(values of each replica) once, for all replicas.

        Inside of strategy.run every replica must call it, outside of
        conditionals and loops that the replica's function has itself. Under a
        TPUStrategy each replica calls the function, with its own values.
        """
        if self.is_tpu or self.count == 1 or not self.is_inside_run():
            function([values])
            return

        def merged(strategy: Any, *merged_values: Any) -> None:
            del strategy
            function(self.split(merged_values))

        tf.distribute.get_replica_context().merge_call(merged, args=values)


def _description(strategy: Any) -> str:
    name = type(strategy).__name__
    # TensorFlow's own value has a private class.
    return "the default strategy" if name.startswith("_") else f"a {name}"


def _spec(device: str) -> tuple[str, int, int]:
    """Returns type, task and index of a device; by default "CPU", 0 and 0.

    Raises:
      tfembed.errors.ArgumentError: not the name of a device.
    """
    try:
        spec = tf.DeviceSpec.from_string(device)
    except (AttributeError, ValueError):
        raise errors.ArgumentError(
            "`device` must be a device of a replica, such as '/device:CPU:0'; "
            f"got {device!r}."
        ) from None
    return (spec.device_type or "CPU", spec.task or 0, spec.device_index or 0)


def split_over_cores(
    values: Sequence[Any], paths: Sequence[str], cores: int
) -> list[list[Any]]:
    """Splits values into equal numbers of samples, in order, for each core.

    Args:
      values: Tensors [B, ...], SparseTensors and None.
      paths: the values' names in errors.
      cores: the number of cores.

    Raises:
      tfembed.errors.ArgumentError: a RaggedTensor, or a batch that is not a
        multiple of `cores`.
    """
    parts = [
        _split(value, path, cores)
        for value, path in zip(values, paths, strict=True)
    ]
    return [list(of_core) for of_core in zip(*parts, strict=True)]


def _split(value: Any, path: str, cores: int) -> list[Any]:
    if value is None:
        return [None] * cores
    if not isinstance(value, (tf.Tensor, tf.SparseTensor)):
        raise errors.ArgumentError(
            "SPMD does not support raggedTensor yet: a replica of this "
            f"TPUStrategy has {cores} cores, and input {path} is of type "
            f"{type(value)}. Give a Tensor or a SparseTensor."
        )
    samples = value.shape[0] if value.shape.rank else None
    if samples is None or samples % cores:
        raise errors.ArgumentError(
            f"Input {path} has {samples} samples; the {cores} cores of a replica "
            "need a number that they divide, known when it is traced."
        )
    if isinstance(value, tf.Tensor):
        return tf.split(value, cores)
    # The static shapes of the parts are not known.
    shape = tf.concat(
        [[tf.constant(samples // cores, tf.int64)], value.dense_shape[1:]], 0
    )
    return [
        tf.SparseTensor(part.indices, part.values, shape)
        for part in tf.sparse.split(value, cores, axis=0)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaInputs:
    """The inputs of a replica, or of one of its cores if it has several.

    Attributes:
      replica: the replica's index.
      values: per feature the user's ids.
      weights: per feature its weights, or None.
      device: the target device; None inside of strategy.run of a TPUStrategy.
    """

    replica: int
    values: list[Any]
    weights: list[Any]
    device: str | None = None


def replica_inputs(
    plan: EmbeddingPlan,
    replicas: Replicas,
    features: Any,
    weights: Any,
    device: str | None,
) -> list[ReplicaInputs]:
    """Returns the inputs per replica of a call of enqueue.

    Args:
      plan: the plan of the features.
      replicas: the replicas of the strategy.
      features, weights, device: as for `TPUEmbedding.enqueue`.

    Raises:
      tfembed.errors.ArgumentError: a device without a replica, packed features
        of other paths, or input that cannot be split over a replica's cores.
      ValueError, TypeError: a structure that does not match.
    """
    is_packed = isinstance(features, PackedFeatures)
    if isinstance(features, tf.distribute.DistributedValues):
        ((first, *_), *_) = replicas.split([features])
        is_packed = isinstance(first, PackedFeatures)
    if is_packed:
        if replicas.current() == THIS_REPLICA:
            raise errors.ArgumentError(
                "Packed features are taken apart on the host: under a "
                "TPUStrategy, enqueue them outside of strategy.run."
            )
        found = [
            ReplicaInputs(
                replica, *unpacked(packed, plan.feature_config, weights), name
            )
            for replica, name, (packed,) in _split_over_replicas(
                replicas, [features], device
            )
        ]
    else:
        values = plan.flatten_inputs(features, "features")
        weight_values = [None] * len(values)
        if weights is not None:
            weight_values = plan.flatten_inputs(weights, "weights")
        n = len(values)
        found = [
            ReplicaInputs(replica, own[:n], own[n:], name)
            for replica, name, own in _split_over_replicas(
                replicas, values + weight_values, device
            )
        ]
    if replicas.cores == 1 or device is not None:
        return found
    return _of_cores(plan, replicas, found)


def _of_cores(
    plan: EmbeddingPlan, replicas: Replicas, whole: Sequence[ReplicaInputs]
) -> list[ReplicaInputs]:
    """Splits the inputs of each replica over its cores."""
    if replicas.current() == THIS_REPLICA:
        raise errors.UnsupportedError(
            f"A replica of this TPUStrategy has {replicas.cores} cores: enqueue "
            "outside of strategy.run, where its batch is split over them."
        )
    return [
        ReplicaInputs(one.replica, values, weights, core)
        for one in whole
        for values, weights, core in zip(
            split_over_cores(one.values, plan.paths, replicas.cores),
            split_over_cores(one.weights, plan.paths, replicas.cores),
            replicas.devices[one.replica],
            strict=True,
        )
    ]


def _split_over_replicas(
    replicas: Replicas, values: Sequence[Any], device: str | None
) -> list[tuple[int, str | None, list[Any]]]:
    """Lists replicas, their devices (or None) and their inputs."""
    if device is not None:
        return [(*replicas.of_device(device), list(values))]
    if replicas.is_inside_run():
        return [(replicas.current_for("enqueue"), None, list(values))]
    return [
        (replica, names[0], own)
        for replica, (names, own) in enumerate(
            zip(replicas.devices, replicas.split(values), strict=True)
        )
    ]


def summed_over_replicas(gradient: Any) -> Any:
    """Sums a gradient over replicas, for optimizers that do not sum first.

    The first replica gets the sum over all replicas, the others get no entries.
    So an optimizer that squares each replica's gradient squares the sum.

    Args:
      gradient: the gradient of this replica. Only tf.IndexedSlices inside of
        strategy.run of several replicas are summed, but not on TPUs and not in
        XLA programs; all else is returned unchanged.
    """
    context = tf.distribute.get_replica_context()
    if (
        not isinstance(gradient, tf.IndexedSlices)
        or context is None
        or not isinstance(context.strategy, tf.distribute.MirroredStrategy)
        or context.num_replicas_in_sync == 1
        or traced_for_xla()
    ):
        return gradient
    of_all = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    ids, positions = tf.unique(of_all.indices)
    sums = tf.math.unsorted_segment_sum(of_all.values, positions, tf.size(ids))
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica:
        ids, sums = ids[:0], sums[:0]
    return tf.IndexedSlices(sums, ids, of_all.dense_shape)


def check_plumbing(features: Any, strategy: Any) -> None:
    """Raises if a TPU could not enqueue `features`.

    Inside of strategy.run, ids must be arguments of its function, and enqueue
    must not be called in a conditional, a loop or a nested function. Ids must
    always be on the host.

    Args:
      features: the features as given to `TPUEmbedding.enqueue`.
      strategy: the strategy whose replicas get the features.

    Raises:
      tfembed.errors.StateError: enqueue in control flow or a nested function.
      tfembed.errors.ArgumentError: ids that are computed inside of strategy.run
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
    """Returns the component tensors of a leaf, on all replicas."""
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
    """Returns the devices of a tensor or of a replica's argument."""
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
    """Says whether an op is one that TPUStrategy makes for an argument."""
    if op.type == "Placeholder":
        return True
    try:
        return bool(op.get_attr("_tpu_input_identity"))
    except ValueError:
        return False
