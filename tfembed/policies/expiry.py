"""When rows expire by themselves."""

from __future__ import annotations

import dataclasses
import math

from tfembed import checks, errors

__all__ = ["Expiry"]


@dataclasses.dataclass(frozen=True)
class Expiry:
    """Has a table call `expire(limit)` by itself: every so often, or when saved.

    Attributes:
      limit: what `HashTable.expire` takes, by the table's eviction policy.
      every: training steps from one expiry to the next, counted over restores
        of checkpoints too; None: not by steps.
      at_checkpoints: whether rows expire before each checkpoint that saves the
        table: `tf.train.Checkpoint` and its managers, Keras' files,
        `tf.compat.v1.train.Saver`. Not before `tf.saved_model.save`, which
        leaves the table as it is.

    Raises:
      tfembed.errors.ArgumentError: a value that is not allowed, or neither
        `every` nor `at_checkpoints`.
    """

    limit: float
    every: int | None = None
    at_checkpoints: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", check_limit(self.limit))
        if self.every is not None:
            # A period is no size that programs compute: no float counts steps.
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
                f"Expiry(limit={self.limit!r}) never comes: give `every`, a "
                "number of training steps, or at_checkpoints=True; or leave the "
                "expiry out and call `expire`."
            )


def check_limit(limit: object) -> float:
    """`limit` as a number.

    Raises:
      tfembed.errors.ArgumentError: it is no number from 0 on.
    """
    number = checks.number(limit)
    if number is None or not 0 <= number < math.inf:
        raise errors.ArgumentError(
            f"`limit` must be a number from 0 on; got {limit!r}."
        )
    return number
