"""One shard of a table of strings: TensorFlow's own hash table."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf
from google.protobuf import wrappers_pb2

from tfembed.tables.table_shard import TableShard

__all__ = ["StringOptions", "StringShard"]


@dataclasses.dataclass(frozen=True)
class StringOptions:
    """What a shard is created from; all shards of a table share it.

    Attributes:
      name: the table's.
      dim: strings per row.
      missing: the row of missing keys, each string's bytes as hexadecimal text.
    """

    name: str
    dim: int
    missing: tuple[str, ...]
    key_dtype: str = "int64"
    value_dtype: str = "string"
    seed: int = 0  # No row is drawn.

    def missing_row(self) -> list[bytes]:
        """The row of missing keys."""
        return [bytes.fromhex(text) for text in self.missing]

    def to_json(self) -> dict[str, Any]:
        """A form that `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StringOptions:
        """Reads what `to_json` gave, after a round through JSON text."""
        return cls(**{**fields, "missing": tuple(fields["missing"])})


class StringShard(TableShard):
    """Owns one `MutableHashTableOfTensors`, named and freed as a `TableShard`.

    Its rows have a column more than the table's: what says that a row is there.
    """

    def __init__(self, options: StringOptions, device: str) -> None:
        super().__init__(options, device)

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

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> StringShard:
        text = wrappers_pb2.StringValue()
        kwargs["proto"].Unpack(text)
        fields = json.loads(text.value)
        return cls(StringOptions.from_json(fields["options"]), fields["device"])
