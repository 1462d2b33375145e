"""What examples come from: chunks of columns, each row with its position."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf


class Position(NamedTuple):
    """The position where a source continues; a planted stream has only `line`.

    Attributes:
      epoch: the number of finished passes over all files.
      file: the number of the file.
      line: the number of lines read of it; for a planted stream, of examples
        drawn.
      offset: the number of bytes read of it, uncompressed.
    """

    epoch: int = 0
    file: int = 0
    line: int = 0
    offset: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a click log.

    Attributes:
      labels: float32 [n], 0 or 1.
      integers: float32 [n, 13], NaN where empty.
      categories: string [26, n], "" where empty.
      positions: int64 [n, 4], the Position after each row.
    """

    labels: tf.Tensor
    integers: tf.Tensor
    categories: tf.Tensor
    positions: np.ndarray[Any, Any]


class Source(Protocol):
    """A click log that can be entered at any position."""

    def chunks(self, start: Position) -> Iterator[Chunk]:
        """The rows from `start` on, to train on. Raises tfembed.errors.DataError."""

    def held_out(self) -> Iterator[Chunk]:
        """Rows that `chunks` never gives, to evaluate with."""

    def describe(self, position: Position) -> str:
        """The position in words."""

    def fingerprint(self) -> str:
        """What must be the same for a position to mean the same."""
