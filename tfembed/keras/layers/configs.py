"""Configs of features and tables with the arguments of keras-rs."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tfembed import errors
from tfembed.tables.arguments import check_name

__all__ = ["FeatureConfig", "TableConfig"]

PLACEMENTS = ("auto", "default_device", "sparsecore")


@keras.saving.register_keras_serializable(package="tfembed.keras")
@dataclasses.dataclass
class TableConfig:
    """One table of a `DistributedEmbedding`, as keras-rs describes it.

    `tfembed.TableConfig` has more: policies, dtypes, keys of strings.

    Attributes:
      name: the name of the table.
      vocabulary_size: number of rows; None: the table grows with its ids.
      embedding_dim: width of a row.
      initializer: an initializer of Keras, or its name.
      optimizer: an optimizer of Keras, or its name: SGD, Adagrad, Adam or Ftrl;
        or of `tfembed.optimizers`.
      combiner: "mean", "sum" or "sqrtn".
      placement: "auto", "default_device" or "sparsecore"; tables are always in
        host memory.
      fan_in: as in `tfembed.TableConfig`; keras-rs does not have it.
      max_ids_per_partition, max_unique_ids_per_partition: not used.

    Raises:
      tfembed.errors.ArgumentError: an unknown placement. Other values are
        checked by the layer.
    """

    name: str
    vocabulary_size: int | None
    embedding_dim: int
    initializer: Any = dataclasses.field(
        default_factory=lambda: keras.initializers.VarianceScaling(
            mode="fan_out"
        )
    )
    optimizer: Any = "adam"
    combiner: str = "mean"
    placement: str = "auto"
    max_ids_per_partition: int = 256
    max_unique_ids_per_partition: int = 256
    fan_in: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.placement not in PLACEMENTS:
            raise errors.ArgumentError(
                f"`placement` of table '{self.name}' must be one of "
                f"{PLACEMENTS}; got {self.placement!r}."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the fields, with Keras objects in their saved form."""
        return {
            **vars(self),
            "initializer": keras.saving.serialize_keras_object(
                self.initializer
            ),
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """Makes a table config from the dict of `get_config`."""
        objects = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("initializer", "optimizer")
        }
        return cls(**{**config, **objects})


@keras.saving.register_keras_serializable(package="tfembed.keras")
@dataclasses.dataclass
class FeatureConfig:
    """One feature of a `DistributedEmbedding`, as keras-rs describes it.

    `tfembed.FeatureConfig` has sequences too, and needs no shapes.

    Attributes:
      name: the name of the feature.
      table: the table, which other features may share.
      input_shape: (batch,), (batch, ids of a sample), or more dimensions, of
        which the last is combined. Batches may have any size, and samples any
        number of ids.
      output_shape: (batch, width of a row), or `input_shape` with the width for
        its last dimension.
    """

    name: str
    table: TableConfig
    input_shape: Any
    output_shape: Any

    def get_config(self) -> dict[str, Any]:
        """Returns the fields, with the table's config."""
        return {**vars(self), "table": self.table.get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """Makes a feature config from the dict of `get_config`."""
        table = TableConfig.from_config(config["table"])
        return cls(**{**config, "table": table})
