"""Callbacks under TensorFlow Recommenders Addons' names."""

from __future__ import annotations

import sys
from typing import Any

import keras as _keras

from tfembed import errors
from tfembed.not_in_release import absent

__all__ = [
    "DEHvdBroadcastGlobalVariablesCallback",
    "DEHvdModelCheckpoint",
    "HvdAllToAllEmbedding",
    "ModelCheckpoint",
    "check_one_process",
]


def check_one_process(what: str) -> None:
    """Refuses `what` if Horovod runs several processes.

    Raises:
      tfembed.errors.UnsupportedError: there are several processes.
    """
    horovod: Any = sys.modules.get("horovod.tensorflow")
    if horovod is None or not horovod.is_initialized():
        return
    if horovod.size() > 1:
        raise errors.UnsupportedError(
            f"{what} saves one process; got {horovod.size()} of Horovod's, each "
            "with rows of its own. Call `variable.save_to_file_system(dirpath, "
            "proc_size, proc_rank)` in each."
        )


# Both kinds of its files, `.keras` and `.weights.h5`, hold the tables' rows.
ModelCheckpoint = _keras.callbacks.ModelCheckpoint

DEHvdBroadcastGlobalVariablesCallback = absent(
    "DEHvdBroadcastGlobalVariablesCallback", __name__
)
HvdAllToAllEmbedding = absent("HvdAllToAllEmbedding", __name__)

DEHvdModelCheckpoint = ModelCheckpoint  # For one process.
