"""Initial rows of hash tables, drawn by key.

A missing key has an initial row, which the table computes from its seed, the
key and the column (`cc/core/rows/initial_rows.h`). So an initializer of a hash
table is a description, a `RowInitializer`; this file translates the
initializers of TensorFlow and Keras. `RowIdInitializer` is for tables with a
vocabulary.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks, errors

__all__ = [
    "KNOWN_FORMS",
    "RowIdInitializer",
    "RowInitializer",
    "by_name",
    "known_fan_in",
    "row_initializer",
    "table_initializer",
]

# The correction of TensorFlow and Keras for the variance that truncation at
# two standard deviations removes.
_TRUNCATED_STDDEV = 0.87962566103423978

KNOWN_FORMS = (
    "None, a number, an array of length `dim` or 1, a function of no argument, "
    "(shape) or (shape, dtype) that returns a constant, a `RowInitializer`, or one "
    "of Keras' or TensorFlow's Zeros, Ones, Constant, RandomUniform, "
    "RandomNormal, TruncatedNormal, VarianceScaling, Glorot*, He*, Lecun* "
    "initializers; for a `dynamic_embedding.Variable` also a function "
    "(shape, dtype, seed) that draws by the seed alone"
)

_NUM_ARGUMENTS = {
    "constant": 1,
    "uniform": 2,
    "normal": 2,
    "truncated_normal": 2,
}


@dataclasses.dataclass(frozen=True)
class RowInitializer:
    """Describes the initial row of a missing key.

    kind                arguments       a column of the row
    "constant"          (value,)        value
    "vector"            dim values      the column's value
    "uniform"           (low, high)     in [low, high)
    "normal"            (mean, stddev)
    "truncated_normal"  (mean, stddev)  redrawn outside 2 stddev of the mean

    Attributes:
      kind: one of the kinds above.
      arguments: the finite arguments of the kind.
      seed: the table's seed; None: the table chooses one.

    Raises:
      tfembed.errors.ArgumentError: the kind is unknown, or there are too few
        or too many arguments, or they are not finite or out of order.
    """

    kind: str
    arguments: tuple[float, ...]
    seed: int | None = None

    def __post_init__(self) -> None:
        wanted = _NUM_ARGUMENTS.get(self.kind, len(self.arguments))
        if self.kind not in (*_NUM_ARGUMENTS, "vector"):
            raise errors.ArgumentError(
                f"`kind` of a RowInitializer is {self.kind!r}; it must be one "
                f"of {sorted([*_NUM_ARGUMENTS, 'vector'])}."
            )
        if len(self.arguments) != wanted or not self.arguments:
            raise errors.ArgumentError(
                f"A {self.kind!r} RowInitializer takes {wanted or 'some'} "
                f"arguments; got {self.arguments}."
            )
        if not all(math.isfinite(x) for x in self.arguments):
            raise errors.ArgumentError(
                f"Arguments of a RowInitializer must be finite; got "
                f"{self.kind} {self.arguments}."
            )
        if self.kind == "uniform" and self.arguments[0] > self.arguments[1]:
            raise errors.ArgumentError(
                f"A uniform initializer needs low <= high; got "
                f"{self.arguments[0]} and {self.arguments[1]}."
            )
        if self.kind.endswith("normal") and self.arguments[1] < 0:
            raise errors.ArgumentError(
                f"A {self.kind} initializer needs stddev >= 0; got "
                f"{self.arguments[1]}."
            )


@dataclasses.dataclass(frozen=True)
class RowIdInitializer:
    """Fills row i of a table with a vocabulary with the number i + offset.

    Like `tf.tpu.experimental.embedding.RowIdInitializer`, which tables accept
    too.

    Attributes:
      offset: the number in row 0.
    """

    offset: int = 0

    def __call__(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        """Returns rows of `shape` [vocabulary_size, dim]."""
        rows = tf.range(self.offset, self.offset + shape[0])
        return tf.broadcast_to(tf.cast(rows, dtype)[:, tf.newaxis], shape)


# Errors of converting a value to numbers; the last is for tensors that depend
# on a placeholder.
_NOT_NUMBERS = (
    TypeError,
    ValueError,
    OverflowError,
    NotImplementedError,
    tf.errors.OpError,
)


def row_initializer(
    initializer: Any, dim: int, fan_in: int | None = None
) -> RowInitializer:
    """Translates an initializer of TensorFlow or Keras into a `RowInitializer`.

    VarianceScaling and its subclasses (Glorot, He, Lecun) draw as for a matrix
    of shape [fan_in, dim], as Keras does for all rows of an embedding.

    Args:
      initializer: None (zeros), a number, a sequence, array or tensor with 1 or
        `dim` elements, an initializer of Keras 3, `tf_keras`, `tf.initializers`
        or `tf.compat.v1` (an instance, a class or a Keras name such as
        "glorot_uniform"), a function that returns a constant, or a
        `RowInitializer`.
      dim: the width of a row.
      fan_in: the number of rows; None: not known, so a row counts as a matrix
        of one row, as TensorFlow Recommenders Addons has it for a lookup of
        one key.

    Returns:
      The description. Its `seed` is that of the initializer, if it is an
      integer.

    Raises:
      tfembed.errors.ArgumentError: the value has another form, or a wrong
        number of elements; the text lists the known forms.
    """
    if isinstance(initializer, RowInitializer):
        if initializer.kind == "vector":
            return _from_array(initializer.arguments, dim)
        return initializer
    if initializer is None:
        return RowInitializer("constant", (0.0,))
    if isinstance(initializer, str):
        initializer = by_name(initializer)
    if isinstance(initializer, type):
        initializer = initializer()
    if _is_library_class(type(initializer)):
        return _from_library(initializer, dim, fan_in or 1)
    if callable(initializer) and not tf.is_tensor(initializer):
        return _from_function(initializer, dim)
    return _from_array(initializer, dim)


def known_fan_in(fan_in: int | None, *sizes: int | None) -> int | None:
    """Returns `fan_in`, or else the first known size of a table, or None.

    Raises:
      tfembed.errors.ArgumentError: `fan_in` is no integer above 0.
    """
    if fan_in is not None:
        return checks.integer(fan_in, "fan_in", least=1)
    return next((size for size in sizes if size), None)


def table_initializer(
    initializer: Any, dim: int, fan_in: int | None, table: str
) -> RowInitializer:
    """Translates the initializer of a table that is being made.

    It warns if the rows' scale depends on a number of rows that is not known.

    Args:
      initializer, dim, fan_in: as for `row_initializer`.
      table: the table's name.

    Raises:
      tfembed.errors.ArgumentError: as `row_initializer`.
    """
    described = row_initializer(initializer, dim, fan_in)
    if fan_in is None and described != row_initializer(initializer, dim, 2):
        name = initializer
        if not isinstance(name, str):
            kind = name if isinstance(name, type) else type(name)
            name = kind.__name__
        warnings.warn(
            f"{name} scales the initial rows of table '{table}' by fan_in=1, "
            "since the table's size is not known: keras.layers.Embedding has "
            "its `input_dim` there, and draws smaller rows. Give `fan_in`, "
            "about the number of ids to come, or `max_size`; or an initializer "
            "that has its scale, as RandomNormal(stddev=0.05).",
            stacklevel=3,
        )
    return described


def _from_array(value: Any, dim: int) -> RowInitializer:
    try:
        array = _array(value).ravel()
    except errors.ArgumentError:
        raise
    except _NOT_NUMBERS:
        raise _unknown_form(value) from None
    if array.size not in (1, dim):
        raise errors.ArgumentError(
            f"An initializer with {array.size} elements does not fit rows of "
            f"width {dim}; give 1 or {dim} elements."
        )
    numbers = tuple(float(x) for x in array) or (0.0,)  # Any value for width 0.
    # With dim 1, "constant" and "vector" are the same row.
    return RowInitializer(
        "constant" if len(numbers) == 1 else "vector", numbers
    )


def by_name(name: str, library: Any = None) -> Any:
    """Makes a Keras initializer by its name: "uniform", "GlorotUniform", ...

    Args:
      name: the name.
      library: the `initializers` of a Keras; None: those of tf.keras.

    Raises:
      tfembed.errors.ArgumentError: no initializer has that name, or the
        initializer of that name takes arguments.
    """
    try:
        found = (library or tf.keras.initializers).get(name)
    except ValueError:
        found = None
    except (KeyError, TypeError):
        raise errors.ArgumentError(
            f"Initializer {name!r} takes arguments, which a name does not say. "
            "Give an instance, such as keras.initializers.Constant(0.1)."
        ) from None
    if found is None or not name:
        raise errors.ArgumentError(
            f"No initializer is called {name!r}. Keras has 'zeros', 'ones', "
            "'uniform', 'normal', 'truncated_normal', 'glorot_uniform', "
            "'he_normal' and others. Known forms: "
            f"{KNOWN_FORMS}."
        )
    return found() if isinstance(found, type) else found


def _is_library_class(cls: type) -> bool:
    """Says whether a class is an initializer of TensorFlow or Keras itself.

    A user's subclass may compute other rows, so the result is False for it.
    """
    root = cls.__module__.partition(".")[0]
    is_library = root in ("keras", "tf_keras", "tensorflow")
    return is_library and "init" in cls.__module__


def _from_library(initializer: Any, dim: int, fan_in: int) -> RowInitializer:
    names = [cls.__name__ for cls in type(initializer).__mro__]
    kinds = [_TRANSLATIONS[name] for name in names if name in _TRANSLATIONS]
    if not kinds:
        raise _unknown_form(initializer)
    described = kinds[0](initializer, dim, fan_in)
    seed = getattr(
        initializer, "_init_seed", getattr(initializer, "seed", None)
    )
    if (number := checks.whole(seed)) is not None:
        described = dataclasses.replace(described, seed=number)
    return described


def _uniform(initializer: Any, dim: int, fan_in: int) -> RowInitializer:
    del dim, fan_in
    high = initializer.maxval
    bounds = (float(initializer.minval), 1.0 if high is None else float(high))
    return RowInitializer("uniform", bounds)


def _variance_scaling(
    initializer: Any, dim: int, fan_in: int
) -> RowInitializer:
    # limit = sqrt(3 scale / fan) for uniform, stddev = sqrt(scale / fan) else.
    fan = {"fan_in": fan_in, "fan_out": dim, "fan_avg": (fan_in + dim) / 2}
    variance = initializer.scale / max(1.0, fan[initializer.mode])
    distribution = initializer.distribution
    if distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return RowInitializer("uniform", (-limit, limit))
    if distribution == "untruncated_normal":
        return RowInitializer("normal", (0.0, math.sqrt(variance)))
    stddev = math.sqrt(variance) / _TRUNCATED_STDDEV
    return RowInitializer("truncated_normal", (0.0, stddev))


# (initializer, dim, fan_in) -> the description.
_Translate = Callable[[Any, int, int], RowInitializer]


def _normal(kind: str) -> _Translate:
    def translate(initializer: Any, dim: int, fan_in: int) -> RowInitializer:
        del dim, fan_in
        numbers = (float(initializer.mean), float(initializer.stddev))
        return RowInitializer(kind, numbers)

    return translate


def _constant(value: float) -> _Translate:
    return lambda *_: RowInitializer("constant", (value,))


# By class name: Keras 3, tf_keras, tf.initializers and tf.compat.v1 share
# names and attributes, and need not be imported.
_TRANSLATIONS: dict[str, _Translate] = {
    "Zeros": _constant(0.0),
    "Ones": _constant(1.0),
    "Constant": lambda given, dim, _: _from_array(given.value, dim),
    "RandomUniform": _uniform,
    "RandomNormal": _normal("normal"),
    "TruncatedNormal": _normal("truncated_normal"),
    "VarianceScaling": _variance_scaling,
}


def _from_function(function: Callable[..., Any], dim: int) -> RowInitializer:
    """Translates a function that returns one row for all keys and calls."""
    if _takes_no_argument(function):
        draws = [_numbers(function, function()) for _ in range(2)]
        if np.array_equal(draws[0], draws[1]):
            return _from_array(draws[0], dim)
        raise _unknown_form(function)
    try:
        values = [_numbers(function, _rows(function, dim)) for _ in range(2)]
        draws = [np.broadcast_to(value, (2, dim)) for value in values]
    except (TypeError, ValueError):
        raise _unknown_form(function) from None
    row = draws[0][0]
    if any(not np.all(x == row) for x in draws):
        raise _unknown_form(function)
    return _from_array(row, dim)


def _rows(function: Callable[..., Any], dim: int) -> Any:
    try:
        return function((2, dim))
    except TypeError:
        return function((2, dim), tf.float32)


def _takes_no_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(
        x.default is x.empty and x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)
        for x in parameters
    ) and not any(x.name == "shape" for x in parameters)


def _numbers(function: Callable[..., Any], value: Any) -> np.ndarray[Any, Any]:
    try:
        return _array(value)
    except errors.ArgumentError:
        raise
    except _NOT_NUMBERS:
        raise _unknown_form(function) from None


def _array(value: Any) -> np.ndarray[Any, Any]:
    """Returns `value`, or the value of a graph's constant tensor, as an array.

    Raises:
      tfembed.errors.ArgumentError: integers that float64 cannot represent.
      An error of _NOT_NUMBERS: `value` has no numbers.
    """
    if tf.is_symbolic_tensor(value):
        value = _constant_of(value)
    given = np.asarray(value)
    if given.dtype.kind == "c":
        raise TypeError(f"{value!r} is complex.")
    numbers = given.astype(np.float64)
    # NumPy makes floats of a list of integers and floats.
    mixed = given.dtype.kind == "f" and isinstance(value, (list, tuple))
    if given.dtype.kind in "iuO" or mixed:
        exactly = np.asarray(value, object) if mixed else given
        for exact, rounded in zip(exactly.flat, numbers.flat, strict=True):
            if isinstance(exact, (int, np.integer)) and exact != int(rounded):
                raise errors.ArgumentError(
                    "An initializer's numbers are kept as float64, which holds "
                    f"integers up to 2**53 and some beyond; got {exact}, which "
                    f"would be {int(rounded)}. Use `upsert` for such rows."
                )
    return numbers


def _constant_of(tensor: tf.Tensor) -> Any:
    if (known := tf.get_static_value(tensor)) is not None:
        return known
    with tf.compat.v1.Session(graph=tensor.graph) as session:
        return session.run(tensor)


def _unknown_form(given: Any) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"{given!r} cannot be the initializer of a hash table, whose rows "
        f"depend on the key alone. Known forms: {KNOWN_FORMS}."
    )
