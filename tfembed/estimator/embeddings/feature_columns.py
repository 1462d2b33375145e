"""Converts feature columns to tables and features, and adds a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings import private
from tfembed.estimator.embeddings.parameters import OptimizationParameters
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

__all__ = [
    "EmbeddingColumn",
    "embedding_column",
    "get_configs_from_feature_columns",
    "is_on_tensor_core",
    "supported_classes",
    "table_of_variable",
]

is_on_tensor_core = private.is_on_tensor_core


def supported_classes() -> tuple[type, ...]:
    """Returns the classes of columns that an EmbeddingConfigSpec takes.

    They include plain embedding columns, for `use_tpu=False`.
    """
    return (
        *private.NUMERIC_COLUMNS,
        *private.OLD_TPU_COLUMNS,
        *private.TPU_COLUMNS,
        *private.PLAIN_EMBEDDING_COLUMNS,
        EmbeddingColumn,
    )


def table_of_variable(variable: str) -> str:
    """Returns the table name of a TPU column, by the column's variable."""
    return f"tbl_{variable}"


def get_configs_from_feature_columns(
    feature_columns: Sequence[Any],
) -> tuple[dict[str, TableConfig], dict[str, FeatureConfig]]:
    """Returns the tables and features that columns describe.

    Args:
      feature_columns: TPU embedding columns, and columns of
        `tfembed.estimator.embedding_column`.

    Returns:
      TableConfigs by table, FeatureConfigs by feature.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) a column of another type.
      tfembed.errors.ArgumentError: two columns look up the same feature.
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
    """Raises an error if columns describe a shared table differently.

    Only tables without a vocabulary are compared.
    """
    if known is not None and config.vocabulary_size is None and known != config:
        raise errors.ArgumentError(
            f"Two embedding columns describe the table '{name}' differently: "
            f"{known} and {config}. Give both the same arguments, or give one "
            "another `table_name`."
        )


def embedding_column(
    key: str,
    dimension: int,
    *,
    combiner: str = "mean",
    initializer: Any = None,
    max_sequence_length: int = 0,
    weight_key: str | None = None,
    table_name: str | None = None,
    learning_rate_fn: Callable[[Any], Any] | None = None,
    optimization_parameters: OptimizationParameters | None = None,
    **options: Any,
) -> EmbeddingColumn:
    """Makes a column for input layers, with a table that grows with its ids.

    Give the column to the EmbeddingConfigSpec of a TPUEstimator, and to an
    input layer in the model_fn, like the columns of
    `tf.compat.v1.tpu.experimental.embedding_column`. It needs no bucket count
    and no hashing: training gives each int64 or string id its own row; until
    then a lookup returns the id's initial row.

    Args:
      key: the name of the feature: ids as a SparseTensor, a RaggedTensor, or a
        Tensor [B] or [B, n], in which -1 and "" mean no id.
      dimension: the width of a row.
      combiner: "mean", "sum" or "sqrtn".
      initializer: the initializer of new rows, as in `tfembed.TableConfig`.
      max_sequence_length: 0, or the length L of a sequence column.
      weight_key: the name of the feature with the weights of the ids.
      table_name: the name of the table in checkpoints. Columns with the same
        name share a table. None: `<key>_embedding`.
      learning_rate_fn: a function of the global step that returns the rate.
      optimization_parameters: replaces that of the EmbeddingConfigSpec.
      **options: key_dtype ("int64" or "string"), dtype, seed, admission,
        eviction, expiry, max_size, fan_in and stochastic_rounding, as in
        `tfembed.TableConfig`.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed.

    Example:
      >>> import tfembed
      >>> column = tfembed.estimator.embedding_column("user", 8)
      >>> column.variable_shape.as_list()
      [8]
    """
    table = table_name or f"{key}_embedding"
    return EmbeddingColumn(
        key,
        TableConfig(
            vocabulary_size=None,
            dimension=dimension,
            initializer=initializer,
            combiner=combiner,
            learning_rate_fn=learning_rate_fn,
            optimization_parameters=optimization_parameters,
            **options,
        ),
        FeatureConfig(table, max_sequence_length, weight_key),
    )


class EmbeddingColumn(
    private.DenseColumn,
    private.OldDenseColumn,
    private.SequenceColumn,
    private.OldSequenceColumn,
):
    """A column of `embedding_column`, which returns activations of a feature.

    A TPUEstimator with the column in its EmbeddingConfigSpec replaces the ids
    by activations before it calls the model_fn.

    Attributes:
      key: the name of the feature.
      table_config: the TableConfig of its table.
      feature_config: the FeatureConfig of the feature.
    """

    def __init__(
        self, key: str, table_config: TableConfig, feature_config: FeatureConfig
    ) -> None:
        self.key = key
        self.table_config = table_config
        self.feature_config = feature_config

    @property
    def table_name(self) -> str:
        """The table's name in checkpoints."""
        return self.feature_config.table_id

    @property
    def name(self) -> str:
        """The column's name in input layers."""
        return f"{self.key}_embedding"

    @property
    def parents(self) -> list[Any]:
        """The features that the column reads."""
        return [self.key]

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """The parsing spec of the ids and weights for tf.io.parse_example."""
        spec = {self.key: tf.io.VarLenFeature(self.table_config.key_dtype)}
        weight_key = self.feature_config.weight_key
        if weight_key is not None:
            spec[weight_key] = tf.io.VarLenFeature(tf.float32)
        return spec

    @property
    def variable_shape(self) -> tf.TensorShape:
        """The shape of a sample's activation."""
        return tf.TensorShape([self.table_config.dimension])

    def transform_feature(
        self, transformation_cache: Any, state_manager: Any
    ) -> Any:
        """Returns the feature as the estimator provides it."""
        return transformation_cache.get(self.key, state_manager)

    def get_dense_tensor(
        self, transformation_cache: Any, state_manager: Any
    ) -> tf.Tensor:
        """Returns the activations, [B, dimension].

        Raises:
          tfembed.errors.ArgumentError: the column is a sequence column.
          tfembed.errors.StateError: no estimator has looked up the feature.
        """
        if self.feature_config.max_sequence_length:
            raise errors.ArgumentError(
                f"The column of '{self.key}' is a sequence column (its "
                "max_sequence_length is "
                f"{self.feature_config.max_sequence_length}); use it in a layer "
                "for sequence features."
            )
        return self._checked(transformation_cache.get(self.key, state_manager))

    def get_sequence_dense_tensor(
        self, transformation_cache: Any, state_manager: Any
    ) -> Any:
        """Returns activations [B, max_sequence_length, dimension], lengths [B].

        Raises:
          tfembed.errors.StateError: no estimator has looked up the feature.
        """
        rows = self._checked(transformation_cache.get(self.key, state_manager))
        lengths = transformation_cache.get(
            private.length_key(self.key), state_manager
        )
        # The cache adds a second dimension to every feature of rank 1.
        return private.sequence_pair(rows, tf.squeeze(lengths, -1))

    def get_config(self) -> Mapping[str, Any]:
        """Raises UnsupportedError: policies and functions have no JSON."""
        raise errors.UnsupportedError(
            f"The column of '{self.key}' cannot be serialized. Make it again by "
            "tfembed.estimator.embedding_column."
        )

    @property
    def _is_v2_column(self) -> bool:
        return True

    # The same methods by the names that layers of TensorFlow 1 use.

    @property
    def _variable_shape(self) -> tf.TensorShape:
        return self.variable_shape

    @property
    def _parse_example_spec(self) -> dict[str, Any]:
        return self.parse_example_spec

    def _transform_feature(self, inputs: Any) -> Any:
        return inputs.get(self.key)

    def _get_dense_tensor(
        self,
        inputs: Any,
        weight_collections: Any = None,
        trainable: Any = None,
    ) -> tf.Tensor:
        del weight_collections, trainable
        return self.get_dense_tensor(_OldCache(inputs), None)

    def _get_sequence_dense_tensor(
        self,
        inputs: Any,
        weight_collections: Any = None,
        trainable: Any = None,
    ) -> Any:
        del weight_collections, trainable
        return self.get_sequence_dense_tensor(_OldCache(inputs), None)

    def _checked(self, feature: Any) -> tf.Tensor:
        dimension = self.table_config.dimension
        is_activation = (
            isinstance(feature, tf.Tensor)
            and feature.dtype.is_floating
            and feature.shape.rank is not None
            and feature.shape[-1] == dimension
        )
        if not is_activation:
            raise errors.StateError(
                f"The feature '{self.key}' was not looked up in table "
                f"'{self.table_name}' before the model_fn was called; got "
                f"{feature}. Give the column to a TPUEstimator, as "
                "embedding_config_spec=EmbeddingConfigSpec(feature_columns=..."
                ", optimization_parameters=...)."
            )
        return feature


class _OldCache:
    """Adapts the cache of TensorFlow 1's layers to the new interface."""

    def __init__(self, inputs: Any) -> None:
        self._inputs = inputs

    def get(self, key: Any, state_manager: Any) -> Any:
        """Returns the feature."""
        del state_manager
        return self._inputs.get(key)
