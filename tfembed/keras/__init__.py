"""Keras 3 layers over `tfembed.TPUEmbedding`, and callbacks for them."""

from tfembed.keras import callbacks, layers

__all__ = ["callbacks", "layers"]
