"""The tables of a model, an embedding, or whatever else holds some."""

from __future__ import annotations

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
from tfembed.tables.sharded_table import ShardedTable

__all__ = ["FoundTable", "find_tables", "require_tables"]

_EMBEDDINGS = (TPUEmbedding, TPUEmbeddingForServing, TPUEmbeddingV0)


@dataclasses.dataclass(frozen=True, eq=False)
class FoundTable:
    """A table, and what its owner knows of it.

    Attributes:
      name: the table's.
      rows: a HashTable, a StringTable, or variables of all rows.
      slots: variables beside these, by name; a HashTable keeps its own.
      optimizer: its update rule; None where it has none, or keeps it itself.
      skipped_updates: of rows whose gradients were not finite; None: not
        counted.
    """

    name: str
    rows: Any
    slots: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Any = None
    skipped_updates: int | None = None


def find_tables(source: Any) -> list[FoundTable]:
    """Finds all tables of an object, each once, in the order of their owners.

    Args:
      source: a table, an object that has tables (an embedding, a Variable, a
        Keras layer or model, anything that `tf.train.Checkpoint` saves), or a
        list or dict of such objects.
    """
    found: dict[int, FoundTable] = {}
    seen: set[int] = set()
    for one in _objects(source, seen):
        for table in _tables_of(one):
            found.setdefault(id(table.rows), table)
    return list(found.values())


def require_tables(source: Any) -> list[FoundTable]:
    """The tables that `find_tables` finds.

    Raises:
      tfembed.errors.ArgumentError: there is none.
    """
    found = find_tables(source)
    if not found:
        raise errors.ArgumentError(
            f"There is no table in {source!r}. Give a TPUEmbedding that is "
            "built, a dynamic_embedding.Variable, a HashTable, a Keras layer "
            "or model that has some, a list or dict of these, or the path of "
            "a checkpoint."
        )
    return found


def _tables_of(one: Any) -> Iterator[FoundTable]:
    """The tables that `one` itself has, or is."""
    if isinstance(one, Variable):
        yield FoundTable(one.name, one.table)
    elif isinstance(one, ShardedTable):
        yield FoundTable(one.name, one)
    elif isinstance(one, TPUEmbedding):
        for name, (table, optimizer, size) in one.made_tables().items():
            yield FoundTable(
                name,
                table.parameters,
                table.slots,
                optimizer,
                size.nonfinite_rows,
            )
    elif isinstance(one, _EMBEDDINGS) and one._built:
        for config, rows in one.embedding_tables.items():
            rows = rows.table if isinstance(rows, Variable) else rows
            yield FoundTable(config.name, rows)


def _objects(source: Any, seen: set[int]) -> Iterator[Any]:
    """`source` and all below it, owners before what they own."""
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
    """A trackable object, and tables that it has and does not track."""
    yield from _unseen(one, seen)
    for value in list(vars(one).values()) if hasattr(one, "__dict__") else []:
        if isinstance(value, (*_EMBEDDINGS, Variable, ShardedTable)):
            yield from _unseen(value, seen)


def _unseen(one: Any, seen: set[int]) -> Iterator[Any]:
    if id(one) not in seen:
        seen.add(id(one))
        yield one
