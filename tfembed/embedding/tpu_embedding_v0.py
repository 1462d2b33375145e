"""TPUEmbeddingV0: lookups that a tape and any optimizer train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tfembed import errors
from tfembed.dynamic_embedding.training.step_gradients import (
    warn_without_gradients,
)
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.lookups.direct_lookup import V0, look_up
from tfembed.embedding.lookups.fused_lookup import look_up_fused
from tfembed.embedding.lookups.static_lookup import (
    look_up_static,
    rows_of_whole_tables,
)
from tfembed.embedding.replicas import summed_over_replicas
from tfembed.embedding.taped_embedding import TapedEmbedding
from tfembed.embedding.xla.taped_shards import TapedShards, are_sharded
from tfembed.embedding.xla.taped_training import (
    Trainings,
    made_for_all_replicas,
    sort_gradients,
)
from tfembed.ops.model_calls import note_lookup
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
    are tf.IndexedSlices with each id once.
    `embedding.apply_optimizer(optimizer, ...)` is the same step under any
    engine; it sums over replicas first, and is required if rows are sharded
    over replicas. That optimizer keeps its own slots; the slots of the
    constructor's `optimizer` are made and saved beside the tables, for
    checkpoints. Tables without a vocabulary are
    `tfembed.dynamic_embedding.Variable`s, trained by a
    `tfembed.dynamic_embedding.DynamicEmbeddingOptimizer` around any of these.

    In a function with `jit_compile=True`, the optimizers of tf.compat.v1 but
    GradientDescent and Adam want a dense gradient: `tf.convert_to_tensor` of
    it.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them. Features
        with the same TableConfig object share a table.
      optimizer: the optimizer whose slots the tables get; None: none.
      engine: "host": TPUEmbedding's op looks up in tables on a CPU;
        TensorFlow's own ops look up in other tables, in functions for XLA, and
        in exported models, which load without tfembed.
        "replicated": each replica has all tables. In functions for XLA, the
        lookup compiles for any device, for input of static shape; ids without a
        row give zeros, since XLA programs cannot raise. Elsewhere TensorFlow's
        own ops look up.
        "xla": as "replicated", but under a TPUStrategy row i is only on replica
        i % replicas, and `apply_optimizer` trains.
        "auto": "replicated" under a TPUStrategy, else "host"; see `describe`.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        a table name used twice, or an engine that cannot hold a table.
      tfembed.errors.UnsupportedError: an option that is not in this release.
    """

    def __init__(
        self, feature_config: Any, optimizer: Any, *, engine: str = "auto"
    ) -> None:
        self._shards: TapedShards | None = None
        self._trainings = Trainings()
        super().__init__(feature_config, optimizer, engine)

    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """Looks the features up.

        Sparse and ragged input is gathered id by id, never as a dense matrix,
        and never pruned: a negative id is an error, and a negative weight
        counts. Gradients are of first order, with respect to tables and
        weights.

        Args:
          features: integer ids, structured as feature_config: Tensors of any
            rank, SparseTensors of rank 2 or above, RaggedTensors of rank 2;
            arrays and lists as in `TPUEmbedding.enqueue`. Or a batch of
            `pack_features`.
          weights: None, or a structure like `features` of None and float
            tensors of the type and structure of the ids.

        Returns:
          Structured as feature_config, float32: Tensors [...] give [..., dim];
          others combine their last dimension. Sequence features of rank 2 give
          [B, max_sequence_length, dim], padded with zeros. An output shape of B
          elements combines and reshapes; one of B * L elements makes sequences
          of length L.

        Raises:
          ValueError, TypeError: a structure that does not match.
          tfembed.errors.ArgumentError: an input or weights that do not fit
            their feature; with engine="xla" in a function for XLA, also a size
            that is not known when it is traced.
          tfembed.errors.DtypeError: ids that are not integers.
          tfembed.errors.StateError: another strategy than the object's.
          tfembed.errors.UnsupportedError: in a function for XLA, without
            engine="replicated" or "xla": sequences of ragged input, and sparse
            input of a rank above 2.
          tf.errors.InvalidArgumentError: an id outside of its table, when it
            runs.
        """
        self._replicas.check_strategy("A lookup")
        if isinstance(features, PackedFeatures):
            values, weight_values = unpacked(
                features, self._plan.feature_config, weights, by_tensorflow=True
            )
        else:
            values = self._plan.flatten_inputs(features, "features")
            weight_values = [None] * len(values)
            if weights is not None:
                weight_values = self._plan.flatten_inputs(weights, "weights")
        features_of = list(
            zip(self._plan.paths, self._plan.features, strict=True)
        )
        tables = self.embedding_tables
        for table in tables.values():
            note_lookup(table)
        if self._shards is not None:
            self._shards.check_inside_run("A lookup")
            outputs = look_up_static(
                features_of, values, weight_values, self._shards.find_rows
            )
        elif self._is_static and traced_for_xla():
            outputs = look_up_static(
                features_of, values, weight_values, rows_of_whole_tables(tables)
            )
        elif self._is_static:
            # A function for XLA may call the function that is traced here.
            outputs = look_up(features_of, values, weight_values, tables, V0)
        else:
            outputs = look_up_fused(features_of, values, weight_values, tables)
        return self._plan.pack(outputs)

    def build_optimizer(
        self, optimizer: Any, variables: Iterable[Any] = ()
    ) -> None:
        """Makes an optimizer's slots for the tables and other variables.

        Without it `apply_optimizer` makes them, for the variables of its first
        step. Call it before the restore of a checkpoint that must be complete.

        Args:
          optimizer: an optimizer of Keras 3, tf_keras or tf.compat.v1.train.
          variables: the other variables that it trains, of a model.

        Raises:
          tfembed.errors.ArgumentError: another object, or, if rows are sharded
            over replicas, a second optimizer of the same name.
          tfembed.errors.UnsupportedError: with such rows, an optimizer that
            cannot train single rows; the text says why.
        """
        _check_is_optimizer(optimizer)
        own = self.trainable_variables
        others = list(variables)
        if self._shards is not None:
            self._trainings.of(self, self._shards, optimizer)
            own = []
        if hasattr(optimizer, "build") and own + others:
            self._build_for(optimizer, own + others)

    def apply_optimizer(
        self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]]
    ) -> None:
        """Takes one step of an optimizer, under every engine and strategy.

        It works as `optimizer.apply_gradients`, but sums the gradients of a row
        over all replicas first; an optimizer of Keras 3 alone would apply those
        of several replicas separately. If rows are sharded over replicas
        (engine="xla" under a TPUStrategy), the owner of a row runs the
        optimizer's update, with a gradient of 0 for its other rows, as on a
        dense variable. An unbuilt optimizer of Keras 3 is built for the given
        variables.

        Args:
          optimizer: an optimizer of Keras 3, tf_keras or tf.compat.v1.train.
          grads_and_vars: pairs of a gradient and one of `trainable_variables`,
            or another variable, which the optimizer updates in the same step.
            Variables whose gradient is None are not updated, with a warning
            that names them.

        Raises:
          tfembed.errors.ArgumentError: not an optimizer, or no gradient. If
            rows are sharded over replicas also a table's gradient that is not
            tf.IndexedSlices, a repeated table, or a table of another object.
          tfembed.errors.StateError: another strategy than the object's; with
            such rows, outside of strategy.run.
          tfembed.errors.UnsupportedError: with such rows, an optimizer that
            cannot train single rows; the text says why.
        """
        _check_is_optimizer(optimizer)
        self._replicas.check_strategy("A step")
        pairs = list(grads_and_vars)
        self.build()
        if self._shards is None:
            own = {id(table) for table in self.trainable_variables}
            self._build_unbuilt(optimizer, pairs)
            optimizer.apply_gradients(
                [
                    (summed_over_replicas(g) if id(v) in own else g, v)
                    for g, v in _with_gradients(pairs)
                ]
            )
            return
        self._shards.check_inside_run("A step")
        gradients, dense = sort_gradients(self._shards, _with_gradients(pairs))
        training = self._trainings.of(self, self._shards, optimizer)
        self._build_unbuilt(optimizer, dense)
        training.apply(gradients, dense)

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each exchange of a lookup so far.

        The keys are the names of the tables that share an exchange; {} if
        nothing is exchanged.
        """
        self.build()
        return {} if self._shards is None else self._shards.exchange_rounds()

    def _make_tables(self) -> list[HostTable]:
        if not are_sharded(self._choices.of_tables[0].engine, self._strategy):
            return super()._make_tables()
        self._shards = TapedShards(self, self._plan, self._strategy)
        return self._shards.tables

    def _build_unbuilt(
        self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]
    ) -> None:
        """Builds an optimizer of Keras 3 outside of the replicas' step."""
        if pairs and not getattr(optimizer, "built", True):
            self._build_for(optimizer, [variable for _, variable in pairs])

    def _build_for(self, optimizer: Any, variables: list[Any]) -> None:
        def build() -> None:
            with self._scope():
                optimizer.build(variables)

        made_for_all_replicas(build)

    @property
    def _is_static(self) -> bool:
        return self._choices.of_tables[0].engine in ("replicated", "xla")


def _with_gradients(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Returns the pairs that have a gradient; warns of other variables.

    Optimizers of tf.compat.v1 leave such pairs out silently.

    Raises:
      tfembed.errors.ArgumentError: no pair has a gradient.
    """
    found = [(g, v) for g, v in pairs if g is not None]
    if not found:
        raise errors.ArgumentError(
            "No variable has a gradient. Look features up, and compute the "
            "loss, inside the tape."
        )
    warn_without_gradients([v for g, v in pairs if g is None])
    return found


def _check_is_optimizer(optimizer: Any) -> None:
    if hasattr(optimizer, "apply_gradients"):
        return
    raise errors.ArgumentError(
        "`optimizer` must be one of Keras 3, tf_keras or tf.compat.v1.train; got "
        f"{optimizer!r}. Those of tfembed.optimizers train TPUEmbedding."
    )
