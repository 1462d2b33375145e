"""Saving models under TensorFlow Recommenders Addons' names."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors

__all__ = ["de_save_model", "save_model"]


def save_model(
    model: Any,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    include_optimizer: bool = True,
    signatures: Any = None,
    options: tf.saved_model.SaveOptions | None = None,
    save_traces: bool = True,
) -> None:
    """Saves a model with its tables: to train on, or to serve.

    Args:
      model: a Keras 3 model.
      filepath: ending in ".keras" for a file that `keras.saving.load_model`
        reads, with optimizer and slots; else a folder for a SavedModel, which
        serves.
      overwrite: whether what is there already is replaced.
      include_optimizer: accepted for TFRA's sake; Keras 3 decides.
      signatures: of the SavedModel; None: one of the model's call.
      options: of the SavedModel.
      save_traces: accepted for TFRA's sake.

    Raises:
      tfembed.errors.ArgumentError: `signatures` or `options` of a `.keras` file,
        or `filepath` exists and must not be overwritten.
    """
    del include_optimizer, save_traces
    path = os.fspath(filepath)
    if not overwrite and pathlib.Path(path).exists():
        raise errors.ArgumentError(
            f"`filepath` {path!r} exists; give overwrite=True or another one."
        )
    if not path.endswith(".keras"):
        tf.saved_model.save(model, path, signatures, options)
        return
    if signatures is not None or options is not None:
        raise errors.ArgumentError(
            "A '.keras' file has no `signatures` or `options`; leave them out, or "
            "give a folder as `filepath`."
        )
    keras.saving.save_model(model, path, overwrite=True)


de_save_model = save_model
