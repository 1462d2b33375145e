"""Proves the TPU side without a TPU: python -m proof [--full].

Six stages, a table of results each; ends with 1 if any line failed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

from proof import venvs
from proof.results import Result, read

ROOT = pathlib.Path(__file__).resolve().parents[1]
STAGES = (
    "lowering",
    "host_runs",
    "tpu_compiles",
    "traces",
    "estimator_steps",
    "estimator_runs",
)
# Others read what these write.
_FIRST = ("lowering", "estimator_steps")
_TITLES = {
    "lowering": "1. Lowered by TensorFlow's TPU bridge",
    "host_runs": "2. Run on host devices, against NumPy",
    "tpu_compiles": "3. Compiled by the TPU compiler",
    "traces": "4. Traced under a TPUStrategy",
    "estimator_steps": "5. Steps of model_fns, lowered",
    "estimator_runs": "6. Run beside simulated replicas, and compiled",
}


def main() -> int:
    """Runs the stages; 0 if all lines of all tables passed."""
    parser = argparse.ArgumentParser(prog="proof", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="more cases, kinds and chips"
    )
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE"
    )
    parser.add_argument(
        "--lowered",
        type=pathlib.Path,
        help="programs that were lowered before, instead of the first stage",
    )
    arguments = parser.parse_args()
    stages = [
        one
        for one in STAGES
        if one in arguments.stages
        and not (one == "lowering" and arguments.lowered)
    ]
    try:
        pythons = venvs.pythons_of(stages)
    except venvs.MissingWheelsError as error:
        print(error, file=sys.stderr)
        return 1
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.lowered or pathlib.Path(temporary)
        failed = _run(stages, folder, pythons, full=arguments.full)
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if failed else 0


def _run(
    stages: list[str],
    folder: pathlib.Path,
    pythons: dict[str, str],
    *,
    full: bool,
) -> bool:
    """Whether any stage failed. What needs no other stage runs side by side."""
    failed = False
    running = {}
    for stage in sorted(stages, key=lambda stage: stage not in _FIRST):
        options = ["--full"] if full else []
        if stage == "host_runs":
            options = ["100" if full else "10"]
        command = [
            pythons[stage],
            "-m",
            f"proof.{stage}",
            str(folder),
            *options,
        ]
        running[stage] = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if stage in _FIRST:
            failed |= _finish(stage, running.pop(stage), folder)
    for stage, process in running.items():
        failed |= _finish(stage, process, folder)
    return failed


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return dict(
        os.environ,
        PYTHONPATH=path,
        TPU_SKIP_MDS_QUERY="1",
        TF_CPP_MIN_LOG_LEVEL="2",
    )


def _finish(
    stage: str, process: subprocess.Popen[str], folder: pathlib.Path
) -> bool:
    """Prints the table of a stage; whether it failed."""
    output, _ = process.communicate()
    path = folder / f"{stage}.json"
    results = read(path) if path.exists() else []
    if process.returncode or not results:
        print(output[-4000:], file=sys.stderr)
        print(
            f"{stage} ended with {process.returncode} after {len(results)} "
            "results",
            file=sys.stderr,
        )
    _print(_TITLES[stage], results)
    return bool(
        process.returncode
        or not results
        or not all(one.passed for one in results)
    )


def _print(title: str, results: list[Result]) -> None:
    names = dict.fromkeys(key for one in results for key in one.columns)
    names.pop("error", None)
    table = Table(title=title, title_justify="left")
    table.add_column("program", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("")
    for one in results:
        cells = [str(one.columns.get(name, "")) for name in names]
        verdict = "ok" if one.passed else "FAILED"
        table.add_row(one.name, *cells, verdict)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    for one in results:
        if one.columns.get("error"):
            print(f"{one.name}: {one.columns['error']}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
