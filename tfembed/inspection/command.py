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
from tfembed.inspection import answers, ranking, table_exports
from tfembed.inspection.answers import Answer, as_json
from tfembed.inspection.reading_progress import ReadingProgress
from tfembed.printing.printed_text import (
    as_time,
    key_text,
    printable,
    shortened,
)
from tfembed.printing.text_tables import TextTable
from tfembed.saved.formats.row_pairs import RowDtypes
from tfembed.saved.saved_table import Key
from tfembed.saved.saved_tables import SavedTables, open_saved
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
    inspect.set_defaults(run=_inspect)
    for one in commands.choices.values():
        one.add_argument(
            "--json",
            action="store_true",
            help="print one JSON object, for programs",
        )
        one.add_argument(
            "--traceback",
            action="store_true",
            help="show where an error came from, for a report of a fault",
        )
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
    asked = [
        name
        for name, value in (
            ("verified", options.verify),
            ("keys", options.key),
            ("top", options.top),
            ("written", options.to),
            ("html", options.html),
        )
        if value
    ]
    if options.diff is not None:
        saved = [open_saved(path, dtypes=dtypes) for path in options.diff]
        asked = ["difference"]
    else:
        saved = [open_saved(options.path, dtypes=dtypes)]
        asked = asked or ["file" if options.table is None else "table"]
    answer: Answer = {} if options.diff else {"path": saved[0].path}
    for name in asked:
        find, show = _ACTIONS[name]
        answer[name] = find(*saved, options)
        if not options.json:
            show(saved[0].path, answer[name])
    if options.json:
        _write(as_json(answer))
    return _NOT_THERE if answer.get("keys", {}).get("missing") else 0


def _show_all(path: str, file: Answer) -> None:
    tables = file["tables"]
    _write(_title(path, file))
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
                    printable(table["name"]),
                    as_count(table["rows"]),
                    _key_kind(table),
                    str(table["width"]),
                    table["dtype"],
                    printable(table["rule"] or ""),
                    printable(", ".join(one["name"] for one in table["slots"])),
                    as_bytes(sum(table["bytes"].values())),
                )
                for table in tables
            ],
        )
    )
    for table in tables:
        if facts := list(_facts(table)):
            _write(_wrapped(printable(f"{table['name']}: {'; '.join(facts)}.")))
    for name in file["shared_names"]:
        _write(
            _wrapped(
                printable(
                    f"Several tables are called '{name}': they are shown by "
                    "their paths, which --table takes."
                )
            )
        )
    _show_variables(file["variables"])


def _key_kind(table: Answer) -> str:
    return "0, 1, ..." if table["has_vocabulary"] else str(table["key_dtype"])


def _show_variables(variables: Sequence[Answer]) -> None:
    """Prints the number of tensors beside tables, and which could be tables."""
    if not variables:
        return
    size = sum(variable["bytes"] for variable in variables)
    text = f"{counted(len(variables), 'variable')} beside, {as_bytes(size)}"
    names = [one["name"] for one in variables if len(one["shape"]) == 2]
    if names:
        more = ", ..." if len(names) > _MOST_NAMES else ""
        shown = ", ".join(names[:_MOST_NAMES])
        text += f"; --table takes those of rank 2: {shown}{more}"
    _write(_wrapped(printable(f"{text}.")))


def _title(path: str, file: Answer) -> str:
    size = sum(sum(table["bytes"].values()) for table in file["tables"])
    parts = [file["kind"]]
    if file["step"] is not None:
        parts.append(f"step {file['step']:,}")
    elif file["number"] is not None:
        parts.append(f"number {file['number']}")
    parts.append(f"{counted(len(file['tables']), 'table')} of {as_bytes(size)}")
    parts.append(f"written {as_time(file['modified'])}")
    return printable(f"{path}: {', '.join(parts)}")


def _facts(table: Answer) -> Iterator[str]:
    """Yields phrases for the parts of a table besides its rows."""
    if table["seed"] is not None:
        yield f"seed {table['seed']}"
    for kind, policy in table["policies"].items():
        yield f"{kind} {policy}"
    if table["waiting"]:
        yield f"{counted(table['waiting'], 'key')} wait for admission"
    if len(table["shards"]) > 1:
        sizes = ", ".join(map(as_count, table["shards"]))
        yield f"{len(table['shards'])} shards of {sizes} rows"


def _show_table(path: str, table: Answer) -> None:
    name, waiting = table["name"], table["waiting"]
    lines = [
        ("path", "" if table["path"] == name else table["path"]),
        ("rows", as_count(table["rows"])),
        ("keys", _key_kind(table)),
        ("width", str(table["width"])),
        ("dtype", table["dtype"]),
        ("rule", table["rule"] or ""),
        *(
            (
                f"slot {slot['name']}",
                counted(slot["width"], "number")
                + (
                    ""
                    if slot["initial_value"] is None
                    else f", from {slot['initial_value']:g}"
                ),
            )
            for slot in table["slots"]
        ),
        ("counters", table["counters"].replace("_", " ")),
        ("seed", "" if table["seed"] is None else str(table["seed"])),
        *table["policies"].items(),
        ("waiting", as_count(waiting) if waiting else ""),
        *(
            (f"bytes of {kind}", as_bytes(size))
            for kind, size in table["bytes"].items()
        ),
        ("shards", ", ".join(map(as_count, table["shards"]))),
    ]
    _write(printable(f"{path}: {name}"))
    _write_pairs((name, text) for name, text in lines if text)


def _show_verified(path: str, found: Answer) -> None:
    what = (
        "all checksums are right"
        if found["has_checksums"]
        else "the sizes fit; the files have no checksums"
    )
    _write(printable(f"{path}: {as_bytes(found['bytes'])} read, {what}."))


def _show_keys(path: str, keys: Answer) -> None:
    del path
    for found in keys["found"]:
        _show_row(found)
    for one in keys["missing"]:
        names = ", ".join(one["tables"])
        _write(printable(f"{names}: there is no key {one['key']!r}"))


def _label(key: Key) -> str:
    if isinstance(key, int):
        return str(key)
    text = key_text(key)
    return text if text == repr(key) else repr(text)


def _short_label(key: Key) -> str:
    """Returns a key as a short line, for lists of keys."""
    return shortened(printable(_label(key)))


def _show_row(found: Answer) -> None:
    _write(printable(f"{found['table']}: key {_label(found['key'])}"))
    columns = {"row": found["row"], **found["slots"]}
    width = max(5, *map(len, columns))
    for name, numbers in columns.items():
        text = "  ".join(map(_value, numbers)) or "no numbers"
        _write_indented(f"{printable(name):<{width}}", text)
    if found["norm"] is not None:
        _write_indented(f"{'norm':<{width}}", f"{found['norm']:.6g}")
    if found["noted"] is not None:
        text = _noted(found["counters"], found["noted"])
        _write_indented(f"{'noted':<{width}}", text)


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return printable(_label(value))
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)


def _noted(counters: str, counter: float) -> str:
    """Describes a counter in words."""
    number = int(counter)
    if counters == "writes":
        return counted(number, "write")
    if counters == "steps_ago":
        return f"{counted(number, 'training step')} ago"
    if counters == "seconds_since_1970":
        return f"touched {as_time(number)}"
    return printable(f"{number} {counters}")


def _show_top(path: str, tables: Sequence[Answer]) -> None:
    del path
    for table in tables:
        order = table["order"]
        _show(
            TextTable(
                printable(f"{table['table']}, {_FIRST[order]} first"),
                ("key", "norm" if order == "norm" else "noted", "row"),
                [
                    (
                        _short_label(one["key"]),
                        as_number(one["score"])
                        if order == "norm"
                        else _noted(table["counters"], one["score"]),
                        _first_numbers(one["row"]),
                    )
                    for one in table["rows"]
                ],
            )
        )


def _first_numbers(row: Any) -> str:
    shown = "  ".join(_value(number) for number in row[:4])
    return f"{shown}  ..." if len(row) > 4 else shown


def _export(saved: SavedTables, options: argparse.Namespace) -> Answer:
    tables = answers.chosen(saved, options.table)
    if len(tables) > 1:
        names = ", ".join(f"'{table.name}'" for table in tables)
        raise errors.ArgumentError(
            f"--to writes one table; name it by --table: {names}."
        )
    (table,) = tables
    written = table_exports.export(table, options.to, limit=options.limit)
    return {
        "path": options.to,
        "table": table.name,
        "rows": written,
        "of": table.num_rows,
    }


def _show_export(path: str, written: Answer) -> None:
    del path
    rows, of = written["rows"], written["of"]
    of_all = f" of {of:,}" if rows < of else ""
    _write(
        printable(
            f"{written['path']}: {rows:,}{of_all} rows of {written['table']}"
        )
    )


def _write_report(saved: SavedTables, options: argparse.Namespace) -> Answer:
    # Only this action needs the drawing modules.
    html_report: Any = importlib.import_module("tfembed.inspection.html_report")
    html_report.write(saved, options.html, table=options.table)
    return {"path": options.html}


def _show_difference(path: str, found: Answer) -> None:
    del path
    for side in ("before", "after"):
        for name in found[f"only_{side}"]:
            _write(printable(f"{name}: only in {found[side]}"))
    for table in found["tables"]:
        _write(printable(table["name"]))
        _write_pairs(_difference_lines(table))
        if table["most_moved"]:
            _show(
                TextTable(
                    "",
                    ("moved most: key", "by"),
                    [
                        (_short_label(one["key"]), as_number(one["distance"]))
                        for one in table["most_moved"]
                    ],
                )
            )


def _difference_lines(found: Answer) -> Iterator[tuple[str, str]]:
    def keys(named: list[Key], count: int) -> str:
        if not named:
            return as_count(count)
        more = "" if count == len(named) else ", ..."
        return f"{count:,}: {', '.join(map(_short_label, named))}{more}"

    before, after = found["before"], found["after"]
    yield "keys before", as_count(before["rows"])
    yield "keys after", as_count(after["rows"])
    yield "gone", keys(found["some_gone"], found["gone"])
    yield "come", keys(found["some_come"], found["come"])
    yield "kept", as_count(found["kept"])
    if found["quantiles"] is None:
        yield (
            "rows",
            f"not compared: width {before['width']} of {before['dtype']} "
            f"before, {after['width']} of {after['dtype']} after",
        )
        return
    if not found["kept"]:
        return
    yield "unchanged", as_count(found["unchanged"])
    quantiles = ", ".join(
        f"{name} {as_number(distance)}"
        for name, distance in found["quantiles"].items()
    )
    moved = as_count(found["kept"] - found["unchanged"])
    yield "moved", f"{moved}; of all kept: {quantiles}"


# By the key of an answer: what finds it, and what shows it as text.
_ACTIONS: dict[str, tuple[Callable[..., Any], Callable[[str, Any], None]]] = {
    "file": (lambda saved, options: answers.listing(saved), _show_all),
    "table": (
        lambda saved, options: answers.table_facts(saved[options.table]),
        _show_table,
    ),
    "verified": (
        lambda saved, options: answers.verified(saved),
        _show_verified,
    ),
    "keys": (
        lambda saved, options: answers.rows_by_key(
            saved, options.table, options.key
        ),
        _show_keys,
    ),
    "top": (
        lambda saved, options: answers.top_rows(
            saved, options.table, options.top, options.count
        ),
        _show_top,
    ),
    "written": (_export, _show_export),
    "html": (
        _write_report,
        lambda path, html: _write(printable(f"{html['path']} is written.")),
    ),
    "difference": (
        lambda before, after, options: answers.changes(
            before, after, options.table, options.count
        ),
        _show_difference,
    ),
}


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
