"""TPUEmbeddingForServing: the tables of a trained TPUEmbedding, looked up."""

from __future__ import annotations

from typing import Any

from tfembed import errors
from tfembed.embedding.serving import serving_embedding_lookup
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

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them.
      optimizer: whose slots are restored and saved too; None leaves them in
        the checkpoint.
      experimental_sparsecore_restore_info: not in this release.

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
        if experimental_sparsecore_restore_info is not None:
            raise errors.UnsupportedError(
                "`experimental_sparsecore_restore_info` (checkpoints of the "
                "SparseCore's stacked tables) is not in this release. Restore "
                "such a checkpoint with TensorFlow, and save its tables again."
            )
        super().__init__(feature_config, optimizer, engine="host")

    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """Looks some or all of the features up, by stock TensorFlow ops.

        Arguments, results and errors are those of
        `tfembed.serving_embedding_lookup`.
        """
        return serving_embedding_lookup(
            features, weights, self.embedding_tables, self._plan.feature_config
        )
