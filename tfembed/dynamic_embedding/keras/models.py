"""Saving models under TensorFlow Recommenders Addons' names."""

from __future__ import annotations

import copy
import os
import pathlib
import sys
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.keras import layer_config
from tfembed.dynamic_embedding.keras.callbacks import check_one_process

__all__ = ["de_hvd_save_model", "de_save_model", "save_model"]

# Files of tf_keras, which have no rows.
_ROWLESS_FILES = (".keras", ".h5", ".hdf5")


def save_model(
    model: Any,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    include_optimizer: bool = True,
    signatures: Any = None,
    options: tf.saved_model.SaveOptions | None = None,
    save_traces: bool = True,
) -> None:
    """Saves a model with its tables, for further training or for serving.

    Args:
      model: a model of Keras 3, or one of tf_keras, whose own `save` is called.
      filepath: a name ending in ".keras" for a file that
        `keras.saving.load_model` reads, with optimizer and slots; else a folder
        for a SavedModel, which serves. Models of tf_keras are always saved as a
        SavedModel, which their `load_model` reads.
      overwrite: whether to replace an existing file or folder.
      include_optimizer: for models of tf_keras; Keras 3 decides by itself.
      signatures: the signatures of the SavedModel; None: one for the model's
        call. A model without keras.Input needs them, or a `call` that is a
        tf.function with an `input_signature`; else Keras assumes float inputs.
      options: the options of the SavedModel. A `namespace_whitelist` need not
        list the ops of tfembed.
      save_traces: for models of tf_keras.

    Raises:
      tfembed.errors.ArgumentError: `signatures` or `options` for a `.keras`
        file, a `.keras` or `.h5` file for a model of tf_keras, no `signatures`
        for a model whose inputs are not known to be ids, or an existing
        `filepath` without `overwrite`.
    """
    path = os.fspath(filepath)
    if not overwrite and pathlib.Path(path).exists():
        raise errors.ArgumentError(
            f"`filepath` {path!r} exists; give overwrite=True or another one."
        )
    if _is_of_tf_keras(model):
        if path.endswith(_ROWLESS_FILES):
            raise errors.ArgumentError(
                f"`filepath` must be a folder; got {path!r}: files of tf_keras "
                "would have no rows of tables."
            )
        model.save(
            path,
            overwrite=overwrite,
            save_format="tf",
            include_optimizer=include_optimizer,
            signatures=signatures,
            options=_with_our_ops(options),
            save_traces=save_traces,
        )
        return
    if not path.endswith(".keras"):
        _save_for_serving(model, path, signatures, _with_our_ops(options))
        return
    if signatures is not None or options is not None:
        raise errors.ArgumentError(
            "A '.keras' file has no `signatures` or `options`; leave them out, or "
            "give a folder as `filepath`."
        )
    keras.saving.save_model(model, path, overwrite=True)


def _is_of_tf_keras(model: Any) -> bool:
    tf_keras: Any = sys.modules.get("tf_keras")
    return tf_keras is not None and isinstance(model, tf_keras.Model)


def _save_for_serving(
    model: Any,
    path: str,
    signatures: Any,
    options: tf.saved_model.SaveOptions | None,
) -> None:
    if signatures is not None:
        tf.saved_model.save(model, path, signatures, options)
    elif getattr(model.call, "input_signature", None):
        # tf.saved_model.save would also call it with floats from Keras.
        model.call.get_concrete_function()
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serving_default", model.call)
        archive.write_out(path, options)
    else:
        refused = layer_config.FLOAT_IDS_REFUSED.set(not _has_inputs(model))
        try:
            tf.saved_model.save(model, path, None, options)
        except errors.DtypeError as error:
            raise errors.ArgumentError(
                f"`signatures` of '{model.name}' must be given: it has no "
                "keras.Input, so Keras takes its inputs for floats, which are no "
                "ids. For example: signatures=tf.function(model)."
                "get_concrete_function(tf.TensorSpec([None, 3], tf.int64))."
            ) from error
        finally:
            layer_config.FLOAT_IDS_REFUSED.reset(refused)


def _has_inputs(model: Any) -> bool:
    """Says whether Keras knows the dtypes of the model's inputs."""
    try:
        return bool(model.inputs)
    except AttributeError:  # Called or not, it has no keras.Input.
        return False


def _with_our_ops(
    options: tf.saved_model.SaveOptions | None,
) -> tf.saved_model.SaveOptions | None:
    """Adds the ops of tables to the namespaces that `options` allow, if any."""
    if options is None or not options.namespace_whitelist:
        return options
    ours = copy.copy(options)
    ours.namespace_whitelist = [*options.namespace_whitelist, "Tfembed"]
    return ours


de_save_model = save_model


def de_hvd_save_model(
    model: Any, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> None:
    """Calls `save_model`, if there is one process only.

    Raises:
      tfembed.errors.UnsupportedError: Horovod runs several processes.
      Others as `save_model`.
    """
    check_one_process("de_hvd_save_model")
    save_model(model, filepath, *args, **kwargs)
