"""TFRA's functions that change TensorFlow, which tfembed leaves as it is."""

from __future__ import annotations

__all__ = ["patch_on_tf", "patch_on_tf_save_restore"]


def patch_on_tf() -> None:
    """Does nothing: optimizers and variables work without patches."""


def patch_on_tf_save_restore() -> None:
    """Does nothing: `tf.train.Checkpoint` and SavedModels hold the tables."""
