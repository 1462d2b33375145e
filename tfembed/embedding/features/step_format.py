"""What the input of a feature looks like, the same in every batch of a queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features import output_shapes
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.ops import FeatureIds, FeaturePlan

__all__ = [
    "StepFormat",
    "check_same_format",
    "format_of",
    "lookup_plans",
    "op_combiner",
]

_TYPES = {"dense": "Tensor", "sparse": "SparseTensor", "ragged": "RaggedTensor"}


@dataclasses.dataclass(frozen=True)
class StepFormat:
    """How one feature's input is read.

    A dequeue is traced once and serves all later steps, so these cannot change
    from step to step.

    Attributes:
      kind: "dense", "sparse" or "ragged".
      sequence_length: 0 where a sample's ids are combined.
      batch_size: the samples.
      id_dtype: tf.int64 or tf.string.
      validate: whether sparse input is pruned; of a rank above 2 it always is,
        as by tf.nn.safe_embedding_lookup_sparse.
    """

    kind: str
    sequence_length: int
    batch_size: int
    id_dtype: tf.DType
    validate: bool

    def activation_shape(self, dim: int) -> tf.TensorShape:
        """What the lookup op gives for a table of this width."""
        places = [self.sequence_length] if self.sequence_length else []
        return tf.TensorShape([self.batch_size, *places, dim])


def format_of(
    feature: Any,
    ids: FeatureIds,
    *,
    path: str,
    input_shape: tf.TensorShape,
    output_shape: tf.TensorShape,
) -> tuple[StepFormat, FeatureIds]:
    """How an input is read, checked against the feature's output shape.

    Args:
      feature: its FeatureConfig.
      ids: its tensors, of an input with one batch dimension.
      path: what errors call it.
      input_shape: as the user gave it, with a known rank.
      output_shape: fully defined.

    Returns:
      The format, and `ids`, checked as they are read where the batch size is
      not known before.

    Raises:
      tfembed.errors.ArgumentError: samples that do not fill the output shape.
    """
    size = output_shape.num_elements()
    is_dense = ids.kind == "dense"
    batch = (input_shape if is_dense else input_shape[:-1]).num_elements()
    length = 0
    if (
        not is_dense
        and input_shape.rank == 2
        and output_shapes.is_sequence(feature)
    ):
        length = feature.max_sequence_length
    elif ids.kind == "ragged" and batch is None and output_shape.rank > 1:
        # One sample for each element, or sequences of any length.
        raise errors.ArgumentError(
            f"Input {path} is a RaggedTensor whose number of rows is unknown "
            f"when the function is traced, and its output shape is "
            f"{output_shape}. Batch with drop_remainder=True (a loop over a "
            "distributed dataset forgets the number; one over its iterator "
            "does not), or leave `output_shape` out."
        )
    elif ids.kind == "ragged" and batch and size % batch == 0:
        length = size // batch if size > batch else 0
        if length:  # As in serving: such sequences have no weights.
            ids = dataclasses.replace(ids, weights=tf.zeros([0], tf.float32))
    expected = size // length if length else size
    if batch is not None and batch != expected:
        raise _does_not_fill(path, batch, output_shape)
    if batch is None:
        ids = _checked_when_run(ids, expected, path)
    validate = feature.validate_weights_and_indices or input_shape.rank > 2
    return StepFormat(ids.kind, length, expected, ids.ids.dtype, validate), ids


def _does_not_fill(
    path: str, batch: int, output_shape: tf.TensorShape
) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"Inconsistent shape founded for input feature {path}: Output shape set "
        "in the FeatureConfig should be the factor of the input data batch "
        f"size. But instead got output shape {output_shape}, input data batch "
        f"size {batch}. It should be the batch, or for RaggedTensors a multiple "
        "of it."
    )


def _checked_when_run(ids: FeatureIds, expected: int, path: str) -> FeatureIds:
    check = tf.debugging.assert_equal(
        ids.batch_size,
        tf.constant(expected, tf.int64),
        message=f"Input {path} must have {expected} samples in every step.",
    )
    with tf.control_dependencies([check]):
        return dataclasses.replace(ids, ids=tf.identity(ids.ids))


def check_same_format(
    paths: Sequence[str],
    known: Sequence[StepFormat],
    incoming: Sequence[StepFormat],
) -> None:
    """Raises tfembed.errors.ArgumentError where a feature's format changed."""
    for path, old, new in zip(paths, known, incoming, strict=True):
        if old != new:
            raise errors.ArgumentError(
                f"Input {path} is a {_TYPES[new.kind]} (sequence length "
                f"{new.sequence_length}) but was enqueued as a "
                f"{_TYPES[old.kind]} (sequence length {old.sequence_length}) "
                "before, or on another replica. Keep to one type on all "
                "replicas; enqueue and dequeue another one under a `name` of "
                "its own."
            )


def op_combiner(combiner: Any) -> str:
    """What the grouped ops are told of a TableConfig's combiner."""
    # What a user's function combines is looked up id by id; the rest of such a
    # table's features are not combined.
    return combiner if isinstance(combiner, str) else "sum"


def lookup_plans(
    plan: EmbeddingPlan, formats: Sequence[StepFormat]
) -> list[FeaturePlan]:
    """What the grouped ops are told about each feature."""
    return [
        FeaturePlan(
            table=table,
            combiner=op_combiner(plan.tables[table].combiner),
            max_sequence_length=one.sequence_length,
            validate=one.validate,
            name=path,
        )
        for path, table, one in zip(
            plan.paths, plan.table_ids, formats, strict=True
        )
    ]
