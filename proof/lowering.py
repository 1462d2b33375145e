"""Lowers the programs by TensorFlow's TPU bridge, for XLA_TPU_JIT.

    python -m proof.lowering FOLDER [--full] [--host]

Runs where tensorflow-tpu is; no TPU is needed. With `--host` it lowers for the
CPU, under any TensorFlow.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time

from proof.programs import Lowered, Program, at_chip_size, programs
from proof.results import Result, write
from proof.steps import Step
from proof.taped_steps import TapedStep

__all__ = ["lower", "main"]


def lower(
    program: Program,
    replicas: int,
    folder: pathlib.Path,
    *,
    platform: str | None = "TPU",
    large: bool = False,
) -> Lowered:
    """Writes a program's StableHLO into a folder.

    Args:
      program: what to lower.
      replicas: how many run it together.
      folder: where to.
      platform: "TPU" for the TPU bridge; None for the CPU.
      large: whether it is of a chip's size.
    """
    kind = TapedStep if program.taped else Step
    step = kind(program, replicas)
    make = step.function().experimental_get_compiler_ir(*step.specs())
    options = {} if platform is None else {"platform_name": platform}
    text = make(stage="stablehlo", **options)
    stem = "".join(c if c.isalnum() else "_" for c in program.name)
    file = f"{stem}_{replicas}{'_large' if large else ''}.mlir"
    (folder / file).write_text(text)
    return Lowered(
        program=program,
        replicas=replicas,
        buffer=step.buffer,
        rule=step.rule.rule_text() if step.rule else "",
        slots=tuple(step.slots),
        state=len(step.state_shapes) if program.rule else 0,
        at_chip_size=large,
        file=file,
    )


def replica_counts(program: Program, *, full: bool) -> tuple[int, ...]:
    """On how many host devices a program is run."""
    if full or program.taped or program.name in ("forward", "step, Adagrad"):
        return (1, 2, 4, 8)
    return (4,)


def chip_counts(program: Program, *, full: bool) -> tuple[int, ...]:
    """For how many chips a program is compiled."""
    if not full:
        return (4,)
    return (4, 8, 64, 256) if program.is_dlrm else (4, 8)


def main() -> None:
    """Lowers all, and writes a result for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--host", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    platform = None if arguments.host else "TPU"
    lowered, results = [], []
    for program in programs():
        jobs = [
            (program, n, False)
            for n in replica_counts(program, full=arguments.full)
        ]
        jobs += [
            (at_chip_size(program, 4096 if arguments.full else 1024), n, True)
            for n in chip_counts(program, full=arguments.full)
        ]
        start = time.monotonic()
        size, error = 0, ""
        for one, replicas, large in jobs:
            try:
                found = lower(
                    one,
                    replicas,
                    arguments.folder,
                    platform=platform,
                    large=large,
                )
            except Exception as raised:
                error = f"{replicas} replicas: {raised}".splitlines()[0]
                break
            lowered.append(found)
            size = max(size, len(found.text(arguments.folder)))
        results.append(
            Result(
                program.name,
                not error,
                {
                    "platform": platform or "CPU",
                    "replicas": " ".join(str(n) for _, n, _ in jobs),
                    "characters": size,
                    "seconds": round(time.monotonic() - start, 1),
                    "error": error,
                },
            )
        )
    entries = [dataclasses.asdict(one) for one in lowered]
    (arguments.folder / "programs.json").write_text(json.dumps(entries))
    write(results, arguments.folder / "lowering.json")


if __name__ == "__main__":
    main()
