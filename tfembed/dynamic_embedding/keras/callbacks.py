"""Callbacks under TensorFlow Recommenders Addons' names."""

import keras as _keras

from tfembed.dynamic_embedding.keras.horovod import (
    DEHvdBroadcastGlobalVariablesCallback,
)

# Its files hold the tables' rows: `.keras` and `.weights.h5` both.
ModelCheckpoint = _keras.callbacks.ModelCheckpoint
DEHvdModelCheckpoint = ModelCheckpoint  # Where one process trains.

__all__ = [
    "DEHvdBroadcastGlobalVariablesCallback",
    "DEHvdModelCheckpoint",
    "ModelCheckpoint",
]
