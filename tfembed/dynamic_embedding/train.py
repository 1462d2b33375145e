"""TFRA's `dynamic_embedding.train`: checkpoints."""

from __future__ import annotations

import tensorflow as tf

from tfembed.not_in_release import absent

__all__ = ["Checkpoint", "DECheckpoint", "DEHvdSaver"]


class DECheckpoint(tf.train.Checkpoint):
    """`tf.train.Checkpoint`, under TFRA's name.

    Any `tf.train.Checkpoint` saves tfembed's variables: streamed, with slots,
    and restored into any number of shards. TFRA's checkpoints, which have
    tables in separate files, are read by `Variable.load_from_file_system`.
    """


Checkpoint = DECheckpoint


DEHvdSaver = absent("DEHvdSaver", __name__)
