"""An optimizer that tfembed has no rule for, and what its steps need."""

from __future__ import annotations

import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.optimizer_makers import K


class PlainSgd(K.Optimizer):
    """Keras' SGD as a user would write it, which tfembed has no rule for."""

    def __init__(self, learning_rate=1.0, before=lambda: None, **options):
        super().__init__(learning_rate=learning_rate, **options)
        self.before = before

    def update_step(self, gradient, variable, learning_rate):
        self.before()
        self.assign_sub(variable, gradient * learning_rate)

    def get_config(self):
        return {**super().get_config(), "before": self.before}


def wrapped(optimizer, **options):
    return de.DynamicEmbeddingOptimizer(optimizer, **options)


def slices(keys, values):
    return tf.IndexedSlices(tf.constant(values), tf.constant(keys, tf.int64))


def column(v, keys):
    return v.lookup(keys).numpy()[:, 0].tolist()
