"""Export, save and restore."""

from __future__ import annotations

import os
import pathlib
import statistics
import time

from benchmarks.table.cases import WIDTHS, Plan, Results, add_bar

_ROUNDS = 3
_MOST_EXTRA = 256e6


def run(plan: Plan, results: Results) -> None:
    """Both widths, tfembed and TFRA in turns."""
    for width in WIDTHS:
        with plan.workers("tfembed", "TFRA") as workers:
            for worker in workers.values():
                worker.call("fill", width=width, n=plan.keys)
            _export(plan, results, workers, width)
            _save_and_restore(plan, results, workers, width)


def _export(plan, results, workers, width) -> None:
    rows = plan.keys * (8 + 4 * width)
    for name, worker in workers.items():
        seconds = statistics.median(
            worker.call("export") for _ in range(_ROUNDS)
        )
        rate = rows / seconds / 1e9
        results.figures.append((f"export, width {width}", name, rate, "GB/s"))
        if name == "tfembed":
            add_bar(results, f"export w{width}, GB/s", 1.0, (("export", rate),))


def _save_and_restore(plan, results, workers, width) -> None:
    saves: dict[str, list[dict]] = {name: [] for name in workers}
    restores: dict[str, list[dict]] = {name: [] for name in workers}
    plain = []
    for _ in range(_ROUNDS):
        for name, worker in workers.items():
            folder = str(pathlib.Path(plan.folder) / name)
            saves[name].append(worker.call("save", folder=folder))
            restores[name].append(worker.call("restore", folder=folder))
        plain.append(_plain_write(plan, saves["tfembed"][-1]["bytes"]))
    seconds = {}
    for kind, runs in (("save", saves), ("restore", restores)):
        for name, found in runs.items():
            median = statistics.median(run["seconds"] for run in found)
            seconds[kind, name] = median
            what = f"{kind}, width {width}"
            results.figures.append((what, name, median, "s"))
        extra = max(run["extra"] for run in runs["tfembed"])
        cells = ((kind, extra / _MOST_EXTRA),)
        name = f"memory beside the table in a {kind}, width {width}"
        add_bar(results, name, 1.0, cells, at_most=True)
    write = statistics.median(plain)
    results.figures.append((f"plain write, width {width}", "limit", write, "s"))
    ratio = write / seconds["save", "tfembed"]
    add_bar(results, f"save w{width} / plain write", 0.6, (("save", ratio),))
    if "TFRA" in workers:
        ratio = seconds["restore", "TFRA"] / seconds["restore", "tfembed"]
        add_bar(results, f"restore w{width} / TFRA", 3.0, (("restore", ratio),))


def _plain_write(plan: Plan, size: int) -> float:
    """Seconds that one sequential write of `size` bytes and fsync take."""
    block = os.urandom(1 << 24)
    path = pathlib.Path(plan.folder) / "plain"
    path.unlink(missing_ok=True)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for left in range(size, 0, -len(block)):
            file.write(block[: min(left, len(block))])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds
