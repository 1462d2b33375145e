"""A segmentation of volumes whose replicas have several cores.

Its shape is that of the three-dimensional U-Net's program: volumes and their
labels are cut along an axis, one part for each core of a replica, and a CPU's
program is the same without it.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.estimator.programs.images import weights
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1

BATCH, SIDE, WIDTH = 8, 4, 4
PARTITION = {
    "num_cores_per_replica": 2,
    "per_host_input_for_training": tpu.InputPipelineConfig.PER_HOST_V2,
    "input_partition_dims": [[1, 2, 1, 1, 1], [1, 2, 1, 1]],
}
_random = np.random.default_rng(8)
VOLUMES = _random.normal(size=(32, SIDE, SIDE, SIDE, 1)).astype(np.float32)
LABELS = (VOLUMES[..., 0] + np.roll(VOLUMES[..., 0], 1, axis=1) > 0).astype(
    np.int32
)


def train_fn(params):
    data = tf.data.Dataset.from_tensor_slices((VOLUMES, LABELS)).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def eval_fn(params):
    data = tf.data.Dataset.from_tensor_slices((VOLUMES, LABELS))
    return data.batch(params["batch_size"], drop_remainder=True)


def overlap(labels, classes):
    """The overlap of classes, and the part of voxels that is right."""
    return {
        "iou": v1.metrics.mean_iou(labels, classes, 2),
        "accuracy": v1.metrics.accuracy(labels, classes),
    }


def model_fn(features, labels, mode, params):
    def convolved(x, name, wide, strides=1):
        kernel = weights(name, [3, 3, 3, x.shape[-1], wide])
        return tf.nn.conv3d(x, kernel, [1, *[strides] * 3, 1], "SAME")

    fine = tf.nn.relu(convolved(features, "down", WIDTH))
    coarse = tf.nn.relu(convolved(fine, "bottom", WIDTH, strides=2))
    kernel = weights("up_kernel", [2, 2, 2, WIDTH, WIDTH])
    up = tf.nn.conv3d_transpose(
        coarse, kernel, tf.shape(fine), [1, 2, 2, 2, 1], "SAME"
    )
    logits = convolved(tf.concat([fine, up], -1), "classes", 2)
    classes = tf.argmax(logits, -1, tf.int32)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = None
    if mode == ModeKeys.TRAIN:
        optimizer = v1.train.AdamOptimizer(0.02)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metrics=(overlap, [labels, classes]),
    )
