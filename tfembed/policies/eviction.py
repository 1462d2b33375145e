"""Eviction policies, which decide what rows a table removes first, and when."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from tfembed import checks, errors

__all__ = [
    "EvictionPolicy",
    "Expiry",
    "LeastFrequent",
    "LeastRecent",
    "SmallestNorm",
]


class EvictionPolicy(abc.ABC):
    """Decides which rows a table removes first.

    A description: immutable, for any number of tables. Inserting, writing or
    training a row touches it; reading does not.

    Attributes:
      notes: whether each row has a note, of 4 bytes.
      limit_is_age: whether `expire` removes rows above its limit, or below it.
    """

    notes: ClassVar[bool]
    limit_is_age: ClassVar[bool]

    @property
    @abc.abstractmethod
    def unit(self) -> str:
        """The unit of `expire`'s limit: "touches", "steps", "seconds", "norm"."""

    @property
    @abc.abstractmethod
    def saved_notes(self) -> str:
        """The meaning of the notes in checkpoints; "" without notes."""

    @abc.abstractmethod
    def worth(self, values: Any, notes: Any, now: float) -> Any:
        """Returns the worth of rows, float64 [n]; the smallest goes first.

        Args:
          values: the rows, [n, dim], where rows have no notes; else unused.
          notes: the notes of the rows, [n], where rows have them.
          now: the step or the second to which the notes of times refer.
        """

    @abc.abstractmethod
    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""


@dataclasses.dataclass(frozen=True)
class LeastFrequent(EvictionPolicy):
    """Removes the rows that were touched least often first.

    Takes 4 bytes per row. A training step and a batch of `upsert` or `accum`
    touch a row once, even if its key comes several times.
    """

    notes: ClassVar[bool] = True
    limit_is_age: ClassVar[bool] = False

    @property
    def unit(self) -> str:
        """The unit of `expire`'s limit."""
        return "touches"

    @property
    def saved_notes(self) -> str:
        """The meaning of the notes in checkpoints."""
        return "writes"

    def worth(self, values: Any, notes: Any, now: float) -> Any:
        """Returns how often each row was touched."""
        return np.asarray(notes, np.float64)

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""
        return "least_frequent"


@dataclasses.dataclass(frozen=True)
class LeastRecent(EvictionPolicy):
    """Removes the rows that were not touched for the longest time first.

    Takes 4 bytes per row. Time is counted in steps, the batches of writes to
    the table (a training step, an `upsert`, an `accum`), or in seconds.

    Attributes:
      clock: "steps" or "seconds".

    Raises:
      tfembed.errors.ArgumentError: the clock is neither.
    """

    notes: ClassVar[bool] = True
    limit_is_age: ClassVar[bool] = True

    clock: str = "steps"

    def __post_init__(self) -> None:
        if self.clock not in ("steps", "seconds"):
            raise errors.ArgumentError(
                f"`clock` must be 'steps' or 'seconds'; got {self.clock!r}."
            )

    @property
    def unit(self) -> str:
        """The unit of `expire`'s limit."""
        return self.clock

    @property
    def saved_notes(self) -> str:
        """The meaning of the notes in checkpoints."""
        return "steps_ago" if self.clock == "steps" else "seconds_since_1970"

    def worth(self, values: Any, notes: Any, now: float) -> Any:
        """Returns the negative time since each row was touched."""
        return -np.maximum(0.0, now - np.asarray(notes, np.float64))

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""
        return f"least_recent seconds={int(self.clock == 'seconds')}"


@dataclasses.dataclass(frozen=True)
class SmallestNorm(EvictionPolicy):
    """Removes the rows of the smallest Euclidean norm first, after NaN rows.

    Takes no memory, and supports rows of any dtype; booleans count as 0 and 1.
    Slots do not count.
    """

    notes: ClassVar[bool] = False
    limit_is_age: ClassVar[bool] = False

    @property
    def unit(self) -> str:
        """The unit of `expire`'s limit."""
        return "norm"

    @property
    def saved_notes(self) -> str:
        """The meaning of the notes in checkpoints."""
        return ""

    def worth(self, values: Any, notes: Any, now: float) -> Any:
        """Returns the norm of each row, -1 for one with NaN."""
        norms = np.sqrt(np.sum(np.square(values, dtype=np.float64), 1))
        return np.where(np.isnan(norms), -1.0, norms)

    def policy_text(self) -> str:
        """Returns the policy as `cc/core/policies/eviction.h` parses it."""
        return "smallest_norm"


@dataclasses.dataclass(frozen=True)
class Expiry:
    """Makes a table call `expire(limit)` at intervals, or when it is saved.

    Attributes:
      limit: the argument of `HashTable.expire`, for the table's eviction
        policy.
      every: the training steps from one expiry to the next, counted across
        restores of checkpoints; None: not by steps.
      at_checkpoints: whether rows expire before each checkpoint that saves the
        table: `tf.train.Checkpoint` and its managers, Keras' files,
        `tf.compat.v1.train.Saver`. Not before `tf.saved_model.save`, which
        leaves the table as it is.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed, or both `every` and
        `at_checkpoints` are missing.
    """

    limit: float
    every: int | None = None
    at_checkpoints: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", check_limit(self.limit))
        if self.every is not None:
            # Unlike sizes, a period is not computed by programs: floats are
            # refused.
            if isinstance(checks.scalar(self.every), float):
                raise errors.ArgumentError(
                    "`every` must be an integer of at least 1; got "
                    f"{self.every!r}."
                )
            every = checks.integer(self.every, "every", least=1)
            object.__setattr__(self, "every", every)
        if not isinstance(self.at_checkpoints, bool):
            raise errors.ArgumentError(
                "`at_checkpoints` must be True or False; got "
                f"{self.at_checkpoints!r}."
            )
        if self.every is None and not self.at_checkpoints:
            raise errors.ArgumentError(
                f"Expiry(limit={self.limit!r}) never happens: give `every`, a "
                "number of training steps, or at_checkpoints=True; or leave the "
                "expiry out and call `expire`."
            )


def check_limit(limit: object) -> float:
    """Converts `limit` to a float.

    Raises:
      tfembed.errors.ArgumentError: `limit` is not a finite number of at least
        0.
    """
    number = checks.number(limit)
    if number is None or not 0 <= number < math.inf:
        raise errors.ArgumentError(
            f"`limit` must be a number from 0 on; got {limit!r}."
        )
    return number
