"""Compiles lowered programs by the real TPU compiler, and asks it for costs.

    python -m proof.tpu_compiles FOLDER [--full]

Runs where JAX and libtpu are; no TPU is needed.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from typing import Any

from proof.devices import KINDS, TOPOLOGIES, compiler
from proof.programs import Lowered, read_lowered
from proof.replicated import has_replicated, replicated_program
from proof.results import Result, write

__all__ = ["MOST_TIME", "main"]

# The sharded step may take this much of the replicated one's estimated time.
MOST_TIME = 1.5
# What is compared with whole tables in the short proof.
_COMPARED = ("step, SGD", "step, Adagrad", "DLRM")


def kinds_of(lowered: Lowered, *, full: bool) -> tuple[str, ...]:
    """The kinds of chip that a program is compiled for."""
    return KINDS if full or lowered.program.is_dlrm else ("v5p",)


def compile_one(
    lowered: Lowered, folder: pathlib.Path, kind: str, *, compares: bool
) -> Result:
    """Compiles a program and its replicated version for one kind of chip."""
    start = time.monotonic()
    name = f"{kind}:{TOPOLOGIES[kind][lowered.replicas]}"
    sharded, plain, error = None, None, ""
    try:
        chips = compiler.chips_of(name)
        assert len(chips) == lowered.replicas, f"{len(chips)} chips"
        sharded = compiler.costs_of(
            compiler.compile_for(
                chips,
                lowered.text(folder),
                method="compile",
                state=lowered.state,
            )
        )
        if compares:
            plain = _replicated(lowered, name)
    except Exception as raised:
        error = str(raised).splitlines()[0]
    passed = sharded is not None and not error
    if sharded is not None and plain is not None:
        passed = passed and sharded.bytes < plain.bytes
        # A forward pass of whole tables sends nothing: it cannot be matched.
        if lowered.program.rule:
            passed = passed and sharded.seconds <= MOST_TIME * plain.seconds
    return Result(
        lowered.program.name,
        passed,
        {
            "chips": name,
            **_columns(sharded, plain),
            "seconds": round(time.monotonic() - start, 1),
            "error": error,
        },
    )


def _replicated(lowered: Lowered, name: str) -> Any:
    try:
        return compiler.costs_of(
            replicated_program(lowered, compiler.chips_of(name))
        )
    except Exception as raised:
        # A whole table that no chip can hold has no time to compare with.
        if "RESOURCE_EXHAUSTED" in str(raised):
            return None
        raise


def _columns(sharded: Any, plain: Any) -> dict[str, float | int | str]:
    if sharded is None:
        return {}
    columns: dict[str, float | int | str] = {
        "microseconds": round(sharded.seconds * 1e6, 1),
        "no estimate": sharded.unknown,
        "MB a chip": round(sharded.bytes / 1e6, 1),
        "MB sent": round(sharded.interconnect / 1e6, 2),
        "collectives": sharded.collectives,
        "replicated: microseconds": "-",
        "replicated: MB a chip": "-",
        "replicated: MB sent": "-",
        "time": "-",
        "memory": "-",
    }
    if plain is not None:
        columns |= {
            "replicated: microseconds": round(plain.seconds * 1e6, 1),
            "replicated: MB a chip": round(plain.bytes / 1e6, 1),
            "replicated: MB sent": round(plain.interconnect / 1e6, 2),
            "time": round(sharded.seconds / plain.seconds, 2),
            "memory": round(sharded.bytes / plain.bytes, 2),
        }
    return columns


def main() -> None:
    """Compiles all that are of a chip's size, and writes a result for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    results = []
    for lowered in read_lowered(arguments.folder):
        if not lowered.at_chip_size:
            continue
        for kind in kinds_of(lowered, full=arguments.full):
            compares = has_replicated(lowered) and (
                arguments.full or lowered.program.name in _COMPARED
            )
            results.append(
                compile_one(lowered, arguments.folder, kind, compares=compares)
            )
            write(results, arguments.folder / "tpu_compiles.json")


if __name__ == "__main__":
    main()
