"""The private TensorFlow symbols of this package; no other module has any.

tests/estimator/embeddings/test_private.py tries each on all supported
versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as old_columns
from tensorflow.python.feature_column import feature_column_lib as columns
from tensorflow.python.tpu import feature_column as old_tpu_columns
from tensorflow.python.tpu import feature_column_v2 as tpu_columns

__all__ = [
    "DenseColumn",
    "NUMERIC_COLUMNS",
    "OLD_TPU_COLUMNS",
    "PLAIN_EMBEDDING_COLUMNS",
    "OldDenseColumn",
    "OldSequenceColumn",
    "SequenceColumn",
    "TENSOR_CORE_MASK",
    "TPU_COLUMNS",
    "connect",
    "is_on_tensor_core",
    "length_key",
    "note_column_scopes",
    "padded",
    "padded_size",
    "sequence_pair",
    "take_column_scopes",
]

# The public API that would end each entry. The versions: TRIED_ON of
# tfembed/ops/private.py.
ENDED_BY = {
    "DenseColumn": "public classes of columns",
    "NUMERIC_COLUMNS": "public classes of columns",
    "OLD_TPU_COLUMNS": "public classes of columns",
    "OldDenseColumn": "public classes of columns",
    "OldSequenceColumn": "public classes of columns",
    "PLAIN_EMBEDDING_COLUMNS": "public classes of columns",
    "SequenceColumn": "public classes of columns",
    "TENSOR_CORE_MASK": "public properties of TPU columns",
    "TPU_COLUMNS": "public classes of columns",
    "connect": "a public way to change an input in a graph",
    "is_on_tensor_core": "public properties of TPU columns",
    "length_key": "public properties of TPU columns",
    "note_column_scopes": "columns that tell the names of their variables",
    "padded": "public properties of TPU columns",
    "padded_size": "public properties of TPU columns",
    "sequence_pair": "public classes of columns",
    "take_column_scopes": "columns that tell the names of their variables",
}

# The columns of `tf.compat.v1.tpu.experimental`, and their predecessors.
TPU_COLUMNS: tuple[type, ...] = (
    tpu_columns._TPUEmbeddingColumnV2,
    tpu_columns._TPUSharedEmbeddingColumnV2,
)
OLD_TPU_COLUMNS: tuple[type, ...] = (
    old_tpu_columns._TPUEmbeddingColumn,
    old_tpu_columns._TPUSharedEmbeddingColumn,
)
PLAIN_EMBEDDING_COLUMNS: tuple[type, ...] = (
    old_columns._EmbeddingColumn,
    columns.EmbeddingColumn,
    columns.SharedEmbeddingColumn,
    old_columns._SharedEmbeddingColumn,
)
NUMERIC_COLUMNS: tuple[type, ...] = (
    old_columns._NumericColumn,
    columns.NumericColumn,
)

_ON_DEVICES = (
    tpu_columns._TPUDeviceSpecificEmbeddingColumnV2,
    tpu_columns._TPUSharedDeviceSpecificEmbeddingColumnV2,
)

# The suffix of a padded feature's mask, behind the feature's key.
TENSOR_CORE_MASK: str = tpu_columns._TENSOR_CORE_MASK_KEY_SUFFIX


# The base classes of columns for input layers of Keras and of TensorFlow 1.
DenseColumn: Any = columns.DenseColumn
OldDenseColumn: Any = old_columns._DenseColumn
SequenceColumn: Any = columns.SequenceDenseColumn
OldSequenceColumn: Any = old_columns._SequenceDenseColumn


def sequence_pair(tensor: tf.Tensor, lengths: tf.Tensor) -> Any:
    """Returns the result of a sequence column for an input layer."""
    return columns.SequenceDenseColumn.TensorSequenceLengthPair(
        dense_tensor=tensor, sequence_length=lengths
    )


def is_on_tensor_core(column: Any) -> bool:
    """Whether a column is looked up on a TPU's tensor core."""
    core = tpu_columns.EmbeddingDevice.TPU_TENSOR_CORE
    return (
        isinstance(column, _ON_DEVICES)
        and column._embedding_lookup_device == core
    )


def padded_size(column: Any) -> int:
    """Returns the number of ids per sample of a column on the tensor core."""
    return int(column._tensor_core_shape[1])


def padded(ids: tf.SparseTensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids [B, size] and their mask, for columns on the tensor core."""
    values, mask = tpu_columns.pad_sparse_embedding_lookup_indices(ids, size)
    return values, mask


def length_key(feature: str) -> str:
    """Returns the key of a sequence's lengths for its column."""
    key: str = old_tpu_columns.get_sequence_length_feature_key_name_from_feature_key_name(
        feature
    )
    return key


def note_column_scopes(graph: tf.Graph) -> None:
    """Makes a graph record where TPU columns of a model are used, from now on.

    Columns record the variable scope. TensorFlow 2 layers of Keras 2 open only
    name scopes, which determine the names of their variables.
    """
    noted = graph.get_collection_ref(old_tpu_columns._TPU_FC_TO_SCOPE)
    noted[:] = [_ColumnScopes({})]


class _ColumnScopes(dict[str, tuple[str, str]]):
    """The variable scope and name by table, as columns record them.

    Args:
      noted: earlier records of columns, without name scopes.
    """

    def __init__(self, noted: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(noted)
        self.name_scopes: dict[str, str] = {}
        self._outer = tf.compat.v1.get_default_graph().get_name_scope()

    def __setitem__(self, table: str, noted: tuple[str, str]) -> None:
        super().__setitem__(table, noted)
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        if self._outer and scope.startswith(f"{self._outer}/"):
            scope = scope[len(self._outer) + 1 :]
        self.name_scopes[table] = scope

    def variable(self, table: str) -> str:
        """Returns the name of the variable of the same column on a CPU."""
        scope, name = self[table]
        by_name = self.name_scopes.get(table, "")
        column = by_name.rsplit("/", 1)[-1]
        # A shared table has one name, wherever its columns are used.
        is_own = name == "embedding_weights"
        if is_own and column.endswith("_embedding") and column not in scope:
            scope = by_name
        return f"{scope}/{name}" if scope else name


def take_column_scopes(graph: tf.Graph) -> dict[str, str]:
    """Returns the variable names of the TPU columns that layers used.

    Returns:
      Full names, by the columns' names of their tables. The graph's record is
      cleared.
    """
    noted = graph.get_collection_ref(old_tpu_columns._TPU_FC_TO_SCOPE)
    scopes = noted[0] if noted else {}
    del noted[:]
    if not isinstance(scopes, _ColumnScopes):
        scopes = _ColumnScopes(scopes)
    return {table: scopes.variable(table) for table in scopes}


def connect(op: tf.Operation, stand_in: tf.Tensor, tensor: tf.Tensor) -> None:
    """Replaces `stand_in` by `tensor` among the inputs of an op."""
    inputs: Any = op
    for i, taken in enumerate(op.inputs):
        if taken is stand_in:
            inputs._update_input(i, tensor)
