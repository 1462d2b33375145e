"""Feature columns read as tables and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings import private
from tfembed.estimator.embeddings.embedding_column import EmbeddingColumn
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

__all__ = [
    "get_configs_from_feature_columns",
    "is_on_tensor_core",
    "supported_classes",
    "table_of_variable",
]

is_on_tensor_core = private.is_on_tensor_core


def supported_classes() -> tuple[type, ...]:
    """The classes of columns that an EmbeddingConfigSpec takes.

    Plain embedding columns are among them, for `use_tpu=False`.
    """
    return (
        *private.NUMERIC_COLUMNS,
        *private.OLD_TPU_COLUMNS,
        *private.TPU_COLUMNS,
        *private.PLAIN_EMBEDDING_COLUMNS,
        EmbeddingColumn,
    )


def table_of_variable(variable: str) -> str:
    """The name of the table of a TPU column, by the column's variable."""
    return f"tbl_{variable}"


def get_configs_from_feature_columns(
    feature_columns: Sequence[Any],
) -> tuple[dict[str, TableConfig], dict[str, FeatureConfig]]:
    """The tables and features that columns stand for.

    Args:
      feature_columns: TPU embedding columns, and those of
        `tfembed.estimator.embedding_column`.

    Returns:
      TableConfigs by table, FeatureConfigs by feature.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) another kind of column.
      tfembed.errors.ArgumentError: a feature that two columns look up.
    """
    tables: dict[str, TableConfig] = {}
    features: dict[str, FeatureConfig] = {}
    for column in feature_columns:
        _check_class(column)
        if isinstance(column, EmbeddingColumn):
            feature, table = column.key, column.table_name
            config, used = column.table_config, column.feature_config
        else:
            feature = column.get_feature_key_name()
            table = table_of_variable(column.get_embedding_var_name())
            config, used = _configs(column, table)
        if feature in features:
            raise errors.ArgumentError(
                f"Feature column {feature} is used with multiple embeddings and "
                "this is not supported. Give the input the feature under a "
                "second name."
            )
        _check_shared(table, tables.get(table), config)
        features[feature] = used
        tables[table] = config
    return tables, features


def _check_class(column: Any) -> None:
    allowed = (*private.TPU_COLUMNS, EmbeddingColumn)
    if isinstance(column, private.OLD_TPU_COLUMNS):
        tf.compat.v1.logging.warning(
            "Columns of type %s are deprecated. Supported types are %s.",
            type(column),
            allowed,
        )
    elif not isinstance(column, allowed):
        raise errors.DtypeError(
            f"Unsupported feature column {type(column)}. Supported types are "
            f"{allowed}. Make it by "
            "tf.compat.v1.tpu.experimental.embedding_column."
        )


def _configs(column: Any, table: str) -> tuple[TableConfig, FeatureConfig]:
    """Returns the configs of a TPU column."""
    size, dimension = column.get_embedding_table_size()
    config = TableConfig(
        vocabulary_size=size,
        dimension=dimension,
        initializer=column.get_initializer(),
        combiner=column.get_combiner(),
        learning_rate_fn=column.get_learning_rate_fn(),
    )
    return config, FeatureConfig(
        table_id=table,
        max_sequence_length=column.get_max_sequence_length(),
        weight_key=column.get_weight_key_name(),
    )


def _check_shared(
    name: str, known: TableConfig | None, config: TableConfig
) -> None:
    """Refuses columns that share a table and describe it differently."""
    if known is not None and config.vocabulary_size is None and known != config:
        raise errors.ArgumentError(
            f"Two embedding columns describe the table '{name}' differently: "
            f"{known} and {config}. Give both the same arguments, or give one "
            "another `table_name`."
        )
