"""Starts variables with values of another checkpoint."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.tensorflow1.graph_saver import TableSaveable
from tfembed.errors import ArgumentError, CheckpointError
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs import checkpoints

VocabInfo = tf.compat.v1.train.VocabInfo

# The collection of an EmbeddingConfigSpec's tables: variables, not slots. The
# key is not a string, since a Saver would try to write such a collection.
TABLES = ("tfembed_estimator_tables",)


class WarmStartSettings(
    collections.namedtuple(
        "WarmStartSettings",
        [
            "ckpt_to_initialize_from",
            "vars_to_warm_start",
            "var_name_to_vocab_info",
            "var_name_to_prev_var_name",
        ],
    )
):
    """The checkpoint that an Estimator starts from, if model_dir has none.

    Args:
      ckpt_to_initialize_from: A checkpoint, a folder of checkpoints (its
        latest is used), or the folder of a SavedModel.
      vars_to_warm_start: A regular expression for names of trainable
        variables; or a list of such expressions for names of all variables, or
        a list of variables; or None for only those of
        `var_name_to_vocab_info`.
      var_name_to_vocab_info: A `VocabInfo` by variable name, for tables whose
        vocabulary has changed.
      var_name_to_prev_var_name: The variable's name in the checkpoint by its
        name in the graph, where these differ.

    Raises:
      ValueError: `ckpt_to_initialize_from` is empty.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        ckpt_to_initialize_from: str,
        vars_to_warm_start: str | Sequence[Any] | None = ".*",
        var_name_to_vocab_info: Mapping[str, Any] | None = None,
        var_name_to_prev_var_name: Mapping[str, str] | None = None,
    ) -> WarmStartSettings:
        if not ckpt_to_initialize_from:
            raise ArgumentError(
                "`ckpt_to_initialize_from` MUST be set in WarmStartSettings. "
                f"Given {ckpt_to_initialize_from!r}; name a checkpoint, a "
                "folder of checkpoints or a SavedModel."
            )
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def warm_start_settings(given: Any) -> WarmStartSettings | None:
    """Converts a path to settings; returns settings and None unchanged.

    Raises:
      ValueError: `given` has another type.
    """
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, (str, bytes)):
        return WarmStartSettings(tf.compat.as_str_any(given))
    raise ArgumentError(
        "warm_start_from must be a string or a WarmStartSettings, instead got "
        f"{type(given)}."
    )


def checkpoint_of(settings: WarmStartSettings) -> str:
    """Returns the checkpoint of the settings, or of their SavedModel.

    Raises:
      ValueError: The folder has no checkpoint.
    """
    path = settings.ckpt_to_initialize_from
    index = os.path.join(  # noqa: PTH118 - may be gs:
        v1_sessions.path_helpers.get_variables_dir(path), "variables.index"
    )
    if tf.io.gfile.exists(tf.compat.as_str_any(index)):
        tf.compat.v1.logging.info("Warm-starting from a SavedModel")
        return tf.compat.as_str_any(
            v1_sessions.path_helpers.get_variables_path(path)
        )
    if not tf.io.gfile.isdir(path):
        return path
    latest = checkpoints.latest_checkpoint(path)
    if not latest:
        raise ArgumentError(
            f"warm_start_from names the folder '{path}', which has neither a "
            "checkpoint nor a SavedModel in it. Name a checkpoint."
        )
    return latest


def warm_start(settings: WarmStartSettings) -> None:
    """Sets the initial values of the graph's variables from a checkpoint.

    Tables of an EmbeddingConfigSpec count as trainable variables. The log
    lists tables without a vocabulary, whose rows cannot be warm-started.

    Raises:
      ValueError: A variable has another shape or dtype in the checkpoint.
      tf.errors.OpError: A file of the checkpoint is missing or cut.
    """
    checkpoint = checkpoint_of(settings)
    checkpoints.check_files(checkpoint)
    tf.compat.v1.logging.info(
        "Warm-starting with WarmStartSettings: %s", (settings,)
    )
    keys = tf.compat.v1.GraphKeys
    without = [
        saveable.stem
        for saveable in tf.compat.v1.get_collection(keys.SAVEABLE_OBJECTS)
        if isinstance(saveable, TableSaveable)
    ]
    if without:
        tf.compat.v1.logging.warning(
            "No warm start of %s: tables without a vocabulary start empty. Copy "
            "the checkpoint into model_dir to go on with their rows.",
            without,
        )
    trainable = tf.compat.v1.get_collection_ref(keys.TRAINABLE_VARIABLES)
    before = list(trainable)
    local = {
        variable.name
        for variable in tf.compat.v1.get_collection(keys.LOCAL_VARIABLES)
    }
    # Checkpoints have no local variables.
    trainable[:] = [v for v in before if v.name not in local]
    trainable += tf.compat.v1.get_collection(TABLES)
    try:
        tf.compat.v1.train.warm_start(checkpoint, *settings[1:])
    except ValueError as error:
        raise _not_fitting(checkpoint, str(error)) from error
    finally:
        trainable[:] = before
    _check_dtypes(checkpoint)


def _check_dtypes(checkpoint: str) -> None:
    """Checks the reads of a warm start, which TensorFlow does by shape alone."""
    graph = tf.compat.v1.get_default_graph()
    reads = [
        read
        for op in graph.get_operations()
        if op.type == "RestoreV2"
        and tf.get_static_value(op.inputs[0]) == tf.compat.as_bytes(checkpoint)
        for read in checkpoints.reads_of(op)
    ]
    _, others = checkpoints.differences(reads, checkpoint)
    if others:
        raise _not_fitting(checkpoint, f"{'; '.join(others[:10])}.")


def _not_fitting(checkpoint: str, text: str) -> CheckpointError:
    return CheckpointError(
        f"Variables of the model cannot start from checkpoint '{checkpoint}': "
        f"{text} Name those that can in WarmStartSettings(vars_to_warm_start=)."
    )
