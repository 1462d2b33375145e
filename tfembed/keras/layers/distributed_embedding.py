"""One Keras layer for all embedding features of a model."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfembed import embedding, errors
from tfembed.dynamic_embedding.keras import row_files
from tfembed.keras.output_specs import output_specs

__all__ = ["DistributedEmbedding"]


class DistributedEmbedding(keras.layers.Layer):
    """Looks all features of a model up, and trains their tables by itself.

    As the layer of that name in keras-rs, which needs a TPU for its tables:

        layer = tfembed.keras.layers.DistributedEmbedding(
            {"user": tfembed.FeatureConfig(users),
             "watched": tfembed.FeatureConfig(items, max_sequence_length=20)},
            optimizer=tfembed.Adagrad(0.1),
        )
        activations = layer(inputs)

    The tables are those of `embedding`, a `tfembed.TPUEmbedding`: with a fixed
    vocabulary or growing with their ids, under the default strategy, OneDevice
    and Mirrored. They are no weights of Keras': they move when a tape
    differentiates for the layer's only weight, as `Model.fit` does for all
    trainable ones, by the optimizer given here. The model's optimizer trains the
    rest. A layer that is not trainable, or that is called with training=False,
    looks up only.

    Batches may have any size, the last one of an epoch too. Tables are saved
    with the model's weights, slots included, and in checkpoints as
    `<layer>/embedding/...`.

    Under a float16 policy the loss is scaled, and so are the gradients that reach
    the tables: set `loss_scale_optimizer` to the model's optimizer, or to False
    where the loss is not scaled.

    Args:
      feature_configs: a FeatureConfig or a structure of them, without output
        shapes.
      optimizer: of tables that have none of their own; None for tables that are
        never trained.
      nonfinite: as for `tfembed.TPUEmbedding`.
      **kwargs: of keras.layers.Layer.

    Raises:
      As `tfembed.TPUEmbedding`.
    """

    def __init__(
        self,
        feature_configs: Any,
        optimizer: Any = None,
        *,
        nonfinite: str = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Keras would choose XLA where there is a GPU; tables are on the host.
        self.supports_jit = False
        self.embedding = embedding.TPUEmbedding(
            feature_configs, optimizer, nonfinite=nonfinite
        )
        self.loss_scale_optimizer: Any = None
        self._trap = self.add_weight(
            name="trap", shape=(), initializer="zeros", autocast=False
        )
        self.built = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras' call; it takes a packed batch by keyword alone."""
        if isinstance(inputs, embedding.PackedFeatures):
            return super().__call__(*args, inputs=inputs, **kwargs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Any, weights: Any = None, training: Any = None
    ) -> Any:
        """The activations, in the layer's compute dtype.

        Args:
          inputs: integer ids, structured as the features: Tensors [B] and
            [B, 1]; [B, n] whose ids are combined, or a sequence; SparseTensors;
            RaggedTensors of rank 2; or what `preprocess` returns.
          weights: None, or a structure like `inputs` of None and float tensors of
            the type and structure of sparse and ragged ids.
          training: False: the tables do not move.

        Returns:
          Structured as the features: [B, dim], or [B, max_sequence_length, dim].
        """
        is_trained = self.trainable and training is not False
        activations = self.embedding.trained_lookup().look_up(
            inputs,
            weights,
            trap=tf.convert_to_tensor(self._trap) if is_trained else None,
            scale=self._loss_scale,
        )
        return tf.nest.map_structure(
            lambda a: tf.cast(a, self.compute_dtype), activations
        )

    def preprocess(self, inputs: Any, weights: Any = None) -> Any:
        """`tfembed.pack_features`, for `Dataset.map`: fewer tensors a step."""
        return embedding.pack_features(inputs, weights)

    def get_embedding_tables(self) -> dict[str, Any]:
        """By name: a tf.Variable [vocabulary_size, dim], or a HashTable."""
        tables = self.embedding.embedding_tables
        return {config.name: table for config, table in tables.items()}

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: Any = None
    ) -> Any:
        """What a functional model gets."""
        del weights, training
        return output_specs(
            self.embedding.feature_config, inputs, self.compute_dtype
        )

    def get_config(self) -> dict[str, Any]:
        """Not there: configs hold functions and shared tables."""
        raise errors.UnsupportedError(
            f"Layer '{self.name}' cannot be made from a saved config: its "
            "FeatureConfigs may hold functions. Save with `save_weights`, a "
            "tf.train.Checkpoint or `export`, and build the model in code."
        )

    def save_own_variables(self, store: Any) -> None:
        """Writes tables and slots."""
        row_files.write_store(_Rows(self), store)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote.

        Raises:
          tfembed.errors.CheckpointError: it did not.
        """
        row_files.read_store(_Rows(self), store)

    def _loss_scale(self) -> Any:
        optimizer = self.loss_scale_optimizer
        if optimizer is None and self.compute_dtype == "float16":
            raise errors.StateError(
                f"Layer '{self.name}' computes in float16 and does not know the "
                "loss scale. Set its `loss_scale_optimizer` to the model's "
                "LossScaleOptimizer (after `compile`: model.optimizer), or to "
                "False where the loss is not scaled."
            )
        if not optimizer or not hasattr(optimizer, "dynamic_scale"):
            return 1.0
        if not optimizer.built:
            return optimizer.initial_scale
        return tf.convert_to_tensor(optimizer.dynamic_scale)


class _Rows(tf.Module):
    """The tables of a layer, under the layer's name."""

    def __init__(self, layer: DistributedEmbedding) -> None:
        super().__init__(name="rows")
        self.embedding = layer.embedding
        self.embedding.build()
