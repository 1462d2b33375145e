"""A model_fn's result for a TPUEstimator, and its functions on the host."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import spec as base_spec
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.tpu import loops
from tfembed.estimator.tpu.input_pipeline import paths

_host_features: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "host_features", default=frozenset()
)


@contextlib.contextmanager
def with_host_features(names: Iterable[str]) -> Iterator[None]:
    """Lets host functions take features by name besides their tensors.

    Args:
      names: The `host_features` of the estimator.
    """
    token = _host_features.set(frozenset(names))
    try:
        yield
    finally:
        _host_features.reset(token)


@dataclasses.dataclass(frozen=True)
class HostCall:
    """A host function, and the tensors of a replica that it takes.

    Attributes:
      name: "eval_metrics" or "host_call"; for error texts.
      function: takes the tensors, concatenated over replicas.
      structure: its arguments, with tensors of one replica: a list or a dict,
        of tensors and nested structures of them.
      paths: the path of each tensor of the structure.
      tensors: the tensors of the structure, dense, sparse or ragged.
    """

    name: str
    function: Callable[..., Any]
    structure: Any
    paths: tuple[str, ...]
    tensors: tuple[Any, ...]

    @classmethod
    def checked(cls, name: str, pair: Any) -> HostCall | None:
        """Parses `(function, tensors)`, where tensors are a list or a dict.

        Raises:
          tfembed.errors.ArgumentError: (also ValueError) it is not such a
            pair.
          tfembed.errors.DtypeError: (also TypeError) the first is not a
            function.
          tfembed.errors.StateError: (also RuntimeError) the number of tensors
            and the function's arguments differ.
        """
        if pair is None:
            return None
        if not isinstance(pair, (tuple, list)):
            raise errors.ArgumentError(
                f"{name} should be tuple or list: a function and its tensors; "
                f"got {pair!r}."
            )
        if len(pair) != 2:
            raise errors.ArgumentError(
                f"{name} should have two elements. The first is a function, "
                f"the second its tensors; got {len(pair)} elements."
            )
        function, tensors = pair
        if not callable(function):
            raise errors.DtypeError(
                f"{name}[0] should be callable. Given {function!r}."
            )
        if not isinstance(tensors, (Mapping, tuple, list)):
            raise errors.ArgumentError(
                f"{name}[1] should be tuple or list, or dict. Given "
                f"{type(tensors).__name__}."
            )
        if not isinstance(tensors, Mapping):
            _check_count(name, function, len(tensors))
        places = tuple(paths(tensors))
        leaves = zip(places, tf.nest.flatten(tensors), strict=True)
        converted = tuple(_tensor(name, *leaf) for leaf in leaves)
        return cls(name, function, tensors, places, converted)

    def __call__(self, tensors: Iterable[Any], **more: Any) -> Any:
        """Calls the function with values of the tensors.

        Args:
          tensors: the values, in the order of `self.tensors`.
          **more: values of further arguments that the function has.
        """
        takes = v1_sessions.fn_args(self.function)
        extra = {name: more[name] for name in more if name in takes}
        given = tf.nest.pack_sequence_as(self.structure, list(tensors))
        if not isinstance(given, Mapping):
            if len(given) == len(takes) or not extra:
                return self.function(*given)
            names = [name for name in takes if name not in extra]
            return self.function(
                **extra, **dict(zip(names, given, strict=True))
            )
        try:
            return self.function(**extra, **given)
        except TypeError as error:
            tf.compat.v1.logging.warn(
                "%s failed in its function: %s. Its tensors are %s, the "
                "function takes %s.",
                self.name,
                error,
                list(given),
                sorted(takes),
            )
            raise


def _tensor(name: str, path: str, leaf: Any) -> Any:
    if isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
        return leaf
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        place = f" at '{path}'" if path else ""
        raise errors.ArgumentError(
            f"{name}[1] has {leaf!r}{place}, which is no tensor. Give what the "
            "function takes as tensors, and no more."
        ) from error


def _check_count(name: str, function: Callable[..., Any], given: int) -> None:
    target = getattr(function, "func", function)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return  # A builtin reports missing arguments itself.
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return
    takes = v1_sessions.fn_args(function)
    of_host = _host_features.get()
    if given not in (
        len(takes),
        sum(argument not in of_host for argument in takes),
    ):
        also = f" beside the host features {sorted(of_host)}" if of_host else ""
        raise errors.StateError(
            f"In TPUEstimatorSpec.{name}, length of tensors {given} does not "
            f"match method args of the function, which takes {len(takes)}"
            f"{also}: {list(takes)}."
        )


class TPUEstimatorSpec(
    collections.namedtuple(
        "TPUEstimatorSpec",
        [
            "mode",
            "predictions",
            "loss",
            "train_op",
            "eval_metrics",
            "export_outputs",
            "scaffold_fn",
            "host_call",
            "training_hooks",
            "evaluation_hooks",
            "prediction_hooks",
        ],
    )
):
    """The ops and objects that a model_fn returns to a `TPUEstimator`.

    A model_fn is called once for all replicas and runs on each of them. Host
    code (metrics, summaries) is a function with a replica's tensors as
    arguments: the function is called with these tensors concatenated over
    replicas, along their first dimension.

    Args:
      mode: One of `ModeKeys`.
      predictions: A dict of tensors, or a tensor.
      loss: A tensor with one element.
      train_op: The op of one training step.
      eval_metrics: `(metric_fn, tensors)`, where tensors are a list or a dict,
        of tensors or of nested structures of them, and metric_fn returns a
        dict of metrics by name: `(value, update_op)`. metric_fn sees no rows
        of a last batch's padding.
      export_outputs: A dict of `ExportOutput` by signature name.
      scaffold_fn: Returns a `tf.compat.v1.train.Scaffold`. It must not use
        tensors of the model_fn.
      host_call: `(function, tensors)`, with tensors as for eval_metrics. The
        function is called once, when the graph is built, and returns ops that
        run on the host with each step, for instance those of `tf.summary`.
      training_hooks, evaluation_hooks, prediction_hooks: The hooks of a mode.
        They must not use tensors of the model_fn.

    Raises:
      ValueError: A field that the mode needs is missing, or `eval_metrics` or
        `host_call` is not such a pair.
      TypeError: A field has the wrong type.
      RuntimeError: A function does not take the given number of tensors.

    Example:
        >>> def metric_fn(labels, logits):
        ...     classes = tf.argmax(logits, axis=-1)
        ...     return {
        ...         "accuracy": tf.compat.v1.metrics.accuracy(labels, classes)
        ...     }
        >>> with tf.Graph().as_default():
        ...     labels, logits = tf.zeros([8], tf.int64), tf.zeros([8, 3])
        ...     spec = TPUEstimatorSpec(
        ...         "eval",
        ...         loss=tf.reduce_mean(logits),
        ...         eval_metrics=(metric_fn, [labels, logits]),
        ...     )
        >>> spec.mode
        'eval'
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        mode: Any,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metrics: Any = None,
        export_outputs: Any = None,
        scaffold_fn: Callable[[], Any] | None = None,
        host_call: Any = None,
        training_hooks: Iterable[Any] | None = None,
        evaluation_hooks: Iterable[Any] | None = None,
        prediction_hooks: Iterable[Any] | None = None,
    ) -> TPUEstimatorSpec:
        for name, pair in (
            ("eval_metrics", eval_metrics),
            ("host_call", host_call),
        ):
            HostCall.checked(name, pair)
        if scaffold_fn is not None and not callable(scaffold_fn):
            raise errors.DtypeError(
                "scaffold_fn must be a function that returns a "
                f"tf.compat.v1.train.Scaffold; got {scaffold_fn!r}."
            )
        train_op = base_spec.checked_train_op(train_op, mode)
        loss = base_spec.checked_loss(loss, mode)
        predictions = base_spec.checked_predictions(predictions, mode)
        return super().__new__(
            cls,
            mode,
            predictions,
            loss,
            train_op,
            eval_metrics,
            base_spec.checked_export_outputs(export_outputs, predictions, mode),
            scaffold_fn,
            host_call,
            base_spec.checked_hooks(training_hooks),
            base_spec.checked_hooks(evaluation_hooks),
            base_spec.checked_hooks(prediction_hooks),
        )

    def _replace(self, **fields: Any) -> TPUEstimatorSpec:
        """Returns a validated copy with other values in some fields."""
        return TPUEstimatorSpec(**{**self._asdict(), **fields})

    def as_estimator_spec(self, **more: Any) -> base_spec.EstimatorSpec:
        """Returns the equivalent `EstimatorSpec` for a CPU.

        Args:
          **more: Values of further arguments of metric_fn and of the function
            of `host_call`.
        """
        metrics = HostCall.checked("eval_metrics", self.eval_metrics)
        host_call = HostCall.checked("host_call", self.host_call)
        metric_ops = None
        if metrics is not None:
            metric_ops = metrics(metrics.tensors, **more)
        hooks: tuple[Any, ...] = ()
        if host_call is not None:
            ops = host_call(host_call.tensors, **more)
            hooks = (loops.HostOpsHook(ops),)
        return base_spec.EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metric_ops,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            training_hooks=self.training_hooks + hooks,
            evaluation_hooks=self.evaluation_hooks + hooks,
            prediction_hooks=self.prediction_hooks + hooks,
        )
