"""Tables of an EmbeddingConfigSpec for a model object: a `TPUEmbedding`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.table_config import (
    WITHOUT_VOCABULARY,
    TableConfig,
)


class ModelTables:
    """Looks up features and trains their tables, for all replicas.

    The model gets the activations under the features' names.

    Args:
      spec: The tables and features, as two dicts.
      global_step: The step for learning rates and gradient multipliers.

    Attributes:
      embedding: The `TPUEmbedding`.

    Raises:
      tfembed.errors.UnsupportedError: the spec has feature columns.
    """

    def __init__(self, spec: EmbeddingConfigSpec, global_step: Any) -> None:
        self._spec = spec
        self._global_step = global_step
        self.embedding = tfembed.TPUEmbedding(
            feature_configs(spec, global_step), None
        )

    def apart(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Moves the ids and weights of a replica's batch out of its dict."""
        features = fields["features"]
        if not isinstance(features, Mapping):
            raise errors.ArgumentError(
                "With an embedding_config_spec the features of the input must "
                f"be a dict; got {type(features)}."
            )
        return {**fields, **apart(self._spec, features)}

    def enqueue(self, embedded: Any, *, training: bool) -> None:
        """Enqueues the replicas' ids for `dequeue`."""
        self.embedding.enqueue(
            embedded["ids"], embedded.get("weights"), training=training
        )

    def dequeue(self) -> dict[str, Any]:
        """Returns the activations of a replica, by feature name."""
        return dict(self.embedding.dequeue())

    def apply_gradients(self, gradients: dict[str, Any]) -> None:
        """Updates the tables."""
        multiplier = self._spec.experimental_gradient_multiplier_fn
        if multiplier is not None:
            factor = tf.cast(multiplier(self._global_step), tf.float32)
            gradients = tf.nest.map_structure(
                lambda gradient: gradient * factor, gradients
            )
        self.embedding.apply_gradients(gradients)


def apart(
    spec: EmbeddingConfigSpec, features: Mapping[str, Any]
) -> dict[str, Any]:
    """Splits features into those without tables and those of tables.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) a feature is missing.
    """
    left = dict(features)
    configs = spec.feature_to_config_dict or {}
    ids: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for key, config in configs.items():
        names = [key, *([config.weight_key] if config.weight_key else [])]
        missing = [name for name in names if name not in features]
        if missing:
            raise errors.ArgumentError(
                f"The input has no feature {missing}, which the "
                f"EmbeddingConfigSpec looks up; it has {sorted(features)}."
            )
        table = (spec.table_to_config_dict or {})[config.table_id]
        ids[key] = _bags(left.pop(key), table, config.max_sequence_length)
        weights[key] = None
        if config.weight_key:
            weights[key] = left.pop(config.weight_key)
    embedded = {"ids": ids}
    if any(each is not None for each in weights.values()):
        embedded["weights"] = weights
    return {"features": left, "embedded": embedded}


def _bags(value: Any, table: TableConfig, length: int) -> Any:
    """Converts ids for a table: 0 and "" are padding in a dense matrix."""
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        return value
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 2 and value.shape[1] == 1:
        value = tf.reshape(value, [-1])
    if value.shape.rank == 1 and not length:
        return value
    if table.combiner is None and not length:
        return value
    return tf.sparse.from_dense(value)


def feature_configs(
    spec: EmbeddingConfigSpec, global_step: Any
) -> dict[str, tfembed.FeatureConfig]:
    """Converts the spec's features to FeatureConfigs."""
    if spec.feature_columns is not None:
        raise errors.UnsupportedError(
            "A model object has no layers for feature columns. Give the "
            "EmbeddingConfigSpec feature_to_config_dict and "
            "table_to_config_dict, or give a model_fn."
        )
    tables = {
        name: _table(name, config, spec, global_step)
        for name, config in (spec.table_to_config_dict or {}).items()
    }
    return {
        key: tfembed.FeatureConfig(
            tables[config.table_id],
            max_sequence_length=config.max_sequence_length,
            name=key,
        )
        for key, config in (spec.feature_to_config_dict or {}).items()
    }


def _rate_at(function: Any, global_step: Any) -> Any:
    """Returns the learning rate of a step, as a function without arguments."""
    return lambda: tf.cast(function(global_step), tf.float32)


def _table(
    name: str, config: TableConfig, spec: EmbeddingConfigSpec, global_step: Any
) -> tfembed.TableConfig:
    parameters = config.optimization_parameters or spec.optimization_parameters
    optimizer = None
    if parameters is not None:
        rule: Any = parameters.rule()
        rate: Any = config.learning_rate
        if config.learning_rate_fn is not None:
            rate = _rate_at(config.learning_rate_fn, global_step)
        if rate is not None:
            rule = dataclasses.replace(rule, learning_rate=rate)
        optimizer = rule
    more = {}
    if config.vocabulary_size is None:
        more = {field: getattr(config, field) for field in WITHOUT_VOCABULARY}
    return tfembed.TableConfig(
        config.vocabulary_size,
        config.dimension,
        initializer=config.initializer,
        optimizer=optimizer,
        combiner=config.combiner or "sum",
        name=name,
        **more,
    )
