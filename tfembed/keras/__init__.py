"""Keras 3 layers with embedding tables, callbacks and metrics for them."""

from tfembed.keras import callbacks, layers, metrics

__all__ = ["callbacks", "layers", "metrics"]
