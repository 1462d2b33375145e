"""One step's update of all tables, by fused rules or users' functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, ops, optimizers
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.foreign_optimizers.table_gradients import usable_sums
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.tables import HashTable

__all__ = [
    "StepGradients",
    "fused_arguments",
    "update_rows",
    "update_tables",
]


def update_rows(
    table: HostTable,
    optimizer: optimizers.CustomOptimizer,
    ids: tf.Tensor,
    sums: tf.Tensor,
    learning_rate: tf.Tensor,
) -> None:
    """Applies the optimizer's function to the rows of distinct ids.

    Args:
      table: the table.
      optimizer: the table's optimizer.
      ids: distinct ids, [n].
      sums: the summed gradients, [n, dim].
      learning_rate: the learning rate of this step.

    Raises:
      tfembed.errors.ArgumentError: the function does not return a row and its
        slots.
    """
    if isinstance(table.parameters, HashTable):
        rows = table.parameters.lookup_trained(ids)
        widths = [table.parameters.dim, *table.parameters.slot_widths]
        moved = _move(
            optimizer, tf.split(rows, widths, axis=1), sums, learning_rate
        )
        table.parameters.write_trained(ids, tf.concat(moved, 1), add=False)
        return
    variables = [table.parameters, *table.slots.values()]
    parts = [variable.sparse_read(ids) for variable in variables]
    moved = _move(optimizer, parts, sums, learning_rate)
    for variable, new in zip(variables, moved, strict=True):
        variable.scatter_update(tf.IndexedSlices(new, ids))


def _move(
    optimizer: optimizers.CustomOptimizer,
    parts: Sequence[tf.Tensor],
    sums: tf.Tensor,
    learning_rate: tf.Tensor,
) -> list[tf.Tensor]:
    """Returns the updated rows and slots, each [n, dim]."""
    hyperparameters = tuple(
        tf.cast(value() if callable(value) else value, tf.float32)
        for value in optimizer.hyperparameters or ()
    )

    def move_one(row: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        gradient, value, *slots = row
        moved = optimizer.custom_computation(
            gradient, value, tuple(slots), learning_rate, hyperparameters
        )
        return _checked(tf.nest.flatten(moved), value, parts)

    return list(tf.vectorized_map(move_one, (sums, *parts)))


def _checked(
    moved: list[Any], value: tf.Tensor, parts: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, ...]:
    names = f"a row and {len(parts) - 1} slots, each of shape {value.shape}"
    if len(moved) != len(parts):
        raise errors.ArgumentError(
            f"`custom_computation` must return {names}; got {len(moved)} "
            "values."
        )
    tensors = tuple(tf.convert_to_tensor(one, tf.float32) for one in moved)
    for one in tensors:
        if not one.shape.is_compatible_with(value.shape):
            raise errors.ArgumentError(
                f"`custom_computation` must return {names}; got one of shape "
                f"{one.shape}."
            )
    return tensors


@dataclasses.dataclass(frozen=True, eq=False)
class StepGradients:
    """The arguments of the update ops, per feature and replica."""

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
        """Returns the part of some tables, renumbered in that order."""
        share = StepGradients()
        for feature, plan, gradient in zip(
            self.features, self.plans, self.gradients, strict=True
        ):
            if plan.table in tables:
                index = tables.index(plan.table)
                renumbered = dataclasses.replace(plan, table=index)
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
      plan: the plan of the embedding.
      tables: the tables of the plan.
      rules: the update rule per table.
      step: the gradients of all features and replicas.
      rates: the learning rate of each table.
      nonfinite: "skip", "refuse" or "allow".

    Returns:
      int64 [tables]: the count of rows with a non-finite summed gradient.
    """
    fused = [t for t, rule in enumerate(rules) if rule.is_fused]
    custom = [t for t, rule in enumerate(rules) if not rule.is_fused]
    counts: dict[int, tf.Tensor] = {}
    sums = _sums(plan, tables, custom, step)
    usable = {}
    for t, (ids, values) in zip(custom, sums, strict=True):
        usable[t], counts[t] = usable_sums(
            tf.IndexedSlices(values, ids), nonfinite, plan.tables[t].name
        )
    # If one refuses a gradient or an id, nothing is changed.
    checked: list[Any] = [sums.values for sums in usable.values()]
    checked += _bounds(tables, usable)
    if fused:
        with tf.control_dependencies(checked):
            found = _fused_update(
                plan, tables, rules, fused, step, rates, nonfinite
            )
        counts.update(zip(fused, tf.unstack(found, len(fused)), strict=True))
    with tf.control_dependencies([*checked, *(counts[t] for t in fused)]):
        for t, own in usable.items():
            update_rows(
                tables[t],
                rules[t],  # type: ignore[arg-type]  # What is not fused is a CustomOptimizer.
                own.indices,
                own.values,
                rates[t],
            )
    return tf.stack([counts[t] for t in range(len(tables))])


def _bounds(
    tables: Sequence[HostTable], usable: Mapping[int, tf.IndexedSlices]
) -> list[tf.Operation]:
    """Checks that tables have room for ids of updates that are not fused."""
    checks: list[tf.Operation] = []
    for t, sums in usable.items():
        table = tables[t].parameters
        if isinstance(table, HashTable):
            checks += table.check_room(sums.indices)
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
    """Returns the arguments of the update ops by their names.

    Args:
      plan, tables, rules: as for `update_tables`.
      chosen: the indices of the tables with fused rules; None: all.
    """
    if chosen is None:
        chosen = range(len(tables))
    return {
        "tables": _handles(tables, chosen),
        "slots": [s for t in chosen for s in tables[t].slots.values()],
        "dims": [plan.dims[t] for t in chosen],
        "rules": [rules[t].rule_text() for t in chosen],
        "table_names": [plan.tables[t].name for t in chosen],
        **_norm_arguments([rules[t] for t in chosen]),
    }


def _norm_arguments(
    rules: Sequence[optimizers.Optimizer],
) -> dict[str, list[Any]]:
    """Returns the limits of norms; tables may share a global limit."""
    if all(rule.norm_limit is None for rule in rules):
        return {}
    limits = [getattr(r, r.norm_limit) if r.norm_limit else 0.0 for r in rules]
    groups = [
        rules.index(rule) if rule.norm_limit == "global_clipnorm" else t
        for t, rule in enumerate(rules)
    ]
    return {"norm_limits": limits, "norm_groups": groups}


def _sums(
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
