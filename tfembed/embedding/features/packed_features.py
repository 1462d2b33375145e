"""All features of a batch in a few tensors, for cheap calls of functions.

A tf.function call pays for each tensor that it is given: 26 RaggedTensors cost
2 ms. So tf.data concatenates them, on its own threads, and the function splits
them.

    ids      the ids of all features, one feature after the other, each aligned
    to
             64 bytes, so that a feature's ids are a view and not a copy
    strings  the ids of features with string ids; None if there are none
    rows     dense: nothing; ragged: the row splits; sparse: the dense shape,
             then the indices, row by row; aligned to 64 bytes too
    weights  the weights of the weighted features
    sizes    [3, features]: the part of ids (or strings), rows and weights of
    each
             feature
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors, ops
from tfembed.embedding.features.input_values import TENSORS
from tfembed.embedding.features.inputs import checked_weights
from tfembed.embedding.plan import feature_paths

__all__ = [
    "PackedFeatures",
    "Split",
    "aligned",
    "feature_of",
    "pack_features",
    "parts_of",
    "shape_of",
    "split_by_tensorflow",
    "split_strings",
]


def parts_of(value: Any, weights: Any, path: str) -> tuple[Any, ...]:
    """Returns kind, ids, rows and weights of one feature, each of rank 1.

    Raises:
      tfembed.errors.ArgumentError, tfembed.errors.DtypeError: as
        `pack_features`.
    """
    none, nothing = tf.zeros([0], tf.int64), tf.zeros([0], tf.float32)
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor, tf.Tensor)):
        _check_ids(value.dtype, path)
    if weights is not None:
        weights = checked_weights(value, weights, path).values
    else:
        weights = nothing
    if isinstance(value, tf.SparseTensor):
        rows = tf.concat(
            [value.dense_shape, tf.reshape(value.indices, [-1])], 0
        )
        return "sparse", ops.wide_ids(value.values), rows, weights
    if isinstance(value, tf.RaggedTensor):
        if value.shape.rank != 2:
            raise errors.ArgumentError(
                "Only rank 2 ragged tensor is supported, found rank "
                f"{value.shape.rank} for input {path}"
            )
        ids = ops.wide_ids(value.values)
        return "ragged", ids, tf.cast(value.row_splits, tf.int64), weights
    if isinstance(value, tf.Tensor):
        ids = tf.reshape(ops.wide_ids(value), [-1])
        return "dense", ids, none, weights
    raise errors.ArgumentError(
        f"Input {path} is of unknown type {type(value)}. Please only pass "
        "Tensor, SparseTensor or RaggedTensor."
    )


def _check_ids(dtype: tf.DType, path: str) -> None:
    if not (dtype.is_integer or dtype == tf.string):
        raise errors.DtypeError(
            f"The ids of input {path} must be integers or strings; got "
            f"{dtype.name}."
        )


def shape_of(value: Any, path: str) -> tf.TensorShape:
    """Returns the static shape; the last dimension of sparse or ragged is None.

    Raises:
      tfembed.errors.ArgumentError: a Tensor with two unknown dimensions.
    """
    shape = value.shape
    if not isinstance(value, tf.Tensor):
        return shape[:-1].concatenate([None])
    if shape.rank is None or list(shape).count(None) > 1:
        raise errors.ArgumentError(
            f"Input {path or 'the only feature'} has shape {shape}; to be "
            "packed, a Tensor may have one unknown dimension. Batch with "
            "drop_remainder=True, or set its shape."
        )
    return shape


def feature_of(
    kind: str, ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape
) -> Any:
    """Makes the tensor of a feature from its parts."""
    return _FEATURES[kind](ids, rows, shape)


def _dense(ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape) -> Any:
    del rows
    return tf.reshape(ids, _sizes_of(shape))


def _ragged(ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape) -> Any:
    if shape[0] is not None:
        rows = tf.ensure_shape(rows, [shape[0] + 1])
    return tf.RaggedTensor.from_row_splits(ids, rows, validate=False)


def _sparse(ids: tf.Tensor, rows: tf.Tensor, shape: tf.TensorShape) -> Any:
    # Sets the static shape, which functions need.
    dense_shape = tf.stack(
        [
            rows[i] if size is None else tf.constant(size, tf.int64)
            for i, size in enumerate(shape)
        ]
    )
    indices = tf.reshape(rows[shape.rank :], [-1, shape.rank])
    return tf.SparseTensor(indices, ids, dense_shape)


def _sizes_of(shape: tf.TensorShape) -> Sequence[int]:
    return [-1 if size is None else size for size in shape]


_FEATURES = {"dense": _dense, "ragged": _ragged, "sparse": _sparse}


# (values, sizes, number of parts) -> the parts.
Split = Callable[[tf.Tensor, tf.Tensor, int], list[tf.Tensor]]


def aligned(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates int64 parts with the alignment of `ops.split_aligned`."""
    if not parts:
        return tf.zeros([0], tf.int64)
    pads = _pads(tf.stack([tf.size(one, out_type=tf.int64) for one in parts]))
    nothing = tf.zeros([tf.reduce_sum(pads)], tf.int64)
    padding = tf.split(nothing, pads, num=len(parts))
    pairs = zip(parts, padding, strict=True)
    return tf.concat([one for pair in pairs for one in pair], 0)


def _pads(sizes: tf.Tensor) -> tf.Tensor:
    """Returns the padding after each part of the given `sizes`."""
    return tf.math.floormod(-sizes, tf.constant(ops.ALIGNED, tf.int64))


def split_by_tensorflow(
    values: tf.Tensor, sizes: tf.Tensor, num: int
) -> list[tf.Tensor]:
    """Splits as `ops.split_aligned`, for programs without tfembed's ops."""
    both = tf.reshape(tf.stack([sizes, _pads(sizes)], 1), [-1])
    return tf.split(values, both, num=2 * num)[::2]


def split_strings(
    values: tf.Tensor, sizes: tf.Tensor, num: int
) -> list[tf.Tensor]:
    """Splits strings, which are concatenated without padding."""
    return tf.split(values, sizes, num=num)


class PackedFeatures(tf.experimental.ExtensionType):
    """The result of `pack_features`; it goes through tf.data and tf.function.

    Attributes:
      ids: int64 [n].
      strings: string [k], or None.
      rows: int64 [m].
      weights: float32 [w].
      sizes: int64 [3, features].
      paths: the features' paths in the packed structure.
      kinds: per feature "dense", "ragged" or "sparse".
      are_strings: per feature, whether its ids are strings.
      shapes: per feature its static shape, as far as it was known.
      weighted: per feature, whether it has weights.
    """

    ids: tf.Tensor
    strings: typing.Optional[tf.Tensor]  # noqa: UP045 - TensorFlow reads it
    rows: tf.Tensor
    weights: tf.Tensor
    sizes: tf.Tensor
    paths: typing.Tuple[str, ...]  # noqa: UP006 - TensorFlow reads it
    kinds: typing.Tuple[str, ...]  # noqa: UP006 - TensorFlow reads it
    are_strings: typing.Tuple[bool, ...]  # noqa: UP006 - TensorFlow reads it
    shapes: typing.Tuple[tf.TensorShape, ...]  # noqa: UP006 - TensorFlow reads it
    weighted: typing.Tuple[bool, ...]  # noqa: UP006 - TensorFlow reads it

    class Spec:
        """The type of all batches of the same features."""

        @classmethod
        def from_value(cls, value: Any) -> Any:
            """Makes a value's spec for any number of ids: one trace for all."""
            return cls(**_fields(value.specs, value.form))

    @property
    def tensors(self) -> list[tf.Tensor]:
        """Returns the tensors, whose values differ from batch to batch."""
        strings = [] if self.strings is None else [self.strings]
        return [self.ids, self.rows, self.weights, self.sizes, *strings]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Returns the specs of `tensors` for any number of ids."""
        return [
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([3, len(self.kinds)], tf.int64),
            *(
                []
                if self.strings is None
                else [tf.TensorSpec([None], tf.string)]
            ),
        ]

    @property
    def form(self) -> tuple[Any, ...]:
        """Returns the static fields, equal for all batches, for `assemble`."""
        return (
            self.paths,
            self.kinds,
            self.are_strings,
            self.shapes,
            self.weighted,
        )

    def unpack(
        self, *, by_tensorflow: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Returns the flat features, and per feature its weights or None.

        Args:
          by_tensorflow: whether to split by TensorFlow's own ops, which copy.
        """
        n = len(self.kinds)
        split = ops.split_aligned
        if by_tensorflow:
            split = split_by_tensorflow
        ids = self._ids(split)
        rows = split(self.rows, self.sizes[1], n)
        weights = tf.split(self.weights, self.sizes[2], num=n)
        values, weight_values = [], []
        for i, (kind, shape) in enumerate(
            zip(self.kinds, self.shapes, strict=True)
        ):
            value = feature_of(kind, ids[i], rows[i], shape)
            values.append(value)
            weight_values.append(
                value.with_values(weights[i]) if self.weighted[i] else None
            )
        return values, weight_values

    def _ids(self, split: Split) -> list[tf.Tensor]:
        """Splits the ids of all features, in their order."""
        n = len(self.kinds)
        if self.strings is None:
            return split(self.ids, self.sizes[0], n)
        ids: dict[int, tf.Tensor] = {}
        for values, are_strings, by in (
            (self.ids, False, split),
            (self.strings, True, split_strings),
        ):
            indices = [
                i for i in range(n) if self.are_strings[i] == are_strings
            ]
            if indices:
                sizes = tf.gather(self.sizes[0], indices)
                parts = by(values, sizes, len(indices))
                ids.update(zip(indices, parts, strict=True))
        return [ids[i] for i in range(n)]


def assemble(
    tensors: Sequence[tf.Tensor], form: Sequence[Any]
) -> PackedFeatures:
    """Makes a batch from its `tensors` and `form`."""
    return PackedFeatures(**_fields(tensors, form))


def _fields(tensors: Sequence[Any], form: Sequence[Any]) -> dict[str, Any]:
    names = ("ids", "rows", "weights", "sizes", "strings")
    of_tensors = dict(zip(names, tensors, strict=False))
    names = ("paths", "kinds", "are_strings", "shapes", "weighted")
    of_form = dict(zip(names, form, strict=True))
    return {"strings": None, **of_tensors, **of_form}


def pack_features(features: Any, weights: Any = None) -> PackedFeatures:
    """Concatenates the features of a batch, for example in `Dataset.map`:

        dataset = dataset.batch(4096, drop_remainder=True)
        dataset = dataset.map(tfembed.pack_features)

    `TPUEmbedding.enqueue`, TPUEmbeddingV0 and TPUEmbeddingForServing take the
    result as they take the structure. Under a strategy with several replicas,
    pack what one replica gets (`distribute_datasets_from_function`): a packed
    batch cannot be split.

    Args:
      features: integer or string ids, structured as feature_config: Tensors,
        SparseTensors, and RaggedTensors of rank 2.
      weights: None, or a structure like `features` of None and float tensors of
        the type and structure of the ids.

    Raises:
      tfembed.errors.ArgumentError: an input of another type, a ragged one of
        another rank, or weights that do not fit.
      tfembed.errors.DtypeError: ids that are neither integers nor strings.
      ValueError, TypeError: weights of another structure.
    """
    paths = feature_paths(features)
    values = [
        tf.constant(np.asarray(one))
        if hasattr(one, "__array__") and not isinstance(one, TENSORS)
        else one
        for one in tf.nest.flatten(features)
    ]
    if not values:
        raise errors.ArgumentError(
            f"`features` has none; got {features!r}. Give a Tensor, "
            "SparseTensor or RaggedTensor, or a structure of them."
        )
    weight_values = [None] * len(values)
    if weights is not None:
        tf.nest.assert_same_structure(features, weights)
        weight_values = tf.nest.flatten(weights)
    parts = [
        parts_of(value, weight, path or "the only feature")
        for value, weight, path in zip(
            values, weight_values, paths, strict=True
        )
    ]
    kinds, ids, rows, of_weights = zip(*parts, strict=True)
    sizes = [
        tf.stack([tf.size(one, out_type=tf.int64) for one in each])
        for each in (ids, rows, of_weights)
    ]
    are_strings = [one.dtype == tf.string for one in ids]
    integers = [one for one in ids if one.dtype != tf.string]
    strings = [one for one in ids if one.dtype == tf.string]
    return PackedFeatures(
        ids=aligned(integers),
        strings=tf.concat(strings, 0) if strings else None,
        rows=aligned(rows),
        weights=tf.concat(of_weights, 0),
        sizes=tf.stack(sizes),
        paths=tuple(paths),
        kinds=tuple(kinds),
        are_strings=tuple(are_strings),
        shapes=tuple(
            shape_of(value, path)
            for value, path in zip(values, paths, strict=True)
        ),
        weighted=tuple(weight is not None for weight in weight_values),
    )


def unpacked(
    packed: PackedFeatures,
    structure: Any,
    weights: Any,
    *,
    by_tensorflow: bool = False,
) -> tuple[list[Any], list[Any]]:
    """Returns the flat features and weights of a packed batch.

    Args:
      packed: the batch.
      structure: a structure of FeatureConfigs, whose paths the batch must have.
      weights: the caller's separate argument, which must be None.
      by_tensorflow: as for `PackedFeatures.unpack`.

    Raises:
      tfembed.errors.ArgumentError: separate weights, or other features.
    """
    if weights is not None:
        raise errors.ArgumentError(
            "Packed features hold their weights; got `weights` too. Give them "
            "to pack_features."
        )
    expected = tuple(feature_paths(structure))
    if packed.paths != expected:
        raise errors.ArgumentError(
            f"The packed features are {list(packed.paths)}; feature_config has "
            f"{list(expected)}."
        )
    return packed.unpack(by_tensorflow=by_tensorflow)
