"""What was measured: figures to print and bars to judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bars import Bar

# What, contender, value, unit.
Figure = tuple[str, str, float, str]

# Of one round's noise.
_LIMIT_TO_FASTEST = 1.05


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


def add_limit_bar(
    results: Results,
    what: str,
    cells: Sequence[tuple[str, Mapping[str, float]]],
) -> None:
    """Judges whether the limit is one: nobody takes less, but for noise.

    Args:
      results: that gets the bar.
      what: was measured.
      cells: (name, seconds by contender).
    """
    shares = []
    for name, seconds in cells:
        others = [v for peer, v in seconds.items() if peer != "limit"]
        if "limit" in seconds and others:
            shares.append((name, seconds["limit"] / min(others)))
    name = f"{what}: the limit / the fastest one's time"
    add_bar(results, name, _LIMIT_TO_FASTEST, tuple(shares), at_most=True)
