"""The proto of a TPU's embedding engine for tables of an EmbeddingConfigSpec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import optimizers
from tfembed.embedding.tpu.tensorflow_configs import (
    RULES,
    configuration,
    tensorflow_optimizer,
)
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.feature_reader import FeatureReader
from tfembed.estimator.embeddings.parameters import (
    OptimizationParameters,
    StochasticGradientDescentParameters,
)
from tfembed.estimator.embeddings.table_config import TableConfig

__all__ = ["EngineSystem", "engine_proto", "parameters_of", "why_not_held"]

# A table that is not trained has the rule without slots.
_UNTRAINED = StochasticGradientDescentParameters(1.0)


@dataclasses.dataclass(frozen=True)
class EngineSystem:
    """Where a step's cores and hosts are.

    Attributes:
      hosts: the CPU device of each host, by host.
      cores: for each replica the CPU device beside it, and the number of its
        core there.
      batch_size: the samples of a replica.
    """

    hosts: Sequence[str]
    cores: Sequence[tuple[str, int]]
    batch_size: int


def parameters_of(
    config: TableConfig, spec: EmbeddingConfigSpec, *, is_training: bool
) -> OptimizationParameters | None:
    """Returns how a table is trained; None where nothing says it."""
    if not is_training:
        return _UNTRAINED
    return config.optimization_parameters or spec.optimization_parameters


def why_not_held(
    config: TableConfig,
    parameters: OptimizationParameters | None,
    num_hosts: int,
) -> str | None:
    """Returns why the engine cannot hold a table; None if it can.

    Args:
      config: the table.
      parameters: how the table is trained.
      num_hosts: over which its rows are spread.
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
      spec: says what holds for all tables.
      tables: by name the config of each, and how it is trained.
      readers: of the tables' features.
      system: where cores and hosts are.
      is_training: whether gradients come.

    Returns:
      The proto, and the functions of the global step that give learning rates,
      in the order of their tags.
    """
    # Tables with the same function share a tag: the engine is slower by each.
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
                # Without a length, a sample's ids are combined.
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
    # Rules of which TensorFlow's Python has no class are completed below.
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
        combiner=config.combiner or "sum",  # None: an id a sample.
        name=name,
    )


def _complete(
    described: Any, config: TableConfig, rule: optimizers.Optimizer
) -> None:
    """Writes what TensorFlow's own TableConfig cannot say."""
    if config.hot_id_replication:
        hot = described.hot_id_replication_configuration
        hot.status = hot.ENABLED
    # One of these takes the place of the others, also where all is 0.
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
