"""Steps of an optimizer over tables and the dense variables beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.cluster.workers import Workers, workers
from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.tensorflow1.graph_steps import (
    GraphOptions,
    GraphSteps,
    check_graph,
)
from tfembed.dynamic_embedding.training.slot_variable import (
    SlotVariable,
    slots_of,
)
from tfembed.dynamic_embedding.training.step_gradients import (
    check_counter,
    check_finite,
    checks_at_run_time,
    listed,
    loss_gradients,
    sort_gradients,
    table_gradient,
    variable_of,
)
from tfembed.dynamic_embedding.training.table_update import (
    forget_evicted,
    note_updates,
    update_rows,
    update_tables,
)
from tfembed.dynamic_embedding.training.workers_step import (
    check_clipping,
    not_of_workers,
    to_owners,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.keras_family import options_without_rule
from tfembed.foreign_optimizers.rules import FusedRule
from tfembed.foreign_optimizers.table_gradients import TableGradient
from tfembed.foreign_optimizers.wrap import wrap
from tfembed.foreign_optimizers.wrapped_optimizer import (
    WrappedOptimizer,
    counter,
)
from tfembed.ops.private import orders_by_itself
from tfembed.ops.session_graph import current_graph
from tfembed.optimizers.interface import is_schedule

__all__ = [
    "DirectSteps",
    "TableOptimizer",
    "TableTrainer",
    "attributes_of",
    "check_replicas",
    "once",
]


def check_replicas(counter: tf.Variable, *, are_summed: bool) -> Workers | None:
    """Refuses a step that replicas cannot take together.

    Args:
      counter: a variable that was made with the optimizer.
      are_summed: whether the caller says that each replica has summed
        gradients.

    Returns:
      The workers whose replicas take the step; None if all are of this process.

    Raises:
      tfembed.errors.UnsupportedError: several replicas of another strategy than
        tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy, or with
        summed gradients.
      tfembed.errors.StateError: the step is not inside of strategy.run, or the
        optimizer was not made inside of strategy.scope.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return None
    group = workers()
    if group is None and not isinstance(
        strategy, tf.distribute.MirroredStrategy
    ):
        raise errors.UnsupportedError(
            "DynamicEmbeddingOptimizer does not run under "
            f"{type(strategy).__name__} in this release; use the default "
            "strategy, OneDeviceStrategy, MirroredStrategy, "
            "MultiWorkerMirroredStrategy or ParameterServerStrategy."
        )
    if are_summed:
        raise errors.UnsupportedError(
            "DynamicEmbeddingOptimizer sums the gradients of replicas itself: "
            "give each replica's own, without `skip_gradients_aggregation` and "
            "`experimental_aggregate_gradients=False`."
        )
    if not isinstance(counter, tf.distribute.DistributedValues):
        raise errors.StateError(
            "DynamicEmbeddingOptimizer was made outside of the strategy that "
            "runs its step. Make it, and the dense variables that it moves, "
            "inside of strategy.scope()."
        )
    if tf.distribute.get_replica_context() is None:
        raise errors.StateError(
            "A step of DynamicEmbeddingOptimizer must be called inside of "
            f"strategy.run: the strategy has {strategy.num_replicas_in_sync} "
            "replicas, each with gradients of its own."
        )
    return group


def check_worker() -> None:
    """Refuses a step of dense variables that a coordinator takes by itself.

    Raises:
      tfembed.errors.StateError: under a ParameterServerStrategy, outside of
        strategy.run.
    """
    strategy = tf.distribute.get_strategy()
    is_asynchronous = isinstance(
        strategy, tf.distribute.ParameterServerStrategy
    )
    if is_asynchronous and tf.distribute.get_replica_context() is None:
        raise errors.StateError(
            "A step of dense variables under ParameterServerStrategy must be "
            "called inside of strategy.run, in a function that the coordinator "
            "schedules: coordinator.schedule(tf.function(lambda: "
            "strategy.run(step)))."
        )


def once(
    update: Callable[[list[TableGradient]], Any],
    gradients: Sequence[TableGradient],
) -> Any:
    """Calls `update` once, with the gradients of all replicas.

    Every replica must call it, outside of conditionals and loops of its own.

    Args:
      update: a function of a list of gradients, in which each table comes once
        per replica; all replicas get its result.
      gradients: the gradients of this replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return update(list(gradients))
    variables = [params for _, params in gradients]

    def merged(strategy: Any, *parts: Any) -> Any:
        of_replicas = [_of_each(strategy, x) for x in parts]
        return update(
            [
                (tf.IndexedSlices(values, keys), params)
                for keys_of, values_of, params in zip(
                    of_replicas[::2], of_replicas[1::2], variables, strict=True
                )
                for keys, values in zip(keys_of, values_of, strict=True)
            ]
        )

    tensors = [x for g, _ in gradients for x in (g.indices, g.values)]
    return context.merge_call(merged, args=tensors)


def _of_each(strategy: Any, part: Any) -> tuple[Any, ...]:
    """Lists the value of each replica of this process.

    A tensor that all share may be one value.
    """
    found = strategy.experimental_local_results(part)
    if isinstance(part, tf.distribute.DistributedValues):
        return found
    return found * len(strategy.extended.worker_devices)


def attributes_of(holder: str) -> Callable[[Any, str], Any]:
    """Makes the `__getattr__` of a class that wraps an optimizer.

    It returns the public attributes of the optimizer, such as `beta_1`, and
    raises AttributeError for others. It may run before the optimizer is set.

    Args:
      holder: the attribute that is the optimizer.
    """

    def attribute(front: Any, name: str) -> Any:
        inner = vars(front).get(holder)
        if name.startswith("_") or not hasattr(inner, name):
            raise AttributeError(
                f"'{type(front).__name__}' object has no attribute '{name}'"
            )
        return getattr(inner, name)

    return attribute


_NONFINITE = ("skip", "refuse", "allow")


class DirectSteps:
    """Takes steps in eager mode and in functions, op after op.

    `GraphSteps` of `tensorflow1/graph_steps.py` has the same members, for
    graphs that sessions run.

    Attributes:
      lists_all_dense: whether callers pass all dense variables, even those
        without a gradient.
      compares_values: whether the values of tensors are known, so that copies
        of a gradient can be recognized by them.
    """

    lists_all_dense = False
    compares_values = True

    def gradients(
        self,
        loss: Any,
        variables: Callable[[], list[Any] | None],
        *,
        options: GraphOptions,
        **arguments: Any,
    ) -> tuple[Any, list[tuple[Any, Any]]]:
        """Returns a loss and pairs of a gradient, or None, and a variable.

        Args:
          loss, variables, **arguments: as for `loss_gradients`.
          options: not used by tapes.
        """
        del options
        return loss_gradients(loss, variables, **arguments)

    def take(
        self,
        wrapped: WrappedOptimizer,
        update: Callable[[list[TableGradient]], tf.Tensor],
        sparse: Sequence[TableGradient],
        dense: Sequence[tuple[Any, Any]],
        *,
        waits_for_tables: bool,
        global_step: Any,
        name: str,
    ) -> None:
        """Updates tables, then dense variables, and counts the step.

        Args:
          wrapped: the optimizer that updates dense variables and counts the
            step.
          update: the function that updates the tables.
          sparse: gradients of tables, by key.
          dense: gradients of dense variables.
          waits_for_tables: whether dense variables and the step count change
            only after no table refused the step.
          global_step: a variable that counts steps too, or None.
          name: not used: no operation is returned.
        """
        del name
        updated = [once(update, sparse)] if sparse else []
        with tf.control_dependencies(updated if waits_for_tables else []):
            if dense:
                wrapped.apply_dense(dense)
            else:
                once(lambda _: wrapped.finish(), [])
            if global_step is not None:
                once(lambda _: global_step.assign_add(1), [])
        for _, params in sparse if tf.executing_eagerly() else []:
            params.note_step()


class TableTrainer(tf.Module):
    """Steps of an optimizer over tables and the dense variables beside them.

    Its two subclasses have the public methods, with the argument order of
    TensorFlow 2's and of tf.compat.v1's optimizers.

    Attributes:
      nonfinite_rows: int64, the count of keys so far with a non-finite summed
        gradient; 0 with nonfinite="allow", which does not check.

    Raises:
      tfembed.errors.UnsupportedError: `synchronous`, or an optimizer or option
        that cannot train tables; the text says why.
      tfembed.errors.ArgumentError: an unknown `nonfinite`.
    """

    __getattr__ = attributes_of("_opt")

    def __init__(
        self,
        opt: Any,
        bp_v2: bool = False,
        synchronous: bool = False,
        *,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(name="dynamic_embedding_optimizer")
        if synchronous:
            raise errors.UnsupportedError(
                "`synchronous=True` (Horovod) is not in this release."
            )
        if nonfinite not in _NONFINITE:
            raise errors.ArgumentError(
                f"`nonfinite` must be one of {_NONFINITE}; got {nonfinite!r}."
            )
        self.bp_v2 = bool(bp_v2)
        self._nonfinite = nonfinite
        self._opt = opt
        self._graph = current_graph()
        with tf.init_scope():
            self._wrapped = wrap(opt)
            self.nonfinite_rows = counter("nonfinite_rows")
        self._rule = self._wrapped.rule
        self._steps = None  # A variable if `opt` does not count and save steps.
        if not hasattr(opt, "iterations"):
            self._steps = self._wrapped.iterations
        self._row_state = list(getattr(self._rule, "state", []))

    @property
    def optimizer(self) -> Any:
        """The wrapped optimizer."""
        return self._opt

    def options(self) -> dict[str, Any]:
        """Returns the constructor's other arguments."""
        return {"bp_v2": self.bp_v2, "nonfinite": self._nonfinite}

    @property
    def iterations(self) -> Any:
        """The variable that counts steps; that of a wrapped Keras optimizer."""
        return self._wrapped.iterations

    @property
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step."""
        return self._wrapped.learning_rate()

    def compute(
        self,
        loss: Any,
        var_list: Any,
        *,
        tape: tf.GradientTape | None,
        grad_loss: Any,
        options: GraphOptions | None = None,
    ) -> tuple[Any, list[tuple[Any, Any]]]:
        """Returns a loss, and pairs of its gradient, or None, and a variable.

        Args:
          loss, var_list, tape, grad_loss: as for `TableOptimizer.minimize`.
          options: options for gradients in a graph of TensorFlow 1; None: the
            defaults of tf.compat.v1's optimizers.
        """
        return self._steps_here().gradients(
            loss,
            lambda: listed(var_list),
            tape=tape,
            grad_loss=grad_loss,
            loss_scale=self._wrapped.loss_scale,
            options=options or GraphOptions(),
        )

    def take_step(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        *,
        name: str | None,
        global_step: Any,
        are_summed: bool = False,
    ) -> tf.Operation | None:
        """Takes one step.

        Args:
          grads_and_vars, name, global_step: as for
            `TableOptimizer.apply_gradients`.
          are_summed: whether the caller says that each replica has summed
            gradients.
        """
        steps = self._steps_here()
        group = check_replicas(self.nonfinite_rows, are_summed=are_summed)
        check_counter(global_step)
        sparse, dense = sort_gradients(
            grads_and_vars,
            lists_all_dense=steps.lists_all_dense,
            compares_values=steps.compares_values,
        )
        if dense and not self._wrapped.moves_dense:
            self._wrapped.apply_dense(dense)  # Raises an error that says why.
        if dense:
            check_worker()
        with tf.name_scope(name or "apply_gradients") as scope:
            self.attach(params for _, params in sparse)
            checks = checks_at_run_time(sparse)
        checked = dense if self._nonfinite == "refuse" else []
        finite = []
        if group is None:
            finite = [check_finite(gradient) for gradient, _ in checked]
        with tf.control_dependencies([*checks, *finite]):
            for _, params in sparse:
                if params.workers is not group:
                    raise not_of_workers(params, group)
            clipping = self._wrapped.clipping
            if group is not None and sparse:
                check_clipping(clipping)
                sparse = to_owners(group, sparse, checked, self._nonfinite)
            if clipping is not None:
                sparse, dense = clipping.apply(sparse, dense)
            return steps.take(
                self._wrapped,
                self._update_tables,
                sparse,
                dense,
                waits_for_tables=self._refuses(sparse),
                global_step=global_step,
                name=scope,
            )

    def move_table(self, gradient: tf.IndexedSlices, params: Variable) -> None:
        """Updates a table inside of a step of the optimizer, which counts it.

        Args:
          gradient: slices by key.
          params: the table, to which this optimizer is attached.
        """
        group = check_replicas(self.nonfinite_rows, are_summed=False)
        sparse = [table_gradient(gradient, params)]
        if params.workers is not group:
            raise not_of_workers(params, group)
        with tf.control_dependencies(checks_at_run_time(sparse)):
            clipping = self._wrapped.clipping
            if group is not None:
                check_clipping(clipping)
                sparse = to_owners(group, sparse, [], self._nonfinite)
            if clipping is not None:
                sparse, _ = clipping.apply(sparse, [])
            once(self._update_tables, sparse)
        if tf.executing_eagerly():
            params.note_step()

    def attach(
        self,
        variables: Iterable[Variable | TrainableWrapper],
        *,
        replaces: bool = False,
    ) -> None:
        """Lays this optimizer's slots out in tables; repeated calls do nothing.

        Args:
          variables: the tables, or lookups in them.
          replaces: as for `HashTable.attach`.
        """
        self._steps_here()
        with tf.init_scope():
            self._wrapped.check_rule()
            for variable in variables:
                params = variable_of(variable)
                if not isinstance(self._rule, FusedRule):
                    self._check_no_admission(params)
                params.table.attach(self._described, replaces=replaces)
                params.remember_optimizer(self)

    @property
    def rule_state(self) -> dict[str, tf.Variable]:
        """The variables of the rule besides slots, by their names in files.

        A count of steps is among them where a schedule goes by it.
        """
        state = {str(i): one for i, one in enumerate(self._row_state)}
        rate = getattr(self._opt, "learning_rate", None)
        if self._steps is not None and callable(rate) and is_schedule(rate):
            state["steps"] = self._steps
        return state

    def slots_of(self, params: Variable) -> list[SlotVariable]:
        """Returns views of this optimizer's slots in the rows of `params`.

        The list is empty before the first step that updates `params`.
        """
        attached, rule = params.table.optimizer, self._described.rule_text()
        if attached is None or attached.rule_text() != rule:
            return []
        return slots_of(params, self._wrapped.name, self.slot_labels())

    def slot_labels(self) -> tuple[str, ...]:
        """Returns the optimizer's names of its slots, in the order of a row."""
        labels = getattr(self._rule, "slot_labels", ())
        return tuple(labels or self._described.slot_names)

    @property
    def _described(self) -> Any:
        """The description or row rule that is attached to tables."""
        rule = self._rule
        return rule.optimizer if isinstance(rule, FusedRule) else rule

    def _steps_here(self) -> DirectSteps | GraphSteps:
        """Returns how steps are taken in this place, and refuses others."""
        if orders_by_itself():
            return DirectSteps()
        check_graph(self._graph)
        return GraphSteps()

    def _check_no_admission(self, params: Variable) -> None:
        """Refuses a table that admits keys by a policy: row rules insert all.

        Raises:
          tfembed.errors.UnsupportedError: the table has such a policy.
        """
        if params.table.admission is None:
            return
        options = options_without_rule(self._opt)
        given = f" with {', '.join(options)}" if options else ""
        raise errors.UnsupportedError(
            f"'{params.name}' admits keys by a policy, which "
            f"'{self._wrapped.name}'{given} does not ask: only fused updates do. "
            "Train it by SGD, Adagrad, Adam or Ftrl without momentum, "
            "weight_decay, amsgrad and l2_shrinkage, or leave `admission` out."
        )

    def _refuses(self, gradients: list[TableGradient]) -> bool:
        """Says whether a gradient or a full table may refuse the step."""
        return self._nonfinite == "refuse" or any(
            params.table.max_size is not None for _, params in gradients
        )

    def _update_tables(self, gradients: list[TableGradient]) -> tf.Tensor:
        """Updates the tables; returns the count of non-finite sums, int64."""
        rate = self.learning_rate
        for _, params in gradients:
            params.table.lay_out_slots()
        forget_evicted(gradients)
        if isinstance(self._rule, FusedRule):
            if self._rule.rate is not None:
                step = tf.convert_to_tensor(self.iterations)
                rate = self._rule.rate(rate, tf.cast(step, tf.int64) + 1)
            count = update_tables(
                gradients,
                rule=self._rule.optimizer.rule_text(),
                learning_rate=rate,
                nonfinite=self._nonfinite,
            )
        else:
            count = update_rows(
                gradients,
                rule=self._rule,
                learning_rate=rate,
                nonfinite=self._nonfinite,
                add=self.bp_v2,
            )
        self.nonfinite_rows.assign_add(count)
        with tf.control_dependencies([count]):
            note_updates(gradients)
        return count


class TableOptimizer(TableTrainer):
    """An optimizer with the methods, and their arguments, of TensorFlow 2."""

    def minimize(
        self,
        loss: Any,
        var_list: Any = None,
        grad_loss: Any = None,
        name: str | None = None,
        tape: tf.GradientTape | None = None,
        *,
        global_step: Any = None,
    ) -> Any:
        """Computes gradients and applies them.

        Args:
          loss: a function without arguments; or its result, with `tape` or in a
            graph of TensorFlow 1.
          var_list: variables in any structure, or a function that returns them,
            called after `loss`; None: the trainable variables that `loss` uses,
            in a graph also its other trainable dense variables.
          grad_loss: gradient of the loss itself; None: 1.
          name: the name of the step.
          tape: the tape that recorded `loss`.
          global_step: see `apply_gradients`.

        Returns:
          The loss; in a graph of TensorFlow 1 the operation of the step.
        """
        value, pairs = self.compute(
            loss, var_list, tape=tape, grad_loss=grad_loss
        )
        step = self.apply_gradients(pairs, name=name, global_step=global_step)
        return value if step is None else step

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        *,
        global_step: Any = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> tf.Operation | None:
        """Takes one step.

        Args:
          grads_and_vars: pairs of a gradient and its `Variable`,
            `TrainableWrapper` or dense variable. Pairs with None are left out,
            with a warning that names their variables.
          name: the name of the step.
          global_step: a variable that counts steps too.
          skip_gradients_aggregation, experimental_aggregate_gradients: True, or
            for the second False, says that the gradients were summed over
            replicas already. One replica ignores both; several replicas must
            pass unsummed gradients.

        Returns:
          None; in a graph of TensorFlow 1 the operation of the step.

        Raises:
          tfembed.errors.ArgumentError: no gradient at all, a table's gradient
            that is not IndexedSlices or whose values are not keys.shape +
            [dim], or a table that another optimizer trains.
          tfembed.errors.DtypeError: (also TypeError) a `global_step` that is
            not a variable, keys of another dtype than the table's, or rows of a
            dtype that is not trained.
          tf.errors.InvalidArgumentError: wrong shapes or keys that are only
            known when a function runs. Nothing is changed.
          tfembed.errors.UnsupportedError: dense variables with a description of
            tfembed.optimizers; several replicas of another strategy than
            tf.distribute.MirroredStrategy and MultiWorkerMirroredStrategy, or
            with summed gradients; a limit of norms among several workers; the
            branch or loop of a graph.
          tfembed.errors.StateError: several replicas, and the step is not
            inside of strategy.run or the optimizer, or a table among several
            workers, was made outside of strategy.scope; or the optimizer was
            made outside of the step's graph.
        """
        return self.take_step(
            grads_and_vars,
            name=name,
            global_step=global_step,
            are_summed=skip_gradients_aggregation
            or not experimental_aggregate_gradients,
        )
