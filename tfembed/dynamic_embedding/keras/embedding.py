"""The layer that gives one row for each id."""

from __future__ import annotations

from typing import Any

import keras

from tfembed.dynamic_embedding.keras.table_layer import TableLayer

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable(package="tfembed")
class Embedding(TableLayer):
    """Looks ids up in a table of its own: ids.shape -> ids.shape + [size].

    The table needs no vocabulary: an id that nobody trained has its initial row,
    and is inserted when a training step has looked it up. Evaluation and
    prediction insert nothing. Repeated ids, and several calls in one step, each
    count. Compile the model with `DynamicEmbeddingOptimizer`.

    A layer has a table of its own; only calls of the same layer share rows.
    `clone_model` and `from_config` make layers with empty tables; `copy.deepcopy`
    and pickling copy the rows. `get_weights` and `set_weights` leave rows alone.

    Args:
      embedding_size: floats per row.
      key_dtype, value_dtype: of ids and rows, as of `Variable`.
      combiner: what `SquashedEmbedding` and `FieldWiseEmbedding` combine by.
      initializer: what missing ids read, as of `Variable`; None: Keras'
        RandomNormal().
      devices: one shard each, as of `Variable`.
      name: the layer's. The table is called `<name>-parameter`.
      with_unique: whether to fetch each distinct id of a call once.
      short_file_name: accepted for TFRA's sake.
      **kwargs: `bp_v2`, `restrict_policy`, `partitioner`, `kv_creator`,
        `admission`, `eviction`, `expiry`, `max_size`, `stochastic_rounding`: as
        of `Variable`;
        `checkpoint`: as of `Variable`, and where False Keras' files leave the
        rows out too, with a warning; `init_capacity`: keys to make room for;
        `max_norm`: rows that are longer (L2) are scaled down to it; and what any
        Keras layer takes, such as `trainable`.

    Attributes:
      params: the `Variable`.
      embedding_size, combiner, with_unique, max_norm: as given.

    Raises:
      tfembed.errors.UnsupportedError: `distribute_strategy`, or a Keras that
        runs on another backend than TensorFlow.
      As `Variable`.

    Example:
      embed = Embedding(8, name="users")
      embed(tf.constant([[15, 2], [4, 92]], tf.int64)).shape  # [2, 2, 8]
    """

    def call(self, ids: Any) -> Any:
        """The rows of `ids`, a tensor of any shape or a tf.RaggedTensor."""
        return self.look_up(ids)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """ids.shape + [size]."""
        return (*input_shape, self.embedding_size)
