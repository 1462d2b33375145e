"""One logical table without a fixed vocabulary, in one or more shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.initializers import row_initializer
from tfembed.ops import check_forward_mode
from tfembed.ops import table as table_ops
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.tables import arguments, table_snapshot
from tfembed.tables.devices import by_place
from tfembed.tables.dtypes import table_dtypes
from tfembed.tables.followed_table import group
from tfembed.tables.partition import Partitioner
from tfembed.tables.seeded_rows import SeededRows, draws_by_seed
from tfembed.tables.table_shard import ShardOptions, TableShard
from tfembed.tables.table_stats import TableStats
from tfembed.tables.trained_table import TrainedTable

__all__ = ["HashTable", "TableStats"]


class HashTable(TrainedTable):
    """Maps keys to rows of `dim` numbers.

    A missing key reads as its initial row, a function of the table's seed and
    the key alone. Rows hold the slots of one optimizer beside their value.
    `tf.train.Checkpoint` and `tf.saved_model.save` of any object that has the
    table as an attribute save it. Methods work eagerly, in `tf.function` and in
    `tf.data` maps; keys may have any shape and any value.

    Args:
      dim: width of a row; 0 keeps keys alone.
      key_dtype, value_dtype: a pair that `tfembed.tables.dtypes` lists. int32
        keys take the place of int64 ones.
      name: the table's name in errors and, without a seed, in its seed.
      initializer: what `tfembed.initializers.row_initializer` accepts, or a
        function as `SeededRows` says; the rows of that are drawn in Python, by
        lookups and `insert_missing`.
      seed: of the initial rows. None: the initializer's own; else from
        TensorFlow's global seed and the name, until a checkpoint with another
        one is restored.
      devices: one host device per shard.
      partitioner: (flat keys [n], number of shards) -> shard of each key [n];
        None: floormod(key, number of shards).
      init_size: keys to make room for at once, over all shards.
      admission: which new keys training inserts, of `tfembed.policies`; None:
        all.
      eviction: what judges the rows for `evict` and `expire`, of
        `tfembed.policies`; None: nothing is noted of them.
      expiry: when rows expire by themselves; None: when `expire` is called.
      max_size: keys that the table never exceeds, each shard its share: inserts
        make room by evicting rows that are not of their batch, by the eviction
        policy, the worst of a sample of eight for each. None: no bound.
      stochastic_rounding: whether what training and `accum` make of rows of
        float16 or bfloat16 is rounded up or down by chance, with the right
        mean, in place of to the nearest, so that small updates are not lost.
        The chance depends on seed, key, column and how many batches a shard has
        written alone; of what `accum` adds on the place in the batch too.

    Raises:
      tfembed.errors.DtypeError: dtypes that do not go together.
      tfembed.errors.ArgumentError: a width, name, seed, size, initializer, list
        of devices or rounding that is not allowed.
      tfembed.errors.UnsupportedError: a device that is no CPU, `max_size` with
        BloomAdmission, or such a function with a policy.
    """

    def __init__(
        self,
        dim: int,
        *,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        name: str,
        initializer: Any = None,
        seed: int | None = None,
        devices: Sequence[str] = ("/CPU:0",),
        partitioner: Partitioner | None = None,
        init_size: int = 0,
        admission: AdmissionPolicy | None = None,
        eviction: EvictionPolicy | None = None,
        expiry: Expiry | None = None,
        max_size: int | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        arguments.check_name(name)
        keys, values = table_dtypes(key_dtype, value_dtype)
        if values == tf.string:
            raise errors.DtypeError(
                f"Rows of strings are kept by a StringTable; got value_dtype "
                f"string for HashTable '{name}'."
            )
        dim = checks.integer(dim, "dim", least=0, owner=f"table '{name}'")
        devices = arguments.check_devices(devices, name)
        drawn = None
        if draws_by_seed(initializer, dim):
            policies = (admission, eviction, expiry, max_size)
            arguments.check_drawn_alone(policies, name)
            drawn = SeededRows(initializer, dim, values, name)
        described = row_initializer(None if drawn else initializer, dim)
        arguments.check_initializer(described, values, name)
        seed = described.seed if seed is None else seed
        options = ShardOptions(
            name=name,
            dim=dim,
            initializer=dataclasses.replace(described, seed=None),
            seed=arguments.table_seed(seed, name),
            init_size=arguments.rows_per_shard(init_size, len(devices), name),
            key_dtype=keys.name,
            value_dtype=values.name,
            stochastic_rounding=arguments.check_rounding(
                stochastic_rounding, values, name
            ),
            **arguments.policy_options(admission, eviction, expiry, name),
        )
        arguments.check_bounded_admission(max_size, admission, name)
        bounds = arguments.shard_bounds(max_size, eviction, len(devices), name)
        shards = [
            TableShard(dataclasses.replace(options, max_size=bound), device)
            for bound, device in zip(bounds, devices, strict=True)
        ]
        super().__init__(shards, partitioner, seed_is_given=seed is not None)
        self.set_policies(admission, eviction, expiry)
        self._drawn_rows = drawn

    def lookup(self, keys: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows of `keys`; inserts nothing.

        Args:
          keys: of `key_dtype`, any shape.

        Returns:
          values: of `value_dtype`, keys.shape + [dim]; a missing key's initial row.
          exists: bool, keys.shape.

        Raises:
          tfembed.errors.DtypeError: keys of another dtype.
          tfembed.errors.UnsupportedError: an accumulator of forward mode.
        """
        keys = self._key_tensor(keys)
        check_forward_mode([self.handle])
        parts = self.partition(keys)
        found = [
            table_ops.lookup(
                handle, part, dim=self.dim, value_dtype=self.value_dtype
            )
            for handle, part in zip(
                self.handles, parts.split(keys), strict=True
            )
        ]
        values, exists = (parts.merge(x) for x in zip(*found, strict=True))
        return self.with_drawn_rows(keys, values, exists), exists

    def upsert(self, keys: Any, values: Any) -> tf.Operation | None:
        """Writes the rows of `keys`; of a repeated key the last one stays.

        Args:
          keys: of `key_dtype`, any shape.
          values: of `value_dtype`, keys.shape + [dim].

        Raises:
          tfembed.errors.DtypeError: another dtype.
          tf.errors.InvalidArgumentError: values of another shape. Nothing is
            changed.
        """
        keys, values = self._keys_and_rows(keys, values)
        return self._write(table_ops.upsert, keys, values)

    def accum(
        self,
        keys: Any,
        values_or_deltas: Any,
        exists: Any,
        old_values: Any = None,
    ) -> tf.Operation | None:
        """Adds to rows that are there, inserts rows that are not.

        Args:
          keys: of `key_dtype`, any shape.
          values_or_deltas: of `value_dtype`, keys.shape + [dim]: a delta where `exists`,
            else a value.
          exists: bool, keys.shape: what a lookup said. Where it no longer
            holds, the key is left alone.
          old_values: of `value_dtype`, keys.shape + [dim]: then what comes
            first are values, and deltas are their difference from these.

        Raises:
          As `upsert`.
        """
        keys, rows = self._keys_and_rows(keys, values_or_deltas)
        exists = tf.convert_to_tensor(exists, tf.bool)
        checks.shape("exists", exists, keys.shape)
        batch = [keys, rows, exists]
        if old_values is not None:
            batch.append(self._keys_and_rows(keys, old_values)[1])
        return self._write(table_ops.accum, *batch)

    def remove(self, keys: Any) -> tf.Operation | None:
        """Removes `keys`, of any shape; those not there are ignored.

        Followers lose them too, whether the table held them or not.
        """
        keys = self._key_tensor(keys)
        return group([self._remove(keys), *self.forget(keys)])

    def clear(self) -> tf.Operation | None:
        """Removes all keys, of followers too, and gives their memory back."""
        handles = [h for t in [self, *self.followers] for h in t.handles]
        return group(
            [
                table_ops.clear([handles[i] for i in together])
                for together in by_place(handles)
            ]
        )

    def size(self, shard: int | None = None) -> tf.Tensor:
        """The number of keys, int64 [], of one shard or of all."""
        if shard is not None:
            return table_ops.size(self.handles[shard])
        return tf.add_n([table_ops.size(h) for h in self.handles])

    def stats(self) -> TableStats:
        """What the table holds, takes and was used for; eager only.

        It walks through the indexes, 20 bytes a key.

        Raises:
          tfembed.errors.UnsupportedError: in a function or a graph.
        """
        if not tf.executing_eagerly():
            raise errors.UnsupportedError(
                f"`stats` of table '{self.name}' are Python numbers; ask for "
                "them in eager mode, outside of tf.function. `size` works "
                "everywhere."
            )
        return TableStats.of_shards(
            TableStats(
                *(int(n) for n in table_ops.stats(handle)),
                *table_ops.use(handle).numpy().tolist(),
            )
            for handle in self.handles
        )

    @property
    def bytes_per_key(self) -> float:
        """`stats().bytes_per_key`."""
        return self.stats().bytes_per_key

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys [n] and values [n, dim], shard after shard, of one moment.

        Of all shards together, where they lie on one device. It makes a second
        copy of the table; checkpoints do not.
        """
        keys, values, *_ = self.export_columns()
        return keys, values

    def export_slots(
        self, shard: int | None = None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """All keys [n], or a shard's, and each slot's rows, by the slot's name.

        A slot's rows are [n, dim], or [n, 1] where it is one float a row.
        """
        keys, _, *columns = self.export_columns(shard)
        return keys, dict(zip(self.slot_names, columns, strict=True))

    def export_columns(self, shard: int | None = None) -> list[tf.Tensor]:
        """Keys [n], values [n, dim], and the rows of each slot.

        Of one shard or of all, of one moment as `table_snapshot.take` says; a
        second copy of the table.
        """
        shards = self.shards if shard is None else [self.shards[shard]]
        return table_snapshot.take(self, shards, only_rows=True).columns

    def replace(
        self, keys: tf.Tensor, columns: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Has the table hold these rows and no others; for graphs.

        What follows the table is restored by itself, before or after, or else
        loses what the table does not hold.

        Args:
          keys: distinct ones [n].
          columns: values [n, dim], and nothing or the rows of all slots.
        """
        values, *slots = columns
        partition = self.partition(keys)
        parts = partition.split(keys)
        checks = self.check_bounds(parts, even_alone=True)
        rows = values
        if slots:
            rows = tf.concat([tf.cast(values, tf.float32), *slots], 1)
        each = list(
            zip(self.handles, parts, partition.split(rows), strict=True)
        )
        with tf.control_dependencies([*checks, *self.lay_out_slots()]):
            written = [
                table_ops.replace(
                    *zip(*(each[i] for i in together), strict=True),
                    trained=bool(slots),
                )
                for together in by_place(self.handles)
            ]
        with tf.control_dependencies(written):
            dropped = [follower.drop_stale() for follower in self.followers]
        return tf.group(*written, *dropped)

    def _write(self, op: Any, *batch: tf.Tensor) -> Any:
        """Runs `op` for each shard on its part of `batch`: keys, then rows."""
        parts = self.partition(batch[0])
        split = [parts.split(tensor) for tensor in batch]
        # Where there are followers, before they are changed.
        checks = [
            *parts.checks,
            *self.check_bounds(split[0], even_alone=bool(self.followers)),
        ]
        with tf.control_dependencies(checks):
            forgotten = self.forget_evicted(batch[0])
        with tf.control_dependencies([*checks, *forgotten]):
            shards = zip(self.handles, *split, strict=True)
            written = group([op(*shard) for shard in shards])
        return self._swept(written)
