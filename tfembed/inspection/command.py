"""The command line, and `tfembed inspect`: tables in files, without TensorFlow."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import pathlib
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO, TypeAlias

import numpy as np

from tfembed import _build_info, errors
from tfembed.inspection import difference, ranking, table_exports
from tfembed.inspection.printed_text import as_time, printable, shortened
from tfembed.inspection.reading_progress import ReadingProgress
from tfembed.inspection.row_pairs import RowDtypes
from tfembed.inspection.saved_table import FoundRow, Key, SavedTable
from tfembed.inspection.saved_tables import SavedTables, open_saved
from tfembed.inspection.text_tables import TextTable
from tfembed.units import as_bytes, as_count, as_number, counted

__all__ = ["AddCommand", "main"]

# Adds a command's parser, whose default `run` takes the arguments as parsed and
# returns the exit status. (argparse has no public name of what it is given.)
AddCommand: TypeAlias = Callable[[Any], None]

_NOT_THERE, _REFUSED, _FAULT, _INTERRUPTED = 1, 2, 3, 130

_MOST_NAMES = 8

# The meaning of the first rows, by the value of `--top`.
_FIRST = {
    "norm": "longest",
    "recent": "most recent",
    "frequent": "most frequent",
}

_EXAMPLES = """\
examples:
  tfembed inspect run/ckpt-3                  what a checkpoint holds
  tfembed inspect run                         the latest checkpoint of a folder
  tfembed inspect run --table users --key 42  a row, with its slots
  tfembed inspect run --top norm              the longest rows
  tfembed inspect --diff run/ckpt-2 run/ckpt-3
  tfembed inspect run --table users --to users.parquet
  tfembed inspect run --html report.html

Exit status: 0, 1 where a key is not there, 2 where something cannot be read
or written, 3 where tfembed has a fault.
"""


def main(
    arguments: Sequence[str] | None = None,
    *,
    commands: Sequence[AddCommand] = (),
) -> int:
    """Runs the command.

    Args:
      arguments: the arguments of the command line; None: the process's own.
      commands: commands of higher rooms, beside `inspect`.

    Returns:
      The exit status.
    """
    shows_faults = "--traceback" in (
        sys.argv if arguments is None else arguments
    )
    try:
        try:
            return _run(arguments, commands)
        except Exception:
            if shows_faults:
                _say(traceback.format_exc())
            raise
    except BrokenPipeError:  # As under `| head`.
        _drop(sys.stdout)
        return 0
    except errors.TfembedError as error:
        text, status = str(error), _REFUSED
    except MemoryError:
        text, status = "there is not enough memory for that.", _REFUSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:  # Readers and writers of files have own words.
        _drop(sys.stdout)
        reason = error.strerror or str(error)
        text, status = f"the output cannot be written: {reason}.", _REFUSED
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text, status = (
            f"a fault of tfembed: {type(error).__name__}: {error} "
            f"({pathlib.Path(place.filename).name}:{place.lineno}). Please report "
            "it, with what --traceback prints.",
            _FAULT,
        )
    _say(f"tfembed: {printable(text)}\n")
    return status


def _run(
    arguments: Sequence[str] | None, commands: Sequence[AddCommand]
) -> int:
    """Reads the arguments and does what they ask; returns the exit status."""
    if sys.stdout is None:
        raise errors.ArgumentError(
            "The standard output is closed; open it, as by `> FILE`."
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Keys may be of any script.
            stream.reconfigure(errors="backslashreplace")
    try:
        options = _parser(commands).parse_args(arguments)
        with ReadingProgress():
            status: int = options.run(options)
            return status
    finally:
        sys.stdout.flush()


def _say(text: str) -> None:
    """Writes on stderr, if that is open."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Lets Python write what a stream still has to nowhere as it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parser(more: Sequence[AddCommand]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfembed",
        description="Looks into the tables of tfembed, and exports them.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"tfembed {_build_info.VERSION}, for TensorFlow "
        f"{_build_info.TENSORFLOW_VERSION}",
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    for add in more:
        add(commands)
    inspect = commands.add_parser(
        "inspect",
        help="look into the tables of a file",
        description="Looks into the tables of a checkpoint, a SavedModel, raw "
        "row files, a .keras or a .weights.h5 file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument("path", nargs="?", help="a file, prefix or folder")
    inspect.add_argument(
        "--table",
        metavar="NAME",
        help="one table, by its name, its path or the end of that",
    )
    inspect.add_argument(
        "--key",
        action="append",
        default=[],
        help="show the row and the slots of a key; may come several times",
    )
    inspect.add_argument(
        "--top",
        choices=ranking.ORDERS,
        help="the rows with the largest norm, or touched last, or most often",
    )
    inspect.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="keys gone and come, and rows moved, from file A to file B",
    )
    inspect.add_argument(
        "--count",
        type=_positive,
        default=10,
        metavar="N",
        help="how many rows or keys --top and --diff show (10)",
    )
    inspect.add_argument(
        "--verify", action="store_true", help="compare all checksums"
    )
    inspect.add_argument(
        "--to",
        metavar="FILE",
        help="write a table: .npz, .parquet, .csv, or a folder/ for "
        "TensorBoard's projector",
    )
    inspect.add_argument(
        "--limit", type=_positive, metavar="N", help="rows that --to writes"
    )
    inspect.add_argument(
        "--html", metavar="FILE", help="write a report with pictures"
    )
    inspect.add_argument(
        "--key-dtype",
        default="int64",
        metavar="DTYPE",
        help="of raw files without a manifest (int64)",
    )
    inspect.add_argument(
        "--dtype",
        default="float32",
        help="of the rows in raw files without a manifest (float32)",
    )
    inspect.add_argument(
        "--traceback",
        action="store_true",
        help="show where an error came from, for a report of a fault",
    )
    inspect.set_defaults(run=_inspect)
    return parser


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"must be an integer of at least 1; got {text!r}"
        )
    return number


def _inspect(options: argparse.Namespace) -> int:
    dtypes = RowDtypes(options.key_dtype, options.dtype)
    if (options.path is None) == (options.diff is None):
        raise errors.ArgumentError(
            "Give the path of a file, or two with --diff: tfembed inspect PATH."
        )
    if options.diff is not None:
        before, after = (
            open_saved(path, dtypes=dtypes) for path in options.diff
        )
        _show_difference(before, after, options)
        return 0
    saved = open_saved(options.path, dtypes=dtypes)
    actions: list[Callable[[SavedTables, argparse.Namespace], int]] = []
    if options.verify:
        actions.append(_verify)
    if options.key:
        actions.append(_show_keys)
    if options.top is not None:
        actions.append(_show_top)
    if options.to is not None:
        actions.append(_export)
    if options.html is not None:
        actions.append(_write_report)
    if not actions:
        actions.append(_show_all if options.table is None else _show_table)
    return max(action(saved, options) for action in actions)


def _tables(saved: SavedTables, name: str | None) -> list[SavedTable]:
    """Returns the table of this name, or all tables; at least one."""
    if name is not None:
        return [saved[name]]
    if not saved:
        raise errors.MissingTableError(f"'{saved.path}' has no table.")
    return list(saved.values())


def _show_all(saved: SavedTables, options: argparse.Namespace) -> int:
    del options
    _write(_title(saved))
    _show(
        TextTable(
            "",
            (
                "table",
                "rows",
                "keys",
                "width",
                "dtype",
                "rule",
                "slots",
                "bytes",
            ),
            [
                (
                    printable(table.name),
                    as_count(table.num_rows),
                    "0, 1, ..." if table.has_vocabulary else table.key_dtype,
                    str(table.width),
                    table.dtype,
                    printable(table.rule or ""),
                    printable(", ".join(table.slot_names)),
                    as_bytes(table.total_bytes),
                )
                for table in saved.values()
            ],
        )
    )
    for table in saved.values():
        if facts := list(_facts(table)):
            _write(_wrapped(printable(f"{table.name}: {'; '.join(facts)}.")))
    for name in saved.shared_names:
        _write(
            _wrapped(
                printable(
                    f"Several tables are called '{name}': they are shown by "
                    "their paths, which --table takes."
                )
            )
        )
    _show_variables(saved)
    return 0


def _show_variables(saved: SavedTables) -> None:
    """Prints the number of tensors beside tables, and which could be tables."""
    variables = saved.variables
    if not variables:
        return
    size = sum(variable.num_bytes for variable in variables)
    text = f"{counted(len(variables), 'variable')} beside, {as_bytes(size)}"
    names = [one.name for one in variables if len(one.shape) == 2]
    if names:
        more = ", ..." if len(names) > _MOST_NAMES else ""
        shown = ", ".join(names[:_MOST_NAMES])
        text += f"; --table takes those of rank 2: {shown}{more}"
    _write(_wrapped(printable(f"{text}.")))


def _title(saved: SavedTables) -> str:
    size = sum(table.total_bytes for table in saved.values())
    parts = [saved.kind]
    if saved.step is not None:
        parts.append(f"step {saved.step:,}")
    elif saved.number is not None:
        parts.append(f"number {saved.number}")
    parts.append(f"{counted(len(saved), 'table')} of {as_bytes(size)}")
    parts.append(f"written {as_time(saved.modified)}")
    return printable(f"{saved.path}: {', '.join(parts)}")


def _facts(table: SavedTable) -> Iterator[str]:
    """Yields phrases for the parts of a table besides its rows."""
    if table.seed is not None:
        yield f"seed {table.seed}"
    for kind, policy in table.policies.items():
        yield f"{kind} {policy}"
    if table.num_waiting:
        yield f"{counted(table.num_waiting, 'key')} wait for admission"
    if len(table.shard_sizes) > 1:
        sizes = ", ".join(map(as_count, table.shard_sizes))
        yield f"{len(table.shard_sizes)} shards of {sizes} rows"


def _show_table(saved: SavedTables, options: argparse.Namespace) -> int:
    table = saved[options.table]
    values = table.slot_initial_values
    lines = [
        ("path", "" if table.path == table.name else table.path),
        ("rows", as_count(table.num_rows)),
        ("keys", "0, 1, ..." if table.has_vocabulary else table.key_dtype),
        ("width", str(table.width)),
        ("dtype", table.dtype),
        ("rule", table.rule or ""),
        *(
            (
                f"slot {name}",
                counted(width, "number")
                + (f", from {values[name]:g}" if name in values else ""),
            )
            for name, width in table.slot_widths.items()
        ),
        ("counters", table.counters.replace("_", " ")),
        ("seed", "" if table.seed is None else str(table.seed)),
        *((kind, policy) for kind, policy in table.policies.items()),
        ("waiting", as_count(table.num_waiting) if table.num_waiting else ""),
        *(
            (f"bytes of {kind}", as_bytes(size))
            for kind, size in table.num_bytes.items()
        ),
        ("shards", ", ".join(map(as_count, table.shard_sizes))),
    ]
    _write(printable(f"{saved.path}: {table.name}"))
    _write_pairs((name, text) for name, text in lines if text)
    return 0


def _verify(saved: SavedTables, options: argparse.Namespace) -> int:
    del options
    saved.check()
    size = sum(table.total_bytes for table in saved.values())
    size += sum(variable.num_bytes for variable in saved.variables)
    what = (
        "all checksums are right"
        if saved.has_checksums
        else "the sizes fit; the files have no checksums"
    )
    _write(printable(f"{saved.path}: {as_bytes(size)} read, {what}."))
    return 0


def _show_keys(saved: SavedTables, options: argparse.Namespace) -> int:
    tables = _tables(saved, options.table)
    taken = [
        [text for text in options.key if _takes(table, text)]
        for table in tables
    ]
    for text in options.key:
        if not any(text in texts for texts in taken):
            _keys(tables[0], [text])  # Raises what is wrong with the first.
    found: set[str] = set()
    for table, texts in zip(tables, taken, strict=True):
        rows = table.find(_keys(table, texts)) if texts else []
        for text, row in zip(texts, rows, strict=True):
            if row is not None:
                found.add(text)
                _show_row(table, row)
    missing = [text for text in options.key if text not in found]
    for text in missing:
        names = ", ".join(
            table.name
            for table, texts in zip(tables, taken, strict=True)
            if text in texts
        )
        _write(printable(f"{names}: there is no key {text!r}"))
    return _NOT_THERE if missing else 0


def _takes(table: SavedTable, text: str) -> bool:
    try:
        return bool(_keys(table, [text]))
    except errors.DtypeError:
        return False


def _keys(table: SavedTable, texts: Sequence[str]) -> list[Key]:
    if table.key_dtype == "string":
        return [os.fsencode(text) for text in texts]
    keys: list[Key] = []
    for text in texts:
        try:
            keys.append(int(text))
        except ValueError:
            raise errors.DtypeError(
                f"Keys of table '{table.name}' are {table.key_dtype}; got "
                f"{text!r}."
            ) from None
    table.check_keys(keys)
    return keys


def _label(key: Key) -> str:
    if isinstance(key, int):
        return str(key)
    return repr(key.decode("utf-8", "backslashreplace"))


def _short_label(key: Key) -> str:
    """Returns a key as a short line, for lists of keys."""
    return shortened(printable(_label(key)))


def _show_row(table: SavedTable, found: FoundRow) -> None:
    _write(printable(f"{table.name}: key {_label(found.key)}"))
    columns = {"row": found.row, **found.slots}
    width = max(5, *map(len, columns))
    for name, numbers in columns.items():
        text = "  ".join(map(_value, numbers)) or "no numbers"
        _write_indented(f"{printable(name):<{width}}", text)
    if found.row.dtype != object:
        norm = float(ranking.norms(found.row[None])[0])
        _write_indented(f"{'norm':<{width}}", f"{norm:.6g}")
    if found.counter is not None:
        _write_indented(f"{'noted':<{width}}", _noted(table, found.counter))


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return printable(_label(value))
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)


def _noted(table: SavedTable, counter: float) -> str:
    """Describes a counter in words."""
    number = int(counter)
    if table.counters == "writes":
        return counted(number, "write")
    if table.counters == "steps_ago":
        return f"{counted(number, 'training step')} ago"
    if table.counters == "seconds_since_1970":
        return f"touched {as_time(number)}"
    return printable(f"{number} {table.counters}")


def _show_top(saved: SavedTables, options: argparse.Namespace) -> int:
    for table in _ranked(saved, options):
        best = ranking.rank(table, options.top, options.count)
        _show(
            TextTable(
                printable(f"{table.name}, {_FIRST[options.top]} first"),
                ("key", "norm" if options.top == "norm" else "noted", "row"),
                [
                    (
                        _short_label(one.key),
                        as_number(one.score)
                        if options.top == "norm"
                        else _noted(table, one.score),
                        _first_numbers(one.row),
                    )
                    for one in best
                ],
            )
        )
    return 0


def _ranked(
    saved: SavedTables, options: argparse.Namespace
) -> list[SavedTable]:
    """Returns the tables that have this order; a single table in any case."""
    tables = _tables(saved, options.table)
    if len(tables) == 1:
        return tables
    counters = ranking.ORDERS[options.top]
    fit = [
        table
        for table in tables
        if (table.counters in counters if counters else table.dtype != "string")
    ]
    return fit or tables[:1]  # `ranked` then says which counters are missing.


def _first_numbers(row: Any) -> str:
    shown = "  ".join(_value(number) for number in row[:4])
    return f"{shown}  ..." if len(row) > 4 else shown


def _export(saved: SavedTables, options: argparse.Namespace) -> int:
    tables = _tables(saved, options.table)
    if len(tables) > 1:
        names = ", ".join(f"'{table.name}'" for table in tables)
        raise errors.ArgumentError(
            f"--to writes one table; name it by --table: {names}."
        )
    (table,) = tables
    written = table_exports.export(table, options.to, limit=options.limit)
    of_all = f" of {table.num_rows:,}" if written < table.num_rows else ""
    _write(printable(f"{options.to}: {written:,}{of_all} rows of {table.name}"))
    return 0


def _write_report(saved: SavedTables, options: argparse.Namespace) -> int:
    # Only this action needs the drawing modules.
    html_report: Any = importlib.import_module("tfembed.inspection.html_report")
    html_report.write(saved, options.html, table=options.table)
    _write(printable(f"{options.html} is written."))
    return 0


def _show_difference(
    before: SavedTables, after: SavedTables, options: argparse.Namespace
) -> None:
    pairs: list[tuple[SavedTable, SavedTable]]
    if options.table is not None:
        pairs = [(before[options.table], after[options.table])]
    else:
        pairs = [
            (table, other)
            for table in before.values()
            if (other := _same_table(table, after)) is not None
        ]
        if len(before) == len(after) == 1 and not pairs:
            pairs = list(zip(before.values(), after.values(), strict=True))
        else:
            _show_alone(before, after)
            _show_alone(after, before)
    if not pairs:
        raise errors.MissingTableError(
            f"'{before.path}' and '{after.path}' have no table in common."
        )
    for one, two in pairs:
        found = difference.compare(one, two, count=options.count)
        _write(printable(one.name))
        _write_pairs(_difference_lines(one, two, found))
        if found.most_moved:
            _show(
                TextTable(
                    "",
                    ("moved most: key", "by"),
                    [
                        (_short_label(key), as_number(distance))
                        for distance, key in found.most_moved
                    ],
                )
            )


def _same_table(table: SavedTable, other: SavedTables) -> SavedTable | None:
    """Returns the table of the same path in another file, or of this name."""
    for name in (table.path, table.name):
        if name in other:
            return other[name]
    return None


def _show_alone(saved: SavedTables, other: SavedTables) -> None:
    for table in saved.values():
        if _same_table(table, other) is None:
            _write(printable(f"{table.name}: only in {saved.path}"))


def _difference_lines(
    before: SavedTable, after: SavedTable, found: difference.Difference
) -> Iterator[tuple[str, str]]:
    def keys(named: list[Key], count: int) -> str:
        if not named:
            return as_count(count)
        more = "" if count == len(named) else ", ..."
        return f"{count:,}: {', '.join(map(_short_label, named))}{more}"

    yield "keys before", as_count(before.num_rows)
    yield "keys after", as_count(after.num_rows)
    yield "gone", keys(found.some_gone, found.gone)
    yield "come", keys(found.some_come, found.come)
    yield "kept", as_count(found.kept)
    if found.moved is None:
        yield (
            "rows",
            f"not compared: width {before.width} of {before.dtype} before, "
            f"{after.width} of {after.dtype} after",
        )
        return
    if not found.kept:
        return
    yield "unchanged", as_count(found.unchanged)
    quantiles = ", ".join(
        f"{name} {as_number(found.quantile(share))}"
        for name, share in (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99))
    )
    moved = as_count(found.kept - found.unchanged)
    yield "moved", f"{moved}; of all kept: {quantiles}"


def _write_pairs(lines: Iterable[tuple[str, str]]) -> None:
    """Prints (name, text) pairs in two columns."""
    lines = [(printable(name), printable(text)) for name, text in lines]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        _write_indented(f"{name:<{width}}", text)


def _write_indented(name: str, text: str) -> None:
    lines = textwrap.wrap(
        text,
        79,
        initial_indent=f"  {name}  ",
        subsequent_indent=" " * (len(name) + 4),
        break_on_hyphens=False,
    )
    _write("\n".join(lines) or f"  {name}")


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _wrapped(text: str) -> str:
    return "\n".join(
        textwrap.wrap(text, 79, subsequent_indent="  ", break_long_words=False)
    )


def _show(table: TextTable) -> None:
    """Prints a table, by rich on a terminal if installed, or as plain text."""
    if not table.filled():
        if table.title:
            _write(f"{table.title}: no rows")
        return
    if sys.stdout.isatty():
        try:
            rich: Any = importlib.import_module("rich.console")
            rich_table: Any = importlib.import_module("rich.table")
            rich_text: Any = importlib.import_module("rich.text")
        except ImportError:
            pass
        else:
            _show_richly(table, rich, rich_table, rich_text)
            return
    _write(str(table).removeprefix("\n"))


def _show_richly(table: TextTable, rich: Any, tables: Any, texts: Any) -> None:
    lines = table.filled()
    shown = tables.Table(
        title=texts.Text(table.title) if table.title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    head, *body = lines
    for i, name in enumerate(head):
        shown.add_column(
            texts.Text(name), justify="right" if i else "left", overflow="fold"
        )
    for line in body:  # Texts come from the file: they are not markup.
        shown.add_row(*(texts.Text(cell) for cell in line))
    # rich would print bold letters where colours alone are turned off.
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in (
        *(None, "", "dumb", "unknown"),
    )
    color_system = None if is_plain else "auto"
    rich.Console(color_system=color_system).print(shown)
