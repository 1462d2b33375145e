"""Compiles StableHLO for TPUs that this machine lacks. A program of its own:

    python compiler.py MODULE TOPOLOGY STATE

prints one line of JSON. It needs JAX and libtpu, and imports nothing of
tfembed, whose TensorFlow may be in another environment.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import sys
from typing import Any

__all__ = ["Costs", "chips_of", "compile_for", "costs_of", "interconnect_bytes"]

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
# libtpu's lock protects TPUs; without TPUs, several compilers may run.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8}
_COLLECTIVE = re.compile(
    r"= (?P<shapes>\(.*?\)|\S+) (?P<kind>all-to-all|all-reduce|all-gather|"
    r"reduce-scatter|collective-permute)(?:-start)?\((?P<rest>.*)"
)
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_GROUP = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]")


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a program, per chip.

    Attributes:
      seconds: the compiler's estimate for a step, with each loop counted once.
      unknown: the number of ops without an estimate.
      bytes: the bytes of memory: inputs, outputs, temporaries, and code.
      interconnect: the bytes that leave the chip, with each loop counted once.
      collectives: the number of collectives.
    """

    seconds: float
    unknown: int
    bytes: int
    interconnect: int
    collectives: int


def chips_of(name: str) -> list[Any]:
    """Returns one device per chip of a topology, for instance "v5p:2x2x1"."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=name
    ).devices
    # A chip of v4 has two cores, each a device.
    first = {tuple(device.coords): device for device in reversed(devices)}
    return [first[coords] for coords in sorted(first)]


def compile_for(
    devices: list[Any], text: str, *, method: str, state: int = 0
) -> Any:
    """Compiles a program of one replica per device.

    Args:
      devices: the devices of the host, or of a topology.
      text: the StableHLO text.
      method: "compile_and_load" for the host, "compile" for a topology.
      state: the number of inputs that are also outputs, updated in place.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    ids = np.array([d.id for d in devices]).reshape(-1, 1)
    with mlir.make_ir_context(), ir.Location.unknown():
        options = compiler.get_compile_options(
            num_replicas=len(devices), num_partitions=1, device_assignment=ids
        )
        module = ir.Module.parse(text)
        if state:
            _alias(ir, module, state)
        return getattr(devices[0].client, method)(
            module, xla_client.DeviceList(tuple(devices)), options
        )


def _alias(ir: Any, module: Any, state: int) -> None:
    """Lets the first outputs reuse the memory of the first inputs."""
    main = next(
        op
        for op in module.body.operations
        if ir.StringAttr(op.attributes["sym_name"]).value == "main"
    )
    number = ir.IntegerType.get_signless(32)
    attributes = [
        ir.DictAttr.get(
            {"tf.aliasing_output": ir.IntegerAttr.get(number, i)}
            if i < state
            else {}
        )
        for i in range(len(main.type.inputs))
    ]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def costs_of(program: Any) -> Costs:
    """Returns the costs of an executable compiled for a topology."""
    cost = program.cost_analysis()
    if isinstance(cost, list):
        cost = cost[0]
    memory = _memory(program)
    total = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    text = "\n".join(module.to_string() for module in _modules(program))
    crossing, count = interconnect_bytes(text)
    # An op without an estimate counts as -1 second; a step takes far less.
    unknown = max(0, math.ceil(-cost["optimal_seconds"]))
    seconds = float(cost["optimal_seconds"]) + unknown
    return Costs(seconds, unknown, total, crossing, count)


def interconnect_bytes(text: str) -> tuple[int, int]:
    """Returns the bytes that a chip sends in collectives, and their number.

    With n chips, an all-to-all and an all-gather send (n - 1) / n of their
    result, a reduce-scatter (n - 1) times its result, an all-reduce
    2 (n - 1) / n of its result, and a collective-permute its result.
    """
    total, count = 0.0, 0
    for match in _COLLECTIVE.finditer(text):
        n = _group_size(match["rest"])
        factor = {
            "all-to-all": (n - 1) / n,
            "all-gather": (n - 1) / n,
            "all-reduce": 2 * (n - 1) / n,
            "reduce-scatter": n - 1,
            "collective-permute": 1,
        }[match["kind"]]
        total += factor * _size(match["shapes"], match["kind"])
        count += 1
    return round(total), count


def _group_size(text: str) -> int:
    group, groups = _GROUP.search(text), _GROUPS.search(text)
    if group:
        return group[1].count(",") + 1
    return int(groups[2]) if groups else 2


def _size(shapes: str, kind: str) -> int:
    sizes = []
    for dtype, dimensions in _SHAPE.findall(shapes):
        size = _BYTES.get(dtype, 4)
        for dimension in filter(None, dimensions.split(",")):
            size *= int(dimension)
        sizes.append(size)
    if kind in ("all-gather", "collective-permute") and len(sizes) > 1:
        return max(sizes)  # A start op has input and output.
    return sum(sizes)


def _memory(program: Any) -> Any:
    if hasattr(program, "get_compiled_memory_stats"):
        return program.get_compiled_memory_stats()
    return program.memory_analysis()


def _modules(program: Any) -> list[Any]:
    if hasattr(program, "hlo_modules"):
        return list(program.hlo_modules())
    return list(program.runtime_executable().hlo_modules())


def main() -> None:
    """Prints the costs, or the error, as JSON."""
    module, topology, state = sys.argv[1:]
    answer: dict[str, Any]
    try:
        chips = chips_of(topology)
        program = compile_for(
            chips,
            pathlib.Path(module).read_text(),
            method="compile",
            state=int(state),
        )
        answer = dataclasses.asdict(costs_of(program))
    except ImportError as error:
        answer = {"missing": str(error)}
    except Exception as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
