"""Which replicas a strategy has, and on which of them a call runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private

__all__ = ["THIS_REPLICA", "Replicas", "cores_of", "is_tpu", "public_name"]

# One trace of a TPUStrategy's function serves all replicas: which of them runs
# is known on the device alone.
THIS_REPLICA = -1

_TPU = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
_SUPPORTED = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    *_TPU,
)


# What users call strategies whose classes have other names.
_PUBLIC_NAMES = {
    "CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy",
    "_CollectiveAllReduceStrategyExperimental": "MultiWorkerMirroredStrategy",
    "ParameterServerStrategyV2": "ParameterServerStrategy",
}


def public_name(strategy: Any) -> str:
    """The class of a strategy, as users know it."""
    name = type(strategy).__name__
    return _PUBLIC_NAMES.get(name, name)


def is_tpu(strategy: Any) -> bool:
    """Whether it is a TPUStrategy."""
    return isinstance(strategy, _TPU)


def cores_of(strategy: Any) -> int:
    """The cores of a replica: several where a TPUStrategy spreads it (SPMD)."""
    return private.cores_per_replica(strategy) or 1


class Replicas:
    """The replicas of the strategy in whose scope this object is made.

    Args:
      owner: what errors call the object.

    Raises:
      tfembed.errors.UnsupportedError: a strategy that no engine supports yet.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._strategy = tf.distribute.get_strategy()
        self._check_supported(self._strategy)

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy."""
        return self._strategy

    @property
    def count(self) -> int:
        """The number of replicas."""
        return int(self._strategy.num_replicas_in_sync)

    @property
    def cores(self) -> int:
        """`cores_of` the strategy."""
        return cores_of(self._strategy)

    @property
    def devices(self) -> list[list[str]]:
        """Per replica, the devices of its cores."""
        if not isinstance(self._strategy, _SUPPORTED):  # The default one.
            return [["/device:CPU:0"]]
        if self.cores > 1:
            return private.tpu_devices(self._strategy)
        return [[name] for name in self._strategy.extended.worker_devices]

    def check_strategy(self, call: str) -> None:
        """Raises where a call runs under another strategy than this one.

        Raises:
          tfembed.errors.StateError: it does.
          tfembed.errors.UnsupportedError: it does, under one that no engine
            supports yet.
        """
        current = tf.distribute.get_strategy()
        if tf.distribute.has_strategy() and current is not self._strategy:
            self._check_supported(current)
            others = "another" if type(current) is type(self._strategy) else "a"
            raise errors.StateError(
                f"{call} is called under {others} {public_name(current)}, but "
                f"the object was made under {_description(self._strategy)}. Make "
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
        """The replica on which this call runs; None outside of them.

        Inside of a TPUStrategy's function it is THIS_REPLICA.
        """
        if self.count == 1 and not is_tpu(self._strategy):
            return 0
        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not self._strategy:
            return None
        if is_tpu(self._strategy):
            return THIS_REPLICA
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    def current_for(self, call: str) -> int:
        """The same for a call that must run on a replica.

        Raises:
          tfembed.errors.StateError: it does not, or runs under another
            strategy.
        """
        self.check_strategy(call)
        replica = self.current()
        if replica is None:
            raise errors.StateError(
                f"{call} must be called inside of strategy.run: the "
                f"{type(self._strategy).__name__} has {self.count} replicas, "
                "each with activations of its own."
            )
        return replica

    def is_inside_run(self) -> bool:
        """Whether this call runs inside of strategy.run of several replicas."""
        is_one = self.count == 1 and not is_tpu(self._strategy)
        return not is_one and self.current() is not None

    def of_device(self, device: str) -> tuple[int, str]:
        """The replica that has `device`, and the device's full name.

        Raises:
          tfembed.errors.ArgumentError: there is none.
        """
        if is_tpu(self._strategy) and _spec(device)[0] != "TPU":
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
        """Per replica, its share of each value.

        Values that are not distributed belong to every replica.
        """
        shares = [self._shares(value) for value in values]
        return [[share[i] for share in shares] for i in range(self.count)]

    def _shares(self, value: Any) -> Sequence[Any]:
        if isinstance(value, tf.distribute.DistributedValues):
            local: Sequence[Any] = self._strategy.experimental_local_results(
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
        if is_tpu(self._strategy) or not self.is_inside_run():
            function([values])
            return

        def merged(strategy: Any, *merged_values: Any) -> None:
            del strategy
            function(self.split(merged_values))

        tf.distribute.get_replica_context().merge_call(merged, args=values)


def _description(strategy: Any) -> str:
    name = type(strategy).__name__
    # TensorFlow's own is of a private class.
    return "the default strategy" if name.startswith("_") else f"a {name}"


def _spec(device: str) -> tuple[str, int, int]:
    """Device strings that mean the same device of this process are equal."""
    try:
        spec = tf.DeviceSpec.from_string(device)
    except (AttributeError, ValueError):
        raise errors.ArgumentError(
            "`device` must be a device of a replica, such as '/device:CPU:0'; "
            f"got {device!r}."
        ) from None
    return (spec.device_type or "CPU", spec.task or 0, spec.device_index or 0)
