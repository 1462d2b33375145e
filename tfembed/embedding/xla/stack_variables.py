"""A stack's rows in variables."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfembed.embedding.xla.stack import Stack, StackRows
from tfembed.ops import exchange

__all__ = ["StackVariables"]


@dataclasses.dataclass(frozen=True, eq=False)
class StackVariables:
    """What an engine keeps of a stack.

    Attributes:
      stack: the tables.
      values: a variable of `stack.shapes()[0]`.
      slots: variables of the shapes behind it.
    """

    stack: Stack
    values: Any
    slots: tuple[Any, ...]

    def read(self) -> StackRows:
        """This replica's rows, now."""
        return StackRows(
            _read(self.values), tuple(_read(slot) for slot in self.slots)
        )

    def assign(self, updated: exchange.Updated) -> None:
        """Keeps what an update made of them."""
        self.values.assign(updated.values)
        for slot, value in zip(self.slots, updated.slots, strict=True):
            slot.assign(value)


def _read(variable: Any) -> tf.Tensor:
    # The tables are trained by apply_gradients: no tape watches them.
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable.read_value()
    return tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
    )
