"""What `DynamicEmbeddingOptimizer` asks of the optimizer that it was given."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.dynamic_embedding.training import private
from tfembed.dynamic_embedding.training.clipping import GradientClipping
from tfembed.dynamic_embedding.training.families import v2_private
from tfembed.dynamic_embedding.training.families.keras_rows import KerasRows
from tfembed.dynamic_embedding.training.families.keras_rules import fused_rule
from tfembed.dynamic_embedding.training.families.v1_rows import V1Rows
from tfembed.dynamic_embedding.training.families.v1_rules import fused_v1_rule
from tfembed.dynamic_embedding.training.families.v2_rows import V2Rows
from tfembed.dynamic_embedding.training.families.v2_rules import (
    check_numbers,
    fused_v2_rule,
)
from tfembed.dynamic_embedding.training.fused_rule import FusedRule
from tfembed.dynamic_embedding.training.graph_place import current_graph
from tfembed.dynamic_embedding.training.row_rule import RowRule

__all__ = ["WrappedOptimizer", "counter", "wrap"]

# What Keras does in a step with all rows of a variable, and what to do instead.
_WHOLE_VARIABLE_OPTIONS = {
    "use_ema": "averages move for all rows in each step; leave it unset, and "
    "average rows of checkpoints",
    "gradient_accumulation_steps": "rows of earlier batches would have to be "
    "kept for the update; leave it unset, and give `apply_gradients` the "
    "gradients of several batches at once",
}


class WrappedOptimizer(abc.ABC):
    """An optimizer of one family.

    Attributes:
      rule: how it moves rows of tables.
      name: what slots are called after.
      iterations: variable that counts steps.
      moves_dense: whether it moves dense variables too.
    """

    rule: FusedRule | RowRule
    name: str
    iterations: Any
    moves_dense = True

    @property
    def clipping(self) -> GradientClipping:
        """What happens to gradients before the update."""
        return GradientClipping()

    def check_rule(self) -> None:  # noqa: B027  # Most need none.
        """Refuses a `rule` that is no longer the optimizer's."""

    @abc.abstractmethod
    def learning_rate(self) -> tf.Tensor:
        """That of the next step."""

    @abc.abstractmethod
    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Ends a step: moves dense variables and counts the step.

        Returns:
          What a session must run for it, in a graph of TensorFlow 1.
        """

    @abc.abstractmethod
    def finish(self) -> None:
        """Ends a step without dense variables: counts it."""


class _Description(WrappedOptimizer):
    """A description of `tfembed.optimizers`, which moves tables only."""

    moves_dense = False

    def __init__(self, opt: optimizers.Optimizer) -> None:
        self._opt = opt
        self.rule = FusedRule(opt)
        self.name = type(opt).__name__
        self.iterations = counter("iterations")

    def learning_rate(self) -> tf.Tensor:
        rate: Any = self._opt.learning_rate
        if callable(rate):
            rate = rate(self.iterations) if _takes_step(rate) else rate()
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        raise errors.UnsupportedError(
            f"{self.name} of tfembed.optimizers moves tables only; got "
            f"{pairs[0][1]!r}. Give DynamicEmbeddingOptimizer a Keras "
            "optimizer, or dense variables an optimizer of their own."
        )

    def finish(self) -> None:
        self.iterations.assign_add(1)


class _Keras(WrappedOptimizer):
    """An optimizer of Keras 3 or tf_keras."""

    def __init__(self, opt: Any) -> None:
        for option, reason in _WHOLE_VARIABLE_OPTIONS.items():
            if getattr(opt, option, None):
                raise errors.UnsupportedError(
                    f"{type(opt).__name__}({option}={getattr(opt, option)!r}) "
                    f"cannot train tables: {reason}."
                )
        self._opt = opt
        self.rule = fused_rule(opt) or KerasRows(opt)
        self.name = opt.name
        self.iterations = opt.iterations

    @property
    def clipping(self) -> GradientClipping:
        opt = self._opt
        by_norm = opt.clipnorm or opt.global_clipnorm
        return GradientClipping(
            loss_scale=getattr(opt, "loss_scale_factor", None),
            clipvalue=None if by_norm else opt.clipvalue,
            clipnorm=opt.clipnorm,
            global_clipnorm=opt.global_clipnorm,
        )

    def learning_rate(self) -> tf.Tensor:
        rate = self._opt.learning_rate
        schedule = private.keras_schedule(self._opt)
        if callable(schedule) and _takes_step(schedule):
            rate = schedule(self.iterations)  # tf_keras' own lags by a step.
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        self._opt.apply_gradients(pairs)
        return []

    def finish(self) -> None:
        self.iterations.assign_add(1)


class _V1(WrappedOptimizer):
    """An optimizer of tf.compat.v1."""

    def __init__(self, opt: Any) -> None:
        self._opt = opt
        self.rule = fused_v1_rule(opt) or V1Rows(opt)
        self.name = opt.get_name()
        self.iterations = counter("iterations")

    def learning_rate(self) -> tf.Tensor:
        rate = private.v1_option(self._opt, "lr", "learning_rate")
        if rate is None:  # Of a user's own optimizer, which knows it.
            return tf.constant(float("nan"))
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        moved = self._opt.apply_gradients(pairs)
        return [moved, self.iterations.assign_add(1, read_value=False)]

    def finish(self) -> None:
        if isinstance(self.rule, V1Rows):
            self.rule.finish()
        self.iterations.assign_add(1)


class _V2(WrappedOptimizer):
    """A legacy optimizer of Keras: an `OptimizerV2`."""

    def __init__(self, opt: Any) -> None:
        _check_whole_steps(opt)
        self._opt = opt
        self.rule = fused_v2_rule(opt) or V2Rows(opt)
        v2_private.create_weights(opt)
        self.name = v2_private.name_of(opt)
        self.iterations = opt.iterations

    @property
    def clipping(self) -> GradientClipping:
        return GradientClipping(
            clipvalue=self._opt.clipvalue,
            clipnorm=self._opt.clipnorm,
            global_clipnorm=self._opt.global_clipnorm,
        )

    def check_rule(self) -> None:
        if isinstance(self.rule, FusedRule):
            check_numbers(self._opt, self.rule)

    def learning_rate(self) -> tf.Tensor:
        return v2_private.decayed_rate(self._opt)

    def apply_dense(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        return [self._opt.apply_gradients(pairs)]

    def finish(self) -> None:
        if isinstance(self.rule, V2Rows):
            self.rule.finish()
        self.iterations.assign_add(1)


def wrap(opt: Any) -> WrappedOptimizer:
    """The one of `opt`'s family.

    Raises:
      tfembed.errors.UnsupportedError: no optimizer, one of another family, or
        one that cannot train tables; it says why.
    """
    if isinstance(opt, optimizers.Optimizer):
        return _Description(opt)
    if isinstance(opt, tf.compat.v1.train.Optimizer):
        return _V1(opt)
    if v2_private.base_of(opt) is not None:
        return _V2(opt)
    if _is_of_keras(opt):
        if current_graph() is not None:
            raise errors.UnsupportedError(
                f"{type(opt).__name__} of Keras cannot train tables in a graph of "
                "TensorFlow 1. Use an optimizer of tf.compat.v1.train, of "
                "tf_keras.optimizers.legacy or of tfembed.optimizers there."
            )
        return _Keras(opt)
    raise errors.UnsupportedError(
        f"{type(opt).__module__}.{type(opt).__name__} cannot train tables. Use "
        "an optimizer of Keras 3, of tf_keras, its `legacy` ones too, of "
        "tf.compat.v1.train or of tfembed.optimizers."
    )


def counter(name: str) -> tf.Variable:
    """An int64 variable that begins at 0, one for all replicas."""
    with tf.init_scope():
        return tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            # Where names are all, in graphs of TensorFlow 1, none of a user's.
            name=f"dynamic_embedding_optimizer/{name}",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


def _is_of_keras(opt: Any) -> bool:
    """Whether it is one of Keras 3, or one of tf_keras that is not legacy."""
    return any(
        cls.__module__.partition(".")[0] in ("keras", "tf_keras")
        and cls.__name__ in ("Optimizer", "BaseOptimizer")
        for cls in type(opt).__mro__
    )


def _check_whole_steps(opt: Any) -> None:
    """Refuses a legacy optimizer that does more than to move variables."""
    name = f"{type(opt).__module__}.{type(opt).__name__}"
    if "LossScaleOptimizer" in type(opt).__name__:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: it wraps another one. Give that one, "
            "and scale the loss and its gradients yourself, or train with the "
            "policy 'mixed_bfloat16', which needs no scale."
        )
    step = v2_private.overridden_step(opt)
    if step is not None:
        raise errors.UnsupportedError(
            f"{name} cannot train tables: it has a `{step}` of its own, of which "
            "tables would see nothing. Give an optimizer that changes "
            "`_resource_apply_dense`, and change gradients before "
            "`apply_gradients`."
        )
    if opt.gradient_transformers or not v2_private.aggregates_as_usual(opt):
        raise errors.UnsupportedError(
            f"{name} cannot train tables: its `gradient_transformers` or "
            "`gradient_aggregator` would see the gradients of dense variables "
            "alone. Leave them out, and change gradients before "
            "`apply_gradients`."
        )


def _takes_step(rate: Callable[..., Any]) -> bool:
    """Whether a learning rate is a schedule: a function of the step."""
    parameters = inspect.signature(rate).parameters.values()
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return any(
        p.kind in positional and p.default is p.empty for p in parameters
    )
