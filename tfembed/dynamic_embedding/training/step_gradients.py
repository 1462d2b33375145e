"""The gradients of a step: for tables and for dense variables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checks import run_shape
from tfembed.dynamic_embedding.lookups.gradient_source import (
    StandIn,
    WatchedTable,
    no_slices,
)
from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.table_gradients import TableGradient
from tfembed.ops.private import converted

__all__ = [
    "check_counter",
    "check_finite",
    "checks_at_run_time",
    "is_of_a_table",
    "listed",
    "loss_gradients",
    "sort_gradients",
    "source_of",
    "table_gradient",
    "table_or_self",
    "variable_of",
    "warn_without_gradients",
]


def table_gradient(gradient: Any, params: Variable) -> TableGradient:
    """Converts a table's gradient to tensors of keys and values, checked.

    int32 keys are int64 internally, and tapes return them so. Hence a table
    takes gradients with keys of both dtypes, if its key dtype can hold them.

    Args:
      gradient: keys of any shape, and values, keys.shape + [dim].
      params: the variable that the gradient is for.

    Raises:
      tfembed.errors.ArgumentError: not IndexedSlices, or values whose static
        shape does not fit.
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
    """Makes the checks that run before the update, in functions and graphs.

    The checks fail with tf.errors.InvalidArgumentError where `table_gradient`
    raises.

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
    if isinstance(keys, tf.Tensor) and keys.dtype == params.key_dtype:
        return keys
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
    """Says whether static shapes allow `values` to be keys.shape + [dim]."""
    if tf.executing_eagerly():
        # Lists compare in a fraction of the time that TensorShapes take.
        wanted = [*keys.shape.as_list(), dim]
        return bool(values.shape.as_list() == wanted)
    shape = keys.shape.concatenate([dim])
    return bool(values.shape.is_compatible_with(shape))


def _may_be_wider(keys: tf.Tensor, params: Variable) -> bool:
    """Says whether keys can only be checked at run time."""
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
    return run_shape(values, tf.concat([tf.shape(keys), [params.dim]], 0), text)


_OF_TABLES = (Variable, TrainableWrapper)


def sort_gradients(
    grads_and_vars: Iterable[tuple[Any, Any]],
    *,
    lists_all_dense: bool,
    compares_values: bool,
) -> tuple[list[TableGradient], list[tuple[Any, Any]]]:
    """Splits gradients into those of tables and those of dense variables.

    A table may come several times, with gradients of several batches or
    lookups: all of them are applied. Variables without a gradient are left out,
    with a warning.

    Args:
      grads_and_vars: pairs of a gradient, or None, and its variable.
      lists_all_dense, compares_values: see `DirectSteps`.

    Raises:
      tfembed.errors.ArgumentError: no gradient, a gradient that would (in a
        graph: might) be applied twice, or as `table_gradient`.
      tfembed.errors.DtypeError: as `table_gradient`.
    """
    given = _with_tables(grads_and_vars)
    pairs = _once_for_each_name(
        [(_with_slices(g, v), v) for g, v in given if g is not None]
    )
    if not pairs:
        raise errors.ArgumentError(
            "No variable has a gradient. Look rows up, and compute the loss, "
            "inside the tape; in a graph of TensorFlow 1, give the variables "
            "that the loss uses."
        )
    warn_without_gradients(
        [
            v
            for g, v in given
            if g is None and (is_of_a_table(v) or not lists_all_dense)
        ]
    )
    sparse, dense = [], []
    for gradient, variable in pairs:
        if is_of_a_table(variable):
            sparse.append(table_gradient(gradient, variable_of(variable)))
        else:
            dense.append((gradient, variable))
    _check_once([(g, v) for g, v in pairs if is_of_a_table(v)], compares_values)
    return sparse, dense


def loss_gradients(
    loss: Any,
    variables: Callable[[], list[Any] | None],
    *,
    tape: tf.GradientTape | None,
    grad_loss: Any,
    loss_scale: float | None,
) -> tuple[tf.Tensor, list[tuple[Any, Any]]]:
    """Returns a loss, and pairs of its gradient and a variable, by a tape.

    Args:
      loss, tape, grad_loss: as for `DynamicEmbeddingOptimizer.minimize`.
      variables: a function that returns the variables, called after `loss`;
        None: the variables that the tape has watched.
      loss_scale: a factor for the loss, by which the update divides the
        gradients; None: 1.

    Raises:
      tfembed.errors.ArgumentError: `loss` is not a function and there is no
        tape.
    """
    if callable(loss):
        with tape or tf.GradientTape() as tape:
            value = converted(loss)()
    elif tape is None:
        raise errors.ArgumentError(
            "`loss` must be a function where no `tape` is given; got "
            f"{type(loss).__name__}."
        )
    else:
        value = loss
    chosen = variables()
    if chosen is None:
        chosen = _used_variables(tape)
    if loss_scale:
        ones = tf.ones_like(value) if grad_loss is None else grad_loss
        grad_loss = tf.convert_to_tensor(ones) * loss_scale
    gradients = tape.gradient(value, chosen, output_gradients=grad_loss)
    return value, list(zip(gradients, chosen, strict=True))


def is_of_a_table(variable: Any) -> bool:
    """Says whether a source is a `Variable` or a wrapper or shadow of one."""
    return isinstance(variable, _OF_TABLES)


def table_or_self(variable: Any) -> Any:
    """Returns the table or shadow that a variable represents, else itself."""
    variable = source_of(variable)
    params = getattr(variable, "params", None)
    is_weight = isinstance(params, Variable) and not is_of_a_table(variable)
    return params if is_weight else variable


def variable_of(variable: Variable | TrainableWrapper) -> Variable:
    """Returns the variable that has the rows."""
    return variable if isinstance(variable, Variable) else variable.params


def warn_without_gradients(variables: Sequence[Any]) -> None:
    """Warns of variables that a step does not update, as Keras does.

    In eager mode each call warns, in a function only the trace. Python prints
    equal warnings once.

    Args:
      variables: tables, their wrappers and shadows, and dense variables.
    """
    names = list(dict.fromkeys(_name_of(v) for v in variables))
    if names:
        warnings.warn(
            f"Gradients do not exist for variables {names} when minimizing the "
            "loss: the step leaves them as they are. Does the loss use what was "
            "looked up, and was it looked up inside the tape? Keras finds no "
            "gradient of a layer that a `call` under @tf.function has built: "
            "leave the decorator out (`fit` makes a function of its own), or "
            "build the layer before.",
            stacklevel=2,
        )


def source_of(variable: Any) -> Any:
    """Returns the source of a `StandIn` or `WatchedTable`, else the object."""
    if isinstance(variable, WatchedTable):
        return variable.params
    return variable.source if isinstance(variable, StandIn) else variable


def check_counter(global_step: Any) -> None:
    """Raises DtypeError unless `global_step` is None or can count steps."""
    counts = hasattr(global_step, "assign_add")
    if global_step is not None and (not counts or is_of_a_table(global_step)):
        raise errors.DtypeError(
            "`global_step` must be a variable that counts steps, or None; got "
            f"{global_step!r}. Variables to train go into `var_list`, in a list."
        )


def check_finite(gradient: Any) -> tf.Tensor:
    """Refuses a dense variable's gradient that is not finite."""
    values = (
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    )
    return tf.debugging.check_numerics(
        values,
        "A dense variable's gradient is not finite, and nonfinite='refuse'",
    )


def _name_of(variable: Any) -> str:
    """Returns a variable's name; a wrapper's with the table's name."""
    if isinstance(variable, TrainableWrapper):
        return f"{variable.name} of table {variable.params.name}"
    # Weights of Keras have a path, tf.Variables do not.
    return str(getattr(variable, "path", variable.name))


def _with_tables(
    grads_and_vars: Iterable[tuple[Any, Any]],
) -> list[tuple[Any, Any]]:
    """Replaces Keras' weights of tables in the pairs by the tables.

    A weight that a layer did not make is left out if its table is given too.
    """
    pairs = [
        (g, table_or_self(v), getattr(v, "is_implied", False))
        for g, v in grads_and_vars
    ]
    given = {
        id(variable_of(v))
        for _, v, is_implied in pairs
        if is_of_a_table(v) and not is_implied
    }
    return [
        (g, v)
        for g, v, is_implied in pairs
        if not is_implied or id(v) not in given
    ]


def _with_slices(gradient: Any, variable: Any) -> Any:
    """Returns a table's gradient; dense zeros become empty slices."""
    is_tensor = is_of_a_table(variable) and isinstance(gradient, tf.Tensor)
    if is_tensor and gradient.shape == [0, variable.dim]:
        return no_slices(variable)
    return gradient


def listed(var_list: Any) -> list[Any] | None:
    """Lists the variables of a structure, or of a function that gives one.

    None stays None.
    """
    if callable(var_list):
        var_list = var_list()
    if var_list is None:
        return None
    if isinstance(var_list, (Iterator, Set)):  # tf.nest treats these as leaves.
        var_list = list(var_list)
    return list(tf.nest.flatten(var_list))


def _used_variables(tape: tf.GradientTape) -> list[Any]:
    """Returns trainable variables and tables that a tape has watched."""
    watched = [source_of(v) for v in tape.watched_variables()]
    # A table that is watched explicitly and looked up is listed twice.
    used = {id(v): v for v in watched if v.trainable}
    tables = {id(v) for v in used.values() if isinstance(v, Variable)}
    return [
        v
        for v in used.values()
        if not (isinstance(v, TrainableWrapper) and id(v.params) in tables)
    ]


def _once_for_each_name(
    pairs: list[tuple[Any, Any]],
) -> list[tuple[Any, Any]]:
    """Removes repeated pairs of a wrapper and its gradient.

    Several lookups of one name in a step return the same wrapper, whose
    gradient is that of all of them; programs list it once for each lookup.
    """
    seen: dict[TrainableWrapper, list[Any]] = {}
    kept = []
    for gradient, variable in pairs:
        if type(variable) is TrainableWrapper:
            others = seen.setdefault(variable, [])
            if any(_is_the_same(gradient, other) for other in others):
                continue
            others.append(gradient)
        kept.append((gradient, variable))
    return kept


def _is_the_same(gradient: Any, other: Any) -> bool:
    """Says whether two gradients are copies of one, even if clipped."""
    if gradient is other:
        return True
    if not (
        isinstance(gradient, tf.IndexedSlices)
        and isinstance(other, tf.IndexedSlices)
    ):
        return False
    one, two = gradient.values, other.values
    if one is two:
        return True
    # Each call of a tape makes new indices.
    return (
        gradient.indices is other.indices
        and tf.executing_eagerly()
        and one.shape == two.shape
        and one.dtype == two.dtype
        and bool(tf.reduce_all(tf.equal(one, two)))
    )


def _check_once(pairs: list[tuple[Any, Any]], compares_values: bool) -> None:
    """Refuses a gradient that is listed twice, under one name or two."""
    seen: dict[tuple[int, int], str] = {}
    kinds: dict[tuple[int, bool], str] = {}
    for gradient, variable in pairs:
        params = variable_of(variable)
        keys = [(id(params), id(gradient.values))]
        if not compares_values and variable is not params:
            # Two clipped copies of a gradient still share their indices.
            keys.append((id(variable), id(gradient.indices)))
        for key in keys:
            if key in seen:
                raise errors.ArgumentError(
                    f"The gradient of '{params.name}' comes twice, for "
                    f"'{seen[key]}' and '{variable.name}', and would count "
                    "twice. Give it once."
                )
            seen[key] = variable.name
        is_all = variable is params
        kinds.setdefault((id(params), is_all), variable.name)
        other = kinds.get((id(params), not is_all))
        if other is not None:
            raise errors.ArgumentError(
                f"The gradients of '{params.name}' come twice: the variable's "
                "is that of all lookups, those through "
                f"'{variable.name if not is_all else other}' too. Give the "
                "variable, or what its lookups went through."
            )
