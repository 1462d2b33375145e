"""StableHLO on devices: host devices that run it, topologies that compile it.

Import it before JAX: it makes the host devices. The compiler is the package's
own, loaded by its path: there is no TensorFlow here to import tfembed with.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from typing import Any

_PATH = pathlib.Path(__file__).parents[1] / "tfembed" / "tpu" / "compiler.py"
_spec = importlib.util.spec_from_file_location("tfembed_tpu_compiler", _PATH)
assert _spec and _spec.loader
compiler = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = compiler
_spec.loader.exec_module(compiler)

# Host code is run once or twice: it need not be fast.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
    ]
)

import jax  # noqa: E402 - after its settings.
import numpy as np  # noqa: E402 - as well.

__all__ = ["KINDS", "TOPOLOGIES", "HostProgram", "compiler"]

# By kind and number of chips.
TOPOLOGIES = {
    "v4": {4: "2x2x1", 8: "2x2x2", 64: "4x4x4", 256: "4x8x8"},
    "v5e": {4: "2x2", 8: "2x4", 64: "8x8", 256: "16x16"},
    "v5p": {4: "2x2x1", 8: "2x2x2", 64: "4x4x4", 256: "4x8x8"},
    "v6e": {4: "2x2", 8: "2x4", 64: "8x8", 256: "16x16"},
}
KINDS = tuple(TOPOLOGIES)


class HostProgram:
    """A program on host devices.

    Args:
      text: the StableHLO.
      replicas: how many run it.
    """

    def __init__(self, text: str, replicas: int) -> None:
        self._devices = jax.devices()[:replicas]
        self._program = compiler.compile_for(
            self._devices, text, method="compile_and_load"
        )
        mesh = jax.sharding.Mesh(np.array(self._devices), ("replica",))
        self._split = jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec("replica")
        )
        self._whole = jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec()
        )

    def run(self, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        """Per replica its outputs, of its inputs."""
        arguments = [self._spread(parts) for parts in zip(*inputs, strict=True)]
        found = self._program.execute_sharded(arguments)
        outputs = found.disassemble_into_single_device_arrays()
        return [
            [np.asarray(of_device) for of_device in of_replica]
            for of_replica in zip(*outputs, strict=True)
        ]

    def _spread(self, parts: tuple[np.ndarray, ...]) -> Any:
        buffers = [
            jax.device_put(part, device)
            for part, device in zip(parts, self._devices, strict=True)
        ]
        if parts[0].ndim == 0:  # Each device has its own, for all that.
            return jax.make_array_from_single_device_arrays(
                (), self._whole, buffers
            )
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        return jax.make_array_from_single_device_arrays(
            shape, self._split, buffers
        )
