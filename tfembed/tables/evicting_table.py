"""How keys leave a hash table by a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfembed import checks, errors
from tfembed.ops import private
from tfembed.ops import table as table_ops
from tfembed.policies import (
    AdmissionPolicy,
    EvictionPolicy,
    Expiry,
    SmallestNorm,
)
from tfembed.policies.expiry import check_limit
from tfembed.tables.followed_table import FollowedTable

__all__ = ["EvictedRows", "EvictingTable"]


class EvictedRows(NamedTuple):
    """What was removed.

    Attributes:
      keys: of the table's key dtype, [n].
      values: of its value dtype, [n, dim]; None where they were not asked for.
    """

    keys: tf.Tensor
    values: tf.Tensor | None


class EvictingTable(FollowedTable):
    """Rows that a policy judges and removes. Base of `HashTable`."""

    # None in a table from a SavedModel, which nobody trains.
    _admission: AdmissionPolicy | None = None
    _eviction: EvictionPolicy | None = None
    _expiry: Expiry | None = None
    _trained_steps: Any = None  # A variable, where the expiry counts steps.
    _is_exporting = False

    @property
    def admission(self) -> AdmissionPolicy | None:
        """Which new keys training inserts; None: all."""
        return self._admission

    @property
    def eviction(self) -> EvictionPolicy | None:
        """What judges the rows; None: nothing is noted of them."""
        return self._eviction

    @property
    def expiry(self) -> Expiry | None:
        """When rows expire by themselves; None: when `expire` is called."""
        return self._expiry

    def set_policies(
        self,
        admission: AdmissionPolicy | None,
        eviction: EvictionPolicy | None,
        expiry: Expiry | None,
    ) -> None:
        """Notes what the shards were made with; for `HashTable`."""
        self._admission = admission
        self._eviction = eviction
        self._expiry = expiry
        if expiry is not None and expiry.every is not None:
            with tf.init_scope():
                self._trained_steps = private.single_variable(
                    initial_value=tf.constant(0, tf.int64),
                    trainable=False,
                    name="trained_steps",
                )

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        # So that a training that is often resumed comes to its expiries too; of a
        # model, functions that train count on.
        if self._trained_steps is not None:
            children["trained_steps"] = self._trained_steps
        return children

    def _add_trackable_child(self, name: str, value: Any) -> None:
        if name == "trained_steps":
            self._trained_steps = value
        else:
            super()._add_trackable_child(name, value)

    def note_training_step(self) -> None:
        """Counts a training step, and expires rows where it is time to."""
        expiry = self._expiry
        if expiry is None or expiry.every is None:
            return
        steps = self._trained_steps.assign_add(1, read_value=True)
        tf.cond(
            tf.equal(steps % expiry.every, 0),
            lambda: tf.size(self.expire(expiry.limit).keys),
            lambda: tf.constant(0),
        )

    def note_checkpoint(self, *, export_follows: bool) -> None:
        """Expires rows before they are saved, where the expiry says so.

        Args:
          export_follows: whether a SavedModel is being made, which takes the
            rows as they are, in the next call.
        """
        is_export = export_follows or self._is_exporting
        self._is_exporting = export_follows
        expiry = self._expiry
        if expiry is not None and expiry.at_checkpoints and not is_export:
            self.expire(expiry.limit)

    def check_room(self, keys: tf.Tensor) -> list[tf.Operation]:
        """Refuses keys [n] that do not fit before any table is changed.

        Returns, raises: as `check_bounds`.
        """
        if self.max_size is None:
            return []
        return self.check_bounds(
            self.partition(keys).split(keys), even_alone=True
        )

    def check_bounds(
        self, keys: Sequence[tf.Tensor], *, even_alone: bool = False
    ) -> list[tf.Operation]:
        """Refuses a batch that does not fit before any shard is changed.

        Args:
          keys: of the batch, a tensor a shard.
          even_alone: whether to look at a single shard too, which refuses by
            itself, but then other tables may have been changed already.

        Returns:
          What must come before the batch is written.

        Raises:
          tf.errors.InvalidArgumentError: a shard has more distinct keys than it
            may hold.
        """
        is_alone = len(self.shards) == 1
        if self.max_size is None or (is_alone and not even_alone):
            return []
        checks = [
            tf.debugging.assert_less_equal(
                tf.size(tf.unique(tf.reshape(part, [-1])).y, tf.int64),
                tf.constant(shard.options.max_size, tf.int64),
                f"A batch has more distinct keys of a shard of '{self.name}' "
                "than it may hold; nothing was changed. Use smaller batches or "
                "a larger `max_size`",
            )
            for part, shard in zip(keys, self.shards, strict=True)
        ]
        return [check for check in checks if check is not None]

    def evict(
        self,
        keep: int,
        *,
        policy: EvictionPolicy | None = None,
        return_values: bool = False,
    ) -> EvictedRows:
        """Removes the rows of the lowest worth, slots and status with them.

        Exact, over all shards together: `keep` keys stay, or all where there are
        no more. Keys that other threads insert meanwhile stay too.

        Args:
          keep: how many keys stay, from 0 on.
          policy: `SmallestNorm()`, for any table; None: the table's.
          return_values: whether to hand out the removed values.

        Returns:
          What was removed.

        Raises:
          tfembed.errors.ArgumentError: a negative `keep`, or no policy.
          tfembed.errors.DtypeError: `keep` is no integer.
        """
        number = checks.key_count(keep, "keep")
        keys, worth = self.worth(policy)
        excess = tf.maximum(tf.size(keys, tf.int64) - number, 0)
        removed = tf.gather(keys, tf.argsort(worth)[:excess])
        return self._evict_keys(removed, return_values)

    def expire(
        self,
        limit: float,
        *,
        policy: EvictionPolicy | None = None,
        return_values: bool = False,
    ) -> EvictedRows:
        """Removes the rows that are past a limit, slots and status with them.

        Args:
          limit: by `LeastRecent`, rows go that were not touched for that many
            steps or seconds, or more; by `LeastFrequent`, those that were
            touched less often; by `SmallestNorm`, those of a smaller norm.
          policy: as for `evict`.
          return_values: as for `evict`.

        Returns:
          What was removed.

        Raises:
          tfembed.errors.ArgumentError: `limit` is no number from 0 on, or there
            is no policy.
        """
        limit = check_limit(limit)
        judge = self._judging(policy)
        keys, worth = self.worth(judge)
        past = -worth >= limit if judge.limit_is_age else worth < limit
        return self._evict_keys(tf.boolean_mask(keys, past), return_values)

    def worth(
        self, policy: EvictionPolicy | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys [n] and what their rows are worth, float64 [n].

        Args:
          policy: as for `evict`.

        Returns:
          By `LeastFrequent` how often a row was touched, by `LeastRecent` for
          how long not, negative, by `SmallestNorm` the norm.

        Raises:
          tfembed.errors.ArgumentError: no policy.
        """
        judge = self._judging(policy)
        text = "" if judge == self._eviction else judge.policy_text()
        each = [
            table_ops.worth(handle, policy=text, key_dtype=self.key_dtype)
            for handle in self.handles
        ]
        keys, worth = (tf.concat(x, 0) for x in zip(*each, strict=True))
        return keys, worth

    def _judging(self, policy: EvictionPolicy | None) -> EvictionPolicy:
        judge = policy or self._eviction
        if judge is None:
            raise errors.ArgumentError(
                f"Table '{self.name}' has no eviction policy; make it with "
                "`eviction=`, or give `policy=SmallestNorm()`."
            )
        if judge != self._eviction and not isinstance(judge, SmallestNorm):
            raise errors.ArgumentError(
                f"The rows of table '{self.name}' keep no notes for {judge!r}; "
                f"its policy is {self._eviction!r}. Give none, or "
                "SmallestNorm()."
            )
        return judge

    def _evict_keys(self, keys: tf.Tensor, return_values: bool) -> EvictedRows:
        parts = self.partition(keys)
        shards = list(zip(self.handles, parts.split(keys), strict=True))
        values = None
        if return_values:
            found = [
                table_ops.lookup(
                    handle, part, dim=self.dim, value_dtype=self.value_dtype
                )
                for handle, part in shards
            ]
            values = parts.merge([values for values, _ in found])
        with tf.control_dependencies(
            [x for x in (keys, values) if x is not None]
        ):
            done = [table_ops.evict(handle, part) for handle, part in shards]
            done += self.forget(keys)
        with tf.control_dependencies([op for op in done if op is not None]):
            return EvictedRows(
                tf.identity(keys),
                None if values is None else tf.identity(values),
            )
