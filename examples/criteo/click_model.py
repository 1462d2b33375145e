"""The whole model: 26 hash tables behind TPUEmbedding, and the DLRM on top."""

from __future__ import annotations

import dataclasses

import keras
import tensorflow as tf

import tfembed
from criteo import features
from criteo.dlrm import Dlrm
from tfembed.data.criteo import CATEGORY_NAMES


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Width and initial rows of the tables, and their optimizer."""

    dim: int = 16
    row_range: float = 0.05
    learning_rate: float = 0.1
    seed: int = 0


class ClickModel(tf.Module):
    """Predicts clicks from integers and categories.

    Attributes:
      embedding: a table without a vocabulary for each category.
      network: the dense part.
      decay: what the tables' learning rate is multiplied by, set by training.
    """

    def __init__(self, options: ModelOptions | None = None) -> None:
        super().__init__()
        options = options or ModelOptions()
        self.decay = tf.Variable(1.0, trainable=False, name="decay")
        tables = [
            tfembed.TableConfig(
                vocabulary_size=None,
                dim=options.dim,
                name=name,
                initializer=tf.random_uniform_initializer(
                    -options.row_range, options.row_range
                ),
                seed=options.seed + place,
            )
            for place, name in enumerate(CATEGORY_NAMES)
        ]
        self._feature_config = [tfembed.FeatureConfig(it) for it in tables]
        self.embedding = tfembed.TPUEmbedding(
            self._feature_config,
            tfembed.Adagrad(lambda: options.learning_rate * self.decay),
        )
        keras.utils.set_random_seed(options.seed)
        self.network = Dlrm(options.dim)

    def probabilities(
        self, integers: tf.Tensor, categories: tf.Tensor
    ) -> tf.Tensor:
        """The probability of a click, from raw columns.

        Args:
          integers: float32 [n, 13], NaN where missing.
          categories: string [n, 26], "" where missing.

        Returns:
          float32 [n].
        """
        keys = tf.unstack(features.keys(categories), axis=1)
        rows = tfembed.serving_embedding_lookup(
            keys, None, self.embedding.embedding_tables, self._feature_config
        )
        dense = features.dense_features(integers)
        return tf.sigmoid(self.network(dense, rows))
