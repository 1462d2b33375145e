"""The layers."""

from tfembed.keras.layers.distributed_embedding import DistributedEmbedding

__all__ = ["DistributedEmbedding"]
