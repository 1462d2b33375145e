"""Hooks that stop training: by metrics, a function, a step or a time."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, DtypeError
from tfembed.estimator.estimator import Estimator
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs import sessions
from tfembed.estimator.runs.reports import scalars

_Metrics = dict[int, dict[str, float]]


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Returns a hook that stops training, in all workers, by a function.

    Args:
      estimator: The Estimator that trains.
      should_stop_fn: A function without arguments that returns whether to
        stop. The chief calls it.
      run_every_secs: The seconds between two calls; None if steps are given.
      run_every_steps: The steps between two calls.

    Raises:
      TypeError: `estimator` or `should_stop_fn` has the wrong type.
      ValueError: Both seconds and steps are given.
    """
    if not isinstance(estimator, Estimator):
        raise DtypeError(
            "`estimator` must have type `tf.estimator.Estimator`. Got: "
            f"{type(estimator)}. Give a tfembed.estimator.Estimator."
        )
    if run_every_secs is not None and run_every_steps is not None:
        raise ArgumentError(
            "Only one of `run_every_secs` and `run_every_steps` must be set. "
            f"Given {run_every_secs} and {run_every_steps}."
        )
    if estimator.config.is_chief:
        return StopOnPredicateHook(
            should_stop_fn, run_every_secs, run_every_steps
        )
    return CheckForStoppingHook()


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Returns a hook that stops training once a metric is above a threshold.

    Args:
      estimator: The Estimator that trains.
      metric_name: The name of a metric of evaluations.
      threshold: The bound of the metric.
      eval_dir: The folder of the evaluations' summaries; None: the Estimator's
        default.
      min_steps: The global step before which evaluations are ignored.
      run_every_secs: The seconds between two checks of the metrics.
      run_every_steps: The steps between two checks.
    """
    return make_early_stopping_hook(
        estimator,
        _crosses(
            metric_name,
            threshold,
            operator.gt,
            eval_dir or estimator.eval_dir(),
            min_steps,
        ),
        run_every_secs,
        run_every_steps,
    )


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Returns a hook that stops training once a metric is below a threshold.

    The arguments are as for `stop_if_higher_hook`.
    """
    return make_early_stopping_hook(
        estimator,
        _crosses(
            metric_name,
            threshold,
            operator.lt,
            eval_dir or estimator.eval_dir(),
            min_steps,
        ),
        run_every_secs,
        run_every_steps,
    )


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Returns a hook that stops training when a metric no longer rises.

    Args:
      estimator: The Estimator that trains.
      metric_name: The name of a metric of evaluations.
      max_steps_without_increase: The number of steps without a better value.
      eval_dir: The folder of the evaluations' summaries; None: the Estimator's
        default.
      min_steps: The global step before which evaluations are ignored.
      run_every_secs: The seconds between two checks of the metrics.
      run_every_steps: The steps between two checks.
    """
    return make_early_stopping_hook(
        estimator,
        _stalls(
            metric_name,
            max_steps_without_increase,
            operator.gt,
            eval_dir or estimator.eval_dir(),
            min_steps,
        ),
        run_every_secs,
        run_every_steps,
    )


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Returns a hook that stops training when a metric no longer falls.

    The arguments are as for `stop_if_no_increase_hook`.
    """
    return make_early_stopping_hook(
        estimator,
        _stalls(
            metric_name,
            max_steps_without_decrease,
            operator.lt,
            eval_dir or estimator.eval_dir(),
            min_steps,
        ),
        run_every_secs,
        run_every_steps,
    )


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> Any:
    """Returns a hook that stops training once a step's checkpoint exists.

    Workers go on until the chief has saved a checkpoint of that step, since
    the chief may need their gradients.

    Args:
      estimator: The Estimator that trains.
      last_step: The global step to stop at.
      wait_after_file_check_secs: The seconds between two checks for
        checkpoints.
    """
    if estimator.config.is_chief:
        return tf.compat.v1.train.StopAtStepHook(last_step=last_step)
    return StopAtCheckpointStepHook(
        model_dir=estimator.model_dir,
        last_step=last_step,
        wait_after_file_check_secs=wait_after_file_check_secs,
    )


def read_eval_metrics(eval_dir: str) -> _Metrics:
    """Reads evaluations' metrics from their summaries.

    Args:
      eval_dir: The folder of the summaries.

    Returns:
      A dict from global step, in ascending order, to metrics by name.
    """
    metrics: _Metrics = {}
    for event in _events(eval_dir):
        found = scalars(event)
        if found:
            metrics.setdefault(event.step, {}).update(found)
    return dict(sorted(metrics.items()))


class StopOnPredicateHook(tf.compat.v1.train.SessionRunHook):
    """Stops training, in all workers, when a function says so.

    Args:
      should_stop_fn: A function without arguments that returns whether to
        stop.
      run_every_secs: The seconds between two calls; None if steps are given.
      run_every_steps: The steps between two calls.

    Raises:
      TypeError: `should_stop_fn` is not callable.
    """

    def __init__(
        self,
        should_stop_fn: Callable[[], bool],
        run_every_secs: float | None = 60,
        run_every_steps: int | None = None,
    ) -> None:
        if not callable(should_stop_fn):
            raise DtypeError(
                f"`should_stop_fn` must be callable. Given {should_stop_fn!r}."
            )
        self._should_stop_fn = should_stop_fn
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_secs=run_every_secs, every_steps=run_every_steps
        )
        self._global_step: Any = None
        self._stop_var: Any = None
        self._stop: Any = None

    def begin(self) -> None:
        """Makes the variable that tells workers to stop."""
        self._global_step = tf.compat.v1.train.get_global_step()
        self._stop_var = get_or_create_stop_var()
        self._stop = tf.compat.v1.assign(self._stop_var, True)

    def before_run(self, run_context: Any) -> Any:
        """Fetches the global step."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Calls the function, if a call is due."""
        step = run_values.results
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop_fn():
            tf.compat.v1.logging.info(
                "Requesting early stopping at global step %d", step
            )
            run_context.session.run(self._stop)
            run_context.request_stop()


class CheckForStoppingHook(tf.compat.v1.train.SessionRunHook):
    """Stops a worker's training when the chief's has stopped."""

    def __init__(self) -> None:
        self._stop: Any = None

    def begin(self) -> None:
        """Makes the variable that tells workers to stop."""
        self._stop = get_or_create_stop_var()

    def before_run(self, run_context: Any) -> Any:
        """Fetches the variable."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._stop)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops training, if the variable is true."""
        if run_values.results:
            tf.compat.v1.logging.info(
                "Early stopping requested, suspending run."
            )
            run_context.request_stop()


class StopAtCheckpointStepHook(tf.compat.v1.train.SessionRunHook):
    """Stops training once a checkpoint of a step exists.

    Args:
      model_dir: The folder of checkpoints.
      last_step: The global step to stop at.
      wait_after_file_check_secs: The seconds between two checks for
        checkpoints.

    Raises:
      ValueError: `model_dir` or `last_step` is None.
    """

    def __init__(
        self,
        model_dir: str,
        last_step: int,
        wait_after_file_check_secs: float = 30,
    ) -> None:
        for name, value in (
            ("last_step", last_step),
            ("model_dir", model_dir),
        ):
            if value is None:
                raise ArgumentError(f"{name} must be specified; got None.")
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_secs = wait_after_file_check_secs
        self._global_step: Any = None

    def begin(self) -> None:
        """Looks up the graph's global step."""
        self._global_step = v1_sessions.global_step_read(
            tf.compat.v1.get_default_graph()
        )
        if self._global_step is None:
            raise ArgumentError(
                "Global step should be created to use StopAtCheckpointStepHook."
            )

    def before_run(self, run_context: Any) -> Any:
        """Fetches the global step."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Looks for the checkpoint once the step is reached."""
        if run_values.results + 1 < self._last_step:
            return
        saved = sessions.load_global_step_from_checkpoint_dir(self._model_dir)
        if saved >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_secs)


def get_or_create_stop_var() -> Any:
    """Returns the graph's variable that tells workers to stop."""
    with tf.compat.v1.variable_scope(
        "signal_early_stopping", reuse=tf.compat.v1.AUTO_REUSE
    ):
        return tf.compat.v1.get_variable(
            "STOP",
            shape=[],
            dtype=tf.bool,
            initializer=tf.compat.v1.initializers.constant(False),
            collections=[tf.compat.v1.GraphKeys.GLOBAL_VARIABLES],
            trainable=False,
        )


def _crosses(
    metric_name: str,
    threshold: float,
    is_better: Callable[[float, float], bool],
    eval_dir: str,
    min_steps: int,
) -> Callable[[], bool]:
    def should_stop() -> bool:
        for step, value in _values(eval_dir, metric_name, min_steps):
            if is_better(value, threshold):
                tf.compat.v1.logging.info(
                    'At step %s, metric "%s" has value %s: early stopping, as '
                    "the threshold is %s.",
                    step,
                    metric_name,
                    value,
                    threshold,
                )
                return True
        return False

    return should_stop


def _stalls(
    metric_name: str,
    max_steps: int,
    is_better: Callable[[float, float], bool],
    eval_dir: str,
    min_steps: int,
) -> Callable[[], bool]:
    def should_stop() -> bool:
        best: tuple[int, float] | None = None
        for step, value in _values(eval_dir, metric_name, min_steps):
            if best is None and math.isnan(value):
                continue  # Nothing would be better.
            if best is None or is_better(value, best[1]):
                best = step, value
            if step - best[0] >= max_steps:
                tf.compat.v1.logging.info(
                    'Metric "%s" is no better for %s steps: early stopping, as'
                    " the bound is %s steps.",
                    metric_name,
                    step - best[0],
                    max_steps,
                )
                return True
        return False

    return should_stop


def _values(
    eval_dir: str, metric_name: str, min_steps: int
) -> Iterator[tuple[int, float]]:
    """Yields (step, value of the metric).

    Raises:
      ValueError: The evaluations lack the metric.
    """
    metrics = read_eval_metrics(eval_dir)
    if metrics and not any(metric_name in one for one in metrics.values()):
        known = sorted({name for one in metrics.values() for name in one})
        raise ArgumentError(
            f"Early stopping looks for the metric '{metric_name}', which no "
            f"evaluation in '{eval_dir}' has. They have {known}."
        )
    for step, values in metrics.items():
        if step >= min_steps and metric_name in values:
            yield step, values[metric_name]


def _events(folder: str) -> Iterator[Any]:
    for path in tf.io.gfile.glob(f"{folder}/events.out.tfevents.*"):
        try:
            yield from tf.compat.v1.train.summary_iterator(path)
        except tf.errors.DataLossError as error:
            tf.compat.v1.logging.warning(
                "Skipping the rest of file %s, which is damaged: %s",
                path,
                error,
            )
