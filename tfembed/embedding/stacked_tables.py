"""Tables in checkpoints of TPUs with SparseCores, which stack and spread them.

Row i of a table with `rotation` lies in the part of core
(i % cores + rotation) % cores, at place offset + i // cores: the formula of
TensorFlow's `map_indices_in_shard` in `tpu_embedding_v3_utils`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.untracked import Untracked

__all__ = ["LAYOUTS", "SavedLayouts", "StackedTables"]

# The name under which TensorFlow saves the layouts of all stacks.
LAYOUTS = "_sparse_core_table_layouts"

_TOO_LATE = (
    "The checkpoint has tables that a TPU's SparseCores stacked, or the tables "
    "came from one, and they are made already. Restore it into a new "
    "TPUEmbeddingForServing, before the first lookup or build(); under a strategy "
    "with several replicas, which makes them at once, it cannot be restored."
)


class SavedLayouts(private.Folder):
    """What a checkpoint says of stacks; nothing where it has none.

    A checkpoint that waits for it is read while it is tracked, before tables
    are made. Later ones with stacks are a CheckpointError.
    """

    def __init__(self) -> None:
        self._text = b""
        self._is_settled = False

    def settle(self) -> dict[str, list[Any]]:
        """By the name of each stack its layouts, which cannot change now."""
        self._is_settled = True
        stacks: dict[str, list[Any]] = {}
        for layout in private.parsed_layouts(self._text):
            stacks.setdefault(layout.stacked_table_name, []).append(layout)
        return stacks

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {private.VARIABLE_VALUE: tf.constant(self._text)}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        text = restored[private.VARIABLE_VALUE].numpy()
        if self._is_settled and text:
            raise errors.CheckpointError(_TOO_LATE)
        self._text = text


class StackedTables(private.Folder):
    """The tables of one stack, which a checkpoint has as one tensor.

    A checkpoint that waits for it is restored while it is tracked. Later ones
    are a CheckpointError: nothing tells whether they have the stack or, since a
    stack of one table has the table's name, that table.

    Args:
      name: of the stack.
      layouts: of its tables, TensorFlow's SparseCoreTableLayouts.
      configs: of the tables that are wanted, TableConfigs with names; the
        stack's others are passed over.

    Raises:
      tfembed.errors.CheckpointError: a table that was saved with another shape.
    """

    def __init__(
        self, name: str, layouts: Iterable[Any], configs: Sequence[Any]
    ) -> None:
        self._name = name
        wanted = {config.name: config for config in configs}
        self._layouts = Untracked(
            [layout for layout in layouts if layout.table_name in wanted]
        )
        variables = {}
        for layout in self._layouts.value:
            config = wanted[layout.table_name]
            shape = (config.vocabulary_size, config.dim)
            if tuple(layout.unsharded_shape) != shape:
                raise errors.CheckpointError(
                    f"The checkpoint has the table {config.name!r} with shape "
                    f"{tuple(layout.unsharded_shape)}; its TableConfig says "
                    f"{shape}. Make the table as it was saved."
                )
            variables[config.name] = tf.Variable(
                tf.zeros(shape), name=config.name
            )
        self._variables = Untracked(variables)
        self._is_restored = False

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """By the table's name, [vocabulary_size, dim]."""
        return self._variables.value

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        # Tells the restore what to read; saves have the tables one by one.
        return {private.VARIABLE_VALUE: tf.constant(0.0)}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        if self._is_restored:
            raise errors.CheckpointError(_TOO_LATE)
        self._is_restored = True
        stacked = restored[private.VARIABLE_VALUE]
        found = {
            layout.table_name: _unstacked(stacked, layout, self._name)
            for layout in self._layouts.value
        }
        for name, rows in found.items():
            self.variables[name].assign(rows)


def _unstacked(stacked: tf.Tensor, layout: Any, name: str) -> tf.Tensor:
    """The rows of a table, [vocabulary_size, dim], of a stack."""
    cores = layout.num_sparse_cores
    vocabulary, dim = layout.unsharded_shape
    begin = layout.sparse_core_shard_row_offset
    end = begin + layout.unsharded_padded_shape[0] // cores
    rows, width = stacked.shape
    if rows % cores or rows // cores < end or width < dim:
        raise errors.CheckpointError(
            f"The checkpoint's stack {name!r} is {stacked.shape}, which is not "
            f"what its layout says: {cores} equal parts with the table "
            f"{layout.table_name!r} of width {dim} in rows {begin} to {end}. "
            "Restore another checkpoint."
        )
    parts = tf.reshape(stacked, [cores, -1, width])[:, begin:end, :dim]
    parts = tf.roll(parts, -layout.sparse_core_shard_rotation, 0)
    return tf.reshape(tf.transpose(parts, [1, 0, 2]), [-1, dim])[:vocabulary]
