"""TPUEmbedding: embeddings that train under any strategy, as on a TPU."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import activations as shaping
from tfembed.embedding import inputs
from tfembed.embedding.batch_queue import Batch
from tfembed.embedding.host_engine import EngineOptions, HostEngine
from tfembed.embedding.host_tables import TableSize
from tfembed.embedding.output_shapes import OutputShapes
from tfembed.embedding.plan import make_plan
from tfembed.embedding.replica_shares import replica_shares
from tfembed.embedding.replicas import Replicas
from tfembed.embedding.step_queue import QueueBound
from tfembed.embedding.tensorflow_names import TensorFlowNames
from tfembed.embedding.trained_lookup import TrainedLookup

__all__ = ["TPUEmbedding"]

# Users' functions are converted by AutoGraph; this has nothing to convert.
_not_converted = tf.autograph.experimental.do_not_convert


class TPUEmbedding(TensorFlowNames):
    """Looks features up in embedding tables and trains the tables.

    The calls are those of `tf.tpu.experimental.embedding.TPUEmbedding`, with its
    configs or tfembed's, under the default strategy, OneDeviceStrategy and
    MirroredStrategy, eagerly and in functions:

        embedding = tfembed.TPUEmbedding(feature_config, tfembed.SGD(0.1))

        @tf.function
        def step(features, labels):
            embedding.enqueue(features)
            activations = embedding.dequeue()
            with tf.GradientTape() as tape:
                tape.watch(activations)
                loss = ...
            embedding.apply_gradients(tape.gradient(loss, activations))

    Every enqueue is followed by one dequeue, and with `training=True` by one
    apply_gradients, of the same name and replica. They pair in the order in
    which they run, wherever each of them was traced. The gradients of a row are
    summed over all features and replicas of a step, and applied once.

    All activations have static shapes, so all batches have the same size. The
    tables live in host memory, once, whatever the strategy. They are saved with
    `tf.train.Checkpoint(embedding=embedding)`; those with a vocabulary under
    TensorFlow's keys, so that its checkpoints restore here and ours there.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them. Features
        with the same TableConfig object share a table.
      optimizer: of tables that have none of their own; None for tables that are
        never trained.
      pipeline_execution_with_tensor_core: whether the tables work while the
        model computes (in functions; eagerly one thing follows the other): a
        step's update runs beside the next step's model, and a batch that is
        enqueued ahead is looked up beside the model too. Activations are then
        one step stale, as on a TPU: they show all updates but the last. `flush`
        applies that one; reading `embedding_tables`, saving a checkpoint and
        enqueueing with training=False do it by themselves.
      nonfinite: what to do with a row whose summed gradient has a NaN or an
        infinity: "skip" it and count it in `sizes`, "refuse" the step before
        anything is changed, or "allow" it as TensorFlow does.
      max_enqueued, enqueue_timeout: where this many batches of a name and
        replica were not dequeued, enqueue waits for another thread to do that,
        at most this many seconds, and then raises.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        or a table name used twice.
      tfembed.errors.UnsupportedError: what is not in this release.
    """

    def __init__(
        self,
        feature_config: Any,
        optimizer: Any = None,
        pipeline_execution_with_tensor_core: bool = False,
        *,
        nonfinite: str = "skip",
        max_enqueued: int = 64,
        enqueue_timeout: float = 60.0,
    ) -> None:
        self._options = EngineOptions(
            nonfinite=nonfinite,
            bound=QueueBound(max_enqueued, enqueue_timeout),
            is_pipelined=bool(pipeline_execution_with_tensor_core),
        )
        self._replicas = Replicas()
        self._plan = make_plan(feature_config, optimizer)
        self._shapes = OutputShapes.configured(
            self._plan.features, self._plan.paths
        )
        self._engine: HostEngine | None = None

    def build(
        self,
        per_replica_input_shapes: Any = None,
        per_replica_batch_size: int | None = None,
    ) -> None:
        """Makes the tables; a second call does nothing.

        The first enqueue does it where nobody did.

        Args:
          per_replica_input_shapes: the tf.TensorShapes of one replica's inputs,
            structured as the features; or the batch size as an int.
          per_replica_batch_size: the samples of one replica.

        Raises:
          tfembed.errors.ArgumentError: shapes that contradict the configs or
            leave a dimension open. Without either argument, the first input
            settles the shapes.
        """
        if self._engine is not None:
            return
        shapes = self._shapes.with_given(
            per_replica_input_shapes, per_replica_batch_size
        )
        self._engine_or_new()
        self._shapes = shapes

    @_not_converted
    def enqueue(
        self,
        features: Any,
        weights: Any = None,
        training: bool = True,
        name: str | None = None,
        device: str | None = None,
    ) -> None:
        """Takes a batch in.

        Inside of strategy.run: this replica's batch. Outside: distributed
        values give each replica its share; plain tensors are every replica's,
        or with `device` that one's.

        Args:
          features: integer ids, or strings where the table's key_dtype is
            tf.string, structured as feature_config: Tensors [B], [..., 1];
            SparseTensors of rank 2 or above, of which the last dimension is
            combined; RaggedTensors of rank 2. Or all of them as `pack_features`
            gives them.
          weights: None, or a structure of None and float tensors of the type
            and structure of `features`.
          training: whether apply_gradients follows; else dequeue alone.
          name: pairs the calls of one of several lookups in a step.
          device: of a replica.

        Raises:
          tfembed.errors.ArgumentError: an input or shape that is not allowed.
          tfembed.errors.DtypeError: ids that are not of their table's dtype.
          tfembed.errors.StateError: another strategy than the object's.
          ValueError, TypeError: a structure that does not match.
          tf.errors.InvalidArgumentError: when it runs: `max_enqueued`.
        """
        self._replicas.check_strategy("enqueue")
        self._check_shapes_are_known()
        if training is False:
            self.flush()
        shapes, batches, formats = self._shapes, {}, []
        for share in replica_shares(
            self._plan, self._replicas, features, weights, device
        ):
            batch = inputs.read_batch(share.values, share.weights, shapes)
            shapes = batch.shapes
            batches[share.replica] = Batch(training, batch.ids)
            formats.append(batch.formats)
        self._engine_or_new().enqueue(name, batches, formats)
        self._shapes = shapes

    @_not_converted
    def dequeue(self, name: str | None = None) -> Any:
        """The activations of the batch that was enqueued, oldest first.

        Call it inside of strategy.run, where there are several replicas.

        Returns:
          Structured as feature_config, float32 [*output_shape, dim].

        Raises:
          tfembed.errors.StateError: before build and enqueue, or outside of
            strategy.run.
          tf.errors.InvalidArgumentError: when it runs: no batch is there, the
            last one's gradients were not applied, or an id cannot be in its
            table; it names the feature.
        """
        engine = self._built_engine("dequeue")
        replica = self._replicas.current_for("dequeue")
        activations = engine.dequeue(replica, name)
        return self._plan.pack(
            [
                shaping.with_shape(activation, self._activation_shape(i))
                for i, activation in enumerate(activations)
            ]
        )

    @_not_converted
    def apply_gradients(self, gradients: Any, name: str | None = None) -> None:
        """Updates the tables for the batch that was dequeued.

        Inside of strategy.run, every replica must call it, and not inside of a
        conditional or loop of the replica's function.

        Args:
          gradients: structured as feature_config: with respect to the
            activations, in their shape. None is a gradient of 0, which still
            decays what an optimizer decays.
          name: that of dequeue.

        Raises:
          tfembed.errors.StateError: before build and enqueue, outside of
            strategy.run, or a table has no optimizer.
          tfembed.errors.ArgumentError: a gradient that is no tensor or has
            another shape.
          tf.errors.InvalidArgumentError: when it runs: no batch was dequeued
            for training, or a gradient that is not finite is refused.
        """
        engine = self._built_engine("apply_gradients")
        self._replicas.current_for("apply_gradients")
        flat = self._plan.flatten(gradients, "gradients")
        formats = engine.formats(name)
        checked = [
            shaping.op_gradient(
                gradient,
                self._activation_shape(i),
                sequence_length=formats[i].sequence_length,
                path=self._plan.paths[i],
            )
            for i, gradient in enumerate(flat)
        ]
        self._replicas.merge(
            lambda per_replica: engine.apply_gradients(name, per_replica),
            checked,
        )

    @property
    def embedding_tables(self) -> dict[Any, Any]:
        """By TableConfig: a tf.Variable [vocabulary_size, dim] or a HashTable."""
        tables = self._engine_or_new().tables
        if tf.executing_eagerly():
            self.flush()
        return {
            config: table.parameters
            for config, table in zip(self._plan.tables, tables, strict=True)
        }

    def sizes(self) -> dict[str, TableSize]:
        """By table name: rows, bytes, bytes per row, skipped updates.

        Eager only.
        """
        self.flush()
        sizes = self._engine_or_new().sizes()
        names = [config.name for config in self._plan.tables]
        return dict(zip(names, sizes, strict=True))

    @property
    def feature_config(self) -> Any:
        """The structure of FeatureConfigs, as it was given."""
        return self._plan.feature_config

    def trained_lookup(self) -> TrainedLookup:
        """Lookups whose gradient trains the tables, for layers."""
        return TrainedLookup(self._plan, self._engine_or_new(), self._replicas)

    def flush(self) -> None:
        """Applies the update that waits for the next step.

        Only with `pipeline_execution_with_tensor_core` does one. Inside of
        strategy.run, every replica must call it.
        """
        if self._engine is not None and self._options.is_pipelined:
            engine = self._engine
            self._replicas.merge(lambda per_replica: engine.flush(), [])

    def reset_steps(self) -> None:
        """Forgets the batches that are enqueued or wait for their gradients.

        Call it after a step that failed half-way. Eager only.
        """
        if self._engine is not None:
            self._engine.reset()

    def _built_engine(self, call: str) -> HostEngine:
        if self._engine is None:
            raise errors.StateError(
                f"{call} called on unbuilt TPUEmbedding object. Please either "
                "call enqueue first or manually call the build method."
            )
        return self._engine

    def _engine_or_new(self) -> HostEngine:
        if self._engine is None:
            with tf.init_scope():
                self._engine = HostEngine(self, self._plan, self._options)
        return self._engine

    def _activation_shape(self, i: int) -> tf.TensorShape:
        return self._shapes.shapes[i].concatenate(self._plan.dim(i))
