"""TPUEmbedding and the lookup that serves what it trained."""

from tfembed.embedding.host_tables import TableSize
from tfembed.embedding.serving import serving_embedding_lookup
from tfembed.embedding.tpu_embedding import TPUEmbedding

__all__ = ["TPUEmbedding", "TableSize", "serving_embedding_lookup"]
