"""`Estimator`: trains, evaluates, predicts and exports a model_fn's graph."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, DtypeError
from tfembed.estimator.exports import saved_models
from tfembed.estimator.models import strategies
from tfembed.estimator.models.input_functions import CheckpointInputPipelineHook
from tfembed.estimator.models.steps import (
    ModelFnSteps,
    ServedGraph,
    Steps,
    loss_metric,
)
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.replicas import (
    order_input_before_writes,
    order_reads_before_writes,
)
from tfembed.estimator.run_config import (
    RunConfig,
    TaskType,
    completed_config,
)
from tfembed.estimator.runs import checkpoints, reports, sessions, sigterm
from tfembed.estimator.runs.reports import ProgressHook
from tfembed.estimator.runs.warm_start import (
    WarmStartSettings,
    checkpoint_of,
    warm_start,
    warm_start_settings,
)
from tfembed.estimator.spec import (
    LOSS_METRIC_KEY,
    EstimatorSpec,
    ModeKeys,
    check_model_fn_arguments,
)

# Members of Estimator that a subclass may override.
_OVERRIDABLE = frozenset(
    {
        "model_fn",
        "latest_checkpoint",
        "_create_and_assert_global_step",
        "_export_all_saved_models",
    }
)


class Estimator:
    """Trains, evaluates, predicts and exports a model_fn's graph.

    Each call builds a graph: the input_fn returns features and labels, the
    model_fn returns an `EstimatorSpec`, and a session runs it. Checkpoints and
    summaries go to `model_dir`, and each call starts from the latest
    checkpoint there. Both functions run in graph mode.

    A subclass may add methods, but override none.

    Args:
      model_fn: A function of `features` and, if it has these arguments,
        `labels`, `mode`, `params` and `config`, that returns an
        `EstimatorSpec`.
      model_dir: The folder of checkpoints and summaries. Default: the folder
        of `config`, or else a temporary one.
      config: A `RunConfig`.
      params: A dict of hyperparameters for the model_fn and the input_fn.
      warm_start_from: The path of a checkpoint or SavedModel, or
        `WarmStartSettings`. Variables start with its values if `model_dir` has
        no checkpoint.

    Raises:
      ValueError: The model_fn's arguments do not fit, `config` is not a
        RunConfig, or a subclass overrides a method.

    Example:
        >>> def model_fn(features, labels, mode):
        ...     weight = tf.compat.v1.get_variable("weight", initializer=0.0)
        ...     loss = tf.reduce_mean((weight * features - labels) ** 2)
        ...     step = tf.compat.v1.train.get_global_step()
        ...     optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        ...     return EstimatorSpec(
        ...         mode,
        ...         loss=loss,
        ...         train_op=optimizer.minimize(loss, global_step=step),
        ...     )
        >>> def input_fn():
        ...     pairs = tf.data.Dataset.from_tensors(([1.0, 2.0], [2.0, 4.0]))
        ...     return pairs.repeat()
        >>> estimator = Estimator(model_fn).train(input_fn, steps=20)
        >>> print(f"{estimator.get_variable_value('weight'):.3f}")
        2.000
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | WarmStartSettings | None = None,
    ) -> None:
        _check_subclass(type(self))
        self._config = completed_config(config, model_dir)
        self._model_dir: str = self._config.model_dir
        self._session_config = self._config.session_config
        self._train_distribution = self._config.train_distribute
        self._eval_distribution = self._config.eval_distribute
        for strategy in (self._train_distribution, self._eval_distribution):
            strategies.check_strategy(strategy)
            strategies.add_cpus(self._session_config, strategy)
        tf.compat.v1.logging.info("Using config: %s", vars(self._config))
        self._device_fn = self._config.device_fn or sessions.device_setter(
            self._config
        )
        if model_fn is None:
            raise ArgumentError(
                "model_fn must be provided to Estimator; got None."
            )
        check_model_fn_arguments(model_fn, params)
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._steps: Steps = ModelFnSteps(model_fn, self._config, self._params)
        self._warm_start_settings = warm_start_settings(warm_start_from)

    @property
    def model_dir(self) -> str:
        """The folder of checkpoints and summaries."""
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the RunConfig, with `model_dir` and `session_config`."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model_fn bound to `params`: (features, labels, mode, config)."""

        def public_model_fn(
            features: Any, labels: Any, mode: str, config: Any
        ) -> EstimatorSpec:
            return self._steps.call_model_fn(features, labels, mode, config)

        return public_model_fn

    def get_variable_value(self, name: str) -> Any:
        """Returns a variable's value in the latest checkpoint.

        Raises:
          ValueError: There is no checkpoint yet.
        """
        return tf.train.load_variable(self._existing_checkpoint(), name)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the latest checkpoint.

        Raises:
          ValueError: There is no checkpoint yet.
        """
        return [
            name
            for name, _ in tf.train.list_variables(self._existing_checkpoint())
        ]

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint; None without one.

        Raises:
          tfembed.errors.CheckpointError: (also ValueError) the file
            `checkpoint` of `model_dir` is damaged, or missing beside
            checkpoints, or names one that is not there.
        """
        return checkpoints.latest_checkpoint(self._model_dir)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder of an evaluation's summaries."""
        folder = f"eval_{name}" if name else "eval"
        return os.path.join(self._model_dir, folder)  # noqa: PTH118 - may be gs:

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Estimator:
        """Trains from the latest checkpoint, and saves checkpoints.

        SIGTERM stops training after the current step: a checkpoint is saved,
        and then the signal takes its usual effect. An evaluation, prediction
        or export inside of the training ends after its current batch, without
        a result.

        Args:
          input_fn: Returns a `tf.data.Dataset` of features or of (features,
            labels), or returns these themselves. It may have the arguments
            `mode`, `params` and `config`.
          hooks: SessionRunHooks for this call.
          steps: The number of steps. Training stops earlier if the input ends.
          max_steps: The global step at which to stop, including the steps of
            earlier calls. If it is reached already, nothing is trained.
          saving_listeners: CheckpointSaverListeners for this call.

        Returns:
          This estimator.

        Raises:
          ValueError: `steps` or `max_steps` is not positive, or both are
            given, or this task of the cluster does not train.
          RuntimeError: No files can be created in `model_dir`.
        """
        if not self._has_to_train(steps, max_steps):
            return self
        if self._config.is_chief:
            sessions.check_writable(self._model_dir)
        all_hooks = checked_hooks(hooks)
        all_hooks += self._steps.hooks_of_training(steps, max_steps)
        loss = self._train_model(
            input_fn, all_hooks, checked_listeners(saving_listeners)
        )
        tf.compat.v1.logging.info("Loss for final step: %s.", loss)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint and writes the results as summaries.

        Args:
          input_fn: As for `train`.
          steps: The number of batches; None: until the input ends.
          hooks: SessionRunHooks for this call.
          checkpoint_path: A checkpoint; None: the latest. If there is none,
            the variables' initial values are evaluated.
          name: The name of the evaluation, if a model has several.

        Returns:
          The metrics by name, with `loss` (its mean over batches) and
          `global_step`. Those of no rows are NaN.

        Raises:
          ValueError: `steps` is not positive, or a metric is named `loss` or
            `global_step`.
          tfembed.errors.StoppedError: (also RuntimeError) a hook or listener
            of a training evaluates, and SIGTERM came. `predict` and exports
            raise it too.
        """
        all_hooks = checked_hooks(hooks)
        all_hooks += self._steps.hooks_of_evaluation(steps)
        sigterm.check("an evaluation")
        checkpoint_path = checkpoint_path or self._checkpoint_to("evaluate")
        strategy = self._eval_distribution
        scope = strategy.scope() if strategy else contextlib.nullcontext()
        with tf.Graph().as_default(), scope:
            scaffold, update_op, results, all_hooks = (
                self._evaluate_build_graph(input_fn, all_hooks, checkpoint_path)
            )
            return self._evaluate_run(
                checkpoint_path=checkpoint_path,
                scaffold=scaffold,
                update_op=update_op,
                eval_dict=results,
                all_hooks=all_hooks,
                output_dir=self.eval_dir(name),
            )

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions until the input ends.

        The graph is built at the first prediction. The session is closed when
        the generator ends, is closed or is deleted. Replicas of a TPUEstimator
        run one prediction at a time.

        Args:
          input_fn: Returns a `tf.data.Dataset` of features, or features.
            Labels are ignored.
          predict_keys: The names of the predictions to yield; None: all.
          hooks: SessionRunHooks for this call.
          checkpoint_path: A checkpoint; None: the latest. If there is none,
            the variables have their initial values.
          yield_single_examples: Whether to yield examples, not batches.

        Yields:
          The predictions of the model_fn: a NumPy array or a dict of arrays.

        Raises:
          ValueError: No prediction has one of the keys, or predictions of a
            batch differ in length and cannot be split into examples.
          tfembed.errors.StateError: (also RuntimeError) another generator of
            a TPUEstimator with replicas has not ended.
        """
        with self._steps.predicting():
            all_hooks = checked_hooks(hooks)
            sigterm.check("a prediction")
            checkpoint_path = checkpoint_path or self._checkpoint_to("predict")
            # No context may stay open while the caller handles a prediction.
            graph = tf.Graph()
            with graph.as_default():
                predictions, session = self._predict_session(
                    input_fn, predict_keys, all_hooks, checkpoint_path
                )
            with session:
                for batch in self._steps.predict(session, predictions, graph):
                    if yield_single_examples:
                        yield from examples(batch)
                    else:
                        yield batch

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Exports a SavedModel for serving, in a new folder named by timestamp.

        Args:
          export_dir_base: The parent of the new folder.
          serving_input_receiver_fn: Returns a `ServingInputReceiver`.
          assets_extra: Files to copy, by their path under `assets.extra`.
          as_text: Whether to write the SavedModel's proto as text.
          checkpoint_path: A checkpoint; None: the latest.
          experimental_mode: The mode of the graph to export.

        Returns:
          The path of the new folder.

        Raises:
          ValueError: There is no receiver function, no checkpoint, or the
            checkpoint lacks a variable.
        """
        receiver_fn = _checked_receiver(serving_input_receiver_fn)
        return self.experimental_export_all_saved_models(
            export_dir_base,
            {experimental_mode: receiver_fn},
            assets_extra=assets_extra,
            as_text=as_text,
            checkpoint_path=checkpoint_path,
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base: str,
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Exports one SavedModel with a graph for each of several modes.

        Args:
          export_dir_base: The parent of the new folder.
          input_receiver_fn_map: Receiver functions by `ModeKeys`. Those of
            TRAIN and EVAL return a `SupervisedInputReceiver`.
          assets_extra: Files to copy, by their path under `assets.extra`.
          as_text: Whether to write the SavedModel's proto as text.
          checkpoint_path: A checkpoint; None: the latest.

        Returns:
          The path of the new folder.

        Raises:
          ValueError: No mode is given, there is no checkpoint, or the
            checkpoint lacks a variable.
        """
        return self._export_all_saved_models(
            export_dir_base,
            input_receiver_fn_map,
            assets_extra=assets_extra,
            as_text=as_text,
            checkpoint_path=checkpoint_path,
            strip_default_attrs=True,
        )

    def export_savedmodel(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """Exports like `export_saved_model`, under the old name of that method.

        Args:
          export_dir_base, serving_input_receiver_fn, assets_extra, as_text,
            checkpoint_path: As for `export_saved_model`.
          strip_default_attrs: Whether to remove attributes with default values
            from the graph. `export_saved_model` removes them.

        Returns:
          The path of the new folder.

        Raises:
          ValueError: As for `export_saved_model`.
        """
        receiver_fn = _checked_receiver(serving_input_receiver_fn)
        return self._export_all_saved_models(
            export_dir_base,
            {ModeKeys.PREDICT: receiver_fn},
            assets_extra=assets_extra,
            as_text=as_text,
            checkpoint_path=checkpoint_path,
            strip_default_attrs=strip_default_attrs,
        )

    # The methods below are the parts of the calls above.

    def _has_to_train(self, steps: int | None, max_steps: int | None) -> bool:
        """Checks the arguments; returns False if training is done already."""
        if self.config.task_type in (TaskType.EVALUATOR, TaskType.PS):
            raise ArgumentError(
                "Train has been called wrong configuration. Please use "
                "train_and_evaluate which calls proper API according to given "
                f"configuration. The task is a '{self.config.task_type}'."
            )
        _check_steps(steps, max_steps)
        if max_steps is not None:
            trained = sessions.load_global_step_from_checkpoint_dir(
                self._model_dir
            )
            if max_steps <= trained:
                tf.compat.v1.logging.info(
                    "Skipping training since max_steps has already saved. "
                    "max_steps is %d, the checkpoint's step is %d.",
                    max_steps,
                    trained,
                )
                return False
        return True

    def _get_iterator_from_input_fn(
        self, input_fn: Callable[..., Any], mode: str, distribution: Any
    ) -> tuple[Any, list[Any]]:
        """Returns a strategy's iterator, and hooks that start it."""
        iterator = distribution.make_input_fn_iterator(
            lambda context: self._steps.call_input_fn(input_fn, mode, context)
        )
        return iterator, [strategies.StrategyInputHook(iterator)]

    def _create_and_assert_global_step(self, graph: Any) -> Any:
        """Makes the graph's global step, and checks the result."""
        step = self._steps.make_global_step(graph)
        if step is not tf.compat.v1.train.get_global_step():
            raise ArgumentError(
                "The graph has another global step already; the Estimator "
                f"makes it: {step}. Leave it out of the input_fn."
            )
        return step

    def _train_model(
        self,
        input_fn: Callable[..., Any],
        hooks: list[Any],
        saving_listeners: list[Any],
    ) -> Any:
        """Builds the graph of training and runs it; returns the last loss."""
        if self._train_distribution:
            return self._train_model_distributed(
                input_fn, hooks, saving_listeners
            )
        with tf.Graph().as_default() as graph, graph.device(self._device_fn):
            tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
            # Hooks share a read of the global step, which must be on its
            # device.
            self._create_and_assert_global_step(graph)
            v1_sessions.global_step_read(graph)
            given = self._steps.take_input(input_fn, ModeKeys.TRAIN)
            worker_hooks = list(given.hooks)
            with reports.default_writer(
                self._model_dir,
                self._config.save_summary_steps
                if self._config.is_chief
                else None,
                worker_hooks,
            ):
                spec = self._steps.call_model_fn(
                    given.features, given.labels, ModeKeys.TRAIN, self.config
                )
            return self._train_with_estimator_spec(
                spec,
                [
                    *worker_hooks,
                    *hooks,
                    *self._hooks_of_loss(spec, given.examples, hooks),
                ],
                saving_listeners,
            )

    def _train_model_distributed(
        self,
        input_fn: Callable[..., Any],
        hooks: list[Any],
        saving_listeners: list[Any],
    ) -> Any:
        """As `_train_model`, under the config's strategy."""
        strategy = self._train_distribution
        strategy.configure(self._session_config)
        with (
            tf.Graph().as_default() as graph,
            strategies.training_scope(strategy),
        ):
            tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
            iterator, worker_hooks = self._get_iterator_from_input_fn(
                input_fn, ModeKeys.TRAIN, strategy
            )
            step = self._create_and_assert_global_step(graph)
            # In the main thread, not in a replica's thread.
            v1_sessions.add_global_step_read(
                graph, strategy.extended.read_var(step)
            )
            spec = strategies.training_spec(
                strategy,
                strategies.call_per_replica(
                    strategy,
                    self._steps.call_model_fn,
                    iterator,
                    ModeKeys.TRAIN,
                    self.config,
                ),
            )
            return self._train_with_estimator_spec(
                spec,
                [
                    *worker_hooks,
                    *hooks,
                    *self._hooks_of_loss(spec, None, hooks),
                ],
                saving_listeners,
            )

    def _hooks_of_loss(
        self, spec: EstimatorSpec, features: Any, hooks: list[Any]
    ) -> list[Any]:
        """Returns hooks that stop at a NaN loss and log the progress."""
        found = [tf.compat.v1.train.NanTensorHook(spec.loss)]
        if self._config.log_step_count_steps is not None:
            found.append(
                ProgressHook(
                    spec.loss,
                    features,
                    every_steps=self._config.log_step_count_steps,
                    stop_hooks=hooks,
                )
            )
        return found

    def _train_with_estimator_spec(
        self,
        spec: EstimatorSpec,
        worker_hooks: list[Any],
        saving_listeners: list[Any],
    ) -> Any:
        """Runs the session of a training graph; returns the last loss."""
        if self._config.save_input_state:
            # Come after the hooks that start iterators.
            worker_hooks = [*worker_hooks, CheckpointInputPipelineHook(self)]
        sessions.check_tables_are_shared(
            self._config, tf.compat.v1.get_default_graph()
        )
        self._maybe_warm_start(self.latest_checkpoint())
        sessions.add_loss_to_collections(spec.loss)
        _order(spec)
        with sessions.training_session(
            self._config, spec, worker_hooks, saving_listeners
        ) as session:
            return self._steps.train(session, spec)

    def _evaluate_build_graph(
        self,
        input_fn: Callable[..., Any],
        hooks: list[Any] | None = None,
        checkpoint_path: str | None = None,
    ) -> tuple[Any, Any, dict[str, Any], list[Any]]:
        """Builds the graph of an evaluation.

        Returns:
          The scaffold, the op that evaluates a batch, the results by name, and
          all hooks.
        """
        graph = tf.compat.v1.get_default_graph()
        tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
        self._create_and_assert_global_step(graph)
        spec, update_op, results, input_hooks = self._call_model_fn_eval(
            input_fn
        )
        self._maybe_warm_start(checkpoint_path)
        if "global_step" in results:
            raise ArgumentError(
                "Metric with name `global_step` is not allowed, because "
                "Estimator already defines a default metric with the same "
                "name. Give the metric another name."
            )
        results["global_step"] = tf.compat.v1.train.get_global_step(graph)
        all_hooks = [
            *checkpoints.checks_of_init_fn(spec.scaffold, checkpoint_path),
            *input_hooks,
            *(hooks or []),
            *spec.evaluation_hooks,
        ]
        scaffold = spec.scaffold
        if scaffold.local_init_op is not None:
            # An op of our own would not initialize the eval step.
            v1_sessions.eval_step()
            scaffold = tf.compat.v1.train.Scaffold(
                local_init_op=tf.group(
                    scaffold.local_init_op,
                    tf.compat.v1.train.Scaffold.default_local_init_op(),
                ),
                copy_from_scaffold=scaffold,
            )
        return scaffold, update_op, results, all_hooks

    def _call_model_fn_eval(
        self, input_fn: Callable[..., Any]
    ) -> tuple[EstimatorSpec, Any, dict[str, Any], list[Any]]:
        """Returns the spec, the op of a batch, results, and input hooks."""
        if self._eval_distribution:
            return self._call_model_fn_eval_distributed(input_fn)
        given = self._steps.take_input(input_fn, ModeKeys.EVAL)
        spec, metrics = self._steps.evaluate(given)
        update_op, results = metric_ops(metrics)
        return spec, update_op, results, given.hooks

    def _call_model_fn_eval_distributed(
        self, input_fn: Callable[..., Any]
    ) -> tuple[EstimatorSpec, Any, dict[str, Any], list[Any]]:
        """As `_call_model_fn_eval`, under the config's strategy."""
        strategy = self._eval_distribution
        iterator, hooks = self._get_iterator_from_input_fn(
            input_fn, ModeKeys.EVAL, strategy
        )
        grouped = strategies.call_per_replica(
            strategy,
            self._steps.call_model_fn,
            iterator,
            ModeKeys.EVAL,
            self.config,
        )
        of_loss = strategy.extended.call_for_each_replica(
            loss_metric, args=(grouped.eval_metric_ops, grouped.loss)
        )
        update_op, results = strategies.evaluation(
            strategy, {**grouped.eval_metric_ops, **of_loss}
        )
        spec = grouped._make(
            EstimatorSpec(
                ModeKeys.EVAL,
                loss=results[LOSS_METRIC_KEY],
                evaluation_hooks=strategies.evaluation_hooks(strategy, grouped),
                scaffold=strategies.joined_scaffold(strategy, grouped.scaffold),
            )
        )
        return spec, update_op, results, hooks

    def _evaluate_run(
        self,
        checkpoint_path: str | None,
        scaffold: Any,
        update_op: Any,
        eval_dict: dict[str, Any],
        all_hooks: list[Any],
        output_dir: str,
    ) -> dict[str, Any]:
        """Runs the session of an evaluation, and writes its results."""
        seen = reports.SeenHook()
        with checkpoints.restoring(checkpoint_path, scaffold):
            results = v1_sessions.evaluate_once(
                checkpoint_path=checkpoint_path,
                master=self._config.evaluation_master,
                scaffold=scaffold,
                eval_ops=update_op,
                final_ops=eval_dict,
                hooks=[
                    seen,
                    *all_hooks,
                    sigterm.StopHook("an evaluation"),
                ],
                config=self._session_config,
            )
        # A hook may have made steps of a run in which the input ended.
        if not seen.runs and not any(
            getattr(hook, "num_steps", 0) for hook in all_hooks
        ):
            results = reports.of_no_rows(results)
        step = results["global_step"]
        reports.write_dict_to_summary(output_dir, results, step)
        if checkpoint_path:
            reports.write_checkpoint_path(output_dir, checkpoint_path, step)
        return results

    def _predict_session(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None,
        hooks: list[Any],
        checkpoint_path: str | None,
    ) -> tuple[Any, Any]:
        """Builds the graph; returns the predictions and a session."""
        graph = tf.compat.v1.get_default_graph()
        tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
        self._create_and_assert_global_step(graph)
        given = self._steps.take_input(input_fn, ModeKeys.PREDICT)
        spec = self._steps.call_model_fn(
            given.features, None, ModeKeys.PREDICT, self.config
        )
        self._maybe_warm_start(checkpoint_path)
        predictions = with_keys(spec.predictions, predict_keys)
        with checkpoints.restoring(checkpoint_path, spec.scaffold):
            session = tf.compat.v1.train.MonitoredSession(
                session_creator=tf.compat.v1.train.ChiefSessionCreator(
                    checkpoint_filename_with_path=checkpoint_path,
                    master=self._config.master,
                    scaffold=spec.scaffold,
                    config=self._session_config,
                ),
                hooks=[
                    *checkpoints.checks_of_init_fn(
                        spec.scaffold, checkpoint_path
                    ),
                    *given.hooks,
                    *hooks,
                    *spec.prediction_hooks,
                ],
            )
        return predictions, session

    def _export_all_saved_models(
        self,
        export_dir_base: str,
        input_receiver_fn_map: Mapping[str, Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = True,
    ) -> bytes:
        """Writes a SavedModel with a graph for each mode."""
        warm = self._warm_start_settings
        checkpoint_path = checkpoint_path or self.latest_checkpoint()
        if not checkpoint_path and warm:
            checkpoint_path = checkpoint_of(warm)
        if not checkpoint_path:
            raise ArgumentError(
                f"Couldn't find trained model at {self._model_dir}. Call "
                "`train` first, or name a checkpoint_path."
            )
        # Only the first graph saves its variables: the one of training has
        # all.
        modes = [
            mode
            for mode in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
            if input_receiver_fn_map.get(mode)
        ]
        if not modes:
            raise ArgumentError(
                "No valid modes for exporting found. Got "
                f"{list(input_receiver_fn_map)}. Give a receiver function for "
                "some of ModeKeys.TRAIN, EVAL and PREDICT."
            )

        def add_graphs(builder: Any) -> None:
            written = 0
            for mode in modes:
                sigterm.check("an export")
                for served in self._steps.served_graphs(mode):
                    written += self._add_graph(
                        builder,
                        served,
                        input_receiver_fn_map[mode],
                        mode=mode,
                        checkpoint_path=checkpoint_path,
                        save_variables=not written,
                        strip_default_attrs=strip_default_attrs,
                    )

        return saved_models.write_saved_model(
            export_dir_base,
            add_graphs,
            assets_extra=assets_extra,
            as_text=as_text,
        )

    def _add_graph(
        self,
        builder: Any,
        served: ServedGraph,
        receiver_fn: Callable[[], Any],
        *,
        mode: str,
        checkpoint_path: str,
        save_variables: bool,
        strip_default_attrs: bool,
    ) -> bool:
        """Adds a graph to a SavedModel; returns False if there is none."""
        with tf.Graph().as_default() as graph:
            self._create_and_assert_global_step(graph)
            tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
            receiver = receiver_fn()
            spec = served.spec(
                receiver.features, getattr(receiver, "labels", None)
            )
            if spec is None:
                return False
            saved_models.add_meta_graph(
                builder,
                spec,
                receiver,
                mode=mode,
                checkpoint_path=checkpoint_path,
                save_variables=save_variables,
                session_config=served.session_config,
                tags=served.tags,
                check_variables=served.checks_variables,
                strip_default_attrs=strip_default_attrs,
            )
            return True

    def _maybe_warm_start(self, checkpoint_path: str | None) -> None:
        """Warm-starts the graph's variables, unless a checkpoint exists."""
        if self._warm_start_settings is None:
            return
        if checkpoint_path:
            tf.compat.v1.logging.info(
                "No warm start: the variables come from checkpoint %s.",
                checkpoint_path,
            )
            return
        warm_start(self._warm_start_settings)

    def _existing_checkpoint(self) -> str:
        latest = checkpoints.usable_checkpoint(self._model_dir)
        if not latest:
            raise ArgumentError(
                f"Could not find trained model in model_dir: {self._model_dir}"
                ". Call `train` first, or give another model_dir."
            )
        return latest

    def _checkpoint_to(self, purpose: str) -> str | None:
        latest = checkpoints.latest_checkpoint(self._model_dir)
        if not latest:
            tf.compat.v1.logging.info(
                "Could not find trained model in model_dir: %s, running "
                "initialization to %s.",
                self._model_dir,
                purpose,
            )
        return latest


def metric_ops(
    metrics: Mapping[str, tuple[Any, Any]],
) -> tuple[Any, dict[str, Any]]:
    """Returns an op that updates all metrics, and their values by name."""
    names = sorted(metrics)  # Equal metrics make equal graphs.
    return (
        tf.group(*[metrics[name][1] for name in names]),
        {name: metrics[name][0] for name in names},
    )


def _order(spec: EstimatorSpec) -> None:
    """Makes a step read variables before it writes them, and need a batch."""
    order_input_before_writes([spec.train_op, spec.loss])
    order_reads_before_writes(
        [
            spec.train_op,
            spec.loss,
            *tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES),
            *tf.compat.v1.summary.all_v2_summary_ops(),
        ]
    )


def _check_subclass(cls: type) -> None:
    """Checks that a user's subclass overrides no method."""
    if not issubclass(cls, Estimator) or cls.__module__.startswith("tfembed."):
        return
    ours = {name for name in dir(Estimator) if not name.startswith("__")}
    overridden = sorted(
        name
        for name in (ours & set(vars(cls))) - _OVERRIDABLE
        if getattr(Estimator, name) != getattr(cls, name)
    )
    if overridden:
        raise ArgumentError(
            "Subclasses of Estimator cannot override members of Estimator. "
            f"{cls} does override {overridden}. Give the methods other names, "
            "or put what they do into the model_fn or into hooks."
        )


def _check_steps(steps: int | None, max_steps: int | None) -> None:
    if steps is not None and max_steps is not None:
        raise ArgumentError(
            "Can not provide both steps and max_steps. Given "
            f"steps={steps} and max_steps={max_steps}."
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value <= 0:
            raise ArgumentError(f"Must specify {name} > 0, given: {value}.")


def _checked_receiver(
    receiver_fn: Callable[[], Any] | None,
) -> Callable[[], Any]:
    if not receiver_fn:
        raise ArgumentError(
            "An input_receiver_fn must be defined. Pass what "
            "export.build_raw_serving_input_receiver_fn returns, or a "
            "function that returns a ServingInputReceiver."
        )
    return receiver_fn


def checked_hooks(hooks: Sequence[Any] | None) -> list[Any]:
    """Returns hooks as a list, each a SessionRunHook."""
    hooks = list(hooks or [])
    for hook in hooks:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise DtypeError(f"Hooks must be a SessionRunHook, given: {hook}.")
    return hooks


def checked_listeners(listeners: Sequence[Any] | None) -> list[Any]:
    """Returns listeners as a list, each a CheckpointSaverListener."""
    listeners = list(listeners or [])
    for listener in listeners:
        if not isinstance(listener, tf.compat.v1.train.CheckpointSaverListener):
            raise DtypeError(
                "saving_listeners must be a list of CheckpointSaverListener, "
                f"given: {listener}."
            )
    return listeners


def with_keys(
    predictions: Any, predict_keys: str | Sequence[str] | None
) -> Any:
    """Returns the requested predictions."""
    if not predict_keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ArgumentError(
            "predict_keys argument is not valid in case of non-dict "
            f"predictions. Given {predict_keys}."
        )
    if isinstance(predict_keys, str):
        predict_keys = [predict_keys]
    asked = {
        key: value for key, value in predictions.items() if key in predict_keys
    }
    if not asked:
        raise ArgumentError(
            "Expected to run at least one output from "
            f"{list(predictions)}, provided {predict_keys}."
        )
    return asked


def examples(batch: Any) -> Iterator[Any]:
    """Yields the examples of a batch."""
    if not isinstance(batch, dict):
        yield from batch
        return
    lengths = {name: values.shape[:1] for name, values in batch.items()}
    if () in lengths.values():
        scalars = [name for name, length in lengths.items() if not length]
        raise ArgumentError(
            f"Predictions {scalars} are scalars, and have no examples. Give "
            "them a first dimension of the batch's size, ask for others by "
            "predict_keys, or for batches by yield_single_examples=False."
        )
    if len(set(lengths.values())) > 1:
        raise ArgumentError(
            "Batch length of predictions should be same. Given "
            f"{lengths}. Ask for some by predict_keys, or for batches by "
            "yield_single_examples=False."
        )
    for i in range(next(iter(lengths.values()))[0]):
        yield {name: values[i] for name, values in batch.items()}
