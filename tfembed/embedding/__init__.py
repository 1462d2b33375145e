"""TPUEmbedding, TPUEmbeddingV0, TPUEmbeddingForServing and their engines."""

from tfembed.embedding.features.packed_features import (
    PackedFeatures,
    pack_features,
)
from tfembed.embedding.host.tables import TableSize
from tfembed.embedding.tpu_embedding import TPUEmbedding
from tfembed.embedding.tpu_embedding_for_serving import (
    TPUEmbeddingForServing,
    serving_embedding_lookup,
)
from tfembed.embedding.tpu_embedding_v0 import TPUEmbeddingV0
from tfembed.not_in_release import absent as _absent

__all__ = [
    "PackedFeatures",
    "SparseCoreEmbeddingConfig",
    "TPUEmbedding",
    "TPUEmbeddingForServing",
    "TPUEmbeddingV0",
    "TPUEmbeddingV2",
    "TableSize",
    "pack_features",
    "serving_embedding_lookup",
]

TPUEmbeddingV2 = _absent("TPUEmbeddingV2", __name__)
SparseCoreEmbeddingConfig = _absent("SparseCoreEmbeddingConfig", __name__)
