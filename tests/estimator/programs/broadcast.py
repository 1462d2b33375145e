"""A model that divides its batch itself, by collectives of its own.

Its shape is that of Mesh TensorFlow: each replica gets the whole batch
(BROADCAST), and gradients are summed without CrossShardOptimizer.
"""

from __future__ import annotations

import tensorflow as tf

from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import train_fn  # noqa: F401 - the data
from tfembed.estimator import tpu

v1 = tf.compat.v1
BATCH = 16


def my_part(tensor, replicas):
    """The replica's part of a batch that all replicas have."""
    exchanged = tf.raw_ops.AllToAll(
        input=tensor,
        group_assignment=[list(range(replicas))],
        concat_dimension=0,
        split_dimension=0,
        split_count=replicas,
    )
    return exchanged[: BATCH // replicas]  # Each replica sent the same.


def model_fn(features, labels, mode, params):
    replicas = params["context"].num_replicas
    x, y = my_part(features["x"], replicas), my_part(labels, replicas)
    loss = tf.reduce_mean((replica_model.linear({"x": x}) - y) ** 2)
    optimizer = v1.train.GradientDescentOptimizer(replica_model.RATE)
    pairs = [
        (v1.tpu.cross_replica_sum(gradient) / replicas, variable)
        for gradient, variable in optimizer.compute_gradients(loss)
    ]
    train_op = optimizer.apply_gradients(pairs, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        loss=v1.tpu.cross_replica_sum(loss) / replicas,
        train_op=train_op,
    )
