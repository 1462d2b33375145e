"""The features of a step, those that the grouped op cannot combine among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops
from tfembed.embedding.host.combiner_weights import (
    make_combiner_weights,
    train_combiner_weights,
    usable_gradient,
)
from tfembed.embedding.host.row_feature import RowFeature, single_ids
from tfembed.embedding.host.table_update import StepGradients
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.ops import FeatureIds, FeaturePlan

__all__ = ["RowFeatures"]


class RowFeatures:
    """Looks features up, in one op where it can, and differentiates the others.

    Args:
      owner: the trackable object that saves the weights of combiners.
      plan: of the embedding.
      tables: its tables.
    """

    def __init__(
        self, owner: Any, plan: EmbeddingPlan, tables: Sequence[HostTable]
    ) -> None:
        self._plan = plan
        self._tables = tables
        # Per table those of its CustomCombiner, or None.
        self._weights: list[Any] = [
            make_combiner_weights(owner, config) for config in plan.tables
        ]

    def look_up(
        self, features: Sequence[FeatureIds], plans: Sequence[FeaturePlan]
    ) -> list[tf.Tensor]:
        """The activations, per feature."""
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
        """What the update ops take, and by table what `train_weights` takes.

        Args:
          features: of all replicas.
          plans: one per feature.
          gradients: with respect to the activations.
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
        """Moves the weights of tables' combiners."""
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
