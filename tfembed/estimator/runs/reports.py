"""Reports of a run: lines of its log, and summaries (v1 and v2)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message

from tfembed.estimator.models import input_functions
from tfembed.estimator.private import v1_sessions


class SummaryWriterHook(tf.compat.v1.train.SessionRunHook):
    """Runs the `tf.summary` (v2) ops of a graph with each training step.

    v1 summaries need no hook: a MonitoredTrainingSession has its own.

    Args:
      ops: the result of `tf.compat.v1.summary.all_v2_summary_ops()`.
    """

    def __init__(self, ops: list[Any]) -> None:
        self._ops = ops
        self._initializers: list[Any] = []

    def begin(self) -> None:
        """Looks up the ops that open the graph's writers."""
        self._initializers = v1_sessions.summary_writer_initializers(
            tf.compat.v1.get_default_graph()
        )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Opens the writers."""
        del coord
        session.run(self._initializers)

    def before_run(self, run_context: Any) -> Any:
        """Adds the summary ops to the run."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._ops)


class FlushHook(tf.compat.v1.train.SessionRunHook):
    """Flushes a `tf.summary` writer when training ends."""

    def __init__(self, flush: Any) -> None:
        self._flush = flush

    def end(self, session: Any) -> None:
        """Flushes the writer."""
        session.run(self._flush)


@contextlib.contextmanager
def default_writer(
    folder: str, every_steps: int | None, hooks: list[Any]
) -> Iterator[None]:
    """Sets a writer, a step and a frequency for `tf.summary` in a model_fn.

    Args:
      folder: the folder of event files.
      every_steps: the steps between summaries; 0 and None: no summaries.
      hooks: receives a hook that runs the summaries, if the block makes any.
    """
    if not every_steps:
        yield
        return
    # The op opens the file when it runs; making the op does not.
    writer = tf.summary.create_file_writer(folder)
    # A read, not the variable, which could also be read after the step's
    # update.
    step = v1_sessions.global_step_read(tf.compat.v1.get_default_graph())
    with writer.as_default(step=step):
        due = tf.equal(step % every_steps, 0)
        with tf.summary.record_if(due):
            yield
    ops = tf.compat.v1.summary.all_v2_summary_ops()
    if ops:
        hooks.append(SummaryWriterHook(list(ops)))
        hooks.append(FlushHook(writer.flush()))


class SeenHook(tf.compat.v1.train.SessionRunHook):
    """Counts the runs of a session, in `runs`.

    A run in which the input ended is none.
    """

    def __init__(self) -> None:
        self.runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a run."""
        del run_context, run_values
        self.runs += 1


def of_no_rows(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results of an evaluation that saw no rows, and warns.

    A mean over nothing is no number: 0, with which metrics begin, would be the
    best loss of all.
    """
    tf.compat.v1.logging.warn(
        "The evaluation saw no rows: input_fn gave no batch. Its metrics are "
        "NaN."
    )
    return {
        name: np.full_like(value, np.nan)[()]
        if isinstance(value, (np.ndarray, np.generic))
        and np.issubdtype(value.dtype, np.floating)
        else value
        for name, value in results.items()
    }


def write_dict_to_summary(
    output_dir: str, dictionary: Mapping[str, Any], current_global_step: int
) -> None:
    """Writes an evaluation's results as summaries, and logs them."""
    tf.compat.v1.logging.info(
        "Saving dict for global step %d: %s",
        current_global_step,
        ", ".join(
            f"{name} = {value}"
            for name, value in sorted(dictionary.items())
            if not isinstance(value, bytes)
        ),
    )
    summary = tf.compat.v1.Summary()
    for name, value in dictionary.items():
        if value is not None and name != "global_step":
            _add_value(summary, name, value)
    _write(output_dir, summary, current_global_step)


def write_checkpoint_path(folder: str, path: str, global_step: int) -> None:
    """Writes the path of an evaluation's checkpoint as a summary."""
    tf.compat.v1.logging.info(
        "Saving 'checkpoint_path' summary for global step %d: %s",
        global_step,
        path,
    )
    summary = tf.compat.v1.Summary()
    summary.value.add(
        tag="checkpoint_path",
        tensor=tf.make_tensor_proto(path, dtype=tf.string),
    )
    _write(folder, summary, global_step)


def _add_value(summary: Any, name: str, value: Any) -> None:
    if isinstance(value, (float, int, np.floating, np.integer)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, bytes):
        _add_serialized(summary, name, value)
    elif isinstance(value, np.ndarray):
        summary.value.add(
            tag=name, node_name=name, tensor=tf.make_tensor_proto(value)
        )
    else:
        tf.compat.v1.logging.warn(
            "Skipping summary for %s, must be a float, np.float32, np.int64, "
            "np.int32 or int or np.ndarray or a serialized string of Summary.",
            name,
        )


def _add_serialized(summary: Any, name: str, value: bytes) -> None:
    try:
        inner = tf.compat.v1.Summary.FromString(value)
    except message.DecodeError:
        tf.compat.v1.logging.warn(
            "Skipping summary for %s, cannot parse string to Summary.", name
        )
        return
    for i, part in enumerate(inner.value):
        part.tag = f"{name}/{i}"
    summary.value.extend(inner.value)


def _write(folder: str, summary: Any, global_step: int) -> None:
    writer = tf.compat.v1.summary.FileWriterCache.get(folder)
    writer.add_summary(summary, global_step)
    writer.flush()


def scalars(event: Any) -> dict[str, float]:
    """Returns the scalars of a summary event, by tag."""
    return {
        value.tag: value.simple_value
        for value in event.summary.value
        if value.HasField("simple_value")
    }


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """Logs loss, step, steps/s and examples/s of training.

    Args:
      loss: the loss of a step, a scalar tensor.
      features: a batch, whose first tensor gives the number of examples of a
        step; or that number.
      every_steps: the steps between two lines; the first step has a line too.
      stop_hooks: hooks of this session; a StopAtStepHook among them gives the
        last step.
    """

    def __init__(
        self,
        loss: Any,
        features: Any,
        *,
        every_steps: int,
        stop_hooks: Sequence[Any] = (),
    ) -> None:
        self._loss = loss
        self._every_steps = every_steps
        self._stop_hooks = stop_hooks
        self._batch_size = _batch_size(features)
        self._global_step: Any = None
        self._logged: tuple[int, float] | None = None
        self._first = 0

    def begin(self) -> None:
        """Looks up the graph's global step."""
        graph = tf.compat.v1.get_default_graph()
        self._global_step = v1_sessions.global_step_read(graph)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Records the step at which training starts."""
        del coord
        self._first = session.run(self._global_step)
        self._logged = None

    def before_run(self, run_context: Any) -> Any:
        """Fetches the loss and the step."""
        del run_context
        fetches = {"loss": self._loss, "step": self._global_step}
        if self._batch_size is not None:
            fetches["examples"] = self._batch_size
        return tf.compat.v1.train.SessionRunArgs(fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Logs a line, if a line is due."""
        stale = run_values.results["step"]
        last, since = self._logged or (self._first, 0.0)
        # The run may have fetched the step before its update.
        if self._logged and stale + 1 - last < self._every_steps:
            return
        step = int(run_context.session.run(self._global_step))
        if self._logged and step - last < self._every_steps:
            return
        now = time.perf_counter()
        line = progress_line(
            run_values.results["loss"],
            step,
            self._goal(),
            since=(last, now - since) if self._logged else None,
            examples=run_values.results.get("examples"),
        )
        tf.compat.v1.logging.info(line)
        self._logged = step, now

    def end(self, session: Any) -> None:
        """Logs a line if training made fewer steps than requested."""
        step, goal = int(session.run(self._global_step)), self._goal()
        if goal is not None and step < goal:
            tf.compat.v1.logging.info(
                "Training ended at step %d, before step %d that was asked "
                "for: the input ended, or a hook stopped it.",
                step,
                goal,
            )

    def _goal(self) -> int | None:
        goals = [v1_sessions.last_step(hook) for hook in self._stop_hooks]
        known = [goal for goal in goals if goal is not None]
        return min(known, default=None)


def progress_line(
    loss: Any,
    step: int,
    goal: int | None,
    *,
    since: tuple[int, float] | None,
    examples: Any,
) -> str:
    """Returns the log line of a step.

    Args:
      loss: the loss of the step.
      step: the number of the step.
      goal: the last step of training; None if unknown.
      since: the step of the previous line, and the seconds since then; None in
        the first line.
      examples: the number of examples of a step; None if unknown.
    """
    line = f"loss = {loss:.6g}, step = {step}"
    if goal is not None:
        line += f" of {goal}"
    if since is not None:
        last, seconds = since
        speed = (step - last) / max(seconds, 1e-9)
        line += f" ({seconds:.3f} sec, {speed:.4g} steps/sec"
        if examples is not None:
            line += f", {speed * examples:.4g} examples/sec"
        line += ")"
    return line


def _batch_size(features: Any) -> Any:
    """Returns the number of examples of a batch, a tensor; None if unknown."""
    if isinstance(features, int):
        return tf.constant(features)
    for value in input_functions.leaves(features):
        if isinstance(value, tf.SparseTensor):
            return value.dense_shape[0]
        if isinstance(value, tf.RaggedTensor):
            return value.nrows()
        if isinstance(value, tf.Tensor) and value.shape.rank != 0:
            if value.shape.rank is None:
                return None
            return tf.shape(value)[0]
    return None
