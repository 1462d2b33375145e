"""Lookups of V0 by the host's own op, in tables whose variables are on a CPU.

There is one call for each table and not one for all: a tape then leaves a table
alone of which the loss uses no feature. The op's gradient has each id once.
Tables that the op cannot read are looked up by TensorFlow's ops.
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
      weights: None or its weights; sequences have none, but where an output
        shape makes them, which leaves weights out.
      feature: its FeatureConfig.
      path: its name in errors.

    Returns:
      Its tensors, with one batch dimension; the length of its sequences, 0 where
      a sample's ids are combined; and the activations' shape without the width
      of rows, as far as it is known before anything runs.

    Raises:
      tfembed.errors.ArgumentError: an output shape that does not fit.
      tfembed.errors.DtypeError: weights that are no numbers.
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
    """The activations of each feature, as `look_up` gives them in the style V0.

    Args:
      features: (path, FeatureConfig); the path is what errors call it.
      values: per feature a Tensor, SparseTensor or RaggedTensor of ids.
      weights: per feature None or its weights.
      tables: the tables by TableConfig.

    Raises:
      tfembed.errors.ArgumentError: an input that does not fit its feature;
        nothing is looked up.
      tfembed.errors.DtypeError: ids that are not of their table's dtype.
      tfembed.errors.UnsupportedError: input for a CustomCombiner.
      tf.errors.InvalidArgumentError: when it runs: an id, an index or row
        splits that cannot be.
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
        # Where the variable is, since the op is of that device alone.
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
    # An exported model needs TensorFlow alone: its functions are traced anew.
    if not is_static(table) or traced_for_xla() or exporting_saved_model():
        return False
    if (
        isinstance(table, tf.distribute.DistributedValues)
        and tf.distribute.in_cross_replica_context()
    ):
        return False  # No replica whose copy it would be.
    # In a graph of TensorFlow 1 it may not be known yet.
    device = tf.DeviceSpec.from_string(table.handle.device)
    return device.device_type == "CPU" and not any(
        isinstance(value, tf.SparseTensor) and value.shape.rank is None
        for value in values
    )


def _look_up(inputs: Sequence[_Input], table: Any) -> list[tf.Tensor]:
    """The activations of one table's features."""
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
    """A feature: its arguments of the op, and what its activations are.

    Attributes:
      ids, plan: as the op takes them.
      sequence_length, lead: as `read_taped` returns them.
      value: the input as the user gave it.
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
            # As many as ids, or this raises: the op takes none for ones.
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
        """The op's result in the shape of the input."""
        if self.is_weighted:
            of_op = self._weighted(of_op, table)
        shape = self.lead.concatenate(table.shape[1])
        if shape.is_fully_defined():
            # Also from [B, L] to another with as many elements.
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
    """`value`, once it is known that no position is taken for another's."""
    is_flat = value.shape.rank == 2
    if is_flat and not (feature.max_sequence_length or feature.output_shape):
        return value  # The op looks.
    check = check_indices(value, path)
    with tf.control_dependencies([] if check is None else [check]):
        return value.with_values(tf.identity(value.values))


def _in_order(ids: FeatureIds, is_weighted: bool) -> FeatureIds:
    """Sparse ids in the order that the op wants; free where they have it."""
    shape = tf.stack([ids.batch_size, tf.cast(ids.columns, tf.int64)])

    def ordered(values: tf.Tensor) -> tf.SparseTensor:
        return tf.sparse.reorder(tf.SparseTensor(ids.rows, values, shape))

    in_order = ordered(ids.ids)
    weights = ordered(ids.weights).values if is_weighted else ids.weights
    return dataclasses.replace(
        ids, ids=in_order.values, rows=in_order.indices, weights=weights
    )


def _positions_as_samples(ids: FeatureIds, length: int) -> FeatureIds:
    """A sequence's positions, as samples whose ids are summed.

    The op refuses two ids at one position; so it adds them up.
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
