"""Keras layers over tables that grow with their ids."""

import keras as _keras

from tfembed.dynamic_embedding.keras.embedding import Embedding
from tfembed.dynamic_embedding.keras.field_wise_embedding import (
    FieldWiseEmbedding,
)
from tfembed.dynamic_embedding.keras.horovod import HvdAllToAllEmbedding
from tfembed.dynamic_embedding.keras.squashed_embedding import SquashedEmbedding

BasicEmbedding = Embedding
LayerNormalization = _keras.layers.LayerNormalization

__all__ = [
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "HvdAllToAllEmbedding",
    "LayerNormalization",
    "SquashedEmbedding",
]
