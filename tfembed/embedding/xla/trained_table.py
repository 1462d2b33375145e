"""A sharded table as a gradient tape sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.untracked import Untracked
from tfembed.embedding.xla.sharded_table import ShardedTable

__all__ = ["TrainedTable", "with_gradient"]


class TrainedTable(ShardedTable):
    """A ShardedTable that `tape.gradient` takes as a source.

    The gradient is one tf.IndexedSlices, of the ids that this replica looked up.
    An optimizer alone cannot apply it: it would add up what replicas have for
    different rows.

    Args:
      shards, first, shape, name: as for ShardedTable.
      anchor: a variable [0, width] whose handle stands for the table in tapes.
    """

    trainable = True
    # Makes tapes take it for its handle.
    _should_act_as_resource_variable = True

    def __init__(
        self,
        shards: Sequence[Any],
        first: int,
        shape: tuple[int, int],
        name: str,
        *,
        anchor: Any,
    ) -> None:
        super().__init__(shards, first, shape, name)
        self._anchor = Untracked(anchor)

    @property
    def _shared_name(self) -> str:
        """What checkpoints note of a variable beside its key."""
        return str(self.name)

    @property
    def handle(self) -> tf.Tensor:
        """What gradients go to."""
        handle: tf.Tensor = self._anchor.value.handle
        return handle

    # What the optimizers of Keras 3 and tf_keras, and those of tf.compat.v1, ask
    # a variable for before anything else.

    @property
    def _unique_id(self) -> str:
        self._refuse()

    def get_shape(self) -> tf.TensorShape:
        """Refuses optimizers of tf.compat.v1: raises UnsupportedError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.UnsupportedError(
            f"An optimizer alone cannot train table {self.name!r}: its rows are "
            "spread over the replicas, and an optimizer adds up gradients as if "
            "each had all of them. Call embedding.apply_optimizer(optimizer, "
            "zip(gradients, variables)) in place of optimizer.apply_gradients."
        )


def with_gradient(
    anchor: tf.Tensor, ids: tf.Tensor, rows: tf.Tensor, vocabulary: int
) -> tf.Tensor:
    """Rows that came out of an exchange, with a gradient by id.

    Args:
      anchor: [0, width]: what the gradient, a tf.IndexedSlices, goes to.
      ids: int32 [n]; negative ones have no row and no gradient.
      rows: [n, width].
      vocabulary: of the table.
    """

    @tf.custom_gradient
    def attached(
        anchor: tf.Tensor, ids: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        del anchor

        def backward(upstream: tf.Tensor) -> tuple[Any, None, None]:
            there = (ids >= 0)[:, tf.newaxis]
            slices = tf.IndexedSlices(
                tf.where(there, upstream, 0.0),
                ids,
                tf.constant([vocabulary, rows.shape[1]]),
            )
            return slices, None, None

        return tf.identity(rows), backward

    found: tf.Tensor = attached(anchor, ids, tf.stop_gradient(rows))
    return found
