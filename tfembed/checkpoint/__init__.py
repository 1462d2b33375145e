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

# A lower package that reads files of all kinds: imported on first use.
_LATER = ("WarmStart", "warm_start")


def __getattr__(name: str) -> object:
    """Imports `warm_start`, which few programs need, on first use."""
    if name in _LATER:
        found = _importlib.import_module("tfembed.transfer.warm_start")
        return getattr(found, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
