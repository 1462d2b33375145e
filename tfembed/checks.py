"""Checks of numbers and shapes that callers give, with one wording for all."""

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
    """`value`, a whole number of any type, as an int in [least, most].

    Args:
      value: what was given: an integer or a whole float, of Python or NumPy, or
        an array or eager tensor that is one.
      argument: its name.
      least, most: limits, inclusive; None: no upper one.
      owner: the owner of the argument, as in "table 'users'".

    Raises:
      tfembed.errors.ArgumentError: anything else, a boolean too.
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
    """`value` as a number of keys.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) not an integer; a whole float
        is none either, as in TFRA's `restrict`.
      tfembed.errors.ArgumentError: a negative one.
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
      tf.errors.InvalidArgumentError: as the op does where shapes are known only
        when it runs.
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
      tf.errors.InvalidArgumentError: it cannot.
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
    """Makes checks that fail when they run where a shape is not `expected`.

    The rank has a check of its own, since shapes of other ranks are broadcast
    when they are compared: [2] would pass for [2, 2].

    Args:
      tensor: the tensor that has the shape.
      expected: an int32 [rank].
      text: what the error says.

    Raises:
      tf.errors.InvalidArgumentError: in eager mode, another shape.
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
    """`value` as an int; None where it is no whole number, or a boolean.

    Users compute sizes (`2.0 * n`), so a float or an array of no dimension will
    do where it is whole.
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
    """`value` as a number; None where it is none, or a boolean.

    Numbers of Python stay what they are; those of NumPy, and arrays and eager
    tensors of no dimension, become such.
    """
    value = scalar(value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return value if is_number else None


def scalar(value: Any) -> Any:
    """A NumPy scalar, or an array or tensor of one, as Python's; or `value`."""
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
