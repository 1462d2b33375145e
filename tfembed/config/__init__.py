"""Descriptions of tables, and of how a feature is looked up in one."""

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
