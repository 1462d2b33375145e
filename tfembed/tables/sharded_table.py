"""The shards of one logical table, and what TensorFlow's savers see of them."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import uuid
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from google.protobuf import wrappers_pb2

from tfembed import errors
from tfembed.initializers import RowInitializer
from tfembed.ops import private
from tfembed.ops import table as table_ops
from tfembed.ops.private import track
from tfembed.tables.key_access import KeyAccess
from tfembed.tables.partition import KeyPartition, Partitioner, shard_of

__all__ = [
    "CheckpointMark",
    "NumberShard",
    "ShardOptions",
    "ShardedTable",
    "TableShard",
    "not_in_savers",
]


# The collection of the names of a graph's tables. The graph's `unique_name` would
# count other ops and name scopes, and workers whose graphs differ in these would
# share no tables. No string: a Saver tries to write what collections of such names
# hold into its meta graph.
_USED_NAMES = ("tfembed_table_names",)


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """The options that a shard is created from, the same for all of a table."""

    name: str
    dim: int
    initializer: RowInitializer
    seed: int
    init_size: int = 0
    admission: str = ""
    eviction: str = ""
    max_size: int = 0
    missing_value: float | None = None
    stochastic_rounding: bool = False
    key_dtype: str = "int64"
    value_dtype: str = "float32"

    def to_json(self) -> dict[str, Any]:
        """A form that `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ShardOptions:
        """Reads what `to_json` gave, after a round through JSON text."""
        initializer = dict(fields["initializer"])
        initializer["arguments"] = tuple(initializer["arguments"])
        return cls(**{**fields, "initializer": RowInitializer(**initializer)})


class TableShard(tf.saved_model.experimental.TrackableResource):
    """Owns one table's handle; the memory goes with the handle's last user.

    In eager mode the handle is anonymous: it belongs to this object and to the
    functions that captured it. In a graph the table has a name, by which each
    run finds it again: where the shard is made in a graph of TensorFlow 1, the
    table's own, so that all sessions of a server that build the same graph
    share it; in one that `tf.saved_model.save` writes, and that outlives this
    process, a name that no other table has.

    Args:
      options: an object of the class `_OPTIONS`, with `from_json` and `to_json`.
      device: a host device.
    """

    _OPTIONS: Any  # The class of the options.

    def __init__(self, options: Any, device: str) -> None:
        super().__init__(device=device)
        self.options: Any = options
        self.device = device
        with tf.init_scope():
            self._is_in_graph = not tf.executing_eagerly()
            self.resource_handle  # noqa: B018 - makes the table now

    @property
    def is_in_graph(self) -> bool:
        """Whether a graph of TensorFlow 1 has the table."""
        return self._is_in_graph

    @abc.abstractmethod
    def _create_resource(self) -> tf.Tensor:
        """Makes the table; returns its handle."""

    def _name_in_graph(self) -> str:
        name = f"tfembed_{self.options.name}"
        if not self._is_in_graph:
            return f"{name}_{uuid.uuid4().hex}"
        used = tf.compat.v1.get_collection_ref(_USED_NAMES)
        chosen, i = name, 0
        while chosen in used:
            i += 1
            chosen = f"{name}#{i}"
        used.append(chosen)
        return chosen

    def _serialize_to_proto(
        self, object_proto: Any = None, **kwargs: Any
    ) -> wrappers_pb2.StringValue:
        fields = {"options": self.options.to_json(), "device": self.device}
        return wrappers_pb2.StringValue(value=json.dumps(fields))

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> TableShard:
        text = wrappers_pb2.StringValue()
        kwargs["proto"].Unpack(text)
        fields = json.loads(text.value)
        options = cls._OPTIONS.from_json(fields["options"])
        return cls(options, fields["device"])

    def _add_trackable_child(self, name: str, value: Any) -> None:
        """Leaves the functions that a SavedModel keeps of a resource alone."""


class NumberShard(TableShard):
    """A shard of a `HashTable`, whose rows are numbers."""

    _OPTIONS = ShardOptions

    def _create_resource(self) -> tf.Tensor:
        options = self.options
        shared_name = ""
        if not tf.executing_eagerly():
            shared_name = self._name_in_graph()
        return table_ops.create(
            options.dim,
            key_dtype=tf.as_dtype(options.key_dtype),
            value_dtype=tf.as_dtype(options.value_dtype),
            name=options.name,
            initializer=options.initializer.kind,
            initializer_args=options.initializer.arguments,
            seed=options.seed,
            init_size=options.init_size,
            admission=options.admission,
            eviction=options.eviction,
            max_size=options.max_size,
            missing_value=options.missing_value,
            stochastic_rounding=options.stochastic_rounding,
            shared_name=shared_name,
        )


class CheckpointMark(tf.__internal__.tracking.Trackable):
    """A tensor beside a table: its width.

    Savers of our own write tables, and what they write does not count when
    TensorFlow compares a checkpoint with the program's objects: without a tensor
    of TensorFlow's own, `assert_consumed` and `assert_existing_objects_matched`
    would pass over tables that were not restored.

    Args:
      table: a `ShardedTable`, which holds the mark.
    """

    def __init__(self, table: Any) -> None:
        self._table = weakref.ref(table)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        table = self._table()
        return {"width": tf.constant(table.dim if table else 0, tf.int64)}

    def _restore_from_tensors(self, tensors: Mapping[str, tf.Tensor]) -> None:
        """The table's own restore compares widths."""

    def __repr__(self) -> str:
        return f"<mark of {self._table()!r}>"


def not_in_savers(what: str) -> errors.UnsupportedError:
    """The error of a Saver that would leave out the rows of `what`."""
    path = private.checkpoint_read_by_names()
    read = (
        f"Checkpoint '{path}' has no objects that can be read, and was taken for "
        "one of a Saver. "
        if path
        else ""
    )
    return errors.UnsupportedError(
        f"{read}tf.compat.v1.train.Saver does not save the rows of {what}. In eager mode "
        "save by tf.train.Checkpoint (a Saver's checkpoint is read by "
        "dynamic_embedding.warm_start); in a graph give the Saver the Variable, "
        "which has the table."
    )


class ShardedTable(tf.__internal__.tracking.Trackable, KeyAccess):
    """Shards and the rule that deals keys to them. Base of `HashTable`.

    Checkpoints see one object, whatever the number of shards: its content is
    written by `tfembed.checkpoint`. A SavedModel sees the shards too, since its
    functions hold their handles, and the partitioner as a traced function, so
    that a loaded table deals keys as the functions saved with it do.

    Args:
      shards: at least one.
      partitioner: see `tfembed.tables.partition`.
      seed_is_given: False where a restored checkpoint's seed takes the place
        of this one.
    """

    # The object that Savers of the table's graph save, and tf.train.Checkpoint
    # there; None in eager mode, where a saver of our own does.
    saveable: Any = None
    _file_owner: str | None = None

    def __init__(
        self,
        shards: list[TableShard],
        partitioner: Partitioner | None,
        seed_is_given: bool,
    ) -> None:
        self._shards = shards
        self._partitioner = partitioner
        self._seed_is_given = seed_is_given
        self._slot_names: tuple[str, ...] = ()
        self._slot_widths: tuple[int, ...] = ()
        self._is_served = False
        track(self, "mark", CheckpointMark(self))

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        if private.asked_by_saver():
            raise not_in_savers(f"table '{self.name}'")
        return {}

    @property
    def name(self) -> str:
        """The table's name."""
        return str(self._shards[0].options.name)

    @property
    def _by_key(self) -> Any:
        return self

    @property
    def file_owner(self) -> str:
        """An id, which no other table has, for the ops that write row files."""
        if self._file_owner is None:
            self._file_owner = uuid.uuid4().hex
        return self._file_owner

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self._shards[0].options.dim

    @property
    def seed(self) -> int:
        """The seed of the initial rows."""
        return self._shards[0].options.seed

    @property
    def seed_is_given(self) -> bool:
        """Whether the seed was given, so that no checkpoint changes it."""
        return self._seed_is_given

    @property
    def key_dtype(self) -> tf.DType:
        """The dtype of the keys."""
        return tf.as_dtype(self._shards[0].options.key_dtype)

    @property
    def value_dtype(self) -> tf.DType:
        """The dtype of a row's numbers."""
        return tf.as_dtype(self._shards[0].options.value_dtype)

    @property
    def shards(self) -> tuple[TableShard, ...]:
        """The shards, in the order of `devices`."""
        return tuple(self._shards)

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle of shard 0, which is all of a one-shard table."""
        return self._shards[0].resource_handle

    @property
    def handles(self) -> list[tf.Tensor]:
        """The resource handle of each shard.

        A function that is being traced brings the table along in an export.
        """
        private.table_read(self)
        return [shard.resource_handle for shard in self._shards]

    @property
    def partitioner(self) -> Partitioner | None:
        """The function that deals keys to shards; None: floormod."""
        return self._partitioner

    @property
    def deals_by_remainder(self) -> bool:
        """Whether a key's shard is floormod(key, number of shards)."""
        is_default = self._partitioner is None and self.key_dtype != tf.string
        return is_default or len(self._shards) == 1

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The slots beside each row, as attached or restored."""
        return self._slot_names

    @property
    def slot_widths(self) -> tuple[int, ...]:
        """The floats of each slot: the table's width, or one."""
        return self._slot_widths

    @property
    def takes_slots(self) -> bool:
        """Whether a restore loads slots.

        Not into a table that `tf.saved_model.load` made and nobody trains.
        """
        return bool(self._slot_names) or not self._is_served

    def partition(self, keys: tf.Tensor) -> KeyPartition:
        """Deals `keys` of any shape to the shards."""
        return KeyPartition(
            keys, len(self._shards), self._partitioner, self.name
        )

    def adopt(self, *, seed: int, slots: dict[str, int]) -> None:
        """Takes over what a restored checkpoint says; for `tfembed.checkpoint`.

        Args:
          seed: the seed of the initial rows.
          slots: the floats of each slot, by its name.
        """
        for shard in self._shards:
            shard.options = dataclasses.replace(shard.options, seed=seed)
        self._slot_names = tuple(slots)
        self._slot_widths = tuple(slots.values())

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        if save_type != "savedmodel":
            # Savers of a graph write the table as tensors of theirs, and
            # a SavedModel, which has no mark, is loaded as a checkpoint.
            marked = self.saveable is None and not self._is_served
            return super()._trackable_children(save_type) if marked else {}
        children: dict[str, Any] = {
            f"shard_{i}": shard for i, shard in enumerate(self._shards)
        }
        if not self.deals_by_remainder:
            n, partitioner = len(self._shards), self._partitioner
            name = self.name
            children["partition"] = tf.function(
                lambda keys: shard_of(keys, n, partitioner, name),
                input_signature=[tf.TensorSpec([None], self.key_dtype)],
                autograph=False,
            )
        return children

    def _deserialization_dependencies(
        self, children: dict[str, Any]
    ) -> dict[str, Any]:
        return children

    def _add_trackable_child(self, name: str, value: Any) -> None:
        """Children are dependencies: they are there already."""

    def _serialize_to_proto(
        self, object_proto: Any = None, **kwargs: Any
    ) -> wrappers_pb2.Int64Value:
        return wrappers_pb2.Int64Value(value=len(self._shards))

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> ShardedTable:
        num_shards = wrappers_pb2.Int64Value()
        kwargs["proto"].Unpack(num_shards)
        children = kwargs["dependencies"]
        traced = children.get("partition")
        table = cls.__new__(cls)
        ShardedTable.__init__(
            table,
            [children[f"shard_{i}"] for i in range(num_shards.value)],
            traced and (lambda keys, num_shards: traced(keys)),
            seed_is_given=False,
        )
        table._is_served = True
        return table

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        raise errors.StateError(
            f"Table '{self.name}' cannot be saved by an asynchronous "
            "checkpoint, which copies all variables first. Save it with "
            "`experimental_enable_async_checkpoint=False`."
        )

    def __deepcopy__(self, memo: Any) -> ShardedTable:
        raise errors.StateError(
            f"Table '{self.name}' cannot be copied in memory. Make another "
            "table and restore a checkpoint into it, or `upsert` the export."
        )

    def __reduce__(self) -> Any:
        raise errors.StateError(
            f"Table '{self.name}' cannot be pickled. Save it by "
            "tf.train.Checkpoint, and restore that into another table."
        )

    def in_words(self) -> str:
        """Says what the table maps, holds and takes, as far as that is at hand.

        Outside of eager mode, and of a table on another machine, that is what it
        was made with.
        """
        width = f"[{self.dim}]"
        parts = [f"{self.key_dtype.name} -> {self.value_dtype.name} {width}"]
        if self._is_at_hand():
            with contextlib.suppress(tf.errors.OpError):
                parts.append(self._held_in_words())
        if len(self._shards) > 1:
            parts.append(f"{len(self._shards)} shards")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self.name}': {self.in_words()}>"

    def _is_at_hand(self) -> bool:
        if not tf.executing_eagerly() or self._shards[0].is_in_graph:
            return False
        devices = [tf.DeviceSpec.from_string(h.device) for h in self.handles]
        return all(one.job in (None, "localhost") for one in devices)

    @abc.abstractmethod
    def _held_in_words(self) -> str:
        """Rows, bytes and what else a table holds; eager only."""
