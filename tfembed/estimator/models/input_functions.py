"""Calls input_fns; starts iterators, and saves the position of the input.

`CheckpointInputPipelineHook` saves the position with checkpoints: a restarted
training continues at the position of its checkpoint. The state of the
iterators lies beside a checkpoint, in files
`input_state-<task>-<index>.ckpt-<step>`. It is written before the checkpoint
of that step, so that each checkpoint has its state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.errors import ArgumentError
from tfembed.estimator.private import v1_sessions


class DatasetInitializerHook(tf.compat.v1.train.SessionRunHook):
    """Initializes a dataset's iterator after a session is created.

    Attributes:
      iterator: the iterator.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._initializer: Any = None

    def begin(self) -> None:
        """Makes the op before the graph is finalized."""
        self._initializer = self.iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Initializes the iterator."""
        del coord
        session.run(self._initializer)


def call_with_known(
    function: Callable[..., Any], offered: Mapping[str, Any]
) -> Any:
    """Calls a function with those of the offered arguments that it has."""
    arguments = v1_sessions.fn_args(function)
    return function(
        **{key: offered[key] for key in offered if key in arguments}
    )


def parse_input_fn_result(result: Any) -> tuple[Any, Any, list[Any]]:
    """Returns features, labels, and hooks that start the input.

    Args:
      result: a Dataset of features or of (features, labels), or these
        themselves.

    Raises:
      ValueError: The result, or an element of the Dataset, is None or a tuple
        whose length is not 2.
    """
    hooks: list[Any] = []
    if isinstance(result, tf.compat.v2.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks.append(DatasetInitializerHook(iterator))
        result = iterator.get_next()
    features, labels = parse_iterator_result(result)
    return features, labels, hooks


def parse_iterator_result(result: Any) -> tuple[Any, Any]:
    """Returns features, and labels or None.

    Raises:
      ValueError: The result is None, a tuple whose length is not 2, or no
        tensor, array or structure of them.
    """
    if result is None:
        raise ArgumentError(
            "input_fn returned None. Return a tf.data.Dataset, features, or "
            "(features, labels)."
        )
    if not isinstance(result, (list, tuple)):
        _check_batch("input_fn returned", result)
        return result, None
    if len(result) != 2:
        raise ArgumentError(
            "input_fn should return (features, labels) as a len 2 tuple. "
            f"Given a {type(result).__name__} of {len(result)} elements."
        )
    features, labels = result
    _check_batch("input_fn returned as features", features)
    if labels is not None:
        _check_batch("input_fn returned as labels", labels)
    return features, labels


def _check_batch(what: str, given: Any) -> None:
    """Raises an error for numbers, texts and objects that are no batch."""
    if isinstance(given, (Mapping, list, tuple, np.ndarray)):
        return
    parts = tf.nest.flatten(given, expand_composites=True)
    if len(parts) == 1 and parts[0] is given and not tf.is_tensor(given):
        raise ArgumentError(
            f"{what} {given!r}, of type {type(given).__name__}. Return a "
            "tf.data.Dataset, features, or (features, labels), where both are "
            "tensors, or dicts, lists or tuples of tensors."
        )


def reads_forever(features: Any) -> bool:
    """Whether the input never ends: the graph has no dataset and no queue."""
    if any(
        isinstance(value, tf.Tensor) and value.op.type == "IteratorGetNext"
        for value in leaves(features)
    ):
        return False
    return not tf.compat.v1.get_collection("queue_runners")


def leaves(features: Any) -> Iterator[Any]:
    """Yields the leaves of nested dicts, lists and tuples, in their order.

    Unlike tf.nest, it accepts dicts with keys that cannot be compared.
    """
    if isinstance(features, Mapping):
        features = list(features.values())
    if isinstance(features, (list, tuple)) and not hasattr(features, "dtype"):
        for value in features:
            yield from leaves(value)
    else:
        yield features


_GET_NEXT = (
    "IteratorGetNext",
    "IteratorGetNextAsOptional",
    "IteratorGetNextSync",
)
_POLICIES = ("warn", "ignore", "fail")

# The first part of the names of files with the position of the input.
INPUT_STATE = "input_state-"


class CheckpointInputPipelineHook(tf.compat.v1.train.SessionRunHook):
    """Saves the position of a training graph's datasets, and restores it.

    `RunConfig(save_input_state=True)` adds this hook to each training. It
    finds the iterators of the graph; it must be among the hooks of `train`.

    Args:
      estimator: The Estimator that trains.
      external_state_policy: What to do about datasets whose state cannot be
        saved, for instance Python generators: "warn", "ignore" or "fail".

    Raises:
      ValueError: The policy is none of these; or, when training begins, the
        graph has no dataset.
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
        self._stem = f"{INPUT_STATE}{config.task_type}-{config.task_id}.ckpt"
        self._kept = config.keep_checkpoint_max or 0
        self._is_chief = config.is_chief
        self._save_secs = config.save_checkpoints_secs
        self._save_steps = config.save_checkpoints_steps
        self._step: Any = None
        self._saver: Any = None
        self._initializers: list[Any] = []
        self._started: Any = None  # The session whose input has started.
        self._timer: Any = None

    @property
    def listener(self) -> Any:
        """A listener that saves the state with each checkpoint."""
        return _Listener(self)

    def begin(self) -> None:
        """Adds ops that save and restore the graph's iterators."""
        graph = tf.compat.v1.get_default_graph()
        self._step = v1_sessions.global_step_read(graph)
        handles = _iterator_handles(graph)
        if not handles:
            raise ArgumentError(
                "save_input_state needs an input_fn that returns a "
                "tf.data.Dataset; no dataset's iterator is in the graph. "
                "Return one, or leave save_input_state out."
            )
        self._initializers = _initializers(graph, handles)
        saveables = [
            v1_sessions.iterator_saveable(handle, self._policy)
            for handle in handles
        ]
        # One file per save; this hook deletes old files itself.
        self._saver = tf.compat.v1.train.Saver(
            saveables, max_to_keep=0, sharded=False
        )
        if not self._is_chief and (self._save_secs or self._save_steps):
            self._timer = tf.compat.v1.train.SecondOrStepTimer(
                every_secs=self._save_secs, every_steps=self._save_steps
            )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Starts the input at the position of the restored checkpoint."""
        del coord
        # Restore again: the hook that initializes iterators ran after
        # `listener`.
        self._started = None
        self.start(session)

    def before_run(self, run_context: Any) -> Any:
        """Fetches the global step."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves a worker's state; the chief saves it with checkpoints."""
        if self._timer is None:
            return
        if self._timer.should_trigger_for_step(run_values.results + 1):
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            self.save(run_context.session, step)

    def start(self, session: Any) -> None:
        """Starts the input, once per session."""
        if self._started is session:
            return
        self._started = session
        session.run(self._initializers)
        step = int(session.run(self._step))
        path = self._path_to_restore(step)
        if path is None:
            if step:
                tf.compat.v1.logging.info(
                    "The checkpoint of step %d has no state of the input: the "
                    "input starts from the beginning.",
                    step,
                )
            return
        tf.compat.v1.logging.info("The input continues at %s.", path)
        self._saver.restore(session, path)

    def save(self, session: Any, step: int) -> None:
        """Saves the state of a step, and deletes those of older checkpoints."""
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
        """Returns the state file of a step; for a worker its latest one."""
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
        """Saves the input's state."""
        self._hook.save(session, int(global_step_value))


def _iterator_handles(graph: Any) -> list[Any]:
    """Returns the iterators from which a graph takes batches, in its order."""
    handles: dict[str, Any] = {}
    for op in graph.get_operations():
        if op.type in _GET_NEXT:
            handles.setdefault(op.inputs[0].name, op.inputs[0])
    return list(handles.values())


def _initializers(graph: Any, handles: Sequence[Any]) -> list[Any]:
    """Returns the ops that initialize iterators, except one-shot iterators."""
    names = {handle.name for handle in handles}
    return [
        op
        for op in graph.get_operations()
        if op.type == "MakeIterator" and op.inputs[1].name in names
    ]


def _delete(prefix: str) -> None:
    for path in tf.io.gfile.glob(f"{prefix}.*"):
        tf.io.gfile.remove(path)
