"""Logs the progress of training: loss, step, number of steps, speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.estimator import input_functions, private


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
        self._global_step = private.global_step_read(graph)

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
        """Logs a warning if training made fewer steps than requested."""
        step, goal = int(session.run(self._global_step)), self._goal()
        if goal is not None and step < goal:
            tf.compat.v1.logging.info(
                "Training ended at step %d, before step %d that was asked "
                "for: the input ended, or a hook stopped it.",
                step,
                goal,
            )

    def _goal(self) -> int | None:
        goals = [private.last_step(hook) for hook in self._stop_hooks]
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
