"""What was measured: figures to print and bars to judge."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.bars import Bar

# What, contender, value, unit.
Figure = tuple[str, str, float, str]


@dataclasses.dataclass
class Results:
    """What was measured.

    Attributes:
      figures: in the order in which they are printed.
      bars: what they are judged by.
    """

    figures: list[Figure] = dataclasses.field(default_factory=list)
    bars: list[Bar] = dataclasses.field(default_factory=list)


def add_bar(
    results: Results,
    name: str,
    bar: float,
    cells: tuple[tuple[str, float], ...],
    **options: Any,
) -> None:
    """Adds a bar where there are cells to judge."""
    if cells:
        results.bars.append(Bar(name, bar, cells, **options))
