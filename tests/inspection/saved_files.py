"""Files with tables of every kind, and what is in them, for tests."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

import tfembed


@dataclasses.dataclass(frozen=True)
class Content:
    """A table's content when it was saved: rows, and slots by name, by key."""

    rows: dict[Any, np.ndarray]
    slots: dict[str, dict[Any, np.ndarray]]


def content_of(table: tfembed.HashTable) -> Content:
    """Returns the content of a hash table, by the table itself."""
    keys, rows, *slots = (c.numpy() for c in table.export_columns())
    keys = keys.tolist()
    by_key = [dict(zip(keys, column, strict=True)) for column in (rows, *slots)]
    names = table.slot_names
    return Content(by_key[0], dict(zip(names, by_key[1:], strict=True)))


def assert_same(saved: Any, content: Content) -> None:
    """A table of a file has these rows and slots, and no others."""
    found: dict[Any, np.ndarray] = {}
    slots: dict[str, dict[Any, np.ndarray]] = {n: {} for n in content.slots}
    for chunk in saved.chunks():
        keys = chunk.keys.tolist()
        found |= dict(zip(keys, chunk.rows, strict=True))
        for name, of_chunk in chunk.slots.items():
            slots[name] |= dict(zip(keys, of_chunk, strict=True))
    assert saved.num_rows == len(content.rows)
    _assert_equal(found, content.rows)
    assert set(slots) == set(saved.slot_names)
    for name, of_table in content.slots.items():
        _assert_equal(slots[name], of_table)


def _assert_equal(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        if row.dtype != object:
            row = row.astype(found[key].dtype)
        np.testing.assert_array_equal(found[key], row)


def users(num_keys: int = 1000, **arguments: Any) -> tfembed.HashTable:
    """A trained table of int64 keys, width 4."""
    table = tfembed.HashTable(
        4, name="users", seed=7, initializer="glorot_normal", **arguments
    )
    table.attach(tfembed.Adagrad(0.1))
    rng = np.random.default_rng(1)
    keys = rng.choice(1 << 40, num_keys, replace=False) - (1 << 39)
    table.upsert(keys, rng.normal(size=(num_keys, 4)).astype(np.float32))
    return table


def names(dtype: tf.DType = tf.float32) -> tfembed.HashTable:
    """A table of string keys, width 2."""
    table = tfembed.HashTable(
        2, name="names", key_dtype=tf.string, value_dtype=dtype
    )
    keys = ["alice", "bob", "", "x" * 300, "ä\n", "b\0c"]
    rows = np.arange(2 * len(keys)).reshape(-1, 2)
    table.upsert(tf.constant(keys), tf.cast(rows, dtype))
    return table


def save(path: pathlib.Path, **tables: Any) -> str:
    """A checkpoint of tables, by their attributes; its prefix."""
    module = tf.Module()
    for name, table in tables.items():
        setattr(module, name, table)
    return tf.train.Checkpoint(model=module).write(str(path))
