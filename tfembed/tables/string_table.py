"""A table whose rows are strings: kept and looked up, not trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfembed import checks, errors
from tfembed.tables import arguments
from tfembed.tables.followers import group
from tfembed.tables.partition import Partitioner
from tfembed.tables.sharded_table import ShardedTable, TableShard

__all__ = ["StringOptions", "StringShard", "StringTable"]


@dataclasses.dataclass(frozen=True)
class StringOptions:
    """The options that a shard of strings is created from.

    Attributes:
      name: the table's name.
      dim: strings per row.
      missing: the row of missing keys, each string's bytes as hexadecimal text.
      key_dtype, value_dtype: the names of the table's dtypes.
      seed: 0; no row is drawn.
    """

    name: str
    dim: int
    missing: tuple[str, ...]
    key_dtype: str = "int64"
    value_dtype: str = "string"
    seed: int = 0  # No row is drawn.

    def missing_row(self) -> list[bytes]:
        """Returns the row of missing keys."""
        return [bytes.fromhex(text) for text in self.missing]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields in a form that `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StringOptions:
        """Reads what `to_json` gave, after a round through JSON text."""
        return cls(**{**fields, "missing": tuple(fields["missing"])})


class StringShard(TableShard):
    """Owns a `MutableHashTableOfTensors`, named and freed as any `TableShard`.

    Its rows have one more column than the table's, which says that the row
    exists.
    """

    _OPTIONS = StringOptions

    def _create_resource(self) -> tf.Tensor:
        arguments = {
            "key_dtype": tf.int64,
            "value_dtype": tf.string,
            "value_shape": [self.options.dim + 1],
        }
        if tf.executing_eagerly():
            return tf.raw_ops.AnonymousMutableHashTableOfTensors(**arguments)
        return tf.raw_ops.MutableHashTableOfTensorsV2(
            shared_name=self._name_in_graph(), **arguments
        )


_THERE = b"1"  # The last column of each row; "" for a missing key.


def _refusing(what: str) -> Callable[..., NoReturn]:
    """Makes a method that raises UnsupportedError: strings have no `what`."""

    def method(self: StringTable, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.UnsupportedError(
            f"Table '{self.name}' has rows of strings, which have no {what}. "
            "They are kept and looked up; read and upsert them."
        )

    return method


class StringTable(ShardedTable):
    """Maps int64 keys to rows of `dim` strings, of any bytes and length.

    Rows lie in TensorFlow's own hash tables, one a shard, and are saved by
    `tf.train.Checkpoint` and `tf.saved_model.save` as those of a `HashTable`,
    into any number of shards; a save takes a copy in memory. A batch is atomic
    per shard. Methods work eagerly, in `tf.function` and in `tf.data` maps;
    keys may have any shape and any value.

    Args:
      dim: strings of a row; 0 keeps keys alone.
      name: the table's name in errors.
      initializer: the row of missing keys: a string, or `dim` strings; None:
        "".
      devices: one host device per shard.
      partitioner: as in `HashTable`.

    Raises:
      tfembed.errors.ArgumentError: a width, name, list of devices or
        initializer that is not allowed.
      tfembed.errors.UnsupportedError: a device that is not a CPU.
    """

    # Attributes of a HashTable that a table of strings does not have.
    optimizer = admission = eviction = expiry = max_size = None

    def __init__(
        self,
        dim: int,
        *,
        name: str,
        initializer: Any = None,
        devices: Sequence[str] = ("/CPU:0",),
        partitioner: Partitioner | None = None,
    ) -> None:
        arguments.check_name(name)
        dim = checks.integer(dim, "dim", least=0, owner=f"table '{name}'")
        options = StringOptions(
            name=name, dim=dim, missing=_missing_row(initializer, dim, name)
        )
        shards = [
            StringShard(options, device)
            for device in arguments.check_devices(devices, name)
        ]
        super().__init__(shards, partitioner, seed_is_given=True)

    def read_rows(self, keys: Any) -> tf.Tensor:
        """Returns the rows of `lookup` alone."""
        return self.lookup(keys)[0]

    def lookup(
        self, keys: Any, shard: int | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of `keys`; inserts nothing.

        Args:
          keys: int64, any shape.
          shard: the shard that has all the keys; None: the keys are dealt to
            shards.

        Returns:
          values: strings, keys.shape + [dim]; a missing key has the
            initializer's row.
          exists: bool, keys.shape.

        Raises:
          tfembed.errors.DtypeError: keys of another dtype.
        """
        keys = self._key_tensor(keys)
        default = tf.constant([*self.shards[0].options.missing_row(), b""])

        def read(handle: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            rows = tf.raw_ops.LookupTableFindV2(
                table_handle=handle, keys=keys, default_value=default
            )
            rows.set_shape(keys.shape.concatenate([self.dim + 1]))
            return rows

        if shard is not None:
            rows = read(self.handles[shard], keys)
        else:
            parts = self.partition(keys)
            shards = zip(self.handles, parts.split(keys), strict=True)
            rows = parts.merge([read(*each) for each in shards])
        return rows[..., :-1], tf.equal(rows[..., -1], _THERE)

    def upsert(self, keys: Any, values: Any) -> tf.Operation | None:
        """Writes the rows of `keys`; the last row of a repeated key wins.

        Args:
          keys: int64, any shape.
          values: strings, keys.shape + [dim].

        Raises:
          tfembed.errors.DtypeError: another dtype.
          tf.errors.InvalidArgumentError: values of another shape. Nothing is
            changed.
        """
        keys = self._key_tensor(keys)
        rows = arguments.value_tensor(values, self.value_dtype, self.name)
        arguments.check_rows(keys, rows, self.dim, self.name)
        wanted = tf.concat([tf.shape(keys), [self.dim]], 0)
        fits = checks.run_shape(
            rows,
            wanted,
            f"Expected shape keys.shape + [{self.dim}] for the values of table "
            f"'{self.name}'",
        )
        with tf.control_dependencies(fits):
            there = tf.fill(tf.concat([tf.shape(keys), [1]], 0), _THERE)
            rows = tf.concat([rows, there], -1)
        parts = self.partition(keys)
        shards = zip(
            self.handles, parts.split(keys), parts.split(rows), strict=True
        )
        with tf.control_dependencies(parts.checks):
            return group(
                [
                    tf.raw_ops.LookupTableInsertV2(
                        table_handle=handle, keys=part, values=part_rows
                    )
                    for handle, part, part_rows in shards
                ]
            )

    def remove(self, keys: Any) -> tf.Operation | None:
        """Removes `keys`, of any shape; missing keys are ignored."""
        keys = self._key_tensor(keys)
        parts = self.partition(keys)
        return group(
            [
                tf.raw_ops.LookupTableRemoveV2(
                    table_handle=handle, keys=tf.reshape(part, [-1])
                )
                for handle, part in zip(
                    self.handles, parts.split(keys), strict=True
                )
            ]
        )

    def clear(self) -> tf.Operation | None:
        """Removes all keys."""
        return group(
            [
                tf.raw_ops.LookupTableImportV2(
                    table_handle=handle,
                    keys=tf.zeros([0], tf.int64),
                    values=tf.zeros([0, self.dim + 1], tf.string),
                )
                for handle in self.handles
            ]
        )

    def size(self, shard: int | None = None) -> tf.Tensor:
        """Returns the number of keys, int64 [], of one shard or of all."""
        handles = self.handles if shard is None else [self.handles[shard]]
        return tf.add_n(
            [tf.raw_ops.LookupTableSizeV2(table_handle=h) for h in handles]
        )

    def keys(self) -> tf.Tensor:
        """Returns all keys [n], shard after shard."""
        return self.export()[0]

    def contains(self, keys: Any) -> tf.Tensor:
        """Says which of `keys`, of any shape, are present: bool, keys.shape."""
        return self.lookup(keys)[1]

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys [n] and values [n, dim], shard after shard."""
        keys, values = self.export_columns()
        return keys, values

    def export_columns(self, shard: int | None = None) -> list[tf.Tensor]:
        """Returns keys [n] and values [n, dim], of one shard or of all."""
        handles = self.handles if shard is None else [self.handles[shard]]
        # One shard after the other: memory holds a copy of one shard, not of
        # all.
        each = [self._export(handle) for handle in handles]
        if len(each) == 1:
            return list(each[0])
        return [tf.concat(x, 0) for x in zip(*each, strict=True)]

    def _export(self, handle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        keys, rows = tf.raw_ops.LookupTableExportV2(
            table_handle=handle, Tkeys=tf.int64, Tvalues=tf.string
        )
        rows = tf.reshape(rows, [-1, self.dim + 1])
        return tf.reshape(keys, [-1]), rows[:, :-1]

    def replace(
        self, keys: tf.Tensor, columns: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Replaces the content of the table, as `HashTable.replace`."""
        (values,) = columns
        with tf.control_dependencies([self.clear()]):
            return self.upsert(keys, values)

    def accum(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises DtypeError: strings cannot be added."""
        raise errors.DtypeError(
            f"Values of table '{self.name}' are strings and cannot be "
            "accumulated; write them with `upsert`."
        )

    attach = detach = _refusing("optimizers")
    apply_gradients = _refusing("gradients")
    lookup_trained = _refusing("slots")
    write_trained = _refusing("slots")
    export_slots = _refusing("slots")
    let_follow = _refusing("restrict policies")
    evict = _refusing("eviction")
    expire = _refusing("expiry")
    stats = _refusing("count of their bytes")

    def _held_in_words(self) -> str:
        return f"{int(self.size()):,} rows"


def _missing_row(initializer: Any, dim: int, table: str) -> tuple[str, ...]:
    """Returns the row of missing keys as `StringOptions.missing` has it."""
    if tf.is_tensor(initializer):
        initializer = tf.get_static_value(initializer)
    array = np.asarray("" if initializer is None else initializer, object)
    if array.shape not in ((), (1,), (dim,)) or not all(
        isinstance(x, (str, bytes)) for x in array.ravel()
    ):
        raise errors.ArgumentError(
            f"`initializer` of table '{table}', whose rows are strings, must be "
            f"a string or {dim} of them; got {initializer!r}."
        )
    row = np.broadcast_to(array, [dim]).tolist()
    return tuple((x.encode() if isinstance(x, str) else x).hex() for x in row)
