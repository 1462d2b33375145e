"""Tables that layers of Keras look up in, without a layer of tfembed's.

A layer of Keras tracks no `Variable` as a weight, and closes over others, so the
trainer would never ask for their gradients. The first lookup inside of a layer's
call puts a `BareTable` among this layer's own layers.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

from tfembed import ops
from tfembed.dynamic_embedding.keras import row_files
from tfembed.dynamic_embedding.keras.optimizer import KerasTableOptimizer
from tfembed.dynamic_embedding.keras.table_layer import TableLayer
from tfembed.dynamic_embedding.keras.table_variable import TableVariable
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops import private

__all__ = ["BareTable", "note_lookup"]

_NO_ROWS = "no_rows"
_MAKING = threading.RLock()


class BareTable(keras.layers.Layer):
    """Shows Keras a table, as a weight that is there where it can be trained.

    A table has one, whichever layers look it up. Its weight belongs to models
    that are compiled with a `DynamicEmbeddingOptimizer`; a loop of users' own
    over another model lists the table itself. Rows are saved and loaded with the
    layer that has the table as an attribute; a table that no layer holds, which
    outlives all models, is left alone.

    Args:
      params: the table.
    """

    def __init__(self, params: Variable) -> None:
        super().__init__()
        self.supports_jit = False  # Tables are on the host.
        self.params = params
        self._weight = TableVariable(
            params, trainable=True, name="rows", is_implied=True
        )
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._told: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_held = False
        self.built = True

    @property
    def variables(self) -> list[Any]:
        """The weight, where it can be trained."""
        return self._shown()

    @property
    def weights(self) -> list[Any]:
        """The weight, where it can be trained."""
        return self._shown()

    def _shown(self) -> list[Any]:
        optimizers = [getattr(m, "optimizer", None) for m in self._models]
        is_trained = any(isinstance(o, KerasTableOptimizer) for o in optimizers)
        return [self._weight] if is_trained else []

    def join(self, layer: Any, model: Any) -> None:
        """Becomes a layer of the one whose call looks the table up.

        Args:
          layer: that one.
          model: the outermost layer that is being called.
        """
        self._is_held = self._is_held or _holds(layer, self.params)
        self._is_held = self._is_held or _holds(model, self.params)
        self._models.add(model)
        # Keras makes no more weights once a layer is built; this is none of its.
        known = vars(layer).setdefault("_bare_tables", [])
        if any(table is self for table in known):
            return
        known.append(self)  # Where Keras looks for what it saves.
        if not layer.trainable:
            self.trainable = False
        _add_layer(layer, self)
        if getattr(model, "_jit_compile", False):
            model.jit_compile = False

    def check_optimizer(self, layer: Any, model: Any) -> None:
        """Warns in the first step of a model whose optimizer trains no tables.

        Args:
          layer: whose call looks the table up.
          model: which is being called.
        """
        optimizer = getattr(model, "optimizer", None)
        if (
            optimizer is None
            or isinstance(optimizer, KerasTableOptimizer)
            or model in self._told
            or not (layer.trainable and ops.tape_records())
            or not any(_steps_of(model))
        ):
            return
        self._told.add(model)

        def tell() -> None:
            # A step of users' own may have another optimizer for tables.
            if is_keras_step or not self.params.is_attached:
                warnings.warn(
                    _complaint(self.params, layer, model), stacklevel=2
                )

        is_keras_step = type(model).train_step is keras.Model.train_step
        if is_keras_step or not private.when_traced(tell):
            tell()

    def save_own_variables(self, store: Any) -> None:
        """Writes the rows of a table that a layer holds."""
        if not (self._is_held and self.params.checkpoint):
            store[_NO_ROWS] = np.ones([1], np.int8)
        else:
            row_files.write_store(self.params, store)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote; rows stay where it did not."""
        names = list(store.keys())
        if not names and self._is_held and self.params.checkpoint:
            warnings.warn(
                f"The file has no rows of table '{self.params.name}', which stay "
                "as they are.",
                stacklevel=2,
            )
        elif names and _NO_ROWS not in names and self.params.checkpoint:
            row_files.read_store(self.params, store)


def note_lookup(params: Variable) -> None:
    """Shows a table to the model whose call looks it up; for each lookup."""
    context = global_state.get_global_attribute("current_call_ctx")
    if context is not None:
        layer, model = _innermost_layer(), context.entry_layer
    elif not tf.executing_eagerly() and ops.tape_records():
        # Such as a `compute_loss` of users' own.
        layer = model = next(_steps_of(None), None)
    else:
        return
    if layer is None or not _can_train(params):
        return
    if isinstance(layer, TableLayer) and layer.params is params:
        return
    with _MAKING:
        table = vars(params).get("_bare_table")
        if table is None:
            # Not tracked: the table is no part of its variable in checkpoints.
            table = vars(params)["_bare_table"] = BareTable(params)
        table.join(layer, model)
    table.check_optimizer(layer, model)


def _can_train(params: Any) -> bool:
    return bool(params.trainable and params.value_dtype.is_floating)


def _innermost_layer() -> Any:
    """The layer whose call is running; None outside of calls."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    callers = (scope.caller for scope in reversed(scopes))
    return next(
        (one for one in callers if isinstance(one, keras.layers.Layer)), None
    )


def _steps_of(model: Any) -> Iterator[Any]:
    """Models whose training step is running.

    Args:
      model: of which the step may be users' own; None: any model, in the step
        that Keras has for all.
    """
    given = keras.Model if model is None else model
    step: Any = inspect.unwrap(given.train_step)
    code = getattr(getattr(step, "__func__", step), "__code__", None)
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _holds(layer: Any, params: Variable) -> bool:
    """Whether an attribute of a layer is the table, or stands for it."""
    found = tf.nest.flatten([list(_members(v)) for v in vars(layer).values()])
    return any(
        v is params or getattr(v, "params", None) is params for v in found
    )


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    else:
        yield value


def _add_layer(layer: Any, table: BareTable) -> None:
    tracker = layer._tracker
    was_locked, tracker.locked = tracker.locked, False
    try:
        tracker.add_to_store("layers", table)
        if not any(one is table for one in layer._layers):
            layer._layers.append(table)
    finally:
        tracker.locked = was_locked


def _complaint(params: Variable, layer: Any, model: Any) -> str:
    return (
        f"Table '{params.name}' is not trained: layer '{layer.name}' looks it "
        f"up, and the optimizer of model '{model.name}', "
        f"{type(model.optimizer).__name__}, trains no tables. Wrap it: "
        "compile(optimizer=tfembed.dynamic_embedding.DynamicEmbeddingOptimizer("
        "...)). Or make the Variable with trainable=False."
    )
