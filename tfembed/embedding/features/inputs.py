"""Conversion of a batch's input tensors for the grouped ops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.features import output_shapes
from tfembed.embedding.features.output_shapes import OutputShapes, is_sequence
from tfembed.embedding.plan import EmbeddingPlan, feature_paths
from tfembed.ops import FeatureIds, FeaturePlan, feature_ids, wide_ids
from tfembed.ops.combiners import at_positions_of

__all__ = [
    "InputSpec",
    "as_bag",
    "check_combines",
    "check_ids",
    "check_same_specs",
    "checked_weights",
    "spec_of",
    "lookup_plans",
    "op_combiner",
    "read_batch",
    "read_input",
    "weights_in_bags",
    "weights_of",
]


_TYPES = {"dense": "Tensor", "sparse": "SparseTensor", "ragged": "RaggedTensor"}


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """The static description of one feature's input.

    A dequeue is traced once and serves all later steps, so the spec must be the
    same in all steps.

    Attributes:
      kind: "dense", "sparse" or "ragged".
      sequence_length: 0 if a sample's ids are combined.
      batch_size: the number of samples.
      id_dtype: tf.int64 or tf.string.
      validate: whether sparse input is pruned; for a rank above 2 it always is,
        as by tf.nn.safe_embedding_lookup_sparse.
    """

    kind: str
    sequence_length: int
    batch_size: int
    id_dtype: tf.DType
    validate: bool

    def activation_shape(self, dim: int) -> tf.TensorShape:
        """Returns the shape of the lookup op's result for a width of rows."""
        positions = [self.sequence_length] if self.sequence_length else []
        return tf.TensorShape([self.batch_size, *positions, dim])


def spec_of(
    feature: Any,
    ids: FeatureIds,
    *,
    path: str,
    input_shape: tf.TensorShape,
    output_shape: tf.TensorShape,
) -> tuple[InputSpec, FeatureIds]:
    """Makes an input's spec, checked against the feature's output shape.

    Args:
      feature: the FeatureConfig.
      ids: the feature's ids, with one batch dimension.
      path: the feature's name in errors.
      input_shape: the shape of the user's input, with a known rank.
      output_shape: the feature's output shape, fully defined.

    Returns:
      The spec, and `ids`, with a run-time check if the static batch size is not
      known.

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
        # Cannot tell one sample per element from sequences.
        raise errors.ArgumentError(
            f"Input {path} is a RaggedTensor whose number of rows is unknown "
            f"when the function is traced, and its output shape is "
            f"{output_shape}. Batch with drop_remainder=True (a loop over a "
            "distributed dataset forgets the number; one over its iterator "
            "does not), or leave `output_shape` out."
        )
    elif ids.kind == "ragged" and batch and size % batch == 0:
        length = size // batch if size > batch else 0
        if length:  # As in serving: these sequences have no weights.
            ids = dataclasses.replace(ids, weights=tf.zeros([0], tf.float32))
    expected = size // length if length else size
    if batch is not None and batch != expected:
        raise _does_not_fill(path, batch, output_shape)
    if batch is None:
        ids = _checked_when_run(ids, expected, path)
    validate = feature.validate_weights_and_indices or input_shape.rank > 2
    return InputSpec(ids.kind, length, expected, ids.ids.dtype, validate), ids


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
        message=f"Input {path} must have {expected} samples in every step. "
        + output_shapes.WAYS_OUT,
    )
    with tf.control_dependencies([check]):
        return dataclasses.replace(ids, ids=tf.identity(ids.ids))


def check_same_specs(
    paths: Sequence[str],
    known: Sequence[InputSpec],
    incoming: Sequence[InputSpec],
) -> None:
    """Raises tfembed.errors.ArgumentError if a feature's spec changed."""
    for path, old, new in zip(paths, known, incoming, strict=True):
        if old.batch_size != new.batch_size:
            raise errors.ArgumentError(
                f"Input {path} has {new.batch_size} samples and had "
                f"{old.batch_size} before, or on another replica. "
                f"{output_shapes.WAYS_OUT}"
            )
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
    """Returns the grouped ops' combiner for a TableConfig's combiner."""
    # For a CustomCombiner any will do: its features are looked up id by id, and
    # the table's other features are sequences.
    return combiner if isinstance(combiner, str) else "sum"


def lookup_plans(
    plan: EmbeddingPlan, specs: Sequence[InputSpec]
) -> list[FeaturePlan]:
    """Makes the FeaturePlan of each feature for the grouped ops."""
    return [
        FeaturePlan(
            table=table,
            combiner=op_combiner(plan.tables[table].combiner),
            max_sequence_length=one.sequence_length,
            validate=one.validate,
            name=path,
        )
        for path, table, one in zip(
            plan.paths, plan.table_ids, specs, strict=True
        )
    ]


def read_batch(
    values: Sequence[Any], weights: Sequence[Any], shapes: OutputShapes
) -> tuple[list[FeatureIds], list[InputSpec]]:
    """Reads one replica's batch and checks all of it.

    Args:
      values: per feature an input as `read_input` takes it.
      weights: per feature None or its weights.
      shapes: the output shapes from `OutputShapes.with_values`.

    Returns:
      Per feature its ids and its spec.

    Raises:
      tfembed.errors.ArgumentError: an input or a shape that is not allowed.
      tfembed.errors.DtypeError: ids that are not of the table's dtype, or
        weights that are not numbers.
    """
    features, paths = shapes.features, shapes.paths
    ids, specs = [], []
    for i, (value, weight) in enumerate(zip(values, weights, strict=True)):
        one, checked = spec_of(
            features[i],
            read_input(value, weight, paths[i], features[i].table),
            path=paths[i],
            input_shape=value.shape,
            output_shape=shapes.shapes[i],
        )
        if not one.sequence_length:
            check_combines(features[i], weight, paths[i])
        specs.append(one)
        ids.append(checked)
    return ids, specs


def check_combines(feature: Any, weights: Any, path: str) -> None:
    """Refuses weights for ids that a CustomCombiner combines."""
    if weights is not None and is_custom(feature.table.combiner):
        raise errors.ArgumentError(
            f"Weight specified for {path}, but its table "
            f"{feature.table.name!r} has a CustomCombiner, which takes none. "
            "Leave it out, or combine by sum, mean or sqrtn."
        )


def read_input(value: Any, weights: Any, path: str, table: Any) -> FeatureIds:
    """Converts a feature's input to int64 or string ids, one batch dimension.

    Args:
      value: integer ids, or strings if the keys of `table` are strings: a
        Tensor of rank 1, or of higher rank with a last dimension of 1; a
        SparseTensor of rank 2 or above; or a RaggedTensor of rank 2.
      weights: None, or floats of the type and structure of `value`.
      path: the feature's name in errors.
      table: its TableConfig.

    Raises:
      tfembed.errors.ArgumentError: weights that do not fit.
      tfembed.errors.DtypeError: ids that are not of the table's dtype, or
        weights that are not numbers.
    """
    check_ids(value.dtype, path, table)
    if weights is not None:
        weights = checked_weights(value, weights, path)
    if isinstance(value, tf.SparseTensor):
        value = value.with_values(wide_ids(value.values))
        return feature_ids(_flat(value), weights, name=path)
    value = wide_ids(value)
    if isinstance(value, tf.Tensor):
        value = tf.reshape(value, [-1])
    return feature_ids(value, weights, name=path)


def _flat(value: tf.SparseTensor) -> tf.SparseTensor:
    """Flattens all dimensions but the last into one.

    An index outside of a dimension becomes a negative sample index, which
    engines refuse. (tf.sparse.reshape would map it to another sample, and XLA
    does not compile it.)
    """
    if value.shape.rank == 2:
        return value
    sizes = tf.unstack(value.dense_shape, value.shape.rank)
    positions = tf.unstack(value.indices, value.shape.rank, axis=1)
    sample, is_inside = tf.zeros_like(positions[-1]), True
    for size, position in zip(sizes[:-1], positions[:-1], strict=True):
        is_inside &= (position >= 0) & (position < size)
        sample = sample * size + position
    sample = tf.where(is_inside, sample, tf.constant(-1, tf.int64))
    samples = math.prod(sizes[:-1], start=tf.constant(1, tf.int64))
    return tf.SparseTensor(
        tf.stack([sample, positions[-1]], 1),
        value.values,
        tf.stack([samples, sizes[-1]]),
    )


def check_ids(dtype: tf.DType, path: str, table: Any) -> None:
    """Raises DtypeError if a feature's ids cannot be keys of its table."""
    wanted = getattr(table, "key_dtype", tf.int64)
    if dtype == tf.string and wanted != tf.string:
        raise errors.DtypeError(
            f"The ids of input {path} must be integers; got string. A table "
            "with vocabulary_size=None and key_dtype=tf.string takes strings; "
            "for others hash them, for example with "
            "tf.strings.to_hash_bucket_strong."
        )
    if wanted == tf.string and dtype != tf.string:
        raise errors.DtypeError(
            f"The ids of input {path} must be strings, the key_dtype of its "
            f"table {table.name!r}; got {dtype.name}."
        )
    if dtype != tf.string and not dtype.is_integer:
        raise errors.DtypeError(
            f"The ids of input {path} must be integers; got {dtype.name}. "
            "Cast them; in a Keras model, give keras.Input(dtype='int64')."
        )


def checked_weights(value: Any, weights: Any, path: str) -> Any:
    """Converts the weights of `value` to float32; raises if they do not fit.

    `at_positions_of` checks their positions at run time.
    """
    if isinstance(value, tf.Tensor):
        raise errors.ArgumentError(
            f"Weight specified for dense input {path}, which is not allowed. "
            "Weight will always be 1 in this case."
        )
    kind = type(value)
    if not isinstance(weights, kind):
        raise errors.ArgumentError(
            f"Weight for {path} is type {type(weights)} which does not match "
            f"type input which is {kind.__name__}."
        )
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise errors.DtypeError(
            f"The weights of input {path} must be floats; got "
            f"{weights.dtype.name}."
        )
    weights = at_positions_of(value, weights, path)
    return weights.with_values(tf.cast(weights.values, tf.float32))


def as_bag(
    value: Any, weights: Any, feature: Any, path: str
) -> tuple[Any, Any]:
    """Converts dense ids and weights for a lookup that combines them.

    Args:
      value: ids [B] or [B, n].
      weights: None, or numbers of the same shape.
      feature: the FeatureConfig.
      path: the feature's name in errors.

    Returns:
      Ids [B] if samples have one id without a weight and are not sequences;
      else a RaggedTensor [B, n]. And the weights, a RaggedTensor like the ids;
      None if there are none.

    Raises:
      tfembed.errors.ArgumentError: another rank; weights of another type or
        shape, or for a sequence feature with one id per sample.
    """
    ids = tf.convert_to_tensor(value)
    if ids.shape.rank not in (1, 2):
        raise errors.ArgumentError(
            "Only dense tensors of rank 1 and 2 are supported here, found rank "
            f"{ids.shape.rank} for input {path}. Weighted ids of rank 3 or above "
            "cannot be packed: give ids and weights to the layer itself."
        )
    is_one = ids.shape.rank == 1 or (
        # Sequences of length 1 are sequences too.
        ids.shape[1] == 1 and not is_sequence(feature)
    )
    if weights is None:
        if is_one:
            return tf.reshape(ids, [-1]), None
        return tf.RaggedTensor.from_tensor(ids), None
    if is_one and is_sequence(feature):
        raise errors.ArgumentError(
            f"Weight specified for dense input {path}, a sequence feature with "
            "one id per sample, which is no sequence. Leave the weight out."
        )
    of_ids = weights_of(weights, ids.shape, path)
    if is_one:
        ids, of_ids = (tf.reshape(one, [-1, 1]) for one in (ids, of_ids))
    return tf.RaggedTensor.from_tensor(ids), tf.RaggedTensor.from_tensor(of_ids)


def weights_in_bags(
    features: Any, weights: Any, feature_config: Any
) -> tuple[Any, Any]:
    """Converts weighted dense ids of a batch, and weights, to RaggedTensors.

    Args:
      features: ids, structured as feature_config.
      weights: weights, structured as feature_config.
      feature_config: a structure of FeatureConfigs.

    Returns:
      `features` and `weights` in the same structures.

    Raises:
      tfembed.errors.ArgumentError: as `as_bag`.
      ValueError, TypeError: another structure.
    """
    tf.nest.assert_same_structure(feature_config, features)
    tf.nest.assert_same_structure(feature_config, weights)
    pairs = [
        as_bag(value, weight, feature, feature.name or path)
        if weight is not None and not _is_composite(value)
        else (value, weight)
        for value, weight, feature, path in zip(
            tf.nest.flatten(features),
            tf.nest.flatten(weights),
            tf.nest.flatten(feature_config),
            feature_paths(feature_config),
            strict=True,
        )
    ]
    values, of_values = zip(*pairs, strict=True)
    return (
        tf.nest.pack_sequence_as(features, values),
        tf.nest.pack_sequence_as(weights, of_values),
    )


def weights_of(weights: Any, shape: tf.TensorShape, path: str) -> tf.Tensor:
    """Returns the weights of dense ids as a tensor, checked.

    Args:
      weights: the user's weights.
      shape: the shape of the ids.
      path: the feature's name in errors.

    Raises:
      tfembed.errors.ArgumentError: another type or shape than that of the ids.
    """
    if _is_composite(weights):
        raise errors.ArgumentError(
            f"Weight for {path} is type {type(weights).__name__} which does "
            "not match type input which is Tensor."
        )
    of_ids = tf.convert_to_tensor(weights)
    if not of_ids.shape.is_compatible_with(shape):
        raise errors.ArgumentError(
            f"Weight for {path} has shape {of_ids.shape}, and its ids have "
            f"{shape}. Give each id one weight."
        )
    return of_ids


def _is_composite(value: Any) -> bool:
    return isinstance(value, (tf.SparseTensor, tf.RaggedTensor))
