"""Lookups of V0 by the grouped op, in tables whose variables are on a CPU.

Each table has its own op call, so that a table whose features the loss does not
use gets no gradient. The op's gradient has each id once. Tables that the op
cannot read are looked up by TensorFlow's ops.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops
from tfembed.checkpoint.private import exporting_saved_model
from tfembed.embedding.features.inputs import op_combiner, read_input
from tfembed.embedding.features.output_shapes import (
    is_sequence,
    warn_if_ignored,
)
from tfembed.embedding.features.pooling import (
    check_indices,
    sequence_length_of,
)
from tfembed.embedding.host.row_feature import positions_of
from tfembed.embedding.lookups.direct_lookup import (
    V0,
    check_input,
    is_static,
    look_up,
)
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.ops.combiners import with_weight_gradient
from tfembed.ops.private import traced_for_xla

__all__ = ["look_up_fused", "read_taped"]


def read_taped(
    value: Any, weights: Any, feature: Any, path: str
) -> tuple[FeatureIds, int, tf.TensorShape]:
    """Reads an input that `check_input` has passed.

    Args:
      value: a Tensor, SparseTensor or RaggedTensor of ids.
      weights: None or its weights. Sequence features have none; if an output
        shape makes sequences, the weights are ignored.
      feature: the FeatureConfig.
      path: the feature's name in errors.

    Returns:
      The ids, with one batch dimension; the length of sequences, 0 if a
      sample's ids are combined; and the activations' static shape without the
      width of rows.

    Raises:
      tfembed.errors.ArgumentError: an output shape that does not fit.
      tfembed.errors.DtypeError: weights that are not numbers.
    """
    shape, length = value.shape, 0
    lead = shape if isinstance(value, tf.Tensor) else shape[:-1]
    if not isinstance(value, tf.Tensor) and shape.rank == 2:
        if is_sequence(feature) or isinstance(value, tf.SparseTensor):
            length = feature.max_sequence_length
        if feature.output_shape and isinstance(value, tf.RaggedTensor):
            length = sequence_length_of(shape[0], feature.output_shape, path)
            lead = feature.output_shape
        elif length:
            lead = lead.concatenate(length)
    if isinstance(value, tf.SparseTensor):
        warn_if_ignored(feature, shape.rank, path)
    ids = read_input(value, weights, path, feature.table)
    if length:
        ids = dataclasses.replace(ids, weights=tf.zeros([0], tf.float32))
    return ids, length, lead


def look_up_fused(
    features: Sequence[tuple[str, Any]],
    values: Sequence[Any],
    weights: Sequence[Any],
    tables: Mapping[Any, Any],
) -> list[tf.Tensor]:
    """Returns the activations of each feature, as `look_up` in the style V0.

    Args:
      features: (path, FeatureConfig); the path is the feature's name in errors.
      values: per feature a Tensor, SparseTensor or RaggedTensor of ids.
      weights: per feature None or its weights.
      tables: the tables by TableConfig.

    Raises:
      tfembed.errors.ArgumentError: an input that does not fit its feature;
        nothing is looked up.
      tfembed.errors.DtypeError: ids that are not of their table's dtype.
      tfembed.errors.UnsupportedError: input for a CustomCombiner.
      tf.errors.InvalidArgumentError: when it runs: an id or index out of
        bounds, or bad row splits.
    """
    of_table: dict[Any, list[int]] = {}
    for i, (path, feature) in enumerate(features):
        check_input(values[i], weights[i], feature, path)
        of_table.setdefault(feature.table, []).append(i)
    found: dict[int, tf.Tensor] = {}
    others: list[int] = []
    for config, here in of_table.items():
        if not _is_fused(tables[config], [values[i] for i in here]):
            others += here
            continue
        # On the variable's device, since the op reads its memory.
        with tf.device(tables[config].handle.device):
            inputs = [
                _Input.read(*features[i], values[i], weights[i]) for i in here
            ]
            activations = _look_up(inputs, tables[config])
        found.update(zip(here, activations, strict=True))
    if others:
        rest = look_up(
            [features[i] for i in others],
            [values[i] for i in others],
            [weights[i] for i in others],
            tables,
            V0,
        )
        found.update(zip(others, rest, strict=True))
    return [found[i] for i in range(len(features))]


def _is_fused(table: Any, values: Sequence[Any]) -> bool:
    # An exported model must not need tfembed: its functions are traced again.
    if not is_static(table) or traced_for_xla() or exporting_saved_model():
        return False
    if (
        isinstance(table, tf.distribute.DistributedValues)
        and tf.distribute.in_cross_replica_context()
    ):
        return False  # In cross-replica context no copy is chosen.
    # In a graph of TensorFlow 1 the device may not be known yet.
    device = tf.DeviceSpec.from_string(table.handle.device)
    return device.device_type == "CPU" and not any(
        isinstance(value, tf.SparseTensor) and value.shape.rank is None
        for value in values
    )


def _look_up(inputs: Sequence[_Input], table: Any) -> list[tf.Tensor]:
    """Returns the activations of one table's features."""
    found = ops.grouped_lookup(
        [table],
        [table.shape[1]],
        [one.ids for one in inputs],
        [one.plan for one in inputs],
    )
    return [
        one.activations(of_one, table)
        for one, of_one in zip(inputs, found, strict=True)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class _Input:
    """A feature: the op's arguments, and the shape of its activations.

    Attributes:
      ids, plan: the op's arguments.
      sequence_length, lead: as `read_taped` returns them.
      value: the user's input.
      is_weighted: whether a tape may ask for the gradient of weights.
    """

    ids: FeatureIds
    plan: FeaturePlan
    sequence_length: int
    lead: tf.TensorShape
    value: Any
    is_weighted: bool

    @classmethod
    def read(cls, path: str, feature: Any, value: Any, weights: Any) -> _Input:
        if weights is not None:
            weights = weights.with_values(tf.cast(weights.values, tf.float32))
        is_sparse = isinstance(value, tf.SparseTensor)
        ids, length, lead = read_taped(
            _checked(value, feature, path) if is_sparse else value,
            weights,
            feature,
            path,
        )
        is_weighted = weights is not None and not length
        if is_weighted:
            # Raises unless there is one per id: the op reads no weights as
            # ones.
            of_ids = tf.reshape(ids.weights, tf.shape(ids.ids))
            ids = dataclasses.replace(ids, weights=of_ids)
        if is_sparse:
            ids = _in_order(ids, is_weighted)
        plan = FeaturePlan(
            table=0,
            combiner=op_combiner(feature.table.combiner),
            max_sequence_length=length,
            validate=False,
            name=path,
        )
        if is_sparse and length:
            ids = _positions_as_samples(ids, length)
            plan = dataclasses.replace(
                plan, combiner="sum", max_sequence_length=0
            )
        return cls(ids, plan, length, lead, value, is_weighted)

    def _weighted(self, of_op: tf.Tensor, table: Any) -> tf.Tensor:
        samples, _ = positions_of(self.ids)
        return with_weight_gradient(
            of_op,
            self.ids,
            samples,
            table,
            functools.partial(ops.combine, combiner=self.plan.combiner),
        )

    def activations(self, of_op: tf.Tensor, table: Any) -> tf.Tensor:
        """Reshapes the op's result to the shape of the input."""
        if self.is_weighted:
            of_op = self._weighted(of_op, table)
        shape = self.lead.concatenate(table.shape[1])
        if shape.is_fully_defined():
            # It may also have another shape with as many elements as [B, L].
            return of_op if of_op.shape == shape else tf.reshape(of_op, shape)
        if shape.rank == of_op.shape.rank:
            return tf.ensure_shape(of_op, shape)
        if isinstance(self.value, tf.Tensor):
            lead = tf.shape(self.value)
        else:
            lead = tf.cast(self.value.dense_shape[:-1], tf.int32)
            length = self.sequence_length
            lead = tf.concat([lead, [length] if length else []], 0)
        reshaped = tf.reshape(of_op, tf.concat([lead, [table.shape[1]]], 0))
        return tf.ensure_shape(reshaped, shape)


def _checked(
    value: tf.SparseTensor, feature: Any, path: str
) -> tf.SparseTensor:
    """Returns `value` with run-time checks of its positions."""
    is_flat = value.shape.rank == 2
    if is_flat and not (feature.max_sequence_length or feature.output_shape):
        return value  # The op looks.
    check = check_indices(value, path)
    with tf.control_dependencies([] if check is None else [check]):
        return value.with_values(tf.identity(value.values))


def _in_order(ids: FeatureIds, is_weighted: bool) -> FeatureIds:
    """Sorts sparse ids for the op; free if they are sorted."""
    shape = tf.stack([ids.batch_size, tf.cast(ids.columns, tf.int64)])

    def ordered(values: tf.Tensor) -> tf.SparseTensor:
        return tf.sparse.reorder(tf.SparseTensor(ids.rows, values, shape))

    in_order = ordered(ids.ids)
    weights = ordered(ids.weights).values if is_weighted else ids.weights
    return dataclasses.replace(
        ids, ids=in_order.values, rows=in_order.indices, weights=weights
    )


def _positions_as_samples(ids: FeatureIds, length: int) -> FeatureIds:
    """Converts a sequence's positions to samples whose ids are summed.

    The sequence op would refuse two ids at one position; the sum adds them.
    """
    sample, position = tf.unstack(ids.rows, 2, axis=1)
    inside = position < length
    sample = tf.boolean_mask(sample * length + position, inside)
    return dataclasses.replace(
        ids,
        ids=tf.boolean_mask(ids.ids, inside),
        rows=tf.stack([sample, tf.zeros_like(sample)], 1),
        batch_size=ids.batch_size * length,
    )
