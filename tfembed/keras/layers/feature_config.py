"""A feature's description with the arguments of keras-rs."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tfembed.keras.layers.table_config import TableConfig

__all__ = ["FeatureConfig"]


@keras.saving.register_keras_serializable(package="tfembed.keras")
@dataclasses.dataclass
class FeatureConfig:
    """One feature of a `DistributedEmbedding`, as keras-rs describes it.

    `tfembed.FeatureConfig` has more: sequences, and no shapes to give.

    Attributes:
      name: of the feature.
      table: the table, which other features may share.
      input_shape: (batch,) or (batch, ids of a sample). Batches may have any
        size, and samples any number of ids.
      output_shape: (batch, width of a row).
    """

    name: str
    table: TableConfig
    input_shape: Any
    output_shape: Any

    def get_config(self) -> dict[str, Any]:
        """The fields, with the table's config."""
        return {**vars(self), "table": self.table.get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """Makes a feature of what `get_config` gave."""
        table = TableConfig.from_config(config["table"])
        return cls(**{**config, "table": table})
