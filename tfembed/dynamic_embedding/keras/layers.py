"""Keras layers over tables that grow with their ids."""

import sys as _sys

import keras as _keras

from tfembed.dynamic_embedding.keras.combiners import reduce_pooling
from tfembed.dynamic_embedding.keras.embedding import Embedding
from tfembed.dynamic_embedding.keras.field_wise_embedding import (
    FieldWiseEmbedding,
)
from tfembed.dynamic_embedding.keras.horovod import HvdAllToAllEmbedding
from tfembed.dynamic_embedding.keras.squashed_embedding import SquashedEmbedding

BasicEmbedding = Embedding
LayerNormalization = _keras.layers.LayerNormalization

# Programs of TFRA write `layers.embedding.Embedding`, too.
embedding = _sys.modules[__name__]

__all__ = [
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "HvdAllToAllEmbedding",
    "LayerNormalization",
    "SquashedEmbedding",
    "reduce_pooling",
]
