"""Rows whose gradients go to a variable, and the limit of their lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.ops import record_access, tape_records, trainable_rows

__all__ = [
    "LISTENERS",
    "check_max_norm",
    "clip_rows",
    "note_lookup",
    "watch",
]

# Each is called with the table of every lookup that may be trained.
LISTENERS: list[Callable[[Any], None]] = []


def note_lookup(table: Any) -> None:
    """Tells who listens that a `Variable`, or a tf.Variable, is looked up."""
    for listener in LISTENERS:
        listener(table)


def watch(
    rows: tf.Tensor, ids: tf.Tensor, params: Any, wrapper: Any = None
) -> tf.Tensor:
    """`rows`, whose gradient goes to the trainable ones of two anchors, by key.

    Gradients arrive in float32, whatever the floats of the rows. Rows of
    integers have none. Keys that are strings stay strings up to the update.

    Args:
      rows: ids.shape + [dim], what `ids` looked up.
      ids: keys of any shape.
      params: the `Variable`.
      wrapper: what stands for this lookup or for a part of all lookups.
    """
    if wrapper is None or wrapper.trainable:
        note_lookup(params)
    anchors = [a for a in (params, wrapper) if a is not None and a.trainable]
    if tf.executing_eagerly() and not tape_records():
        # A third of the time of an eager lookup of a few keys. What recomputes
        # it later, under a tape, asks now which variables it uses.
        for anchor in anchors:
            record_access(anchor)
        return rows
    dtype = rows.dtype
    if not anchors or not dtype.is_floating:
        return rows
    # What the op takes is float32; a float64 would lose digits there.
    wide = dtype == tf.float64
    watched = tf.zeros_like(rows) if wide else rows
    watched = tf.cast(watched, tf.float32)
    for anchor in anchors:
        watched = trainable_rows(anchor, ids, watched)
    watched = tf.cast(watched, dtype)
    return rows + watched if wide else watched


def check_max_norm(max_norm: Any, params: Any) -> None:
    """Raises where `max_norm` is not allowed for rows of `params`.

    Raises:
      tfembed.errors.DtypeError: rows that are no floats.
      tfembed.errors.ArgumentError: no number above 0; tensors pass.
    """
    if max_norm is None:
        return
    if not params.value_dtype.is_floating:
        raise errors.DtypeError(
            f"`max_norm` limits rows of floats; got {max_norm!r} for "
            f"'{params.name}', whose rows are {params.value_dtype.name}. Leave "
            "it None."
        )
    if tf.is_tensor(max_norm):
        return
    number = checks.number(max_norm)
    if number is None or not number > 0:
        raise errors.ArgumentError(
            f"`max_norm` must be a number above 0, or None; got {max_norm!r}."
        )


def clip_rows(
    rows: tf.Tensor, max_norm: float | None, params: Any
) -> tf.Tensor:
    """Scales rows [..., dim] that are longer than `max_norm` down to it.

    Raises:
      as `check_max_norm`.
    """
    if max_norm is None:
        return rows
    check_max_norm(max_norm, params)
    return tf.clip_by_norm(rows, max_norm, axes=[-1])
