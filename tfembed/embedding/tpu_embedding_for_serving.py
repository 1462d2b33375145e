"""TPUEmbeddingForServing: the tables of a trained TPUEmbedding, looked up."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.serving import serving_embedding_lookup
from tfembed.embedding.stacked_tables import (
    LAYOUTS,
    SavedLayouts,
    StackedTables,
)
from tfembed.embedding.taped_embedding import TapedEmbedding

__all__ = ["TPUEmbeddingForServing"]


class TPUEmbeddingForServing(TapedEmbedding):
    """Serves tables that TPUEmbedding trained, ours or TensorFlow's.

    The calls are those of
    `tf.tpu.experimental.embedding.TPUEmbeddingForServing`, and so are the
    checkpoint keys:

        embedding = tfembed.TPUEmbeddingForServing(feature_config, None)
        tf.train.Checkpoint(embedding=embedding).restore(path).expect_partial()
        activations = embedding(features)

    Lookups prune and shape as TPUEmbedding's do. The tables may be trained by a
    tape too, as those of TPUEmbeddingV0.

    Checkpoints of TPUs with SparseCores, which stack tables, are read too: all
    tables, without slots. Restore one before the first lookup. What is saved
    then has the tables one by one, as other checkpoints.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them.
      optimizer: whose slots are restored and saved too; None leaves them in
        the checkpoint.
      experimental_sparsecore_restore_info: None or a dict, as in TensorFlow;
        checkpoints themselves say all that it could.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        or a table name used twice.
      tfembed.errors.UnsupportedError: what is not in this release.
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
        # Stacks are read and not written.
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
        """Looks some or all of the features up, by stock TensorFlow ops.

        Arguments, results and errors are those of
        `tfembed.serving_embedding_lookup`.
        """
        return serving_embedding_lookup(
            features, weights, self.embedding_tables, self._plan.feature_config
        )
