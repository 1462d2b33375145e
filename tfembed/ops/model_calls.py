"""The seam by which lookups tell Keras' layers of tables that they read.

Outside of models nothing is told, and no code of the Keras room runs.
"""

from __future__ import annotations

from typing import Any, Protocol

from tfembed.ops.private import (
    called_layers,
    in_symbolic_scope,
    running_frames,
    tape_records,
)

__all__ = [
    "Observer",
    "keys_to_build_with",
    "note_lookup",
    "note_read",
    "watch",
]


class Observer(Protocol):
    """The side of Keras, which `watch` sets."""

    def note_lookup(self, params: Any) -> None:
        """Takes note of a trainable lookup in a `Variable` or tf.Variable."""

    def note_read(self, table: Any) -> None:
        """Takes note of a read of a `HashTable` or `StringTable`."""

    def keys_to_build_with(self, ids: Any, params: Any) -> Any:
        """Returns keys for floats by which Keras finds a model's shapes."""


_OBSERVERS: list[Observer] = []  # Empty, or the side of Keras alone.


def watch(observer: Observer) -> None:
    """Sets the observer."""
    _OBSERVERS[:] = [observer]


def note_lookup(params: Any) -> None:
    """Tells of a trainable lookup, in a model's call, building or step."""
    for observer in _OBSERVERS:
        # A model's `compute_loss` looks up in its step, and in no call.
        if (
            called_layers() is not None
            or in_symbolic_scope()
            or (
                tape_records()
                and running_frames("train_step", "tf__train_step")
            )
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
