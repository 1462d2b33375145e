"""Metrics of Keras over the best items that `layers.TopK` finds."""

from __future__ import annotations

import abc
from typing import Any

import keras
import tensorflow as tf

from tfembed import checks, errors

__all__ = ["NDCGAtK", "RecallAtK"]


class _MeanAtK(keras.metrics.Mean, abc.ABC):
    """The mean of what the rank of each held-out pair's item is worth."""

    def __init__(self, k: int, name: str | None = None, **kwargs: Any) -> None:
        self.k = checks.integer(k, "k", least=1)
        super().__init__(name=name or f"{self._measure}_at_{self.k}", **kwargs)

    _measure: str  # In the metric's name.

    @abc.abstractmethod
    def _gains(self) -> tf.Tensor:
        """Returns what ranks 1 to k are worth, float32 [k] or a scalar."""

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds a batch of pairs.

        Args:
          y_true: the id of each pair's item, [batch] or [batch, 1].
          y_pred: ids, best first, [batch, n] with n at least `k`, or the pair
            (ids, scores) of `layers.TopK`, whose padding then hits nothing.
          sample_weight: weights of the pairs, [batch]; None: 1 each.

        Raises:
          tfembed.errors.ArgumentError: shapes that do not fit.
          tfembed.errors.DtypeError: ids of two kinds.
        """
        hits = _hits(y_true, y_pred, self.k)
        super().update_state(
            tf.reduce_max(hits * self._gains(), 1), sample_weight
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the metric."""
        return {**super().get_config(), "k": self.k}


@keras.saving.register_keras_serializable(package="tfembed.keras")
class RecallAtK(_MeanAtK):
    """The share of held-out pairs whose item is among the best `k`.

    Args:
      k: the number of best items that count.
      name: the name in logs; None: "recall_at_" and `k`.
      **kwargs: arguments of keras.metrics.Mean.

    Raises:
      tfembed.errors.ArgumentError: `k` is no positive integer.
    """

    _measure = "recall"

    def _gains(self) -> tf.Tensor:
        return tf.constant(1.0)


@keras.saving.register_keras_serializable(package="tfembed.keras")
class NDCGAtK(_MeanAtK):
    """The mean of 1 / log2(1 + rank) of each held-out pair's item.

    It is 0 where the item is not among the best `k`; ranks begin at 1.

    Args:
      k: the number of best items that count.
      name: the name in logs; None: "ndcg_at_" and `k`.
      **kwargs: arguments of keras.metrics.Mean.

    Raises:
      tfembed.errors.ArgumentError: `k` is no positive integer.
    """

    _measure = "ndcg"

    def _gains(self) -> tf.Tensor:
        ranks = tf.range(1, self.k + 1, dtype=tf.float32)
        return tf.math.log(2.0) / tf.math.log(1.0 + ranks)


def _hits(y_true: Any, y_pred: Any, k: int) -> tf.Tensor:
    """Returns 1.0 where one of the best k ids is the pair's item: [batch, k]."""
    scores = None
    if isinstance(y_pred, (tuple, list)) and len(y_pred) == 2:
        y_pred, scores = y_pred
    best, items = tf.convert_to_tensor(y_pred), tf.convert_to_tensor(y_true)
    if best.shape.rank != 2 or (best.shape[1] or k) < k:
        raise errors.ArgumentError(
            f"`y_pred` must be ids [batch, n] with n at least {k}; got the shape "
            f"{best.shape}. Give TopK a larger `k`, or the metric a smaller one."
        )
    if items.shape.rank not in (1, 2) or items.shape[1:] not in ([], [1]):
        raise errors.ArgumentError(
            "`y_true` must be one id per pair, [batch] or [batch, 1]; got the "
            f"shape {items.shape}."
        )
    if best.dtype != items.dtype:
        if not (best.dtype.is_integer and items.dtype.is_integer):
            raise errors.DtypeError(
                f"`y_true` must be ids of `y_pred`'s dtype, {best.dtype.name}; "
                f"got {items.dtype.name}."
            )
        items = tf.cast(items, best.dtype)
    hits = tf.equal(tf.reshape(items, [-1, 1]), best[:, :k])
    if scores is not None:
        hits &= tf.convert_to_tensor(scores)[:, :k] > float("-inf")
    return tf.cast(hits, tf.float32)
