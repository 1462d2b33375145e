"""Keras 3 layers with embedding tables, and callbacks for them."""

from tfembed.keras import callbacks, layers

__all__ = ["callbacks", "layers"]
