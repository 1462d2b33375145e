"""The rows of several ids combined into one, by TensorFlow's ops.

With the rows e of a bag of ids and their weights w:

    sum: S = sum(w e)    mean: S / sum(w)    sqrtn: S / sqrt(sum(w ** 2))

`grouped_lookup` does the same in its kernel, and `embedding/xla/entries.py` in
XLA programs of fixed shapes. The function here is for rows that are at hand
already.
"""

from __future__ import annotations

import tensorflow as tf

from tfembed.errors import DtypeError

__all__ = ["combine"]


def combine(
    rows: tf.Tensor,
    weights: tf.Tensor | None,
    bags: tf.Tensor,
    num_bags: tf.Tensor,
    combiner: str,
) -> tf.Tensor:
    """Combines rows [n, dim] into [num_bags, dim].

    Rows of float16 and bfloat16 are summed in float32; the result has the rows'
    dtype. A bag without rows, or whose divisor is 0, gives zeros.

    Args:
      rows: numbers; integers by "sum" only.
      weights: None, or numbers [n].
      bags: integers [n], each row's bag; rows of bags below 0 are left out.
      num_bags: a scalar.
      combiner: "sum", "mean" or "sqrtn".

    Raises:
      tfembed.errors.DtypeError: booleans or strings, or integers and another
        combiner.
      tf.errors.InvalidArgumentError: not as many weights as rows; when it runs.
    """
    dtype = rows.dtype
    if dtype in (tf.bool, tf.string):
        raise DtypeError(
            f"Rows of {dtype.name} cannot be combined; look the ids up one by "
            "one with `embedding_lookup`."
        )
    if not dtype.is_floating and combiner != "sum":
        raise DtypeError(
            f"Rows of {dtype.name} can be combined by 'sum' only; got combiner "
            f"'{combiner}'."
        )
    is_half = dtype in (tf.float16, tf.bfloat16)
    rows = tf.cast(rows, tf.float32) if is_half else rows

    def add_up(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, bags, num_bags)

    # As many weights as rows: one alone would be spread over all of them.
    column = tf.stack([tf.size(bags), 1])
    if weights is not None:
        weights = tf.reshape(tf.cast(weights, rows.dtype), column)
        rows *= weights
    total = add_up(rows)
    if combiner != "sum":
        if weights is None:
            weights = tf.ones(column, rows.dtype)
        divisor = add_up(weights**2 if combiner == "sqrtn" else weights)
        divisor = tf.sqrt(divisor) if combiner == "sqrtn" else divisor
        total = tf.math.divide_no_nan(total, divisor)
    return tf.cast(total, dtype)
