"""Callbacks under TensorFlow Recommenders Addons' names."""

import keras as _keras

from tfembed.dynamic_embedding.keras.horovod import (
    DEHvdBroadcastGlobalVariablesCallback,
)

# Its files hold the tables' rows: `.keras` and `.weights.h5` both.
ModelCheckpoint = _keras.callbacks.ModelCheckpoint

__all__ = ["DEHvdBroadcastGlobalVariablesCallback", "ModelCheckpoint"]
