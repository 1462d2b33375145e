"""Initial rows that a Python function draws from a seed for each key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.initializers import KNOWN_FORMS, row_initializer

__all__ = ["SeededRows", "draws_by_seed"]

_MOST_FINGERPRINTS = 2**63 - 1


def draws_by_seed(initializer: Any, dim: int) -> bool:
    """Says whether an initializer is a function or callable for `SeededRows`.

    Such a function has a `seed` parameter that is not bound, and no known form.
    Classes, and initializers of Keras and TensorFlow, have no such parameter in
    their calls.
    """
    if (
        not callable(initializer)
        or isinstance(initializer, type)
        or tf.is_tensor(initializer)
        or _binds_seed(initializer)
    ):
        return False
    seed = _parameter(initializer, "seed")
    if seed is None:
        return False
    if seed.default is seed.empty:
        return True
    try:
        row_initializer(initializer, dim)
    except Exception:  # Any error of the function without a seed.
        return True
    return False


class SeededRows:
    """The initial rows of a table whose initializer is a function with a seed.

    The function is called for one key at a time, as `function((1, dim),
    dtype=..., seed=...)`, without `dtype` if it has no such parameter. `seed`
    is what TensorFlow's stateless random functions take: int64 [2], the table's
    seed and the key (the fingerprint of a string key). The function is traced
    once; a call takes about 20 microseconds per key.

    Args:
      function: a function for which `draws_by_seed` is true.
      dim: width of a row.
      dtype: the dtype of the table's values.
      table: the table's name.

    Raises:
      tfembed.errors.ArgumentError: the function cannot be traced, does not
        return a row, or returns another row for the same seed.

    Attributes:
      saved: the traced function from seeds [n, 2] to rows [n, dim], for
        SavedModels.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dim: int,
        dtype: tf.DType,
        table: str,
    ) -> None:
        options = {}
        if _parameter(function, "dtype") is not None:
            options["dtype"] = dtype if dtype.is_floating else tf.float32

        def draw(seed: tf.Tensor) -> tf.Tensor:
            row = function((1, dim), seed=seed, **options)
            row = tf.reshape(tf.convert_to_tensor(row), [dim])
            return tf.cast(row, dtype)

        with tf.init_scope():
            try:
                one = _trace(draw, [2]).get_concrete_function()
                rows = _draw_repeatedly(draw, one)
            except Exception as error:
                raise errors.ArgumentError(
                    f"The initializer {function!r} of table '{table}' must give "
                    f"a row when it is called with the shape (1, {dim}) and a "
                    f"`seed` of int64 [2]; it raised {type(error).__name__}: "
                    f"{error} Known forms: {KNOWN_FORMS}."
                ) from error
            if not all(
                np.array_equal(rows[0], row, equal_nan=True) for row in rows
            ):
                raise errors.ArgumentError(
                    f"The initializer {function!r} of table '{table}' must draw "
                    "by its `seed` alone, as tf.random.stateless_normal does; "
                    f"called again with one seed it gave {rows}."
                )
            # tf.vectorized_map does not support stateless random functions. The
            # function is traced on its own: an error inside of tf.map_fn would
            # leave the thread's variable scope with a caching device.
            traced = _trace(
                lambda seeds: tf.map_fn(
                    one,
                    seeds,
                    fn_output_signature=tf.TensorSpec([dim], dtype),
                ),
                [None, 2],
            )
            self._rows = traced.get_concrete_function()
            # Variables and tables that the function reads would have to be
            # saved too, but they are not known here.
            captures = self._rows.captured_inputs
            reads = any(tensor.dtype == tf.resource for tensor in captures)
            self.saved = _refusing(dim, dtype, table) if reads else traced

    @classmethod
    def from_saved(cls, saved: Callable[..., Any]) -> SeededRows:
        """Makes the rows of a SavedModel's table from its function `saved`."""
        rows = cls.__new__(cls)
        rows.saved = rows._rows = saved
        return rows

    def of_keys(self, keys: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws rows [n, dim] of `keys` [n] for a table's seed, int64 []."""
        if keys.dtype == tf.string:
            keys = tf.strings.to_hash_bucket_fast(keys, _MOST_FINGERPRINTS)
        distinct, positions = tf.unique(tf.cast(keys, tf.int64))
        seeds = tf.fill(tf.shape(distinct), seed)
        rows = self._rows(tf.stack([seeds, distinct], 1))
        return tf.gather(rows, positions)


def _trace(function: Callable[..., Any], shape: list[int | None]) -> Any:
    return tf.function(
        function,
        input_signature=[tf.TensorSpec(shape, tf.int64)],
        autograph=False,
    )


def _refusing(dim: int, dtype: tf.DType, table: str) -> Any:
    """Makes a function that raises, saved in place of one that cannot be."""

    def refuse(seeds: tf.Tensor) -> tf.Tensor:
        refused = tf.debugging.Assert(
            tf.equal(tf.size(seeds), 0),
            [
                f"The initial rows of table '{table}' are drawn by a function "
                "that reads variables or tables; a SavedModel keeps them in its "
                "functions alone, not for lookups in the table itself."
            ],
        )
        with tf.control_dependencies([refused]):
            return tf.zeros([tf.shape(seeds)[0], dim], dtype)

    return _trace(refuse, [None, 2])


def _draw_repeatedly(
    draw: Callable[[tf.Tensor], tf.Tensor], traced: Any
) -> list[Any]:
    """Draws rows of one seed by two calls, each run twice.

    Returns no rows in a graph of TensorFlow 1 if `traced` uses other tensors of
    that graph: they have no values before a session runs.
    """

    def rows() -> tf.Tensor:
        seed = tf.constant([1, 2], tf.int64)
        return tf.stack([draw(seed), draw(seed)])

    if tf.executing_eagerly():
        both = tf.function(rows, autograph=False).get_concrete_function()
        runs = [both().numpy() for _ in range(2)]
    elif traced.captured_inputs:
        return []
    else:
        with tf.Graph().as_default() as graph:
            both = rows()
            with tf.compat.v1.Session(graph=graph) as session:
                runs = [session.run(both) for _ in range(2)]
    return [row for run in runs for row in run]


def _binds_seed(initializer: Any) -> bool:
    return (
        isinstance(initializer, functools.partial)
        and "seed" in initializer.keywords
    )


def _parameter(
    function: Callable[..., Any], name: str
) -> inspect.Parameter | None:
    """Returns the parameter that can be passed by that name, or None."""
    try:
        found = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return None
    if found is None or found.kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ):
        return None
    return found
