"""The private symbols of Keras 3 through which it handles tables.

tests/dynamic_embedding/keras exercises them, on the versions of TensorFlow that
`tfembed/ops/private.py` lists and the Keras that each of these installs.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
from keras.src.backend.common import global_state

from tfembed.ops.private import running_frames

__all__ = [
    "add_layer",
    "asked_for_jit",
    "asked_for_variable",
    "callbacks_running",
    "calling_layers",
    "disable_jit",
    "forget_shared_object",
    "model_stepping",
    "models_running",
    "optimizer_stepping",
    "running_step",
    "shared_objects",
    "showing_weights",
    "writing_legacy_h5",
]

# Function -> the public API that would make it unnecessary.
ENDED_BY = {
    "add_layer": "a public `Layer.add_layer` after the layer was built",
    "asked_for_jit": "a public attribute of a model: what `compile` was given",
    "asked_for_variable": "moving averages of weights without those of tables",
    "callbacks_running": "a public way to ask for the callbacks of a fit",
    "calling_layers": "a public way to ask which layers are being called",
    "disable_jit": "a public way to ask whether `compile` chose jit_compile",
    "forget_shared_object": "a Keras that loads a layer of three models inside one",
    "model_stepping": "a public way to ask which model takes a step",
    "models_running": "a public way to ask which model takes a step",
    "optimizer_stepping": "a public way to ask which optimizer takes a step",
    "running_step": "a public way to ask which optimizer takes a step",
    "shared_objects": "a public way to share objects of a model that is loaded",
    "showing_weights": "a hook of weights by which TensorBoard shows them",
    "writing_legacy_h5": "a hook of layers by which the legacy form saves them",
}


def calling_layers() -> list[Any]:
    """Returns the layers whose calls are running, innermost first."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    callers = [scope.caller for scope in reversed(scopes)]
    return [one for one in callers if isinstance(one, keras.layers.Layer)]


def models_running(method: Any) -> Iterator[Any]:
    """Yields models whose `method` runs in this thread, innermost first."""
    function: Any = inspect.unwrap(method)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    for frame in _frames(object, code.co_name) if code is not None else ():
        if frame.f_code is code:
            yield frame.f_locals.get("self")


def model_stepping() -> Any:
    """Returns the model whose `train_step` runs in this thread, or None."""
    return _innermost(keras.Model, "train_step")


def asked_for_jit(model: Any) -> bool:
    """Says whether a model was compiled with jit_compile=True."""
    config = getattr(getattr(model, "_compile_config", None), "config", {})
    return config.get("jit_compile") is True


def optimizer_stepping() -> Any:
    """Returns the optimizer whose step runs in this thread, or None.

    Inside of a LossScaleOptimizer it is the wrapped optimizer.
    """
    found = _innermost(keras.optimizers.Optimizer)
    is_scaler = isinstance(found, keras.optimizers.LossScaleOptimizer)
    return None if is_scaler else found


class _Step(NamedTuple):
    """The objects of Keras that take a step in this thread; each may be None.

    Attributes:
      optimizer: as `optimizer_stepping`.
      scaler: the LossScaleOptimizer.
      model: as `model_stepping`.
    """

    optimizer: Any
    scaler: Any
    model: Any


def running_step() -> _Step:
    """Returns the optimizers and the model that take a step in this thread."""
    optimizers, models = [], []
    for frame in running_frames():
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.optimizers.Optimizer):
            optimizers.append(caller)
        elif frame.f_code.co_name == "train_step":
            models += [caller] if isinstance(caller, keras.Model) else []
    kind = keras.optimizers.LossScaleOptimizer
    scalers = [one for one in optimizers if isinstance(one, kind)]
    is_scaler = optimizers[:1] == scalers[:1]
    return _Step(
        None if is_scaler else optimizers[0],
        scalers[0] if scalers else None,
        models[0] if models else None,
    )


def asked_for_variable() -> bool:
    """Says whether an optimizer or SwapEMAWeights runs in this thread.

    Both make moving averages of all weights, by their variables.
    """
    kinds = (keras.optimizers.Optimizer, keras.callbacks.SwapEMAWeights)
    return _innermost(kinds) is not None


def _frames(kind: Any, *names: str) -> Iterator[types.FrameType]:
    """Yields the running methods of objects of a kind, the innermost first.

    Args:
      kind: one class, or several.
      *names: the names of the methods; none: any, since optimizers of users
        have methods of their own, and a strategy runs closures of Keras alone.
    """
    for frame in running_frames(*names):
        if isinstance(frame.f_locals.get("self"), kind):
            yield frame


def _innermost(kind: Any, *names: str) -> Any:
    """Returns the object of the first of `_frames`, or None."""
    for frame in running_frames(*names):
        caller = frame.f_locals.get("self")
        if isinstance(caller, kind):
            return caller
    return None


def shared_objects() -> Any:
    """Returns the objects that layers of a model that is loading share, by key.

    Returns None if Keras makes layers one by one, as `clone_model` does.
    """
    return global_state.get_global_attribute("shared_objects/id_to_obj_map")


def forget_shared_object(layer: Any) -> None:
    """Makes Keras create a new layer for each inner model of one that it loads.

    Else Keras reuses the second inner model's layer in the third one, and mixes
    up their calls.
    """
    loaded = shared_objects() or {}
    # Keras' keys are integers; layers that share tables add string keys.
    of_keras = [key for key in loaded if isinstance(key, int)]
    for key in [key for key in of_keras if loaded[key] is layer]:
        del loaded[key]


def callbacks_running() -> list[Any]:
    """Returns the callbacks of the `fit` that is running in this thread."""
    for frame in _frames(keras.Model, "fit"):
        found = frame.f_locals.get("callbacks")
        return list(getattr(found, "callbacks", None) or [])
    return []


def add_layer(layer: Any, added: Any) -> None:
    """Adds a sublayer to a layer, which may be built already."""
    tracker = layer._tracker
    was_locked, tracker.locked = tracker.locked, False
    try:
        tracker.add_to_store("layers", added)
        if not any(one is added for one in layer._layers):
            layer._layers.append(added)
    finally:
        tracker.locked = was_locked


def disable_jit(model: Any) -> None:
    """Turns XLA compilation of a model's steps off."""
    if getattr(model, "_jit_compile", False):
        model.jit_compile = False


def showing_weights() -> bool:
    """Returns True while Keras' TensorBoard callback writes weights."""
    kind = keras.callbacks.TensorBoard
    return _innermost(kind, "_log_weights") is not None


def writing_legacy_h5() -> bool:
    """Says whether Keras is writing a whole model in its legacy HDF5 format."""
    return any(_frames(object, "save_model_to_hdf5"))
