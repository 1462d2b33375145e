"""The shards of one logical table, and how TensorFlow's savers see them."""

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
from tfembed.cluster.owners import host_device
from tfembed.cluster.row_exchange import ExchangedTable
from tfembed.initializers import RowInitializer
from tfembed.ops import model_calls, private
from tfembed.ops import table as table_ops
from tfembed.ops.private import track
from tfembed.tables import arguments
from tfembed.tables.key_access import KeyAccess
from tfembed.tables.partition import KeyPartition, Partitioner, shard_of

__all__ = [
    "CheckpointMark",
    "NumberShard",
    "ShardOptions",
    "ShardedTable",
    "TableShard",
    "not_in_savers",
    "note_read",
]

# The graph collection of the names of its tables. The graph's `unique_name`
# counts other ops and name scopes too, so workers whose graphs differ in these
# would share no tables. The key is not a string, because a Saver tries to write
# collections with string keys into its meta graph.
_USED_NAMES = ("tfembed_table_names",)


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """The options to create shards from, equal for all shards of a table."""

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
        """Returns the fields in a form that `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ShardOptions:
        """Reads what `to_json` gave, after a round through JSON text."""
        initializer = dict(fields["initializer"])
        initializer["arguments"] = tuple(initializer["arguments"])
        return cls(**{**fields, "initializer": RowInitializer(**initializer)})


class TableShard(tf.saved_model.experimental.TrackableResource):
    """Owns a table's resource handle; the last reference frees the table.

    In eager mode the handle is anonymous: this object and the functions that
    captured it share it. In a graph the table has a resource name, by which
    each run finds it again. In a graph of TensorFlow 1 that is the table's own
    name, so that all sessions of a server that build the same graph share the
    table. In a graph that `tf.saved_model.save` writes, which outlives this
    process, it is a name that no other table has.

    Args:
      options: an object of the class `_OPTIONS`, with `from_json` and
        `to_json`.
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
        """Whether the table belongs to a graph of TensorFlow 1."""
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
        # Without the device: a process that loads it need not have that one.
        return wrappers_pb2.StringValue(
            value=json.dumps(self.options.to_json())
        )

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> TableShard:
        text = wrappers_pb2.StringValue()
        kwargs["proto"].Unpack(text)
        options = cls._OPTIONS.from_json(json.loads(text.value))
        return cls(options, "/CPU:0")

    def _add_trackable_child(self, name: str, value: Any) -> None:
        """Ignores the functions that a SavedModel adds to a resource."""


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
    """Saves a table's width as a tensor of TensorFlow's own.

    tfembed's savers write tables, and TensorFlow does not count what they write
    when it compares a checkpoint with the program's objects. Without this
    tensor, `assert_consumed` and `assert_existing_objects_matched` would pass
    although tables were not restored.

    Args:
      table: a `ShardedTable`, which holds the mark.
    """

    def __init__(self, table: Any) -> None:
        self._table = weakref.ref(table)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        table = self._table()
        return {"width": tf.constant(table.dim if table else 0, tf.int64)}

    def _restore_from_tensors(self, tensors: Mapping[str, tf.Tensor]) -> None:
        """Does nothing: the table's own restore compares the widths."""

    def __repr__(self) -> str:
        return f"<mark of {self._table()!r}>"


def note_read(table: ShardedTable) -> None:
    """Tells the function that is being traced, and a model, of a read."""
    private.table_read(table)
    model_calls.note_read(table)


def not_in_savers(what: str) -> errors.UnsupportedError:
    """Makes the error for a Saver that would leave out the rows of `what`."""
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


def _home_of(shards: list[TableShard]) -> tuple[str, int, int, int] | None:
    places = {host_device(one.resource_handle.device) for one in shards}
    place = places.pop()
    return None if places or place[0] != "localhost" else place


class ShardedTable(tf.__internal__.tracking.Trackable, KeyAccess):
    """Shards and their partitioner. Base of `HashTable` and `StringTable`.

    A checkpoint has one object for any number of shards; `tfembed.checkpoint`
    writes its content. A SavedModel has the shards too, since its functions
    capture their handles, and the partitioner as a traced function, so that a
    loaded table and the functions saved with it partition keys alike.

    Args:
      shards: at least one.
      partitioner: see `tfembed.tables.partition`.
      seed_is_given: whether the user gave the seed; if not, a restored
        checkpoint's seed replaces it.

    Attributes:
      home: the one device of this process that has all shards; None: they lie
        in another process, or on several devices.
    """

    # The object through which Savers and tf.train.Checkpoint save the table in
    # a graph; None in eager mode, where tfembed's own saver does.
    saveable: Any = None

    # The `Workers` that share the table, each of which has rows of its own.
    workers: Any = None

    def __init__(
        self,
        shards: list[TableShard],
        partitioner: Partitioner | None,
        seed_is_given: bool,
    ) -> None:
        self._shards = shards
        self.home = _home_of(shards)
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
        """A unique id of the table for the ops that write row files."""
        # A single step of Python: threads that ask at once get the same id.
        return str(self.__dict__.setdefault("_file_owner", uuid.uuid4().hex))

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
        """Whether the user gave the seed, so that no checkpoint replaces it."""
        return self._seed_is_given

    @property
    def key_dtype(self) -> tf.DType:
        """The dtype of the keys."""
        return tf.as_dtype(self._shards[0].options.key_dtype)

    def _key_tensor(self, keys: Any) -> tf.Tensor:
        """Converts keys to a tensor of the key dtype."""
        if isinstance(keys, tf.Tensor) and keys.dtype == self.key_dtype:
            return keys  # Small eager calls feel each Python step.
        return arguments.key_tensor(keys, self.key_dtype, self.name)

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
        """The resource handle of shard 0, the only one of a one-shard table."""
        return self._shards[0].resource_handle

    def exchanged(self, *, repeats: bool = False) -> ExchangedTable:
        """Returns the table as a `RowExchange` takes it."""
        handles = [shard.resource_handle for shard in self._shards]
        return ExchangedTable(self.name, self.dim, handles, repeats)

    def shards_beside(self, keys: tf.Tensor) -> tf.Tensor | None:
        """Returns the shard of each of `keys` [n]; None where it is the remainder."""
        if self.deals_by_remainder:
            return None
        return shard_of(keys, len(self._shards), self._partitioner, self.name)

    @property
    def handles(self) -> list[tf.Tensor]:
        """The resource handle of each shard.

        A function that is being traced keeps the table, so that exports save
        it.
        """
        note_read(self)
        return [shard.resource_handle for shard in self._shards]

    @property
    def partitioner(self) -> Partitioner | None:
        """The function that maps keys to shards; None: floormod."""
        return self._partitioner

    @property
    def deals_by_remainder(self) -> bool:
        """Whether a key's shard is floormod(key, number of shards)."""
        is_default = self._partitioner is None and self.key_dtype != tf.string
        return is_default or len(self._shards) == 1

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of each row's slots, attached or restored."""
        return self._slot_names

    @property
    def slot_widths(self) -> tuple[int, ...]:
        """The floats per row of each slot: the table's width, or one."""
        return self._slot_widths

    @property
    def takes_slots(self) -> bool:
        """Whether a restore loads slots.

        It is False for a table from `tf.saved_model.load`, which is not
        trained.
        """
        return bool(self._slot_names) or not self._is_served

    def partition(self, keys: tf.Tensor) -> KeyPartition:
        """Partitions `keys` of any shape among the shards."""
        return KeyPartition(
            keys, len(self._shards), self._partitioner, self.name
        )

    def adopt(self, *, seed: int, slots: dict[str, int]) -> None:
        """Adopts a checkpoint's seed and slots; for `tfembed.checkpoint`.

        Args:
          seed: the seed of the initial rows.
          slots: the name of each slot -> its floats per row.
        """
        for shard in self._shards:
            shard.options = dataclasses.replace(shard.options, seed=seed)
        self._slot_names = tuple(slots)
        self._slot_widths = tuple(slots.values())

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        if save_type != "savedmodel":
            # A graph's Savers write the table as their own tensors, and a
            # SavedModel, which is loaded as a checkpoint, has no mark.
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
        """Does nothing: the children are dependencies and exist already."""

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
        """Describes dtypes, width, shards, and in eager mode the content.

        In graphs, and for a table on another machine, the content is left out.
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
        places = [host_device(handle.device) for handle in self.handles]
        return all(job == "localhost" for job, *_ in places)

    @abc.abstractmethod
    def _held_in_words(self) -> str:
        """Describes the table's content: rows, bytes and more; eager only."""
