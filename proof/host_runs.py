"""Runs lowered programs on host devices, against NumPy.

    python -m proof.host_runs FOLDER CASES

Runs where JAX is.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import numpy as np

from oracle import Terms
from proof.cases import SKEWS, Case, draw_case, joined
from proof.devices import HostProgram
from proof.expected import expect
from proof.programs import Lowered, read_lowered
from proof.results import Result, write

__all__ = ["LARGEST_ERROR", "error_of", "main"]

LARGEST_ERROR = 1e-5


def error_of(found: np.ndarray, expected: Terms) -> float:
    """The largest error, of what was summed where that is above 1."""
    if found.shape != expected.value.shape or not np.all(np.isfinite(found)):
        return float("inf")
    error = np.abs(found - expected.value) / np.maximum(1.0, expected.size)
    return float(error.max(initial=0.0))


def try_case(
    lowered: Lowered, program: HostProgram, case: Case
) -> tuple[float, int]:
    """The largest error of all outputs, and the rounds.

    Raises:
      AssertionError: not the rounds that it takes, or not on all replicas.
    """
    wanted = expect(lowered, case)
    outputs = program.run(case.inputs(lowered))
    state, errors, most = lowered.state, [], 0
    shards = 1 + len(lowered.slots)
    for replica, of_replica in enumerate(outputs):
        result, *rounds = of_replica[state:]
        errors.append(error_of(result, wanted.results[replica]))
        of_lookup, *of_update = map(int, rounds)
        assert of_lookup == wanted.rounds, (
            f"a lookup took {of_lookup} rounds instead of {wanted.rounds}"
        )
        for one in of_update:
            assert wanted.rounds <= one <= wanted.most_rounds, (
                f"an update took {one} rounds, not {wanted.rounds} to "
                f"{wanted.most_rounds}"
            )
        most = max([of_lookup, *of_update, most])
        dense = of_replica[shards:state]
        for one, value in zip(dense, wanted.dense, strict=True):
            errors.append(error_of(one, Terms.of(value)))
    if state:
        tables = joined(lowered, [one[:shards] for one in outputs])
        for table, expected in zip(tables, wanted.tables, strict=True):
            errors += map(error_of, table, expected)
    return max(errors), most


def try_program(
    lowered: Lowered, folder: pathlib.Path, cases: int
) -> tuple[float, int]:
    """The largest error and the most rounds of all cases."""
    program = HostProgram(lowered.text(folder), lowered.replicas)
    rng = np.random.default_rng(lowered.replicas)
    worst, most = 0.0, 0
    for skew in [""] * cases + list(SKEWS):
        error, rounds = try_case(
            lowered, program, draw_case(lowered, rng, skew)
        )
        worst, most = max(worst, error), max(most, rounds)
    return worst, most


def main() -> None:
    """Runs all that are of a size for it, and writes a result for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cases", type=int)
    arguments = parser.parse_args()
    lowered = [
        one for one in read_lowered(arguments.folder) if not one.at_chip_size
    ]
    results = []
    for name in dict.fromkeys(one.program.name for one in lowered):
        start = time.monotonic()
        worst, most, error = 0.0, 0, ""
        same = [one for one in lowered if one.program.name == name]
        for one in same:
            try:
                found, rounds = try_program(
                    one, arguments.folder, arguments.cases
                )
            except Exception as raised:
                error = f"{one.replicas} devices: {raised}".splitlines()[0]
                break
            worst, most = max(worst, found), max(most, rounds)
        results.append(
            Result(
                name,
                not error and worst <= LARGEST_ERROR,
                {
                    "devices": " ".join(str(one.replicas) for one in same),
                    "cases": len(same) * (arguments.cases + len(SKEWS)),
                    "most rounds": most,
                    "largest error": float(f"{worst:.2g}"),
                    "seconds": round(time.monotonic() - start, 1),
                    "error": error,
                },
            )
        )
        write(results, arguments.folder / "host_runs.json")


if __name__ == "__main__":
    main()
