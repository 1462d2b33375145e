"""Configurations of tables, and of features that are looked up in them."""

from tfembed.config.custom_combiner import CustomCombiner
from tfembed.config.quantization_config import QuantizationConfig
from tfembed.config.table_config import FeatureConfig, TableConfig
from tfembed.initializers import RowIdInitializer

__all__ = [
    "CustomCombiner",
    "FeatureConfig",
    "QuantizationConfig",
    "RowIdInitializer",
    "TableConfig",
]
