"""The proto that sets a TPU's embedding engine up, of any object's configs."""

from __future__ import annotations

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

__all__ = ["config_proto"]


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
    proto = private.new_config_proto()
    hosts = private.num_hosts(strategy)
    tags = {rate: tag for tag, rate in enumerate(rates)}
    for table in tensorflow_tables(plan):
        private.describe_table(table, proto.table_descriptor.add(), hosts, tags)
    for feature, table, shape in zip(
        plan.features, plan.table_ids, shapes.shapes, strict=True
    ):
        proto.feature_descriptor.add(
            name=feature.name, table_id=table, input_shape=shape.as_list()
        )
    cores = private.cores_per_replica(strategy)
    proto.mode = proto.TRAINING
    proto.num_hosts = hosts
    proto.num_tensor_cores = strategy.num_replicas_in_sync * (cores or 1)
    proto.sharding_strategy = proto.DIV_DEFAULT
    proto.pipeline_execution_with_tensor_core = is_pipelined
    if cores:
        proto.spmd_sharding.enabled = True
        proto.spmd_sharding.num_cores_per_replica = cores
    return proto
