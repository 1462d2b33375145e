"""Conversion of tfembed's configs to TensorFlow's, and to a proto.

The TPUEmbeddingConfiguration sets up a TPU's embedding engine.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding import private
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.plan import EmbeddingPlan

__all__ = [
    "RULES",
    "config_proto",
    "configuration",
    "tensorflow_features",
    "tensorflow_optimizer",
    "tensorflow_tables",
    "why_not_tensorflows",
]

_THEIRS = tf.tpu.experimental.embedding
# The update rules that TensorFlow's Python API has for a TPU's embedding
# engine.
RULES = ("SGD", "Adagrad", "AdagradMomentum", "FTRL", "Adam")


def why_not_tensorflows(config: Any, rule: Any) -> str | None:
    """Says why TensorFlow's ops cannot hold a table; None if they can.

    Args:
      config: the TableConfig.
      rule: the table's update rule, or None.
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
    """Makes TensorFlow's TableConfigs of the plan's tables."""
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
    """Makes TensorFlow's FeatureConfigs of the plan's features."""
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
    """Makes TensorFlow's optimizer with a rule's parameters.

    Args:
      rule: the rule.
      name: a name in `RULES`; None: the rule's own.
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


def config_proto(
    plan: EmbeddingPlan,
    shapes: OutputShapes,
    strategy: tf.distribute.Strategy,
    *,
    rates: list[Any],
    is_pipelined: bool,
) -> Any:
    """Makes the TPUEmbeddingConfiguration that TensorFlow makes of the configs.

    Under other strategies than a TPUStrategy it is that of a TPU with one host
    and as many cores as there are replicas.

    Args:
      plan: the features and tables.
      shapes: the output shapes.
      strategy: whose replicas they are for.
      rates: the functions that give learning rates, in the order of their tags.
      is_pipelined: whether the tables work while the model computes.

    Raises:
      tfembed.errors.UnsupportedError: a table that TensorFlow's TPU ops cannot
        hold.
      tfembed.errors.StateError: a shape is not known.
    """
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        reason = why_not_tensorflows(config, rule)
        if reason is not None:
            raise errors.UnsupportedError(
                f"Table {config.name!r} has no place in the configuration of a "
                f"TPU's embedding engine: {reason}."
            )
    shapes.check_defined()
    cores = private.cores_per_replica(strategy)
    proto = configuration(
        tensorflow_tables(plan),
        [
            (feature.name, table, shape.as_list())
            for feature, table, shape in zip(
                plan.features, plan.table_ids, shapes.shapes, strict=True
            )
        ],
        rates=rates,
        num_hosts=private.num_hosts(strategy),
        num_cores=strategy.num_replicas_in_sync * (cores or 1),
    )
    proto.pipeline_execution_with_tensor_core = is_pipelined
    if cores:
        proto.spmd_sharding.enabled = True
        proto.spmd_sharding.num_cores_per_replica = cores
    return proto


def configuration(
    tables: Sequence[Any],
    features: Sequence[tuple[str | None, int, Sequence[int]]],
    *,
    rates: Sequence[Any],
    num_hosts: int,
    num_cores: int,
) -> Any:
    """Makes a TPUEmbeddingConfiguration for training.

    Args:
      tables: TensorFlow's TableConfigs.
      features: per feature its name, the index of its table, and the shape of
        its ids on a core.
      rates: the functions that give learning rates, in the order of their tags.
      num_hosts, num_cores: of the whole system.
    """
    proto = private.new_config_proto()
    tags = {rate: tag for tag, rate in enumerate(rates)}
    for table in tables:
        private.describe_table(
            table, proto.table_descriptor.add(), num_hosts, tags
        )
    for name, table, shape in features:
        proto.feature_descriptor.add(
            name=name, table_id=table, input_shape=shape
        )
    proto.mode = proto.TRAINING
    proto.num_hosts = num_hosts
    proto.num_tensor_cores = num_cores
    proto.sharding_strategy = proto.DIV_DEFAULT
    return proto
