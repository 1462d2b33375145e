"""Checks of numbers and shapes from callers, with one wording of the errors."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors

__all__ = [
    "integer",
    "key_count",
    "number",
    "rows",
    "run_shape",
    "scalar",
    "shape",
    "whole",
]


def integer(
    value: Any,
    argument: str,
    *,
    least: int,
    most: int | None = None,
    owner: str = "",
) -> int:
    """Returns a whole number as an int, checked to be in [least, most].

    Args:
      value: an integer or a whole float, of Python or NumPy, or an array or
        eager tensor of one such number.
      argument: its name.
      least, most: the inclusive limits; None as `most`: no upper limit.
      owner: the owner of the argument, as in "table 'users'".

    Raises:
      tfembed.errors.ArgumentError: any other value, booleans included.
    """
    number = whole(value)
    fits = number is not None and least <= number
    if number is None or not fits or (most is not None and number > most):
        limits = f"of at least {least}" + (
            "" if most is None else f" and at most {most}"
        )
        whose = f" for {owner}" if owner else ""
        raise errors.ArgumentError(
            f"`{argument}` must be an integer {limits}; got {value!r}{whose}."
        )
    return number


def key_count(value: Any, argument: str) -> int:
    """Returns `value` as a number of keys, an int from 0 on.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) not an integer; a whole float
        is refused too, as by TFRA's `restrict`.
      tfembed.errors.ArgumentError: a negative number.
    """
    value = scalar(value)
    number = None if isinstance(value, float) else whole(value)
    if number is None:
        raise errors.DtypeError(
            f"`{argument}` must be an integer, a number of keys; got {value!r}."
        )
    if number < 0:
        raise errors.ArgumentError(
            f"`{argument}` must not be negative; got {number}."
        )
    return number


def shape(what: str, tensor: tf.Tensor, expected: tf.TensorShape) -> None:
    """Refuses a tensor whose static shape cannot be `expected`.

    Raises:
      tf.errors.InvalidArgumentError: the shape differs. The op raises the same
        error where shapes are known only when it runs.
    """
    if not tensor.shape.is_compatible_with(expected):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Expected shape {_text(expected)} for {what}, got "
            f"{_text(tensor.shape)}.",
        )


def rows(what: str, keys: tf.Tensor, rows: tf.Tensor, dim: int) -> None:
    """Refuses `rows` whose static shape cannot be keys.shape + [dim].

    Raises:
      tf.errors.InvalidArgumentError: the shapes do not fit.
    """
    # Lists compare in a fraction of the time that TensorShapes take.
    is_right = tf.executing_eagerly() and (
        rows.shape.as_list() == [*keys.shape.as_list(), dim]
    )
    if is_right:
        return
    shape(what, rows, keys.shape.concatenate([dim]))


def run_shape(
    tensor: tf.Tensor, expected: tf.Tensor, text: str
) -> list[tf.Operation]:
    """Makes ops that fail at run time unless `tensor` has the shape `expected`.

    The rank has its own check, since comparing shapes of different ranks
    broadcasts them: [2] would pass for [2, 2].

    Args:
      tensor: the tensor that has the shape.
      expected: an int32 [rank].
      text: the error's message.

    Raises:
      tf.errors.InvalidArgumentError: in eager mode, the shape differs.
    """
    rank, checks = tensor.shape.rank, []
    if rank is None or rank != expected.shape[0]:
        checks.append(
            tf.debugging.assert_equal(tf.rank(tensor), tf.size(expected), text)
        )
    with tf.control_dependencies(checks):
        checks.append(
            tf.debugging.assert_equal(tf.shape(tensor), expected, text)
        )
    return [check for check in checks if check is not None]


def whole(value: Any) -> int | None:
    """Returns `value` as an int; None if it is a boolean or not a whole number.

    Users compute sizes (`2.0 * n`), so a whole float and a scalar array are
    accepted.
    """
    value = scalar(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Real):
        # A number that is not finite or not whole has no equal integer.
        is_whole = value % 1 == 0
        # typeshed gives int() no overload for numbers.Real.
        return int(value) if is_whole else None  # type: ignore[call-overload]
    try:
        return operator.index(value)
    except TypeError:
        return None


def number(value: Any) -> float | None:
    """Returns `value` as a Python number; None for booleans and other objects.

    NumPy numbers, scalar arrays and scalar eager tensors are converted.
    """
    value = scalar(value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return value if is_number else None


def scalar(value: Any) -> Any:
    """Converts NumPy scalars, scalar arrays and tensors to Python's."""
    if isinstance(value, tf.Tensor):
        value = tf.get_static_value(value)
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        return value.item()
    return value


def _text(of: tf.TensorShape) -> str:
    if of.rank is None:
        return "<unknown>"
    sizes = ("?" if size is None else str(size) for size in of.as_list())
    return f"[{','.join(sizes)}]"
