"""Initial rows that a Python function draws by key, from a seed of each key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["SeededRows"]

_MOST_FINGERPRINTS = 2**63 - 1


class SeededRows:
    """The initial rows of a table whose initializer has no form of its own.

    The function is called for one key at a time, as `function((1, dim),
    dtype=..., seed=...)`, with `dtype` where it takes one. `seed` is what
    TensorFlow's stateless random functions take: int64 [2], the table's seed and
    the key (of a string its fingerprint). It is traced once, and takes some 20
    microseconds a key.

    Args:
      function: takes an argument `seed`.
      dim: width of a row.
      dtype: of the table's values.
      table: the table's name.

    Raises:
      tfembed.errors.ArgumentError: it cannot be traced, or gives no row.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dim: int,
        dtype: tf.DType,
        table: str,
    ) -> None:
        self._function = function
        self._dim = dim
        self._dtype = dtype
        self._takes_dtype = _has_parameter(function, "dtype")
        self._row = tf.function(
            self._of_seed,
            input_signature=[tf.TensorSpec([2], tf.int64)],
            autograph=False,
        )
        self._rows = tf.function(
            self._of_seeds,
            input_signature=[tf.TensorSpec([None, 2], tf.int64)],
            autograph=False,
        )
        try:
            with tf.init_scope():
                # By itself: an error in tf.map_fn would leave the thread's
                # variable scope with a caching device.
                self._row.get_concrete_function()
        except Exception as error:
            raise errors.ArgumentError(
                f"The initializer {function!r} of table '{table}' must give a "
                f"row when it is called with the shape (1, {dim}) and a `seed` "
                f"of int64 [2]; it raised {type(error).__name__}: {error}"
            ) from error

    @staticmethod
    def fits(initializer: Any) -> bool:
        """Whether it is a function, or an object that is called, with a seed.

        Classes and initializers of Keras and TensorFlow take none when they are
        called.
        """
        return (
            callable(initializer)
            and not isinstance(initializer, type)
            and not tf.is_tensor(initializer)
            and _has_parameter(initializer, "seed")
        )

    def of_keys(self, keys: tf.Tensor, seed: int) -> tf.Tensor:
        """The rows of `keys` [n], [n, dim], in a table of that seed."""
        if keys.dtype == tf.string:
            keys = tf.strings.to_hash_bucket_fast(keys, _MOST_FINGERPRINTS)
        keys = tf.cast(keys, tf.int64)
        rows: tf.Tensor = self._rows(
            tf.stack(
                [tf.fill(tf.shape(keys), tf.constant(seed, tf.int64)), keys], 1
            )
        )
        return rows

    def _of_seeds(self, seeds: tf.Tensor) -> tf.Tensor:
        # Stateless random functions have no vectorized form.
        return tf.map_fn(
            self._row,
            seeds,
            fn_output_signature=tf.TensorSpec([self._dim], self._dtype),
        )

    def _of_seed(self, seed: tf.Tensor) -> tf.Tensor:
        options: dict[str, Any] = {"seed": seed}
        if self._takes_dtype:
            is_floating = self._dtype.is_floating
            options["dtype"] = self._dtype if is_floating else tf.float32
        row = tf.convert_to_tensor(self._function((1, self._dim), **options))
        return tf.cast(tf.reshape(row, [self._dim]), self._dtype)


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters and parameters[name].kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
