"""`train_and_evaluate`: training and evaluations, by turns or in a cluster."""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.errors import (
    ArgumentError,
    DtypeError,
    StateError,
    StoppedError,
)
from tfembed.estimator.estimator import Estimator
from tfembed.estimator.exports.exporters import Exporter
from tfembed.estimator.run_config import RunConfig, TaskType
from tfembed.estimator.runs import sigterm

_MAX_DELAY_SECS = 60
_DELAY_SECS_PER_WORKER = 5
_SECS_BETWEEN_WARNINGS = 600
_TRAINERS = (TaskType.CHIEF, TaskType.MASTER, TaskType.WORKER)


class TrainSpec(
    collections.namedtuple(
        "TrainSpec", ["input_fn", "max_steps", "hooks", "saving_listeners"]
    )
):
    """The training part of `train_and_evaluate`.

    Args:
      input_fn: Returns features and labels.
      max_steps: The global step at which to stop; None: when the input ends.
      hooks: SessionRunHooks for training, in all workers.
      saving_listeners: CheckpointSaverListeners for the chief.

    Raises:
      ValueError: `max_steps` is not positive.
      TypeError: A value has the wrong type.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> TrainSpec:
        _check_input_fn(input_fn)
        if max_steps is not None and max_steps <= 0:
            raise ArgumentError(
                f"Must specify max_steps > 0, given: {max_steps}."
            )
        listeners = tuple(saving_listeners or ())
        for listener in listeners:
            if not isinstance(
                listener, tf.compat.v1.train.CheckpointSaverListener
            ):
                raise DtypeError(
                    "All saving_listeners must be `CheckpointSaverListener` "
                    f"instances, given: {listener}."
                )
        return super().__new__(
            cls, input_fn, max_steps, _checked_hooks(hooks), listeners
        )


class EvalSpec(
    collections.namedtuple(
        "EvalSpec",
        [
            "input_fn",
            "steps",
            "name",
            "hooks",
            "exporters",
            "start_delay_secs",
            "throttle_secs",
        ],
    )
):
    """The evaluations of `train_and_evaluate`: input, frequency and exports.

    Args:
      input_fn: Returns features and labels.
      steps: The number of batches; None: until the input ends.
      name: The name of the evaluation, if a model has several.
      hooks: SessionRunHooks for evaluations.
      exporters: An `Exporter` or several, called after evaluations.
      start_delay_secs: The seconds that an evaluator waits before its first
        one.
      throttle_secs: The minimum seconds between the starts of evaluations.

    Raises:
      ValueError: A number or an exporter's name is not allowed.
      TypeError: A value has the wrong type.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[Any] | None = None,
        exporters: Exporter | Iterable[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        _check_input_fn(input_fn)
        if steps is not None and steps <= 0:
            raise ArgumentError(
                f"Must specify steps > 0, given: {steps}. None evaluates "
                "until the input ends."
            )
        if name is not None and not isinstance(name, str):
            raise DtypeError(f"`name` must be string, given: {name}.")
        for key, seconds in (
            ("start_delay_secs", start_delay_secs),
            ("throttle_secs", throttle_secs),
        ):
            if seconds < 0:
                raise ArgumentError(
                    f"Must specify {key} >= 0, given: {seconds}."
                )
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            _checked_hooks(hooks),
            _checked_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, Any] | None:
    """Trains and evaluates a model, alone or as one task of a cluster.

    Without a cluster, an evaluation follows each checkpoint, but at most every
    `eval_spec.throttle_secs`, and the end of training. In a cluster
    (TF_CONFIG) a chief and workers train, parameter servers hold variables,
    and an evaluator evaluates new checkpoints until `train_spec.max_steps`.

    Args:
      estimator: The Estimator.
      train_spec: The input and length of training.
      eval_spec: The input and frequency of evaluations.

    Returns:
      Without a cluster, the last evaluation's metrics and the exporters'
      results; else None.

    Raises:
      ValueError: TF_CONFIG has an unknown task.
      TypeError: An argument has the wrong type.
    """
    _check_eval_spec(eval_spec)
    executor = TrainingExecutor(
        estimator=estimator, train_spec=train_spec, eval_spec=eval_spec
    )
    config = estimator.config
    if config.task_type == TaskType.EVALUATOR and config.task_id > 0:
        raise ArgumentError(
            "For distributed training, there can only be one `evaluator` task"
            f" (with task id 0).  Given task id {config.task_id}."
        )
    result: tuple[dict[str, Any] | None, Any] | None = executor.run()
    return result


class EvalStatus:
    """The reasons why an evaluation has results, or not."""

    EVALUATED = "evaluated"
    MISSING_CHECKPOINT = "missing checkpoint"
    NO_NEW_CHECKPOINT = "no new checkpoint"


class EvalResult(
    collections.namedtuple(
        "EvalResult", ["status", "metrics", "checkpoint_path"]
    )
):
    """The results of an evaluation, or the reason why there are none.

    Args:
      status: One of `EvalStatus`.
      metrics: The results by name; None without results.
      checkpoint_path: The evaluated checkpoint; None without results.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        status: str,
        metrics: Any = None,
        checkpoint_path: str | None = None,
    ) -> EvalResult:
        if status != EvalStatus.EVALUATED:
            for name, value in (
                ("metrics", metrics),
                ("checkpoint", checkpoint_path),
            ):
                if value:
                    raise ArgumentError(
                        f"{name} must be `None` if status is not "
                        f"{EvalStatus.EVALUATED}; got status {status}, {name} "
                        f"{value}."
                    )
            return super().__new__(cls, status, metrics, checkpoint_path)
        if not metrics:
            raise ArgumentError(
                "Internal error: `Estimator.evaluate` should never return "
                "empty metrics."
            )
        if not isinstance(metrics, dict):
            raise DtypeError(
                "`Estimator.evaluate` should return dict. Given "
                f"{type(metrics)}."
            )
        if "global_step" not in metrics:
            raise ArgumentError(
                "Internal error: `Estimator.evaluate` result should have "
                f"`global_step` in result. Given {metrics}."
            )
        if not checkpoint_path:
            raise ArgumentError(
                "Internal error: `checkpoint_path` should never be empty."
            )
        return super().__new__(cls, status, metrics, checkpoint_path)


class ContinuousEvalListener:
    """Is called around evaluations, and may stop them by returning False."""

    def before_eval(self) -> bool:
        """Returns whether to evaluate."""
        return True

    def after_eval(self, eval_result: EvalResult) -> bool:
        """Returns whether to continue."""
        del eval_result
        return True


class TrainingExecutor:
    """Runs one task's part of training and evaluation.

    Args:
      estimator: The Estimator; its config has the task of this process.
      train_spec: The input and length of training.
      eval_spec: The input of evaluations; None if this task does not evaluate.
      train_hooks: Hooks for training besides those of the spec.
      continuous_eval_listener: Is called around evaluations.

    Raises:
      TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        estimator: Estimator,
        train_spec: TrainSpec,
        eval_spec: EvalSpec | None,
        train_hooks: Iterable[Any] | None = None,
        continuous_eval_listener: ContinuousEvalListener | None = None,
    ) -> None:
        if not isinstance(estimator, Estimator):
            raise DtypeError(
                "`estimator` must have type `tf.estimator.Estimator`. Got: "
                f"{type(estimator)}. Give a tfembed.estimator.Estimator."
            )
        if not isinstance(train_spec, TrainSpec):
            raise DtypeError(
                "`train_spec` must have type `tf.estimator.TrainSpec`. Got: "
                f"{type(train_spec)}."
            )
        if eval_spec and not isinstance(eval_spec, EvalSpec):
            raise DtypeError(
                "`eval_spec` must be either `None` or have type "
                f"`tf.estimator.EvalSpec`. Got: {type(eval_spec)}."
            )
        listener = continuous_eval_listener
        if listener and not isinstance(listener, ContinuousEvalListener):
            raise DtypeError(
                "`continuous_eval_listener` must have type "
                f"`_ContinuousEvalListener`. Got: {type(listener)}."
            )
        self._estimator = estimator
        self._train_spec = train_spec
        self._eval_spec = eval_spec
        self._train_hooks = _checked_hooks(train_hooks)
        self._listener = listener or ContinuousEvalListener()

    @property
    def estimator(self) -> Estimator:
        """The Estimator."""
        return self._estimator

    def run(self) -> Any:
        """Runs this process' task.

        Returns:
          As for `train_and_evaluate`.

        Raises:
          ValueError: The task type is unknown.
        """
        config = self._estimator.config
        task = config.task_type
        if not config.cluster_spec and task != TaskType.EVALUATOR:
            tf.compat.v1.logging.info(
                "Running training and evaluation locally (non-distributed)."
            )
            return self.run_local()
        if not task:
            raise ArgumentError(
                "`estimator.config` must have task_type set. This usually "
                "means TF_CONFIG environment is not set correctly."
            )
        if task == "local":
            raise ArgumentError(
                "`task.type` in TF_CONFIG cannot be `local`. Leaving `cluster`"
                " and `task` properties in TF_CONFIG absent triggers train and"
                " evaluate `Estimator` locally (non-distributed)."
            )
        tasks = {
            name[len("run_") :]
            for name in dir(self)
            if name.startswith("run_") and callable(getattr(self, name))
        } - {"local"}
        if task not in tasks:
            raise ArgumentError(
                f"Task type {task} is not supported. Supported task types are "
                f"{sorted(tasks)}"
            )
        getattr(self, f"run_{task}")()
        return None

    def run_chief(self) -> None:
        """Trains, and saves checkpoints."""
        self._train_in_cluster(self._train_spec.saving_listeners)

    def run_worker(self) -> None:
        """Trains."""
        self._train_in_cluster(None)

    def run_master(self) -> None:
        """Trains, saves checkpoints, and evaluates them."""
        evaluator = self._evaluator()
        self._train_in_cluster(
            (
                *self._train_spec.saving_listeners,
                _EvaluatingListener(
                    evaluator,
                    evaluator.spec.throttle_secs,
                    ContinuousEvalListener(),
                ),
            )
        )

    def run_evaluator(self) -> None:
        """Evaluates new checkpoints until training has ended."""
        evaluator = self._evaluator()
        delay = evaluator.spec.start_delay_secs
        if delay:
            tf.compat.v1.logging.info(
                "Waiting %f secs before starting eval.", delay
            )
            time.sleep(delay)
        last_step = self._train_spec.max_steps
        while True:
            result, ends = self._evaluate_once(evaluator)
            if ends:
                return
            step = (result.metrics or {}).get("global_step")
            if step and last_step and step >= last_step:
                tf.compat.v1.logging.info(
                    "Exiting evaluation, global_step=%s >= train max_steps=%s",
                    step,
                    last_step,
                )
                return

    def run_ps(self) -> None:
        """Serves variables until the process is killed."""
        self._start_server().join()

    def run_local(self) -> tuple[dict[str, Any] | None, Any]:
        """Trains with evaluations in between; returns the last results."""
        evaluator = self._evaluator()
        config = self._estimator.config
        tf.compat.v1.logging.info(
            "Start train and evaluate loop. The evaluate will happen after "
            "every checkpoint. Checkpoint frequency is determined based on "
            "RunConfig arguments: save_checkpoints_steps %s or "
            "save_checkpoints_secs %s.",
            config.save_checkpoints_steps,
            config.save_checkpoints_secs,
        )
        listener = _EvaluatingListener(
            evaluator, evaluator.spec.throttle_secs, self._listener
        )
        self._train((*self._train_spec.saving_listeners, listener))
        result = listener.eval_result or EvalResult(
            EvalStatus.MISSING_CHECKPOINT
        )
        return result.metrics, listener.export_results

    def _evaluator(self) -> _Evaluator:
        return _Evaluator(
            self._estimator,
            _check_eval_spec(self._eval_spec),
            self._train_spec.max_steps,
        )

    def _train(self, saving_listeners: Sequence[Any] | None) -> None:
        self._estimator.train(
            input_fn=self._train_spec.input_fn,
            max_steps=self._train_spec.max_steps,
            hooks=[*self._train_spec.hooks, *self._train_hooks],
            saving_listeners=saving_listeners,
        )

    def _train_in_cluster(self, saving_listeners: Any) -> None:
        config = self._estimator.config
        if not _has_servers_already():
            self._start_server()
        if config.task_type == TaskType.WORKER:
            # Workers start one after the other, so that the chief makes the
            # variables.
            longest = config.experimental_max_worker_delay_secs
            delay = min(
                _MAX_DELAY_SECS if longest is None else int(longest),
                (config.task_id + 1) * _DELAY_SECS_PER_WORKER,
            )
            if delay > 0:
                tf.compat.v1.logging.info(
                    "Waiting %d secs before starting training.", delay
                )
                time.sleep(delay)
        self._train(saving_listeners)

    def _start_server(self) -> Any:
        """Starts this task's server, unless it is the only task."""
        config = self._estimator.config
        if (
            not config.cluster_spec
            or not config.task_type
            or config.task_id is None
        ):
            raise StateError(
                "Could not start server; be sure to specify cluster_spec, "
                "task_type, and task in RunConfig or set the TF_CONFIG "
                "environment variable."
            )
        if not config.master:
            if _is_lone_trainer(config):
                tf.compat.v1.logging.info(
                    "Skip starting Tensorflow server as there is only one "
                    "node in the cluster."
                )
                return None
            raise StateError(
                "Could not start server; be sure to specify master in "
                "RunConfig or set the TF_CONFIG environment variable."
            )
        tf.compat.v1.logging.info("Start Tensorflow server.")
        session_config = tf.compat.v1.ConfigProto(log_device_placement=False)
        if config.session_config is not None:
            session_config.gpu_options.CopyFrom(
                config.session_config.gpu_options
            )
        server = tf.distribute.Server(
            config.cluster_spec,
            job_name=config.task_type,
            task_index=config.task_id,
            config=session_config,
            start=False,
            protocol=config.protocol,
        )
        server.start()
        return server

    def _evaluate_once(self, evaluator: _Evaluator) -> tuple[Any, bool]:
        """Evaluates and waits; returns the result, and whether to stop."""
        began = time.time()
        if not self._listener.before_eval():
            tf.compat.v1.logging.info(
                "Exiting evaluation: the listener's before_eval says so."
            )
            return None, True
        result, _ = evaluator.evaluate_and_export()
        if not self._listener.after_eval(result):
            tf.compat.v1.logging.info(
                "Exiting evaluation: the listener's after_eval says so."
            )
            return result, True
        throttle = evaluator.spec.throttle_secs
        wait = throttle - (time.time() - began)
        if wait > 0:
            tf.compat.v1.logging.info(
                "Waiting %f secs before starting next eval run.", wait
            )
            time.sleep(wait)
        elif throttle == 0 and result.status != EvalStatus.EVALUATED:
            tf.compat.v1.logging.warning(
                "EvalSpec.throttle_secs is set as 0. This might overload the "
                "job before finding (next) new checkpoint. Please consider to "
                "increase it."
            )
        return result, False


class _Evaluator:
    """Evaluates and exports each checkpoint once.

    Attributes:
      spec: the EvalSpec.
    """

    def __init__(
        self, estimator: Estimator, spec: EvalSpec, max_steps: int | None
    ) -> None:
        self.spec = spec
        self._estimator = estimator
        self._max_steps = max_steps
        self._evaluated: str | None = None
        self._warned = 0.0

    def evaluate_and_export(self) -> tuple[EvalResult, list[Any]]:
        """Evaluates and exports the latest checkpoint, if it is new."""
        checkpoint = self._estimator.latest_checkpoint()
        if not checkpoint:
            self._warn(
                "Estimator is not trained yet. Will start an evaluation when "
                "a checkpoint is ready."
            )
            return EvalResult(EvalStatus.MISSING_CHECKPOINT), []
        if checkpoint == self._evaluated:
            self._warn(
                "No new checkpoint ready for evaluation. Skip the current "
                "evaluation pass as evaluation results are expected to be "
                "same for the same checkpoint."
            )
            return EvalResult(EvalStatus.NO_NEW_CHECKPOINT), []
        metrics = self._estimator.evaluate(
            input_fn=self.spec.input_fn,
            steps=self.spec.steps,
            name=self.spec.name,
            checkpoint_path=checkpoint,
            hooks=self.spec.hooks,
        )
        result = EvalResult(EvalStatus.EVALUATED, metrics, checkpoint)
        is_final = bool(
            self._max_steps and metrics["global_step"] >= self._max_steps
        )
        folder = os.path.join(  # noqa: PTH118 - may be gs:
            tf.compat.as_str_any(self._estimator.model_dir), "export"
        )
        exported = []
        for exporter in self.spec.exporters:
            sigterm.check("an export")
            exported.append(
                exporter.export(
                    estimator=self._estimator,
                    export_path=f"{folder}/{exporter.name}",
                    checkpoint_path=checkpoint,
                    eval_result=metrics,
                    is_the_final_export=is_final,
                )
            )
        self._warned = 0.0
        self._evaluated = checkpoint
        return result, exported

    def _warn(self, text: str) -> None:
        if time.time() - self._warned > _SECS_BETWEEN_WARNINGS:
            tf.compat.v1.logging.warning(text)
            self._warned = time.time()


class _EvaluatingListener(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates checkpoints as training saves them.

    Attributes:
      eval_result: the results of the last evaluation, or None.
      export_results: the results of its exporters.
    """

    def __init__(
        self,
        evaluator: _Evaluator,
        throttle_secs: float,
        listener: ContinuousEvalListener,
    ) -> None:
        self._evaluator = evaluator
        self._throttle_secs = throttle_secs
        self._listener = listener
        self._timer: Any = None
        self._is_first = True
        self.eval_result: EvalResult | None = None
        self.export_results: Any = None

    def begin(self) -> None:
        """Starts the clock for `throttle_secs`."""
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_secs=self._throttle_secs
        )
        self._is_first = True

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Evaluates if an evaluation is due; returns True to stop training."""
        del session
        if self._is_first:  # The checkpoint at the start of training.
            self._is_first = False
            return None
        if not self._listener.before_eval():
            tf.compat.v1.logging.info(
                "Exiting training and evaluation: the listener's before_eval "
                "says so."
            )
            return True
        if not self._timer.should_trigger_for_step(global_step_value):
            tf.compat.v1.logging.info(
                "Skip the current checkpoint eval due to throttle secs (%s "
                "secs).",
                self._throttle_secs,
            )
            return None
        try:
            result = self._evaluate(global_step_value)
        except StoppedError as stopped:
            tf.compat.v1.logging.info("%s", stopped)
            return True
        if self._listener.after_eval(result):
            return None
        tf.compat.v1.logging.info(
            "Exiting training and evaluation: the listener's after_eval says "
            "so."
        )
        return True

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluates the last checkpoint, unless that was done."""
        del session
        if global_step_value == self._timer.last_triggered_step():
            return
        if sigterm.came() or not self._listener.before_eval():
            return
        try:
            result = self._evaluate(global_step_value)
        except StoppedError as stopped:
            tf.compat.v1.logging.info("%s", stopped)
            return
        self._listener.after_eval(result)

    def _evaluate(self, global_step: int) -> EvalResult:
        self._timer.update_last_triggered_step(global_step)
        self.eval_result, self.export_results = (
            self._evaluator.evaluate_and_export()
        )
        if self.eval_result.status != EvalStatus.EVALUATED:
            raise StateError(
                "There was no new checkpoint after the training. Eval status: "
                f"{self.eval_result.status}. Checkpoints must be saved in the "
                "Estimator's model_dir."
            )
        return self.eval_result


def _is_lone_trainer(config: RunConfig) -> bool:
    jobs = config.cluster_spec.jobs
    return (
        len(jobs) == 1
        and len(config.cluster_spec.job_tasks(jobs[0])) == 1
        and config.task_type in _TRAINERS
    )


def _has_servers_already() -> bool:
    """Whether TF_CONFIG says that its environment starts the servers."""
    environment = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not environment:
        tf.compat.v1.logging.warn(
            "TF_CONFIG should not be empty in distributed environment."
        )
    return bool(environment.get("environment") == "google")


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise DtypeError(f"`input_fn` must be callable, given: {input_fn}.")


def _check_eval_spec(eval_spec: Any) -> EvalSpec:
    if not isinstance(eval_spec, EvalSpec):
        raise DtypeError(
            "`eval_spec` must have type `tf.estimator.EvalSpec`. Got: "
            f"{type(eval_spec)}."
        )
    return eval_spec


def _checked_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise DtypeError(
                f"All hooks must be `SessionRunHook` instances, given: {hook}."
            )
    return hooks


def _checked_exporters(exporters: Any) -> tuple[Exporter, ...]:
    if not exporters:
        return ()
    if isinstance(exporters, Exporter):
        exporters = [exporters]
    text = (
        "`exporters` must be an Exporter, an iterable of Exporter, or `None`,"
        f" found {exporters}."
    )
    if not isinstance(exporters, Iterable):
        raise DtypeError(text)
    exporters = tuple(exporters)
    if not all(isinstance(one, Exporter) for one in exporters):
        raise DtypeError(text)
    names = [one.name for one in exporters]
    for name in names:
        if not name:
            raise ArgumentError(
                "An Exporter cannot have a name that is `None` or empty. All "
                f"exporter names: {names}."
            )
        if not isinstance(name, str):
            raise ArgumentError(
                f"An Exporter must have a string name. Given: {type(name)}."
            )
    if len(set(names)) < len(names):
        raise ArgumentError(
            "`exporters` must have unique names. Such a name cannot be "
            f"`None`. All exporter names: {names}."
        )
    return exporters
