"""Hooks and helpers, as in `tf.compat.v1.estimator.experimental`.

`InMemoryEvaluatorHook` evaluates between training steps, without a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import not_in_release
from tfembed.errors import ArgumentError, StoppedError, UnsupportedError
from tfembed.estimator.embeddings.tpu_tables import EngineHook
from tfembed.estimator.estimator import Estimator, checked_hooks
from tfembed.estimator.exports.saved_models import (
    build_raw_supervised_input_receiver_fn,
)
from tfembed.estimator.models.input_functions import CheckpointInputPipelineHook
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from tfembed.estimator.spec import call_logit_fn

__all__ = [
    "CheckpointInputPipelineHook",
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


class InMemoryEvaluatorHook(tf.compat.v1.train.SessionRunHook):
    """Evaluates a model during training, with its variables' current values.

    Args:
      estimator: The Estimator that trains, in a single process.
      input_fn: Returns features and labels.
      steps: The number of batches; None: until the input ends.
      hooks: SessionRunHooks for evaluations.
      name: The name of the evaluation, if a model has several.
      every_n_iter: The training steps between two evaluations.

    Raises:
      ValueError: `every_n_iter` is not positive, several processes train, or
        the model has its own saver or init_fn, or tables that are not
        variables.
      tfembed.errors.UnsupportedError: A TPU's embedding engine holds tables.
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or every_n_iter <= 0:
            raise ArgumentError(
                f"invalid every_n_iter={every_n_iter}. It must be positive."
            )
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
            raise ArgumentError(
                "InMemoryEvaluator supports only single machine (aka Local) "
                "setting. Evaluate checkpoints by train_and_evaluate."
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._eval_dir = estimator.eval_dir(name)
        self._hooks = checked_hooks(hooks)
        self._hooks += estimator._steps.hooks_of_evaluation(steps)
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_steps=every_n_iter
        )
        self._step: Any = None
        self._graph: Any = None
        self._evaluation: Any = None
        self._placeholders: dict[str, Any] = {}
        self._trained: dict[str, Any] = {}
        self._feed: Any = None

    def begin(self) -> None:
        """Builds the graph for evaluations."""
        self._timer.reset()
        self._step = v1_sessions.global_step_read(
            tf.compat.v1.get_default_graph()
        )
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._evaluation = self._estimator._evaluate_build_graph(
                self._input_fn, list(self._hooks), checkpoint_path=None
            )
            scaffold, *_, hooks = self._evaluation
            if any(isinstance(hook, EngineHook) for hook in hooks):
                raise UnsupportedError(
                    "InMemoryEvaluator cannot evaluate during a training whose "
                    "tables are in a TPU's embedding engine: each evaluation "
                    "would reconfigure the engine. Evaluate checkpoints by "
                    "train_and_evaluate."
                )
            if scaffold.saver is not None:
                raise ArgumentError(
                    "InMemoryEvaluator does not support custom saver. "
                    "Evaluate checkpoints by train_and_evaluate."
                )
            if scaffold.init_fn is not None:
                raise ArgumentError(
                    "InMemoryEvaluator does not support custom init_fn. "
                    "Evaluate checkpoints by train_and_evaluate."
                )
            self._placeholders = {
                variable.name: tf.compat.v1.placeholder(variable.dtype)
                for variable in tf.compat.v1.global_variables()
            }

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Matches the variables of both graphs, and evaluates."""
        del coord
        if tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS):
            raise ArgumentError(
                "InMemoryEvaluator does not support saveables other than "
                "global variables. Evaluate checkpoints by "
                "train_and_evaluate."
            )
        self._trained = {
            variable.name: variable
            for variable in tf.compat.v1.global_variables()
            if variable.name in self._placeholders
        }
        with self._graph.as_default():
            self._feed = tf.group(
                *[
                    tf.compat.v1.assign(
                        variable, self._placeholders[variable.name]
                    )
                    for variable in tf.compat.v1.global_variables()
                    if variable.name in self._trained
                ]
            )
        self._evaluate(session)

    def before_run(self, run_context: Any) -> Any:
        """Fetches the global step."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Evaluates, if an evaluation is due: a run may make several steps."""
        # The run may have fetched the step before its update.
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        step = int(run_context.session.run(self._step))
        if self._timer.should_trigger_for_step(step):
            self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        """Evaluates once more."""
        self._evaluate(session)

    def _evaluate(self, session: Any) -> None:
        values = {
            self._placeholders[name]: value
            for name, value in session.run(self._trained).items()
        }

        def feed(scaffold: Any, session: Any) -> None:
            del scaffold
            session.run(self._feed, feed_dict=values)

        scaffold, update_op, results, hooks = self._evaluation
        with (
            self._graph.as_default(),
            # SIGTERM came: training stops after this step.
            contextlib.suppress(StoppedError),
        ):
            self._estimator._evaluate_run(
                checkpoint_path=None,
                scaffold=tf.compat.v1.train.Scaffold(
                    init_fn=feed, copy_from_scaffold=scaffold
                ),
                update_op=update_op,
                eval_dict=results,
                all_hooks=hooks,
                output_dir=self._eval_dir,
            )
        self._timer.update_last_triggered_step(int(session.run(self._step)))


def __getattr__(name: str) -> Any:
    """Makes classes for names of the old package."""
    if name in not_in_release.ESTIMATORS:
        return not_in_release.absent(name, __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
