"""Keras 3 layers over `tfembed.TPUEmbedding`."""

from tfembed.keras import layers

__all__ = ["layers"]
