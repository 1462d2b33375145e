"""The proto that sets a TPU's embedding engine up, of any object's configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.features.tensorflow_configs import (
    tensorflow_tables,
    why_not_tensorflows,
)
from tfembed.embedding.plan import EmbeddingPlan

__all__ = ["config_proto", "configuration"]


def config_proto(
    plan: EmbeddingPlan,
    shapes: OutputShapes,
    strategy: tf.distribute.Strategy,
    *,
    rates: list[Any],
    is_pipelined: bool,
) -> Any:
    """The TPUEmbeddingConfiguration that TensorFlow makes of the same configs.

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
    """A TPUEmbeddingConfiguration for training.

    Args:
      tables: TensorFlow's TableConfigs.
      features: of each its name, the place of its table, and the shape of its
        ids on a core.
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
