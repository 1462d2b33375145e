"""The layers."""

from tfembed.keras.layers.distributed_embedding import DistributedEmbedding
from tfembed.keras.layers.embedding import Embedding

__all__ = ["DistributedEmbedding", "Embedding"]
