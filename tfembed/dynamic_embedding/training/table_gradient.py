"""What a table's gradient must be, checked before a step changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training.key_sums import TableGradient
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["checks_at_run_time", "table_gradient"]


def table_gradient(gradient: Any, params: Variable) -> TableGradient:
    """A table's gradient, with tensors for keys and values.

    int32 keys are int64 inside, and tapes give them so. Hence a table takes
    integers of both dtypes, those that its own can hold.

    Args:
      gradient: keys of any shape, and values, keys.shape + [dim].
      params: the variable whose rows they are for.

    Raises:
      tfembed.errors.ArgumentError: no IndexedSlices, or values of a shape that
        cannot be right.
      tfembed.errors.DtypeError: keys of another dtype, or that do not fit.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        raise errors.ArgumentError(
            f"The gradient of '{params.name}' must be tf.IndexedSlices by key, as "
            f"`tape.gradient` gives; got {type(gradient).__name__}."
        )
    keys = _key_tensor(gradient.indices, params)
    values = tf.convert_to_tensor(gradient.values)
    if not _may_fit(keys, values, params.dim):
        wanted = keys.shape.concatenate([params.dim])
        raise errors.ArgumentError(
            f"The gradient of '{params.name}' must have values of shape "
            f"{wanted}, one row of width {params.dim} for each of its keys of "
            f"shape {keys.shape}; got values of shape {values.shape}."
        )
    if keys is not gradient.indices or values is not gradient.values:
        gradient = tf.IndexedSlices(values, keys, gradient.dense_shape)
    return gradient, params


def checks_at_run_time(gradients: Sequence[TableGradient]) -> list[Any]:
    """What must run before the update, where a function or graph is made.

    They fail with tf.errors.InvalidArgumentError where `table_gradient` raises.

    Args:
      gradients: from `table_gradient`.
    """
    checks = []
    for slices, params in gradients if not tf.executing_eagerly() else []:
        checks += _shape_checks(slices, params)
        if _may_be_wider(slices.indices, params):
            checks.append(
                tf.debugging.Assert(
                    tf.reduce_all(_fit_int32(slices.indices)),
                    [_no_int32(params)],
                )
            )
    return [check for check in checks if check is not None]


def _key_tensor(keys: Any, params: Variable) -> tf.Tensor:
    if not tf.is_tensor(keys) or {keys.dtype, params.key_dtype} != {
        tf.int32,
        tf.int64,
    }:
        return arguments.key_tensor(keys, params, errors.DtypeError)
    if keys.dtype == tf.int64:
        known = tf.get_static_value(keys)
        if known is not None and not _fit_int32(known).all():
            raise errors.DtypeError(_no_int32(params))
    return keys


def _may_fit(keys: tf.Tensor, values: tf.Tensor, dim: int) -> bool:
    """Whether the static shapes let `values` be keys.shape + [dim]."""
    if tf.executing_eagerly():
        # Lists compare in a fraction of the time that TensorShapes take.
        wanted = [*keys.shape.as_list(), dim]
        return bool(values.shape.as_list() == wanted)
    shape = keys.shape.concatenate([dim])
    return bool(values.shape.is_compatible_with(shape))


def _may_be_wider(keys: tf.Tensor, params: Variable) -> bool:
    """Whether only a run says that keys are right."""
    is_wide = keys.dtype == tf.int64 and params.key_dtype == tf.int32
    return is_wide and tf.get_static_value(keys) is None


def _fit_int32(keys: Any) -> Any:
    return (keys >= tf.int32.min) & (keys <= tf.int32.max)


def _no_int32(params: Variable) -> str:
    return (
        f"Keys of table '{params.name}' must be int32; its gradient has int64 "
        "keys that do not fit."
    )


def _shape_checks(slices: tf.IndexedSlices, params: Variable) -> list[Any]:
    keys, values = slices.indices, slices.values
    if keys.shape.is_fully_defined() and values.shape.is_fully_defined():
        return []
    text = (
        f"The gradient of '{params.name}' must have values of shape keys.shape "
        f"+ [{params.dim}]"
    )
    checks = []
    if keys.shape.rank is None or values.shape.rank is None:
        # Shapes of other ranks would be broadcast.
        checks.append(
            tf.debugging.assert_equal(tf.rank(values), tf.rank(keys) + 1, text)
        )
    with tf.control_dependencies(checks):
        wanted = tf.concat([tf.shape(keys), [params.dim]], 0)
        found = tf.shape(values)
        return [*checks, tf.debugging.assert_equal(found, wanted, text)]
