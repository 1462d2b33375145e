"""Keeps the keys that were used last."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.restrict.restrict_status import StatusPolicy
from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["TimestampRestrictPolicy"]


class TimestampRestrictPolicy(StatusPolicy):
    """Removes the keys that were not updated for the longest time.

    A key's status is the second, since 1970, of its last update.

    Args:
      var: the `Variable` to follow.

    Example:
      variable = de.Variable(restrict_policy=de.TimestampRestrictPolicy)
      ...  # train
      variable.restrict(1_000_000, trigger=1_200_000)
    """

    def __init__(self, var: Variable) -> None:
        super().__init__(var, "timestamp")

    @property
    def tstp_var(self) -> Variable:
        """`status`, by TFRA's name."""
        return self._status

    def apply_update(self, ids: Any) -> Any:
        """Sets the status of `ids`, keys of any shape, to this second.

        Returns:
          The op in a graph, None in eager mode.
        """
        keys = self._keys(ids)
        now = tf.cast(tf.timestamp(), tf.int32)
        shape = tf.concat([tf.shape(keys), [1]], 0)
        return self._status.upsert(keys, tf.fill(shape, now))
