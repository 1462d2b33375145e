"""The layers."""

from tfembed.keras.layers.configs import FeatureConfig, TableConfig
from tfembed.keras.layers.distributed_embedding import DistributedEmbedding
from tfembed.keras.layers.embedding import Embedding

__all__ = [
    "DistributedEmbedding",
    "Embedding",
    "FeatureConfig",
    "TableConfig",
]
