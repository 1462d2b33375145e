"""Hash tables in `tf.train.Checkpoint` and in SavedModels.

Importing this package registers them with TensorFlow's savers;
docs/checkpoints.md describes the format.
"""

from __future__ import annotations

import importlib as _importlib

from tfembed.checkpoint import held_variable as _held_variable
from tfembed.checkpoint import table_saver as _table_saver
from tfembed.checkpoint.table_saver import tensor_prefix, verify

__all__ = ["WarmStart", "tensor_prefix", "verify", "warm_start"]

_table_saver.register()
_held_variable.register()

# The first names of `tfembed.warm_start` and its result.
_LATER = ("WarmStart", "warm_start")


def __getattr__(name: str) -> object:
    """Returns `tfembed.warm_start` by its first name."""
    if name in _LATER:
        return getattr(_importlib.import_module("tfembed"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
