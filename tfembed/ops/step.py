"""The queue that stores a step's batches between its calls.

    put --> [enqueued] --take--> lookup --hold--> [in flight] --finish--> update

A batch is a list of tensors: bool [], whether it is for training; then, for
`lookup` and `update`, the fields of FeatureIds per feature: ids; rows and
weights unless the ids are dense; and the dense shape if they are sparse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import library, private
from tfembed.ops.grouped import FeaturePlan, feature_attrs, named_in_errors
from tfembed.ops.session_graph import resource_name

__all__ = [
    "clear",
    "create",
    "drop_idle",
    "finish",
    "hold",
    "lookup",
    "put",
    "sizes",
    "step_attrs",
    "take",
    "update",
]


def create(
    label: str,
    *,
    most_batches: int,
    seconds: float,
    waits: bool = False,
    drops_unfinished: bool = False,
) -> tf.Tensor:
    """Makes a queue and returns its handle; the last handle frees the queue.

    In a graph of TensorFlow 1 the queue is kept for the graph's other runs.

    Args:
      label: the queue's name in errors.
      most_batches: the most batches that may be enqueued.
      seconds: the seconds for which `put` blocks at that bound.
      waits: whether all early calls block, without a timeout.
      drops_unfinished: whether a batch for training need not be finished.
    """
    shared_name = "" if tf.executing_eagerly() else resource_name()
    return library.load().tfembed_step_queue_create(
        label,
        most_batches=most_batches,
        seconds=seconds,
        waits=waits,
        drops_unfinished=drops_unfinished,
        shared_name=shared_name,
    )


def put(queue: Any, batch: Sequence[tf.Tensor]) -> Any:
    """Enqueues a batch; returns the operation in graphs.

    Raises:
      tf.errors.InvalidArgumentError: the queue is full until the timeout.
    """
    return library.load().tfembed_step_put(queue, list(batch))


def take(queue: Any, dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Removes and returns the oldest enqueued batch, after `drop_idle`.

    Raises:
      tf.errors.InvalidArgumentError: no batch is enqueued, and the queue does
        not block.
    """
    return library.load().tfembed_step_take(queue, T=list(dtypes))


def drop_idle(queue: Any) -> Any:
    """Drops the batch in flight; returns the operation in graphs.

    Raises:
      tf.errors.InvalidArgumentError: the batch is for training, and must be
        finished.
    """
    return library.load().tfembed_step_drop_idle(queue)


def hold(queue: Any, batch: Sequence[tf.Tensor]) -> Any:
    """Puts a batch in flight; returns the operation in graphs."""
    return library.load().tfembed_step_hold(queue, list(batch))


def finish(queue: Any, dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Removes and returns the batch in flight.

    Raises:
      tf.errors.InvalidArgumentError: no batch is in flight, and the queue does
        not block; or the batch is not for training.
    """
    return library.load().tfembed_step_finish(queue, T=list(dtypes))


def sizes(queue: Any) -> tf.Tensor:
    """Counts enqueued batches, and training batches in flight: int32 [2]."""
    return library.load().tfembed_step_sizes(queue)


def clear(queue: Any) -> Any:
    """Drops all batches; returns the operation in graphs."""
    return library.load().tfembed_step_clear(queue)


def step_attrs(
    dims: Sequence[int],
    kinds: Sequence[str],
    id_dtypes: Sequence[tf.DType],
    batch_sizes: Sequence[int],
    plans: Sequence[FeaturePlan],
) -> dict[str, Any]:
    """Makes the attributes of `lookup` and `update`, equal for all batches.

    Args:
      dims: per table the floats of a row.
      kinds, id_dtypes, batch_sizes, plans: per feature, of all batches.
    """
    return {
        "Tids": list(id_dtypes),
        "batch_sizes": list(batch_sizes),
        **feature_attrs(dims, kinds, plans),
    }


def lookup(
    queue: Any, tables: Sequence[Any], attrs: Mapping[str, Any]
) -> list[tf.Tensor]:
    """Does `take`, a grouped lookup of the batch, and `hold`; no gradients.

    Args:
      queue: the queue's handle.
      tables: the handles of the tables.
      attrs: the result of `step_attrs`.

    Returns:
      Per feature float32 [B, dim] or [B, max_sequence_length, dim].

    Raises:
      tf.errors.InvalidArgumentError: as `take` and `grouped_lookup`. A batch
        that cannot be looked up is lost.
    """
    found: list[tf.Tensor] = library.load().tfembed_step_lookup(
        queue,
        list(tables),
        F=len(attrs["kinds"]),
        **attrs,
    )
    if not tf.executing_eagerly():
        private.mark_read_only(found[0].op, range(1, 1 + len(tables)))
    return found


def update(
    queues: Sequence[Any],
    tables: Sequence[Any],
    slots: Sequence[Any],
    gradients: Sequence[tf.Tensor],
    attrs: Mapping[str, Any],
    *,
    rules: Sequence[str],
    learning_rates: tf.Tensor,
    nonfinite: str,
    table_names: Sequence[str],
    norm_limits: Sequence[float] = (),
    norm_groups: Sequence[int] = (),
) -> tf.Tensor:
    """Does `finish` for all queues, and a grouped update for their batches.

    Args:
      queues: handles, one per replica.
      tables, slots: the handles of the tables, and of the slot variables.
      gradients, rules, nonfinite, table_names, norm_limits, norm_groups: as for
        `grouped_update`. The features are those of the queues, one after
        another.
      attrs: the result of `step_attrs` for the features of all queues.
      learning_rates: float32 [tables].

    Returns:
      int64 [tables]: the count of rows with a non-finite sum.

    Raises:
      tf.errors.InvalidArgumentError: as `finish` and `grouped_update`.
    """
    with named_in_errors(table_names) as names:
        return library.load().tfembed_step_update(
            list(queues),
            list(tables),
            list(slots),
            gradients,
            learning_rates,
            rules="\n".join(rules),
            nonfinite=nonfinite,
            table_names=names,
            norm_limits=list(norm_limits),
            norm_groups=list(norm_groups),
            **attrs,
        )


# Tables are trained by `update`, not by tapes.
for _op in ("StepTake", "StepFinish", "StepLookup"):
    tf.no_gradient(f"Tfembed>{_op}")
