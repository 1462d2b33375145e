"""Figures and bars as tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import rich.table

from benchmarks.bars import Bar
from benchmarks.results import Figure

_MORE_IS_BETTER = {"M keys/s", "GB/s", "x"}


def show_figures(console: Any, title: str, figures: Sequence[Figure]) -> None:
    """Prints figures; "tfembed is" says how many times better it is."""
    table = rich.table.Table(title=title)
    for column in ("what", "contender", "value", "unit", "tfembed is"):
        table.add_column(column)
    for what, group in itertools.groupby(figures, key=lambda it: it[0]):
        cells = list(group)
        ours = next((it[2] for it in cells if it[1] == "tfembed"), None)
        for i, (_, contender, value, unit) in enumerate(cells):
            ratio = ""
            if ours and value and contender != "tfembed":
                better = unit in _MORE_IS_BETTER
                ratio = f"{ours / value if better else value / ours:.2f}x"
            table.add_row(
                "" if i else what, contender, f"{value:,.3g}", unit, ratio
            )
    console.print(table)


def show_bars(console: Any, bars: Sequence[Bar]) -> None:
    """Prints what each bar asks for and what was reached."""
    table = rich.table.Table(title="bars (means of their cells)")
    for column in ("what", "bar", "reached", "cells", ""):
        table.add_column(column)
    for bar in bars:
        sign = "<=" if bar.at_most else ">="
        cells = ", ".join(f"{what} {ratio:.2f}" for what, ratio in bar.cells)
        verdict = "holds" if bar.holds else "[bold red]BELOW[/bold red]"
        table.add_row(
            bar.name, f"{sign} {bar.bar:g}", f"{bar.mean:.2f}", cells, verdict
        )
    console.print(table)
