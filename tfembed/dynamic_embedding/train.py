"""TFRA's `dynamic_embedding.train`: checkpoints."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["Checkpoint", "DECheckpoint", "DEHvdSaver"]


class DECheckpoint(tf.train.Checkpoint):
    """`tf.train.Checkpoint`, under TFRA's name.

    tfembed's variables are in any `tf.train.Checkpoint`: streamed, with slots,
    and restored into any number of shards. TFRA's, whose tables lie in files
    of their own, are read by `Variable.load_from_file_system`.
    """


Checkpoint = DECheckpoint


class DEHvdSaver:
    """Not in this release: raises UnsupportedError.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "DEHvdSaver needs Horovod, which this release does not use. Save "
            "with tf.compat.v1.train.Saver or tf.train.Checkpoint; for files of "
            "each process call `variable.save_to_file_system(dirpath, "
            "proc_size, proc_rank)`."
        )
