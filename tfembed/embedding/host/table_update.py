"""One step's update of all tables, fused rules and users' functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops, optimizers
from tfembed.embedding.host import custom_update
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.tables import HashTable

__all__ = ["StepGradients", "fused_arguments", "update_tables"]


@dataclasses.dataclass(frozen=True, eq=False)
class StepGradients:
    """What the update ops take of a step: parallel lists, one entry a feature
    and replica.
    """

    features: list[FeatureIds] = dataclasses.field(default_factory=list)
    plans: list[FeaturePlan] = dataclasses.field(default_factory=list)
    gradients: list[tf.Tensor] = dataclasses.field(default_factory=list)

    def add(
        self, feature: FeatureIds, plan: FeaturePlan, gradient: tf.Tensor
    ) -> None:
        """Adds a feature of a replica."""
        self.features.append(feature)
        self.plans.append(plan)
        self.gradients.append(gradient)

    def of_tables(self, tables: Sequence[int]) -> StepGradients:
        """The share of some tables, which are renumbered in that order."""
        share = StepGradients()
        for feature, plan, gradient in zip(
            self.features, self.plans, self.gradients, strict=True
        ):
            if plan.table in tables:
                place = tables.index(plan.table)
                renumbered = dataclasses.replace(plan, table=place)
                share.add(feature, renumbered, gradient)
        return share


def update_tables(
    plan: EmbeddingPlan,
    tables: Sequence[HostTable],
    rules: Sequence[optimizers.Optimizer],
    step: StepGradients,
    rates: Sequence[tf.Tensor],
    nonfinite: str,
) -> tf.Tensor:
    """Updates the rows that a step looked up.

    Args:
      plan: of the embedding.
      tables: its tables.
      rules: per table.
      step: of all features and replicas.
      rates: the learning rate of each table.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      int64 [tables]: the rows whose summed gradient has a NaN or an infinity.
    """
    fused = [t for t, rule in enumerate(rules) if rule.is_fused]
    custom = [t for t, rule in enumerate(rules) if not rule.is_fused]
    counts: dict[int, tf.Tensor] = {}
    sums = _custom_sums(plan, tables, custom, step)
    usable = {}
    for t, (ids, values) in zip(custom, sums, strict=True):
        *usable[t], counts[t] = custom_update.finite_sums(
            ids, values, nonfinite, plan.tables[t].name
        )
    # Where one refuses a gradient or an id, nothing is changed.
    checked: list[Any] = [part for parts in usable.values() for part in parts]
    checked += _bounds(tables, usable)
    if fused:
        with tf.control_dependencies(checked):
            found = _fused_update(
                plan, tables, rules, fused, step, rates, nonfinite
            )
        counts.update(zip(fused, tf.unstack(found, len(fused)), strict=True))
    with tf.control_dependencies([*checked, *(counts[t] for t in fused)]):
        for t, (ids, values) in usable.items():
            custom_update.update_rows(
                tables[t],
                rules[t],  # type: ignore[arg-type]  # What is not fused is a CustomOptimizer.
                ids,
                values,
                rates[t],
            )
    return tf.stack([counts[t] for t in range(len(tables))])


def _bounds(
    tables: Sequence[HostTable], usable: Mapping[int, Sequence[tf.Tensor]]
) -> list[tf.Operation]:
    """Checks that tables have room for ids that no fused update asks for."""
    checks: list[tf.Operation] = []
    for t, (ids, _) in usable.items():
        table = tables[t].parameters
        if isinstance(table, HashTable):
            checks += table.check_room(ids)
    return checks


def _fused_update(
    plan: EmbeddingPlan,
    tables: Sequence[HostTable],
    rules: Sequence[optimizers.Optimizer],
    chosen: list[int],
    step: StepGradients,
    rates: Sequence[tf.Tensor],
    nonfinite: str,
) -> tf.Tensor:
    share = step if len(chosen) == len(tables) else step.of_tables(chosen)
    return ops.grouped_update(
        features=share.features,
        plans=share.plans,
        gradients=share.gradients,
        learning_rates=[rates[t] for t in chosen],
        nonfinite=nonfinite,
        **fused_arguments(plan, tables, rules, chosen),
    )


def fused_arguments(
    plan: EmbeddingPlan,
    tables: Sequence[HostTable],
    rules: Sequence[optimizers.Optimizer],
    chosen: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What the ops that update tables take of these, by the arguments' names.

    Args:
      plan, tables, rules: as for `update_tables`.
      chosen: the places of tables whose rules are fused; None: all.
    """
    if chosen is None:
        chosen = range(len(tables))
    return {
        "tables": _handles(tables, chosen),
        "slots": [s for t in chosen for s in tables[t].slots.values()],
        "dims": [plan.dims[t] for t in chosen],
        "rules": [rules[t].rule_text() for t in chosen],
        "table_names": [plan.tables[t].name for t in chosen],
    }


def _custom_sums(
    plan: EmbeddingPlan,
    tables: Sequence[HostTable],
    chosen: list[int],
    step: StepGradients,
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    if not chosen:
        return []
    share = step.of_tables(chosen)
    return ops.grouped_lookup_gradient(
        _handles(tables, chosen),
        [plan.dims[t] for t in chosen],
        share.features,
        share.plans,
        share.gradients,
    )


def _handles(tables: Sequence[HostTable], chosen: Sequence[int]) -> list[Any]:
    # Handles, not variables: tapes and functions need not watch them.
    return [tables[t].parameters.handle for t in chosen]
