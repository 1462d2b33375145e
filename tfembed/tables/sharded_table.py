"""The shards of one logical table, and what TensorFlow's savers see of them."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import tensorflow as tf
from google.protobuf import wrappers_pb2

from tfembed import errors
from tfembed.tables.checkpoint_mark import CheckpointMark
from tfembed.tables.partition import KeyPartition, Partitioner, shard_of
from tfembed.tables.table_shard import TableShard

__all__ = ["ShardedTable"]


class ShardedTable(tf.__internal__.tracking.Trackable):
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

    # What the Savers of the table's graph save, and tf.train.Checkpoint there;
    # None in eager mode, where a saver of our own does.
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
        self._track_trackable(CheckpointMark(self), "mark")

    @property
    def name(self) -> str:
        """The table's name."""
        return self._shards[0].options.name

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
        """What keys are."""
        return tf.as_dtype(self._shards[0].options.key_dtype)

    @property
    def value_dtype(self) -> tf.DType:
        """What the numbers of a row are."""
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
        """The resource handle of each shard."""
        return [shard.resource_handle for shard in self._shards]

    @property
    def partitioner(self) -> Partitioner | None:
        """What deals keys to shards; None: floormod."""
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
          seed: of the initial rows.
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

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} '{self.name}' of {self.key_dtype.name} -> "
            f"{self.value_dtype.name} [{self.dim}], {len(self._shards)} shard(s)>"
        )
