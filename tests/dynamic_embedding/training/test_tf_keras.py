"""Optimizers of tf_keras, which is known by the names of its modules.

A class with the same hooks stands for it, so that it need not be installed.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de


class Optimizer(tf.__internal__.tracking.AutoTrackable):
    """The hooks of tf_keras' base class that tables come in touch with."""

    weight_decay = clipnorm = clipvalue = global_clipnorm = use_ema = None

    def __init__(self, learning_rate, name="rms"):
        self.name = name
        self._learning_rate = tf.Variable(learning_rate, trainable=False)
        self._iterations = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def iterations(self):
        return self._iterations

    @property
    def learning_rate(self):
        return self._learning_rate

    @property
    def variables(self):
        return [self._iterations, self._learning_rate]

    def build(self, var_list):
        self._places = {v._unique_id: i for i, v in enumerate(var_list)}

    def get_config(self):
        rate = float(self._learning_rate.numpy())
        return {"name": self.name, "learning_rate": rate}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class RMSprop(Optimizer):
    def build(self, var_list):
        super().build(var_list)
        self._velocities = [
            self.add_variable_from_reference(
                model_variable=v, variable_name="velocity"
            )
            for v in var_list
        ]

    def update_step(self, gradient, variable):
        velocity = self._velocities[self._places[variable._unique_id]]
        velocity.assign(0.75 * velocity + 0.25 * tf.square(gradient))
        rate = tf.cast(self.learning_rate, variable.dtype)
        variable.assign_add(-rate * gradient * tf.math.rsqrt(velocity))


class Adafactor(RMSprop):
    def build(self, var_list):
        super().build(var_list)
        for v in var_list:
            self.add_variable_from_reference(v, "r", shape=[v.shape[0]])


class ByRow(Adafactor):
    """Not known by its name."""


class Nadam(RMSprop):
    def _internal_apply_gradients(self, grads_and_vars):
        raise NotImplementedError


for _cls in (Optimizer, RMSprop, Adafactor, ByRow, Nadam):
    _cls.__module__ = "tf_keras.optimizers"


def test_rows_move_by_the_optimizers_own_update():
    v = de.Variable(dim=1, name="user")
    optimizer = de.DynamicEmbeddingOptimizer(RMSprop(0.5))

    @tf.function
    def step(gradient):
        slices = tf.IndexedSlices(gradient, tf.constant([3], tf.int64))
        optimizer.apply_gradients([(slices, v)])

    step(tf.constant([[4.0]]))
    assert v.lookup([3]).numpy().tolist() == [[-1.0]]
    (slot,) = v.get_slot_variables(optimizer)
    assert slot.name == "user/rms/velocity"
    assert slot.lookup([3]).numpy().tolist() == [[4.0]]
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Adafactor, "means over whole rows"),
        (ByRow, "does not have the variable's shape"),
        (Nadam, "do more than `update_step`"),
    ],
)
def test_others_are_refused(cls, text):
    with pytest.raises(NotImplementedError, match=text):
        de.DynamicEmbeddingOptimizer(cls(0.5))
