"""Slots that a CPU's optimizers and a TPU's tables name differently.

A CPU's AdamOptimizer keeps the slots of a variable `v` as `v/Adam` and `v/Adam_1`,
its RMSPropOptimizer as `v/RMSProp` and `v/RMSProp_1`. TPUEstimator has always saved
those of its tables as `v/Adam/m`, `v/Adam/v`, `v/RMSProp/ms` and `v/RMSProp/mom`. A
checkpoint keeps the names of whoever saved it; `SlotNamesSaver` reads both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfembed.estimator import private

_CPU_OF_TPU = {
    "Adam/m": "Adam",
    "Adam/v": "Adam_1",
    "RMSProp/ms": "RMSProp",
    "RMSProp/mom": "RMSProp_1",
}
_OTHER = {**_CPU_OF_TPU, **{cpu: tpu for tpu, cpu in _CPU_OF_TPU.items()}}


def other_name(name: str) -> str | None:
    """Returns the other name of a slot; None of what has one name.

    Example:
        >>> other_name("table/Adam/m"), other_name("table/Adam_1")
        ('table/Adam', 'table/Adam/v')
    """
    for suffix, other in _OTHER.items():
        if name.endswith(f"/{suffix}"):
            return name.removesuffix(suffix) + other
    return None


def renamed_slots(
    names: Iterable[str], checkpoint: str | None
) -> dict[str, str]:
    """Returns the names of a checkpoint for slots that it names otherwise.

    Args:
      names: The names of the graph's variables.
      checkpoint: Its path, or None.
    """
    slots = {name: other for name in names if (other := other_name(name))}
    if not slots or not checkpoint:
        return {}
    saved = {name for name, _ in tf.train.list_variables(checkpoint)}
    return {
        name: other
        for name, other in slots.items()
        if name not in saved and other in saved
    }


class SlotNamesSaver(tf.compat.v1.train.Saver):
    """Restores one checkpoint under its own names of slots; saves as the graph's.

    Args:
      checkpoint: The path of that checkpoint.
      renamed: As `renamed_slots` gives them.
      **options: Those of `tf.compat.v1.train.Saver`.
    """

    def __init__(
        self, checkpoint: str, renamed: dict[str, str], **options: Any
    ) -> None:
        self._checkpoint = checkpoint
        self._renamed = renamed
        self._reader: Any = None
        super().__init__(**options)

    def build(self) -> None:
        """Adds the ops to the graph."""
        super().build()
        saved = private.saveables_by_name()
        self._reader = tf.compat.v1.train.Saver(
            {self._renamed.get(name, name): saved[name] for name in saved},
            name="restore_slots",
        )

    def restore(self, sess: Any, save_path: Any) -> None:
        """Restores variables; slots of that checkpoint under its names."""
        if tf.compat.as_str_any(save_path) != self._checkpoint:
            super().restore(sess, save_path)
            return
        tf.compat.v1.logging.info(
            "Slots are restored under other names: %s.", self._renamed
        )
        self._reader.restore(sess, save_path)
