"""How an engine works, whichever it is."""

from __future__ import annotations

import dataclasses

from tfembed import errors
from tfembed.embedding.steps.step_queue import QueueBound

__all__ = ["EngineOptions"]

_NONFINITE = ("skip", "refuse", "allow")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How an engine works.

    Attributes:
      nonfinite: "skip", "refuse" or "allow" (`ops.grouped_update`).
      bound: how many batches may wait.
      is_pipelined: whether updates run beside the next step (`pipeline.py`).

    Raises:
      tfembed.errors.ArgumentError: another `nonfinite`.
    """

    nonfinite: str
    bound: QueueBound
    is_pipelined: bool

    def __post_init__(self) -> None:
        if self.nonfinite not in _NONFINITE:
            raise errors.ArgumentError(
                f"`nonfinite` must be one of {_NONFINITE}; got "
                f"{self.nonfinite!r}."
            )
