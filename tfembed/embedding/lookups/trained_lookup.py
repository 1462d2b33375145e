"""A lookup whose gradient trains the tables, for layers inside of a model.

It needs no queue, no name and no static batch size: the update runs when a tape
differentiates the activations, with the ids of the lookup.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.private import exporting_saved_model
from tfembed.embedding.engines.router import EngineRouter
from tfembed.embedding.features.inputs import (
    as_bag,
    check_combines,
    op_combiner,
    read_input,
    weights_of,
)
from tfembed.embedding.features.output_shapes import (
    is_sequence,
    warn_if_ignored,
)
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.lookups.taken_updates import (
    TakenUpdates,
    Update,
    mark_moved,
)
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import Replicas
from tfembed.embedding.steps.table_rates import TableRates
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.ops.gradients import check_forward_mode
from tfembed.ops.private import (
    at_each_call,
    control_flow_left,
    differentiated_around,
    gradients_are_apart,
    in_order,
    is_vectorized,
    orders_by_itself,
)

__all__ = ["TrainedLookup"]

_SECOND_ORDER = (
    "Lookups that train their tables have no second-order gradients. Take the "
    "gradient of the activations (`tape.watch(activations)`); that can be "
    "differentiated again."
)
_LEFT = (
    "Lookups that train their tables are inside of a {0}, and the tape is around "
    "it: TensorFlow lets no update out. Call the layer before the {0}, or open "
    "the tape inside of it."
)
_VECTORIZED = (
    "Lookups that train their tables have no jacobian: each of its rows would "
    "train them. Take that of the activations: `tape.jacobian(target, "
    "activations)`."
)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedLookup:
    """Lookups in the tables of one engine.

    Attributes:
      plan: the features and tables.
      engine: the engine that has the tables.
      replicas: the replicas of the strategy.
      rates: the learning rates of the tables.
      known: names of tables that got a gradient in eager mode, or were warned
        of because they got none.
      after_update: a callback of the names of updated tables, called once per
        update for all replicas.
      taken: keeps updates until an optimizer applies them; None: a gradient
        updates the tables.
    """

    plan: EmbeddingPlan
    engine: EngineRouter
    replicas: Replicas
    rates: TableRates
    known: set[str] = dataclasses.field(default_factory=set)
    after_update: Callable[[set[str]], None] = lambda names: None
    taken: TakenUpdates | None = None

    def subset(
        self, indices: Sequence[int], feature_config: Any
    ) -> TrainedLookup:
        """Makes a TrainedLookup of some of the features.

        Args:
          indices: the indices of these features in the plan.
          feature_config: the structure of these features.
        """
        plan = dataclasses.replace(
            self.plan,
            feature_config=feature_config,
            features=tuple(self.plan.features[i] for i in indices),
            paths=tuple(self.plan.paths[i] for i in indices),
            table_ids=tuple(self.plan.table_ids[i] for i in indices),
        )
        return dataclasses.replace(self, plan=plan)

    def look_up(
        self,
        features: Any,
        weights: Any = None,
        *,
        trap: tf.Tensor | None,
        scale: Callable[[], Any] = lambda: 1.0,
    ) -> Any:
        """Returns the activations, structured as the features.

        Args:
          features: structured as feature_config, or packed: Tensors [B], or
            [B, ..., n] whose n ids are combined or, for rank 2, are a sequence;
            SparseTensors of rank 2 or above; RaggedTensors of rank 2. B may be
            unknown.
          weights: None, or as for `TPUEmbedding.enqueue`; the weights of
            Tensors are Tensors of the same shape.
          trap: the value of a variable. A tape that differentiates with
            respect to the variable updates the tables; the variable's gradient
            is 0. With `taken` it is [SLOTS], and the gradient is what `taken`
            applies. None: no gradient.
          scale: a function, called in the gradient, that returns the loss
            scale.

        Returns:
          float32 [B, dim], [B, L, dim] for a sequence feature, or [..., dim]
          for ids of higher rank.

        Raises:
          The errors of `TPUEmbedding.enqueue`; tfembed.errors.ArgumentError for
          a feature with an output shape; StateError for another strategy.
        """
        self.replicas.check_strategy("A lookup")
        values, weight_values = self._flat(features, weights)
        inputs = [
            self._read(i, value, weight)
            for i, (value, weight) in enumerate(
                zip(values, weight_values, strict=True)
            )
        ]
        ids = [one.ids for one in inputs]
        plans = [one.plan for one in inputs]
        if trap is None:
            flat = self.engine.look_up(ids, plans)
            flat = [tf.stop_gradient(one) for one in flat]
        else:
            flat = self._trapped(ids, plans, trap, scale)
        return self.plan.pack(
            [one.shaped(a) for one, a in zip(inputs, flat, strict=True)]
        )

    def _flat(self, features: Any, weights: Any) -> tuple[list[Any], list[Any]]:
        if isinstance(features, PackedFeatures):
            return unpacked(features, self.plan.feature_config, weights)
        values = self.plan.flatten_inputs(features, "features")
        if weights is None:
            return values, [None] * len(values)
        return values, self.plan.flatten_inputs(weights, "weights")

    def _read(self, i: int, value: Any, weights: Any) -> _Input:
        feature, path = self.plan.features[i], self.plan.paths[i]
        if feature.output_shape.rank is not None:
            raise errors.ArgumentError(
                f"Feature {path} has output_shape={feature.output_shape}; a "
                "layer takes the shapes from its input. Leave it out."
            )
        is_dense = not isinstance(value, (tf.SparseTensor, tf.RaggedTensor))
        if is_dense:
            value = tf.convert_to_tensor(value)
        rank, lead = value.shape.rank, _lead(value)
        warn_if_ignored(feature, rank, path)
        if is_dense:
            value, weights = _matrices(value, weights, path)
            value, weights = as_bag(value, weights, feature, path)
        ids = read_input(value, weights, path, feature.table)
        length = 0
        if rank == 2 and ids.kind != "dense" and is_sequence(feature):
            length = feature.max_sequence_length
        if not length:
            check_combines(feature, weights, path)
        return _Input(
            ids=ids,
            plan=FeaturePlan(
                table=self.plan.table_ids[i],
                combiner=op_combiner(feature.table.combiner),
                max_sequence_length=length,
                validate=feature.validate_weights_and_indices
                or value.shape.rank > 2,
                name=path,
            ),
            lead=lead,
        )

    def _trapped(
        self,
        ids: list[FeatureIds],
        plans: list[FeaturePlan],
        trap: tf.Tensor,
        scale: Callable[[], Any],
    ) -> list[tf.Tensor]:
        reached: set[int] = set()
        # Its transposed gradient would update the tables too.
        check_forward_mode([trap])
        if is_vectorized():
            raise errors.UnsupportedError(_LEFT.format("loop"))

        @tf.custom_gradient
        def activations_of(trap: tf.Tensor) -> Any:
            activations = self.engine.look_up(ids, plans)
            graph = tf.compat.v1.get_default_graph()

            def gradient(*upstream: tf.Tensor) -> tf.Tensor:
                if exporting_saved_model():
                    # Exports save custom gradients, but must not save an
                    # update.
                    return tf.zeros_like(trap)
                _check_left(control_flow_left(graph))
                if gradients_are_apart(graph):
                    at_each_call(_check_called)
                self._warn_of_unused(reached)
                factor = 1.0 / tf.cast(scale(), tf.float32)
                gradients = [tf.cast(g, tf.float32) for g in upstream]
                if self.taken is not None:
                    update = self._waiting(ids, plans, gradients, factor)
                    return tf.raw_ops.PreventGradient(
                        input=self.taken.take(update, trap),
                        message=_SECOND_ORDER,
                    )
                gradients = [g * factor for g in gradients]

                def of_trap() -> tf.Tensor:
                    self._update(ids, plans, gradients)
                    return mark_moved(
                        tf.raw_ops.PreventGradient(
                            input=0.0 * trap, message=_SECOND_ORDER
                        )
                    )

                # If the tape is outside of the function, TensorFlow runs only
                # the ops that gradients depend on, so the update must be one.
                return of_trap() if orders_by_itself() else in_order(of_trap)

            return activations, gradient

        activations = list(activations_of(trap))
        if tf.executing_eagerly() and len(self.known) == len(self.plan.tables):
            return activations
        return [_noted(one, i, reached) for i, one in enumerate(activations)]

    def _warn_of_unused(self, reached: set[int]) -> None:
        """Warns of tables without a gradient, as Keras warns of variables.

        Args:
          reached: the features whose activations have a gradient. The gradients
            of others are zeros.
        """
        tables = [config.name for config in self.plan.tables]
        used = {tables[self.plan.table_ids[i]] for i in reached}
        known = self.known if tf.executing_eagerly() else set()
        asked = {tables[i] for i in self.plan.table_ids}
        unused = [t for t in tables if t in asked - used - known]
        if tf.executing_eagerly():
            self.known.update(asked)
        if unused:
            warnings.warn(
                f"Gradients do not exist for tables {unused} when minimizing "
                "the loss, which uses no activations of their features: their "
                "gradients are zeros.",
                stacklevel=2,
            )

    def _waiting(
        self,
        ids: list[FeatureIds],
        plans: list[FeaturePlan],
        gradients: list[tf.Tensor],
        factor: tf.Tensor,
    ) -> Update:
        """Returns an update that `taken` keeps until its gradient is applied."""

        def apply(calls: Sequence[tuple[Any, list[Any], list[Any]]]) -> None:
            features: list[FeatureIds] = []
            of_calls: list[FeaturePlan] = []
            of_features: list[tf.Tensor] = []
            for (kinds, plans), tensors, of_call in calls:
                features += _of_parts(kinds, tensors)
                of_calls += plans
                of_features += of_call
            self._update(features, of_calls, of_features)

        call = ([one.kind for one in ids], plans)
        return Update(_parts(ids), gradients, factor, apply, call)

    def _update(
        self,
        ids: list[FeatureIds],
        plans: list[FeaturePlan],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Updates the tables once for all replicas."""
        kinds = [one.kind for one in ids]
        parts = _parts(ids)

        def merged(per_replica: list[list[Any]]) -> None:
            features: list[FeatureIds] = []
            of_features: list[tf.Tensor] = []
            for values in per_replica:
                of_features += values[4 * len(kinds) :]
                features += _of_parts(kinds, values)
            self.engine.update(features, plans * len(per_replica), of_features)
            names = {self.plan.tables[one.table].name for one in plans}
            self.rates.advance(self.engine.resources, names)
            self.after_update(names)

        self.replicas.merge(merged, [*parts, *gradients])


def _parts(ids: Sequence[FeatureIds]) -> list[Any]:
    """Returns the four tensors of each feature."""
    return [
        part
        for one in ids
        for part in (one.ids, one.rows, one.weights, one.batch_size)
    ]


def _of_parts(kinds: Sequence[str], parts: Sequence[Any]) -> list[FeatureIds]:
    """Makes features of their kinds and what `_parts` returned."""
    return [
        FeatureIds(kind, *parts[4 * i : 4 * i + 4])
        for i, kind in enumerate(kinds)
    ]


def _check_left(left: str) -> None:
    if left:
        raise errors.UnsupportedError(_LEFT.format(left))
    if is_vectorized():
        raise errors.UnsupportedError(_VECTORIZED)


def _check_called() -> None:
    _check_left(differentiated_around())


@dataclasses.dataclass(frozen=True, eq=False)
class _Input:
    """A feature: its ids, their spec, and the batch dimensions."""

    ids: FeatureIds
    plan: FeaturePlan
    lead: tf.Tensor | None  # None for one batch dimension.

    def shaped(self, activation: tf.Tensor) -> tf.Tensor:
        """Reshapes the op's activations to all batch dimensions."""
        if self.lead is None:
            return activation
        rest = tf.constant(activation.shape[1:].as_list(), tf.int64)
        return tf.reshape(activation, tf.concat([self.lead, rest], 0))


def _lead(value: Any) -> tf.Tensor | None:
    if isinstance(value, tf.RaggedTensor) or (value.shape.rank or 0) <= 2:
        return None
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[:-1]
    return tf.shape(value, tf.int64)[:-1]


def _matrices(ids: tf.Tensor, weights: Any, path: str) -> tuple[tf.Tensor, Any]:
    """Reshapes dense ids [..., n] of rank 3 or above, and weights, to [m, n].

    Raises:
      tfembed.errors.ArgumentError: weights of another type or shape.
    """
    if (ids.shape.rank or 0) <= 2:
        return ids, weights
    shape = tf.shape(ids)
    matrix = tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]])
    if weights is not None:
        weights = tf.reshape(weights_of(weights, ids.shape, path), matrix)
    return tf.ensure_shape(
        tf.reshape(ids, matrix), [None, ids.shape[-1]]
    ), weights


def _noted(activation: tf.Tensor, feature: int, reached: set[int]) -> tf.Tensor:
    """Returns `activation`; its gradient adds `feature` to `reached`."""

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            reached.add(feature)
            return upstream

        return tf.identity(x), gradient

    return identity(activation)
