"""A TPU's embedding engine: its proto, and its ops in the graph of a step.

    host, once a session:    load
    host, each step:         enqueue
    program, each step:      receive -> model -> send
    host, before a save:     retrieve

A table's rows are on the TPU's hosts: with the strategy "div" in contiguous
ranges, with "mod" row i on host i % hosts. Checkpoints have them in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops, optimizers
from tfembed.embedding.tpu.tensorflow_configs import (
    RULES,
    configuration,
    tensorflow_optimizer,
)
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.feature_ids import (
    FeatureReader,
    id_checks,
    indices_of,
    used_ids,
)
from tfembed.estimator.embeddings.parameters import (
    OptimizationParameters,
    StochasticGradientDescentParameters,
)
from tfembed.estimator.embeddings.table_config import TableConfig

__all__ = [
    "EnginePlace",
    "EngineSystem",
    "engine_ids",
    "engine_proto",
    "enqueue",
    "load",
    "parameters_of",
    "part_of",
    "receive",
    "retrieve",
    "send",
    "shard_of",
    "why_not_held",
]

# By the name of a rule in `tfembed.optimizers`: the suffix of its ops, and
# their names of its slots, in the rule's order.
_STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Adagrad": ("Adagrad", ("accumulators",)),
    "Adam": ("ADAM", ("momenta", "velocities")),
    "FTRL": ("FTRL", ("accumulators", "linears")),
    "Momentum": ("Momentum", ("momenta",)),
    "ProximalAdagrad": ("ProximalAdagrad", ("accumulators",)),
    "RMSProp": ("RMSProp", ("ms", "mom")),
    "SGD": ("StochasticGradientDescent", ()),
}

# The rule of a table that is not trained, which has no slots.
_UNTRAINED = StochasticGradientDescentParameters(1.0)


@dataclasses.dataclass(frozen=True)
class EnginePlace:
    """The rows of a table on one host.

    Attributes:
      table: the table's name.
      host: the number of the host.
      num_hosts: the number of hosts.
      config: the engine's configuration for the first op of a graph that loads
        or retrieves; empty for other ops, as in TensorFlow's graphs.
    """

    table: str
    host: int
    num_hosts: int
    config: bytes = b""

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes of an op that loads or retrieves the rows."""
        return {
            "num_shards": self.num_hosts,
            "shard_id": self.host,
            "table_name": self.table,
            "config": self.config,
        }


def engine_ids(
    ids: ops.FeatureIds, plan: ops.FeaturePlan, num_rows: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Converts a feature's ids to the engine's format, on the host.

    Omits ids that a lookup ignores and ids behind the end of a sequence; other
    ids outside the table raise an error.

    Args:
      ids: the ids of the feature.
      plan: the lookup of the feature.
      num_rows: the number of rows of the table.

    Returns:
      The sample positions, int32: [0] for an id per sample, the row splits [B
      + 1] of ragged ids, or indices [n, 2] (sequences: [n, 3]); the ids, int64
      [n]; the weights, float32 [n], or [0] if all are 1.
    """
    values, weights = ids.ids, ids.weights
    if ids.kind == "dense" or (
        ids.kind == "ragged" and not plan.max_sequence_length
    ):
        places = ids.rows
    else:
        places = indices_of(ids)
        keep = used_ids(ids, plan, has_vocabulary=True)
        conditions = [] if keep is None else [keep]
        if plan.max_sequence_length:
            conditions.append(places[:, 1] < plan.max_sequence_length)
        if conditions:
            kept = tf.where(tf.reduce_all(tf.stack(conditions), 0))[:, 0]
            places, values = tf.gather(places, kept), tf.gather(values, kept)
            if weights.shape[0] != 0:
                weights = tf.gather(weights, kept)
        if plan.max_sequence_length:
            # The engine would combine ids over the last dimension.
            places = tf.pad(places, [[0, 0], [0, 1]])
    checks = id_checks(values, plan.name, num_rows, are_padded=False)
    with tf.control_dependencies(checks):
        values = tf.identity(values)
    return tf.cast(places, tf.int32), values, weights


def enqueue(
    features: Sequence[tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
    combiners: Sequence[str],
    core: int,
    *,
    is_training: bool,
) -> tf.Operation:
    """Enqueues the ids of a core's batch for the engine.

    Args:
      features: the result of `engine_ids` for each feature.
      combiners: the combiner of each table.
      core: the number of the core on the op's host.
      is_training: whether the step sends gradients.
    """
    places, ids, weights = zip(*features, strict=True)
    return tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(
        sample_indices_or_row_splits=places,
        embedding_indices=ids,
        aggregation_weights=weights,
        mode_override="train" if is_training else "inference",
        device_ordinal=core,
        combiners=list(combiners),
    )


def receive(proto: Any) -> list[tf.Tensor]:
    """Returns each feature's activations, in the program of a core."""
    return list(
        tf.raw_ops.RecvTPUEmbeddingActivations(
            num_outputs=len(proto.feature_descriptor),
            config=proto.SerializeToString(),
        )
    )


def send(
    proto: Any, gradients: Sequence[tf.Tensor], rates: Sequence[tf.Tensor]
) -> tf.Operation:
    """Sends the gradients of a core's activations to the engine.

    Args:
      proto: the configuration.
      gradients: the gradients of each feature, in the shape of its
        activations.
      rates: the learning rates by tag, each float32 [].
    """
    return tf.raw_ops.SendTPUEmbeddingGradients(
        inputs=list(gradients),
        learning_rates=list(rates),
        config=proto.SerializeToString(),
    )


def load(
    place: EnginePlace, rule: str, values: Sequence[tf.Tensor]
) -> tf.Operation:
    """Writes a host's rows of a table to the engine.

    Args:
      place: the rows to write.
      rule: the name of the table's rule.
      values: the rows, then their slots.
    """
    stem, slots = _STATES[rule]
    op = getattr(tf.raw_ops, f"LoadTPUEmbedding{stem}Parameters")
    named = dict(zip(("parameters", *slots), values, strict=True))
    return op(**named, **place.attributes())


def retrieve(place: EnginePlace, rule: str) -> list[tf.Tensor]:
    """Reads the rows and slots that `load` writes."""
    stem, slots = _STATES[rule]
    op = getattr(tf.raw_ops, f"RetrieveTPUEmbedding{stem}Parameters")
    found = op(**place.attributes())
    return list(found) if slots else [found]


def shard_of(
    parts: Sequence[tf.Tensor], host: int, *, by_mod: bool
) -> tf.Tensor:
    """Returns the rows that the engine has on a host.

    Args:
      parts: the table's rows in order, with one part on each host.
      host: the number of the host.
      by_mod: whether row i is on host i % hosts; else parts stay in place.
    """
    if not by_mod:
        return parts[host]
    num_hosts = len(parts)
    firsts = _first_rows([part.shape[0] for part in parts])
    found = []
    for part, first in zip(parts, firsts, strict=True):
        with tf.device(part.device or None):  # Other rows are not sent.
            found.append(part[(host - first) % num_hosts :: num_hosts])
    return tf.concat(found, 0)


def part_of(
    shards: Sequence[tf.Tensor],
    sizes: Sequence[int],
    part: int,
    *,
    by_mod: bool,
) -> tf.Tensor:
    """Returns a part of a table's rows; the inverse of `shard_of`.

    Args:
      shards: the rows of each host.
      sizes: the number of rows of each part.
      part: the number of the part.
      by_mod: as for `shard_of`.
    """
    if not by_mod:
        return shards[part]
    num_hosts, first = len(shards), _first_rows(sizes)[part]
    places, rows = [], []
    for host, shard in enumerate(shards):
        start = (host - first) % num_hosts
        count = len(range(start, sizes[part], num_hosts))
        begin = (first + start) // num_hosts
        places.append(tf.range(start, start + count * num_hosts, num_hosts))
        with tf.device(shard.device or None):
            rows.append(shard[begin : begin + count])
    return tf.dynamic_stitch(places, rows)


def _first_rows(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


@dataclasses.dataclass(frozen=True)
class EngineSystem:
    """The places of a step's cores and hosts.

    Attributes:
      hosts: the CPU device of each host.
      cores: for each replica, its host's CPU device and the number of its core
        there.
      batch_size: the number of samples of a replica.
    """

    hosts: Sequence[str]
    cores: Sequence[tuple[str, int]]
    batch_size: int


def parameters_of(
    config: TableConfig, spec: EmbeddingConfigSpec, *, is_training: bool
) -> OptimizationParameters | None:
    """Returns the update rule of a table; None if nothing defines it."""
    if not is_training:
        return _UNTRAINED
    return config.optimization_parameters or spec.optimization_parameters


def why_not_held(
    config: TableConfig,
    parameters: OptimizationParameters | None,
    num_hosts: int,
) -> str | None:
    """Returns the reason why the engine cannot hold a table; None if it can.

    Args:
      config: the table.
      parameters: the update rule of the table.
      num_hosts: the number of hosts that share the rows.
    """
    if config.vocabulary_size is None:
        return "it has no vocabulary"
    if config.vocabulary_size < num_hosts:
        return f"it has fewer rows than the TPU has hosts, {num_hosts}"
    if parameters is None:
        return "it has no optimization_parameters"
    return None


def engine_proto(
    spec: EmbeddingConfigSpec,
    tables: Mapping[str, tuple[TableConfig, OptimizationParameters]],
    readers: Sequence[FeatureReader],
    system: EngineSystem,
    *,
    is_training: bool,
) -> tuple[Any, list[Callable[[Any], Any]]]:
    """Makes the TPUEmbeddingConfiguration of some tables.

    Args:
      spec: the options of all tables.
      tables: the config and the update rule of each table, by name.
      readers: the readers of the tables' features.
      system: the places of cores and hosts.
      is_training: whether steps send gradients.

    Returns:
      The proto, and the learning rates as functions of the global step, in the
      order of their tags.
    """
    # Tables with the same function share a tag: each tag slows the engine
    # down.
    rates: list[Any] = []
    for config, _ in tables.values():
        function = config.learning_rate_fn
        if is_training and function is not None and function not in rates:
            rates.append(function)
    places = {name: place for place, name in enumerate(tables)}
    proto = configuration(
        [
            _tensorflow_table(name, config, parameters, rates)
            for name, (config, parameters) in tables.items()
        ],
        [
            (
                reader.key,
                places[reader.config.table_id],
                # Without a length, the ids of a sample are combined.
                [
                    size
                    for size in (
                        system.batch_size,
                        reader.config.max_sequence_length,
                    )
                    if size
                ],
            )
            for reader in readers
        ],
        rates=rates,
        num_hosts=len(system.hosts),
        num_cores=len(system.cores),
    )
    for descriptor, (config, parameters) in zip(
        proto.table_descriptor, tables.values(), strict=True
    ):
        _complete(descriptor.optimization_parameters, config, parameters.rule())
    if not is_training:
        proto.mode = proto.INFERENCE
    if spec.partition_strategy == "mod":
        proto.sharding_strategy = proto.MOD
    proto.pipeline_execution_with_tensor_core = (
        spec.pipeline_execution_with_tensor_core
    )
    if spec.profile_data_directory:
        proto.profile_data_directory = spec.profile_data_directory
    return proto, rates


def _tensorflow_table(
    name: str,
    config: TableConfig,
    parameters: OptimizationParameters,
    rates: Sequence[Any],
) -> Any:
    rule = parameters.rule()
    # `_complete` adds the rules that have no class in TensorFlow's Python.
    known = type(rule).__name__ in RULES
    made = tensorflow_optimizer(rule, None if known else "SGD")
    if config.learning_rate_fn in rates:
        made.learning_rate = config.learning_rate_fn
    elif config.learning_rate is not None:
        made.learning_rate = float(config.learning_rate)
    return tf.tpu.experimental.embedding.TableConfig(
        vocabulary_size=config.vocabulary_size,
        dim=config.dimension,
        optimizer=made,
        combiner=config.combiner or "sum",  # None means one id per sample.
        name=name,
    )


def _complete(
    described: Any, config: TableConfig, rule: optimizers.Optimizer
) -> None:
    """Sets fields that TensorFlow's own TableConfig cannot express."""
    if config.hot_id_replication:
        hot = described.hot_id_replication_configuration
        hot.status = hot.ENABLED
    # One of these replaces the others, even if all are 0.
    if isinstance(rule, optimizers.Momentum):
        described.momentum.SetInParent()
        described.momentum.momentum = rule.momentum
        described.momentum.use_nesterov = rule.use_nesterov
    elif isinstance(rule, optimizers.RMSProp):
        described.rms_prop.SetInParent()
        described.rms_prop.rho = rule.rho
        described.rms_prop.momentum = rule.momentum
        described.rms_prop.epsilon = rule.epsilon
    elif isinstance(rule, optimizers.ProximalAdagrad):
        proximal = described.proximal_adagrad
        proximal.SetInParent()
        proximal.l1 = rule.l1_regularization_strength
        proximal.l2 = rule.l2_regularization_strength
