"""Initial rows that a Python function draws by key, from a seed of each key."""

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
    """Whether an initializer is a function, or a callable object, for `SeededRows`.

    It takes a `seed` that is not bound yet, and has no known form without one.
    Classes and initializers of Keras and TensorFlow take none when they are
    called.
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
    except Exception:  # Whatever the function says without a seed.
        return True
    return False


class SeededRows:
    """The initial rows of a table whose initializer has no form of its own.

    The function is called for one key at a time, as `function((1, dim),
    dtype=..., seed=...)`, with `dtype` where it takes one. `seed` is what
    TensorFlow's stateless random functions take: int64 [2], the table's seed and
    the key (of a string its fingerprint). It is traced once, and takes some 20
    microseconds a key.

    Args:
      function: a function for which `draws_by_seed` is true.
      dim: width of a row.
      dtype: the dtype of the table's values.
      table: the table's name.

    Raises:
      tfembed.errors.ArgumentError: it cannot be traced, gives no row, or another
        one when it is called again.

    Attributes:
      saved: the function of seeds [n, 2] that gives rows [n, dim], as a
        SavedModel keeps it.
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
            # Stateless random functions have no vectorized form. The function
            # is in there by itself: an error in tf.map_fn would leave the
            # thread's variable scope with a caching device.
            traced = _trace(
                lambda seeds: tf.map_fn(
                    one,
                    seeds,
                    fn_output_signature=tf.TensorSpec([dim], dtype),
                ),
                [None, 2],
            )
            self._rows = traced.get_concrete_function()
            # Variables and tables that it reads would have to be saved beside
            # it, and nobody knows them here.
            captures = self._rows.captured_inputs
            reads = any(tensor.dtype == tf.resource for tensor in captures)
            self.saved = _refusing(dim, dtype, table) if reads else traced

    @classmethod
    def from_saved(cls, saved: Callable[..., Any]) -> SeededRows:
        """The rows of a table from a SavedModel, by its `saved`."""
        rows = cls.__new__(cls)
        rows.saved = rows._rows = saved
        return rows

    def of_keys(self, keys: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """The rows of `keys` [n], [n, dim], in a table of that seed, int64 []."""
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
    """Stands in a SavedModel for a function that cannot be saved."""

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
    """Rows of one seed, of two calls, each run twice.

    In a graph of TensorFlow 1 none, where `traced` needs more of that graph than
    its seed: it has no values before a session runs.
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
    """The parameter that may be given by that name; None: there is none."""
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
