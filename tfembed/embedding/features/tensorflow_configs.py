"""Our configs as those of tf.tpu.experimental.embedding."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import tensorflow as tf

from tfembed import optimizers
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.plan import EmbeddingPlan

__all__ = [
    "RULES",
    "tensorflow_features",
    "tensorflow_optimizer",
    "tensorflow_tables",
    "why_not_tensorflows",
]

_THEIRS = tf.tpu.experimental.embedding
# The rules that TensorFlow's Python has for a TPU's embedding engine.
RULES = ("SGD", "Adagrad", "AdagradMomentum", "FTRL", "Adam")


def why_not_tensorflows(config: Any, rule: Any) -> str | None:
    """Why TensorFlow's embedding ops cannot hold a table; None if they can.

    Args:
      config: its TableConfig.
      rule: its update rule, or None.
    """
    if config.vocabulary_size is None:
        return "it has no vocabulary_size"
    if rule is None:
        return "it has no optimizer, and the embedding engine needs one"
    if type(rule).__name__ not in RULES:
        return f"TensorFlow's TPU ops have no {type(rule).__name__}"
    if rule.norm_limit is not None:
        return f"TensorFlow's TPU ops have no {rule.norm_limit}"
    if is_custom(config.combiner):
        return "its combiner is a CustomCombiner"
    if getattr(config, "dtype", tf.float32) != tf.float32:
        return f"its rows are {config.dtype.name}"
    return None


def tensorflow_tables(plan: EmbeddingPlan) -> list[Any]:
    """TensorFlow's TableConfigs of the plan's tables, which it can hold."""
    return [
        _THEIRS.TableConfig(
            vocabulary_size=config.vocabulary_size,
            dim=config.dim,
            initializer=config.initializer,
            optimizer=None if rule is None else tensorflow_optimizer(rule),
            combiner=config.combiner,
            name=config.name,
            **_quantization(config),
        )
        for config, rule in zip(plan.tables, plan.optimizers, strict=True)
    ]


def tensorflow_features(plan: EmbeddingPlan) -> list[Any]:
    """TensorFlow's FeatureConfigs of the plan's features, with their tables."""
    tables = tensorflow_tables(plan)
    return [
        _THEIRS.FeatureConfig(
            table=tables[table],
            max_sequence_length=feature.max_sequence_length,
            validate_weights_and_indices=feature.validate_weights_and_indices,
            output_shape=feature.output_shape.as_list()
            if feature.output_shape
            else None,
            name=path,
        )
        for feature, table, path in zip(
            plan.features, plan.table_ids, plan.paths, strict=True
        )
    ]


def tensorflow_optimizer(
    rule: optimizers.Optimizer, name: str | None = None
) -> Any:
    """TensorFlow's optimizer with a rule's parameters.

    Args:
      rule: the rule.
      name: which of `RULES`; None: that of the rule.
    """
    made = getattr(_THEIRS, name or type(rule).__name__)
    taken = inspect.signature(made).parameters
    return made(
        **{
            field.name: getattr(rule, field.name)
            for field in dataclasses.fields(rule)  # type: ignore[arg-type]
            if field.name in taken
        }
    )


def _quantization(config: Any) -> dict[str, Any]:
    found = getattr(config, "quantization_config", None)
    if found is None:
        return {}
    return {
        "quantization_config": _THEIRS.QuantizationConfig(
            num_buckets=found.num_buckets, lower=found.lower, upper=found.upper
        )
    }
