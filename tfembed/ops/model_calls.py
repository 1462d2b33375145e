"""The seam by which lookups tell Keras' layers of tables that they read.

Outside of models nothing is told, and no code of the Keras room runs.
"""

from __future__ import annotations

import types
from typing import Any

from tfembed.ops.private import (
    called_layers,
    in_symbolic_scope,
    running_frames,
    tape_records,
)

__all__ = [
    "keys_to_build_with",
    "note_lookup",
    "note_read",
    "train_steps",
    "watch",
]


# Empty, or the module that has Keras' side of the functions below, alone.
_OBSERVERS: list[types.ModuleType] = []


def watch(observer: types.ModuleType) -> None:
    """Sets the module whose functions of these names are called in models."""
    _OBSERVERS[:] = [observer]


def train_steps() -> list[Any]:
    """Returns the models whose `train_step` runs in this thread, innermost first.

    They are of Keras 3 or tf_keras, whose methods TensorFlow 2.16's AutoGraph
    converts.
    """
    frames = running_frames("train_step", "tf__train_step")
    return [frame.f_locals.get("self") for frame in frames]


def note_lookup(params: Any) -> None:
    """Tells of a trainable lookup, in a model's call, building or step."""
    for observer in _OBSERVERS:
        # A model's `compute_loss` looks up in its step, and in no call.
        if (
            called_layers() is not None
            or in_symbolic_scope()
            or (tape_records() and train_steps())
        ):
            observer.note_lookup(params)


def note_read(table: Any) -> None:
    """Tells of a read of a table, in a model's call or building."""
    for observer in _OBSERVERS:
        if called_layers() is not None or in_symbolic_scope():
            observer.note_read(table)


def keys_to_build_with(ids: Any, params: Any) -> Any:
    """Converts floats to keys where only a model's shapes are being found."""
    for observer in _OBSERVERS if in_symbolic_scope() else ():
        ids = observer.keys_to_build_with(ids, params)
    return ids
