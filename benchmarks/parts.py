"""A benchmark in parts: each measures, and all are judged at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import rich.console

from benchmarks import report
from benchmarks.results import Results


def run(
    parts: Mapping[str, Callable[[Any, Any], None]],
    chosen: Iterable[str],
    plan: Any,
    results: Results,
    *,
    title: str,
    columns: int,
) -> int:
    """Runs parts and prints what they measured; 1 where a bar does not hold.

    Args:
      parts: by name.
      chosen: the names of those to run.
      plan, results: the arguments of each.
      title: of their tables.
      columns: of a line.
    """
    console = rich.console.Console(width=columns)
    for name in chosen:
        console.print(f"measuring: {name}", style="dim")
        parts[name](plan, results)
        report.show_figures(console, title, results.figures)
        results.figures.clear()
    report.show_bars(console, results.bars)
    return 0 if all(bar.holds for bar in results.bars) else 1
