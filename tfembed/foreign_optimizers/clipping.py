"""Clipping and unscaling of a step's gradients, as Keras does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.foreign_optimizers.key_sums import TableGradient, sum_by_key
from tfembed.ops.gradients import shrink_factor, with_finite_rows

__all__ = ["GradientClipping"]

DenseGradient = tuple[Any, Any]


@dataclasses.dataclass(frozen=True)
class GradientClipping:
    """The options by which gradients are clipped, as Keras has them.

    The gradients of dense variables are left to their optimizer, but for the
    global norm, which is over them and all tables. A table's gradient is that
    of a dense variable with all rows: the sums of the distinct keys, 0 for the
    others. Sums that are not finite do not count for a norm.

    Attributes:
      loss_scale: gradients are divided by it first.
      clipvalue: each element is clipped to [-clipvalue, clipvalue], before norms
        are taken.
      clipnorm: each variable's gradient is scaled down to this norm.
      global_clipnorm: all gradients together are.
    """

    loss_scale: float | None = None
    clipvalue: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    @classmethod
    def of(cls, **options: float | None) -> GradientClipping | None:
        """Returns the clipping with these options; None where none is set."""
        return cls(**options) if any(options.values()) else None

    def apply(
        self, sparse: Sequence[TableGradient], dense: Sequence[DenseGradient]
    ) -> tuple[list[TableGradient], list[DenseGradient]]:
        """The gradients of tables, by distinct key, and of dense variables."""
        sums = [(_times(s, self._unscale), v) for s, v in sum_by_key(sparse)]
        if self.clipvalue:
            sums = [(_clip_elements(s, self.clipvalue), v) for s, v in sums]
        if self.clipnorm:
            sums = [
                (_times(s, _shrink([_finite(s)], self.clipnorm)), v)
                for s, v in sums
            ]
        if not self.global_clipnorm:
            return sums, list(dense)
        all_gradients = [_finite(s) for s, _ in sums]
        if self.clipvalue:  # Before the norm, as for tables.
            dense = [(_clip_elements(g, self.clipvalue), v) for g, v in dense]
        all_gradients += [_times(g, self._unscale) for g, _ in dense]
        factor = _shrink(all_gradients, self.global_clipnorm)
        return (
            [(_times(s, factor), v) for s, v in sums],
            [(_times(g, factor), v) for g, v in dense],
        )

    @property
    def _unscale(self) -> float:
        return 1 / self.loss_scale if self.loss_scale else 1.0


def _clip_elements(gradient: Any, limit: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        kept = _clip_elements(gradient.values, limit)
        return tf.IndexedSlices(kept, gradient.indices, gradient.dense_shape)
    # A NaN or infinity stays one: `nonfinite` says what becomes of it.
    clipped = tf.clip_by_value(gradient, -limit, limit)
    return tf.where(tf.math.is_finite(gradient), clipped, gradient)


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * tf.cast(factor, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient * tf.cast(factor, gradient.dtype)


def _finite(slices: tf.IndexedSlices) -> tf.Tensor:
    return with_finite_rows(slices.values)


def _shrink(gradients: Sequence[Any], limit: float) -> tf.Tensor:
    """The factor that scales gradients with a longer norm down to `limit`."""
    return shrink_factor([getattr(g, "values", g) for g in gradients], limit)
