"""Owners: the devices whose memory holds the rows of tables."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tfembed.ops import private

__all__ = ["by_device", "host_device", "owners"]


def owners() -> list[str]:
    """Returns the devices of a table for which a program names none.

    They are the parameter servers of the ParameterServerStrategy in scope, or
    of the innermost replica_device_setter of a graph: their workers share the
    table. Elsewhere, also under a MultiWorkerMirroredStrategy, it is the CPU of
    this process.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        cpus = [cpu.name for cpu in tf.config.list_logical_devices("CPU")]
        specs = map(tf.DeviceSpec.from_string, cpus)
        return [
            cpu
            for cpu, spec in zip(cpus, specs, strict=True)
            if spec.job == "ps" and spec.device_index == 0
        ]
    return private.parameter_servers() or ["/CPU:0"]


@functools.lru_cache
def host_device(device: str) -> tuple[str, int, int, int]:
    """Parses the name of a host device.

    Args:
      device: a full or partial name, as in "/job:localhost/task:0/CPU:0" and
        "/CPU:0"; omitted parts get their first value.

    Returns:
      Job, replica, task and device index.
    """
    spec = tf.DeviceSpec.from_string(device)
    return (
        spec.job or "localhost",
        spec.replica or 0,
        spec.task or 0,
        spec.device_index or 0,
    )


def by_device(handles: Sequence[tf.Tensor]) -> list[list[int]]:
    """Groups the indices of handles by the device that holds the handle."""
    indices: dict[tuple[str, int, int, int], list[int]] = {}
    for i, handle in enumerate(handles):
        indices.setdefault(host_device(handle.device), []).append(i)
    return list(indices.values())
