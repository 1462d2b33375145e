"""Answers of `tfembed inspect`, which it prints as text or as JSON.

An answer is a dict; docs/formats/answers.md lists its keys. Its values may be arrays and
bytes, which text shows as they are and `as_json` converts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfembed import errors
from tfembed.inspection import difference, ranking
from tfembed.saved.saved_table import Key, SavedTable
from tfembed.saved.saved_tables import SavedTables

__all__ = [
    "Answer",
    "as_json",
    "changes",
    "chosen",
    "listing",
    "rows_by_key",
    "table_facts",
    "top_rows",
    "verified",
]

Answer = dict[str, Any]

_SHARES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99}


def as_json(answer: Mapping[str, Any]) -> str:
    """Returns an answer as JSON, ASCII alone.

    Bytes become text, in which bytes that are not UTF-8 are lone surrogates, as
    Python's "surrogateescape" makes them; numbers that are not finite are the
    texts "NaN", "Infinity" and "-Infinity".
    """
    return json.dumps(_plain(answer), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return os.fsdecode(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def chosen(saved: SavedTables, name: str | None) -> list[SavedTable]:
    """Returns the table of this name, or all tables; at least one.

    Raises:
      tfembed.errors.MissingTableError: there is none.
    """
    if name is not None:
        return [saved[name]]
    if not saved:
        raise errors.MissingTableError(f"'{saved.path}' has no table.")
    return list(saved.values())


def listing(saved: SavedTables) -> Answer:
    """Describes a file and its tables."""
    return {
        "kind": saved.kind,
        "step": saved.step,
        "number": saved.number,
        "modified": saved.modified,
        "tables": [table_facts(table) for table in saved.values()],
        "shared_names": saved.shared_names,
        "variables": [
            {"name": one.name, "shape": one.shape, "bytes": one.num_bytes}
            for one in saved.variables
        ],
    }


def table_facts(table: SavedTable) -> Answer:
    """Describes a table without reading its rows."""
    return {
        "name": table.name,
        "path": table.path,
        "rows": table.num_rows,
        "key_dtype": table.key_dtype,
        "has_vocabulary": table.has_vocabulary,
        "width": table.width,
        "dtype": table.dtype,
        "rule": table.rule,
        "slots": [
            {
                "name": name,
                "width": width,
                "initial_value": table.slot_initial_values.get(name),
            }
            for name, width in table.slot_widths.items()
        ],
        "counters": table.counters,
        "seed": table.seed,
        "policies": dict(table.policies),
        "waiting": table.num_waiting,
        "bytes": dict(table.num_bytes),
        "shards": table.shard_sizes,
    }


def verified(saved: SavedTables) -> Answer:
    """Compares all checksums; says how many bytes there are.

    Raises:
      tfembed.errors.CheckpointError: some bytes do not match.
    """
    saved.check()
    size = sum(table.total_bytes for table in saved.values())
    size += sum(variable.num_bytes for variable in saved.variables)
    return {"bytes": size, "has_checksums": saved.has_checksums}


def rows_by_key(
    saved: SavedTables, name: str | None, texts: Sequence[str]
) -> Answer:
    """Finds the rows of keys in the tables whose keys are of their kind.

    Args:
      saved: the tables.
      name: the only table to search; None: all.
      texts: the keys, as the command line has them.

    Raises:
      tfembed.errors.DtypeError: a key that no table may have.
    """
    tables = chosen(saved, name)
    taken = [[t for t in texts if _takes(table, t)] for table in tables]
    for text in texts:
        if not any(text in of_table for of_table in taken):
            _keys(tables[0], [text])  # Raises what is wrong with the first.
    found: list[Answer] = []
    there: set[str] = set()
    for table, of_table in zip(tables, taken, strict=True):
        rows = table.find(_keys(table, of_table)) if of_table else []
        for text, row in zip(of_table, rows, strict=True):
            if row is None:
                continue
            there.add(text)
            is_text = row.row.dtype == object
            found.append(
                {
                    "table": table.name,
                    "key": row.key,
                    "row": row.row,
                    "slots": row.slots,
                    "norm": None
                    if is_text
                    else float(ranking.norms(row.row[None])[0]),
                    "noted": row.counter,
                    "counters": table.counters,
                }
            )
    missing = [
        {
            "key": text,
            "tables": [
                table.name
                for table, of_table in zip(tables, taken, strict=True)
                if text in of_table
            ],
        }
        for text in texts
        if text not in there
    ]
    return {"found": found, "missing": missing}


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


def top_rows(
    saved: SavedTables, name: str | None, order: str, count: int
) -> list[Answer]:
    """Ranks the rows of the tables that have this order.

    Raises:
      The errors of `ranking.rank`, where no table has it.
    """
    tables = chosen(saved, name)
    counters = ranking.ORDERS[order]
    if len(tables) > 1:
        fit = [
            table
            for table in tables
            if (
                table.counters in counters
                if counters
                else table.dtype != "string"
            )
        ]
        # `rank` then says which counters are missing.
        tables = fit or tables[:1]
    return [
        {
            "table": table.name,
            "order": order,
            "counters": table.counters,
            "rows": [
                {"key": one.key, "score": one.score, "row": one.row}
                for one in ranking.rank(table, order, count)
            ],
        }
        for table in tables
    ]


def changes(
    before: SavedTables, after: SavedTables, name: str | None, count: int
) -> Answer:
    """Compares tables of two files, by their paths or names.

    Raises:
      tfembed.errors.MissingTableError: no table is in both.
    """
    alone: list[list[str]] = [[], []]
    if name is not None:
        pairs = [(before[name], after[name])]
    else:
        pairs = [
            (table, other)
            for table in before.values()
            if (other := _same_table(table, after)) is not None
        ]
        if len(before) == len(after) == 1 and not pairs:
            pairs = list(zip(before.values(), after.values(), strict=True))
        else:
            alone = [
                [t.name for t in one.values() if _same_table(t, two) is None]
                for one, two in ((before, after), (after, before))
            ]
    if not pairs:
        raise errors.MissingTableError(
            f"'{before.path}' and '{after.path}' have no table in common."
        )
    return {
        "before": before.path,
        "after": after.path,
        "only_before": alone[0],
        "only_after": alone[1],
        "tables": [_changed(one, two, count) for one, two in pairs],
    }


def _same_table(table: SavedTable, other: SavedTables) -> SavedTable | None:
    """Returns the table of the same path in another file, or of this name."""
    for name in (table.path, table.name):
        if name in other:
            return other[name]
    return None


def _changed(before: SavedTable, after: SavedTable, count: int) -> Answer:
    found = difference.compare(before, after, count=count)
    is_compared = found.moved is not None
    return {
        "name": before.name,
        "before": _shape(before),
        "after": _shape(after),
        "gone": found.gone,
        "come": found.come,
        "kept": found.kept,
        "unchanged": found.unchanged if is_compared else None,
        "some_gone": found.some_gone,
        "some_come": found.some_come,
        "quantiles": {
            name: found.quantile(share) for name, share in _SHARES.items()
        }
        if is_compared
        else None,
        "most_moved": [
            {"key": key, "distance": distance}
            for distance, key in found.most_moved
        ],
    }


def _shape(table: SavedTable) -> Answer:
    return {"rows": table.num_rows, "width": table.width, "dtype": table.dtype}
