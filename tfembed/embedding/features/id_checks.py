"""Checks of a batch on the host, for programs and ops that do not check ids.

The errors have the same text as those of the host engine's op, which checks its
tensors itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import FeatureIds, FeaturePlan

__all__ = ["Check", "check_ids", "check_positions", "require_all"]


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """A condition that must hold, element by element, for some values.

    Attributes:
      holds: bool, [n] or [].
      values: values, some of which the error shows.
      message: the error's text before the values.
    """

    holds: tf.Tensor
    values: tf.Tensor
    message: str

    def bad(self) -> tf.Tensor:
        """Returns the values that fail; all values if `holds` is one bool."""
        if self.holds.shape.rank:
            return tf.boolean_mask(self.values, ~self.holds)
        return self.values


def check_ids(ids: FeatureIds, plan: FeaturePlan, config: Any) -> list[Check]:
    """Makes the checks that the ids of a feature can be looked up.

    Args:
      ids: a feature's batch.
      plan: the feature's FeaturePlan.
      config: its table's TableConfig.

    Returns:
      Checks for `require_all`: ids in the vocabulary, and `check_positions`.
    """
    vocabulary = config.vocabulary_size
    inside = ids.ids < vocabulary
    if not (ids.kind == "sparse" and plan.validate):
        inside &= ids.ids >= 0
    in_vocabulary = Check(
        inside,
        ids.ids,
        f"In feature '{plan.name}': ids must be in [0, {vocabulary}), the rows "
        f"of table {config.name}; got",
    )
    return [in_vocabulary, *check_positions(ids, plan)]


def check_positions(ids: FeatureIds, plan: FeaturePlan) -> list[Check]:
    """Makes the checks of the positions of sparse and ragged ids.

    Args:
      ids: a feature's batch.
      plan: the feature's FeaturePlan.

    Returns:
      Checks for `require_all`: sparse indices in the batch and in order, valid
      row splits, and one weight per id.
    """
    if ids.kind == "dense":
        return []
    n = tf.size(ids.weights)
    one_each = Check(
        (n == 0) | (n == tf.size(ids.ids)),
        n,
        f"In feature '{plan.name}': there must be one weight for each of the "
        "ids, or none; got",
    )
    if ids.kind == "sparse":
        return [*_check_indices(ids, plan), one_each]
    return [*_check_splits(ids, plan.name), one_each]


def _check_indices(ids: FeatureIds, plan: FeaturePlan) -> list[Check]:
    sample, position = tf.unstack(ids.rows, 2, axis=1)
    follows = sample[1:] >= sample[:-1]
    if plan.max_sequence_length:  # A sequence has one id per position.
        follows &= (sample[1:] > sample[:-1]) | (position[1:] > position[:-1])
    return [
        Check(
            (sample >= 0)
            & (sample < ids.batch_size)
            & (position >= 0)
            & ((position < ids.columns) | (ids.columns < 0)),
            sample,
            f"In feature '{plan.name}': sparse indices must be in the batch; "
            "got those of samples",
        ),
        Check(
            follows,
            sample[1:],
            f"In feature '{plan.name}': sparse indices must be in order. Use "
            "tf.sparse.reorder; got out of order those of samples",
        ),
    ]


def _check_splits(ids: FeatureIds, name: str) -> list[Check]:
    splits = ids.rows
    ends = tf.stack([splits[0], splits[-1] - tf.size(ids.ids, tf.int64)])
    return [
        Check(
            tf.reduce_all(splits[1:] >= splits[:-1]) & tf.reduce_all(ends == 0),
            splits,
            f"In feature '{name}': row splits must begin at 0, not fall, and "
            "end at the number of ids; got",
        )
    ]


def require_all(checks: Sequence[Check]) -> Any:
    """Raises for the first check that fails; one tf.cond covers all checks.

    Returns:
      A bool tensor, to use as a control dependency of the checked values.

    Raises:
      tf.errors.InvalidArgumentError: a check fails, at run time.
    """
    holds = tf.stack([tf.reduce_all(check.holds) for check in checks])
    all_hold = tf.reduce_all(holds)
    if tf.executing_eagerly():
        if not all_hold:
            first = int(tf.argmin(tf.cast(holds, tf.int32)))
            check = checks[first]
            raise tf.errors.InvalidArgumentError(
                None, None, f"{check.message} {check.bad().numpy()}"
            )
        return all_hold

    def refuse() -> tf.Tensor:
        asserts: list[Any] = []
        for check in checks:
            text = tf.strings.format(
                check.message + " {}", [check.bad()], summarize=5
            )
            with tf.control_dependencies(asserts[-1:]):
                all_of_it = tf.reduce_all(check.holds)
                asserts.append(tf.debugging.Assert(all_of_it, [text]))
        with tf.control_dependencies(asserts):
            return tf.constant(False)

    return tf.cond(all_hold, lambda: tf.constant(True), refuse)
