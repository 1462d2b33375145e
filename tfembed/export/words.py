"""Arithmetic of 64 bits by TensorFlow's ops: the twin of cc/core/support."""

from __future__ import annotations

import tensorflow as tf

from tfembed.export.perfect_hash import MIX_FACTORS

__all__ = ["as_words", "hash_bytes", "mix", "shift", "word", "xor"]

_STEP = 0x9E3779B97F4A7C15


def word(number: int | tf.Tensor) -> tf.Tensor:
    """Returns a number below 2^64, or an int64 scalar, as a uint64 scalar."""
    if tf.is_tensor(number):
        return tf.cast(number, tf.uint64)
    return tf.constant(number, tf.uint64)


def as_words(numbers: tf.Tensor) -> tf.Tensor:
    """Returns the bits of int64 numbers as uint64."""
    return tf.bitcast(numbers, tf.uint64)


def shift(words: tf.Tensor, bits: int) -> tf.Tensor:
    """Shifts uint64 words to the right."""
    return tf.bitwise.right_shift(words, word(bits))


def xor(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns the exclusive or of uint64 words."""
    return tf.bitwise.bitwise_xor(a, b)


def mix(words: tf.Tensor) -> tf.Tensor:
    """Mixes all bits of uint64 words: `MixBits` of hash.h."""
    for factor in MIX_FACTORS:
        words = xor(words, shift(words, 33)) * word(factor)
    return xor(words, shift(words, 33))


def hash_bytes(strings: tf.Tensor) -> tf.Tensor:
    """Returns the hashes of strings [n] as uint64: `HashBytes` of hash_bytes.h.

    The loop takes as many turns as the longest string has words.
    """
    sizes = tf.strings.length(strings)
    count = (tf.reduce_max(sizes) + 7) // 8
    count = tf.maximum(count, 1)  # No string may have a byte.
    words = tf.bitcast(
        tf.io.decode_raw(strings, tf.int64, fixed_length=count * 8), tf.uint64
    )
    hashes = word(_STEP) + tf.cast(sizes, tf.uint64)

    def step(i: tf.Tensor, hashes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        next_word = tf.gather(words, i, axis=1)
        longer = mix(xor(hashes, next_word)) + next_word
        return i + 1, tf.where(i * 8 < sizes, longer, hashes)

    _, hashes = tf.while_loop(
        lambda i, _: i < count, step, [tf.constant(0), hashes]
    )
    return mix(hashes)
