"""`DynamicEmbeddingOptimizer` in the form that tf_keras' `compile` takes."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training.optimizer import (
    TableOptimizer,
    attributes_of,
)
from tfembed.dynamic_embedding.training.slot_variable import slot_called
from tfembed.dynamic_embedding.training.step_gradients import (
    is_of_a_table,
    table_or_self,
    variable_of,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers import private
from tfembed.ops.private import track

__all__ = ["base_for", "frozen_tables", "is_front", "v2_table_optimizer"]


def base_for(opt: Any) -> Any:
    """Returns the class `OptimizerV2` of `opt`'s library, or None."""
    legacy = private.base_of(opt)
    if legacy is not None:
        return legacy
    tf_keras = sys.modules.get("tf_keras")
    if tf_keras is None or not isinstance(opt, tf_keras.optimizers.Optimizer):
        return None
    return tf_keras.optimizers.legacy.Optimizer


def v2_table_optimizer(engine: TableOptimizer, base: Any) -> Any:
    """Makes an optimizer of class `base` that steps by `engine`.

    Args:
      engine: takes the steps, over an optimizer of tf_keras.
      base: a class `OptimizerV2`.
    """
    inner_class: Any = type(engine.optimizer)
    return _class_of(base, inner_class)(engine)


def _of_inner(name: str) -> property:
    """Makes a property for an inner optimizer's attribute.

    It replaces an attribute of `OptimizerV2`.

    The constructor of `OptimizerV2` sets it to None before there is an inner
    optimizer.
    """
    return property(
        lambda front: getattr(vars(front).get("inner_optimizer"), name, None),
        lambda front, value: None,
    )


def is_front(optimizer: Any) -> bool:
    """Says whether an optimizer was made by `v2_table_optimizer`."""
    return isinstance(optimizer, _Front)


class _Front:
    """The methods of a `V2TableOptimizer`, which override `OptimizerV2`'s.

    The engine trains tables; the inner optimizer trains dense variables, and
    has the step count, the learning rate, the slots of dense variables and all
    attributes. A table's slots lie beside its rows and are saved with them.

    Attributes:
      engine: the `TableOptimizer` that takes the steps.
      inner_optimizer: the given optimizer.
    """

    engine: TableOptimizer
    inner_optimizer: Any
    inner_class: Any  # The class of `inner_optimizer`, for `from_config`.
    clipnorm = _of_inner("clipnorm")
    clipvalue = _of_inner("clipvalue")
    global_clipnorm = _of_inner("global_clipnorm")

    def __init__(self, engine: TableOptimizer) -> None:
        name = private.name_of(engine.optimizer)
        super().__init__(name)  # type: ignore[call-arg]
        track(self, "engine", engine)
        self.engine = engine
        self.inner_optimizer = engine.optimizer

    __getattr__ = attributes_of("inner_optimizer")

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets the inner optimizer's public attributes, such as `lr`."""
        inner = self.__dict__.get("inner_optimizer")
        if name == "_is_wrapped_by_loss_scale_optimizer":
            raise errors.UnsupportedError(
                "Losses are not scaled where tables are trained. Train with the "
                "policy 'mixed_bfloat16', which needs no scale, in place of "
                "'mixed_float16' and LossScaleOptimizer."
            )
        if name.startswith("_") or not hasattr(inner, name):
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copies the inner optimizer, not the tables."""
        inner = copy.deepcopy(self.inner_optimizer, memo)
        copied = type(self)(TableOptimizer(inner, **self.engine.options()))
        copied.nonfinite_rows.assign(self.nonfinite_rows)
        return copied

    @property
    def nonfinite_rows(self) -> Any:
        """The count of keys so far with a non-finite summed gradient, int64.

        It stays 0 with nonfinite="allow", which does not check.
        """
        return self.engine.nonfinite_rows

    @property
    def iterations(self) -> Any:
        """The variable that counts steps."""
        return self.inner_optimizer.iterations

    @property
    def weights(self) -> list[Any]:
        """The inner optimizer's weights: step, slots of dense variables."""
        return list(self.inner_optimizer.variables())

    def variables(self) -> list[Any]:
        """Returns `weights`."""
        return self.weights

    def minimize(
        self,
        loss: Any,
        var_list: Any = None,
        grad_loss: Any = None,
        name: str | None = None,
        tape: Any = None,
        *,
        global_step: Any = None,
    ) -> Any:
        """Takes one step, as `TableOptimizer.minimize`.

        In a model's training step, all of the model's variables imply the
        tables that its layers look up: tf_keras does not track a `Variable` as
        a weight.
        """
        if tape is not None:
            var_list = _with_looked_up(var_list, tape)
        return self.engine.minimize(
            loss, var_list, grad_loss, name, tape, global_step=global_step
        )

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Takes one step, as `TableOptimizer.apply_gradients`."""
        return self.engine.apply_gradients(grads_and_vars, name, **options)

    def slots_of(self, params: Variable) -> list[Any]:
        """Returns the table's slots, as `Variable.get_slot_variables` does."""
        return self.engine.slots_of(params)

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """Returns the slot of a dense variable, or a view of a table's slot.

        `get_slot_names` lists no slots here: the inner optimizer lists and
        saves those of dense variables.
        """
        var = table_or_self(var)
        if not is_of_a_table(var):
            return self.inner_optimizer.get_slot(var, slot_name)
        return slot_called(self.engine, variable_of(var), slot_name)

    def get_config(self) -> dict[str, Any]:
        """Returns the inner optimizer's config and this one's arguments."""
        return {**self.inner_optimizer.get_config(), **self.engine.options()}

    @classmethod
    def from_config(cls, config: dict[str, Any], **given: Any) -> Any:
        """Makes an optimizer from the dict of `get_config`.

        Args:
          config: see `get_config`.
          **given: `custom_objects`, for the inner optimizer.
        """
        config = dict(config)
        own = ("bp_v2", "nonfinite")
        options = {name: config.pop(name) for name in own if name in config}
        inner = cls.inner_class.from_config(config, **given)
        return cls(TableOptimizer(inner, **options))

    def _decayed_lr(self, var_dtype: Any) -> tf.Tensor:
        """Returns the next step's learning rate; Keras 2's name for it."""
        return tf.cast(self.engine.learning_rate, var_dtype)

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the slots of dense variables, and those in rows of tables."""
        self._create_all_weights(var_list)

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        """Does the same; Keras calls it before it loads weights."""
        targets = [table_or_self(v) for v in var_list]
        self.engine.attach(v for v in targets if is_of_a_table(v))
        dense = [v for v in targets if not is_of_a_table(v)]
        private.build(self.inner_optimizer, dense)


def _with_looked_up(var_list: Any, tape: Any) -> Any:
    """Adds tables that a tape watched, if a model's variables are given."""
    model = private.stepping_model()
    given = var_list() if callable(var_list) else var_list
    if model is None or not isinstance(given, (list, tuple)):
        return given
    of_model = {id(v) for v in model.trainable_variables}
    if {id(v) for v in given} != of_model:
        return given  # The user chose some variables.
    tables = [table_or_self(v) for v in given]
    known = {id(variable_of(v)) for v in tables if is_of_a_table(v)}
    known |= {id(v) for v in frozen_tables(model)}
    seen = tape.watched_variables()
    return [
        *given,
        *(v for v in seen if isinstance(v, Variable) and id(v) not in known),
    ]


def frozen_tables(model: Any) -> list[Variable]:
    """Returns the tables that are attributes of a model's frozen layers."""
    layers = [
        one for one in model.submodules if not getattr(one, "trainable", 1)
    ]
    found = [v for one in layers for v in vars(one).values()]
    return [v for v in found if isinstance(v, Variable)]


@functools.cache
def _class_of(base: Any, inner: Any) -> Any:
    members = {"inner_class": inner}
    return type("V2TableOptimizer", (_Front, base), members)
