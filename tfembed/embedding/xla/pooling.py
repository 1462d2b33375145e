"""Between rows and activations: pure functions that XLA compiles well."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed.config.quantization_config import quantized
from tfembed.embedding.xla.entries import Entries

__all__ = ["combine", "entry_gradients", "pool"]


def combine(rows: tf.Tensor, entries: Entries, config: Any) -> tf.Tensor:
    """A feature's activations [cells, dim], or [samples, length, dim].

    Args:
      rows: of its entries.
      entries: the feature.
      config: its table's TableConfig.
    """
    return pool(quantized(rows, config.quantization_config), entries, config)


def pool(rows: tf.Tensor, entries: Entries, config: Any) -> tf.Tensor:
    """The same of rows as they are, quantized or not."""
    form = entries.form
    if not form.is_dense:
        factors = entries.factors(config.combiner)
        # 0 times a row that is not finite is not 0.
        terms = tf.where(
            (entries.cells >= 0)[:, tf.newaxis],
            rows * factors[:, tf.newaxis],
            0.0,
        )
        rows = tf.math.unsorted_segment_sum(terms, entries.cells, form.cells)
    length = form.plan.max_sequence_length
    if not length or form.is_dense:
        return rows
    return tf.reshape(rows, [-1, length, config.dim])


def entry_gradients(
    gradient: tf.Tensor, entries: Entries, config: Any
) -> tf.Tensor:
    """The gradient of each entry's row [n, dim], by that of the activations."""
    gradient = tf.reshape(gradient, [-1, config.dim])
    if entries.form.is_dense:
        return gradient
    factors = entries.factors(config.combiner)
    of_cell = tf.gather(gradient, tf.maximum(entries.cells, 0))
    return of_cell * factors[:, tf.newaxis]
