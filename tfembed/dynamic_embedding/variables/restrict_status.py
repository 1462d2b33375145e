"""A restrict policy's status: one integer a key, in a table of its own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.variables.restrict_policy import RestrictPolicy
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops.private import track

__all__ = ["FrequencyRestrictPolicy", "StatusPolicy", "TimestampRestrictPolicy"]

# Attributes of a variable that its status shares.
_OF_VARIABLE = (
    *("key_dtype", "devices", "partition_fn", "name", "checkpoint"),
    *("init_size", "table"),
)


class StatusPolicy(RestrictPolicy):
    """Keeps the keys of the largest status. Base of the built-in policies.

    The status has the keys' dtype and the shards of the variable, and is called
    `status/<variable>/<kind>`. The status is a separate table, since keys may
    be noted before the variable has them. It follows the variable's table: a
    key that is removed from that in any way loses its status
    (`tfembed.tables.followers`).

    Args:
      var: the `Variable` to follow.
      kind: the meaning of a status, for the name.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) `var` is not a `Variable`, and
        lacks attributes of one that the status needs.
    """

    def __init__(self, var: Variable, kind: str) -> None:
        if not all(hasattr(var, name) for name in _OF_VARIABLE):
            raise errors.DtypeError(
                "`var` must be a dynamic_embedding.Variable, which "
                f"{type(self).__name__} follows; got {var!r}. Give the class to "
                "the variable, as its `restrict_policy`."
            )
        super().__init__(var)
        self._status = Variable(
            key_dtype=var.key_dtype,
            value_dtype=tf.int32,
            dim=1,
            devices=var.devices,
            partitioner=var.partition_fn,
            name=f"status/{var.name}/{kind}",
            initializer=0,
            trainable=False,
            checkpoint=var.checkpoint,
            init_size=var.init_size,
        )
        var.table.let_follow(self._status.table)
        if var.checkpoint:
            track(self, "status", self._status)

    @property
    def status(self) -> Variable:
        """The status by key, int32 of width 1; 0 for keys not noted yet."""
        return self._status

    def apply_restriction(
        self, num_reserved: int, *, trigger: int | None = None, **kwargs: Any
    ) -> tf.Tensor:
        """Removes the keys with the smallest status, with slots and status.

        The choice is exact over all shards: the variable keeps `num_reserved`
        keys. Keys that were never noted are removed first; ties are broken
        arbitrarily. The status of keys that the variable lacks is removed too.
        Keys that other threads insert meanwhile stay.

        Args:
          num_reserved: the number of keys to keep, from 0 on.
          trigger: a variable of at most so many keys is not changed. None:
            `num_reserved`.
          **kwargs: must be empty.

        Returns:
          int64 []: the number of keys that were removed from the variable.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) a number that is not an
            integer, or another keyword.
          tfembed.errors.ArgumentError: (also ValueError) a negative number.
        """
        if kwargs:
            raise errors.DtypeError(
                f"{type(self).__name__} restricts by `num_reserved` and "
                f"`trigger`; got {sorted(kwargs)} too."
            )
        kept = checks.key_count(num_reserved, "num_reserved")
        limit = (
            kept if trigger is None else checks.key_count(trigger, "trigger")
        )
        return tf.cond(
            self._variable.size() > limit,
            lambda: self._keep(kept),
            lambda: tf.constant(0, tf.int64),
        )

    def _keep(self, number: int) -> tf.Tensor:
        table, status = self._variable.table, self._status.table
        keys = table.keys()
        values, noted = status.lookup(keys)
        # In int64 there are values below every status.
        rank = tf.where(noted, tf.cast(values[:, 0], tf.int64), tf.int64.min)
        excess = tf.maximum(tf.size(keys, tf.int64) - number, 0)
        removed = tf.gather(keys, tf.argsort(rank)[:excess])
        # The first removes the status too, whether the variable holds the keys
        # still or not.
        writes = [table.remove(removed)]
        with tf.control_dependencies([w for w in writes if w is not None]):
            writes = [status.followers.drop_stale()]
        with tf.control_dependencies([w for w in writes if w is not None]):
            return tf.identity(excess)

    def _keys(self, ids: Any) -> tf.Tensor:
        """Converts `ids` to a tensor; the status refuses other dtypes."""
        if tf.is_tensor(ids):
            return ids
        return tf.convert_to_tensor(ids, self._variable.key_dtype)


class FrequencyRestrictPolicy(StatusPolicy):
    """Removes the keys that were updated least often.

    A key's status is the number of updates with the key; it saturates at the
    largest int32.

    Args:
      var: the `Variable` to follow.
      count_repeats: whether each occurrence of a repeated key in an update
        counts. For a variable pass `restrict_policy=functools.partial(
        FrequencyRestrictPolicy, count_repeats=True)`.
    """

    def __init__(self, var: Variable, count_repeats: bool = False) -> None:
        super().__init__(var, "frequency")
        self._count_repeats = bool(count_repeats)

    @property
    def freq_var(self) -> Variable:
        """The `status`, under TFRA's name."""
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


class TimestampRestrictPolicy(StatusPolicy):
    """Removes the keys that were not updated for the longest time.

    A key's status is the time of its last update, in seconds since 1970.

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
        """The `status`, under TFRA's name."""
        return self._status

    def apply_update(self, ids: Any) -> Any:
        """Sets the status of `ids`, keys of any shape, to the current time.

        Returns:
          The op in a graph, None in eager mode.
        """
        keys = self._keys(ids)
        now = tf.cast(tf.timestamp(), tf.int32)
        shape = tf.concat([tf.shape(keys), [1]], 0)
        return self._status.upsert(keys, tf.fill(shape, now))
