"""Tables that users' own Keras layers look up or read directly in their `call`.

Keras tracks a table neither as an attribute of a layer nor in a closure, so the
trainer would never compute its gradient, and files would not have its rows. So
the first trainable lookup inside of a layer's call adds a `BareTable` to the
sublayers of that layer. A table that is only read gets one that Keras finds
when it saves and loads the layer that has the table as an attribute.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfembed import ops
from tfembed.dynamic_embedding.keras import row_files
from tfembed.dynamic_embedding.keras.float_ids import LayerKeys
from tfembed.dynamic_embedding.keras.optimizer import moves_tables
from tfembed.dynamic_embedding.keras.private import (
    add_layer,
    calling_layers,
    disable_jit,
    models_running,
)
from tfembed.dynamic_embedding.keras.table_layer import TableLayer
from tfembed.dynamic_embedding.keras.table_variable import TableVariable
from tfembed.dynamic_embedding.tensorflow1.v2_optimizer import (
    frozen_tables,
    is_front,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.private import stepping_model
from tfembed.ops.private import called_layers, in_symbolic_scope, when_traced

__all__ = ["BareTable", "keys_to_build_with", "note_lookup", "note_read"]

_JOINED = "_bare_tables"  # The attribute that lists a layer's BareTables.
_READ = "_read_table_{attribute}"  # The attribute for a table that is read.
_STAND_IN = "_bare_table"  # A table's attribute: its BareTable.
_NO_ROWS = "no_rows"
_MAKING = threading.RLock()
_TOLD: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class BareTable(keras.layers.Layer):
    """A layer whose weight is a table, if the optimizer can train it.

    A table has one `BareTable`, whichever layers look it up or read it. A table
    that is only read is no weight. Only models that are compiled with a
    `DynamicEmbeddingOptimizer` get its weight; a custom training loop over
    another model lists the table itself. Rows are saved and loaded with the
    layer that has the table as an attribute; a table that no layer holds
    outlives all models and is not saved.

    Args:
      params: a Variable, HashTable or StringTable.
    """

    _weight: TableVariable | None = None

    def __init__(self, params: Any) -> None:
        super().__init__()
        self.supports_jit = False  # Tables are on the host.
        self.params = params
        self._is_saved = getattr(params, "checkpoint", True)
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self._told: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_held = False
        self.built = True

    @property
    def variables(self) -> list[Any]:
        """The table's weight, if it can be trained, else nothing."""
        return self._shown()

    @property
    def weights(self) -> list[Any]:
        """The table's weight, if it can be trained, else nothing."""
        return self._shown()

    def _shown(self) -> list[Any]:
        optimizers = [getattr(m, "optimizer", None) for m in self._models]
        is_trained = any(map(moves_tables, optimizers))
        return [self._weight] if is_trained else []

    def join(self, layer: Any, model: Any) -> None:
        """Adds this to the sublayers of a layer that looks the table up.

        Args:
          layer: the layer that looks the table up.
          model: the outermost layer that is being called.
        """
        callers = (*calling_layers(), model)
        self._is_held = self._is_held or any(
            _holds(one, self.params) for one in callers
        )
        self._models.add(model)
        if self._weight is None:
            self._weight = TableVariable(
                self.params,
                trainable=True,
                name="rows",
                is_implied=True,
                table_attribute="table",
            )
        for caller in callers:  # A lookup begins with a read.
            for name in [n for n, v in vars(caller).items() if v is self]:
                del vars(caller)[name]
        known = vars(layer).setdefault(_JOINED, [])
        if any(table is self for table in known):
            return
        known.append(self)  # Keras saves what it finds here.
        if not layer.trainable:
            self.trainable = False
        add_layer(layer, self)
        disable_jit(model)

    def keep_for(self, layer: Any, attribute: str, model: Any) -> None:
        """Has a layer's files keep the rows of a table that its call reads.

        Args:
          layer: the layer that has the table as an attribute.
          attribute: the attribute.
          model: the outermost layer that is being called.
        """
        self._is_held = True
        if model not in self._models:  # Else the files have the rows already.
            vars(layer).setdefault(_READ.format(attribute=attribute), self)

    def check_optimizer(self, layer: Any, model: Any) -> None:
        """Warns in a model's first step if its optimizer cannot train tables.

        Args:
          layer: the layer whose call looks the table up.
          model: the model that is being called.
        """
        optimizer = getattr(model, "optimizer", None)
        if (
            optimizer is None
            or moves_tables(optimizer)
            or model in self._told
            or not (layer.trainable and ops.tape_records())
            or not any(models_running(model.train_step))
        ):
            return

        def tell() -> None:
            is_told = model in self._told
            self._told.add(model)
            if not is_told and (is_keras_step or not self.params.is_attached):
                warnings.warn(
                    _complaint(self.params, layer, model), stacklevel=2
                )

        # A custom train_step may use another optimizer for tables. What the
        # first step did is known after its trace; in eager mode, in the second
        # step.
        is_keras_step = type(model).train_step is keras.Model.train_step
        if is_keras_step:
            tell()
        elif not when_traced(tell):
            step = int(optimizer.iterations)
            if self._steps.setdefault(model, step) != step:
                tell()

    def save_own_variables(self, store: Any) -> None:
        """Writes the rows of a table that a layer holds."""
        if not (self._is_held and self._is_saved):
            store[_NO_ROWS] = np.ones([1], np.int8)
        else:
            row_files.write_store(self.params, store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the rows that `save_own_variables` wrote, if it wrote any."""
        names = list(store.keys())
        if not names and self._is_held and self._is_saved:
            warnings.warn(
                f"The file has no rows of table '{self.params.name}', which stay "
                "as they are.",
                stacklevel=2,
            )
        elif names and _NO_ROWS not in names and self._is_saved:
            row_files.read_store(self.params, store)


def note_lookup(params: Any) -> None:
    """Adds a table to the model whose call looks it up.

    Args:
      params: a `Variable`; or a tf.Variable, which Keras does not track either
        and for which this only warns.
    """
    context = called_layers()
    if context is not None:
        layer = next(iter(calling_layers()), None)
        model = context.entry_layer
    elif in_symbolic_scope():  # Keras builds a model that it loads.
        layer = model = next(
            models_running(keras.Model.build_from_config), None
        )
    else:  # For example a user's `compute_loss`.
        layer = model = next(models_running(keras.Model.train_step), None)
        if layer is None:
            _check_tf_keras(params)
    if layer is None:
        return
    if not isinstance(params, Variable):
        _warn_of_variable(params, layer)
        return
    is_own = isinstance(layer, TableLayer) and layer.params is params
    if is_own or not (params.trainable and params.value_dtype.is_floating):
        return
    with _MAKING:
        table = _stand_in(params)
        table.join(layer, model)
    table.check_optimizer(layer, model)


def note_read(table: Any) -> None:
    """Has files keep a table that a layer's call reads.

    Args:
      table: a `HashTable` or `StringTable`, which may be that of a `Variable`.
    """
    context = called_layers()
    if context is not None:
        layers, model = calling_layers(), context.entry_layer
    elif in_symbolic_scope():  # Keras builds a model that it loads.
        layers = list(models_running(keras.Model.build_from_config))[:1]
        model = next(iter(layers), None)
    else:
        return
    if layers and _looks_up(layers[0], table):
        return
    if layers and _is_ours(layers[0]):  # It saves its tables itself.
        layers = layers[:1]  # It may be derived, and read another one.
    for layer in layers:
        for attribute, params in _held_as(layer, table):
            with _MAKING:
                _stand_in(params).keep_for(layer, attribute, model)
            return


def _stand_in(params: Any) -> BareTable:
    """Returns the only `BareTable` of a table."""
    table: BareTable | None = vars(params).get(_STAND_IN)
    if table is None:
        # Not tracked, so that checkpoints of the table do not have it.
        table = vars(params)[_STAND_IN] = BareTable(params)
    return table


def keys_to_build_with(ids: Any, params: Any) -> Any:
    """Converts a lookup's ids to keys while Keras builds a model.

    Keras builds models without keras.Input by floats, which become placeholder
    ids. At other times `ids` are returned unchanged.
    """
    context = called_layers()
    is_built_now = in_symbolic_scope() and (
        context is None or isinstance(context.entry_layer, keras.Model)
    )
    return (
        LayerKeys(params.name, params.key_dtype)(ids) if is_built_now else ids
    )


def _check_tf_keras(params: Any) -> None:
    """Warns in a tf_keras step whose optimizer cannot train tables."""
    model = stepping_model() if isinstance(params, Variable) else None
    tf_keras: Any = sys.modules.get("tf_keras")
    if (
        model is None
        or not params.trainable
        or type(model).train_step is not tf_keras.Model.train_step
        or is_front(model.optimizer)
        or any(params is one for one in frozen_tables(model))
    ):
        return
    told = _TOLD.setdefault(model, set())
    if params.name not in told:
        told.add(params.name)
        warnings.warn(_complaint(params, model, model), stacklevel=2)


def _warn_of_variable(variable: Any, layer: Any) -> None:
    """Warns once that Keras' training step does not train a tf.Variable."""
    model = next(models_running(keras.Model.train_step), None)
    if model is None or not (layer.trainable and ops.tape_records()):
        return
    told = _TOLD.setdefault(model, set())
    if variable.name not in told:
        told.add(variable.name)
        warnings.warn(
            f"Table '{variable.name}' is not trained: layer '{layer.name}' of "
            f"model '{model.name}' looks it up, and the training step of Keras "
            "knows no tf.Variables. Take its gradient in a `train_step` of your "
            "own, or use tfembed.keras.layers.DistributedEmbedding.",
            stacklevel=2,
        )


def _looks_up(layer: Any, table: Any) -> bool:
    """Says whether a layer is that of the table, which it saves itself."""
    return isinstance(layer, TableLayer) and layer.params.table is table


def _is_ours(layer: Any) -> bool:
    """Says whether a layer is one of tfembed's or derives from one."""
    packages = {
        kind.__module__.partition(".")[0] for kind in type(layer).__mro__
    }
    return __name__.partition(".")[0] in packages


def _held_as(layer: Any, table: Any) -> Iterator[tuple[str, Any]]:
    """Yields attributes of a layer that are a table, or its Variable.

    The table that a `TableLayer` looks up, which saves it itself, is left out.
    A table in a collection has its number there in its name.
    """
    own = layer.params if isinstance(layer, TableLayer) else None
    for attribute, value in list(vars(layer).items()):
        for i, one in enumerate(_members(value)):
            holds_it = isinstance(one, Variable) and one.table is table
            if one is not own and (one is table or holds_it):
                is_alone = one is value
                yield (attribute if is_alone else f"{attribute}_{i}"), one


def _holds(layer: Any, params: Variable) -> bool:
    """Says whether an attribute of a layer is the table or its shadow."""
    found = [one for value in vars(layer).values() for one in _members(value)]
    return any(
        one is params or getattr(one, "params", None) is params
        for one in found
        if not isinstance(one, BareTable)
    )


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    else:
        yield value


def _complaint(params: Variable, layer: Any, model: Any) -> str:
    return (
        f"Table '{params.name}' is not trained: layer '{layer.name}' looks it "
        f"up, and the optimizer of model '{model.name}', "
        f"{type(model.optimizer).__name__}, trains no tables. Wrap it: "
        "compile(optimizer=tfembed.dynamic_embedding.DynamicEmbeddingOptimizer("
        "...)). Or make the Variable with trainable=False."
    )
