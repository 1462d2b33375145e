"""Which variables start with values of another checkpoint, and when."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.dynamic_embedding.tensorflow1.graph_saver import TableSaveable
from tfembed.errors import ArgumentError
from tfembed.estimator import private

VocabInfo = tf.compat.v1.train.VocabInfo

# The collection of an EmbeddingConfigSpec's tables: variables, not slots. No
# string: a Saver tries to write what collections of such names hold.
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
    """Where an Estimator's variables start, if model_dir has no checkpoint.

    Args:
      ckpt_to_initialize_from: A checkpoint, a folder of checkpoints, of which
        the latest is taken, or a SavedModel's folder.
      vars_to_warm_start: A regular expression for names of trainable
        variables; or a list of such expressions for names of all variables, or
        of variables; or None for those of `var_name_to_vocab_info` only.
      var_name_to_vocab_info: A `VocabInfo` by a variable's name, for tables
        whose vocabulary has changed.
      var_name_to_prev_var_name: The name in the checkpoint by a variable's
        name, where the two differ.

    Raises:
      ValueError: No checkpoint is named.
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
    """Returns settings of a path, settings as they are, None of None.

    Raises:
      ValueError: `given` is anything else.
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
    """Returns the checkpoint that settings name, a SavedModel's variables too.

    Raises:
      ValueError: A folder without a checkpoint is named.
    """
    path = settings.ckpt_to_initialize_from
    index = os.path.join(  # noqa: PTH118 - may be gs:
        private.path_helpers.get_variables_dir(path), "variables.index"
    )
    if tf.io.gfile.exists(tf.compat.as_str_any(index)):
        tf.compat.v1.logging.info("Warm-starting from a SavedModel")
        return tf.compat.as_str_any(
            private.path_helpers.get_variables_path(path)
        )
    if not tf.io.gfile.isdir(path):
        return path
    latest = tf.train.latest_checkpoint(path)
    if not latest:
        raise ArgumentError(
            f"warm_start_from names the folder '{path}', which has neither a "
            "checkpoint nor a SavedModel in it. Name a checkpoint."
        )
    return latest


def warm_start(settings: WarmStartSettings) -> None:
    """Has the graph's variables start with the values that settings name.

    Tables of an EmbeddingConfigSpec count as trainable variables. The log names
    tables without a vocabulary, whose rows no settings name.
    """
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
    # Local variables are in no checkpoint.
    trainable[:] = [v for v in before if v.name not in local]
    trainable += tf.compat.v1.get_collection(TABLES)
    try:
        tf.compat.v1.train.warm_start(checkpoint_of(settings), *settings[1:])
    finally:
        trainable[:] = before
