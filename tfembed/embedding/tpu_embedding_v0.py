"""TPUEmbeddingV0: lookups that a tape and any optimizer train."""

from __future__ import annotations

from typing import Any

from tfembed.embedding.direct_lookup import V0, look_up
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.static_lookup import look_up_static
from tfembed.embedding.taped_embedding import TapedEmbedding
from tfembed.ops.private import traced_for_xla

__all__ = ["TPUEmbeddingV0"]


class TPUEmbeddingV0(TapedEmbedding):
    """Looks features up in tables that are ordinary trainable variables.

    The calls are those of `tf.tpu.experimental.embedding.TPUEmbeddingV0`, under
    the default strategy, OneDeviceStrategy, MirroredStrategy and TPUStrategy
    (static tables), in eager mode, in functions and under XLA:

        embedding = tfembed.TPUEmbeddingV0(feature_config, None)
        tables = list(embedding.embedding_tables.values())

        @tf.function
        def step(features, labels):
            with tf.GradientTape() as tape:
                loss = model(embedding(features), labels)
            optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    The optimizer is one of Keras 3, tf_keras or `tf.compat.v1.train`; gradients
    are tf.IndexedSlices. It keeps its own slots; those of the argument are made
    and saved beside the tables, for checkpoints. Tables without a vocabulary are
    `tfembed.dynamic_embedding.Variable`s, trained by a
    `tfembed.dynamic_embedding.DynamicEmbeddingOptimizer` around any of these.

    In a function with `jit_compile=True`, the optimizers of tf.compat.v1 but
    GradientDescent and Adam want a dense gradient: `tf.convert_to_tensor` of it.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them. Features
        with the same TableConfig object share a table.
      optimizer: whose slots the tables get; None: none.
      engine: "host": TensorFlow's own ops look up, wherever the step runs; "xla":
        in functions for XLA, ops that it compiles for any device do, for input
        of static shape, and ids without a row give zeros, since no such program
        can raise; elsewhere as "host". "auto" takes "xla" under a TPUStrategy,
        and `describe` says so. With several replicas, each has all tables whole;
        TPUEmbedding spreads them.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        a table name used twice, or an engine that cannot hold a table.
      tfembed.errors.UnsupportedError: what is not in this release.
    """

    def __init__(
        self, feature_config: Any, optimizer: Any, *, engine: str = "auto"
    ) -> None:
        super().__init__(feature_config, optimizer, engine)

    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """Looks the features up.

        Sparse and ragged input is gathered id by id, never as a dense matrix,
        and never pruned: an id below 0 is an error and a weight below 0 counts.

        Args:
          features: integer ids, structured as feature_config: Tensors of any
            rank, SparseTensors of rank 2 or above, RaggedTensors of rank 2. Or
            all of them as `pack_features` gives them.
          weights: None, or a structure like `features` of None and float tensors
            of the type and structure of the ids.

        Returns:
          Structured as feature_config, float32: Tensors [...] give [..., dim];
          others combine their last dimension. Sequence features of rank 2 give
          [B, max_sequence_length, dim], padded with zeros. An output shape of B
          elements combines and reshapes; one of B * L elements makes sequences
          of length L.

        Raises:
          ValueError, TypeError: a structure that does not match.
          tfembed.errors.ArgumentError: an input or weights that do not fit their
            feature; with engine="xla" in a function for XLA, also a size that is
            not known when it is traced.
          tfembed.errors.DtypeError: ids that are not integers.
          tf.errors.InvalidArgumentError: an id outside of its table, when it
            runs.
        """
        if isinstance(features, PackedFeatures):
            values, weight_values = unpacked(
                features, self._plan.feature_config, weights, by_tensorflow=True
            )
        else:
            values = self._plan.flatten(features, "features")
            weight_values = [None] * len(values)
            if weights is not None:
                weight_values = self._plan.flatten(weights, "weights")
        features_of = list(
            zip(self._plan.paths, self._plan.features, strict=True)
        )
        tables = self.embedding_tables
        if self._is_xla and traced_for_xla():
            outputs = look_up_static(features_of, values, weight_values, tables)
        else:
            outputs = look_up(features_of, values, weight_values, tables, V0)
        return self._plan.pack(outputs)

    @property
    def _is_xla(self) -> bool:
        return any(one.engine == "xla" for one in self._choices.of_tables)
