"""The learning rates of a step: numbers, or what functions give now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.ops.private import number_tensor

__all__ = ["learning_rates", "rules_of"]


def rules_of(plan: EmbeddingPlan) -> list[Any]:
    """The update rule of each table.

    Raises:
      tfembed.errors.StateError: a table has none.
    """
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        if rule is None:
            raise errors.StateError(
                f"Table '{config.name}' has no optimizer, so "
                "apply_gradients cannot train it. Give one to its "
                "TableConfig or to TPUEmbedding."
            )
    return list(plan.optimizers)


def learning_rates(rules: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Float32 [], one per table. A function that tables share is called once.

    Args:
      rules: the tables' optimizers.
      names: of the tables.

    Raises:
      tfembed.errors.ArgumentError: a function that gives no number.
    """
    rates: dict[Any, Any] = {}
    for rule, name in zip(rules, names, strict=True):
        rate = rule.learning_rate
        if rate not in rates:
            rates[rate] = _called(rate, name) if callable(rate) else rate
    return [tf.cast(rates[rule.learning_rate], tf.float32) for rule in rules]


def _called(rate: Callable[[], Any], name: str) -> Any:
    value = rate()
    if value is not None:
        value = number_tensor(value)
        is_number = value.dtype.is_floating or value.dtype.is_integer
        if is_number and value.shape.rank in (None, 0):
            return value
    raise errors.ArgumentError(
        f"The learning rate of table {name!r} must be one number in every step; "
        f"the function {rate!r} gave {value!r}."
    )
