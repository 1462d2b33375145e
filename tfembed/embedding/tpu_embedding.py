"""TPUEmbedding: embeddings that train under any strategy, as on a TPU."""

from __future__ import annotations

import dataclasses
import numbers
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.table_config import TablesByConfig
from tfembed.embedding import private
from tfembed.embedding.engines.choice import EngineChoices, choose_engines
from tfembed.embedding.engines.engine import EngineOptions
from tfembed.embedding.engines.router import EngineRouter, engine_groups
from tfembed.embedding.features.output_shapes import (
    WAYS_OUT,
    OutputShapes,
    with_shape,
)
from tfembed.embedding.host.tables import HostTable, TableSize
from tfembed.embedding.lookups.trained_lookup import TrainedLookup
from tfembed.embedding.plan import (
    MAKING,
    EmbeddingPlan,
    PlanNames,
    check_all_train,
    make_plan,
)
from tfembed.embedding.replicas import (
    ReplicaInputs,
    Replicas,
    check_plumbing,
    is_tpu,
    replica_inputs,
)
from tfembed.embedding.steps.eager_calls import EagerCalls
from tfembed.embedding.steps.pipeline import warn_of_early_flush
from tfembed.embedding.steps.step_forms import RecentNames, StepForms, StepName
from tfembed.embedding.steps.step_queue import QueueBound
from tfembed.embedding.steps.table_rates import TableRates
from tfembed.embedding.tpu.tensorflow_configs import config_proto
from tfembed.ops.private import is_recomputed

__all__ = [
    "TPUEmbedding",
    "owner_of",
]

# id(variable of a table) -> embedding; both have the same lifetime.
_OWNERS: weakref.WeakValueDictionary[int, TPUEmbedding] = (
    weakref.WeakValueDictionary()
)


def owner_of(variable: Any) -> TPUEmbedding | None:
    """Returns the embedding that has a variable in its `embedding_tables`."""
    return _OWNERS.get(id(variable))


def _handle(resource: Any) -> tf.Tensor:
    """Returns the handle of a variable or of a queue."""
    if isinstance(resource, tf.Variable):
        return resource.handle
    return resource.resource_handle


# AutoGraph converts users' functions; this one has nothing to convert.
_not_converted = tf.autograph.experimental.do_not_convert


class TPUEmbedding(PlanNames, tf.__internal__.tracking.AutoTrackable):
    """Looks features up in embedding tables and trains the tables.

    The calls are those of `tf.tpu.experimental.embedding.TPUEmbedding`, with
    its configs or tfembed's, under the default strategy, OneDeviceStrategy,
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

    All activations have static shapes. `build` or the first batch sets the
    batch size; with tables in host memory, a batch of another size, as the last
    one of a data set, is looked up and trained too, unless the size was given.
    `engine` decides where tables are.
    `tf.train.Checkpoint(embedding=embedding)` saves them; tables with a
    vocabulary have TensorFlow's keys, so that tfembed and TensorFlow restore
    each other's checkpoints, with any engine.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them. Features
        with the same TableConfig object share a table.
      optimizer: the optimizer of tables that have none; None for tables that
        are never trained, but not under a TPUStrategy.
      pipeline_execution_with_tensor_core: whether lookups and updates run
        concurrently with the model (in functions, not in eager mode): a step's
        update runs beside the next step's model, and so does the lookup of a
        batch that is enqueued ahead. Activations are then one step stale, as on
        a TPU: they have all updates but the last. `flush` applies that one;
        reading `embedding_tables`, saving a checkpoint and enqueueing with
        training=False call `flush` themselves.
      nonfinite: the treatment of a row whose summed gradient has a NaN or an
        infinity: "skip" it and count it in `sizes`, "refuse" the step before
        anything is changed, or "allow" it as TensorFlow does.
      engine: where the tables live: "host" in host memory, once, for all
        replicas; "xla" in device memory, rows sharded over the replicas; "tpu"
        in the TPU's embedding engine; "auto" chooses for each table, and
        `describe` gives the choice and its reason. Tables without a vocabulary
        are always on the host.
      max_enqueued, enqueue_timeout: the most batches of a name, replica and
        type of input that may wait for dequeue. At the bound, enqueue blocks
        for another thread's dequeue, at most this many seconds, and then
        raises.
      strict_tpu: whether enqueue applies the rules of a TPUStrategy under any
        strategy: no ids that are computed inside of strategy.run or are not on
        the host, and no control flow around enqueue inside of strategy.run.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        or a table name used twice.
      tfembed.errors.UnsupportedError: an option that is not in this release.
    """

    _eager_calls: EagerCalls
    _forms: StepForms
    _names: RecentNames
    _strict_tpu: bool
    # With False, enqueue does not build: the shapes must be known before.
    _verify_output_shapes_on_enqueue = True
    _plan: EmbeddingPlan
    _choices: EngineChoices
    _options: EngineOptions
    _replicas: Replicas
    _rates: TableRates
    _has_schedules: bool
    _shapes: OutputShapes
    _shapes_are_given = False
    _engine: EngineRouter | None = None

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
        plan = make_plan(feature_config, optimizer)
        self._rates = TableRates(self, plan, self._replicas.strategy)
        self._plan = self._rates.plan
        self._has_schedules = bool(self._rates.counts)
        if is_tpu(self._replicas.strategy):
            check_all_train(self._plan)
        self._choices = choose_engines(
            self._plan, engine, self._replicas.strategy, nonfinite
        )
        self._groups = engine_groups(self._plan, self._choices)
        self._shapes = OutputShapes.configured(
            self._plan.features, self._plan.paths
        )
        # A lookup inside of a TPU's step may run on the TPU.
        self._strict_tpu = strict_tpu or (
            is_tpu(self._replicas.strategy)
            and any(one.engine != "xla" for one in self._choices.of_tables)
        )
        self._eager_calls = EagerCalls(
            self._plan,
            self._choices,
            is_pipelined=self._options.is_pipelined,
        )
        # Step -> output shapes, if its batches have another size than the
        # first.
        self._other_shapes: dict[StepName, OutputShapes] = {}
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
        """Sets the shapes of batches, and makes the tables.

        Without it the first enqueue does both. Once the shapes are known,
        another call does nothing.

        Args:
          per_replica_input_shapes: the tf.TensorShapes of one replica's inputs,
            structured as the features, or listed in the order of
            `tf.nest.flatten`; or the batch size as an int.
          per_replica_batch_size: the samples of one replica.

        Raises:
          tfembed.errors.ArgumentError: shapes that contradict the configs or
            leave a dimension open. Without either argument, the first input
            sets the shapes.
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
        self._shapes_are_given |= (
            per_replica_input_shapes is not None
            or per_replica_batch_size is not None
        )
        self._engine_or_new(shapes)
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
        """Enqueues a batch.

        Inside of strategy.run it is this replica's batch. Outside, distributed
        values have a part for each replica; plain tensors go to every replica,
        or only to that of `device`.

        Args:
          features: integer ids, or strings where the table's key_dtype is
            tf.string, structured as feature_config: Tensors [B], [..., 1];
            SparseTensors of rank 2 or above, of which the last dimension is
            combined; RaggedTensors of rank 2. NumPy arrays and lists of ids are
            Tensors, lists of lists RaggedTensors. Or all of them as
            `pack_features` gives them.
          weights: None, or a structure of None and floats of the type and
            structure of `features`.
          training: whether apply_gradients follows the dequeue. With a `name`,
            apply_gradients may be left out even if this is True.
          name: the name that pairs the calls of one of several lookups in a
            step.
          device: the device of a replica.

        Raises:
          tfembed.errors.ArgumentError: an input or shape that is not allowed.
          tfembed.errors.DtypeError: ids that are not of their table's dtype.
          tfembed.errors.StateError: another strategy than the object's.
          ValueError, TypeError: a structure that does not match.
          tf.errors.InvalidArgumentError: when it runs: `max_enqueued` batches
            wait until the timeout.
        """
        self._replicas.check_strategy("enqueue")
        self._check_shapes_are_known()
        if not tf.is_symbolic_tensor(training):
            training = bool(training)
        if self._strict_tpu:
            check_plumbing(features, self._replicas.strategy)
        with self._names.using(name):
            step = self._eager_calls.enqueue(
                self._enqueue, features, weights, training, name, device
            )
            if step is None:
                step = self._enqueue(features, weights, training, name, device)
            self._forms.note_enqueued(name, *step)

    @_not_converted
    def dequeue(self, name: str | None = None) -> Any:
        """Dequeues the oldest batch and returns its activations.

        Under several replicas call it inside of strategy.run.

        Returns:
          Structured as feature_config, float32 [*output_shape, dim].

        Raises:
          tfembed.errors.StateError: before build and enqueue, or outside of
            strategy.run.
          tfembed.errors.UnsupportedError: inside of tf.recompute_grad, which
            would dequeue again for the gradient.
          tf.errors.InvalidArgumentError: when it runs: no batch is enqueued,
            the last batch's gradients were not applied, or an id cannot be in
            its table; the text names the feature.
        """
        if is_recomputed():
            raise errors.UnsupportedError(
                "`dequeue` is inside of tf.recompute_grad (keras.remat, "
                "keras.RematScope), which calls it again for the gradient: that "
                "would take another batch. Dequeue before, and give the "
                "activations to the function as an argument."
            )
        engine = self._built_engine("dequeue")
        replica = self._replicas.current_for("dequeue")
        with self._names.using(name):
            step = self._forms.dequeue(
                name, replica, lambda step: engine.waiting(replica, step)
            )
            try:
                for other in self._forms.left(name, replica, step):
                    engine.drop_idle(replica, other)
                activations = self._dequeue_step(engine, replica, step)
            except BaseException:
                self._forms.put_back(name, replica, step)
                raise
            self._forms.note_dequeued(name, replica, step)
            return activations

    @_not_converted
    def apply_gradients(self, gradients: Any, name: str | None = None) -> None:
        """Updates the tables for the batch that was dequeued.

        Inside of strategy.run, every replica must call it, and not inside of a
        conditional or loop of the replica's function.

        Args:
          gradients: gradients with respect to the activations, in their shape,
            structured as feature_config. None is a gradient of 0, with which an
            optimizer still decays its moments.
          name: the name of this replica's dequeue.

        Raises:
          tfembed.errors.StateError: before build and enqueue, outside of
            strategy.run, or a table has no optimizer.
          tfembed.errors.ArgumentError, DtypeError: a gradient that is not a
            tensor of numbers or has another shape.
          tf.errors.InvalidArgumentError: when it runs: no batch was dequeued
            for training, or a gradient that is not finite is refused.
        """
        engine = self._built_engine("apply_gradients")
        replica = self._replicas.current_for("apply_gradients")
        flat = self._plan.flatten(gradients, "gradients")
        with self._names.using(name):
            self._apply_flat(engine, flat, self._forms.apply(name, replica))

    def flush(self) -> None:
        """Applies the update that waits for the next step.

        Updates wait only with `pipeline_execution_with_tensor_core`. Inside of
        strategy.run, every replica must call it.
        """
        if not self._options.is_pipelined:
            return
        if (engine := self._engine) is not None:
            self._replicas.merge(lambda per_replica: engine.flush(), [])
        elif not tf.executing_eagerly():
            warn_of_early_flush()

    def reset_steps(self) -> None:
        """Drops the batches that are enqueued or wait for their gradients.

        Call it after a step that failed half-way. Eager only.
        """
        self._forms.clear()
        if self._engine is not None:
            self._engine.reset()

    @property
    def embedding_tables(self) -> TablesByConfig:
        """The tables, by TableConfig or name.

        Each is a tf.Variable [vocabulary_size, dim] or a HashTable.
        """
        tables = self._engine_or_new().tables
        self._bring_up_to_date()
        found = TablesByConfig(
            (config, table.parameters)
            for config, table in zip(self._plan.tables, tables, strict=True)
        )
        for config, table in found.items():
            if config.vocabulary_size is not None:
                _OWNERS[id(table)] = self
        return found

    @property
    def feature_config(self) -> Any:
        """The given structure of FeatureConfigs."""
        return self._plan.feature_config

    def describe(self) -> str:
        """Describes each table's engine and the reason, as a table of text."""
        return str(self._choices)

    def sizes(self) -> dict[str, TableSize]:
        """Returns rows, bytes and counts of non-finite sums, by table name.

        Eager only.
        """
        self.flush()
        sizes = self._engine_or_new().sizes()
        names = [config.name for config in self._plan.tables]
        return dict(zip(names, sizes, strict=True))

    def made_tables(self) -> dict[str, tuple[HostTable, Any, TableSize]]:
        """Returns the tables with their slots, update rules and sizes, by name.

        It is empty before the tables are made. Eager only.
        """
        if self._engine is None:
            return {}
        sizes = self.sizes()
        return {
            config.name: (table, optimizer, sizes[config.name])
            for config, table, optimizer in zip(
                self._plan.tables,
                self._engine.tables,
                self._plan.optimizers,
                strict=True,
            )
        }

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each exchange of ids and rows in one step.

        In a round a replica sends each other replica a bounded number of
        distinct ids, which is enough for one round unless many ids have the
        same owner. More rounds give the same result, but take longer. Eager
        only.

        Returns:
          Names of the tables that share an exchange -> the most rounds of a
          lookup or update since the tables were made; 0 before the first. It is
          empty on one device and for other engines than "xla".
        """
        if self._engine is None:
            return {}
        return self._engine.exchange_rounds()

    def follow_learning_rate(self, rate: Callable[[], Any]) -> None:
        """Sets the rate of the tables whose optimizer has learning_rate=None.

        Keras layers call it, so that these tables have the learning rate of the
        model's optimizer, with its schedules and callbacks.

        Args:
          rate: a function, called whenever gradients are applied, as in
            `embedding.follow_learning_rate(lambda: optimizer.learning_rate)`.
        """
        self._rates.followed = rate

    @property
    def table_rates(self) -> TableRates:
        """The tables' learning rates, and the step counts of schedules."""
        return self._rates

    def trained_lookup(self) -> TrainedLookup:
        """Returns a lookup whose gradient trains the tables, for layers."""
        return TrainedLookup(
            self._plan,
            self._engine_or_new(),
            self._replicas,
            self._rates,
            self._tables_with_gradients,
        )

    def __repr__(self) -> str:
        tables = None if self._engine is None else self._engine.tables
        return f"<{type(self).__name__}: {self._in_words(tables)}>"

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
        """Makes a copy with the same configs, without tables.

        tf.train.Checkpoint calls it; it recognizes embeddings by this method.
        """
        # The tables have their own method; TensorFlow passes a TableConfig
        # here.
        del optimizer
        return TPUEmbedding(
            feature_config,
            None,
            pipeline_execution_with_tensor_core,
        )

    def _enqueue(
        self,
        features: Any,
        weights: Any,
        training: Any,
        name: str | None,
        device: str | None,
    ) -> tuple[list[int], int]:
        """Enqueues a batch; returns its replicas and its form."""
        if training is False:
            self.flush()
        per_replica = replica_inputs(
            self._plan, self._replicas, features, weights, device
        )
        shapes, is_other_size = self._shapes_of(per_replica)
        of_replicas = [one.replica for one in per_replica]
        entries = []
        for group in self._groups:
            entries.append(group.read(training, per_replica, shapes))
        engine = self._engine_or_new(shapes)
        form = self._forms.number_of(name, engine.form_of(entries))
        step = self._forms.step(name, form)
        engine.enqueue(step, entries)
        if is_other_size:
            self._other_shapes[step] = shapes
        else:
            self._shapes = shapes
        return list(dict.fromkeys(of_replicas)), form

    def _shapes_of(
        self, per_replica: Sequence[ReplicaInputs]
    ) -> tuple[OutputShapes, bool]:
        """Returns a batch's shapes, and whether its batch size is another."""
        shapes = self._shapes
        other: OutputShapes | None = None
        try:
            for one in per_replica:
                shapes = shapes.with_values(one.values)
            return shapes, False
        except errors.ArgumentError as error:
            if not self._shapes.are_defined:
                raise
            is_given = self._shapes_are_given or not self._forms.takes_several
            try:
                other = self._shapes.of_other_size(per_replica[0].values)
            except errors.ArgumentError:  # A FeatureConfig fixes the size.
                is_given = True
            if other is None and not is_given:
                raise
            if other is None or is_given:
                raise errors.ArgumentError(f"{error}. {WAYS_OUT}") from None
        try:
            for one in per_replica[1:]:
                other = other.with_values(one.values)
        except errors.ArgumentError as error:
            raise errors.ArgumentError(f"{error}. {WAYS_OUT}") from None
        return other, True

    def _replica_shapes(self, step: StepName) -> OutputShapes:
        """Returns a replica's output shapes; enqueue has those of a core."""
        shapes = self._other_shapes.get(step, self._shapes)
        cores = self._replicas.cores
        return shapes if cores == 1 else shapes.of_cores(cores)

    def _dequeue_step(self, engine: Any, replica: int, step: StepName) -> Any:
        """Dequeues, by a traced function if the step has one."""
        function = self._eager_calls.find(
            ("dequeue", step), lambda: self._dequeue(engine, replica, step)
        )
        if function is not None:
            return function()
        return self._dequeue(engine, replica, step)

    def _dequeue(self, engine: Any, replica: int, step: StepName) -> Any:
        shaped = []
        for one, shape, dim in zip(
            engine.dequeue(replica, step),
            self._replica_shapes(step).shapes,
            self._plan.feature_dims,
            strict=True,
        ):
            shaped.append(with_shape(one, shape.concatenate(dim)))
        return self._plan.pack(shaped)

    def _apply_flat(
        self, engine: Any, flat: Sequence[Any], step: StepName
    ) -> None:
        def apply(*parts: Any) -> None:
            shapes = self._replica_shapes(step)
            checked = engine.read_gradients(step, parts, shapes)
            self._replicas.merge(update, [step, *checked])

        def update(per_replica: Any) -> None:
            steps, *by_feature = zip(*per_replica)
            engine.apply_gradients(steps, list(zip(*by_feature)))
            if self._has_schedules:
                self._rates.advance(engine.resources)

        if not self._eager_calls.apply_gradients(apply, flat, step):
            apply(*flat)

    def _forget(self, name: str) -> bool:
        """Frees the queues of a name if it is idle; says whether it did."""
        if self._engine is None:
            return False
        steps = self._forms.steps(name)
        if not self._engine.forget(steps):
            return False
        for step in steps:
            self._other_shapes.pop(step, None)
        self._forms.forget(name)
        return True

    @property
    def _built(self) -> bool:
        return self._engine is not None

    @property
    def _output_shapes(self) -> list[tf.TensorShape]:
        return list(self._shapes.shapes)

    @_output_shapes.setter
    def _output_shapes(self, shapes: Sequence[Any]) -> None:
        self._shapes = dataclasses.replace(
            self._shapes, shapes=[tf.TensorShape(shape) for shape in shapes]
        )

    @property
    def _dynamic_learning_rates(self) -> list[Any]:
        """The distinct learning rate functions, in the order of the tables."""
        rates = [
            rule.learning_rate
            for rule in self._plan.optimizers
            if rule is not None and callable(rule.learning_rate)
        ]
        return list(dict.fromkeys(rates))

    @property
    def _variables(self) -> dict[str, dict[str, Any]]:
        engine = self._engine_or_new()
        self._bring_up_to_date()
        return self._variables_of(engine.tables)

    @property
    def _pipeline_execution_with_tensor_core(self) -> bool:
        return self._options.is_pipelined

    def _create_config_proto(self) -> Any:
        """Makes the TPUEmbeddingConfiguration of configs and output shapes."""
        return config_proto(
            self._plan,
            self._shapes,
            self._replicas.strategy,
            rates=self._dynamic_learning_rates,
            is_pipelined=self._options.is_pipelined,
        )

    def _load_variables(self) -> None:
        """Loads the variables' values into the engines."""
        if self._engine is not None:
            self._engine.load()

    def _trackable_children(
        self, save_type: str = "checkpoint", **arguments: Any
    ) -> dict[str, Any]:
        # Called before a checkpoint is saved, and before one is restored.
        self._bring_up_to_date()
        children: dict[str, Any] = super()._trackable_children(
            save_type, **arguments
        )
        if save_type == "savedmodel" and self._engine is not None:
            # For functions that train: a model without them is served by
            # TensorFlow alone. Checkpoints have no steps.
            captured = private.saved_captures(self, children.values())
            resources = self._engine.resources
            if captured is None or any(
                id(_handle(resource)) in captured[0] for resource in resources
            ):
                for i, resource in enumerate(resources):
                    children[f"_step_resource_{i}"] = resource
            for i, held in enumerate(self._engine.held_variables):
                if captured is None or id(held.handle) in captured[1]:
                    children[f"_held_variable_{i}"] = held
        return self._rates.shown(children)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        # An asynchronous checkpoint reads the children once, and calls this in
        # each save, before it copies the variables.
        self._retrieve_variables()

    def _check_shapes_are_known(self) -> None:
        if not self._verify_output_shapes_on_enqueue and not self._built:
            raise errors.ArgumentError(
                "Configured not to check output shapes on each enqueue() call; "
                "please ensure build() was called with global input shapes to "
                "initialize the embedding for inference."
            )

    def _built_engine(self, call: str) -> EngineRouter:
        if self._engine is None:
            raise errors.StateError(
                f"{call} called on unbuilt TPUEmbedding object. Please either "
                "call enqueue first or manually call the build method."
            )
        return self._engine

    def _engine_or_new(
        self, shapes: OutputShapes | None = None
    ) -> EngineRouter:
        if self._engine is not None:
            return self._engine
        with MAKING:
            if self._engine is None:
                with tf.init_scope():
                    self._engine = EngineRouter(
                        self,
                        self._plan,
                        self._groups,
                        self._options,
                        self._shapes if shapes is None else shapes,
                    )
            return self._engine

    def _retrieve_variables(self) -> None:
        """Copies the current rows into the variables."""
        self.flush()
        if self._engine is not None:
            self._engine.retrieve()

    def _bring_up_to_date(self) -> None:
        # A traced function reads the values of the time when it runs.
        if tf.executing_eagerly():
            self._retrieve_variables()


private.note_callback_of(TPUEmbedding)
