"""Loops of steps: hooks that run a loop in one session run, and its length."""

from __future__ import annotations

import collections
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs import sigterm

_COLLECTION = "tpu_estimator_iterations_per_loop"
_STEP_OF_PREDICTION = "tpu_estimator_step_of_prediction"


def iterations_per_loop_variable() -> Any:
    """Returns the graph's variable that holds the length of the next loop.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) the graph has several.
    """
    graph = tf.compat.v1.get_default_graph()
    made = graph.get_collection(_COLLECTION)
    if len(made) > 1:
        raise errors.StateError(
            "Multiple iterations_per_loop variables are in the collection "
            f"{_COLLECTION!r}: {made}."
        )
    if made:
        return made[0]
    with tf.compat.v1.variable_scope(
        tf.compat.v1.VariableScope(reuse=False), auxiliary_name_scope=False
    ):
        return tf.compat.v1.get_variable(
            "tpu_estimator/iterations_per_loop",
            initializer=tf.compat.v1.zeros_initializer(),
            shape=[],
            dtype=tf.int32,
            trainable=False,
            collections=[_COLLECTION, tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
        )


def _set(variable: Any, value: int, session: Any) -> None:
    """Sets a variable of a graph that may be final."""
    session.run(variable.initializer, {variable.initializer.inputs[1]: value})


class TPUStopAtStepHook(tf.compat.v1.train.SessionRunHook):
    """Sets the length of each loop, and stops training at a step.

    The next loop has `iterations_per_loop_counter` steps, or the steps that
    are left if these are fewer. A counter in seconds is converted to steps by
    the time of the loops before.

    Args:
      iterations_per_loop_counter: An `IterationsPerLoopCounter`.
      num_steps: The number of steps to run.
      final_step: The global step at which to stop.

    Raises:
      ValueError: Neither or both of `num_steps` and `final_step` are given.
    """

    def __init__(
        self,
        iterations_per_loop_counter: IterationsPerLoopCounter,
        num_steps: int | None = None,
        final_step: int | None = None,
    ) -> None:
        if num_steps is None and final_step is None:
            raise errors.ArgumentError(
                "One of `num_steps` or `final_step` must be specified."
            )
        if num_steps is not None and final_step is not None:
            raise errors.ArgumentError(
                "Only one of `num_steps` or `final_step` can be specified; got "
                f"{num_steps} and {final_step}."
            )
        if iterations_per_loop_counter.unit not in ("count", "seconds"):
            raise errors.ArgumentError(
                "Only `count` or `seconds` are accepted as the "
                "`iterations_per_loop` unit; got "
                f"{iterations_per_loop_counter.unit!r}."
            )
        self._iterations_per_loop_counter = iterations_per_loop_counter
        self._num_steps = num_steps
        self._final_step = final_step
        self._next_iteration_count = 1
        self._iteration_count_estimator = (
            IterationCountEstimator()
            if iterations_per_loop_counter.unit == "seconds"
            else None
        )
        self._start_time = time.monotonic()
        self._global_step: Any = None
        self._iterations: Any = None

    @property
    def last_step(self) -> int | None:
        """The global step at which training ends; None before it starts."""
        return self._final_step

    def begin(self) -> None:
        """Looks up the global step and the loop length in the graph.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) there is no global
            step.
        """
        self._global_step = tf.compat.v1.train.get_global_step()
        if self._global_step is None:
            raise errors.StateError("Global step should be created.")
        self._iterations = iterations_per_loop_variable()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Sets the length of the first loop."""
        del coord
        step = int(session.run(self._global_step))
        if self._final_step is None:
            self._final_step = step + (self._num_steps or 0)
        self._set_next_loop(session, step)

    def before_run(self, run_context: Any) -> None:
        """Starts the clock."""
        del run_context
        self._start_time = time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Sets the length of the next loop, or stops training."""
        del run_values
        if self._iteration_count_estimator is not None:
            self._iteration_count_estimator.update(
                time.monotonic() - self._start_time, self._next_iteration_count
            )
        session = run_context.session
        # Read the step now: the run may have fetched it before its update.
        step = int(session.run(self._global_step))
        if step >= self._final_step:  # type: ignore[operator] # set by then
            run_context.request_stop()
        self._set_next_loop(session, step)

    def _set_next_loop(self, session: Any, step: int) -> None:
        if self._iteration_count_estimator is not None:
            wanted = self._iteration_count_estimator.get(
                self._iterations_per_loop_counter.value
            )
        else:
            wanted = self._iterations_per_loop_counter.value
        left = max(self._final_step - step, 0)  # type: ignore[operator]
        self._next_iteration_count = min(left, wanted)
        _set(self._iterations, self._next_iteration_count, session)


class HostOpsHook(tf.compat.v1.train.SessionRunHook):
    """Runs host ops with each session run; opens and flushes `tf.summary`.

    Args:
      ops: Nested ops and tensors; None leaves are skipped.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = [op for op in tf.nest.flatten(ops) if op is not None]
        self._writers = SummaryWriters()

    def begin(self) -> None:
        """Looks up the graph's summary writers."""
        self._writers.find()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Opens the summary writers."""
        del coord
        self._writers.open(session)

    def before_run(self, run_context: Any) -> Any:
        """Adds the ops to the run."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self.ops)

    def end(self, session: Any) -> None:
        """Flushes the summary writers."""
        self._writers.flush(session)


class SummaryWriters:
    """The `tf.summary` writers of a graph, with ops to open and flush them."""

    def __init__(self) -> None:
        self._open: list[Any] = []
        self._flush: list[Any] = []

    def find(self) -> None:
        """Makes the ops, before the graph is finalized."""
        graph = tf.compat.v1.get_default_graph()
        self._open = v1_sessions.summary_writer_initializers(graph)
        self._flush = [
            v1_sessions.flush_of_writer(op.inputs[0]) for op in self._open
        ]

    def open(self, session: Any) -> None:
        """Opens all writers that are not open yet."""
        session.run(self._open)

    def flush(self, session: Any) -> None:
        """Writes the events that are held in memory."""
        session.run(self._flush)


class LoopHook(tf.compat.v1.train.SessionRunHook):
    """Makes one session run a loop of steps.

    The session run makes the last step of a loop; before it this hook makes
    the other steps. It must be the last hook, so that what other hooks do
    before a run happens before the loop.

    Args:
      step: The op that makes a step; the session run makes it too.
      iterations: The number of steps of a loop: a variable of the graph, or an
        int.
      host_ops: Host ops that run with a step.
      host_ops_every: The number of steps from one run of `host_ops` to the
        next in a loop. They run with the first step of each loop.
      start: An op that runs before the first step of a loop, or None.
      before_last: An op that runs with all steps but the last, or None.
    """

    def __init__(
        self,
        step: Any,
        *,
        iterations: Any,
        host_ops: Any = (),
        host_ops_every: int = 1,
        start: Any = None,
        before_last: Any = None,
    ) -> None:
        self._iterations = iterations
        self._host_ops = [
            op for op in tf.nest.flatten(host_ops) if op is not None
        ]
        self._every = host_ops_every
        self._start = start
        self._ops = [op for op in (step, before_last) if op is not None]
        self._writers = SummaryWriters()
        self._step: Callable[[], Any] | None = None
        self._step_with_host_ops: Callable[[], Any] | None = None
        self.num_steps = 0

    def begin(self) -> None:
        """Looks up the graph's summary writers."""
        self._writers.find()
        self.num_steps = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Opens the summary writers; makes the callables that make steps."""
        del coord
        self._writers.open(session)
        self._step = session.make_callable(self._ops)
        self._step_with_host_ops = session.make_callable(
            [self._ops, self._host_ops]
        )

    def before_run(self, run_context: Any) -> Any:
        """Makes all steps of the loop except the last one.

        SIGTERM makes the next step the last one.
        """
        session = run_context.session
        length = self._iterations
        if not isinstance(length, int):
            length = int(session.run(length))
        if self._start is not None:
            session.run(self._start)
        assert self._step is not None
        assert self._step_with_host_ops is not None
        made = 0
        while made < length - 1 and not sigterm.came():
            if made % self._every:
                self._step()
            else:
                self._step_with_host_ops()
            made += 1
            self.num_steps += 1
        if made % self._every:
            return None
        return tf.compat.v1.train.SessionRunArgs(self._host_ops)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts the last step."""
        del run_context, run_values
        self.num_steps += 1

    def end(self, session: Any) -> None:
        """Flushes the summary writers."""
        self._writers.flush(session)


class SetIterationsHook(tf.compat.v1.train.SessionRunHook):
    """Sets the length of all loops of a session.

    Args:
      num_steps: The number of steps of a loop.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._iterations: Any = None

    def begin(self) -> None:
        """Looks up the loop length in the graph."""
        self._iterations = iterations_per_loop_variable()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Sets the loop length."""
        del coord
        _set(self._iterations, self._num_steps, session)


def step_of_prediction(graph: Any) -> list[Any]:
    """Returns the ops that run with a batch of predictions, signal first."""
    fetches: list[Any] = graph.get_collection(_STEP_OF_PREDICTION)
    return fetches


class StoppingPredictHook(tf.compat.v1.train.SessionRunHook):
    """Stops prediction at the batch whose signal is true, which is not yielded.

    Args:
      stopping: The stop signal of the batch, a bool tensor.
      host_ops: Host ops that run with a batch; a `HostOpsHook` runs them for
        the batches that hooks see.
    """

    def __init__(self, stopping: Any, host_ops: Any = ()) -> None:
        self._stopping = stopping
        for fetch in (stopping, *host_ops):
            stopping.graph.add_to_collection(_STEP_OF_PREDICTION, fetch)

    def before_run(self, run_context: Any) -> Any:
        """Fetches the signal."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._stopping)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops prediction.

        Raises:
          tf.errors.OutOfRangeError: the signal is true; a session treats the
            error as the end of input.
        """
        del run_context
        if run_values.results:
            raise tf.errors.OutOfRangeError(None, None, "The input has ended.")


_LENGTH = re.compile(r"(?P<number>[1-9]\d*)(?P<unit>[smh]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class IterationsPerLoopCounter(NamedTuple):
    """The length of a loop: `value` steps (`count`), or `value` `seconds`."""

    value: int
    unit: str


def check_positive_integer(value: Any, name: str) -> None:
    """Raises an error unless the value is an integer above 0.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) the value is not an integer.
      tfembed.errors.ArgumentError: (also ValueError) the value is not
        positive.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise errors.DtypeError(f"{name} must be int, got {type(value)}.")
    if value <= 0:
        raise errors.ArgumentError(f"{name} must be positive, got {value}.")


def parse_iterations_per_loop(value: Any) -> IterationsPerLoopCounter:
    """Parses `TPUConfig.iterations_per_loop`: `100`, `"30s"`, `"5m"`, `"1h"`.

    Raises:
      tfembed.errors.ArgumentError: it is neither a positive integer nor a
        time.
    """
    match = _LENGTH.fullmatch(str(value))
    if match is None:
        raise errors.ArgumentError(
            "TPUConfig `iterations_per_loop` must be positive: a number of "
            "steps, or a time as '<N>s', '<N>m' or '<N>h' for N seconds, "
            f"minutes or hours; got {value!r}."
        )
    number, unit = int(match["number"]), match["unit"]
    if not unit:
        return IterationsPerLoopCounter(number, "count")
    return IterationsPerLoopCounter(number * _SECONDS[unit], "seconds")


class _Loop(NamedTuple):
    """The time of one loop."""

    runtime_secs: float
    steps: float
    step_time_secs: float


class IterationCountEstimator:
    """Estimates how many steps fit into a time, from the loops before.

    The estimate follows the mean time of a step over the last `capacity`
    loops. While the last loops took nearly the wanted time and step times are
    steady, the estimate stays, so that noise does not change the length.
    """

    def __init__(self, capacity: int = 20) -> None:
        self._reset(capacity)

    def _reset(self, capacity: int = 20) -> None:
        if capacity <= 0:
            raise errors.ArgumentError(
                "IterationCountEstimator `capacity` must be positive; got "
                f"{capacity}."
            )
        self._capacity = capacity
        self._buffer_wheel: collections.deque[_Loop] = collections.deque(
            maxlen=capacity
        )
        self._min_iterations = 1
        self._last_iterations: float = self._min_iterations
        self._sample_count = 0

    def update(self, runtime_secs: float, count: float) -> None:
        """Records that a loop of `count` steps took `runtime_secs` seconds.

        A loop without time or steps is ignored.
        """
        if runtime_secs <= 0 or count <= 0:
            return
        self._buffer_wheel.append(
            _Loop(runtime_secs, count, runtime_secs / count)
        )
        self._sample_count += 1

    def get(self, total_secs: float) -> int:
        """Returns the estimated number of steps in `total_secs` seconds.

        Raises:
          tfembed.errors.ArgumentError: `total_secs` is not positive.
        """
        if total_secs <= 0:
            raise errors.ArgumentError(
                f"Invalid `total_secs`: must be positive; got {total_secs}."
            )
        if not self._buffer_wheel:
            return self._min_iterations
        if not self._is_settled(total_secs):
            self._last_iterations = max(
                total_secs / self._mean_step_time_secs(), self._min_iterations
            )
        guess = int(self._last_iterations + 0.5)
        tf.compat.v1.logging.info(
            "Steps of the next loop: %d (wanted: %.3f s a loop, a step takes "
            "%.4f s).",
            guess,
            total_secs,
            self._mean_step_time_secs(),
        )
        return guess

    def _is_settled(self, total_secs: float) -> bool:
        last = self._buffer_wheel[-1].runtime_secs
        near = self._diff_less_than_percentage(
            last, total_secs, 10
        ) or self._diff_less_than_percentage(
            self._mean_runtime_secs(), total_secs, 5
        )
        steady = (
            self._std_step_time_secs() < 0.03
            and self._sample_count > self._capacity
        )
        return near and steady

    def _mean_runtime_secs(self) -> float:
        return self._statistic(np.mean, "runtime_secs")

    def _mean_step_time_secs(self) -> float:
        return self._statistic(np.mean, "step_time_secs")

    def _std_step_time_secs(self) -> float:
        return self._statistic(np.std, "step_time_secs")

    def _statistic(self, of: Any, field: str) -> float:
        if not self._buffer_wheel:
            return 0.0
        return float(of([getattr(loop, field) for loop in self._buffer_wheel]))

    def _diff_less_than_percentage(
        self, actual: float, target: float, percentage: float
    ) -> bool:
        for name, value in (("actual", actual), ("target", target)):
            if value == 0:
                raise errors.ArgumentError(
                    f"Invalid `{name}` value: must not be zero."
                )
        return abs(target - actual) / target <= percentage * 0.01
