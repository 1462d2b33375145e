"""Checks a whole checkpoint before anything is restored from it."""

from __future__ import annotations

import os

import tensorflow as tf

from tfembed import errors
from tfembed.ops import checkpoint as checkpoint_ops

__all__ = ["verify"]


def verify(path: str | os.PathLike[str]) -> None:
    """Reads all files of a checkpoint and compares their checksums.

    A restore checks hash tables by itself, all of them before any is changed.
    TensorFlow checks a variable when it comes to it, after others have been
    restored, and tells less. This looks at everything first, reads each file
    once and takes a few megabytes of memory.

    Args:
      path: what `tf.train.Checkpoint.restore` takes, of any program.

    Raises:
      tfembed.errors.CheckpointError: (also ValueError) files are missing,
        damaged or cut off. It names the file, and the tensor if it is known.

    Example:
      path = tf.train.latest_checkpoint("/tmp/run")
      tfembed.checkpoint.verify(path)
      checkpoint.restore(path)
    """
    try:
        checkpoint_ops.check(tf.constant(os.fspath(path)))
    except tf.errors.OpError as error:
        raise errors.CheckpointError(
            f"Checkpoint '{os.fspath(path)}' cannot be restored: {error.message}"
        ) from error
