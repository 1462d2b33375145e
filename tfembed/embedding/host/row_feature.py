"""Features whose rows the grouped op cannot combine.

Their table is quantized, or a user's function combines the rows. The grouped op
looks the ids up one by one, and TensorFlow's ops combine the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops
from tfembed.config import CustomCombiner
from tfembed.config.custom_combiner import as_combiner, is_custom
from tfembed.config.quantization_config import quantized
from tfembed.embedding import private
from tfembed.embedding.features.id_checks import check_positions, require_all
from tfembed.embedding.host.table_update import StepGradients
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.ops.private import converted

__all__ = [
    "CombinedIds",
    "RowFeature",
    "RowFeatures",
    "make_combiner_weights",
    "positions_of",
    "single_ids",
    "train_combiner_weights",
    "usable_gradient",
]


@dataclasses.dataclass(frozen=True, eq=False)
class RowFeature:
    """A feature whose ids are looked up one by one.

    Attributes:
      config: its table's TableConfig.
      plan: the feature's FeaturePlan.
      kind: "dense", "sparse" or "ragged".
    """

    config: Any
    plan: FeaturePlan
    kind: str

    @classmethod
    def needed(
        cls, config: Any, plan: FeaturePlan, kind: str
    ) -> RowFeature | None:
        """Makes a RowFeature if the grouped op cannot combine it, else None."""
        feature = cls(config, plan, kind)
        is_quantized = config.quantization_config is not None
        return feature if is_quantized or feature.is_custom else None

    @property
    def is_custom(self) -> bool:
        """Whether a user's function combines the rows."""
        combines = self.kind != "dense" and self.plan.max_sequence_length == 0
        return combines and is_custom(self.config.combiner)

    def lookup(
        self, table: Any, ids: FeatureIds, combiner_weights: Any
    ) -> tf.Tensor:
        """Returns the activations, [B, dim] or [B, sequence_length, dim].

        Args:
          table: the table's handle.
          ids: the feature's batch.
          combiner_weights: the weights of a CustomCombiner; None: it has no
            weights.

        Raises:
          tf.errors.InvalidArgumentError: when it runs: `check_positions`.
        """
        with tf.control_dependencies(self._checked(ids)):
            if self.is_custom:
                kept = self.combined_ids(ids)
                rows = self.rows(table, kept.ids)
                return kept.combine(rows, combiner_weights)
            rows = self.rows(table, *_kept(ids, self._keeps(ids)))
            return self._pool(rows, ids)

    def rows(self, table: Any, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows [n, dim] of ids [n], quantized if the table is."""
        (found,) = ops.grouped_lookup(
            [table],
            [self.config.dim],
            [single_ids(ids)],
            [FeaturePlan(0, "sum", name=self.plan.name)],
        )
        return quantized(found, self.config.quantization_config)

    def combined_ids(self, ids: FeatureIds) -> CombinedIds:
        """Returns the ids that a CustomCombiner combines."""
        combiner = as_combiner(self.config.combiner)
        sample, _ = positions_of(ids)
        kept, sample = _kept(ids, self._keeps(ids), sample)
        ragged = tf.RaggedTensor.from_value_rowids(
            kept, sample, tf.cast(ids.batch_size, tf.int64), validate=False
        )[:, : combiner.max_valency]
        return CombinedIds(ragged, combiner)

    def _checked(self, ids: FeatureIds) -> list[tf.Tensor]:
        """Makes checks of positions, which TensorFlow's ops do not check."""
        checks = check_positions(ids, self.plan)
        return [require_all(checks)] if checks else []

    def _keeps(self, ids: FeatureIds) -> tf.Tensor | None:
        """Says which ids of sparse input are not pruned; None: all."""
        if ids.kind != "sparse":
            return None
        _, position = positions_of(ids)
        keep = tf.ones_like(position, tf.bool)
        if self.plan.validate:
            if self.config.vocabulary_size is not None:
                keep &= ids.ids >= 0
            if self.config.combiner != "sum":
                keep &= _weights(ids) > 0
        return keep

    def _pool(self, rows: tf.Tensor, ids: FeatureIds) -> tf.Tensor:
        if ids.kind == "dense":
            return rows
        keep = self._keeps(ids)
        weights, sample, position = _kept(
            ids, keep, *positions_of(ids), values=_weights(ids)
        )
        length, batch = self.plan.max_sequence_length, ids.batch_size
        if length:
            inside = position < length
            rows, weights, sample, position = (
                tf.boolean_mask(x, inside)
                for x in (rows, weights, sample, position)
            )
            pooled = tf.math.unsorted_segment_sum(
                rows * weights[:, tf.newaxis],
                sample * length + position,
                batch * length,
            )
            return tf.reshape(pooled, [-1, length, self.config.dim])
        return ops.combine(rows, weights, sample, batch, self.config.combiner)


@dataclasses.dataclass(frozen=True, eq=False)
class CombinedIds:
    """The ids of a batch that a user's function combines.

    Attributes:
      samples: ragged [B, at most max_valency].
      combiner: the function.
    """

    samples: tf.RaggedTensor
    combiner: CustomCombiner

    @property
    def ids(self) -> tf.Tensor:
        """Returns all ids, [n]."""
        return self.samples.values

    def combine(self, rows: tf.Tensor, weights: Any) -> tf.Tensor:
        """Combines rows [n, dim] to [B, dim]; samples without ids are 0."""
        width = self.combiner.max_valency
        valency = tf.cast(self.samples.row_lengths(), tf.int32)
        vectors = self.samples.with_values(rows).to_tensor(
            shape=[None, width, rows.shape[1]]
        )
        extra = () if weights is None else (tf.convert_to_tensor(weights),)
        computation = converted(self.combiner.combiner_computation)

        def combine_one(sample: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return computation(*sample, *extra)

        # The function gets no sample of valency 0, by which it might divide,
        # and no sample of zeros, at which a norm has no gradient.
        has_ids = valency > 0
        vectors = tf.where(has_ids[:, tf.newaxis, tf.newaxis], vectors, 1.0)
        combined = tf.vectorized_map(
            combine_one, (tf.maximum(valency, 1), vectors)
        )
        combined = tf.ensure_shape(combined, [None, rows.shape[1]])
        return tf.where(has_ids[:, tf.newaxis], combined, 0.0)

    def gradients(
        self, rows: tf.Tensor, weights: Any, upstream: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the gradient of rows [n, dim], and of the weights or None."""
        sources = [rows] if weights is None else [rows, weights]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            combined = self.combine(*sources, *([None] * (2 - len(sources))))
        found = tape.gradient(
            combined,
            sources,
            upstream,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return found[0], found[1] if len(found) > 1 else None


def single_ids(ids: tf.Tensor) -> FeatureIds:
    """Makes a batch of ids [n] with one id per sample."""
    return FeatureIds(
        kind="dense",
        ids=ids,
        rows=tf.zeros([0], tf.int64),
        weights=tf.zeros([0], tf.float32),
        batch_size=tf.size(ids, out_type=tf.int64),
    )


def positions_of(ids: FeatureIds) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each id's sample, and its position in the sample."""
    if ids.kind == "sparse":
        return ids.rows[:, 0], ids.rows[:, 1]
    if ids.kind == "dense":
        sample = tf.range(tf.size(ids.ids, out_type=tf.int64))
        return sample, tf.zeros_like(sample)
    ragged = tf.RaggedTensor.from_row_splits(ids.ids, ids.rows, validate=False)
    sample = ragged.value_rowids()
    position = tf.range(tf.size(ids.ids, out_type=tf.int64))
    return sample, position - tf.gather(ids.rows, sample)


def _weights(ids: FeatureIds) -> tf.Tensor:
    """Returns a weight per id: 1 where the batch has no weights."""
    return tf.cond(
        tf.size(ids.weights) > 0,
        lambda: ids.weights,
        lambda: tf.ones_like(ids.ids, tf.float32),
    )


def _kept(
    ids: FeatureIds,
    keep: tf.Tensor | None,
    *others: tf.Tensor,
    values: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Filters the ids, or `values` in their place, and other tensors."""
    parts: Sequence[tf.Tensor] = (
        ids.ids if values is None else values,
        *others,
    )
    if keep is None:
        return list(parts)
    return [tf.boolean_mask(part, keep) for part in parts]


def make_combiner_weights(owner: Any, config: Any) -> Any:
    """Makes the variable [num_weights] of a table's combiner, or None.

    `owner` tracks it as `<table>/custom_combiner_variables`.

    Args:
      owner: the trackable object that saves the variable.
      config: the table's TableConfig, named.
    """
    if not is_custom(config.combiner):
        return None
    combiner = as_combiner(config.combiner)
    if combiner.num_weights == 0:
        return None
    shape = [combiner.num_weights]

    def getter(initializer: Callable[..., tf.Tensor], **arguments: Any) -> Any:
        arguments["shape"] = tf.TensorShape(shape)
        with tf.device(HOST):
            return private.single_variable(
                initial_value=lambda: initializer(shape, dtype=tf.float32),
                **arguments,
            )

    return private.add_variable(
        owner,
        name=f"{config.name}/custom_combiner_variables",
        shape=shape,
        dtype=tf.float32,
        initializer=combiner.initializer,
        getter=getter,
        trainable=False,
    )


def usable_gradient(
    config: Any, gradients: list[tf.Tensor], nonfinite: str
) -> tf.Tensor:
    """Sums the gradients of the weights of a table's combiner, [num_weights].

    Args:
      config: the table's TableConfig.
      gradients: the gradients of its features.
      nonfinite: "skip" replaces a sum with a NaN or an infinity by 0.

    Raises:
      tf.errors.InvalidArgumentError: when it runs: such a sum, with
        nonfinite="refuse".
    """
    total = tf.add_n(gradients)
    if nonfinite == "allow":
        return total
    is_finite = tf.reduce_all(tf.math.is_finite(total))
    if nonfinite == "skip":
        return tf.where(is_finite, total, 0.0)
    check = tf.debugging.assert_equal(
        is_finite,
        True,
        f"The gradient of the weights of table {config.name!r}'s CustomCombiner "
        "has a NaN or an infinity; nothing was changed",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(total)


def train_combiner_weights(
    config: Any, weights: Any, gradient: tf.Tensor
) -> None:
    """Takes one step of gradient descent."""
    rate = as_combiner(config.combiner).combiner_weights_learning_rate
    rate = tf.cast(rate() if callable(rate) else rate, tf.float32)
    weights.assign_sub(rate * gradient)


class RowFeatures:
    """Looks features up, in one op if it can combine them.

    It also differentiates the features that the op cannot combine.

    Args:
      owner: the trackable object that saves the weights of combiners.
      plan: the plan of the embedding.
      tables: the tables of the plan.
    """

    def __init__(
        self, owner: Any, plan: EmbeddingPlan, tables: Sequence[HostTable]
    ) -> None:
        self._plan = plan
        self._tables = tables
        # Per table the weights of its CustomCombiner, or None.
        self._weights: list[Any] = [
            make_combiner_weights(owner, config) for config in plan.tables
        ]

    def look_up(
        self, features: Sequence[FeatureIds], plans: Sequence[FeaturePlan]
    ) -> list[tf.Tensor]:
        """Returns the activations per feature."""
        by_rows = self._by_rows(features, plans)
        fused = [i for i, feature in enumerate(by_rows) if feature is None]
        activations: dict[int, tf.Tensor] = {}
        if fused:
            found = ops.grouped_lookup(
                # Handles, not variables: tapes and functions need not watch.
                [table.parameters.handle for table in self._tables],
                self._plan.dims,
                [features[i] for i in fused],
                [plans[i] for i in fused],
            )
            activations.update(zip(fused, found, strict=True))
        for i, feature in enumerate(by_rows):
            if feature is not None:
                table = plans[i].table
                activations[i] = feature.lookup(
                    self._handle(table), features[i], self._weights[table]
                )
        return [activations[i] for i in range(len(features))]

    def differentiate(
        self,
        features: Sequence[FeatureIds],
        plans: Sequence[FeaturePlan],
        gradients: Sequence[tf.Tensor],
        nonfinite: str,
    ) -> tuple[StepGradients, dict[int, tf.Tensor]]:
        """Returns the arguments of update ops, and of `train_weights` by table.

        Args:
          features: the features of all replicas.
          plans: one FeaturePlan per feature.
          gradients: the gradients with respect to the activations.
          nonfinite: as for `usable_gradient`.

        Raises:
          tf.errors.InvalidArgumentError: as `usable_gradient`.
        """
        step = StepGradients()
        slopes: dict[int, list[tf.Tensor]] = {}
        by_rows = self._by_rows(features, plans)
        for feature, ids, plan, gradient in zip(
            by_rows, features, plans, gradients, strict=True
        ):
            if feature is None or not feature.is_custom:
                step.add(ids, plan, gradient)
                continue
            weights = self._weights[plan.table]
            kept = feature.combined_ids(ids)
            rows = feature.rows(self._handle(plan.table), kept.ids)
            of_rows, of_weights = kept.gradients(rows, weights, gradient)
            single = FeaturePlan(plan.table, "sum", name=plan.name)
            step.add(single_ids(kept.ids), single, of_rows)
            if of_weights is not None:
                slopes.setdefault(plan.table, []).append(of_weights)
        return step, {
            table: usable_gradient(
                self._plan.tables[table], of_table, nonfinite
            )
            for table, of_table in slopes.items()
        }

    def train_weights(self, gradients: Mapping[int, tf.Tensor]) -> None:
        """Updates the weights of tables' combiners."""
        for table, gradient in gradients.items():
            config, weights = self._plan.tables[table], self._weights[table]
            train_combiner_weights(config, weights, gradient)

    def _by_rows(
        self, features: Sequence[FeatureIds], plans: Sequence[FeaturePlan]
    ) -> list[RowFeature | None]:
        return [
            RowFeature.needed(self._plan.tables[plan.table], plan, ids.kind)
            for ids, plan in zip(features, plans, strict=True)
        ]

    def _handle(self, table: int) -> tf.Tensor:
        return self._tables[table].parameters.handle
