"""The input's position, saved with checkpoints: `CheckpointInputPipelineHook`.

A run that was stopped goes on at the position that the input had when the
checkpoint was saved. The state of the iterators lies beside a checkpoint, in
files `input_state-<task>-<index>.ckpt-<step>`: it is written before the
checkpoint of that step, so that whatever checkpoint there is has its state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError
from tfembed.estimator import private

_GET_NEXT = (
    "IteratorGetNext",
    "IteratorGetNextAsOptional",
    "IteratorGetNextSync",
)
_POLICIES = ("warn", "ignore", "fail")


class CheckpointInputPipelineHook(tf.compat.v1.train.SessionRunHook):
    """Saves the position of a training graph's datasets, and restores it.

    `RunConfig(save_input_state=True)` gives each training such a hook. It finds
    the iterators of the graph; it must stand among the hooks of `train`.

    Args:
      estimator: The Estimator that trains.
      external_state_policy: What to do about datasets with a state of their
        own that cannot be saved, such as Python generators: "warn", "ignore"
        or "fail".

    Raises:
      ValueError: There is no such policy.
    """

    def __init__(
        self, estimator: Any, external_state_policy: str = "fail"
    ) -> None:
        if external_state_policy not in _POLICIES:
            raise ArgumentError(
                f"external_state_policy must be one of {_POLICIES}; got "
                f"{external_state_policy!r}."
            )
        config = estimator.config
        self._policy = external_state_policy
        self._folder = config.model_dir
        self._stem = f"input_state-{config.task_type}-{config.task_id}.ckpt"
        self._kept = config.keep_checkpoint_max or 0
        self._is_chief = config.is_chief
        self._save_secs = config.save_checkpoints_secs
        self._save_steps = config.save_checkpoints_steps
        self._step: Any = None
        self._saver: Any = None
        self._initializers: list[Any] = []
        self._started: Any = None  # The session whose input has begun.
        self._timer: Any = None

    @property
    def listener(self) -> Any:
        """Has the state saved with each checkpoint of a CheckpointSaverHook."""
        return _Listener(self)

    def begin(self) -> None:
        """Adds ops that save and restore the graph's iterators."""
        graph = tf.compat.v1.get_default_graph()
        self._step = private.global_step_read(graph)
        handles = _iterator_handles(graph)
        if not handles:
            raise ArgumentError(
                "save_input_state needs an input_fn that returns a "
                "tf.data.Dataset; no dataset's iterator is in the graph. "
                "Return one, or leave save_input_state out."
            )
        self._initializers = _initializers(graph, handles)
        saveables = [
            private.iterator_saveable(handle, self._policy)
            for handle in handles
        ]
        # One file per save, which this hook deletes itself.
        self._saver = tf.compat.v1.train.Saver(
            saveables, max_to_keep=0, sharded=False
        )
        if not self._is_chief and (self._save_secs or self._save_steps):
            self._timer = private.basic_session_run_hooks.SecondOrStepTimer(
                every_secs=self._save_secs, every_steps=self._save_steps
            )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Starts the input where the restored checkpoint's was."""
        del coord
        # Again: the hook that starts iterators came after a first checkpoint.
        self._started = None
        self.start(session)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the step."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves a worker's state; the chief's is saved with checkpoints."""
        if self._timer is None:
            return
        if self._timer.should_trigger_for_step(run_values.results + 1):
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            self.save(run_context.session, step)

    def start(self, session: Any) -> None:
        """Starts the input, once in a session."""
        if self._started is session:
            return
        self._started = session
        session.run(self._initializers)
        step = int(session.run(self._step))
        path = self._path_to_restore(step)
        if path is None:
            if step:
                tf.compat.v1.logging.info(
                    "Checkpoint of step %d has no state of the input: the "
                    "input begins anew.",
                    step,
                )
            return
        tf.compat.v1.logging.info("The input goes on as of %s.", path)
        self._saver.restore(session, path)

    def save(self, session: Any, step: int) -> None:
        """Saves the state of a step, and deletes that of older checkpoints."""
        self.start(session)
        self._saver.save(
            session,
            f"{self._folder}/{self._stem}",
            global_step=step,
            latest_filename=f"{self._stem}.latest",
            write_meta_graph=False,
            write_state=False,
        )
        if self._kept:
            for old in self._saved_steps()[: -self._kept - 1]:
                _delete(f"{self._folder}/{self._stem}-{old}")

    def _path_to_restore(self, step: int) -> str | None:
        """The state of a step; a worker's latest one, as it saves by itself."""
        steps = self._saved_steps()
        if not self._is_chief:
            steps = [saved for saved in steps if saved <= step][-1:]
            step = steps[0] if steps else step
        if step not in steps:
            return None
        return f"{self._folder}/{self._stem}-{step}"

    def _saved_steps(self) -> list[int]:
        pattern = re.compile(rf"{re.escape(self._stem)}-(\d+)\.index")
        matches = (
            pattern.fullmatch(name)
            for name in tf.io.gfile.listdir(self._folder)
        )
        return sorted(int(match[1]) for match in matches if match)


class _Listener(tf.compat.v1.train.CheckpointSaverListener):
    """Saves the input's state before each checkpoint."""

    def __init__(self, hook: CheckpointInputPipelineHook) -> None:
        self._hook = hook

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Saves it."""
        self._hook.save(session, int(global_step_value))


def _iterator_handles(graph: Any) -> list[Any]:
    """The iterators from which a graph takes batches, in the graph's order."""
    handles: dict[str, Any] = {}
    for op in graph.get_operations():
        if op.type in _GET_NEXT:
            handles.setdefault(op.inputs[0].name, op.inputs[0])
    return list(handles.values())


def _initializers(graph: Any, handles: Sequence[Any]) -> list[Any]:
    """The ops that start iterators; a one-shot iterator starts by itself."""
    names = {handle.name for handle in handles}
    return [
        op
        for op in graph.get_operations()
        if op.type == "MakeIterator" and op.inputs[1].name in names
    ]


def _delete(prefix: str) -> None:
    for path in tf.io.gfile.glob(f"{prefix}.*"):
        tf.io.gfile.remove(path)
