"""The tables of a TPUEstimator, and the features that are looked up in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings import feature_columns as columns
from tfembed.estimator.embeddings.feature_columns import EmbeddingColumn
from tfembed.estimator.embeddings.parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    OptimizationParameters,
    ProximalAdagradParameters,
    RMSPropParameters,
    StochasticGradientDescentParameters,
)
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

__all__ = ["EmbeddingConfigSpec", "rates_at_step"]

_PARAMETERS = (
    ProximalAdagradParameters,
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    StochasticGradientDescentParameters,
    MomentumParameters,
    RMSPropParameters,
)


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingConfigSpec:
    """The embedding tables of a TPUEstimator, as columns or as two dicts.

    Feature columns are those of the model_fn's input layer, made by
    `tf.compat.v1.tpu.experimental.embedding_column` and
    `shared_embedding_columns`, or by `tfembed.estimator.embedding_column` for
    tables without a vocabulary. Off TPUs, with `use_tpu=False`, the first two
    run as plain feature columns in the model_fn. Tables given as dicts are
    always looked up outside the model_fn: it gets activations under the
    features' names, in every mode and on every device.

    Attributes:
      feature_columns: the columns; None with dicts. Columns for a TPU's tensor
        core are moved to `tensor_core_feature_columns`.
      optimization_parameters: the update rule of the tables, an
        OptimizationParameters.
      clipping_limit: ignored, as in the old package.
      pipeline_execution_with_tensor_core: on a TPU, whether a step's lookup
        may overlap with the step before. No effect elsewhere.
      experimental_gradient_multiplier_fn: a function of the global step whose
        result multiplies all gradients of tables.
      feature_to_config_dict: FeatureConfigs by feature.
      table_to_config_dict: TableConfigs by table.
      partition_strategy: "div" or "mod", the placement of rows on a TPU's
        hosts.
      profile_data_directory: the folder for a TPU's statistics of lookups.
      tensor_core_feature_columns: set by the constructor; None with dicts.

    Raises:
      tfembed.errors.ArgumentError: neither or both of columns and dicts are
        given, or a value is not allowed.
      tfembed.errors.DtypeError: (also TypeError) an object has the wrong type.
    """

    feature_columns: Sequence[Any] | None = None
    optimization_parameters: OptimizationParameters | None = None
    clipping_limit: float | None = None
    pipeline_execution_with_tensor_core: bool = False
    experimental_gradient_multiplier_fn: Callable[[Any], Any] | None = None
    feature_to_config_dict: Mapping[str, FeatureConfig] | None = None
    table_to_config_dict: Mapping[str, TableConfig] | None = None
    partition_strategy: str = "div"
    profile_data_directory: str | None = None
    tensor_core_feature_columns: Sequence[Any] | None = dataclasses.field(
        default=None, init=False
    )

    def __post_init__(self) -> None:
        features, tables = (
            self.feature_to_config_dict,
            self.table_to_config_dict,
        )
        if bool(self.feature_columns) == bool(features and tables):
            raise errors.ArgumentError(
                "Exactly one of `feature_columns` and the pair "
                "`feature_to_config_dict` and `table_to_config_dict` must be "
                f"be specified. Got {self.feature_columns}, {features} and "
                f"{tables}."
            )
        if self.partition_strategy not in ("div", "mod"):
            raise errors.ArgumentError(
                f"Invalid partition_strategy {self.partition_strategy}. Must be "
                'one of "mod" or "div".'
            )
        if self.feature_columns:
            self._check_columns()
        else:
            self._check_dicts()
        multiplier = self.experimental_gradient_multiplier_fn
        if multiplier is not None and not callable(multiplier):
            raise errors.ArgumentError(
                "`experimental_gradient_multiplier_fn` must be a function of "
                f"the global step; got {multiplier!r}."
            )

    def tables_and_features(
        self, *, on_tpu: bool
    ) -> tuple[Mapping[str, TableConfig], Mapping[str, FeatureConfig]]:
        """Returns the tables and features that are looked up outside model_fns.

        Args:
          on_tpu: False if feature columns of TensorFlow run by themselves in
            the model_fn (`use_tpu=False`).
        """
        if self.feature_columns is None:
            return (
                self.table_to_config_dict or {},
                self.feature_to_config_dict or {},
            )
        return columns.get_configs_from_feature_columns(
            [
                column
                for column in self.feature_columns
                if on_tpu or isinstance(column, EmbeddingColumn)
            ]
        )

    def _check_columns(self) -> None:
        embedding: list[Any] = []
        tensor_core: list[Any] = []
        for column in self.feature_columns or ():
            if not isinstance(column, columns.supported_classes()):
                raise errors.DtypeError(
                    "All feature columns must be supported types in "
                    f"{columns.supported_classes()}. Got {type(column)}"
                )
            on_core = columns.is_on_tensor_core(column)
            (tensor_core if on_core else embedding).append(column)
        if not isinstance(self.optimization_parameters, _PARAMETERS):
            raise errors.ArgumentError(
                "optimization_parameters must be an instance of type "
                f"{_PARAMETERS}. Got {type(self.optimization_parameters)}."
            )
        object.__setattr__(self, "feature_columns", embedding)
        object.__setattr__(self, "tensor_core_feature_columns", tensor_core)

    def _check_dicts(self) -> None:
        features = self.feature_to_config_dict or {}
        tables = self.table_to_config_dict or {}
        for feature, config in features.items():
            if not isinstance(config, FeatureConfig):
                raise errors.DtypeError(
                    f"Config for feature {feature} must be of type "
                    f"`FeatureConfig`. Got {type(config)}"
                )
            if config.table_id not in tables:
                raise errors.ArgumentError(
                    f"Feature {feature} refers to table {config.table_id} which "
                    "is not in the table_to_config_dict."
                )
        used = {config.table_id for config in features.values()}
        for table, table_config in tables.items():
            if not isinstance(table_config, TableConfig):
                raise errors.DtypeError(
                    f"Config for table {table} must be of type `TableConfig`. "
                    f"Got {type(table_config)}"
                )
            if table not in used:
                raise errors.ArgumentError(
                    "`table_to_config_dict` specifies table that is not used in "
                    f"`feature_to_config_dict`: {table}."
                )
        given = self.optimization_parameters
        # None is right if nothing is trained, or tables have their own.
        if given is not None and not isinstance(given, _PARAMETERS):
            raise errors.ArgumentError(
                "optimization_parameters must be an instance of type "
                f"{_PARAMETERS}. Got {type(given)}."
            )


def rates_at_step(
    spec: EmbeddingConfigSpec, functions: Sequence[Callable[[Any], Any]]
) -> tuple[list[tf.Tensor], tf.Tensor | None]:
    """Computes values of the global step, before the step increments it.

    Args:
      spec: the spec, which may have a multiplier of all gradients.
      functions: learning rates as functions of the global step.

    Returns:
      The learning rates, float32 []; and the multiplier, float32 [], or None.
    """
    multiplier = spec.experimental_gradient_multiplier_fn
    if not functions and multiplier is None:
        return [], None
    step = tf.compat.v1.train.get_or_create_global_step()
    now = tf.identity(step.read_value())
    rates = [tf.cast(function(now), tf.float32) for function in functions]
    if multiplier is None:
        return rates, None
    return rates, tf.cast(multiplier(now), tf.float32)
