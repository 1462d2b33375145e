"""Saving models under TensorFlow Recommenders Addons' names."""

from __future__ import annotations

import copy
import os
import pathlib
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.keras.horovod import check_one_process

__all__ = ["de_hvd_save_model", "de_save_model", "save_model"]


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
      options: of the SavedModel. A `namespace_whitelist` need not name our
        ops.
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
        tf.saved_model.save(model, path, signatures, _with_our_ops(options))
        return
    if signatures is not None or options is not None:
        raise errors.ArgumentError(
            "A '.keras' file has no `signatures` or `options`; leave them out, or "
            "give a folder as `filepath`."
        )
    keras.saving.save_model(model, path, overwrite=True)


def _with_our_ops(
    options: tf.saved_model.SaveOptions | None,
) -> tf.saved_model.SaveOptions | None:
    """`options` that allow the ops of tables, where they name any."""
    if options is None or not options.namespace_whitelist:
        return options
    ours = copy.copy(options)
    ours.namespace_whitelist = [*options.namespace_whitelist, "Tfembed"]
    return ours


de_save_model = save_model


def de_hvd_save_model(
    model: Any, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> None:
    """`save_model`, by one process.

    Raises:
      tfembed.errors.UnsupportedError: several processes of Horovod.
      As `save_model`.
    """
    check_one_process("de_hvd_save_model")
    save_model(model, filepath, *args, **kwargs)
