"""Training in graphs of TensorFlow 1, which is refused and not dropped."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize("optimizer", ["own", "v1"])
def test_a_step_is_refused_in_a_graph_and_in_its_branches(optimizer, in_branch):
    wrapped = optimizers.SGD(1.0)
    with tf.Graph().as_default():
        if optimizer == "v1":
            wrapped = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        training = de.DynamicEmbeddingOptimizer(wrapped)
        v = de.Variable(dim=1, name="v", initializer=-1.0)

        def step():
            def loss():
                return tf.reduce_sum(v.lookup(tf.constant([1], tf.int64)))

            training.minimize(loss, var_list=[v])
            return tf.constant(0)

        with pytest.raises(errors.UnsupportedError, match="TensorFlow 1"):
            if in_branch:
                is_time = tf.compat.v1.placeholder(tf.bool, [])
                tf.cond(is_time, step, lambda: tf.constant(0))
            else:
                step()
