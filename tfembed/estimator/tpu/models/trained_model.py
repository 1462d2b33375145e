"""The estimator's view of a model object: compiled Keras models, and others.

TrainedModel    the interface that a step of training or evaluation uses
CompiledModel   a compiled model of Keras 3 or tf_keras
PlainModel      an object with `__call__`, `loss`, `optimizer`, `metrics`
model_of        picks one of the two for the result of `make_model`
"""

from __future__ import annotations

import abc
import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops.private import converted


class TrainedModel(abc.ABC):
    """A model, its loss, its optimizer and its metrics.

    All methods except `metrics` and `reset_metrics` are called in a replica of
    a strategy.

    Attributes:
      model: The result of `make_model`.
      optimizer: The optimizer of the model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.optimizer = model.optimizer
        for name, value in (("model", model), ("optimizer", self.optimizer)):
            if not isinstance(value, tf.__internal__.tracking.Trackable):
                raise errors.DtypeError(
                    f"The {name} that make_model gives cannot be saved in "
                    f"checkpoints: {value!r}. Derive it from tf.Module or "
                    "keras.Model; take a Keras optimizer, or one of "
                    "tf.compat.v1.train."
                )
        if not callable(getattr(self.optimizer, "apply_gradients", None)):
            raise errors.DtypeError(
                "The optimizer of a model must have apply_gradients(pairs); "
                f"got {self.optimizer!r}."
            )
        takes = _arguments(model)
        self._has_training = "training" in takes
        # AutoGraph does not convert tfembed's functions; `loss` needs it here.
        self._call = converted(model)

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that the optimizer trains."""
        return list(self.model.trainable_variables)

    def predict(self, features: Any, *, training: bool) -> Any:
        """Returns the model's predictions for a replica's batch."""
        if self._has_training:
            return self._call(features, training=training)
        return self._call(features)

    def gradients(self, features: Any, labels: Any, watched: Any) -> Any:
        """Computes the gradients of one replica's share of the loss.

        Args:
          features, labels: A replica's batch.
          watched: Nested tensors whose gradients are also returned.

        Returns:
          The loss (the global loss is the sum over replicas), the gradients of
          the trainable variables, and those of `watched`.
        """
        with tf.GradientTape() as tape:
            tape.watch(watched)
            predictions = self.predict(features, training=True)
            loss = self.loss(features, labels, predictions, training=True)
            scaled = self._scaled(loss)
        variables = self.trainable_variables
        gradients, of_watched = tape.gradient(scaled, (variables, watched))
        unscale = getattr(self.optimizer, "get_unscaled_gradients", None)
        if unscale is not None:
            gradients = unscale(gradients)
        return loss, gradients, of_watched

    @abc.abstractmethod
    def loss(
        self, features: Any, labels: Any, predictions: Any, *, training: bool
    ) -> Any:
        """Returns a replica's share of the loss; the sum is the global loss."""

    @abc.abstractmethod
    def update_metrics(
        self, features: Any, labels: Any, predictions: Any, weights: Any
    ) -> None:
        """Adds a replica's batch to the metrics, without rows of weight 0."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Returns the metrics' values by name."""

    @abc.abstractmethod
    def reset_metrics(self) -> None:
        """Resets the metrics."""

    def _scaled(self, loss: Any) -> Any:
        """Scales the loss, for an optimizer of mixed precision."""
        for name in ("scale_loss", "get_scaled_loss"):
            scale = getattr(self.optimizer, name, None)
            if scale is not None:
                return scale(loss)
        return loss


class CompiledModel(TrainedModel):
    """A Keras model, with the loss and metrics given to `compile`."""

    def loss(  # noqa: D102 - as the base's
        self, features: Any, labels: Any, predictions: Any, *, training: bool
    ) -> Any:
        compute = self.model.compute_loss
        more = {"training": training}
        if "training" not in _arguments(compute):
            more = {}
        # Keras' losses divide by the number of the strategy's replicas
        # themselves.
        return compute(
            x=features, y=labels, y_pred=predictions, sample_weight=None, **more
        )

    def update_metrics(  # noqa: D102 - as the base's
        self, features: Any, labels: Any, predictions: Any, weights: Any
    ) -> None:
        self.model.compute_metrics(features, labels, predictions, weights)

    def metrics(self) -> dict[str, Any]:  # noqa: D102 - as the base's
        found = {
            name: value
            for metric in self.model.metrics
            for name, value in _results(metric)
        }
        # Keras' loss tracker, which only `fit` updates.
        found.pop("loss", None)
        return found

    def reset_metrics(self) -> None:  # noqa: D102 - as the base's
        self.model.reset_metrics()


class PlainModel(TrainedModel):
    """An object with `__call__`, `loss(labels, predictions)` and an optimizer.

    `loss` returns a value per row, or their mean in a replica. `metrics` is
    optional: Keras metrics, or objects with `update_state`, `result` and
    `reset_state`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._loss = converted(model.loss)

    def loss(  # noqa: D102 - as the base's
        self, features: Any, labels: Any, predictions: Any, *, training: bool
    ) -> Any:
        del features, training
        loss = tf.reduce_mean(self._loss(labels, predictions))
        more = getattr(self.model, "losses", None)
        if more:
            loss += tf.add_n([tf.cast(each, loss.dtype) for each in more])
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return loss / tf.cast(replicas, loss.dtype)

    def update_metrics(  # noqa: D102 - as the base's
        self, features: Any, labels: Any, predictions: Any, weights: Any
    ) -> None:
        del features
        for metric in self._metrics():
            metric.update_state(labels, predictions, sample_weight=weights)

    def metrics(self) -> dict[str, Any]:  # noqa: D102 - as the base's
        return {
            name: value
            for metric in self._metrics()
            for name, value in _results(metric)
        }

    def reset_metrics(self) -> None:  # noqa: D102 - as the base's
        for metric in self._metrics():
            metric.reset_state()

    def _metrics(self) -> Sequence[Any]:
        return getattr(self.model, "metrics", None) or ()


def model_of(model: Any) -> TrainedModel:
    """Wraps a model object for the estimator.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) the object lacks an
        attribute.
    """
    is_keras = any(
        isinstance(model, sys.modules[name].Model)
        for name in ("keras", "tf_keras")
        if name in sys.modules
    )
    if is_keras and (
        getattr(model, "compiled", False) or getattr(model, "_is_compiled", 0)
    ):
        return CompiledModel(model)
    missing = [
        name
        for name in ("__call__", "loss")
        if not callable(getattr(model, name, None))
    ]
    missing += ["optimizer"] * (getattr(model, "optimizer", None) is None)
    if missing:
        hint = "Compile the model: compile(optimizer, loss, metrics=...)"
        if not is_keras:
            hint = (
                "Return a compiled Keras model, or an object with "
                "__call__(features, training), loss(labels, predictions), "
                "optimizer and, to evaluate, metrics"
            )
        raise errors.DtypeError(
            f"make_model returned {model!r}, which lacks {missing}. {hint}."
        )
    if _is_loss_of_keras(model.loss):
        raise errors.DtypeError(
            f"The `loss` of {model!r} is a loss object of Keras, which divides "
            "by the number of replicas by itself. Compile a Keras model with "
            "it, or let `loss` be a method that returns a value per row."
        )
    return PlainModel(model)


def _is_loss_of_keras(loss: Any) -> bool:
    return any(
        isinstance(loss, sys.modules[name].losses.Loss)
        for name in ("keras", "tf_keras")
        if name in sys.modules
    )


def _results(metric: Any) -> Iterator[tuple[str, Any]]:
    """Yields a metric's values by name; a metric may have several."""
    result = metric.result()
    if isinstance(result, dict):
        yield from result.items()
    else:
        yield metric.name, result


def _arguments(function: Any) -> set[str]:
    """Returns the names of arguments; for a Keras model those of its `call`."""
    function = getattr(function, "call", function)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    names = set(parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        names.add("training")
    return names
