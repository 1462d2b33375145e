"""A report of saved tables: one HTML file with pictures, complete in itself."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tfembed import errors
from tfembed.inspection import ranking
from tfembed.inspection.row_survey import Histogram, RowSurvey, survey
from tfembed.printing import drawings
from tfembed.printing.drawings import Bar, Line
from tfembed.printing.printed_text import as_time, markup, printable_key
from tfembed.saved.saved_table import SavedTable
from tfembed.saved.saved_tables import (
    SavedTables,
    checkpoints_of,
    open_saved,
)
from tfembed.saved.written_file import place_of, written_file
from tfembed.units import as_bytes, as_count, as_number, as_share, counted

__all__ = ["write"]

_KINDS = ("keys", "rows", "slots", "counters", "waiting")
_MOST_CHECKPOINTS = 100
_MOST_LINES = drawings.COLOURS
_COLUMNS = 40
_HOTTEST = 10

_COUNTERS = {
    "writes": ("How often rows were written", "written most often"),
    "steps_ago": ("Training steps since rows were touched", "touched last"),
    "seconds_since_1970": ("Time since rows were touched", "touched last"),
}

_STYLE = """
:root{--ground:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#5d6875;--rule:#e3e6ea;
--s0:#2f6fb3;--s1:#d9822b;--s2:#2e8b6e;--s3:#8a63a8;--s4:#c2493d;--s5:#6b7785}
@media (prefers-color-scheme:dark){:root{--ground:#14181d;--card:#1d2329;
--ink:#e6e9ed;--soft:#9aa5b1;--rule:#323a43;--s0:#6aa5e3;--s1:#eda55c;
--s2:#5bbd9c;--s3:#b493d1;--s4:#e8796d;--s5:#9aa5b1}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:22px;line-height:1.3;margin:0 0 2px;overflow-wrap:anywhere}
h2{font-size:18px;margin:36px 0 4px;overflow-wrap:anywhere}
h3{font-size:14px;margin:0 0 10px;font-weight:600}
p{margin:0 0 12px;color:var(--soft);overflow-wrap:anywhere}
.cards{display:grid;grid-template-columns:minmax(0,1fr);gap:14px;margin-top:14px}
@media (min-width:760px){.cards{grid-template-columns:repeat(2,minmax(0,1fr))}
.cards .card:last-child:nth-child(odd){grid-column:1/-1}}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:14px 16px;min-width:0}
.card p{font-size:13px;margin:10px 0 0}
.tiles{display:flex;flex-wrap:wrap;gap:10px 32px;margin-top:14px}
.tile b{display:block;font-size:20px;font-weight:600;line-height:1.25;
font-variant-numeric:tabular-nums}
.tile span{font-size:13px;color:var(--soft)}
.plot{display:grid;grid-template-columns:46px minmax(0,1fr);column-gap:8px}
.plot svg{display:block;width:100%;overflow:visible}
.plot text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.grid{stroke:var(--rule);stroke-width:1}
.column{fill:var(--s0);stroke:var(--card);stroke-width:1}
.hit{fill:transparent}
.mark:hover .column{fill:var(--s1)}
.line{stroke-width:2;stroke-linecap:round}
.point{stroke:var(--card);stroke-width:1.5}
.bars{display:grid;grid-template-columns:minmax(0,max-content) minmax(60px,1fr) max-content;
gap:6px 10px;align-items:center;font-size:13px}
.bars .label{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;
max-width:13em;font-variant-numeric:tabular-nums}
.bars .number{text-align:right;color:var(--soft);font-variant-numeric:tabular-nums}
.track{width:100%;display:block}
.bar{stroke:var(--card);stroke-width:.5}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 10px;font-size:13px;
color:var(--soft)}
.legend span{display:flex;align-items:baseline;min-width:0;overflow-wrap:anywhere}
.legend i{flex:none;width:10px;height:10px;border-radius:2px;
margin-right:6px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:5px 12px 5px 0;border-bottom:1px solid var(--rule);
white-space:nowrap;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:9em}
td a{color:inherit}
.short{width:auto}
.short td{border:0;padding:2px 28px 2px 0}
.short td+td{color:var(--soft)}
"""


def write(
    saved: SavedTables,
    path: str | os.PathLike[str],
    *,
    table: str | None = None,
) -> None:
    """Writes a report; an existing file is replaced once the report is whole.

    Args:
      saved: the tables.
      path: the path of the report.
      table: the only table to report on; None: all.

    Raises:
      tfembed.errors.ArgumentError: the report cannot be written.
      tfembed.errors.CheckpointError: a file of the tables is damaged.
      tfembed.errors.MissingTableError: there is no table, or none of this name.
    """
    tables = list(saved.values()) if table is None else [saved[table]]
    if not tables:
        raise errors.MissingTableError(f"'{saved.path}' has no table.")
    place_of(path)  # Before the tables are read.
    page = "".join(_page(saved, tables))
    with written_file(path) as written:
        written.write_text(page, encoding="utf-8", errors="backslashreplace")


def _page(saved: SavedTables, tables: Sequence[SavedTable]) -> Iterator[str]:
    title = markup(pathlib.Path(saved.path).name)
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}: tables</title><style>{_STYLE}</style></head><body><main>"
    )
    yield f"<h1>{markup(saved.path)}</h1>"
    yield f"<p>{saved.kind}, written {as_time(saved.modified)}</p>"
    rows = sum(table.num_rows for table in tables)
    size = sum(table.total_bytes for table in tables)
    tiles = [_counted("table", len(tables)), _counted("row", rows)]
    tiles.append(("in the file", as_bytes(size)))
    if saved.step is not None:
        tiles.insert(0, ("step", as_count(saved.step)))
    elif saved.number is not None:
        tiles.insert(0, ("number", str(saved.number)))
    yield _tiles(tiles)
    if len(tables) > 1:
        yield f'<div class="cards">{_overview(tables)}</div>'
    yield '<div class="cards">'
    yield _bytes_by_kind(tables)
    yield _rows_over_time(saved, tables)
    yield "</div>"
    for i, table in enumerate(tables):
        yield from _section(table, i, saved.modified)
    yield "</main></body></html>\n"


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    shown = "".join(
        f'<div class="tile"><b>{markup(text)}</b>'
        f"<span>{markup(name)}</span></div>"
        for name, text in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _counted(noun: str, number: int) -> tuple[str, str]:
    """Returns the tile (name, text) of a count, named by the noun."""
    text, name = counted(number, noun).split(" ", 1)
    return name, text


def _card(title: str, body: str, note: str = "") -> str:
    foot = f"<p>{markup(note)}</p>" if note else ""
    return (
        f'<section class="card"><h3>{markup(title)}</h3>{body}{foot}</section>'
    )


def _overview(tables: Sequence[SavedTable]) -> str:
    head = ("table", "rows", "keys", "width", "dtype", "rule", "bytes")
    lines = []
    for i, table in enumerate(tables):
        cells = [
            as_count(table.num_rows),
            "0, 1, ..." if table.has_vocabulary else table.key_dtype,
            str(table.width),
            table.dtype,
            table.rule or "",
            as_bytes(table.total_bytes),
        ]
        name = f'<a href="#t{i}">{markup(table.name)}</a>'
        others = "".join(f"<td>{markup(cell)}</td>" for cell in cells)
        lines.append(f"<tr><td>{name}</td>{others}</tr>")
    names = "".join(f"<th>{name}</th>" for name in head)
    return _card(
        "Tables",
        f'<div class="scroll"><table><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>",
    )


def _bytes_by_kind(tables: Sequence[SavedTable]) -> str:
    largest = sorted(tables, key=lambda table: -table.total_bytes)[:12]
    kinds = [k for k in _KINDS if any(t.num_bytes.get(k) for t in largest)]
    rows = [
        Bar(
            table.name,
            tuple(
                (table.num_bytes.get(kind, 0), _KINDS.index(kind))
                for kind in kinds
            ),
            as_bytes(table.total_bytes),
        )
        for table in largest
    ]
    left = len(tables) - len(largest)
    note = f"{counted(left, 'smaller table')} left out." if left else ""
    legend = _legend([(kind, _KINDS.index(kind)) for kind in kinds])
    return _card("Bytes by kind", legend + drawings.bars(rows), note)


def _legend(names: Sequence[tuple[str, int]]) -> str:
    shown = "".join(
        f'<span><i style="background:var(--s{number % drawings.COLOURS})"></i>'
        f"{markup(name)}</span>"
        for name, number in names
    )
    return f'<div class="legend">{shown}</div>'


def _rows_over_time(saved: SavedTables, tables: Sequence[SavedTable]) -> str:
    """Plots the rows of the largest tables in all checkpoints of the folder."""
    if saved.kind != "checkpoint":
        return ""
    paths = checkpoints_of(pathlib.Path(saved.path).parent)[-_MOST_CHECKPOINTS:]
    found, unread = [], 0
    for path in paths:
        try:
            found.append(open_saved(path))
        except errors.TfembedError:
            unread += 1
    largest = sorted(tables, key=lambda table: -table.num_rows)[:_MOST_LINES]
    found = [one for one in found if any(t.path in one for t in largest)]
    if len(found) < 2:
        return ""
    axis, positions = _times(found)
    low, high = min(positions), max(positions)
    series = []
    for table in largest:
        points = []
        for one, position in zip(found, positions, strict=True):
            if table.path in one:  # Older files store no names.
                rows = one[table.path].num_rows
                says = f"{pathlib.Path(one.path).name}: {rows:,} rows"
                points.append(((position - low) / (high - low), rows, says))
        series.append(Line(table.name, tuple(sorted(points))))
    top = max(rows for line in series for _, rows, _ in line.points)
    ticks = [(0.0, axis(low)), (1.0, axis(high))]
    legend = _legend([(line.name, i) for i, line in enumerate(series)])
    notes = [f"{counted(len(found), 'checkpoint')} of this folder."]
    if unread:
        notes.append(f"{counted(unread, 'other')} could not be read.")
    return _card(
        "Rows over time",
        legend + drawings.lines(series, ticks, _count_heights(top)),
        " ".join(notes),
    )


def _times(
    found: Sequence[SavedTables],
) -> tuple[Callable[[float], str], list[float]]:
    """Returns a label function and the positions of checkpoints on an axis.

    The positions are training steps where all files count them, else the
    numbers of the files, else the times at which they were written. If all
    files have the same time, the positions are 0, 1, ... in their order.
    """
    steps = [one.step for one in found]
    numbers = [one.number for one in found]
    for unit, counts in (("step", steps), ("number", numbers)):
        known = [float(count) for count in counts if count is not None]
        if len(set(known)) == len(found):
            return lambda at, unit=unit: f"{unit} {at:,.0f}", known
    times = [one.modified for one in found]
    if len(set(times)) < 2:
        return lambda at: f"{at:.0f}", [float(i) for i in range(len(found))]
    return as_time, times


def _count_heights(top: float) -> list[tuple[float, str]]:
    steps = drawings.nice_steps(top, least=1)
    return [(step, _short(step)) for step in steps]


def _short(number: float) -> str:
    """Formats a count with three digits and a unit, for instance `1.23 M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def _section(table: SavedTable, number: int, now: float) -> Iterator[str]:
    yield f'<h2 id="t{number}">{markup(table.name)}</h2>'
    found = survey(table, now)
    yield f"<p>{markup(_description(table))}</p>"
    yield _tiles(_table_tiles(table, found))
    cards = [
        _norms(found.norms),
        _counters(table, found),
        _shards(found),
        _hottest(table),
    ]
    yield f'<div class="cards">{"".join(cards)}</div>'


def _description(table: SavedTable) -> str:
    keys = (
        "ids from 0 on" if table.has_vocabulary else f"{table.key_dtype} keys"
    )
    parts = [f"{keys}, rows of {table.width} {table.dtype}"]
    if table.rule:
        slots = ", ".join(table.slot_names) or "none"
        parts.append(f"rule {table.rule}, slots: {slots}")
    elif table.slot_names:
        parts.append(f"slots: {', '.join(table.slot_names)}")
    if table.seed is not None:
        parts.append(f"seed {table.seed}")
    parts += [f"{kind} {policy}" for kind, policy in table.policies.items()]
    return "; ".join(parts) + "."


def _table_tiles(table: SavedTable, found: RowSurvey) -> list[tuple[str, str]]:
    tiles = [
        _counted("row", table.num_rows),
        ("in the file", as_bytes(table.total_bytes)),
    ]
    if table.num_rows:
        each = table.total_bytes / table.num_rows
        tiles.append(("a row", as_bytes(each)))
    if found.untrained is not None and table.num_rows:
        share = as_share(found.untrained / table.num_rows)
        tiles.append(("rows never trained", share))
    if table.num_waiting:
        tiles.append(("keys wait for admission", as_count(table.num_waiting)))
    if found.norms is not None and len(found.norms):
        median = as_number(found.norms.quantile(0.5))
        tiles.append(("median norm", median))
    if found.norms is not None and found.norms.not_finite:
        tiles.append(("rows not finite", as_count(found.norms.not_finite)))
    return tiles


def _norms(found: Histogram | None) -> str:
    if found is None or not len(found):
        return ""
    low, half, high = map(found.quantile, (0.01, 0.5, 0.99))
    # A few rows far from the others would leave one column to all of these.
    is_cut = 0 < 2 * high < found.largest
    steps = drawings.nice_steps(2 * high if is_cut else found.largest, 5)
    edges = np.linspace(0, steps[-1], _COLUMNS + 1)
    ends = np.append(edges, np.inf) if is_cut else edges
    counts = found.binned(ends).tolist()
    beyond = counts.pop() if is_cut else 0
    says = [
        f"norm {left:.3g} to {right:.3g}: {counted(count, 'row')}"
        for left, right, count in zip(edges, edges[1:], counts, strict=False)
    ]
    ticks = [(step / steps[-1], f"{step:.4g}") for step in steps]
    note = (
        f"1 % are up to {as_number(low)}, half up to {as_number(half)}, 99 % up "
        f"to {as_number(high)}; the largest is {as_number(found.largest)}."
    )
    if beyond:
        note += f" {counted(beyond, 'longer row')} not shown."
    return _card(
        "Norms of rows",
        drawings.columns(counts, says, ticks, _count_heights(max(counts))),
        note,
    )


def _counters(table: SavedTable, found: RowSurvey) -> str:
    """Draws the number of rows by their counter of the eviction policy."""
    if not found.counters:
        return ""
    counts = list(found.counters)
    first = next(i for i, count in enumerate(counts) if count)
    counts = counts[first:]
    is_time = table.counters == "seconds_since_1970"

    def text(power: int) -> str:
        number = 0 if power < 1 else 1 << (power - 1)
        return _duration(number) if is_time else _short(number)

    says, ticks = [], []
    every = math.ceil(len(counts) / 6)
    for i, count in enumerate(counts):
        power = first + i
        until = "" if power < 2 else f" to below {text(power + 1)}"
        says.append(f"{text(power)}{until}: {counted(count, 'row')}")
        if i % every == 0:
            ticks.append(((i + 0.5) / len(counts), text(power)))
    title, _ = _COUNTERS.get(table.counters, (table.counters, ""))
    return _card(
        f"Worth: {title[0].lower()}{title[1:]}",
        drawings.columns(counts, says, ticks, _count_heights(max(counts))),
        "Each column reaches to twice the number below it.",
    )


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds} s"


def _shards(found: RowSurvey) -> str:
    if not sum(found.shards):
        return ""
    mean = sum(found.shards) / len(found.shards)
    rows = [
        Bar(f"shard {i}", ((size, 0),), f"{as_count(size)}")
        for i, size in enumerate(found.shards)
    ]
    largest = max(found.shards)
    note = f"The largest has {100 * (largest / mean - 1):.1f} % over the mean."
    return _card("Balance of shards", drawings.bars(rows), note)


def _hottest(table: SavedTable) -> str:
    """Lists the keys used most if the file has counts, or the longest rows."""
    order = next(
        (
            order
            for order, counters in ranking.ORDERS.items()
            if table.counters in counters
        ),
        "norm",
    )
    if order == "norm" and table.dtype == "string":
        return ""
    best = ranking.rank(table, order, _HOTTEST)
    if not best:
        return ""
    if order == "norm":
        title = "Keys of the longest rows"
        note = (
            "Which keys are used most is noted by tables with an eviction "
            "policy, LeastFrequent or LeastRecent."
        )
        texts = [as_number(one.score) for one in best]
        lengths = [one.score for one in best]
    else:
        title = f"Hottest keys: {_COUNTERS[table.counters][1]}"
        note = ""
        lengths = [one.score for one in best]
        texts = [as_count(int(one.score)) for one in best]
        if table.counters == "steps_ago":
            texts = [f"{counted(int(s), 'step')} ago" for s in lengths]
            lengths = [0.0] * len(best)
        elif table.counters == "seconds_since_1970":
            texts = [as_time(s) for s in lengths]
            lengths = [0.0] * len(best)
    if not any(lengths):
        lines = "".join(
            f"<tr><td>{markup(printable_key(one.key))}</td>"
            f"<td>{markup(text)}</td></tr>"
            for one, text in zip(best, texts, strict=True)
        )
        shown = (
            f'<div class="scroll"><table class="short">{lines}</table></div>'
        )
        return _card(title, shown, note)
    rows = [
        Bar(
            printable_key(one.key),
            ((length if math.isfinite(length) else 0.0, 0),),
            text,
        )
        for one, length, text in zip(best, lengths, texts, strict=True)
    ]
    return _card(title, drawings.bars(rows), note)
