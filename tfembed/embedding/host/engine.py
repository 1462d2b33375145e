"""The host engine: tables in host memory, looked up and updated by CPU ops."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfembed import errors, ops
from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding import private
from tfembed.embedding.engines.engine import EngineOptions, Entry
from tfembed.embedding.features import inputs
from tfembed.embedding.features.inputs import InputSpec, lookup_plans
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.host.row_feature import RowFeature, RowFeatures
from tfembed.embedding.host.table_update import fused_arguments, update_tables
from tfembed.embedding.host.tables import HostTable, TableSize, make_table
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.batch_queue import HOST, Batch, TraceQueues
from tfembed.embedding.steps.named_steps import NamedSteps
from tfembed.embedding.steps.step_forms import StepName
from tfembed.embedding.steps.step_queue import StepQueue
from tfembed.ops.private import number_tensor, traced_for_xla
from tfembed.tables import HashTable

__all__ = [
    "FusedStep",
    "HostEngine",
    "QueuedEngine",
    "learning_rates",
    "rules_of",
]


def rules_of(plan: EmbeddingPlan) -> list[Any]:
    """Returns the update rule of each table.

    Raises:
      tfembed.errors.StateError: a table has none.
    """
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        if rule is None:
            raise errors.StateError(
                f"Table '{config.name}' has no optimizer, so "
                "apply_gradients cannot train it. Give one to its "
                "TableConfig or to TPUEmbedding."
            )
    return list(plan.optimizers)


def learning_rates(rules: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Returns the learning rates, float32 [], one per table.

    A function that several tables share is called once.

    Args:
      rules: the tables' optimizers.
      names: the names of the tables.

    Raises:
      tfembed.errors.ArgumentError: a function that does not return a number.
    """
    rates: dict[Any, Any] = {}
    for rule, name in zip(rules, names, strict=True):
        rate = rule.learning_rate
        if rate not in rates:
            rates[rate] = _called(rate, name) if callable(rate) else rate
    return [tf.cast(rates[rule.learning_rate], tf.float32) for rule in rules]


def _called(rate: Callable[[], Any], name: str) -> Any:
    value = rate()
    if value is not None:
        value = number_tensor(value)
        is_number = value.dtype.is_floating or value.dtype.is_integer
        if is_number and value.shape.rank in (None, 0):
            return value
    raise errors.ArgumentError(
        f"The learning rate of table {name!r} must be one number in every step; "
        f"the function {rate!r} gave {value!r}."
    )


class FusedTables:
    """The tables' arguments of the lookup and update ops, built once.

    Args:
      plan: the features and tables.
      tables: the tables of the plan.
    """

    def __init__(
        self, plan: EmbeddingPlan, tables: Sequence[HostTable]
    ) -> None:
        self.plan = plan
        # Handles, not variables: tapes and functions need not watch them.
        self.handles = [table.parameters.handle for table in tables]
        self.are_plain = not any(
            is_custom(config.combiner) or config.quantization_config is not None
            for config in plan.tables
        )
        self.are_trained = all(
            rule is not None and rule.is_fused for rule in plan.optimizers
        )
        self.update_arguments: dict[str, Any] = {}
        if self.are_trained:
            self.update_arguments = fused_arguments(
                plan, tables, rules_of(plan)
            )
            del self.update_arguments["dims"]  # It is an attribute of the step.
            slots = self.update_arguments["slots"]
            self.update_arguments["slots"] = [slot.handle for slot in slots]


class FusedStep:
    """The steps of one name: one op for a lookup and one for an update.

    Args:
      tables: the tables' arguments of the ops.
      specs: the specs of the name's batches.

    Attributes:
      looks_up: whether the op can combine all features.
    """

    def __init__(
        self,
        tables: FusedTables,
        specs: Sequence[InputSpec],
    ) -> None:
        plan = tables.plan
        self._tables = tables
        self._specs = list(specs)
        self._plans = lookup_plans(plan, specs)
        self.looks_up = tables.are_plain or not any(
            RowFeature.needed(plan.tables[one.table], one, spec.kind)
            for one, spec in zip(self._plans, specs, strict=True)
        )
        self._attrs = {1: self._attrs_of(1)}

    def _attrs_of(self, replicas: int) -> dict[str, Any]:
        """Returns the op attributes of a step of `replicas` replicas."""
        of_features = [
            (spec.kind, spec.id_dtype, spec.batch_size)
            for spec in self._specs * replicas
        ]
        kinds, id_dtypes, sizes = zip(*of_features, strict=True)
        dims, plans = self._tables.plan.dims, self._plans * replicas
        return ops.step.step_attrs(dims, kinds, id_dtypes, sizes, plans)

    @property
    def updates(self) -> bool:
        """Whether the op can also update all tables.

        Raises:
          tfembed.errors.StateError: a table has no optimizer.
        """
        if self._tables.are_trained:
            return self.looks_up
        rules_of(self._tables.plan)  # Raises.
        return False

    def look_up(self, queue: StepQueue) -> list[tf.Tensor]:
        """Returns the next batch's activations per feature, without a gradient.

        Raises:
          tf.errors.InvalidArgumentError: as `StepQueue.look_up`; when it runs.
        """
        return queue.look_up(self._tables.handles, self._attrs[1])

    def update(
        self,
        queues: Sequence[StepQueue],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor,
        nonfinite: str,
    ) -> tf.Tensor:
        """Updates the rows of the batches that were looked up last.

        Args:
          queues: the queues of the replicas.
          gradients: the gradients of each feature, replica after replica.
          rates: float32, one per table.
          nonfinite: "skip", "refuse" or "allow".

        Returns:
          int64 [tables]: the count of rows with a non-finite summed gradient.

        Raises:
          tf.errors.InvalidArgumentError: as `StepQueue.update`; when it runs.
        """
        n = len(queues)
        if n not in self._attrs:
            self._attrs[n] = self._attrs_of(n)
        return StepQueue.update(
            queues,
            gradients=gradients,
            attrs=self._attrs[n],
            learning_rates=rates,
            nonfinite=nonfinite,
            **self._tables.update_arguments,
        )


class QueuedEngine(abc.ABC):
    """The steps of an engine whose batches wait on the host.

    Each (replica, name) has a queue of batches (`step_queue.py`). There is one
    copy of the tables; a step's update sums the gradients of all replicas and
    updates each row once. It is not thread-safe. In a function that XLA
    compiles for the engine, the three calls of a step are a part of its
    program, and batches are passed on at trace time.

    Args:
      owner: the trackable object that saves the tables.
      plan: the features and tables.
      options: the EngineOptions.
      shapes: not used: a batch has its shapes.
      traced: the queues for functions that XLA compiles; None: batches wait on
        the host there too.

    Attributes:
      tables: one HostTable per table of the plan.
    """

    takes_inputs: ClassVar[bool] = False

    def __init__(
        self,
        owner: Any,
        plan: EmbeddingPlan,
        options: EngineOptions,
        shapes: OutputShapes | None = None,
        traced: TraceQueues | None = None,
    ) -> None:
        del shapes
        self._plan = plan
        self._options = options
        self._traced = traced
        self._fused_steps: dict[StepName, FusedStep | None] = {}
        self._steps = NamedSteps(plan, options.bound)
        self.tables: list[HostTable] = self._make_tables(owner)
        rates = [getattr(r, "learning_rate", None) for r in plan.optimizers]
        is_constant = all(type(rate) is float for rate in rates)
        self._constant_rates = rates if is_constant else None
        # The tables whose rows expire after a number of steps, which they
        # count.
        self._counting = [
            (i, table)
            for i, table in enumerate(self.tables)
            if table.counts_steps
        ]
        self._nonfinite_rows = self._new_counts()

    @abc.abstractmethod
    def _make_tables(self, owner: Any) -> list[HostTable]:
        """Makes the tables of the plan; `owner` saves them."""

    @abc.abstractmethod
    def _new_counts(self) -> Any:
        """Makes the variable that counts each table's non-finite sums."""

    @abc.abstractmethod
    def _check_batches(self, batches: Mapping[int, Batch]) -> None:
        """Raises for batches, by replica, that the engine cannot look up."""

    @abc.abstractmethod
    def _new_fused(self, name: StepName) -> FusedStep | None:
        """Makes the fused steps of a name.

        Returns None if batches must leave the queue to be looked up.
        """

    @abc.abstractmethod
    def _lookup_resources(self) -> list[Any]:
        """Lists the resources of lookups, besides tables and batches."""

    @abc.abstractmethod
    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Looks up features without a queue; returns the activations.

        Args:
          features: FeatureIds.
          plans: one FeaturePlan per feature.
        """

    @abc.abstractmethod
    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor | None = None,
    ) -> None:
        """Updates the tables for features without a queue.

        Args:
          features: FeatureIds of all replicas.
          plans: one FeaturePlan per feature.
          gradients: per feature, in the shape of its activations.
          rates: the learning rate per table; None: the current rates.

        Raises:
          tfembed.errors.StateError: a table has no optimizer.
        """

    def hands_on_at_trace(self) -> bool:
        """As Engine's: in functions that XLA compiles for this engine."""
        return self._traced is not None and traced_for_xla()

    def enqueue(self, name: StepName, entry: Entry) -> None:
        """Enqueues batches for later calls of `dequeue` with the same name.

        Args:
          name: the step's name, which pairs the calls.
          entry: the batches by replica.

        Raises:
          tfembed.errors.ArgumentError: the specs differ from earlier batches'.
            Nothing is enqueued.
        """
        self._check_batches(entry.batches)
        self._steps.settle_specs(name, entry.batches.values())
        traced = self._traced if self.hands_on_at_trace() else None
        for replica, batch in entry.batches.items():
            if traced is not None:
                traced.queue(name).put(batch)
            else:
                self._steps.queue(replica, name).put(batch)

    def waiting(self, replica: int, name: StepName) -> int:
        """Counts the batches that wait for dequeue; eager only."""
        return int(self._steps.queue(replica, name).size())

    def drop_idle(self, replica: int, name: StepName) -> None:
        """Drops the dequeued batch; eager only.

        Raises:
          tf.errors.InvalidArgumentError: the batch waits for its gradients.
        """
        self._steps.queue(replica, name).drop_idle()

    def is_idle(self, name: StepName) -> bool:
        """Says whether a name has no pending batch and no function uses it.

        Eager only.
        """
        return self._steps.is_idle(name)

    def forget(self, name: StepName) -> None:
        """Frees the queues of an idle name; eager only."""
        self._fused_steps.pop(name, None)
        self._steps.forget(name)

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Dequeues the oldest batch and returns its activations.

        Returns:
          Per feature [B, dim], or [B, L, dim] for a sequence.

        Raises:
          tfembed.errors.StateError: nothing was ever enqueued under this name,
            or a function that XLA compiles dequeues without an enqueue in it.
          tf.errors.InvalidArgumentError: when it runs: the queue is empty, or
            an id cannot be in its table.
        """
        if self._traced is not None and self.hands_on_at_trace():
            self._steps.specs(name)  # Raises.
            found = self._look_up(name, self._traced.queue(name).take())
            return [tf.stop_gradient(one) for one in found]
        queue = self._steps.queue(replica, name)
        with tf.device(HOST):
            if self._options.is_pipelined:
                batch, activations = self._steps.ahead(replica, name).next(
                    queue, lambda batch: self._look_up(name, batch)
                )
            elif (fused := self._fused(name)) and fused.looks_up:
                return fused.look_up(queue)
            else:
                batch = queue.take()
                activations = self._look_up(name, batch)
            # Keep only a batch whose lookup succeeded.
            with tf.control_dependencies(activations):
                queue.hold(batch)
        # apply_gradients trains the tables, not a tape.
        return [tf.stop_gradient(activation) for activation in activations]

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Updates the rows of the batches that were dequeued last.

        Args:
          names: per replica the name of its dequeue. They differ for a layer
            that numbers its calls.
          gradients: per replica and feature, in the shape of the activations.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under this name, or a
            table has no optimizer.
          tf.errors.InvalidArgumentError: when it runs: nothing was dequeued for
            training, or a gradient is refused.
        """
        rates = self.rates()
        name = self._steps.one_of(names)
        if self._traced is not None and self.hands_on_at_trace():
            features = self._traced.queue(name).finish().features
            (own,) = gradients  # This replica's gradients.
            self.update(features, self._plans(name), own, rates)
            return
        queues = [self._steps.queue(r, own) for r, own in enumerate(names)]
        tensors = [gradient for each in gradients for gradient in each]
        with tf.device(HOST):
            fused = None if self._options.is_pipelined else self._fused(name)
            if fused and fused.updates:
                nonfinite = self._options.nonfinite
                self._note(fused.update(queues, tensors, rates, nonfinite))
                return
            finished = [queue.finish() for queue in queues]
            # The batch of all replicas; its `training` is not used.
            batch = Batch(
                True,
                [ids for one in finished for ids in one.features],
                [spec for one in finished for spec in one.specs],
            )
            tensors.append(rates)
            if not self._options.is_pipelined:
                self._update(name, batch, tensors)
                return
            self._steps.flush_if_new(name, self._update)
            self._steps.behind(name, tensors, len(queues)).exchange(
                batch, tensors, lambda *step: self._update(name, *step)
            )
            for replica, queue in enumerate(queues):
                self._steps.ahead(replica, names[replica]).look_ahead(
                    queue, lambda batch: self._look_up(name, batch)
                )

    def flush(self) -> None:
        """Applies the updates that wait for the next step."""
        self._steps.flush(self._update)

    def retrieve(self) -> None:  # noqa: B027 - nothing to do for all
        """Does nothing: `tables` have the current rows."""

    def load(self) -> None:  # noqa: B027 - nothing to do for all
        """Does nothing: `tables` have the current rows."""

    def _note(
        self, nonfinite: tf.Tensor, asked: frozenset[int] | None = None
    ) -> None:
        """Counts a training step of some tables; None: of all."""
        self._nonfinite_rows.assign_add(nonfinite)
        for i, table in self._counting:
            if asked is None or i in asked:
                table.note_training_step()

    def _fused(self, name: StepName) -> FusedStep | None:
        if name not in self._fused_steps:
            self._fused_steps[name] = self._new_fused(name)
        return self._fused_steps[name]

    def _look_up(self, name: StepName, batch: Batch) -> list[tf.Tensor]:
        return self.look_up(batch.features, self._plans(name))

    def _update(
        self, name: StepName, batch: Batch, tensors: Sequence[tf.Tensor]
    ) -> None:
        """Updates by a batch's tensors: the gradients, then the rates."""
        *gradients, rates = tensors
        plans = self._plans(name)
        replicas = len(batch.features) // len(plans)
        self.update(batch.features, plans * replicas, gradients, rates)

    def _plans(self, name: StepName) -> list[Any]:
        return inputs.lookup_plans(self._plan, self._steps.specs(name))

    def specs(self, name: StepName) -> list[InputSpec]:
        """Returns the InputSpec of each feature enqueued under `name`.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under it.
        """
        return self._steps.specs(name)

    def reset(self) -> None:
        """Drops all pending batches; eager only.

        Raises:
          tf.errors.InvalidArgumentError: a pending update is refused. It is
            dropped too.
        """
        try:
            self.flush()
        finally:
            self._steps.clear()

    def sizes(self) -> list[TableSize]:
        """Returns the rows and bytes of each table; eager only."""
        counts = self._nonfinite_rows.numpy()
        return [
            table.size(nonfinite_rows=int(count))
            for table, count in zip(self.tables, counts, strict=True)
        ]

    @property
    def resources(self) -> list[Any]:
        """Returns the resources that functions capture, besides the tables."""
        return [
            self._nonfinite_rows,
            *self._steps.resources,
            *self._lookup_resources(),
        ]

    @abc.abstractmethod
    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each exchange, by table names; eager."""

    @property
    @abc.abstractmethod
    def held_variables(self) -> list[HeldVariable]:
        """The variables of static tables that ops take by their handles."""

    def rates(self) -> tf.Tensor:
        """Returns the current learning rates, float32, one per table.

        Raises:
          tfembed.errors.StateError: a table has no optimizer.
        """
        if self._constant_rates is not None:
            return tf.constant(self._constant_rates, tf.float32)
        names = [config.name for config in self._plan.tables]
        return tf.stack(learning_rates(rules_of(self._plan), names))


class HostEngine(QueuedEngine):
    """Looks up all features of a batch in one op, and updates them in another.

    Args:
      owner, plan, options, shapes: as for QueuedEngine.
    """

    def __init__(
        self,
        owner: Any,
        plan: EmbeddingPlan,
        options: EngineOptions,
        shapes: OutputShapes | None = None,
    ) -> None:
        super().__init__(owner, plan, options, shapes)
        self._row_features = RowFeatures(owner, plan, self.tables)
        self._fused_tables = FusedTables(plan, self.tables)

    def _make_tables(self, owner: Any) -> list[HostTable]:
        return [
            make_table(owner, config, optimizer)
            for config, optimizer in zip(
                self._plan.tables, self._plan.optimizers, strict=True
            )
        ]

    def _new_counts(self) -> Any:
        with tf.device(HOST):
            return private.single_variable(
                initial_value=tf.zeros([len(self.tables)], tf.int64),
                trainable=False,
                name="nonfinite_rows",
            )

    def _check_batches(self, batches: Mapping[int, Batch]) -> None:
        """Passes: the ops take any batch."""

    def _lookup_resources(self) -> list[Any]:
        """Returns []: lookups use only tables and batches."""
        return []

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """As QueuedEngine's."""
        with tf.device(HOST):
            return self._row_features.look_up(features, plans)

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor | None = None,
    ) -> None:
        """As QueuedEngine's."""
        rules = rules_of(self._plan)
        if rates is None:
            rates = self.rates()
        with tf.device(HOST):
            step, of_weights = self._row_features.differentiate(
                features, plans, gradients, self._options.nonfinite
            )
            # If either refuses a gradient, nothing is changed.
            with tf.control_dependencies(of_weights.values()):
                nonfinite = update_tables(
                    self._plan,
                    self.tables,
                    rules,
                    step,
                    tf.unstack(rates, len(self.tables)),
                    self._options.nonfinite,
                )
            with tf.control_dependencies([nonfinite]):
                self._row_features.train_weights(of_weights)
            self._note(nonfinite, frozenset(one.table for one in plans))

    def _new_fused(self, name: StepName) -> FusedStep:
        return FusedStep(self._fused_tables, self._steps.specs(name))

    @functools.cached_property
    def held_variables(self) -> list[HeldVariable]:
        """The variables of static tables that ops take by their handles."""
        return [
            HeldVariable(variable)
            for table in self.tables
            if not isinstance(table.parameters, HashTable)
            for variable in (table.parameters, *table.slots.values())
        ]

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns {}: there is no exchange."""
        return {}
