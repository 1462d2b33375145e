"""The data that the flags name, and what follows from its size."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator

from criteo.log_source import LogSource
from criteo.planted import PlantedStream, PlantedTruth
from criteo.planted_source import PlantedSource
from criteo.source import Chunk, Position, Source
from tfembed.data import SkippedLines
from tfembed.data.criteo import find_logs
from tfembed.errors import DataError

_PLANTED_EXAMPLES = 2_000_000
_SMALL_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Data:
    """Where examples come from, and how many.

    Attributes:
      source: of the examples.
      title: the source in a few words.
      batch_size: of the flags, or one that suits the source.
      total_steps: None if the end of the data is to be the end.
      skipped: where a log's bad lines are counted; None if they are not.
    """

    source: Source
    title: str
    batch_size: int
    total_steps: int | None
    skipped: SkippedLines | None

    def require_steps(self, steps: int) -> None:
        """Raises DataError where there was not enough data for one step."""
        if steps:
            return
        skipped = self.skipped.count if self.skipped else 0
        raise DataError(
            f"fewer good lines than one batch has, {self.batch_size} ({skipped} "
            "bad ones were skipped); give a smaller --batch_size or more "
            "--epochs",
            path=self.title,
        )

    def requests(self) -> Iterator[Chunk]:
        """Held-out rows, or where there are none any, to serve."""
        chunks = itertools.chain(
            self.source.held_out(), self.source.chunks(Position())
        )
        return (chunk for chunk in chunks if len(chunk.positions))


def open_data(flags: argparse.Namespace) -> Data:
    """Finds the logs, or plants a stream.

    Raises:
      tfembed.errors.DataError: there are no logs, or one is not sound.
    """
    return _planted(flags) if flags.data is None else _logs(flags)


def _planted(flags: argparse.Namespace) -> Data:
    stream = PlantedStream(PlantedTruth(seed=flags.seed))
    batch_size = flags.batch_size or 4096
    examples = flags.examples or _PLANTED_EXAMPLES
    steps = max(1, examples // batch_size)
    title = (
        f"a planted stream: {steps * batch_size:,} examples, "
        f"{len(stream.strings):,} ids by Zipf's law in 26 categories"
    )
    return Data(PlantedSource(stream), title, batch_size, steps, None)


def _logs(flags: argparse.Namespace) -> Data:
    if not flags.data:
        raise DataError("is empty; it takes a path or a glob", path="--data")
    logs = find_logs(flags.data)
    size = sum(pathlib.Path(log.path).stat().st_size for log in logs)
    is_small = size < _SMALL_BYTES
    epochs = flags.epochs or (20 if is_small else 1)
    source = LogSource(
        logs,
        epochs=epochs,
        holdout=flags.holdout,
        skip_bad_lines=flags.skip_bad_lines,
    )
    batch_size = flags.batch_size or (32 if is_small else 4096)
    files = logs[0].path if len(logs) == 1 else f"{len(logs)} files"
    passes = "once" if epochs == 1 else f"{epochs} times"
    return Data(
        source,
        f"{files}, {size / 1e6:,.1f} MB, read {passes}",
        batch_size,
        flags.examples and max(1, flags.examples // batch_size),
        source.skipped if flags.skip_bad_lines else None,
    )
