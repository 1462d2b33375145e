"""The shapes of activations, from configs, `build` or the first input.

A feature's output shape is its activations' shape without the table's dim. The
shape comes from the FeatureConfig, else from the arguments of `build`, else
from the first input; later sources are checked against earlier ones and only
fill what is unknown. The rules are those of TensorFlow's TPUEmbedding.

`with_shape`, `check_gradient` and `op_gradient` go between these shapes and the
ops'.
"""

from __future__ import annotations

import dataclasses
import fractions
import logging
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors

__all__ = [
    "OutputShapes",
    "WAYS_OUT",
    "check_gradient",
    "detected_input_shape",
    "is_sequence",
    "op_gradient",
    "warn_if_ignored",
    "with_shape",
]

_LOG = logging.getLogger(__name__)


WAYS_OUT = (
    "Where the last batch of a data set is smaller, (1) leave it out: "
    "batch(..., drop_remainder=True); or (2) fill it up to the others' size, "
    "with samples that count 0 in the loss; or (3) let batches have any size: "
    "tables in host memory (engine='host', the default without a TPU) that are "
    "not pipelined take them, where neither build nor a FeatureConfig says a "
    "size, each function is traced for the size (no reduce_retracing, no "
    "input_signature), and all replicas have the same."
)


@dataclasses.dataclass(frozen=True)
class OutputShapes:
    """The output shapes, as far as they are known, one per feature.

    Attributes:
      features: the flat FeatureConfigs.
      paths: the features' names in errors.
      shapes: the known shapes; a shape of unknown rank if nothing is known.
    """

    features: Sequence[Any]
    paths: Sequence[str]
    shapes: Sequence[tf.TensorShape]

    @classmethod
    def configured(
        cls, features: Sequence[Any], paths: Sequence[str]
    ) -> OutputShapes:
        """Makes the shapes from the FeatureConfigs."""
        return cls(features, paths, [f.output_shape for f in features])

    def subset(self, indices: Sequence[int]) -> OutputShapes:
        """Returns the shapes of some of the features."""
        return OutputShapes(
            [self.features[i] for i in indices],
            [self.paths[i] for i in indices],
            [self.shapes[i] for i in indices],
        )

    @property
    def are_defined(self) -> bool:
        """Whether all shapes are fully defined."""
        return all(map(tf.TensorShape.is_fully_defined, self.shapes))

    def check_defined(self) -> None:
        """Raises if a shape that a TPU's embedding engine needs is not known.

        Raises:
          tfembed.errors.StateError: a shape is not fully defined.
        """
        for path, shape in zip(self.paths, self.shapes, strict=True):
            if not shape.is_fully_defined():
                raise errors.StateError(
                    f"The output shape of input {path} is {shape}, and a TPU's "
                    "embedding engine is set up for batches of one shape. Call "
                    "build(per_replica_batch_size=...), or enqueue, first."
                )

    def with_values(self, values: Sequence[Any]) -> OutputShapes:
        """Completes the shapes by inputs, one per feature.

        Raises:
          tfembed.errors.ArgumentError: as `with_inputs`, or an input that is
            not allowed.
        """
        shapes = []
        for feature, value, path in zip(
            self.features, values, self.paths, strict=True
        ):
            shape = detected_input_shape(feature, value, path)
            shapes.append(_of_input_shape(feature, shape))
        return self._with(shapes)

    def of_other_size(self, values: Sequence[Any]) -> OutputShapes | None:
        """Returns the shapes for another batch size, as of a small last batch.

        Args:
          values: the inputs, one per feature.

        Returns:
          The shapes; None if the inputs differ from the known shapes by more
          than a common factor of all first dimensions.

        Raises:
          tfembed.errors.ArgumentError: an input that is not allowed, or that
            contradicts a FeatureConfig.
        """
        own = OutputShapes.configured(self.features, self.paths)
        own = own.with_values(values)
        factors = set()
        for old, new in zip(self.shapes, own.shapes, strict=True):
            if old.rank != new.rank or old[1:] != new[1:] or 0 in (*old, *new):
                return None
            factors.add(fractions.Fraction(new[0], old[0]))
        return own if len(factors) == 1 else None

    def of_cores(self, cores: int) -> OutputShapes:
        """Returns the shapes of `cores` concatenated batches of these."""
        if cores == 1:
            return self
        shapes = [
            tf.TensorShape([shape[0] * cores]).concatenate(shape[1:])
            for shape in self.shapes
        ]
        return dataclasses.replace(self, shapes=shapes)

    def with_given(
        self, input_shapes: Any, batch_size: int | None
    ) -> OutputShapes:
        """Completes the shapes by the arguments of `TPUEmbedding.build`.

        Args:
          input_shapes: one tf.TensorShape per feature, or the batch size, or
            None.
          batch_size: the batch size of all inputs, or None.

        Raises:
          tfembed.errors.ArgumentError: as `with_inputs`, a partially defined
            shape in a FeatureConfig, or a batch size that is not an integer.
        """
        if isinstance(input_shapes, numbers.Integral):
            _LOG.warning(
                "per_replica_input_shapes=%d is taken for the batch size, which "
                "is deprecated; pass per_replica_batch_size or all shapes.",
                input_shapes,
            )
            input_shapes, batch_size = None, input_shapes
        if input_shapes is None:
            if batch_size is not None:
                size = checks.integer(
                    batch_size, "per_replica_batch_size", least=0
                )
                return self.with_batch_size(size)
            self._check_completable()
            return self
        return self.with_inputs([tf.TensorShape(s) for s in input_shapes])

    def _check_completable(self) -> None:
        for path, shape in zip(self.paths, self.shapes, strict=True):
            if shape:  # A partially known shape is not completed.
                _check_fully_defined(path, shape)

    def with_batch_size(self, batch_size: int) -> OutputShapes:
        """Completes the shapes by the batch size of all inputs.

        Raises:
          tfembed.errors.ArgumentError: as `with_inputs`.
        """
        return self._with(
            [
                tf.TensorShape(
                    [batch_size, feature.max_sequence_length]
                    if is_sequence(feature)
                    else [batch_size]
                )
                for feature in self.features
            ]
        )

    def with_inputs(self, shapes: Sequence[tf.TensorShape]) -> OutputShapes:
        """Completes the shapes by the shapes of inputs.

        An output shape is the input's shape without the last dimension. A shape
        that is partially known is never completed.

        Raises:
          tfembed.errors.ArgumentError: a scalar or an unknown rank, a shape
            that contradicts the known one, or a dimension that stays unknown.
        """
        return self._with(
            [
                _of_input_shape(feature, shape)
                for feature, shape in zip(self.features, shapes, strict=True)
            ]
        )

    def _with(self, incoming: Sequence[tf.TensorShape]) -> OutputShapes:
        filled = []
        for path, old, new in zip(
            self.paths, self.shapes, incoming, strict=True
        ):
            _check_consistent(path, old, new)
            # bool(TensorShape) is True if the rank is known.
            filled.append(old if old else new)
            _check_fully_defined(path, filled[-1])
        return dataclasses.replace(self, shapes=filled)


def is_sequence(feature: Any) -> bool:
    """Says whether input of rank 2 gives one activation per id."""
    return feature.max_sequence_length > 0 and not feature.output_shape


def _of_input_shape(feature: Any, shape: tf.TensorShape) -> tf.TensorShape:
    if shape.rank is None or shape.rank < 1:
        raise errors.ArgumentError(
            f"Received input tensor of shape {shape}. Rank must be 1 and above"
        )
    if shape.rank == 1:
        return shape
    # A last dimension of 1 is one id per sample, not a sequence.
    if shape.rank == 2 and shape[-1] != 1 and is_sequence(feature):
        return shape[:-1].concatenate(feature.max_sequence_length)
    return shape[:-1]


def detected_input_shape(feature: Any, value: Any, path: str) -> tf.TensorShape:
    """Returns the static shape of an input, with the length of sequences.

    Args:
      feature: the FeatureConfig.
      value: a Tensor, SparseTensor or RaggedTensor.
      path: the feature's name in errors.

    Raises:
      tfembed.errors.ArgumentError: a rank or type that is not allowed.
    """
    shape: Any = getattr(value, "shape", None)
    if isinstance(value, tf.RaggedTensor):
        if shape.rank != 2:
            raise _bad_rank("Only rank 2 ragged", shape, path)
    elif isinstance(value, tf.SparseTensor):
        if shape.rank is None or shape.rank < 2:
            raise _bad_rank("Only rank 2 and above sparse", shape, path)
    elif isinstance(value, tf.Tensor):
        return _dense_shape(shape, path)
    else:
        raise errors.ArgumentError(
            f"Input {path} is of unknown type {type(value)}. Please only pass "
            "Tensor, SparseTensor or RaggedTensor as input to enqueue."
        )
    if shape.rank == 2 and is_sequence(feature):
        length = feature.max_sequence_length
        return tf.TensorShape([shape[0], length, shape[1]])
    warn_if_ignored(feature, shape.rank, path)
    return shape


def warn_if_ignored(feature: Any, rank: int | None, path: str) -> None:
    """Warns if `max_sequence_length` has no effect for input of this rank."""
    if rank is not None and rank > 2 and feature.max_sequence_length:
        _LOG.warning(
            "Input %s has rank %d: its last dimension is "
            "combined and max_sequence_length=%d is ignored, which is for rank "
            "2.",
            path,
            rank,
            feature.max_sequence_length,
        )


def _dense_shape(shape: tf.TensorShape, path: str) -> tf.TensorShape:
    if shape.rank is None or shape.rank < 1:
        raise _bad_rank("Only rank 1 and above dense", shape, path)
    if shape.rank > 1 and shape[-1] != 1:
        raise errors.ArgumentError(
            "Rank 2 or above dense tensor should have last dimension as 1 as "
            "the last dimension will always be reduced. Instead got dense "
            f"tensor as shape {shape} for input {path}. Several ids per sample "
            "are a ragged or a sparse tensor: tf.RaggedTensor.from_tensor(ids)."
        )
    return shape


def _bad_rank(
    allowed: str, shape: tf.TensorShape, path: str
) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"{allowed} tensor is supported, found rank {shape.rank} for input "
        f"{path}"
    )


def _check_consistent(
    path: str, old: tf.TensorShape, new: tf.TensorShape
) -> None:
    """Raises if an incoming output shape contradicts the known one.

    An incoming shape of rank 1 or 2 may have a lower rank than the known one:
    the output shape of a ragged tensor may split its samples further, which is
    checked when the input is read.
    """
    if not old or not new or (new.rank in (1, 2) and old.rank > new.rank):
        return
    if not old.is_compatible_with(new):
        raise errors.ArgumentError(
            f"Inconsistent shape founded for input feature {path}, Output "
            f"shape is set to be {old}, But got incoming output shape {new}"
        )


def _check_fully_defined(path: str, shape: tf.TensorShape) -> None:
    if not shape.is_fully_defined():
        raise errors.ArgumentError(
            f"Input Feature {path} has output shape set as {shape} which is "
            "not fully defined. Please specify the fully defined shape in "
            "either FeatureConfig or for the build method. A function that is "
            "traced for batches of unknown size (a loop over a data set in it, an "
            "input_signature) does not see one: batch(..., drop_remainder=True) "
            "says it, and a function that is called with each batch is traced "
            "for its size, that of a smaller last one too."
        )


def with_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Reshapes `tensor`, which has as many elements as `shape`, to `shape`."""
    if tensor.shape.rank == shape.rank:
        tensor.set_shape(shape)
        return tensor
    return tf.reshape(tensor, shape)


def check_gradient(gradient: Any, shape: tf.TensorShape, path: str) -> None:
    """Checks a gradient with respect to a feature's activations.

    Args:
      gradient: a tensor, or None.
      shape: the activations' shape; an unknown rank fits all gradients.
      path: the feature's name in errors.

    Raises:
      tfembed.errors.ArgumentError: not a tensor, or another shape.
      tfembed.errors.DtypeError: not real numbers.
    """
    if gradient is None:
        return
    if not isinstance(gradient, tf.Tensor):
        raise errors.ArgumentError(
            f"found non-tensor type: {type(gradient)} at path {path}."
        )
    if shape.rank is not None and gradient.shape != shape:
        raise errors.ArgumentError(
            f"Found gradient of shape {gradient.shape} at path {path}. "
            f"Expected shape {shape}."
        )
    if not (gradient.dtype.is_floating or gradient.dtype.is_integer):
        raise errors.DtypeError(
            f"Found gradient of dtype {gradient.dtype.name} at path {path}. "
            "Expected floats."
        )


def op_gradient(
    gradient: Any,
    shape: tf.TensorShape,
    *,
    sequence_length: int,
    path: str,
    keeps_shape: bool = False,
) -> tf.Tensor:
    """Converts a gradient for the update op.

    Args:
      gradient: the gradient with respect to a feature's activations, checked by
        `check_gradient`; None for 0.
      shape: the activations' shape.
      sequence_length: the sequence length of the feature, 0 if a sample's ids
        are combined.
      path: the feature's name in errors.
      keeps_shape: whether the gradient keeps the shape of the activations.

    Returns:
      float32 [B, dim], or [B, sequence_length, dim].
    """
    if gradient is None:
        _warn_of_no_gradient(path)
        gradient = tf.zeros(shape)
    if keeps_shape:
        return tf.cast(gradient, tf.float32)
    rows = shape[:-1].num_elements()
    lead = [rows]
    if sequence_length:
        lead = [rows // sequence_length, sequence_length]
    return with_shape(
        tf.cast(gradient, tf.float32), tf.TensorShape([*lead, shape[-1]])
    )


def _warn_of_no_gradient(path: str) -> None:
    """Warns, as TensorFlow and Keras do, that a feature has no gradient."""
    text = (
        f"No gradient passed for feature {path}, sending zero gradient. This "
        "may not be correct behavior for certain optimizers like Adam."
    )
    _LOG.warning("%s", text)
    warnings.warn(text, stacklevel=2)
