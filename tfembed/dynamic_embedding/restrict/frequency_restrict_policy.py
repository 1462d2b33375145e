"""Keeps the keys that are used most."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.restrict.restrict_status import StatusPolicy
from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["FrequencyRestrictPolicy"]


class FrequencyRestrictPolicy(StatusPolicy):
    """Removes the keys that were updated least often.

    A key's status is the number of updates in which it took part; it stays at
    the largest int32 once it got there.

    Args:
      var: the `Variable` to follow.
      count_repeats: whether a key that comes several times in one update counts
        that often. As an argument of a variable it is
        `restrict_policy=functools.partial(FrequencyRestrictPolicy,
        count_repeats=True)`.
    """

    def __init__(self, var: Variable, count_repeats: bool = False) -> None:
        super().__init__(var, "frequency")
        self._count_repeats = bool(count_repeats)

    @property
    def freq_var(self) -> Variable:
        """`status`, by TFRA's name."""
        return self._status

    def apply_update(self, ids: Any) -> Any:
        """Adds 1 to the status of each of `ids`, keys of any shape.

        Returns:
          The op in a graph, None in eager mode.
        """
        keys = tf.reshape(self._keys(ids), [-1])
        keys, _, repeats = tf.unique_with_counts(keys)
        added = repeats if self._count_repeats else tf.ones_like(repeats)
        old, exists = self._status.lookup(keys, return_exists=True)
        # Never past the largest int32.
        new = old + tf.minimum(added[:, tf.newaxis], tf.int32.max - old)
        return self._status.accum(keys, old, new, exists)
