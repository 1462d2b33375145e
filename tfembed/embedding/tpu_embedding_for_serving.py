"""TPUEmbeddingForServing: lookups in the tables of a trained TPUEmbedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.features.input_values import (
    as_ids,
    as_weights,
    with_tensors,
)
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.lookups.direct_lookup import SERVING, look_up
from tfembed.embedding.plan import feature_paths
from tfembed.embedding.private import Untracked
from tfembed.embedding.taped_embedding import TapedEmbedding

__all__ = [
    "LAYOUTS",
    "SavedLayouts",
    "StackedTables",
    "TPUEmbeddingForServing",
    "serving_embedding_lookup",
]

# Tables in checkpoints of TPUs with SparseCores, which stack and shard tables.
#
# Row i of a table with `rotation` is in the part of core
# (i % cores + rotation) % cores, at row offset + i // cores: the formula of
# TensorFlow's `map_indices_in_shard` in `tpu_embedding_v3_utils`.

# The name under which TensorFlow saves the layouts of all stacks.
LAYOUTS = "_sparse_core_table_layouts"

_TOO_LATE = (
    "The checkpoint has tables that a TPU's SparseCores stacked, or the tables "
    "came from one, and they are made already. Restore it into a new "
    "TPUEmbeddingForServing, before the first lookup or build(); under a strategy "
    "with several replicas, which makes them at once, it cannot be restored."
)


class SavedLayouts(private.Folder):
    """The stacks of tables that a checkpoint describes, if any.

    A pending checkpoint is read when this object is tracked, before tables are
    made. A later checkpoint with stacks raises CheckpointError.
    """

    def __init__(self) -> None:
        self._text = b""
        self._is_settled = False

    def settle(self) -> dict[str, list[Any]]:
        """Returns each stack's layouts by its name, and fixes them."""
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

    A pending checkpoint is restored when this object is tracked. A later one
    raises CheckpointError: it is not known whether it has the stack or, since a
    stack of one table has the table's name, the table.

    Args:
      name: the name of the stack.
      layouts: the layouts of its tables, TensorFlow's SparseCoreTableLayouts.
      configs: the named TableConfigs of the tables to restore; other tables of
        the stack are skipped.

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
        """Returns the variables [vocabulary_size, dim] by table name."""
        return self._variables.value

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        # Declares the tensors to restore; saves have the tables one by one.
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
    """Returns the rows of a table, [vocabulary_size, dim], from its stack."""
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


def serving_embedding_lookup(
    inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any
) -> Any:
    """Looks features up in given tables, as TPUEmbedding does.

    Args:
      inputs: integer ids, or strings if the table's keys are strings: Tensors,
        SparseTensors of rank 2 or above, and RaggedTensors of rank 2,
        structured as feature_config or as a part of it. Features are matched by
        their keys in the structure, as in TensorFlow 2.21: dicts may omit
        features, tuples may omit the last ones, and `{1: ids}` is the second
        feature of a tuple. NumPy arrays and lists of ids become Tensors, lists
        of lists RaggedTensors. Or a batch of `pack_features`.
      weights: None, or a structure like `inputs` of None and float tensors of
        the type and structure of the ids.
      tables: the tables by TableConfig: a tf.Variable or Tensor
        [vocabulary_size, dim] of float32, float64, float16 or bfloat16, or a
        HashTable, such as `TPUEmbedding.embedding_tables`.
      feature_config: a FeatureConfig or a `tf.nest` structure of them.

    Returns:
      Structured as `inputs`: [B, dim] for Tensors [B] and [B, 1],
      RaggedTensors and SparseTensors; [B, max_sequence_length, dim] for
      sequence features, padded with zeros; [..., dim] for ids of higher rank.
      The dtype is the table's, as in TensorFlow, but float32 for a table
      without a vocabulary. Rows of float16 and bfloat16 are combined in
      float32.

    Raises:
      tfembed.errors.ArgumentError: inputs that are not a part of
        feature_config, or weights or types that do not fit; the text names the
        feature.
      tfembed.errors.MissingTableError: a table that is not in `tables`.
      tfembed.errors.UnsupportedError: input for a CustomCombiner; in a function
        for XLA also sequences of ragged input and sparse input of a rank above
        2.
      tfembed.errors.DtypeError: ids that are not of their table's dtype, or
        rows to combine that are not floats.
      ValueError, TypeError: weights that are not structured as `inputs`.
      tf.errors.InvalidArgumentError: an id outside of a static table.
    """
    if isinstance(inputs, PackedFeatures):
        return _serve_packed(inputs, weights, tables, feature_config)
    inputs = with_tensors(feature_config, inputs, as_ids)
    asked_for = _asked_for(inputs, feature_config)
    values = tf.nest.flatten(inputs)
    weight_values = [None] * len(values)
    if weights is not None:
        weights = with_tensors(feature_config, weights, as_weights)
        tf.nest.assert_same_structure(inputs, weights)
        weight_values = tf.nest.flatten(weights)
    outputs = look_up(
        [
            (path or "the only feature", feature)
            for path, feature in zip(
                feature_paths(inputs), asked_for, strict=True
            )
        ],
        values,
        weight_values,
        tables,
        SERVING,
    )
    return tf.nest.pack_sequence_as(inputs, outputs)


def _asked_for(inputs: Any, feature_config: Any) -> list[Any]:
    """Finds the FeatureConfig of each input by its keys in the structure."""
    features = tf.nest.flatten(feature_config)
    paths = feature_paths(feature_config)
    # If two features have one path ("a/b", and "b" in "a"), the last one
    # counts, as in TensorFlow, unless the keys are the same.
    by_path = dict(zip(paths, features, strict=True))
    by_keys = dict(zip(_keys(feature_config), features, strict=True))
    wanted = feature_paths(inputs)
    unknown = [path for path in wanted if path not in by_path]
    if unknown:
        raise errors.ArgumentError(
            f"Inputs {unknown} are not in feature_config, whose features are "
            f"{paths}. An input without keys is ''. Give the inputs, or a part "
            "of them, structured as feature_config."
        )
    return [
        by_keys.get(keys, by_path[path])
        for keys, path in zip(_keys(inputs), wanted, strict=True)
    ]


def _keys(structure: Any) -> list[tuple[str, ...]]:
    """Returns the keys of each leaf of a `tf.nest` structure."""
    found = tf.__internal__.nest.yield_flat_paths(structure)
    return [tuple(map(str, keys)) for keys in found]


def _serve_packed(
    packed: PackedFeatures, weights: Any, tables: Any, feature_config: Any
) -> Any:
    values, weight_values = unpacked(
        packed, feature_config, weights, by_tensorflow=True
    )
    return serving_embedding_lookup(
        tf.nest.pack_sequence_as(feature_config, values),
        tf.nest.pack_sequence_as(feature_config, weight_values),
        tables,
        feature_config,
    )


class TPUEmbeddingForServing(TapedEmbedding):
    """Serves tables that tfembed's or TensorFlow's TPUEmbedding trained.

    The calls are those of
    `tf.tpu.experimental.embedding.TPUEmbeddingForServing`, and so are the
    checkpoint keys:

        embedding = tfembed.TPUEmbeddingForServing(feature_config, None)
        tf.train.Checkpoint(embedding=embedding).restore(path).expect_partial()
        activations = embedding(features)

    Lookups prune and shape as TPUEmbedding's do. A tape may train the tables
    too, as those of TPUEmbeddingV0.

    Checkpoints of TPUs with SparseCores, which stack tables, are read too: all
    tables, without slots. Restore such a checkpoint before the first lookup.
    Later saves have the tables one by one.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them.
      optimizer: the optimizer whose slots are restored and saved too; None:
        slots are not restored.
      experimental_sparsecore_restore_info: None or a dict, as in TensorFlow; it
        is not used, since checkpoints have the same information.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        or a table name used twice.
      tfembed.errors.UnsupportedError: an option that is not in this release.
    """

    def __init__(
        self,
        feature_config: Any,
        optimizer: Any,
        experimental_sparsecore_restore_info: Any = None,
    ) -> None:
        if not isinstance(
            experimental_sparsecore_restore_info, (dict, type(None))
        ):
            raise errors.ArgumentError(
                "`experimental_sparsecore_restore_info` must be None or a dict; "
                f"got {experimental_sparsecore_restore_info!r}."
            )
        super().__init__(feature_config, optimizer, engine="host")

    def _restore_stacks(self) -> dict[str, tf.Variable]:
        layouts = private.track(self, LAYOUTS, SavedLayouts())
        restored: dict[str, tf.Variable] = {}
        for name, of_stack in layouts.settle().items():
            stack = StackedTables(name, of_stack, self._plan.tables)
            private.track(self, name, stack)  # Restores it.
            restored |= stack.variables
        return restored

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        # Stacks are read, but not written.
        children = super()._trackable_children(save_type, **kwargs)
        children.pop(LAYOUTS, None)
        for name, child in list(children.items()):
            if isinstance(child, StackedTables):
                del children[name]
                children |= child.variables
        return children

    def _lookup_dependency(
        self, name: str, cached_dependencies: Any = None
    ) -> Any:
        # Restores find the stacks.
        own = super()._lookup_dependency(name)
        if own is not None:
            return own
        return super()._lookup_dependency(name, cached_dependencies)

    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """Looks up some or all of the features by TensorFlow's ops.

        Arguments, results and errors are those of
        `tfembed.serving_embedding_lookup`.
        """
        return serving_embedding_lookup(
            features, weights, self.embedding_tables, self._plan.feature_config
        )
