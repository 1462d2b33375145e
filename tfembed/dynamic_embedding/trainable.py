"""The rows of one lookup, as something to differentiate by."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variable import Variable
from tfembed.ops import trainable_rows

__all__ = ["TrainableWrapper", "clip_rows"]


def clip_rows(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Scales rows [..., dim] that are longer than `max_norm` down to it."""
    if max_norm is None:
        return rows
    return tf.clip_by_norm(rows, max_norm, axes=[-1])


class TrainableWrapper:
    """What `return_trainable=True` gives: one lookup as a source of gradients.

    `tape.gradient(loss, wrapper)` gives the IndexedSlices of this lookup alone,
    by key; `tape.gradient(loss, variable)` those of all lookups.

    Attributes:
      params: the `Variable`.
      ids: int64, what was looked up.
      name: the lookup's name.
      max_norm: what the rows' lengths are limited to, or None.
    """

    _should_act_as_resource_variable = True

    def __init__(
        self,
        params: Variable,
        ids: tf.Tensor,
        rows: tf.Tensor,
        *,
        name: str,
        max_norm: float | None = None,
    ) -> None:
        if not tf.executing_eagerly():
            raise errors.UnsupportedError(
                "`return_trainable` works in eager mode only; inside a "
                "tf.function differentiate by the Variable itself."
            )
        self.params = params
        self.ids = ids
        self.name = name
        self.max_norm = max_norm
        self._anchor = tf.Variable(tf.zeros([0, params.dim]), name=name)
        # A sum, so that the gradient goes to the variable and to the wrapper.
        rows = rows + trainable_rows(self, ids, tf.zeros_like(rows))
        self._rows = self.transform(rows)

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self.params.dtype

    @property
    def handle(self) -> tf.Tensor:
        """The resource that gradients of this lookup go to."""
        return self._anchor.handle

    @property
    def trainable(self) -> bool:
        """Whether the variable is."""
        return self.params.trainable

    @property
    def rows(self) -> tf.Tensor:
        """What the lookup returned, ids.shape + [dim]."""
        return self._rows

    def read_value(self) -> tf.Tensor:
        """What the lookup returned."""
        return tf.identity(self._rows)

    def transform(self, result: tf.Tensor) -> tf.Tensor:
        """Scales rows [..., dim] that are longer than `max_norm` down to it."""
        return clip_rows(result, self.max_norm)

    def size(self) -> tf.Tensor:
        """How many ids were looked up."""
        return tf.size(self.ids)

    def update_op(self, v0: Any = None) -> Any:
        """Writes the rows, as the lookup returned them, into the variable."""
        del v0  # TFRA's; updates here need no rows of before.
        return self.params.upsert(self.ids, self._rows)
