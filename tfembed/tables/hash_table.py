"""One logical table without a fixed vocabulary, in one or more shards."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfembed import checks, errors, optimizers
from tfembed.cluster.owners import by_device, host_device
from tfembed.cluster.row_exchange import RowExchange
from tfembed.initializers import known_fan_in, table_initializer
from tfembed.ops import check_forward_mode, grouped, private
from tfembed.ops import table as table_ops
from tfembed.ops.gradients import (
    refuse_nonfinite,
    shrink_factor,
    with_finite_rows,
)
from tfembed.ops.ids import wide_ids
from tfembed.ops.private import number_tensor
from tfembed.optimizers.interface import is_schedule
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.policies.admission import as_admission
from tfembed.policies.eviction import check_limit
from tfembed.tables import arguments
from tfembed.tables.arguments import check_trained, table_dtypes
from tfembed.tables.followers import Followers, group
from tfembed.tables.partition import Partitioner
from tfembed.tables.rule_state import RuleState
from tfembed.tables.seeded_rows import SeededRows, draws_by_seed
from tfembed.tables.sharded_table import (
    NumberShard,
    ShardedTable,
    ShardOptions,
    TableShard,
    note_read,
)
from tfembed.tables.table_stats import TableStats
from tfembed.units import as_bytes

__all__ = [
    "EvictedRows",
    "HashTable",
    "KeyGradient",
    "TableContent",
    "TableStats",
    "take",
    "update_by_key",
]


class TableContent(NamedTuple):
    """A copy of a table's content.

    Attributes:
      columns: keys [n], values [n, dim], and the rows of each slot,
        [n, dim or 1]; shard after shard.
      notes: the notes of its policies: the attributes of
        `tfembed.ops.table.TableSnapshot` from `notes` on.
    """

    columns: list[tf.Tensor]
    notes: list[tf.Tensor]


def take(
    table: Any, shards: Sequence[TableShard], *, only_rows: bool = False
) -> TableContent:
    """Copies `shards` of a `HashTable` at one moment.

    A kernel can lock only the shards of its own device. If the shards lie on
    several devices, as on parameter servers, each run of consecutive shards on
    one device is copied at one moment.

    Args:
      table: the table that has the shards.
      shards: the shards to copy.
      only_rows: whether to leave out the policies' notes, which are empty then.
    """
    note_read(table)
    with tf.control_dependencies(table.lay_out_slots()):
        taken = [
            table_ops.snapshot(
                [shard.resource_handle for shard in together],
                key_dtype=table.key_dtype,
                value_dtype=table.value_dtype,
                only_rows=only_rows,
            )
            for _, together in itertools.groupby(
                shards,
                key=lambda shard: host_device(shard.resource_handle.device),
            )
        ]
    whole = taken[0]
    if len(taken) > 1:
        *parts, kinds = zip(*taken, strict=True)
        whole = table_ops.TableSnapshot._make(
            [*(tf.concat(part, 0) for part in parts), kinds[0]]
        )
    keys, values, slots, *notes = whole
    columns = [keys, values]
    if table.slot_names:
        columns += tf.split(slots, table.slot_widths, 1)
    return TableContent(columns, notes)


_TRAINABLE = (tf.float32, tf.float16, tf.bfloat16)

_DETACH = (
    "let the first one and its slots go by `table.detach()` (of a Variable "
    "`variable.table.detach()`), which keeps the rows"
)


def _norm_limits(optimizer: Any) -> tuple[float | None, float | None]:
    """Returns the `clipnorm` and `global_clipnorm` of an optimizer."""
    return (
        getattr(optimizer, "clipnorm", None),
        getattr(optimizer, "global_clipnorm", None),
    )


class EvictedRows(NamedTuple):
    """The rows that were removed.

    Attributes:
      keys: keys of the table's key dtype, [n].
      values: values of its value dtype, [n, dim]; None unless
        `return_values` was set.
    """

    keys: tf.Tensor
    values: tf.Tensor | None


class HashTable(ShardedTable):
    """Maps keys to rows of `dim` numbers.

    A missing key reads as its initial row, a function of the table's seed and
    the key alone. Rows hold the slots of one optimizer beside their value.
    `tf.train.Checkpoint` and `tf.saved_model.save` of any object that has the
    table as an attribute save it. Methods work eagerly, in `tf.function` and in
    `tf.data` maps; keys may have any shape and any value.

    Args:
      dim: width of a row; 0 keeps keys alone.
      key_dtype, value_dtype: a pair that `tfembed.tables.arguments` lists.
        Methods of a table of int64 keys take int32 keys too.
      name: the table's name in errors and, without a seed, in its seed.
      initializer: what `tfembed.initializers.row_initializer` accepts, or a
        function as described at `SeededRows`, which lookups and
        `insert_missing` call to draw rows.
      seed: the seed of the initial rows. None: the initializer's seed; if it
        has none, a seed from TensorFlow's global seed and the name, which a
        restored checkpoint replaces by its own.
      devices: one host device per shard.
      partitioner: (flat keys [n], number of shards) -> shard of each key [n];
        None: floormod(key, number of shards).
      init_size: keys to make room for at once, over all shards.
      admission: a policy of `tfembed.policies` that decides which new keys
        training inserts, or n for `CountAdmission(n)`; None: all.
      eviction: a policy of `tfembed.policies` that ranks the rows for `evict`
        and `expire`; None: the table keeps no notes of its rows' use.
      expiry: when rows expire by themselves; None: only when `expire` is
        called.
      max_size: the most keys that the table may hold, divided among its shards.
        An insert into a full shard evicts the worst of eight sampled rows, by
        the eviction policy, but no row of its own batch. None: no bound.
      stochastic_rounding: whether rows of float16 or bfloat16 are rounded up or
        down at random, with the right mean, when training and `accum` write
        them, so that small updates are not lost; False: to the nearest. The
        random bits depend only on the seed, the key, the column and the number
        of batches that the shard has written; for `accum` also on the position
        in the batch.
      fan_in: the number of rows by which VarianceScaling, Glorot, He and Lecun
        scale new rows, as Keras does by `input_dim`. None: `max_size`, else
        `init_size`, else 1, of which a warning tells.

    Raises:
      tfembed.errors.DtypeError: dtypes that do not go together.
      tfembed.errors.ArgumentError: a width, name, seed, size, initializer, list
        of devices or rounding that is not allowed.
      tfembed.errors.UnsupportedError: a device that is not a CPU, `max_size`
        with BloomAdmission, or a `SeededRows` function with a policy.
    """

    # None while no optimizer is attached, as in a table from a SavedModel.
    _optimizer: Any = None
    _drawn_rows: SeededRows | None = None
    # None in a table from a SavedModel, which is not trained.
    _admission: AdmissionPolicy | None = None
    _eviction: EvictionPolicy | None = None
    _expiry: Expiry | None = None
    _trained_steps: Any = None  # A variable if the expiry counts steps.
    _is_exporting = False
    _followers: Followers | None = None
    _rule_state: RuleState | None = None

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
        admission: AdmissionPolicy | int | None = None,
        eviction: EvictionPolicy | None = None,
        expiry: Expiry | None = None,
        max_size: int | None = None,
        stochastic_rounding: bool = False,
        fan_in: int | None = None,
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
        admits: AdmissionPolicy | None = as_admission(admission)
        drawn = None
        if draws_by_seed(initializer, dim):
            policies = (admits, eviction, expiry, max_size)
            arguments.check_drawn_alone(policies, name)
            drawn = SeededRows(initializer, dim, values, name)
        described = table_initializer(
            None if drawn else initializer,
            dim,
            known_fan_in(fan_in, checks.whole(max_size), init_size),
            name,
        )
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
            **arguments.policy_options(admits, eviction, expiry, name),
        )
        arguments.check_bounded_admission(max_size, admits, name)
        bounds = arguments.shard_bounds(max_size, eviction, len(devices), name)
        shards = [
            NumberShard(dataclasses.replace(options, max_size=bound), device)
            for bound, device in zip(bounds, devices, strict=True)
        ]
        super().__init__(shards, partitioner, seed_is_given=seed is not None)
        self._drawn_rows = drawn
        self._admission = admits
        self._eviction = eviction
        self._expiry = expiry
        if expiry is not None and expiry.every is not None:
            with tf.init_scope():
                self._trained_steps = private.single_variable(
                    initial_value=tf.constant(0, tf.int64),
                    trainable=False,
                    name="trained_steps",
                )

    def lookup(self, keys: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of `keys`; inserts nothing.

        Batches that other threads upsert, accumulate or remove meanwhile are
        seen whole, shard by shard: `upsert` says how many keys of them.

        Args:
          keys: keys of `key_dtype`, any shape.

        Returns:
          values: values of `value_dtype`, keys.shape + [dim]; a missing key's
            initial row.
          exists: bool, keys.shape.

        Raises:
          tfembed.errors.DtypeError: keys of another dtype.
          tfembed.errors.UnsupportedError: an accumulator of forward mode.
        """
        keys = self._key_tensor(keys)
        handles = self.handles
        check_forward_mode(handles[:1])
        row: dict[str, Any] = {"dim": self.dim, "value_dtype": self.value_dtype}
        if len(handles) == 1:
            values, exists = table_ops.lookup(handles[0], keys, **row)
        else:
            parts = self.partition(keys)
            shards = zip(handles, parts.split(keys), strict=True)
            found = [table_ops.lookup(*shard, **row) for shard in shards]
            values, exists = (parts.merge(x) for x in zip(*found, strict=True))
        return self.with_drawn_rows(keys, values, exists), exists

    def read_rows(self, keys: Any) -> tf.Tensor:
        """Returns the rows of `keys`, as `lookup` does.

        Other processes, and other devices, are asked for each key once, by one
        message each.
        """
        if (
            self.home is not None
            or self.is_drawn
            or self.value_dtype not in _TRAINABLE
            or self.dim == 0
        ):
            return self.lookup(keys)[0]
        keys = self._key_tensor(keys)
        check_forward_mode(self.handles[:1])
        flat = tf.reshape(keys, [-1])
        exchange = RowExchange([self.exchanged()])
        (rows,) = exchange.look_up(
            exchange.request(
                [grouped.flat_ids(wide_ids(flat))],
                [grouped.FeaturePlan(0, "sum", name=self.name)],
                [self.shards_beside(flat)],
            )
        )
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), [self.dim]], 0))
        rows.set_shape(keys.shape.concatenate([self.dim]))
        return tf.cast(rows, self.value_dtype)

    def lookup_trained(self, keys: Any, shard: int | None = None) -> tf.Tensor:
        """Returns values and slots of `keys`; inserts nothing.

        Args:
          keys: keys of `key_dtype`, any shape.
          shard: the shard that has all the keys; None: the keys are dealt to
            shards.

        Returns:
          float32, keys.shape + [trained_width]; a missing key has its initial
          value and slots.

        Raises:
          tf.errors.FailedPreconditionError: a traced function was made for the
            slots of another optimizer than the table has now.
        """
        keys = self._key_tensor(keys)
        form = {"width": self.trained_width, **self._slots_of_rule()}

        def read(handle: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            if not self.is_drawn:
                return table_ops.lookup_trained(handle, keys, **form)
            # Read `exists` first: a key that another thread inserts in between
            # then still gets its initial row.
            there = table_ops.contains(handle, keys)
            with tf.control_dependencies([there]):
                rows = table_ops.lookup_trained(handle, keys, **form)
            return self.with_drawn_rows(keys, rows, there)

        with tf.control_dependencies(self.lay_out_slots()):
            if shard is not None:
                return read(self.handles[shard], keys)
            parts = self.partition(keys)
            shards = zip(self.handles, parts.split(keys), strict=True)
            return parts.merge([read(*each) for each in shards])

    def upsert(self, keys: Any, values: Any) -> tf.Operation | None:
        """Writes the rows of `keys`; the last row of a repeated key wins.

        Lookups of other threads see all of these rows or none, in each shard;
        of more than 131,072 keys of a shard, each part of so many, in order.
        The same goes for `accum` and `remove`.

        Args:
          keys: keys of `key_dtype`, any shape.
          values: values of `value_dtype`, keys.shape + [dim].

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
        """Adds to the rows of existing keys; inserts the rows of missing keys.

        Args:
          keys: keys of `key_dtype`, any shape.
          values_or_deltas: values or deltas of `value_dtype`, keys.shape +
            [dim]: a delta where `exists`, else a value.
          exists: bool, keys.shape, as a lookup returned it. A key for which it
            no longer holds is not changed.
          old_values: values of `value_dtype`, keys.shape + [dim]. If given,
            `values_or_deltas` are new values, and the deltas are their
            differences from `old_values`.

        Raises:
          tfembed.errors.DtypeError: `exists` is not bool. Nothing is changed.
          Others as `upsert`.
        """
        keys, rows = self._keys_and_rows(keys, values_or_deltas)
        exists = arguments.exists_tensor(exists, self.name)
        checks.shape("exists", exists, keys.shape)
        batch = [keys, rows, exists]
        if old_values is not None:
            batch.append(self._keys_and_rows(keys, old_values)[1])
        return self._write(table_ops.accum, *batch)

    def remove(self, keys: Any) -> tf.Operation | None:
        """Removes `keys`, of any shape; missing keys are ignored.

        Followers lose these keys too, even those that this table did not hold.
        """
        keys = self._key_tensor(keys)
        return group([self.remove_alone(keys), *self.followers.forget(keys)])

    def remove_alone(self, keys: tf.Tensor) -> tf.Operation | None:
        """Removes `keys` from this table, and not from its followers."""
        parts = self.partition(keys)
        shards = zip(self.handles, parts.split(keys), strict=True)
        return group([table_ops.remove(*shard) for shard in shards])

    def clear(self) -> tf.Operation | None:
        """Removes all keys, followers' keys too, and frees their memory."""
        handles = [h for t in [self, *self.followers] for h in t.handles]
        return group(
            [
                table_ops.clear([handles[i] for i in together])
                for together in by_device(handles)
            ]
        )

    def size(self, shard: int | None = None) -> tf.Tensor:
        """Returns the number of keys, int64 [], of one shard or of all."""
        if shard is not None:
            return table_ops.size(self.handles[shard])
        return tf.add_n([table_ops.size(h) for h in self.handles])

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys [n] and values [n, dim], shard after shard.

        All shards are copied at one moment if they lie on one device. The
        result is a second copy of the table in memory; checkpoints do not make
        one.
        """
        keys, values, *_ = self.export_columns()
        return keys, values

    @property
    def max_size(self) -> int | None:
        """The most keys that the table may hold; None: no bound."""
        return sum(shard.options.max_size for shard in self.shards) or None

    @property
    def is_followed(self) -> bool:
        """Whether other tables lose the keys that this one loses."""
        return bool(self._followers)

    @property
    def followers(self) -> Followers:
        """The tables that lose the keys that this one loses."""
        if self._followers is None:
            self._followers = Followers(self)
        return self._followers

    def let_follow(self, follower: HashTable) -> None:
        """Makes `follower` lose each key that this table loses."""
        self.followers.add(follower)

    def contains(self, keys: Any) -> tf.Tensor:
        """Says which of `keys`, of any shape, are present: bool, keys.shape."""
        keys = self._key_tensor(keys)
        parts = self.partition(keys)
        shards = zip(self.handles, parts.split(keys), strict=True)
        return parts.merge([table_ops.contains(*shard) for shard in shards])

    def keys(self) -> tf.Tensor:
        """Returns all keys [n], shard after shard; copies no rows."""
        return tf.concat(
            [
                table_ops.keys(handle, key_dtype=self.key_dtype)
                for handle in self.handles
            ],
            0,
        )

    def memory(self) -> TableStats:
        """Returns only keys and bytes, which cost no walk; eager only."""
        return TableStats.of_shards(
            TableStats(*(int(n) for n in table_ops.stats(handle)))
            for handle in self.handles
        )

    def stats(self) -> TableStats:
        """Counts the keys, bytes and uses of the table; eager only.

        Counting reads the whole indexes, 20 bytes per key.

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
        """Returns `stats().bytes_per_key`."""
        return self.stats().bytes_per_key

    def export_slots(
        self, shard: int | None = None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns keys [n], of all shards or one, and the slots by their names.

        A slot is [n, dim], or [n, 1] if it has one float per row.
        """
        keys, _, *columns = self.export_columns(shard)
        return keys, dict(zip(self.slot_names, columns, strict=True))

    def export_columns(self, shard: int | None = None) -> list[tf.Tensor]:
        """Returns keys [n], values [n, dim], and the rows of each slot.

        The shards, or the one `shard`, are copied at one moment, as described
        at `take`; the result is a second copy of the table.
        """
        shards = self.shards if shard is None else [self.shards[shard]]
        return take(self, shards, only_rows=True).columns

    def replace(
        self, keys: tf.Tensor, columns: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Replaces the content of the table by these rows; for graphs.

        A follower of the table is either restored by itself, before or after,
        or it loses the keys that this table does not hold.

        Args:
          keys: distinct keys [n].
          columns: values [n, dim], followed by the rows of all slots or by
            nothing.
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
                for together in by_device(self.handles)
            ]
        with tf.control_dependencies(written):
            dropped = [f.followers.drop_stale() for f in self.followers]
        return tf.group(*written, *dropped)

    @property
    def optimizer(self) -> Any:
        """The attached optimizer, or None."""
        return self._optimizer

    @property
    def rule_state(self) -> RuleState:
        """The rule's variables besides slots, which the table's files have."""
        if self._rule_state is None:
            self._rule_state = RuleState(self.name)
        return self._rule_state

    def attach(self, optimizer: Any, *, replaces: bool = False) -> None:
        """Sets the optimizer and adds its slots to each row.

        Args:
          optimizer: a `tfembed.optimizers` description. Attaching another one
            with the same rule and parameters is allowed.
          replaces: whether to replace another optimizer, or its slots from a
            checkpoint. The rows stay. Slots of the same rule and names stay
            too; others are removed, with a warning, and new slots get their
            initial values.

        Raises:
          tfembed.errors.ArgumentError: the table has another optimizer, or has
            another optimizer's slots from a checkpoint, and `replaces` is
            False.
          tfembed.errors.DtypeError: (also TypeError) rows that are not float32,
            float16 or bfloat16.
          tfembed.errors.UnsupportedError: rows of width 0.
        """
        if optimizer is self._optimizer:
            return
        check_trained(self.value_dtype, self.name)
        if self.dim == 0:
            raise errors.UnsupportedError(
                f"Table '{self.name}' has dim 0: its rows have no numbers to "
                "train. Make it with a dim of at least 1."
            )
        rule = optimizer.rule_text()
        if isinstance(optimizer, optimizers.Optimizer):
            optimizer.check_fits_table(self.name, has_vocabulary=False)
        is_other = self._optimizer is not None and (
            self._optimizer.rule_text(),
            *_norm_limits(self._optimizer),
        ) != (rule, *_norm_limits(optimizer))
        if is_other and not replaces:
            raise errors.ArgumentError(
                f"Table '{self.name}' has optimizer "
                f"'{self._optimizer.rule_text()}' and cannot take '{rule}' as a "
                f"second one. Train with one of them, or use two tables; or {_DETACH}."
            )
        if self._optimizer is None or is_other:
            if not self.shards[0].is_in_graph:
                with tf.init_scope():
                    self._make_way(optimizer, replaces)
            self._optimizer = optimizer
            row_wise = getattr(optimizer, "row_wise_slots", ())
            self._slot_names = tuple(optimizer.slot_names)
            self._slot_widths = tuple(
                1 if slot in row_wise else self.dim for slot in self._slot_names
            )

    def detach(self) -> None:
        """Removes the optimizer and its slots; the rows stay.

        Then another optimizer may be attached, whose slots begin from their
        initial values. Trace functions that train again: their traces have the
        first optimizer's rule. An update that another thread begins meanwhile
        is refused with tf.errors.FailedPreconditionError, and changes nothing.

        Raises:
          tfembed.errors.UnsupportedError: the table belongs to a graph of
            TensorFlow 1.
        """
        if self.shards[0].is_in_graph:
            raise errors.UnsupportedError(
                f"Table '{self.name}' is one of a graph of TensorFlow 1, whose "
                "ops have its slots. Make another graph, with another optimizer."
            )
        with tf.init_scope():
            for handle in self.handles:
                table_ops.drop_slots(handle)
        self._optimizer = None
        self._slot_names = self._slot_widths = ()
        self.rule_state.clear()

    def lay_out_slots(self) -> list[tf.Operation]:
        """Adds the attached optimizer's slots to the rows of a graph's table.

        In eager mode `attach` does this. In a graph the server makes the table
        when a session first uses it, so each op that uses slots must run after
        these operations; running them again has no effect.

        Returns:
          The operations that must run before slots are used; outside of
          functions the caller must add the control dependencies.
        """
        if self._optimizer is None or not self.shards[0].is_in_graph:
            return []
        return self._set_slots(self._optimizer)

    def apply_gradients(
        self,
        keys: Any,
        gradients: Any,
        learning_rate: Any = None,
        nonfinite: str = "skip",
    ) -> tf.Tensor:
        """Updates the row of each distinct key by the attached optimizer.

        Args:
          keys: keys of `key_dtype`, any shape; the gradients of a repeated key
            are summed.
          gradients: float32, keys.shape + [dim].
          learning_rate: number or scalar; None: the optimizer's learning rate.
          nonfinite: the treatment of a summed gradient that is not finite:
            "skip", "refuse" or "allow".

        Returns:
          The number of keys whose summed gradient is not finite, int64 []; 0
          with "allow", which does not check.

        Raises:
          tfembed.errors.StateError: the table has no optimizer, its optimizer's
            update is not fused, a Python function draws its initial rows, or
            the optimizer's learning rate is None or a schedule and no
            `learning_rate` is given.
          tf.errors.InvalidArgumentError: shapes that do not fit, or a gradient
            that is refused. Nothing is changed.
        """
        optimizer = self._optimizer  # Another thread may detach it.
        if optimizer is None:
            raise errors.StateError(
                f"Table '{self.name}' has no optimizer; call `attach` first."
            )
        if not getattr(optimizer, "is_fused", False):
            raise errors.StateError(
                f"Table '{self.name}' is trained by the own update of "
                f"{optimizer.rule_text().split()[0]}; call that "
                "DynamicEmbeddingOptimizer's `apply_gradients`."
            )
        if self.is_drawn:
            raise errors.StateError(
                f"The initial rows of table '{self.name}' are drawn by a Python "
                "function; train it by a DynamicEmbeddingOptimizer, which "
                "inserts them first."
            )
        rate = learning_rate
        if rate is None:
            rate = optimizer.learning_rate
        if rate is None or (callable(rate) and is_schedule(rate)):
            raise errors.StateError(
                f"Table '{self.name}' has the learning rate {rate!r}, which is "
                "known to a TPUEmbedding or a layer, not to the table alone. "
                "Give this step's as `learning_rate`."
            )
        rate = number_tensor(
            private.converted(rate)() if callable(rate) else rate
        )
        keys, rows = self._keys_and_rows(keys, gradients, tf.float32)
        rows = self._of_known_width(keys, rows)
        keys, rows = (
            tf.reshape(keys, [-1]),
            tf.reshape(rows, [-1, self.dim]),
        )
        limits = [x for x in _norm_limits(optimizer) if x]
        checks = self.lay_out_slots()
        if limits:
            # The table is alone in this step, so both norms are over its rows.
            distinct, positions = tf.unique(keys)
            sums = tf.math.unsorted_segment_sum(
                rows, positions, tf.size(distinct)
            )
            checks += self.check_step(distinct, sums, nonfinite)
            rows *= shrink_factor([with_finite_rows(sums)], limits[0])
        note_read(self)
        with tf.control_dependencies(checks):
            count = update_by_key(
                [(self, keys, rows)],
                rule=optimizer.rule_text(),
                learning_rate=rate,
                nonfinite=nonfinite,
            )
        self.note_training_step()
        return count

    @property
    def is_drawn(self) -> bool:
        """Whether a Python function draws the initial rows."""
        return self._drawn_rows is not None

    @property
    def trained_width(self) -> int:
        """The numbers of a row and its slots together."""
        return self.dim + sum(self.slot_widths)

    def with_drawn_rows(
        self, keys: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor
    ) -> tf.Tensor:
        """Replaces the rows of missing keys by rows that a function draws.

        Args:
          keys: keys of any shape.
          rows: keys.shape + [dim or more]: values, and slots after them.
          exists: bool, keys.shape.
        """
        if self._drawn_rows is None or self.dim == 0:
            return rows
        width = rows.shape[-1]
        missing = tf.where(tf.logical_not(tf.reshape(exists, [-1])))
        drawn = self._drawn_rows.of_keys(
            tf.gather_nd(tf.reshape(keys, [-1]), missing),
            table_ops.seed(self.handle),
        )
        flat = tf.reshape(rows, [-1, width])
        rest = tf.gather_nd(flat, missing)[:, self.dim :]
        filled = tf.tensor_scatter_nd_update(
            flat, missing, tf.concat([tf.cast(drawn, flat.dtype), rest], 1)
        )
        filled = tf.reshape(filled, tf.shape(rows))
        filled.set_shape(rows.shape)
        return filled

    def insert_missing(self, keys: tf.Tensor) -> tf.Operation | None:
        """Inserts the missing ones of `keys` [n] with a function's rows.

        Call this before an update op, which cannot call Python. It does nothing
        in a table whose initializer has a known form.
        """
        if self._drawn_rows is None:
            return None
        distinct = tf.unique(tf.reshape(keys, [-1])).y
        is_missing = tf.logical_not(self.contains(distinct))
        missing = tf.boolean_mask(distinct, is_missing)
        seed = table_ops.seed(self.handle)
        rows = self._drawn_rows.of_keys(missing, seed)
        return self.accum(missing, rows, tf.zeros_like(missing, tf.bool))

    def write_trained(
        self, keys: Any, rows: tf.Tensor, *, add: bool = False
    ) -> tf.Operation | None:
        """Writes value and slots of `keys`, or adds to them if `add` is set.

        With `add`, a missing key starts from its initial row and slots.

        Args:
          keys: keys of `key_dtype`, any shape.
          rows: float32, keys.shape + [trained_width].
          add: whether `rows` are differences to add.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tf.errors.FailedPreconditionError: as for `lookup_trained`; nothing is
            changed.
        """
        keys = self._key_tensor(keys)
        parts = self.partition(keys)
        of_shards = parts.split(keys)
        shards = zip(self.handles, of_shards, parts.split(rows), strict=True)
        checks = [*parts.checks, *self.check_bounds(of_shards)]
        form = self._slots_of_rule()
        with tf.control_dependencies([*checks, *self.lay_out_slots()]):
            return group(
                [
                    table_ops.write_trained(*shard, add=add, **form)
                    for shard in shards
                ]
            )

    @property
    def admission(self) -> AdmissionPolicy | None:
        """The policy that admits new keys of training steps; None: all."""
        return self._admission

    @property
    def eviction(self) -> EvictionPolicy | None:
        """The policy that ranks the rows for eviction; None: no policy."""
        return self._eviction

    @property
    def expiry(self) -> Expiry | None:
        """When rows expire by themselves; None: only by calls of `expire`."""
        return self._expiry

    @property
    def counts_steps(self) -> bool:
        """Whether the expiry runs after a number of training steps."""
        return self._expiry is not None and self._expiry.every is not None

    def note_training_step(self) -> None:
        """Counts a training step, and expires rows if they are due."""
        expiry = self._expiry
        if expiry is None or expiry.every is None:
            return
        steps = self._trained_steps.assign_add(1, read_value=True)
        tf.cond(
            tf.equal(steps % expiry.every, 0),
            lambda: tf.size(self.expire(expiry.limit).keys),
            lambda: tf.constant(0),
        )

    def note_checkpoint(self, *, export_follows: bool) -> bool:
        """Expires rows before a checkpoint, if the expiry is set to do so.

        Args:
          export_follows: whether this call is the trace before the export of a
            SavedModel, which the next call is; neither expires rows.

        Returns:
          Whether this call is that trace or that export.
        """
        is_export = export_follows or self._is_exporting
        self._is_exporting = export_follows
        expiry = self._expiry
        if expiry is not None and expiry.at_checkpoints and not is_export:
            self.expire(expiry.limit)
        return is_export

    def check_step(
        self, keys: tf.Tensor, sums: tf.Tensor, nonfinite: str
    ) -> list[tf.Operation]:
        """Refuses what an update would, before any of several ops changes rows.

        Args:
          keys: the distinct keys of the step, [n].
          sums: their summed gradients, [n, dim].
          nonfinite: as for `apply_gradients`.

        Returns and raises the same as `check_bounds`; also for sums that are
        not finite, with "refuse".
        """
        room = self.check_room(keys)
        if nonfinite != "refuse":
            return room
        return [*room, *refuse_nonfinite(sums, self.name)]

    def check_room(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Refuses keys [n] that exceed a bound, before any table is changed.

        Returns and raises the same as `check_bounds`.
        """
        if self.max_size is None:
            return []
        return self.check_bounds(
            self.partition(keys).split(keys), even_alone=True
        )

    def check_bounds(
        self,
        keys: Sequence[tf.Tensor],
        *,
        even_alone: bool = False,
        refusal: str | None = None,
    ) -> list[tf.Operation]:
        """Refuses a batch that exceeds a bound, before any shard is changed.

        Args:
          keys: the keys of the batch, one tensor per shard.
          even_alone: whether to check a table of one shard too. Its own op
            refuses the batch too, but other tables may have been changed by
            then.
          refusal: the words of the error, where the keys are no batch. TensorFlow
            adds how many keys there are, and how many a shard may hold.

        Returns:
          The operations that must run before the batch is written.

        Raises:
          tf.errors.InvalidArgumentError: a shard has more distinct keys than it
            may hold.
        """
        is_alone = len(self.shards) == 1
        if self.max_size is None or (is_alone and not even_alone):
            return []
        refusal = refusal or (
            f"A batch has more distinct keys of a shard of '{self.name}' than it "
            "may hold; nothing was changed. Use smaller batches or a larger "
            "`max_size`"
        )
        checks = [
            tf.debugging.assert_less_equal(
                tf.size(tf.unique(tf.reshape(part, [-1])).y, tf.int64),
                tf.constant(shard.options.max_size, tf.int64),
                refusal,
            )
            for part, shard in zip(keys, self.shards, strict=True)
        ]
        return [check for check in checks if check is not None]

    def evict(
        self,
        keep: int,
        *,
        policy: EvictionPolicy | None = None,
        return_values: bool = False,
    ) -> EvictedRows:
        """Removes the rows with the lowest worth, and their slots and notes.

        The choice is exact over all shards: `keep` keys stay, or all if there
        are fewer. Keys that other threads insert meanwhile stay too.

        Args:
          keep: how many keys stay, from 0 on.
          policy: `SmallestNorm()`, for any table; None: the table's policy.
          return_values: whether to return the removed values.

        Returns:
          The removed keys, and their values if asked for.

        Raises:
          tfembed.errors.ArgumentError: a negative `keep`, or no policy.
          tfembed.errors.DtypeError: `keep` is not an integer.
        """
        number = checks.key_count(keep, "keep")
        keys, worth = self.worth(policy)
        excess = tf.maximum(tf.size(keys, tf.int64) - number, 0)
        removed = tf.gather(keys, tf.argsort(worth)[:excess])
        return self.evict_keys(removed, return_values)

    def expire(
        self,
        limit: float,
        *,
        policy: EvictionPolicy | None = None,
        return_values: bool = False,
    ) -> EvictedRows:
        """Removes the rows that are past a limit, and their slots and notes.

        Args:
          limit: `LeastRecent` removes rows that were not touched for at least
            `limit` steps or seconds, `LeastFrequent` rows that were touched
            less than `limit` times, `SmallestNorm` rows with a norm below
            `limit`.
          policy: as for `evict`.
          return_values: as for `evict`.

        Returns:
          The removed keys, and their values if asked for.

        Raises:
          tfembed.errors.ArgumentError: `limit` is not a number from 0 on, or
            the table has no policy.
        """
        limit = check_limit(limit)
        judge = self._judging(policy)
        keys, worth = self.worth(judge)
        past = -worth >= limit if judge.limit_is_age else worth < limit
        return self.evict_keys(tf.boolean_mask(keys, past), return_values)

    def evict_keys(
        self, keys: tf.Tensor, return_values: bool = False
    ) -> EvictedRows:
        """Removes rows, and their slots and notes, as `evict` does."""
        parts = self.partition(keys)
        shards = list(zip(self.handles, parts.split(keys), strict=True))
        values = None
        if return_values:
            found = [
                table_ops.lookup(
                    handle, part, dim=self.dim, value_dtype=self.value_dtype
                )
                for handle, part in shards
            ]
            values = parts.merge([values for values, _ in found])
        with tf.control_dependencies(
            [x for x in (keys, values) if x is not None]
        ):
            done = [table_ops.evict(handle, part) for handle, part in shards]
            done += self.followers.forget(keys)
        with tf.control_dependencies([op for op in done if op is not None]):
            return EvictedRows(
                tf.identity(keys),
                None if values is None else tf.identity(values),
            )

    def worth(
        self, policy: EvictionPolicy | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys [n] and the worth of their rows, float64 [n].

        Args:
          policy: as for `evict`.

        Returns:
          The keys, and by `LeastFrequent` the number of touches, by
          `LeastRecent` the negative time since the last touch, by
          `SmallestNorm` the norm.

        Raises:
          tfembed.errors.ArgumentError: no policy.
        """
        judge = self._judging(policy)
        text = "" if judge == self._eviction else judge.policy_text()
        each = [
            table_ops.worth(handle, policy=text, key_dtype=self.key_dtype)
            for handle in self.handles
        ]
        keys, worth = (tf.concat(x, 0) for x in zip(*each, strict=True))
        return keys, worth

    def _held_in_words(self) -> str:
        stats = self.memory()
        bound = f" of at most {self.max_size:,}" if self.max_size else ""
        rule = getattr(self._optimizer, "rule_text", None)
        return (
            f"{stats.size:,} rows{bound}, "
            f"{as_bytes(stats.index_bytes + stats.row_bytes)}"
            + (f", {rule().split()[0]}" if rule else "")
        )

    def _write(self, op: Any, *batch: tf.Tensor) -> Any:
        """Runs `op` for each shard on its part of `batch` (keys, then rows)."""
        parts = self.partition(batch[0])
        split = [parts.split(tensor) for tensor in batch]
        # If the table has followers, this runs before they are changed.
        checks = [
            *parts.checks,
            *self.check_bounds(split[0], even_alone=len(self.followers) > 0),
        ]
        with tf.control_dependencies(checks):
            forgotten = self.followers.forget_evicted(batch[0])
        with tf.control_dependencies([*checks, *forgotten]):
            shards = zip(self.handles, *split, strict=True)
            written = group([op(*shard) for shard in shards])
        return self.followers.swept(written)

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and self._drawn_rows is not None:
            children["drawn_rows"] = self._drawn_rows.saved
        # Saved, so that a training that is often resumed reaches its expiries
        # too, and functions of a loaded model that train go on counting.
        if self._trained_steps is not None:
            children["trained_steps"] = self._trained_steps
        return children

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> HashTable:
        table = super()._deserialize_from_proto(**kwargs)
        traced = kwargs["dependencies"].get("drawn_rows")
        if traced is not None:
            table._drawn_rows = SeededRows.from_saved(traced)
        return table

    def _keys_and_rows(
        self, keys: Any, rows: Any, dtype: tf.DType | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        keys = self._key_tensor(keys)
        rows = arguments.value_tensor(
            rows, dtype or self.value_dtype, self.name
        )
        arguments.check_rows(keys, rows, self.dim, self.name)
        return keys, rows

    def _of_known_width(self, keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns `rows`, checked at run time if their shape is not known."""
        if rows.shape.rank is not None and rows.shape[-1] is not None:
            return rows
        fits = checks.run_shape(
            rows,
            tf.concat([tf.shape(keys), [self.dim]], 0),
            f"The gradients of table '{self.name}' must have the shape of the "
            f"keys and then {self.dim}",
        )
        with tf.control_dependencies(fits):
            return tf.identity(rows)

    def _make_way(self, optimizer: Any, replaces: bool) -> None:
        """Lays slots out; with `replaces`, in place of another optimizer's."""
        try:
            self._set_slots(optimizer)
        except errors.ArgumentError:
            if not replaces:
                raise
            gone = ", ".join(self.slot_names)
            self.detach()
            self._set_slots(optimizer)
            if gone:
                rule = optimizer.rule_text().split()[0]
                begin = optimizer.slot_names and (
                    f", and those of '{rule}' begin from their initial values"
                )
                warnings.warn(
                    f"Table '{self.name}' is trained by '{rule}' from now on. Its "
                    f"{int(self.size()):,} rows stay; the slots of the optimizer "
                    f"before ({gone}) are gone{begin or ''}.",
                    stacklevel=2,
                )

    def _slots_of_rule(self) -> dict[str, Any]:
        """The attached optimizer's slots, for ops that compare them."""
        if self._optimizer is None:
            return {}  # Slots of a checkpoint may be read all the same.
        return {
            "owner": self._optimizer.rule_text().split()[0],
            "slot_names": self.slot_names,
        }

    def _set_slots(self, optimizer: Any) -> list[tf.Operation]:
        rule = optimizer.rule_text()
        row_wise = getattr(optimizer, "row_wise_slots", ())
        try:
            return [
                table_ops.set_slots(
                    shard.resource_handle,
                    owner=rule.split()[0],
                    names=optimizer.slot_names,
                    initial_values=[
                        optimizer.slot_initial_values[slot]
                        for slot in optimizer.slot_names
                    ],
                    row_wise=[
                        i
                        for i, slot in enumerate(optimizer.slot_names)
                        if slot in row_wise
                    ],
                )
                for shard in self.shards
            ]
        except tf.errors.FailedPreconditionError as error:
            raise errors.ArgumentError(
                f"Table '{self.name}' cannot take optimizer '{rule}': "
                f"{error.message} Or {_DETACH}."
            ) from error

    def _add_trackable_child(self, name: str, value: Any) -> None:
        if name == "trained_steps":
            self._trained_steps = value
        else:
            super()._add_trackable_child(name, value)

    def _judging(self, policy: EvictionPolicy | None) -> EvictionPolicy:
        judge = policy or self._eviction
        if judge is None:
            raise errors.ArgumentError(
                f"Table '{self.name}' has no eviction policy; make it with "
                "`eviction=`, or give `policy=SmallestNorm()`."
            )
        if judge != self._eviction and judge.notes:
            raise errors.ArgumentError(
                f"The rows of table '{self.name}' keep no notes for {judge!r}; "
                f"its policy is {self._eviction!r}. Give none, or "
                "SmallestNorm()."
            )
        return judge


# A table, keys of its dtype [n], and their gradients, float32 [n, dim].
KeyGradient = tuple[HashTable, tf.Tensor, tf.Tensor]


def update_by_key(
    gradients: Sequence[KeyGradient],
    *,
    rule: str,
    learning_rate: tf.Tensor,
    nonfinite: str,
) -> tf.Tensor:
    """Applies `rule` once to each distinct key of each table.

    Gradients of one key, in one entry or several, are summed first. One op
    updates all shards of a device. Other processes, and other devices, get the
    sums in one message each.

    Args:
      gradients: the gradients by key; a table may come several times.
      rule: the text of the update rule, whose slots the tables have.
      learning_rate: scalar.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      int64 []: the count of keys whose sum is not finite; 0 with "allow", which
      does not check.

    Raises:
      tf.errors.InvalidArgumentError: a sum that is refused, or more keys than
        a table may hold. No table is changed.
    """
    homes = set()
    for table, _, _ in gradients:
        homes.add(table.home)
    if len(homes) > 1 or None in homes:
        return _update_apart(gradients, rule, learning_rate, nonfinite)
    places: dict[tuple[int, int], int] = {}
    handles: list[tf.Tensor] = []
    dims: list[int] = []
    features: list[grouped.FeatureIds] = []
    plans: list[grouped.FeaturePlan] = []
    summands: list[tf.Tensor] = []
    for table, keys, rows in gradients:
        shards = table.shards
        split = [(keys, rows)]
        if len(shards) > 1:
            parts = table.partition(keys)
            split = list(zip(parts.split(keys), parts.split(rows), strict=True))
        for shard, (of_shard, values) in enumerate(split):
            place = places.setdefault((id(table), shard), len(handles))
            if place == len(handles):
                handles.append(shards[shard].resource_handle)
                dims.append(table.dim)
            if of_shard.dtype == tf.int32:
                of_shard = wide_ids(of_shard)
            features.append(grouped.flat_ids(of_shard))
            plans.append(grouped.FeaturePlan(place, "sum"))
            summands.append(values)
    counts = grouped.grouped_update(
        handles,
        [],
        dims,
        features,
        plans,
        summands,
        rules=[rule] * len(handles),
        learning_rates=[learning_rate] * len(handles),
        nonfinite=nonfinite,
    )
    return tf.reduce_sum(counts)


def _update_apart(
    gradients: Sequence[KeyGradient],
    rule: str,
    learning_rate: tf.Tensor,
    nonfinite: str,
) -> tf.Tensor:
    """Updates shards of several devices, or of other processes."""
    tables = {id(table): table for table, _, _ in gradients}
    places = {table: i for i, table in enumerate(tables)}
    exchange = RowExchange(
        [
            table.exchanged(repeats="accumulate=0" in rule.split())
            for table in tables.values()
        ]
    )
    asked = exchange.request(
        [grouped.flat_ids(wide_ids(keys)) for _, keys, _ in gradients],
        [
            grouped.FeaturePlan(places[id(table)], "sum", name=table.name)
            for table, _, _ in gradients
        ],
        [table.shards_beside(keys) for table, keys, _ in gradients],
    )
    checks = [
        check
        for table in tables.values()
        if table.max_size is not None
        for check in table.check_room(
            tf.concat([k for other, k, _ in gradients if other is table], 0)
        )
    ]
    with tf.control_dependencies(checks):
        return exchange.train(
            asked,
            [rows for _, _, rows in gradients],
            rules=[rule] * len(tables),
            learning_rates=[learning_rate] * len(tables),
            nonfinite=nonfinite,
        )
