"""`ModeKeys`, the modes of a model_fn, and `EstimatorSpec`, its result."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, DtypeError
from tfembed.estimator.private import tpu_programs, v1_sessions

LOSS_METRIC_KEY = "loss"
AVERAGE_LOSS_METRIC_KEY = "average_loss"

ModeKeys = v1_sessions.mode_keys.EstimatorModeKeys

_MODEL_FN_ARGUMENTS = frozenset(
    ["features", "labels", "mode", "params", "self", "config"]
)


class EstimatorSpec(
    collections.namedtuple(
        "EstimatorSpec",
        [
            "mode",
            "predictions",
            "loss",
            "train_op",
            "eval_metric_ops",
            "export_outputs",
            "training_chief_hooks",
            "training_hooks",
            "scaffold",
            "evaluation_hooks",
            "prediction_hooks",
        ],
    )
):
    """The ops and objects that a model_fn returns to an `Estimator`.

    `ModeKeys.TRAIN` needs `loss` and `train_op`, `ModeKeys.EVAL` needs `loss`,
    `ModeKeys.PREDICT` needs `predictions`. A model_fn may return more than its
    mode needs; the mode ignores the rest.

    Args:
      mode: One of `ModeKeys`.
      predictions: A tensor, or a dict of tensors.
      loss: A tensor, scalar or with one element.
      train_op: The op or tensor of one training step.
      eval_metric_ops: A dict of metrics by name. A metric is a pair `(value,
        update_op)` as in `tf.compat.v1.metrics`, or an updated metric of
        tf_keras.
      export_outputs: A dict of `ExportOutput` by signature name. Default: the
        predictions, under the default signature.
      training_chief_hooks: Hooks of the chief in training.
      training_hooks: Hooks of all workers in training.
      scaffold: A `tf.compat.v1.train.Scaffold` with savers and initializers.
      evaluation_hooks: Hooks in evaluation.
      prediction_hooks: Hooks in prediction.

    Raises:
      ValueError: A field that the mode needs is missing, or a tensor belongs
        to another graph.
      TypeError: A field has the wrong type.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Iterable[Any] | None = None,
        training_hooks: Iterable[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Iterable[Any] | None = None,
        prediction_hooks: Iterable[Any] | None = None,
    ) -> EstimatorSpec:
        train_op = checked_train_op(train_op, mode)
        loss = checked_loss(loss, mode)
        predictions = checked_predictions(predictions, mode)
        outputs = checked_export_outputs(export_outputs, predictions, mode)
        metrics = _checked_metrics(eval_metric_ops)
        if scaffold is None:
            scaffold = tf.compat.v1.train.Scaffold()
        elif not isinstance(scaffold, tf.compat.v1.train.Scaffold):
            raise DtypeError(
                "scaffold must be tf.train.Scaffold. Given: "
                f"{scaffold}. Return a tf.compat.v1.train.Scaffold, or None."
            )
        if (
            train_op is not None
            and tpu_programs.tensor_tracer.TensorTracer.is_enabled()
        ):
            loss = tpu_programs.tensor_tracer.TensorTracer().trace_cpu(
                tf.compat.v1.get_default_graph(), loss, train_op
            )
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=metrics,
            export_outputs=outputs,
            training_chief_hooks=checked_hooks(training_chief_hooks),
            training_hooks=checked_hooks(training_hooks),
            scaffold=scaffold,
            evaluation_hooks=checked_hooks(evaluation_hooks),
            prediction_hooks=checked_hooks(prediction_hooks),
        )

    def _replace(self, **fields: Any) -> EstimatorSpec:
        """Returns a validated copy with other values in some fields."""
        if fields.get("mode", self.mode) != self.mode:
            raise ArgumentError(
                "mode of EstimatorSpec cannot be changed. It is "
                f"{self.mode!r}; {fields['mode']!r} was asked for. Return a "
                "new EstimatorSpec."
            )
        unknown = sorted(set(fields) - set(self._fields))
        if unknown:
            raise ArgumentError(
                f"EstimatorSpec has no fields {unknown}; its fields are "
                f"{list(self._fields)}."
            )
        return EstimatorSpec(**{**self._asdict(), **fields})


def checked_train_op(train_op: Any, mode: str) -> Any:
    """Returns the op of a step; None if the mode needs none."""
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ArgumentError(
                "Missing train_op. A model_fn must return an EstimatorSpec "
                "with train_op in mode 'train'."
            )
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    elif not _is_tensor(train_op) and not isinstance(train_op, tf.Operation):
        raise DtypeError(
            f"train_op must be Operation or Tensor, given: {train_op}."
        )
    _check_graph(train_op, "train_op", lambda: str(train_op.name))
    return train_op


def checked_loss(loss: Any, mode: str) -> Any:
    """Returns the loss as a scalar; None if the mode needs none."""
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ArgumentError(
                "Missing loss. A model_fn must return an EstimatorSpec with "
                f"loss in mode {mode!r}."
            )
        return None
    _check_tensor(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ArgumentError(
            f"Loss must be scalar, given: {loss}. Reduce it, as by "
            "tf.reduce_mean."
        )
    _check_graph(loss, "loss", lambda: str(loss.name))
    if not loss.shape.is_compatible_with(tf.TensorShape([])):
        loss = tf.reshape(loss, [])
    return loss


def checked_predictions(predictions: Any, mode: str) -> Any:
    """Returns the predictions, a tensor or a dict of tensors of this graph."""
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ArgumentError(
                "Missing predictions. A model_fn must return an EstimatorSpec "
                "with predictions in mode 'infer'."
            )
        return {}
    if not isinstance(predictions, dict):
        _check_tensor(predictions, "predictions")
        _check_graph(
            predictions, "prediction values", lambda: str(predictions.name)
        )
        return predictions
    for key, value in predictions.items():
        _check_tensor(value, f"predictions[{key}]")
        _check_graph(
            value,
            "prediction values",
            functools.partial(_named, key, value),
        )
    return dict(predictions)


def checked_export_outputs(outputs: Any, predictions: Any, mode: str) -> Any:
    """Returns the outputs to export; for PREDICT at least the predictions."""
    if mode == ModeKeys.PREDICT:
        return v1_sessions.model_utils.get_export_outputs(outputs, predictions)
    return outputs


def checked_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    """Returns hooks as a tuple, after a check of their types."""
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise DtypeError(
                f"All hooks must be SessionRunHook instances, given: {hook}."
            )
    return hooks


def check_metric_names(metrics: Iterable[str]) -> None:
    """Raises an error if a metric has the name of the loss.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) a metric has that name.
    """
    if LOSS_METRIC_KEY in metrics:
        raise ArgumentError(
            f'Metric with name "{LOSS_METRIC_KEY}" is not allowed, because '
            "Estimator already defines a default metric with the same name. "
            "Give the metric another name."
        )


def check_model_fn_arguments(
    model_fn: Callable[..., Any], params: Any | None
) -> None:
    """Checks that a model_fn has the arguments of a model_fn.

    Raises:
      ValueError: It lacks `features`, or `params` if given, or has other
        arguments.
    """
    arguments = set(v1_sessions.fn_args(model_fn))
    if "features" not in arguments:
        raise ArgumentError(
            f"model_fn ({model_fn}) must include features argument. It takes "
            f"{sorted(arguments)}."
        )
    if params is not None and "params" not in arguments:
        raise ArgumentError(
            f"model_fn ({model_fn}) does not include params argument, but "
            f"params ({params}) is passed to Estimator. Add the argument, or "
            "pass no params."
        )
    if params is None and "params" in arguments:
        tf.compat.v1.logging.warn(
            "The model_fn (%s) takes params, but no params were given to the "
            "Estimator: params is an empty dict.",
            model_fn,
        )
    unknown = sorted(arguments - _MODEL_FN_ARGUMENTS)
    if unknown:
        raise ArgumentError(
            f"model_fn ({model_fn}) has following not expected args: "
            f"{unknown}. A model_fn may take features, labels, mode, params "
            "and config; bind others by functools.partial or a closure."
        )


def call_logit_fn(
    logit_fn: Callable[..., Any],
    features: Any,
    mode: str,
    params: Mapping[str, Any] | None,
    config: Any,
) -> Any:
    """Calls a logit_fn with those of the arguments that it has.

    Returns:
      The logits: a tensor, or a dict of tensors by name.

    Raises:
      ValueError: The logit_fn returned another type.
    """
    offered = {"mode": mode, "params": params, "config": config}
    arguments = v1_sessions.fn_args(logit_fn)
    logits = logit_fn(
        features=features,
        **{key: offered[key] for key in offered if key in arguments},
    )
    if tf.is_tensor(logits):
        return logits
    if isinstance(logits, dict) and all(
        isinstance(key, str) and tf.is_tensor(value)
        for key, value in logits.items()
    ):
        return logits
    raise ArgumentError(
        "logit_fn should return a Tensor or a dictionary mapping strings to "
        f"Tensors.  logit_fn returned: {logits}"
    )


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    """Returns metrics as pairs (value, update op) of this graph."""
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise DtypeError(
            f"eval_metric_ops must be a dict, given: {metrics}. Give pairs "
            "(value, update_op) by name."
        )
    pairs = {}
    for key, metric in metrics.items():
        if _is_keras_metric(metric):
            pair = _keras_metric_pair(metric)
        elif isinstance(metric, tuple) and len(metric) == 2:
            pair = metric
        else:
            raise DtypeError(
                "Values of eval_metric_ops must be (metric_value, update_op) "
                f"tuples, given: {metric} for key: {key}."
            )
        for value in tf.nest.flatten(pair):
            _check_graph(
                value,
                "eval_metric_ops",
                functools.partial(_named, key, value),
            )
        pairs[key] = pair
    return pairs


def _is_keras_metric(metric: Any) -> bool:
    """Whether a metric is of tf_keras or Keras 3, both optional packages."""
    return any(
        base.__name__ == "Metric"
        and base.__module__.startswith(("tf_keras.", "keras."))
        for base in type(metric).__mro__
    )


def _keras_metric_pair(metric: Any) -> tuple[Any, Any]:
    if not hasattr(metric, "updates"):
        raise DtypeError(
            f"The metric '{metric.name}' is of Keras 3, whose metrics make no "
            "ops in a v1 graph. Use tf.compat.v1.metrics, or a metric of "
            "tf_keras."
        )
    if not metric.updates:
        raise ArgumentError(
            f'Please call update_state(...) on the "{metric.name}" metric'
        )
    pair = (metric.result(), metric.updates[0])
    for collection in ("local_variables", "metric_variables"):
        known = {
            id(variable) for variable in tf.compat.v1.get_collection(collection)
        }
        for variable in metric.variables:
            if id(variable) not in known:
                tf.compat.v1.add_to_collection(collection, variable)
    return pair


def _named(key: str, value: Any) -> str:
    return f"{key}: {value.name}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.compat.v2.__internal__.types.Tensor)


def _check_tensor(value: Any, name: str) -> None:
    if not _is_tensor(value):
        raise DtypeError(f"{name} must be Tensor, given: {value}.")


def _check_graph(value: Any, what: str, describe: Callable[[], str]) -> None:
    """Checks that a tensor or op belongs to the default graph."""
    if tf.executing_eagerly():
        return
    if value.graph is not tf.compat.v1.get_default_graph():
        raise ArgumentError(
            f'{what} with "{describe()}" must be from the default graph. '
            "Possible causes of this error include: \n\n"
            f"1) {what} was created outside the context of the default graph."
            "\n\n"
            "2) The object passed through to EstimatorSpec was not created "
            'in the most recent call to "model_fn".'
        )
