"""What a table holds and takes."""

from __future__ import annotations

import dataclasses

__all__ = ["TableStats"]


@dataclasses.dataclass(frozen=True)
class TableStats:
    """What a table holds and takes, over all its shards.

    Attributes:
      size: keys.
      capacity: keys that fit before an index grows.
      index_bytes: bytes of the indexes, keys included.
      row_bytes: bytes of the rows: values, slots and free rows.
    """

    size: int
    capacity: int
    index_bytes: int
    row_bytes: int

    @property
    def bytes_per_key(self) -> float:
        """All bytes over all keys; 0 for an empty table."""
        total = self.index_bytes + self.row_bytes
        return total / self.size if self.size else 0.0
