"""What an optimizer takes for its variable while it moves rows of a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["RowValues"]


class RowValues:
    """Rows [n, dim] that an optimizer assigns to as it does to a variable.

    It holds the newest value as a tensor: no state, no handle, so that n may
    differ from step to step, and steps in several threads share nothing. What
    an optimizer may do with it: read it as a tensor, calculate, `assign`,
    `assign_add`, `assign_sub`.

    Args:
      rows: the first value.
      name: of the variable that the rows stand for.
    """

    def __init__(self, rows: tf.Tensor, name: str) -> None:
        self.rows: Any = rows
        self.name = name
        self._unique_id = f"tfembed_rows_{name}_{id(self)}"

    @property
    def value(self) -> tf.Tensor:
        """The newest value."""
        return self.rows

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self.rows.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """[n, dim], n as far as it is known."""
        return self.rows.shape

    def clear(self) -> None:
        """Lets go of the tensor, which may belong to a function's graph."""
        self.rows = None

    def read_value(self) -> tf.Tensor:
        """The newest value."""
        return self.rows

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Takes `value`; further arguments of `tf.Variable`'s are ignored."""
        del args, kwargs
        value = tf.convert_to_tensor(value, self.dtype)
        self.rows = tf.ensure_shape(value, [None, self.shape[-1]])
        return self

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Adds `value`."""
        return self.assign(self.rows + value)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> RowValues:
        """Subtracts `value`."""
        return self.assign(self.rows - value)

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        if dtype is not None and dtype != self.dtype:
            return tf.cast(self.rows, dtype, name=name)
        return self.rows


def _overload(operator: str) -> None:
    """Has `operator` calculate with the newest value."""

    def calculate(self: RowValues, *others: Any) -> Any:
        rows = [x.rows if isinstance(x, RowValues) else x for x in others]
        return getattr(self.rows, operator)(*rows)

    setattr(RowValues, operator, calculate)


for _operator in (
    *("__neg__", "__abs__", "__getitem__", "__add__", "__radd__", "__sub__"),
    *("__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__rpow__", "__lt__", "__le__", "__gt__", "__ge__"),
):
    _overload(_operator)
