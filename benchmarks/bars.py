"""Bars: what a figure must reach beside another one, and the verdict."""

from __future__ import annotations

import dataclasses
import math

# No single cell may be further than this from its bar.
WORST_CELL = 1.5


@dataclasses.dataclass(frozen=True)
class Bar:
    """Cells that are judged together.

    Attributes:
      name: what is judged.
      bar: the ratio to reach.
      cells: (what, ratio); all mean "at least", or with `at_most` the other.
      at_most: whether less is better.
      is_sum: whether the ratios are of differences, which may be 0: their mean
        is the arithmetic one.
    """

    name: str
    bar: float
    cells: tuple[tuple[str, float], ...]
    at_most: bool = False
    is_sum: bool = False

    @property
    def mean(self) -> float:
        """The mean of the cells, mostly the geometric one."""
        if self.is_sum:
            return sum(ratio for _, ratio in self.cells) / len(self.cells)
        logs = [math.log(max(ratio, 1e-9)) for _, ratio in self.cells]
        return math.exp(sum(logs) / len(logs))

    @property
    def holds(self) -> bool:
        """Whether the mean reaches the bar and no cell is far from it."""
        if self.at_most:
            worst = max(ratio for _, ratio in self.cells)
            return self.mean <= self.bar and worst <= self.bar * WORST_CELL
        worst = min(ratio for _, ratio in self.cells)
        return self.mean >= self.bar and worst >= self.bar / WORST_CELL
