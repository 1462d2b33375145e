"""MirroredStrategies over this machine's logical CPUs."""

from __future__ import annotations

import tensorflow as tf


def mirrored(replicas: int) -> tf.distribute.MirroredStrategy:
    """A strategy of so many replicas, which needs no collectives.

    Collectives of several strategies in one process share their keys.
    """
    return tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
