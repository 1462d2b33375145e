"""The layers."""

from tfembed.keras.layers.distributed_embedding import DistributedEmbedding
from tfembed.keras.layers.embedding import Embedding
from tfembed.keras.layers.feature_config import FeatureConfig
from tfembed.keras.layers.table_config import TableConfig

__all__ = [
    "DistributedEmbedding",
    "Embedding",
    "FeatureConfig",
    "TableConfig",
]
