"""Warm starts of variables from another program's checkpoint, by name.

They read checkpoints of `tf.compat.v1.train.Saver`, tfembed's and TFRA's, in
which a shard's tensors are called `<variable>_mht_<shard>of<shards>-keys` and
`-values`. Checkpoints of `tf.train.Checkpoint` are object-based, and `restore`
is enough.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.row_files import FileStem
from tfembed.dynamic_embedding.tensorflow1.graph_variables import (
    GraphKeys,
    all_variables,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops import checkpoint as checkpoint_ops

__all__ = ["WarmStartHook", "warm_start"]


def warm_start(
    ckpt_to_initialize_from: str,
    vars_to_warm_start: str | Sequence[str] | Sequence[Variable] | None = ".*",
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> tf.Operation | None:
    """Replaces the content of variables by their rows in a checkpoint.

    The numbers of shards may differ. Slots of an optimizer and notes of
    policies are reset.

    Args:
      ckpt_to_initialize_from: a checkpoint's path, or a folder, whose latest
        checkpoint is read.
      vars_to_warm_start: in a graph of TensorFlow 1 one or several regular
        expressions that match the beginning of variables' names; None: all
        variables of the graph. Or a list of Variables, which eager mode needs.
      var_name_to_prev_var_name: current name of a variable -> its name in the
        checkpoint, if that differs.

    Returns:
      In a graph the operation of the warm start; None in eager mode, which runs
      at once.

    Raises:
      tfembed.errors.ArgumentError: a list of other objects, names in eager
        mode, a checkpoint without a variable's rows, or with rows of another
        width.
      tfembed.errors.DtypeError: keys or rows of another dtype. In both cases
        nothing is changed.
      tf.errors.OpError, ValueError: there is no such checkpoint.
    """
    variables = _chosen(vars_to_warm_start)
    previous = var_name_to_prev_var_name or {}
    path = ckpt_to_initialize_from
    if tf.io.gfile.isdir(path):
        path = tf.train.latest_checkpoint(path) or path
    checkpoint_ops.check_sizes(path)
    reader = tf.train.load_checkpoint(path)
    saved = [
        _SavedRows.find(reader, path, one, previous.get(one.name, one.name))
        for one in variables
    ]
    # All rows are read and checked before the first variable is changed.
    found = [rows.read(one) for rows, one in zip(saved, variables, strict=True)]
    with tf.control_dependencies([x for rows in found for x in rows]):
        replaced = [
            one.table.replace(keys, [values])
            for one, (keys, values) in zip(variables, found, strict=True)
        ]
    return None if tf.executing_eagerly() else tf.group(*replaced)


class WarmStartHook(tf.compat.v1.train.SessionRunHook):
    """Runs `warm_start`, whose arguments it takes, in a new session."""

    def __init__(
        self,
        ckpt_to_initialize_from: str,
        vars_to_warm_start: str
        | Sequence[str]
        | Sequence[Variable]
        | None = ".*",
        var_name_to_prev_var_name: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = (
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_prev_var_name,
        )

    def begin(self) -> None:
        """Makes the operation, before the graph is finalized."""
        self._replace = warm_start(*self._arguments)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the warm start."""
        del coord
        session.run(self._replace)


@dataclasses.dataclass(frozen=True)
class _SavedRows:
    """A variable's rows in a checkpoint.

    Attributes:
      path: the path of the checkpoint.
      stems: the prefixes of the names of its shards' tensors.
    """

    path: str
    stems: tuple[str, ...]

    @classmethod
    def find(
        cls, reader: Any, path: str, variable: Variable, name: str
    ) -> _SavedRows:
        dtypes = reader.get_variable_to_dtype_map()
        shapes = reader.get_variable_to_shape_map()
        pattern = re.compile(r"(.*)_mht_\d+of(\d+)-keys")
        counts = {
            int(match[2])
            for match in map(pattern.fullmatch, dtypes)
            if match and match[1] == name.replace("/", "_")
        }
        stems = tuple(
            FileStem(name, num_shards=n, shard=i).of_shard
            for n in counts
            for i in range(n)
        )
        tensors = [
            f"{stem}-{part}" for stem in stems for part in ("keys", "values")
        ]
        missing = [one for one in tensors if one not in dtypes]
        if len(counts) != 1 or missing:
            raise errors.ArgumentError(
                f"The checkpoint {path} has no rows of a variable named "
                f"{name!r} for {variable.name!r}: "
                + (f"it lacks {missing}. " if missing else "")
                + f"It has {sorted(dtypes)}. Say by `var_name_to_prev_var_name` "
                "what the variable was called, or leave it out of "
                "`vars_to_warm_start`."
            )
        for stem in stems:
            found = dtypes[f"{stem}-keys"], dtypes[f"{stem}-values"]
            wanted = variable.key_dtype, variable.value_dtype
            if found != wanted:
                raise errors.DtypeError(
                    f"Variable {variable.name!r} has keys and values of "
                    f"{[one.name for one in wanted]}; the checkpoint {path} has "
                    f"{[one.name for one in found]} of {name!r}."
                )
            width = shapes[f"{stem}-values"][1:]
            if width != [variable.dim]:
                raise errors.ArgumentError(
                    f"Variable {variable.name!r} has rows of width "
                    f"{variable.dim}; the checkpoint {path} has rows of shape "
                    f"{width} of {name!r}."
                )
        return cls(path, stems)

    def read(self, variable: Variable) -> tuple[tf.Tensor, tf.Tensor]:
        """Reads the keys [n] and rows [n, dim], with checks that they fit."""
        keys = tf.reshape(self._read("keys", variable.key_dtype), [-1])
        values = self._read("values", variable.value_dtype)
        table = variable.table
        check = tf.debugging.assert_equal(
            tf.size(values),
            tf.size(keys) * variable.dim,
            f"The checkpoint {self.path} has not a row for each key of "
            f"{variable.name!r}",
        )
        distinct = checkpoint_ops.check_distinct(keys, table_name=variable.name)
        checks = [one for one in (check, distinct) if one is not None]
        if table.max_size is not None:
            parts = table.partition(keys).split(keys)
            checks += table.check_bounds(
                parts,
                even_alone=True,
                refusal=f"The checkpoint {self.path} has more rows of "
                f"{variable.name!r} than it holds, max_size={table.max_size} in "
                f"{len(parts)} shards; nothing was changed. Give it a larger "
                "`max_size`, or begin without one and `restrict` it. Rows of a "
                "shard, and how many it holds",
            )
        with tf.control_dependencies(checks):
            return tf.identity(keys), tf.reshape(values, [-1, variable.dim])

    def _read(self, part: str, dtype: tf.DType) -> tf.Tensor:
        n = len(self.stems)
        with tf.device("/CPU:0"):
            parts = tf.raw_ops.RestoreV2(
                prefix=self.path,
                tensor_names=[f"{stem}-{part}" for stem in self.stems],
                shape_and_slices=[""] * n,
                dtypes=[dtype] * n,
            )
            return tf.concat(parts, 0)


def _chosen(wanted: Any) -> list[Variable]:
    if wanted is None or isinstance(wanted, str):
        wanted = [wanted or ""]
    is_list = isinstance(wanted, (list, tuple))
    if is_list and all(isinstance(one, Variable) for one in wanted):
        return list(wanted)
    if not is_list or not all(isinstance(one, str) for one in wanted):
        raise errors.ArgumentError(
            "`vars_to_warm_start` must be a string, or a list of strings or of "
            f"Variables; got {wanted!r}."
        )
    if tf.executing_eagerly():
        raise errors.ArgumentError(
            "warm_start finds variables by name in graphs of TensorFlow 1 alone. "
            "In eager mode give it a list of them as `vars_to_warm_start`."
        )
    noted = tf.compat.v1.get_collection(GraphKeys.DYNAMIC_EMBEDDING_VARIABLES)
    # Each variable once, in the order of creation.
    every = list({id(one): one for one in [*all_variables(), *noted]}.values())
    return [
        one
        for one in every
        if any(re.match(pattern, one.name) for pattern in wanted)
    ]
