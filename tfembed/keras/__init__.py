"""Keras 3 models and layers with embedding tables, callbacks and metrics."""

from tfembed.keras import callbacks, layers, metrics
from tfembed.keras.model import Model

__all__ = ["Model", "callbacks", "layers", "metrics"]
