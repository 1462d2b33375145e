"""Owners: the devices whose memory holds the rows of tables."""

from __future__ import annotations

import tensorflow as tf

from tfembed.ops import private

__all__ = ["owners"]


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
