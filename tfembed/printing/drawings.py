"""Draws numbers as SVG, as wide as their place, in the page's text size.

Positions along a picture are percentages, so that nothing is scaled. Colours
are the page's CSS variables: `--s0`, `--s1` and so on for series.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from tfembed.printing.printed_text import markup

__all__ = ["Bar", "Line", "bars", "columns", "lines", "nice_steps"]

COLOURS = 6
_HEIGHT = 170
_FOOT = 22  # Pixels below a picture for its labels.
_HEAD = 10


@dataclasses.dataclass(frozen=True)
class Bar:
    """A horizontal bar of several parts.

    Attributes:
      label: the text before the bar.
      parts: (length, number of the colour) of each part.
      text: the text behind the bar.
    """

    label: str
    parts: tuple[tuple[float, int], ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Line:
    """A series of points.

    Attributes:
      name: the name of the series.
      points: (position from 0 to 1, height, tooltip).
    """

    name: str
    points: tuple[tuple[float, float, str], ...]


def nice_steps(
    top: float, count: int = 4, *, least: float = 0.0
) -> list[float]:
    """Returns about `count` round numbers from 0 to `top` or a little more.

    Args:
      top: the largest number to show.
      count: how many steps there are, about.
      least: the smallest step; 1 for counts, which have no fractions.
    """
    if not 0 < top < math.inf:
        return [0.0, 1.0]
    raw = max(top / count, least)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(
        m * power
        for m in (1, 2, 2.5, 5, 10)
        if m * power >= raw * 0.999 and (not least or m * power % least == 0)
    )
    number = math.ceil(top / step - 1e-9)
    return [step * i for i in range(number + 1)]


def columns(
    counts: Sequence[float],
    says: Sequence[str],
    ticks: Sequence[tuple[float, str]],
    heights: Sequence[tuple[float, str]],
) -> str:
    """Draws vertical columns side by side.

    Args:
      counts: the height of each column.
      says: the tooltip of each column.
      ticks: (position from 0 to 1, text) along the foot.
      heights: (height, text) of the grid lines.
    """
    top = heights[-1][0] or 1.0
    wide = 100 / max(1, len(counts))
    body = []
    for i, (count, text) in enumerate(zip(counts, says, strict=True)):
        y = _y(count, top)
        body.append(
            f'<g class="mark"><title>{markup(text)}</title>'
            f'<rect class="hit" x="{i * wide:.3f}%" y="{_HEAD}" '
            f'width="{wide:.3f}%" height="{_HEIGHT - _HEAD}"/>'
            f'<rect class="column" x="{i * wide:.3f}%" y="{y:.1f}" '
            f'width="{wide:.3f}%" height="{_HEIGHT - y:.1f}"/></g>'
        )
    return _plot("".join(body), ticks, heights)


def lines(
    series: Sequence[Line],
    ticks: Sequence[tuple[float, str]],
    heights: Sequence[tuple[float, str]],
) -> str:
    """Draws lines over a common foot, with a point for each number.

    Args:
      series: the lines, in the order of their colours.
      ticks, heights: as for `columns`.
    """
    top = heights[-1][0] or 1.0
    body = []
    for number, line in enumerate(series):
        colour = f"var(--s{number % COLOURS})"
        places = [(100 * x, _y(value, top)) for x, value, _ in line.points]
        for (x1, y1), (x2, y2) in itertools.pairwise(places):
            body.append(
                f'<line class="line" stroke="{colour}" x1="{x1:.2f}%" '
                f'y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'
            )
        for (x, y), (_, _, text) in zip(places, line.points, strict=True):
            body.append(
                f'<circle class="point" fill="{colour}" cx="{x:.2f}%" '
                f'cy="{y:.1f}" r="4"><title>{markup(text)}</title></circle>'
            )
    return _plot("".join(body), ticks, heights)


def bars(rows: Sequence[Bar]) -> str:
    """Draws horizontal bars below each other; the longest takes the width."""
    longest = (
        max((sum(n for n, _ in row.parts) for row in rows), default=0) or 1
    )
    shown = []
    for row in rows:
        at, parts = 0.0, []
        for length, colour in row.parts:
            wide = 100 * length / longest
            if wide > 0:
                parts.append(
                    f'<rect class="bar" x="{at:.3f}%" y="1" '
                    f'width="{wide:.3f}%" height="12" rx="2" '
                    f'fill="var(--s{colour % COLOURS})"/>'
                )
            at += wide
        label = markup(row.label)
        shown.append(
            f'<div class="label" title="{label}">{label}</div>'
            f'<svg class="track" height="14" aria-hidden="true">'
            f"{''.join(parts)}</svg>"
            f'<div class="number">{markup(row.text)}</div>'
        )
    return f'<div class="bars">{"".join(shown)}</div>'


def _y(value: float, top: float) -> float:
    return _HEIGHT - (_HEIGHT - _HEAD) * min(value, top) / top


def _plot(
    body: str,
    ticks: Sequence[tuple[float, str]],
    heights: Sequence[tuple[float, str]],
) -> str:
    top = heights[-1][0] or 1.0
    grid, labels = [], []
    for height, text in heights:
        y = _y(height, top)
        grid.append(
            f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        labels.append(
            f'<text x="100%" y="{y + 4:.1f}" text-anchor="end">'
            f"{markup(text)}</text>"
        )
    feet = []
    for place, text in ticks:
        anchor = (
            "start" if place < 0.05 else "end" if place > 0.95 else "middle"
        )
        feet.append(
            f'<text x="{100 * place:.2f}%" y="{_HEIGHT + 17}" '
            f'text-anchor="{anchor}">{markup(text)}</text>'
        )
    size = f'height="{_HEIGHT + _FOOT}"'
    return (
        f'<div class="plot"><svg class="axis" {size}>{"".join(labels)}</svg>'
        f'<svg class="picture" {size}>{"".join(grid)}{body}{"".join(feet)}'
        "</svg></div>"
    )
