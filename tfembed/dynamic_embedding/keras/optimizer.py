"""`DynamicEmbeddingOptimizer` as an optimizer that Keras' `compile` takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.keras.private import running_step
from tfembed.dynamic_embedding.keras.table_variable import TableVariable
from tfembed.dynamic_embedding.lookups.trainable import TrainableWrapper
from tfembed.dynamic_embedding.training.optimizer import (
    TableOptimizer,
    attributes_of,
)
from tfembed.dynamic_embedding.training.step_gradients import table_or_self
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.wrapped_optimizer import lasting_name

__all__ = ["KerasTableOptimizer", "moves_tables"]


@keras.saving.register_keras_serializable(
    package="tfembed", name="DynamicEmbeddingOptimizer"
)
class KerasTableOptimizer(keras.optimizers.Optimizer):
    """A `DynamicEmbeddingOptimizer` over a Keras 3 optimizer.

    It works wherever a Keras optimizer does: in `Model.compile`, callbacks and
    `.keras` files. The engine trains tables; the inner optimizer trains dense
    variables, counts steps and has the learning rate. A table's slots lie
    beside its rows and are saved with them.

    Args:
      engine: the `TableOptimizer` that takes the steps.
      name: as in any Keras optimizer; None: the inner optimizer's name without
        the number that Keras appends.

    Attributes:
      engine: as given.
      inner_optimizer: the Keras optimizer.
    """

    def __init__(self, engine: TableOptimizer, name: str | None = None) -> None:
        inner = engine.optimizer
        name = name or lasting_name(inner, inner.name)
        super().__init__(learning_rate=0.0, name=name)
        self.engine = engine
        self.inner_optimizer = inner
        # For layers that train their tables themselves, and ask the optimizer.
        self.loss_scale_factor = inner.loss_scale_factor

    def __setattr__(self, attribute: str, value: Any) -> None:
        inner = self.__dict__.get("inner_optimizer")
        if (
            inner is not None
            and not hasattr(type(self), attribute)
            and attribute in inspect.signature(type(inner)).parameters
        ):
            setattr(inner, attribute, value)  # Such as `beta_1`.
            if attribute not in vars(self):
                return  # It is read from there.
        super().__setattr__(attribute, value)

    __getattr__ = attributes_of("inner_optimizer")

    @property
    def nonfinite_rows(self) -> tf.Variable:
        """The count of keys so far with a non-finite summed gradient, int64."""
        return self.engine.nonfinite_rows

    @property
    def iterations(self) -> Any:
        """The variable that counts steps."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the next step; settable if it is a number."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def variables(self) -> list[Any]:
        """The inner optimizer's variables: step, learning rate, dense slots."""
        return self.inner_optimizer.variables

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the slots of `variables`: a model's weights, or tables."""
        tables: list[Any] = []
        dense: list[Any] = []
        for variable in variables:
            if _trains_by_itself(variable):
                continue
            target = table_or_self(variable)
            is_table = isinstance(target, (Variable, TrainableWrapper))
            if isinstance(variable, TableVariable):
                # Another optimizer is replaced by a step, not before.
                if variable.params.table.optimizer is None:
                    variable.train_by(self, self.engine)
            else:
                (tables if is_table else dense).append(target)
        self.engine.attach(tables)
        self.inner_optimizer.build(dense)
        self.built = True

    def apply(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        """Takes one step; Keras 3's form of `apply_gradients`."""
        if trainable_variables is None:
            raise errors.ArgumentError(
                "`trainable_variables` must be given: one for each gradient."
            )
        self.apply_gradients(zip(grads, trainable_variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        **options: Any,
    ) -> None:
        """Takes one step, as `TableOptimizer.apply_gradients`.

        Weights of tfembed's Keras layers stand for their tables. A table that
        has its own optimizer is trained by that.
        """
        pairs = list(grads_and_vars)
        if not self.built:
            self.build([variable for _, variable in pairs])
        rest: list[tuple[Any, Any]] = []
        step: Any = None
        for gradient, variable in pairs:
            of_weight = isinstance(variable, TableVariable)
            if _trains_by_itself(variable):
                if gradient is not None:
                    variable.assign(gradient)
                continue
            if of_weight and isinstance(gradient, tf.IndexedSlices):
                step = step or running_step()
                variable.train_by(self, self.engine, step)
                gradient = variable.by_key(gradient, step.scaler)
            rest.append((gradient, variable))
        if rest:
            self.engine.apply_gradients(rest, name=name, **options)
        else:
            self.iterations.assign_add(1)

    def minimize(self, loss: Any, var_list: Any, **options: Any) -> tf.Tensor:
        """Takes one step, as `TableOptimizer.minimize`.

        Raises:
          tfembed.errors.ArgumentError: `var_list` is None.
        """
        if var_list is None:
            raise errors.ArgumentError(
                "`var_list` must be variables, such as "
                "`model.trainable_variables`, or a function of them; got None."
            )
        return self.engine.minimize(loss, var_list, **options)

    def slots_of(self, params: Variable) -> list[Any]:
        """Returns the table's slots, as `Variable.get_slot_variables` does."""
        return self.engine.slots_of(params)

    def scale_loss(self, loss: Any) -> Any:
        """Scales the loss as the inner optimizer does."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Finalizes dense weights as the inner optimizer does."""
        dense = [v for v in var_list if not isinstance(v, TableVariable)]
        self.inner_optimizer.finalize_variable_values(dense)

    def save_own_variables(self, store: Any) -> None:
        """Writes the engine's counts; Keras saves the inner optimizer."""
        for i, variable in enumerate(self.engine.variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote.

        Raises:
          tfembed.errors.CheckpointError: another optimizer wrote it.
        """
        saved = [np.asarray(store[str(i)]) for i in range(len(store.keys()))]
        own = self.engine.variables
        if [x.dtype for x in saved] != [v.dtype.as_numpy_dtype for v in own]:
            raise errors.CheckpointError(
                "The file has the state of another optimizer where that of the "
                f"DynamicEmbeddingOptimizer '{self.name}' should be. Keras keeps "
                "no `auto_scale_loss` in a file, and scales the loss of a "
                "'mixed_float16' model that it loads: load a model that was "
                "compiled with auto_scale_loss=False by `load_model(path, "
                "compile=False)`, then compile it."
            )
        for value, variable in zip(saved, own, strict=True):
            variable.assign(value)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `DynamicEmbeddingOptimizer`."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        named = inner["config"]
        if "name" in named:
            lasting = lasting_name(self.inner_optimizer, named["name"])
            inner["config"] = {**named, "name": lasting}
        return {
            "name": self.name,
            "inner_optimizer": inner,
            **self.engine.options(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> KerasTableOptimizer:
        """Makes an optimizer from the dict of `get_config`."""
        options = dict(config)
        name = options.pop("name")
        inner = keras.saving.deserialize_keras_object(
            options.pop("inner_optimizer"), custom_objects=custom_objects
        )
        return cls(TableOptimizer(inner, **options), name)


def moves_tables(optimizer: Any) -> bool:
    """Says whether an optimizer, or the one inside of it, trains tables."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return isinstance(optimizer, KerasTableOptimizer)


def _trains_by_itself(variable: Any) -> bool:
    """Says whether a weight stands for a table that has its own optimizer."""
    mover = getattr(variable, "mover", None)
    return getattr(mover, "own", None) is not None
