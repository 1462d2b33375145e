"""Private symbols of sessions of TensorFlow 1: savers, hooks, summaries, exports.

tests/estimator/test_private.py tries each of them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import (
    rewriter_config_pb2,
    trackable_object_graph_pb2,
)
from tensorflow.python.ops import summary_ops_v2
from tensorflow.python.saved_model import model_utils, path_helpers
from tensorflow.python.saved_model.model_utils import (
    export_output,
    export_utils,
    mode_keys,
)
from tensorflow.python.training import (
    device_setter,
    evaluation,
    training_util,
)
from tensorflow.python.training.saving import saveable_object_util
from tensorflow.python.util import function_utils

__all__ = [
    "device_setter",
    "evaluation",
    "export_output",
    "export_utils",
    "fn_args",
    "mode_keys",
    "model_utils",
    "path_helpers",
    "rewriter_config_pb2",
    "writes_text_graphs",
]

# The public API that would end each entry. The versions: TRIED_ON of
# tfembed/ops/private.py.
ENDED_BY = {
    "add_global_step_read": "a public home of TensorFlow 1's session loops",
    "add_listeners": "a public method of CheckpointSaverHook",
    "add_train_op": "a public argument of the v1 SavedModel builder",
    "end_process": "a public exit of os that a thread may take",
    "eval_step": "a public home of TensorFlow 1's session loops",
    "evaluate_once": "a public home of TensorFlow 1's session loops",
    "flush_of_writer": "a public list of a v1 graph's writers",
    "fn_args": "inspect.signature, if old model_fns need no partial",
    "fresh_keras_state": "a public scope of Keras 3 for names and seeds",
    "global_step_read": "a public home of TensorFlow 1's session loops",
    "initialize_too": "a public way to add to a Scaffold's init_op",
    "iterator_saveable": "a public saveable of an iterator's resource",
    "layers_of": "a public walk through the nested layers of a Keras model",
    "last_step": "a public attribute of StopAtStepHook",
    "object_graph": "a public description of a checkpoint's objects",
    "saveables_by_name": "a public list of what a v1 Saver saves, by name",
    "stop_after_evals": "a public home of TensorFlow 1's session loops",
    "summary_collection": "a public list of a v1 graph's tf.summary ops",
    "summary_writer_initializers": "a public list of a v1 graph's writers",
    "writes_text_graphs": "a TensorFlow that writes text with protobuf 7",
}


def fn_args(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns a function's argument names, without those that are bound."""
    return tuple(function_utils.fn_args(function))


def end_process(status: int) -> NoReturn:
    """Ends the process from any thread, without Python's cleanup."""
    os._exit(status)


def writes_text_graphs() -> bool:
    """Whether TensorFlow can write graph.pbtxt; some fail with protobuf 7."""
    try:
        text_format.MessageToString(graph_pb2.GraphDef(), float_format="")
    except TypeError:
        return False
    return True


def saveables_by_name() -> dict[str, Any]:
    """Returns a Saver's saveables; parts of a variable are under its name."""
    keys = tf.compat.v1.GraphKeys
    found: dict[str, Any] = saveable_object_util.op_list_to_dict(
        tf.compat.v1.get_collection(keys.GLOBAL_VARIABLES)
        + tf.compat.v1.get_collection(keys.SAVEABLE_OBJECTS)
    )
    return found


def global_step_read(graph: Any) -> Any:
    """Returns the read of the global step that a session's hooks share."""
    return training_util._get_or_create_global_step_read(graph)


def add_global_step_read(graph: Any, read: Any) -> None:
    """Sets the read of the global step that a session's hooks share."""
    graph.add_to_collection(training_util.GLOBAL_STEP_READ_KEY, read)


def summary_writer_initializers(graph: Any) -> list[Any]:
    """Returns the ops that open the graph's tf.summary writers."""
    name = summary_ops_v2._SUMMARY_WRITER_INIT_COLLECTION_NAME
    return list(graph.get_collection(name))


def flush_of_writer(writer: Any) -> Any:
    """Returns the op that flushes a tf.summary writer, given its resource."""
    return summary_ops_v2.legacy_raw_flush(writer=writer)


def summary_collection(graph: Any) -> list[Any]:
    """Returns the graph's own list of tf.summary ops, which may be changed."""
    name = tf.compat.v1.GraphKeys._SUMMARY_COLLECTION
    ops: list[Any] = graph.get_collection_ref(name)
    return ops


def eval_step() -> Any:
    """Returns the variable that counts an evaluation's steps."""
    return evaluation._get_or_create_eval_step()


def stop_after_evals(steps: int) -> Any:
    """Returns a hook that stops an evaluation after `steps` steps."""
    return evaluation._StopAfterNEvalsHook(num_evals=steps)


def evaluate_once(**options: Any) -> dict[str, Any]:
    """Restores a checkpoint, runs the steps, and returns the results."""
    results: dict[str, Any] = evaluation._evaluate_once(**options)
    return results


def last_step(hook: Any) -> int | None:
    """Returns the global step at which a hook stops; None if unknown."""
    if isinstance(hook, tf.compat.v1.train.StopAtStepHook):
        step: int | None = hook._last_step
        return step
    return getattr(hook, "last_step", None)


def add_listeners(saver_hook: Any, listeners: Sequence[Any]) -> None:
    """Adds listeners to a CheckpointSaverHook, each only once."""
    for listener in listeners:
        if listener not in saver_hook._listeners:
            saver_hook._listeners.append(listener)


def initialize_too(scaffold: Any, ops: Sequence[Any]) -> None:
    """Adds ops to the init_op of a finalized Scaffold."""
    if not isinstance(scaffold.init_op, list):
        scaffold._init_op = [scaffold.init_op, *ops]


def iterator_saveable(handle: Any, policy: str) -> Any:
    """Wraps the position of a tf.data iterator for a Saver.

    Args:
      handle: the iterator's resource.
      policy: what to do about state outside the iterator: "warn", "ignore" or
        "fail".
    """
    return tf.data.experimental.make_saveable_from_iterator(
        types.SimpleNamespace(_iterator_resource=handle), policy
    )


def add_train_op(builder: Any, train_op: Any) -> None:
    """Adds the op of a training step to a SavedModel's builder."""
    builder._add_train_op(train_op)


def layers_of(model: Any) -> list[Any]:
    """Returns a Keras model's layers, those inside of others too."""
    return list(model._flatten_layers())


def object_graph(serialized: bytes) -> Any:
    """Parses the description of objects in a checkpoint."""
    return trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        serialized
    )


# Keras 3's counters of names, and the variable that ops without a seed share.
_KERAS_STATE = ("object_name_uids", "global_seed_generator")


@contextlib.contextmanager
def fresh_keras_state() -> Iterator[None]:
    """Resets Keras 3's counters of names within the block.

    The block may import Keras.
    """
    before = [_keras_attribute(name) for name in _KERAS_STATE]
    for name in _KERAS_STATE:
        _set_keras_attribute(name, None)
    try:
        yield
    finally:
        for name, value in zip(_KERAS_STATE, before):
            _set_keras_attribute(name, value)


def _keras_state() -> Any:
    return sys.modules.get("keras.src.backend.common.global_state")


def _keras_attribute(name: str) -> Any:
    state = _keras_state()
    return None if state is None else state.get_global_attribute(name)


def _set_keras_attribute(name: str, value: Any) -> None:
    state = _keras_state()
    if state is not None:
        state.set_global_attribute(name, value)
