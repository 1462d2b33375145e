"""Counts of a table's keys, bytes and uses."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["TableStats"]


@dataclasses.dataclass(frozen=True)
class TableStats:
    """Counts of a table's keys, bytes and uses, over all its shards.

    The counts begin when the table is made, and no checkpoint saves them.

    Attributes:
      size: keys.
      capacity: keys that fit before an index grows.
      index_bytes: bytes of the indexes, keys included.
      row_bytes: bytes of the rows: values, slots, notes and free rows.
      hits, misses: keys of lookups that the table held, and that it lacked.
      admitted: keys that training steps inserted.
      refused: keys of training steps that the admission policy refused.
      evicted: keys that eviction or expiry removed.
      nan_rows: rows with a NaN that were upserted.
      value_bytes, slot_bytes: the bytes of the rows in use.
      meta_bytes: bytes of the eviction policy's notes in the rows in use.
      policy_bytes: bytes of the admission policy, outside of rows and indexes.
      places: the slots for keys in the indexes, free ones included.
      probes: buckets read in total to find each key once.
      longest_probe: the most buckets read to find one key.
    """

    size: int
    capacity: int
    index_bytes: int
    row_bytes: int
    hits: int = 0
    misses: int = 0
    admitted: int = 0
    refused: int = 0
    evicted: int = 0
    nan_rows: int = 0
    value_bytes: int = 0
    slot_bytes: int = 0
    meta_bytes: int = 0
    policy_bytes: int = 0
    places: int = 0
    probes: int = 0
    longest_probe: int = 0

    @classmethod
    def of_shards(cls, shards: Iterable[TableStats]) -> TableStats:
        """Sums the stats of shards; takes the largest `longest_probe`."""
        each = [dataclasses.astuple(shard) for shard in shards]
        total = cls(*map(sum, zip(*each, strict=True)))
        longest = max(shard[-1] for shard in each)
        return dataclasses.replace(total, longest_probe=longest)

    @property
    def bytes_per_key(self) -> float:
        """All bytes divided by the number of keys; 0 for an empty table."""
        total = self.index_bytes + self.row_bytes + self.policy_bytes
        return total / self.size if self.size else 0.0

    @property
    def load_factor(self) -> float:
        """The share of the indexes' slots in use; 0 for an empty index."""
        return self.size / self.places if self.places else 0.0

    @property
    def mean_probe(self) -> float:
        """The mean number of buckets read to find a key; at least 1."""
        return self.probes / self.size if self.size else 1.0

    @property
    def hit_rate(self) -> float:
        """The share of looked-up keys that the table held; 0 for no lookups."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def scalars(self) -> dict[str, float]:
        """Returns all attributes and rates by their names."""
        rates = ("bytes_per_key", "load_factor", "mean_probe", "hit_rate")
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in rates},
        }

    def write_scalars(
        self, step: Any, *, prefix: str = "table", writer: Any = None
    ) -> None:
        """Writes attributes and rates as TensorBoard scalars `<prefix>/<name>`.

        Args:
          step: the step of the scalars.
          prefix: the table's name, for example.
          writer: the writer of `tf.summary.create_file_writer`; None: the
            default writer.

        Raises:
          TBNotInstalledError: (of TensorFlow) TensorBoard is not installed.
            TensorFlow up to 2.20 installs it; later `pip install tensorboard`
            does.

        Example:
          with writer.as_default():
            variable.table.stats().write_scalars(step, prefix=variable.name)
        """
        with contextlib.ExitStack() as stack:
            if writer is not None:
                stack.enter_context(writer.as_default())
            for name, value in self.scalars().items():
                tf.summary.scalar(f"{prefix}/{name}", value, step=step)
