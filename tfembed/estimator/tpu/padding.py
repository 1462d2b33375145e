"""Pads the last batches to the full size, and marks the padding.

padded               fills a batch up with rows
stopping_dataset     a dataset for prediction: padded, then a batch that
                     signals the end
pad_dataset          a dataset for evaluation: padded, no such batch
rows_of_data         joins the replicas' results without padding
FeaturesWithPadding  a model_fn's features with `is_padding`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.models import input_functions

IS_PADDING = "is_padding"
# Op types without inputs whose values no batch changes.
_CONSTANT = frozenset({"Const", "VarHandleOp", "Variable", "VariableV2"})


def padded(
    features: Any, labels: Any, batch_size: int, *, repeat: bool = False
) -> tuple[Any, Any, Any]:
    """Pads the first dimension of all tensors to `batch_size`.

    Args:
      features, labels: Nested tensors, dense, sparse or ragged; labels may be
        None.
      batch_size: The number of rows of a full batch.
      repeat: Whether padding repeats rows of the batch; else it adds rows of
        zeros (or rows without values to sparse and ragged tensors).

    Returns:
      A mask [batch_size], 1 for a row of padding, else 0; features; labels.
    """
    real = count_rows(features)
    fits = tf.debugging.assert_greater_equal(
        batch_size,
        real,
        message=(
            "The real batch size should not be greater than batch_size: "
            "input_fn must use params['batch_size']."
        ),
    )
    rows = tf.range(batch_size)
    # In a function, for instance of `Dataset.map`, the assertion runs by
    # itself.
    with tf.control_dependencies([fits] if fits is not None else []):
        mask = tf.cast(rows >= real, tf.int32)
        missing = batch_size - real
    mask.set_shape([batch_size])

    def pad(tensor: Any) -> Any:
        if isinstance(tensor, tf.SparseTensor):
            return _pad_sparse(tensor, batch_size, real, repeat=repeat)
        if isinstance(tensor, tf.RaggedTensor):
            return _pad_ragged(tensor, batch_size, real, repeat=repeat)
        if repeat:
            filled = tf.gather(tensor, rows % tf.maximum(real, 1))
        else:
            ends = [[0, missing]] + [[0, 0]] * (tensor.shape.rank - 1)
            filled = _pad_end(tensor, ends)
        filled.set_shape([batch_size, *tensor.shape[1:]])
        return filled

    if labels is not None:
        labels = tf.nest.map_structure(pad, labels)
    return mask, tf.nest.map_structure(pad, features), labels


def _pad_end(tensor: Any, ends: list[Any]) -> Any:
    if tensor.dtype != tf.string:
        return tf.pad(tensor, ends)
    return tf.pad(tensor, ends, constant_values=b"")


def _pad_sparse(
    tensor: Any, batch_size: int, real: Any, *, repeat: bool
) -> Any:
    indices, values = tensor.indices, tensor.values
    if repeat:
        # Repeat the batch often enough, then cut it to size.
        times = -(-batch_size // tf.maximum(real, 1))
        first = tf.repeat(tf.range(times) * real, tf.shape(values)[0])
        rows = tf.tile(indices[:, :1], [times, 1])
        rows += tf.cast(first, tf.int64)[:, tf.newaxis]
        others = tf.tile(indices[:, 1:], [times, 1])
        fits = rows[:, 0] < batch_size
        indices = tf.boolean_mask(tf.concat([rows, others], 1), fits)
        values = tf.boolean_mask(tf.tile(values, [times]), fits)
    shape = tf.concat([[batch_size], tensor.dense_shape[1:]], 0)
    return tf.SparseTensor(indices, values, shape)


def _pad_ragged(
    tensor: Any, batch_size: int, real: Any, *, repeat: bool
) -> Any:
    if repeat:
        padded = tf.gather(tensor, tf.range(batch_size) % tf.maximum(real, 1))
        values, splits = padded.values, padded.row_splits
    else:
        values, splits = tensor.values, tensor.row_splits
        ends = tf.repeat(splits[-1:], batch_size - real)
        splits = tf.concat([splits, ends], 0)
    splits.set_shape([batch_size + 1])
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def count_rows(features: Any) -> Any:
    """Returns a batch's number of rows, by its first dense tensor if any."""
    tensors = tf.nest.flatten(features)
    for tensor in tensors:
        if isinstance(tensor, tf.Tensor):
            return tf.shape(tensor)[0]
    for tensor in tensors:
        if isinstance(tensor, tf.SparseTensor):
            return tf.cast(tensor.dense_shape[0], tf.int32)
        if isinstance(tensor, tf.RaggedTensor):
            return tensor.nrows(tf.int32)
    raise errors.ArgumentError(
        "Cannot find any Tensor in features dict: at least one feature must be "
        f"a tensor; got {features}."
    )


def stopping_dataset(
    dataset: Any, batch_size: int, num_batches: int = 1
) -> Any:
    """Pads batches with zeros, and adds batches that signal the end.

    A step takes `num_batches` = n batches, and stops if the first one's signal
    is true. After the user's batches come 2n-1 stopping batches: up to n-1
    fill the last step of data, n make the step that stops.

    Args:
      dataset: The user's dataset, of features or (features, labels).
      batch_size: The number of rows of a full batch.
      num_batches: The number of batches of a step.

    Returns:
      A dataset of dicts with `features`, `labels` if given, `mask`
      [batch_size]: 1 for a row of padding, else 0, and the bool `stopping`.
    """
    extra = 2 * num_batches - 1

    def add(stop: bool) -> Callable[..., Any]:
        def with_signal(*element: Any) -> dict[str, Any]:
            mask, features, labels = padded(*_parsed(element), batch_size)
            if stop and extra > 1:
                mask = tf.ones_like(mask)
            batch = {"features": features, "mask": mask, "stopping": stop}
            return batch if labels is None else {**batch, "labels": labels}

        return with_signal

    stopping = dataset.take(1).map(add(True)).repeat(extra)
    return dataset.map(add(False)).concatenate(stopping).prefetch(2)


def _parsed(element: tuple[Any, ...]) -> tuple[Any, Any]:
    """Returns features and labels of a dataset's element; labels may be None."""
    return input_functions.parse_iterator_result(
        element[0] if len(element) == 1 else element
    )


def pad_dataset(
    dataset: Any, batch_size: int, num_batches: int, *, is_endless: bool = False
) -> Any:
    """Pads the last batch, and the last step of `num_batches` batches.

    Padding repeats rows of the data, so that a model that divides by a length
    or takes a logarithm meets no zeros. Batches with a static size stay as
    they are.

    Args:
      dataset: The user's dataset, of features or (features, labels).
      batch_size: The number of rows of a full batch.
      num_batches: The number of batches of a step.
      is_endless: Whether batches of padding follow forever, since other hosts
        may have more data.

    Returns:
      A dataset of dicts with `features`, `labels` if given, and `mask`
      [batch_size]: 1 for a row of padding, else 0. There is no mask if all
      sizes are static and no batches are added.
    """

    def add(is_extra: bool) -> Callable[..., Any]:
        def with_mask(*element: Any) -> dict[str, Any]:
            features, labels = _parsed(element)
            rows, batch = _static_rows((features, labels)), {}
            if rows is None:
                mask, features, labels = padded(
                    features, labels, batch_size, repeat=True
                )
            else:
                mask = tf.zeros([rows], tf.int32)
            if rows is None or num_batches > 1 or is_endless:
                batch["mask"] = tf.ones_like(mask) if is_extra else mask
            batch["features"] = features
            if labels is not None:
                batch["labels"] = labels
            return batch

        return with_mask

    data = dataset.map(add(False))
    if num_batches > 1 or is_endless:
        count = None if is_endless else num_batches - 1
        source = dataset
        if is_endless:  # A host without data still takes part.
            nothing = zeros(dataset.element_spec, batch_size)
            source = dataset.concatenate(tf.data.Dataset.from_tensors(nothing))
        data = data.concatenate(source.take(1).map(add(True)).repeat(count))
    return data


def zeros(specs: Any, batch_size: int) -> Any:
    """Returns a batch of zeros.

    Args:
      specs: Nested specs of the tensors, for instance a dataset's
        `element_spec`.
      batch_size: The number of rows, if a spec does not have it.
    """

    def of(spec: Any) -> Any:
        if not hasattr(spec, "shape"):  # For instance None for labels.
            return None
        # Unknown dimensions become 1, and the first one `batch_size`.
        shape = [None] if spec.shape.rank is None else spec.shape.as_list()
        rows = batch_size if shape[0] is None else shape[0]
        dims = [rows, *(1 if size is None else size for size in shape[1:])]
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.SparseTensor(
                tf.zeros([0, len(dims)], tf.int64),
                tf.zeros([0], spec.dtype),
                dims,
            )
        if isinstance(spec, tf.RaggedTensorSpec):
            inner = [tf.zeros([1], spec.row_splits_dtype)]
            return tf.RaggedTensor.from_nested_row_splits(
                tf.zeros([0, *dims[spec.ragged_rank + 1 :]], spec.dtype),
                [
                    tf.zeros([dims[0] + 1], spec.row_splits_dtype),
                    *inner * (spec.ragged_rank - 1),
                ],
            )
        return tf.zeros(dims, spec.dtype)

    return tf.nest.map_structure(of, specs)


def _static_rows(structure: Any) -> int | None:
    """Returns the static rows of the first dense tensor, if all are static."""
    sizes = [
        tensor.shape[0]
        for tensor in tf.nest.flatten(structure)
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank
    ]
    if not sizes or None in sizes:
        return None
    return int(sizes[0])


def rows_of_data(
    parts: Sequence[Any],
    masks: Sequence[Any] | None,
    what: str,
    *,
    keeps_mixed: bool = False,
    way_out: str = "",
) -> Any:
    """Joins a tensor of all replicas, without its rows of padding.

    A row of a replica's tensor stands for

    - a row of the batch, where the tensor has one or several for each of them;
    - as many consecutive rows of the batch as there are for each row of the
      tensor, where that is a whole number and static;
    - the whole batch of the replica, with any other number of rows.

    It goes if all that it stands for is padding.

    Args:
      parts: The tensor of each replica, dense, sparse or ragged.
      masks: For each replica [batch], 1 for a row of padding, else 0; None
        without padding.
      what: The tensor, for the error.
      keeps_mixed: Whether a row may stand for data and for padding. Else the
        step that has such a row raises `tf.errors.InvalidArgumentError`.
      way_out: A further sentence of the error.
    """
    joined = _joined(parts)
    if masks is None:
        return joined
    batch = _count(masks[0])
    spans = [_spans(_count(part), batch) for part in parts]
    firsts, lasts = [
        _in_a_row([end[i] + r * batch for r, end in enumerate(spans)])
        for i in (0, 1)
    ]
    before = tf.pad(tf.cumsum(tf.concat(masks, 0)), [[1, 0]])
    padding = tf.gather(before, lasts) - tf.gather(before, firsts)
    keep = tf.less(padding, lasts - firsts)
    is_row = isinstance(firsts, np.ndarray) and np.all(lasts - firsts == 1)
    if not keeps_mixed and not is_row:
        mixed = tf.logical_and(keep, tf.greater(padding, 0))
        check = tf.debugging.Assert(
            tf.logical_not(tf.reduce_any(mixed)),
            [
                f"{what} would count padding. The last batch is not full, and "
                "padding fills it up; as the tensor has fewer rows than the "
                "batch, or no whole multiple of them, one of its rows stands "
                "for rows of data and of padding. Give it a row for each row "
                "of the batch, or (by a static shape) for each group of rows "
                "of which no batch holds a part, or let the batch size divide "
                f"the number of rows of the data.{way_out} Rows of the tensor "
                "and of the batch, in all replicas:",
                tf.size(keep),
                tf.size(before) - 1,
            ],
        )
        with tf.control_dependencies([check] if check is not None else []):
            keep = tf.identity(keep)
    if isinstance(joined, tf.SparseTensor):
        return _rows_of_sparse(joined, keep)
    if isinstance(joined, tf.RaggedTensor):
        return tf.ragged.boolean_mask(joined, keep)
    return tf.boolean_mask(joined, keep)


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    return tf.concat(parts, 0)


def _count(tensor: Any) -> Any:
    """Returns a tensor's number of rows, an int where it is static."""
    rows = tensor.shape[0]
    return count_rows([tensor]) if rows is None else rows


def _spans(rows: Any, batch: Any) -> tuple[Any, Any]:
    """Returns the batch's rows, first and end, for which each row stands."""
    if isinstance(rows, int) and isinstance(batch, int):
        row = np.arange(rows, dtype=np.int32)
        if rows % batch == 0:
            row //= max(rows // batch, 1)
            return row, row + 1
        size = batch // rows
        if size * rows == batch:
            return row * size, (row + 1) * size
        return np.zeros_like(row), np.full_like(row, batch)
    times = rows // batch
    row = tf.range(rows) // tf.maximum(times, 1)
    is_row = tf.equal(times * batch, rows)
    return tf.where(is_row, row, 0), tf.where(is_row, row + 1, batch)


def _in_a_row(spans: Sequence[Any]) -> Any:
    if all(isinstance(span, np.ndarray) for span in spans):
        return np.concatenate(spans)
    return tf.concat(spans, 0)


def _rows_of_sparse(tensor: Any, keep: Any) -> Any:
    kept = tf.cast(keep, tf.int64)
    stays = tf.gather(keep, tensor.indices[:, 0])
    indices = tf.boolean_mask(tensor.indices, stays)
    rows = tf.gather(tf.cumsum(kept, exclusive=True), indices[:, 0])
    return tf.SparseTensor(
        tf.concat([rows[:, tf.newaxis], indices[:, 1:]], 1),
        tf.boolean_mask(tensor.values, stays),
        tf.concat([[tf.reduce_sum(kept)], tensor.dense_shape[1:]], 0),
    )


def leaves_padding_out(tensor: Any, mask: Any) -> bool:
    """Whether a replica's tensor reads the mask, or nothing of the batch.

    Args:
      tensor: A tensor of a graph, dense, sparse or ragged, or a variable.
      mask: The replica's padding mask in that graph.
    """
    if isinstance(tensor, tf.Variable):
        return True
    todo = tf.nest.flatten(tensor, expand_composites=True)
    seen: set[str] = set()
    reads_batch = False
    while todo:
        found = todo.pop()
        if found.name == mask.name:
            return True
        if found.name not in seen:
            seen.add(found.name)
            todo.extend(found.op.inputs)
            reads_batch |= not (found.op.inputs or found.op.type in _CONSTANT)
    return not reads_batch


class FeaturesWithPadding(dict[str, Any]):
    """A model_fn's features; `features["is_padding"]` is made on demand.

    The key is hidden, so that a model_fn that iterates over all features sees
    only those of input_fn.

    Args:
      features: The features of input_fn. tf.nest, which layers use, makes an
        empty dict and fills it.
      is_padding: Makes the bool tensor [batch].
    """

    def __init__(
        self, features: Any = (), is_padding: Callable[[], Any] | None = None
    ) -> None:
        super().__init__(features)
        self._is_padding = is_padding

    def __missing__(self, key: str) -> Any:
        if key == IS_PADDING and self._is_padding is not None:
            return self._is_padding()
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (
            key == IS_PADDING and self._is_padding is not None
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a feature, or `is_padding`."""
        if key in self:
            return self[key]  # `super().get` ignores `__missing__`.
        return default

    def copy(self) -> FeaturesWithPadding:
        """Returns a copy that can also make `is_padding`."""
        return FeaturesWithPadding(self, self._is_padding)
