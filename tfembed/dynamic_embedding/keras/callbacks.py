"""Callbacks under TensorFlow Recommenders Addons' names."""

from __future__ import annotations

import sys
from typing import Any

import keras as _keras

from tfembed import errors

__all__ = [
    "DEHvdBroadcastGlobalVariablesCallback",
    "DEHvdModelCheckpoint",
    "HvdAllToAllEmbedding",
    "ModelCheckpoint",
    "check_one_process",
]

# FOLDED horovod: Names of what TensorFlow Recommenders Addons does over Horovod.


class HvdAllToAllEmbedding:
    """Not in this release: ids dealt to Horovod's workers.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "HvdAllToAllEmbedding (Horovod) is not in this release; use "
            "Embedding, whose table may have several `devices`."
        )


class DEHvdBroadcastGlobalVariablesCallback:
    """Not in this release: Horovod's broadcast.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "DEHvdBroadcastGlobalVariablesCallback (Horovod) is not in this "
            "release; leave it out where one process trains."
        )


def check_one_process(what: str) -> None:
    """Refuses `what` among several processes of Horovod.

    Raises:
      tfembed.errors.UnsupportedError: there are several.
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


# Its files hold the tables' rows: `.keras` and `.weights.h5` both.
ModelCheckpoint = _keras.callbacks.ModelCheckpoint

DEHvdModelCheckpoint = ModelCheckpoint  # Where one process trains.
