"""Names of slots in checkpoints, which differ between CPUs and TPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfembed.estimator.private import v1_sessions

# Slots whose names differ between a CPU's optimizers and a TPU's tables. A
# CPU's AdamOptimizer names the slots of a variable `v` `v/Adam` and
# `v/Adam_1`, its RMSPropOptimizer `v/RMSProp` and `v/RMSProp_1`. TPUEstimator
# has always named the slots of its tables `v/Adam/m`, `v/Adam/v`,
# `v/RMSProp/ms` and `v/RMSProp/mom`. A checkpoint keeps the names of its
# writer; `SlotNamesSaver` reads both.
_CPU_OF_TPU = {
    "Adam/m": "Adam",
    "Adam/v": "Adam_1",
    "RMSProp/ms": "RMSProp",
    "RMSProp/mom": "RMSProp_1",
}
_OTHER = {**_CPU_OF_TPU, **{cpu: tpu for tpu, cpu in _CPU_OF_TPU.items()}}


def other_name(name: str) -> str | None:
    """Returns the other name of a slot; None for other variables.

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
    """Returns the checkpoint's slot names that differ from the graph's.

    The result is a dict from the graph's name to the checkpoint's name.

    Args:
      names: The names of the graph's variables.
      checkpoint: The path of the checkpoint, or None.
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
    """Restores a checkpoint by its own slot names; saves by the graph's names.

    Args:
      checkpoint: The path of the checkpoint.
      renamed: The result of `renamed_slots`.
      **options: The arguments of `tf.compat.v1.train.Saver`.
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
        saved = v1_sessions.saveables_by_name()
        self._reader = tf.compat.v1.train.Saver(
            {self._renamed.get(name, name): saved[name] for name in saved},
            name="restore_slots",
        )

    def reader_of(self, path: Any) -> Any:
        """Returns the Saver that restores a checkpoint."""
        is_renamed = tf.compat.as_str_any(path) == self._checkpoint
        return self._reader if is_renamed else self

    def restore(self, sess: Any, save_path: Any) -> None:
        """Restores variables, by the other slot names for that checkpoint."""
        if self.reader_of(save_path) is self:
            super().restore(sess, save_path)
            return
        tf.compat.v1.logging.info(
            "Slots are restored under other names: %s.", self._renamed
        )
        self._reader.restore(sess, save_path)
