"""A planted stream as a source of examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from criteo.planted import PlantedStream
from criteo.source import Chunk, Position

# No training comes this far.
EVALUATION_START = 1 << 40
_CHUNK = 8192


class PlantedSource:
    """A stream without an end; a Source. Its held-out rows come far later."""

    def __init__(self, stream: PlantedStream) -> None:
        self.stream = stream
        self._strings = tf.constant(stream.strings.astype(object), tf.string)

    def chunks(self, start: Position) -> Iterator[Chunk]:
        """The examples from number `start.line` on."""
        return self._draw(start.line)

    def held_out(self) -> Iterator[Chunk]:
        """The examples of the evaluation part."""
        return self._draw(EVALUATION_START)

    def describe(self, position: Position) -> str:
        """For example `example 4,096`."""
        return f"example {position.line:,}"

    def fingerprint(self) -> str:
        """The truth's parameters."""
        return repr(self.stream.truth)

    def _draw(self, first: int) -> Iterator[Chunk]:
        for start in itertools.count(first, _CHUNK):
            drawn = self.stream.draw(start, _CHUNK)
            positions = np.zeros([_CHUNK, len(Position._fields)], np.int64)
            positions[:, 2] = start + 1 + np.arange(_CHUNK)
            yield Chunk(
                tf.constant(drawn.labels),
                tf.constant(drawn.integers),
                tf.gather(self._strings, drawn.ids.T),
                positions,
            )
