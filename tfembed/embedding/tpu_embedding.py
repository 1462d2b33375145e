"""TPUEmbedding: embeddings that train under any strategy, as on a TPU."""

from __future__ import annotations

import numbers
from typing import Any

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.eager_calls import EagerCalls
from tfembed.embedding.engine_options import EngineOptions
from tfembed.embedding.engines.choice import choose_engines
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.plan import check_all_train, make_plan
from tfembed.embedding.replicas import Replicas, is_tpu
from tfembed.embedding.step_calls import StepCalls
from tfembed.embedding.steps.recent_names import RecentNames
from tfembed.embedding.steps.step_forms import StepForms
from tfembed.embedding.steps.step_queue import QueueBound
from tfembed.embedding.trained_lookup import TrainedLookup

__all__ = ["TPUEmbedding"]


class TPUEmbedding(StepCalls):
    """Looks features up in embedding tables and trains the tables.

    The calls are those of `tf.tpu.experimental.embedding.TPUEmbedding`, with its
    configs or tfembed's, under the default strategy, OneDeviceStrategy,
    MirroredStrategy and TPUStrategy, eagerly and in functions:

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
    which they run, wherever they were traced. The gradients of a row are summed
    over all features and replicas of a step, and applied once.

    All activations have static shapes, so all batches have the same size. Tables
    live where their engine keeps them (`engine`). They are saved with
    `tf.train.Checkpoint(embedding=embedding)`; those with a vocabulary under
    TensorFlow's keys, so that its checkpoints restore here and ours there, into
    any engine.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them. Features
        with the same TableConfig object share a table.
      optimizer: of tables that have none; None for tables that are never
        trained, but not under a TPUStrategy.
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
      engine: where the tables live: "host" in host memory, once, for all
        replicas; "xla" in device memory, rows sharded over the replicas; "tpu"
        in the TPU's embedding engine; "auto" chooses for each table, and
        `describe` says what and why. Those without a vocabulary are always on
        the host.
      max_enqueued, enqueue_timeout: where this many batches of a name, replica
        and type of input were not dequeued, enqueue waits for another thread to
        do that, at most this many seconds, and then raises.
      strict_tpu: whether enqueue refuses under any strategy what a TPUStrategy
        refuses: ids that are computed inside of strategy.run or are not on the
        host, and control flow around enqueue inside of strategy.run.

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
        engine: str = "auto",
        nonfinite: str = "skip",
        max_enqueued: int = 64,
        enqueue_timeout: float = 60.0,
        strict_tpu: bool = False,
    ) -> None:
        self._options = EngineOptions(
            nonfinite=nonfinite,
            bound=QueueBound(max_enqueued, enqueue_timeout),
            is_pipelined=bool(pipeline_execution_with_tensor_core),
        )
        self._replicas = Replicas(type(self).__name__)
        self._plan = make_plan(feature_config, optimizer)
        if is_tpu(self._replicas.strategy):
            check_all_train(self._plan)
        self._choices = choose_engines(
            self._plan, engine, self._replicas.strategy, nonfinite
        )
        self._shapes = OutputShapes.configured(
            self._plan.features, self._plan.paths
        )
        # What is looked up inside of a TPU's step may be computed there.
        self._strict_tpu = strict_tpu or (
            is_tpu(self._replicas.strategy)
            and any(one.engine != "xla" for one in self._choices.of_tables)
        )
        self._eager_calls = EagerCalls(
            self._plan,
            self._choices,
            is_pipelined=self._options.is_pipelined,
        )
        self._tables_with_gradients: set[str] = set()
        self._names = RecentNames(self._forget)
        self._forms = StepForms(
            max_enqueued,
            takes_several=self._choices.all_on_host
            and not self._choices.on_tpu
            and not self._options.is_pipelined,
        )

    def build(
        self,
        per_replica_input_shapes: Any = None,
        per_replica_batch_size: int | None = None,
    ) -> None:
        """Settles the shapes of batches, and makes the tables.

        The first enqueue does both where nobody did. Once the shapes are known,
        another call does nothing.

        Args:
          per_replica_input_shapes: the tf.TensorShapes of one replica's inputs,
            structured as the features, or listed in the order of
            `tf.nest.flatten`; or the batch size as an int.
          per_replica_batch_size: the samples of one replica.

        Raises:
          tfembed.errors.ArgumentError: shapes that contradict the configs or
            leave a dimension open. Without either argument, the first input
            settles the shapes.
          ValueError, TypeError: a structure that does not match.
        """
        if self._engine is not None and self._shapes.are_defined:
            return
        if not isinstance(
            per_replica_input_shapes, (numbers.Integral, type(None))
        ):
            per_replica_input_shapes = self._plan.flatten_shapes(
                per_replica_input_shapes, "per_replica_input_shapes"
            )
        shapes = self._shapes.with_given(
            per_replica_input_shapes, per_replica_batch_size
        )
        self._engine_or_new(shapes)
        self._shapes = shapes

    @property
    def embedding_tables(self) -> dict[Any, Any]:
        """By TableConfig: a tf.Variable [vocabulary_size, dim] or a HashTable."""
        tables = self._engine_or_new().tables
        self._bring_up_to_date()
        return {
            config: table.parameters
            for config, table in zip(self._plan.tables, tables, strict=True)
        }

    @property
    def feature_config(self) -> Any:
        """The structure of FeatureConfigs, as it was given."""
        return self._plan.feature_config

    def __deepcopy__(self, memo: Any) -> TPUEmbedding:
        raise errors.StateError(
            "A TPUEmbedding cannot be copied in memory: its tables exist once. "
            "Make another one, and bring the tables over by "
            "tf.train.Checkpoint."
        )

    def __reduce__(self) -> Any:
        raise errors.StateError(
            "A TPUEmbedding cannot be pickled. Save it by tf.train.Checkpoint, "
            "and restore that into another one."
        )

    def _create_copy_for_async_checkpoint(
        self,
        feature_config: Any,
        optimizer: Any,
        pipeline_execution_with_tensor_core: bool,
    ) -> TPUEmbedding:
        """One of the same configs, without tables.

        tf.train.Checkpoint asks for it, and knows embeddings by this name.
        """
        # The tables have theirs; TensorFlow passes a TableConfig here.
        del optimizer
        return TPUEmbedding(
            feature_config,
            None,
            pipeline_execution_with_tensor_core,
        )

    def trained_lookup(self) -> TrainedLookup:
        """Lookups whose gradient trains the tables, for layers."""
        return TrainedLookup(
            self._plan,
            self._engine_or_new(),
            self._replicas,
            self._tables_with_gradients,
        )


private.note_callback_of(TPUEmbedding)
