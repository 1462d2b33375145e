"""What a table is and how a feature is looked up in it."""

from tfembed.config.feature_config import FeatureConfig
from tfembed.config.table_config import TableConfig

__all__ = ["FeatureConfig", "TableConfig"]
