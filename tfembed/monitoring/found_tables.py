"""Finds the tables of a model, an embedding, or any other trackable object."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.embedding import (
    TPUEmbedding,
    TPUEmbeddingForServing,
    TPUEmbeddingV0,
)
from tfembed.saved.saved_table import table_name
from tfembed.tables.sharded_table import ShardedTable

__all__ = ["FoundTable", "coming_tables", "find_tables", "require_tables"]

_EMBEDDINGS = (TPUEmbedding, TPUEmbeddingForServing, TPUEmbeddingV0)


@dataclasses.dataclass(frozen=True, eq=False)
class FoundTable:
    """A table, with its slots and optimizer.

    Attributes:
      name: the table's name; its path where several tables have that name.
      rows: a HashTable, a StringTable, or variables of all rows.
      slots: slot variables by name; empty for a HashTable, which has its own.
      optimizer: the update rule; None without one, or where the table has it.
      skipped_updates: the number of row updates skipped because the gradient
        was not finite; None: not counted.
      shared_name: the name that this table shares with others.
    """

    name: str
    rows: Any
    slots: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Any = None
    skipped_updates: int | None = None
    shared_name: str | None = None


def find_tables(source: Any) -> list[FoundTable]:
    """Finds all tables of an object, each once, in the order of their owners.

    Args:
      source: a table, an object that has tables (an embedding, a Variable, a
        Keras layer or model, anything that `tf.train.Checkpoint` saves), or a
        list or dict of such objects.
    """
    found: dict[int, tuple[Any, FoundTable]] = {}
    seen: set[int] = set()
    for one in _objects(source, seen):
        for table in _tables_of(one):
            found.setdefault(id(table.rows), (one, table))
    count = collections.Counter(table.name for _, table in found.values())
    if all(number == 1 for number in count.values()):
        return [table for _, table in found.values()]
    return _told_apart(list(found.values()), count, _paths(source))


def coming_tables(source: Any) -> list[Any]:
    """Returns the TableConfigs of tables that are not made yet, by owner.

    Embeddings make their tables at the first step or lookup, or by `build`.

    Args:
      source: as for `find_tables`.
    """
    return [
        config
        for one in _objects(source, set())
        if isinstance(one, _EMBEDDINGS) and not _is_made(one)
        for config in one._table_config
    ]


def require_tables(source: Any) -> list[FoundTable]:
    """Returns the tables that `find_tables` finds.

    Raises:
      tfembed.errors.ArgumentError: `source` has no table.
    """
    found = find_tables(source)
    if not found:
        raise errors.ArgumentError(
            f"There is no table in {source!r}. Give a TPUEmbedding that is "
            "built, a dynamic_embedding.Variable, a HashTable, a Keras layer "
            "or model that has some, a list or dict of these, or the path of "
            "a checkpoint. Layers and embeddings have tables once they saw ids."
        )
    return found


def _is_made(embedding: Any) -> bool:
    """Whether an embedding has its tables."""
    if isinstance(embedding, TPUEmbedding):
        return bool(embedding.made_tables())
    return bool(embedding._built)


def _tables_of(one: Any) -> Iterator[FoundTable]:
    """Yields the tables that `one` has, or `one` itself if it is a table."""
    if isinstance(one, Variable):
        yield FoundTable(table_name(one.name), one.table)
    elif isinstance(one, ShardedTable):
        yield FoundTable(table_name(one.name), one)
    elif isinstance(one, TPUEmbedding):
        for name, (table, optimizer, size) in one.made_tables().items():
            yield FoundTable(
                name,
                table.parameters,
                table.slots,
                optimizer,
                size.nonfinite_rows,
            )
    elif isinstance(one, _EMBEDDINGS) and _is_made(one):
        for config, rows in one.embedding_tables.items():
            rows = rows.table if isinstance(rows, Variable) else rows
            yield FoundTable(config.name, rows)


def _told_apart(
    found: list[tuple[Any, FoundTable]],
    count: Mapping[str, int],
    paths: Mapping[int, str],
) -> list[FoundTable]:
    """Returns the tables, with paths as names where a name comes twice."""
    tables = []
    taken = {name for name, number in count.items() if number == 1}
    for owner, table in found:
        name = table.name
        if count[name] > 1:
            path = f"{paths.get(id(owner), '')}/{name}".lstrip("/")
            name, n = path, 1
            while name in taken:  # Several tables without a path.
                n += 1
                name = f"{path} ({n})"
            taken.add(name)
            table = dataclasses.replace(
                table, name=name, shared_name=table.name
            )
        tables.append(table)
    return tables


def _paths(source: Any) -> dict[int, str]:
    """Returns the shortest path to each object in `source`, by object id."""
    found: dict[int, str] = {}
    left = collections.deque([("", source)])
    while left:
        path, one = left.popleft()
        if id(one) in found:
            continue
        found[id(one)] = path
        children: Mapping[Any, Any] = {}
        if isinstance(one, tf.__internal__.tracking.Trackable):
            children = tf.train.TrackableView.children(one)
        elif isinstance(one, Mapping):
            children = one
        elif isinstance(one, (list, tuple)):
            children = dict(enumerate(one))
        for name, child in children.items():
            left.append((f"{path}/{name}" if path else str(name), child))
    return found


def _objects(source: Any, seen: set[int]) -> Iterator[Any]:
    """Yields `source` and all objects below it, owners first."""
    if id(source) in seen:
        return
    seen.add(id(source))
    if isinstance(source, Mapping):
        source = list(source.values())
    if isinstance(source, (list, tuple)):
        for one in source:
            yield from _objects(one, seen)
        return
    yield source
    if isinstance(source, (*_EMBEDDINGS, ShardedTable)):
        return
    if isinstance(source, tf.__internal__.tracking.Trackable):
        for one in tf.train.TrackableView(source).descendants():
            yield from _attributes(one, seen)


def _attributes(one: Any, seen: set[int]) -> Iterator[Any]:
    """Yields a trackable object, and its tables that it does not track."""
    yield from _unseen(one, seen)
    for value in list(vars(one).values()) if hasattr(one, "__dict__") else []:
        if isinstance(value, (*_EMBEDDINGS, Variable, ShardedTable)):
            yield from _unseen(value, seen)


def _unseen(one: Any, seen: set[int]) -> Iterator[Any]:
    if id(one) not in seen:
        seen.add(id(one))
        yield one
