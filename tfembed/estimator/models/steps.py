"""The steps of an Estimator: their input, model, loop, predictions and export.

Steps         the interface, by which an Estimator builds and runs its graphs
StepInput     the input of a step
ServedGraph   a graph of an export
ModelFnSteps  the steps of a model_fn in one graph, for `Estimator`
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, StoppedError
from tfembed.estimator.models import input_functions
from tfembed.estimator.models.keras_layers import call_with_keras_layers
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.run_config import RunConfig
from tfembed.estimator.runs import sigterm
from tfembed.estimator.spec import (
    LOSS_METRIC_KEY,
    EstimatorSpec,
    ModeKeys,
    check_metric_names,
)


@dataclasses.dataclass(frozen=True)
class StepInput:
    """The input of a step, in a graph.

    Attributes:
      features: What the model takes.
      labels: The labels; None without.
      hooks: Hooks that start the input.
      examples: The `features` of a `ProgressHook`, which counts examples.
    """

    features: Any
    labels: Any
    hooks: list[Any]
    examples: Any = None


@dataclasses.dataclass(frozen=True)
class ServedGraph:
    """A graph of an export.

    Attributes:
      spec: Returns the spec for features and labels; None if there can be no
        such graph.
      session_config: The ConfigProto of the session that writes the variables.
      tags: The graph's tags; None: those of the mode.
      checks_variables: Whether the checkpoint must have all variables.
    """

    spec: Callable[[Any, Any], EstimatorSpec | None]
    session_config: Any
    tags: Sequence[str] | None = None
    checks_variables: bool = True


class Steps(abc.ABC):
    """The parts of an Estimator's calls that depend on the kind of steps.

    All that makes ops is called in the graph of the call.
    """

    @abc.abstractmethod
    def make_global_step(self, graph: Any) -> Any:
        """Makes the graph's global step."""

    @abc.abstractmethod
    def hooks_of_training(
        self, steps: int | None, max_steps: int | None
    ) -> list[Any]:
        """Returns the hooks that end training after a number of steps."""

    @abc.abstractmethod
    def hooks_of_evaluation(self, steps: int | None) -> list[Any]:
        """Returns the hooks that end an evaluation after a number of steps."""

    @abc.abstractmethod
    def call_input_fn(
        self,
        input_fn: Callable[..., Any],
        mode: str,
        input_context: Any = None,
    ) -> Any:
        """Calls an input_fn with the arguments that it has."""

    @abc.abstractmethod
    def take_input(self, input_fn: Callable[..., Any], mode: str) -> StepInput:
        """Makes the input of a step."""

    @abc.abstractmethod
    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        """Builds a step for the features and labels of an input."""

    @abc.abstractmethod
    def evaluate(
        self, given: StepInput
    ) -> tuple[EstimatorSpec, dict[str, tuple[Any, Any]]]:
        """Builds a step of an evaluation.

        Returns:
          The spec, and pairs (value, update op) by name, with the loss.
        """

    @abc.abstractmethod
    def train(self, session: Any, spec: EstimatorSpec) -> Any:
        """Runs steps until a hook or the end of the input stops training.

        Returns:
          The loss of the last step; None without a step.
        """

    @abc.abstractmethod
    def predict(
        self, session: Any, predictions: Any, graph: Any
    ) -> Iterator[Any]:
        """Yields batches of predictions until a hook or the input stops."""

    @abc.abstractmethod
    def predicting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for all of a prediction, from its first batch."""

    @abc.abstractmethod
    def served_graphs(self, mode: str) -> list[ServedGraph]:
        """Returns the graphs that an export has for a mode."""


class ModelFnSteps(Steps):
    """The steps of a model_fn that is called in the graph as it is.

    Args:
      model_fn: The model_fn.
      config: The config, with its `model_dir`.
      params: The hyperparameters, which each call gets a copy of.
    """

    def __init__(
        self, model_fn: Callable[..., Any], config: RunConfig, params: Any
    ) -> None:
        self._model_fn = model_fn
        self._config = config
        self._params = params

    def make_global_step(self, graph: Any) -> Any:  # noqa: D102 - as Steps'
        return tf.compat.v1.train.create_global_step(graph)

    def hooks_of_training(  # noqa: D102 - as Steps'
        self, steps: int | None, max_steps: int | None
    ) -> list[Any]:
        return stop_at_step(steps, max_steps)

    def hooks_of_evaluation(  # noqa: D102 - as Steps'
        self, steps: int | None
    ) -> list[Any]:
        return stop_after_evaluations(steps)

    def call_input_fn(  # noqa: D102 - as Steps'
        self,
        input_fn: Callable[..., Any],
        mode: str,
        input_context: Any = None,
    ) -> Any:
        offered = {
            "mode": mode,
            "params": copy.deepcopy(self._params),
            "config": copy.deepcopy(self._config),
        }
        if input_context:
            offered["input_context"] = input_context
        with tf.compat.v1.device("/cpu:0"):
            return input_functions.call_with_known(input_fn, offered)

    def take_input(  # noqa: D102 - as Steps'
        self, input_fn: Callable[..., Any], mode: str
    ) -> StepInput:
        features, labels, hooks = input_functions.parse_input_fn_result(
            self.call_input_fn(input_fn, mode)
        )
        if mode == ModeKeys.PREDICT:
            warn_of_endless_input(features)
            labels = None
        return StepInput(features, labels, list(hooks), features)

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        """Calls the model_fn; returns its EstimatorSpec.

        Raises:
          ValueError: There are labels but no argument for them, or the result
            is not an EstimatorSpec.
        """
        arguments = v1_sessions.fn_args(self._model_fn)
        if labels is not None and "labels" not in arguments:
            raise ArgumentError(
                "model_fn does not take labels, but input_fn returns labels."
                " Add the argument `labels`, or return features only."
            )
        tf.compat.v1.logging.info("Calling model_fn.")
        given = {
            "features": features,
            "labels": labels,
            "mode": mode,
            "params": copy.deepcopy(self._params),
            "config": config,
        }
        spec = call_with_keras_layers(
            lambda: input_functions.call_with_known(self._model_fn, given),
            mode,
            self._config.tf_random_seed,
        )
        tf.compat.v1.logging.info("Done calling model_fn.")
        if not isinstance(spec, EstimatorSpec):
            raise ArgumentError(
                "model_fn should return an EstimatorSpec. Given "
                f"{type(spec).__name__}: {spec}."
            )
        if spec.mode not in (None, mode):
            raise ArgumentError(
                f"model_fn was called in mode '{mode}' and returned an "
                f"EstimatorSpec of mode '{spec.mode}'. Pass `mode` on to it."
            )
        return spec

    def evaluate(  # noqa: D102 - as Steps'
        self, given: StepInput
    ) -> tuple[EstimatorSpec, dict[str, tuple[Any, Any]]]:
        spec = self.call_model_fn(
            given.features,
            given.labels,
            ModeKeys.EVAL,
            copy.deepcopy(self._config),
        )
        return spec, metrics_of(spec)

    def train(self, session: Any, spec: EstimatorSpec) -> Any:  # noqa: D102 - as Steps'
        loss, ran = None, False
        while not session.should_stop():
            try:
                _, loss = session.run([spec.train_op, spec.loss])
            except (tf.errors.OutOfRangeError, StopIteration):
                break  # The input ended.
            except StoppedError:
                ran = True
                break  # SIGTERM came while a hook evaluated the step.
            ran = True
        if not ran:
            warn_of_no_steps()
        return loss

    def predict(  # noqa: D102 - as Steps'
        self, session: Any, predictions: Any, graph: Any
    ) -> Iterator[Any]:
        return predict_batches(session, predictions, graph)

    def predicting(self) -> contextlib.AbstractContextManager[None]:  # noqa: D102 - as Steps'
        return contextlib.nullcontext()

    def served_graphs(self, mode: str) -> list[ServedGraph]:  # noqa: D102 - as Steps'
        def spec(features: Any, labels: Any) -> EstimatorSpec:
            return self.call_model_fn(
                features, labels, mode, copy.deepcopy(self._config)
            )

        return [ServedGraph(spec, self._config.session_config)]


def stop_at_step(steps: int | None, max_steps: int | None) -> list[Any]:
    """Returns the hook that ends training after a number of steps, if any."""
    if steps is None and max_steps is None:
        return []
    return [tf.compat.v1.train.StopAtStepHook(steps, max_steps)]


def stop_after_evaluations(steps: int | None) -> list[Any]:
    """Returns the hook that ends an evaluation after a number of steps, if any.

    Raises:
      ValueError: `steps` is not positive.
    """
    if steps is None:
        return []
    if steps <= 0:
        raise ArgumentError(
            f"Must specify steps > 0, given: {steps}. None evaluates "
            "until the input ends."
        )
    return [v1_sessions.stop_after_evals(steps)]


def predict_batches(
    session: Any, predictions: Any, graph: Any
) -> Iterator[Any]:
    """Yields batches of predictions until a hook or the input stops."""
    while not session.should_stop():
        with graph.as_default():
            batch = session.run(predictions)
        sigterm.check("a prediction")
        yield batch


def metrics_of(spec: EstimatorSpec) -> dict[str, tuple[Any, Any]]:
    """Returns the metrics of an evaluation by name, with the loss."""
    metrics = spec.eval_metric_ops
    return {**metrics, **loss_metric(metrics, spec.loss)}


def loss_metric(
    metrics: Mapping[str, Any], loss: Any
) -> dict[str, tuple[Any, Any]]:
    """Returns the mean of the loss, as a metric beside others."""
    check_metric_names(metrics)
    return {LOSS_METRIC_KEY: tf.compat.v1.metrics.mean(loss)}


def warn_of_endless_input(features: Any) -> None:
    """Warns if the input of a prediction never ends."""
    if input_functions.reads_forever(features):
        tf.compat.v1.logging.warning(
            "Input graph does not use tf.data.Dataset or contain a "
            "QueueRunner. That means predict yields forever. "
            "This is probably a mistake."
        )


def warn_of_no_steps() -> None:
    """Warns of a training without a step."""
    tf.compat.v1.logging.warn(
        "Training with estimator made no steps. Perhaps input is empty"
        " or misspecified."
    )
