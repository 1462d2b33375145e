"""From the columns of a click log to what the model takes."""

from __future__ import annotations

import tensorflow as tf

_INT64_MAX = 2**63 - 1
# Of log1p(|integer|), roughly, in Criteo's logs.
_MEAN, _DEVIATION = 3.0, 2.0


def dense_features(integers: tf.Tensor) -> tf.Tensor:
    """The integers on a log scale; 0 where they are missing (NaN).

    (sign(x) log(1 + |x|) - 3) / 2
    """
    logs = tf.sign(integers) * tf.math.log1p(tf.abs(integers))
    scaled = (logs - _MEAN) / _DEVIATION
    return tf.where(tf.math.is_nan(integers), 0.0, scaled)


def keys(categories: tf.Tensor) -> tf.Tensor:
    """The categories' 64-bit keys: strings of any shape to int64.

    FarmHash64, the same on every machine. A missing category, "", has a key
    like any other: that it is missing says something, too. Each category has a
    table of its own, so the same string in two of them does not meet.
    """
    return tf.strings.to_hash_bucket_fast(categories, _INT64_MAX)
