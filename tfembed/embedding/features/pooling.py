"""Gathers and combines rows by TensorFlow's own ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops import combine
from tfembed.ops.private import traced_for_xla

__all__ = [
    "Pooling",
    "Wanted",
    "check_indices",
    "combine_floats",
    "gathered_once",
    "sequence_length_of",
    "static_rows",
    "want_ragged",
    "want_sparse",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Pooling:
    """The lookup options of one feature.

    Attributes:
      dim: the rows' width.
      combiner: "sum", "mean" or "sqrtn".
      validate: whether sparse input is pruned.
      has_vocabulary: whether ids below 0 are invalid.
      sequence_length: the length of sequences for input of rank 2; 0: combine.
    """

    dim: int
    combiner: str
    validate: bool
    has_vocabulary: bool
    sequence_length: int


@dataclasses.dataclass(frozen=True, eq=False)
class Wanted:
    """The ids whose rows a feature needs, and the function of these rows.

    Attributes:
      ids: ids of any shape [...].
      activations: a function from their rows [..., dim] to the activations.
    """

    ids: tf.Tensor
    activations: Callable[[tf.Tensor], tf.Tensor]

    def reshaped(self, shape: tf.TensorShape) -> Wanted:
        """Returns this lookup with its activations reshaped."""
        return Wanted(
            self.ids, lambda rows: tf.reshape(self.activations(rows), shape)
        )


def want_sparse(
    ids: tf.SparseTensor,
    weights: tf.SparseTensor | None,
    how: Pooling,
    *,
    path: str = "a feature",
) -> Wanted:
    """Combines the last dimension of `ids`.

    Returns:
      Activations [..., dim], or [B, sequence_length, dim] for a sequence of
      rank 2: the id in column j is at position j; ids beyond the length are
      dropped.

    Raises:
      tfembed.errors.UnsupportedError: another rank than 2, for XLA.
      tf.errors.InvalidArgumentError: when it runs: indices outside of the dense
        shape.
    """
    rank = ids.shape.rank
    check = check_indices(ids, path)
    if how.validate:
        ids, weights = _prune(ids, weights, how)
    if how.sequence_length and rank in (None, 2):
        return _as_sequences(ids, how, check)
    lead, static_lead = ids.dense_shape[:-1], ids.shape[:-1]
    if rank != 2:
        _refuse_xla(f"sparse input {path} of another rank than 2")
        matrix = tf.stack([tf.reduce_prod(lead), ids.dense_shape[-1]])
        ids = tf.sparse.reshape(ids, matrix)  # -1 is ambiguous without ids.

    def combined(rows: tf.Tensor) -> tf.Tensor:
        pooled = combine_floats(
            rows,
            None if weights is None else weights.values,
            ids.indices[:, 0],
            tf.reduce_prod(lead),
            how.combiner,
        )
        if rank != 2:
            return tf.reshape(pooled, tf.concat([lead, [how.dim]], 0))
        pooled.set_shape(static_lead.concatenate(how.dim))
        return pooled

    return Wanted(_after(check, ids.values), combined)


def want_ragged(
    ids: tf.RaggedTensor,
    weights: tf.RaggedTensor | None,
    how: Pooling,
    output_shape: tf.TensorShape,
    *,
    path: str,
) -> Wanted:
    """Combines the samples of `ids`, or truncates and pads them to sequences.

    An output shape with as many elements as there are samples combines; a shape
    with L times as many makes sequences of length L, without combiner and
    weights. No ids are pruned.

    Returns:
      Activations [B, dim], [B, sequence_length, dim], or [*output_shape, dim].

    Raises:
      tfembed.errors.ArgumentError: an output shape that does not fit.
      tfembed.errors.UnsupportedError: sequences, for XLA.
      tf.errors.InvalidArgumentError: when it runs: row splits that do not begin
        at 0, decrease, or do not end at the number of ids.
    """
    length = how.sequence_length
    if output_shape:
        length = sequence_length_of(ids.shape[0], output_shape, path)
        how = dataclasses.replace(how, sequence_length=length)
        wanted = want_ragged(ids, weights, how, tf.TensorShape(None), path=path)
        return wanted.reshaped(output_shape.concatenate(how.dim))
    check = _check_splits(ids, path)
    if length:
        _refuse_xla(f"ragged input {path} as sequences")
        kept = ids[:, :length]
        shape = [None, length, how.dim]
        return Wanted(
            _after(check, kept.values),
            lambda rows: kept.with_values(rows).to_tensor(shape=shape),
        )

    def combined(rows: tf.Tensor) -> tf.Tensor:
        pooled = combine_floats(
            rows,
            None if weights is None else weights.values,
            ids.value_rowids(),
            ids.nrows(tf.int64),
            how.combiner,
        )
        pooled.set_shape([ids.shape[0], how.dim])
        return pooled

    return Wanted(_after(check, ids.values), combined)


def sequence_length_of(
    batch: int | None, output_shape: tf.TensorShape, path: str
) -> int:
    """Returns the sequence length by a feature's output shape; 0: combine.

    Raises:
      tfembed.errors.ArgumentError: a shape that is not a multiple of the batch.
    """
    size = output_shape.num_elements()
    if not batch or not size or size % batch:
        raise errors.ArgumentError(
            "Output shape set in the FeatureConfig should be the factor of the "
            "input data batch size. But instead got output shape "
            f"{output_shape}, input data batch size {batch} for {path}"
        )
    return size // batch if size > batch else 0


def _refuse_xla(what: str) -> None:
    """Raises inside of XLA functions, for ops that XLA does not have."""
    if traced_for_xla():
        raise errors.UnsupportedError(
            f"XLA does not compile TensorFlow's ops that look up {what}. Look "
            "it up outside of jit_compile=True, or by TPUEmbeddingV0(..., "
            'engine="replicated"), which compiles all kinds of input.'
        )


def _after(check: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns `ids` with a control dependency on a check."""
    if check is None:
        return ids
    with tf.control_dependencies([check]):
        return tf.identity(ids)


def check_indices(ids: tf.SparseTensor, path: str) -> Any:
    """Makes an op that fails for indices out of bounds; None in eager mode.

    Segment sums ignore negative samples, and on a GPU also samples beyond the
    last one.
    """
    # Without ids the minimum is the greatest int64.
    lowest = tf.reduce_min(ids.indices, 0)
    highest = tf.reduce_max(ids.indices, 0)
    inside = (lowest >= 0) & (highest < ids.dense_shape)
    text = (
        f"A sparse index of {path} is outside of its dense shape. Lowest, "
        "highest, shape:"
    )
    return tf.debugging.Assert(
        tf.reduce_all(inside), [text, lowest, highest, ids.dense_shape]
    )


def _check_splits(ids: tf.RaggedTensor, path: str) -> Any:
    """Makes an op that fails for bad row splits; None in eager mode."""
    splits = ids.row_splits
    size = tf.size(ids.values, splits.dtype)
    # Segment sums ignore some bad splits: those with equal errors at both ends.
    is_whole = (
        tf.equal(splits[0], 0)
        & tf.equal(splits[-1], size)
        & tf.reduce_all(splits[1:] >= splits[:-1])
    )
    text = (
        f"The row splits of {path} must begin at 0, not fall, and end at the "
        "number of ids. Number, row splits:"
    )
    return tf.debugging.Assert(is_whole, [text, size, splits])


def _prune(
    ids: tf.SparseTensor, weights: tf.SparseTensor | None, how: Pooling
) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    keep = tf.ones_like(ids.values, tf.bool)
    if how.has_vocabulary:
        keep &= ids.values >= 0
    if weights is None:
        return tf.sparse.retain(ids, keep), None
    if how.combiner != "sum":
        keep &= weights.values > 0
    return tf.sparse.retain(ids, keep), tf.sparse.retain(weights, keep)


def _as_sequences(ids: tf.SparseTensor, how: Pooling, check: Any) -> Wanted:
    batch = ids.shape[0]
    ids = tf.sparse.retain(ids, ids.indices[:, 1] < how.sequence_length)
    shape = tf.stack([ids.dense_shape[0], how.sequence_length, how.dim])

    def placed(rows: tf.Tensor) -> tf.Tensor:
        sequences = tf.scatter_nd(ids.indices, rows, shape)
        sequences.set_shape([batch, how.sequence_length, how.dim])
        return sequences

    return Wanted(_after(check, ids.values), placed)


def combine_floats(
    rows: tf.Tensor,
    weights: tf.Tensor | None,
    samples: tf.Tensor,
    num_samples: tf.Tensor,
    combiner: str,
) -> tf.Tensor:
    """Combines rows by `ops.combine`; refuses rows that are not floats.

    Raises:
      tfembed.errors.DtypeError: rows that are not floats.
    """
    if not rows.dtype.is_floating:
        raise errors.DtypeError(
            f"Rows must be floats to be combined by {combiner!r}; got "
            f"{rows.dtype.name}. Cast the table."
        )
    return combine(rows, weights, samples, num_samples, combiner)


def static_rows(
    table: Any,
    wanted: Sequence[tuple[str, tf.Tensor]],
    *,
    sums_gradients: bool = False,
) -> list[tf.Tensor]:
    """Returns the rows [..., dim] of ids [...]; refuses ids out of bounds.

    Args:
      table: the variable or tensor.
      wanted: pairs of a path, for errors, and ids of any integer dtype.
      sums_gradients: whether the gradient with respect to a variable has one
        entry per distinct id; else it has one per looked-up id.

    Raises:
      tf.errors.InvalidArgumentError: when it runs: an id out of bounds.
    """
    ids = [(path, _gatherable(of_one, wanted)) for path, of_one in wanted]
    if not tf.executing_eagerly():
        ids = [(path, _in_vocabulary(one, table, path)) for path, one in ids]
        return _gathered(table, [one for _, one in ids], sums_gradients)
    # On the host the gather checks ids itself; eager ops are expensive.
    try:
        rows = _gathered(table, [one for _, one in ids], sums_gradients)
    except tf.errors.InvalidArgumentError:
        _check(table, ids)
        raise
    if tf.DeviceSpec.from_string(rows[0].device).device_type != "CPU":
        _check(table, ids)
    return rows


def gathered_once(
    table: Any, distinct: tf.Tensor, positions: tf.Tensor
) -> tf.Tensor:
    """Gathers rows of `distinct` ids [m] once, then repeats them by index [n].

    The gradient with respect to a variable has m entries.
    """
    rows = tf.gather(table, distinct)
    # As a batch of one, whose gradient is a dense sum. That of a plain tf.gather
    # would be IndexedSlices, made dense with a warning.
    return tf.gather(rows[tf.newaxis], positions[tf.newaxis], batch_dims=1)[0]


def _gathered(
    table: Any, ids: Sequence[tf.Tensor], sums_gradients: bool
) -> list[tf.Tensor]:
    if not sums_gradients:
        return [tf.gather(table, one) for one in ids]
    flat = [tf.reshape(one, [-1]) for one in ids]
    rows = gathered_once(table, *tf.unique(tf.concat(flat, 0)))
    parts = [rows]
    if len(ids) > 1:
        parts = tf.split(rows, tf.stack([tf.size(one) for one in flat]))
    return [
        tf.reshape(part, tf.concat([tf.shape(one), tf.shape(rows)[1:]], 0))
        if one.shape.rank != 1
        else tf.ensure_shape(part, one.shape.concatenate(rows.shape[1:]))
        for part, one in zip(parts, ids, strict=True)
    ]


def _gatherable(
    ids: tf.Tensor, wanted: Sequence[tuple[str, tf.Tensor]]
) -> tf.Tensor:
    """Casts all `ids` to one dtype that tf.gather takes."""
    dtypes = {of_one.dtype for _, of_one in wanted}
    if len(dtypes) == 1 and ids.dtype in (tf.int32, tf.int64):
        return ids
    return tf.cast(ids, tf.int64)


def _check(table: Any, ids: Sequence[tuple[str, tf.Tensor]]) -> None:
    for path, one in ids:
        _in_vocabulary(one, table, path)


def _in_vocabulary(ids: tf.Tensor, table: Any, path: str) -> tf.Tensor:
    """Returns `ids` after a check that they are rows of `table`.

    A GPU silently gathers zeros for other ids. Without ids the minimum is the
    greatest number of the dtype and the maximum the least, so the check passes.
    """
    size = tf.cast(tf.shape(table)[0], tf.int64)
    lowest, highest = tf.reduce_min(ids), tf.reduce_max(ids)
    is_in = (tf.cast(lowest, tf.int64) >= 0) & (
        tf.cast(highest, tf.int64) < size
    )
    text = f"An id of {path} is outside of its table. Lowest, highest, rows:"
    check = tf.debugging.Assert(is_in, [text, lowest, highest, size])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(ids)
