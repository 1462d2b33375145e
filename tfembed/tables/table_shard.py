"""One shard of a hash table: an EmbeddingTable behind a resource handle."""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import Any

import tensorflow as tf
from google.protobuf import wrappers_pb2

from tfembed.initializers import RowInitializer
from tfembed.ops import table as table_ops

__all__ = ["ShardOptions", "TableShard"]

# What the tables of a graph are called. Not by the graph's `unique_name`: other
# ops and the number of a name scope would be in it, and workers whose graphs
# differ in these would share no tables. No string: a Saver tries to write what
# collections of such names hold into its meta graph.
_USED_NAMES = ("tfembed_table_names",)


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """What a shard is created from; all shards of a table share it."""

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
      options: a `ShardOptions`; of a derived class, its own.
      device: a host device.
    """

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
        return cls(ShardOptions.from_json(fields["options"]), fields["device"])

    def _add_trackable_child(self, name: str, value: Any) -> None:
        """Leaves the functions that a SavedModel keeps of a resource alone."""
