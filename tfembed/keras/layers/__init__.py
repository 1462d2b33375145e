"""The layers."""

from tfembed.keras.layers.configs import FeatureConfig, TableConfig
from tfembed.keras.layers.distributed_embedding import DistributedEmbedding
from tfembed.keras.layers.embedding import Embedding
from tfembed.keras.layers.top_k import TopK

__all__ = [
    "DistributedEmbedding",
    "Embedding",
    "FeatureConfig",
    "TableConfig",
    "TopK",
]
