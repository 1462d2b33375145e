"""What a stage finds: a line of its table per program."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

__all__ = ["Result", "read", "write"]


@dataclasses.dataclass(frozen=True)
class Result:
    """One line.

    Attributes:
      name: what was tried.
      passed: whether it holds.
      columns: what was found, in order.
    """

    name: str
    passed: bool
    columns: dict[str, float | int | str]


def write(results: Sequence[Result], path: pathlib.Path) -> None:
    """Writes a stage's lines."""
    path.write_text(json.dumps([dataclasses.asdict(r) for r in results]))


def read(path: pathlib.Path) -> list[Result]:
    """The lines of a stage."""
    return [Result(**entry) for entry in json.loads(path.read_text())]
