"""Plots of lines, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tfembed.printing.printed_text import markup
from tfembed.units import as_number

__all__ = ["Line", "line_plot"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 260, 70, 30, 30
_LETTER = 8  # More than most letters of the legend have.
_COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#17becf",
    "#7f7f7f",
    "#8c564b",
)


class Line(NamedTuple):
    """A line of a plot.

    Attributes:
      name: the name in the legend.
      points: (x, y), sorted by x.
    """

    name: str
    points: Sequence[tuple[float, float]]


def line_plot(title: str, lines: Sequence[Line]) -> str:
    """Returns an SVG of the lines over axes from zero, with a legend.

    Args:
      title: the title over the plot.
      lines: the lines; at least one has a point.
    """
    ticks_x = _ticks(max((x for line in lines for x, _ in line.points)))
    ticks_y = _ticks(max((y for line in lines for _, y in line.points)))
    most_x, most_y = ticks_x[-1], ticks_y[-1]
    legend = _LEFT + _WIDTH + 12
    width = legend + 24 + _LETTER * max(10, *(len(line.name) for line in lines))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" font-size="12" '
        f'font-family="sans-serif" width="{width}" '
        f'height="{_TOP + _HEIGHT + _BOTTOM}">',
        f"<title>{markup(title)}</title>",
        f'<text x="{_LEFT}" y="18" font-weight="bold">{markup(title)}</text>',
    ]
    for tick in ticks_y:
        y = _TOP + _HEIGHT * (1 - tick / most_y)
        parts += [
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" '
            f'y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{as_number(tick)}</text>",
        ]
    for tick in ticks_x:
        x = _LEFT + _WIDTH * tick / most_x
        parts.append(
            f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" '
            f'text-anchor="middle">{as_number(tick)}</text>'
        )
    for i, line in enumerate(lines):
        colour = _COLOURS[i % len(_COLOURS)]
        points = " ".join(
            f"{_LEFT + _WIDTH * x / most_x:.1f},"
            f"{_TOP + _HEIGHT * (1 - y / most_y):.1f}"
            for x, y in line.points
        )
        y = _TOP + 14 + 18 * i
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" '
            'stroke-width="1.5"/>',
            f'<line x1="{legend}" x2="{legend + 18}" y1="{y - 4}" y2="{y - 4}" '
            f'stroke="{colour}" stroke-width="2"/>',
            f'<text x="{legend + 24}" y="{y}">{markup(line.name)}</text>',
        ]
    return "".join([*parts, "</svg>"])


def _ticks(most: float) -> list[float]:
    """Returns about five round numbers from 0 to `most` or above."""
    if most <= 0:
        return [0, 1]
    unit = 10.0 ** math.floor(math.log10(most / 4))
    step = next(unit * n for n in (1, 2, 2.5, 5, 10) if unit * n >= most / 5)
    return [step * i for i in range(math.ceil(most / step) + 1)]
