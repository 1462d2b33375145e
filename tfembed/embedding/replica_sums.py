"""The gradient of a mirrored table, with each row of the global batch once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed.ops.private import traced_for_xla

__all__ = ["summed_over_replicas"]


def summed_over_replicas(gradient: Any) -> Any:
    """What optimizers, which add up over replicas, take for one gradient a row.

    The first replica has the sums of all, the others have no entries. An
    optimizer that takes the square of each replica's gradient by itself then
    takes that of the sum.

    Args:
      gradient: of this replica. Anything but tf.IndexedSlices inside of
        strategy.run of several replicas, other than TPUs', passes as it is, and
        so does all in programs for XLA.
    """
    context = tf.distribute.get_replica_context()
    if (
        not isinstance(gradient, tf.IndexedSlices)
        or context is None
        or not isinstance(context.strategy, tf.distribute.MirroredStrategy)
        or context.num_replicas_in_sync == 1
        or traced_for_xla()
    ):
        return gradient
    of_all = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    ids, places = tf.unique(of_all.indices)
    sums = tf.math.unsorted_segment_sum(of_all.values, places, tf.size(ids))
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica:
        ids, sums = ids[:0], sums[:0]
    return tf.IndexedSlices(sums, ids, of_all.dense_shape)
