"""Initial rows by TensorFlow's ops: the twin of cc/core/rows/initial_rows.cc.

A row follows from the table's seed and the key alone, so a served id that was
never trained reads the row that it would have begun with, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfembed import errors
from tfembed.export.words import as_words, hash_bytes, mix, shift, word, xor

__all__ = ["KINDS", "InitialRows"]

# The kinds in the order of their numbers in files.
KINDS = ("constant", "vector", "uniform", "normal", "truncated_normal")

_STEP = 0x9E3779B97F4A7C15
_SALT = 0x6A09E667F3BCC909
# What is drawn again takes counters a whole number of this further on.
_REDRAW = 1 << 32
# A value is drawn again with a chance of 0.0455: 64 times, never.
_MOST_REDRAWS = 64

# Quotients of polynomials of AS 241 (Wichura 1988), constant terms first.
_MIDDLE = (
    (
        3.3871328727963666080e0,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ),
    (
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)
_TAIL = (
    (
        1.42343711074968357734e0,
        4.63033784615654529590e0,
        5.76949722146069140550e0,
        3.64784832476320460504e0,
        1.27045825245236838258e0,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187e0,
        1.67638483018380384940e0,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
_FAR_TAIL = (
    (
        6.65790464350110377720e0,
        5.46378491116411436990e0,
        1.78482653991729133580e0,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)


@dataclasses.dataclass(frozen=True)
class InitialRows:
    """The rows of missing keys.

    Attributes:
      kind: one of `KINDS`.
      arguments: the numbers of the kind.
      seed: the table's seed, of 64 bits.
      dim: the number of elements of a row.
      dtype: the dtype of the rows.

    Raises:
      tfembed.errors.UnsupportedError: rows of integers are drawn by chance.
    """

    kind: str
    arguments: Sequence[float]
    seed: int
    dim: int
    dtype: tf.DType

    def __post_init__(self) -> None:
        if self.is_drawn and not self.dtype.is_floating:
            raise errors.UnsupportedError(
                f"Initial rows '{self.kind}' of {self.dtype.name} have no form "
                "in TensorFlow's ops in this release; those of floats have."
            )

    @property
    def is_drawn(self) -> bool:
        """Says whether rows differ by their keys."""
        return self.kind not in ("constant", "vector")

    def of(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the rows [n, dim] of int64, int32 or string keys [n]."""
        # Rows of float64 and integers are drawn as float64, others as float32.
        is_wide = self.dtype == tf.float64 or not self.dtype.is_floating
        drawn = np.float64 if is_wide else np.float32
        numbers = np.asarray(self.arguments, drawn)
        if not self.is_drawn:
            row = tf.cast(tf.constant(numbers), self.dtype)
            return tf.broadcast_to(row, [tf.size(keys), self.dim])
        values = self._drawn(keys, numbers.astype(np.float64))
        narrow = tf.cast(values, tf.as_dtype(drawn))
        if self.kind == "uniform":
            high = drawn(numbers[1])
            below = np.nextafter(high, drawn(numbers[0]))
            narrow = tf.where(narrow < high, narrow, below)
        return tf.cast(narrow, self.dtype)

    def _drawn(self, keys: tf.Tensor, numbers: npt.NDArray[Any]) -> tf.Tensor:
        begins = self._begins(keys)[:, None]
        counters = as_words(tf.range(self.dim, dtype=tf.int64))[None]
        uniform = _uniform(begins, counters)
        if self.kind == "uniform":
            low, high = numbers
            return low + uniform * (high - low)
        mean, deviation = numbers
        standard = _quantile(uniform)
        if self.kind == "truncated_normal":
            standard = _within_two(standard, begins, counters)
        return mean + deviation * standard

    def _begins(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns where each key's sequence of random words begins."""
        if keys.dtype == tf.string:
            words = hash_bytes(keys)
        else:
            words = as_words(tf.cast(keys, tf.int64))
        seed = word((self.seed + _STEP) % 2**64)
        return mix(xor(mix(seed), mix(xor(words, word(_SALT)))))


def _uniform(begins: tf.Tensor, counters: tf.Tensor) -> tf.Tensor:
    """Returns float64 numbers in (0, 1): `KeyedRandom::Uniform`."""
    bits = mix(begins + (counters + word(1)) * word(_STEP))
    return (tf.cast(shift(bits, 12), tf.float64) + 0.5) * 2.0**-52


def _within_two(
    standard: tf.Tensor, begins: tf.Tensor, counters: tf.Tensor
) -> tf.Tensor:
    """Draws those numbers again that are beyond 2 standard deviations."""

    def again(turn: tf.Tensor, now: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        later = _uniform(begins, counters + turn * word(_REDRAW))
        kept = tf.where(tf.abs(now) <= 2, now, _quantile(later))
        return turn + word(1), kept

    _, drawn = tf.while_loop(
        lambda _, now: tf.reduce_any(tf.abs(now) > 2),
        again,
        (word(1), standard),
        maximum_iterations=_MOST_REDRAWS,
    )
    return drawn


def _quantile(probability: tf.Tensor) -> tf.Tensor:
    """Returns the standard normal quantile: `NormalQuantile`."""
    off = probability - 0.5
    middle = off * _quotient(_MIDDLE, 0.180625 - off * off)
    tail = tf.where(off < 0, probability, 1 - probability)
    depth = tf.sqrt(-tf.math.log(tail))
    distance = tf.where(
        depth <= 5,
        _quotient(_TAIL, depth - 1.6),
        _quotient(_FAR_TAIL, depth - 5),
    )
    outer = tf.where(off < 0, -distance, distance)
    return tf.where(tf.abs(off) <= 0.425, middle, outer)


def _quotient(
    polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: tf.Tensor
) -> tf.Tensor:
    above, below = (_polynomial(terms, x) for terms in polynomials)
    return above / below


def _polynomial(terms: tuple[float, ...], x: tf.Tensor) -> tf.Tensor:
    value = tf.constant(terms[-1], tf.float64)
    for term in reversed(terms[:-1]):
        value = value * x + term
    return value
