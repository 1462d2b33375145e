"""Runs lowered steps of model_fns on host devices, and compiles them for TPUs.

    python -m proof.estimator_runs FOLDER [--full]

Runs where JAX and libtpu are. A step is run several times from the variables that
simulated replicas began with; losses of all replicas and all variables must come
out as theirs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import time
from typing import Any

import numpy as np

from proof.devices import KINDS, TOPOLOGIES, HostProgram, compiler, jax
from proof.results import Result, write

__all__ = ["LARGEST_ERROR", "main", "run"]

LARGEST_ERROR = 1e-5


def results_of(text: str) -> dict[int, int]:
    """By argument, the result that is the argument's new value."""
    return {
        int(argument): int(result)
        for argument, result in re.findall(
            r"%arg(\d+): tensor<[^>]*> \{[^}]*tf\.aliasing_output = (\d+)", text
        )
    }


def run(step: dict[str, Any], folder: pathlib.Path) -> float:
    """The largest error beside simulated replicas.

    Raises:
      AssertionError: another kind of result than is compared.
    """
    text = (folder / step["file"]).read_text()
    expected = np.load(folder / f"{step['file']}.npz")
    replicas, names = step["replicas"], step["variables"]
    new = results_of(text)
    program = HostProgram(
        re.sub(r" \{tf\.aliasing_output = \d+ : i64\}", "", text), replicas
    )
    state = [
        [expected[f"before/{name}"] for name in names] for _ in range(replicas)
    ]
    errors = []
    for number, batch in enumerate(step["batches"]):
        inputs = [
            [
                np.array(features, step["dtype"]),
                np.array(labels, np.float32),
                *of_replica,
            ]
            for (features, labels), of_replica in zip(batch, state)
        ]
        outputs = program.run(inputs)
        for r, results in enumerate(outputs):
            errors.append(_error(results[0], expected["loss"][number, r]))
            for i in range(len(names)):
                if 2 + i in new:
                    state[r][i] = results[new[2 + i]]
    for name, value in zip(names, state[0]):
        errors.append(_error(value, expected[f"after/{name}"]))
        assert value.dtype == expected[f"after/{name}"].dtype, name
    return max(errors)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or not np.all(np.isfinite(found)):
        return float("inf")
    size = np.maximum(1.0, np.abs(expected))
    return float((np.abs(found - expected) / size).max(initial=0.0))


def _compiled(
    step: dict[str, Any], folder: pathlib.Path, kinds: tuple[str, ...]
) -> dict[str, Any]:
    """What the TPU compiler says of a step, by kind of chip."""
    columns: dict[str, Any] = {}
    text = (folder / step["file"]).read_text()
    text = re.sub(r" \{tf\.aliasing_output = \d+ : i64\}", "", text)
    for kind in kinds:
        chips = compiler.chips_of(f"{kind}:{TOPOLOGIES[kind][4]}")
        costs = compiler.costs_of(
            compiler.compile_for(chips, text, method="compile")
        )
        columns[f"{kind}: us"] = round(costs.seconds * 1e6, 1)
        columns["all-reduces"] = costs.collectives
    return columns


def main() -> None:
    """Runs and compiles all, and writes a result for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    # Global steps have 64 bits.
    jax.config.update("jax_enable_x64", True)
    results = []
    index = json.loads((arguments.folder / "estimator_index.json").read_text())
    for step in index:
        start = time.monotonic()
        columns: dict[str, Any] = {"devices": step["replicas"]}
        passed = True
        try:
            if step["is_compared"]:
                error = run(step, arguments.folder)
                columns["largest error"] = float(f"{error:.2g}")
                passed = error <= LARGEST_ERROR
            if step["replicas"] == 4:
                columns |= _compiled(step, arguments.folder, KINDS)
        except Exception as raised:
            columns["error"] = str(raised).splitlines()[0]
            passed = False
        columns["seconds"] = round(time.monotonic() - start, 1)
        results.append(Result(step["name"], passed, columns))
        write(results, arguments.folder / "estimator_runs.json")


if __name__ == "__main__":
    main()
