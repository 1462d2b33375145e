"""The private TensorFlow symbols that the base of `tfembed.estimator` uses.

TensorFlow drives v1 sessions by modules without public names. They are used
through this module, and tests/estimator/test_private.py tries each of them.
Tests of other people replace functions in these modules, so the modules are
named here, not the functions.
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
from tensorflow.core.framework import graph_pb2, summary_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.ops import summary_ops_v2
from tensorflow.python.saved_model import model_utils, path_helpers
from tensorflow.python.saved_model.model_utils import (
    export_output,
    export_utils,
    mode_keys,
)
from tensorflow.python.tpu import tensor_tracer
from tensorflow.python.training import (
    basic_session_run_hooks,
    device_setter,
    evaluation,
    server_lib,
    training,
    training_util,
)
from tensorflow.python.training.saving import saveable_object_util
from tensorflow.python.util import function_utils

__all__ = [
    "basic_session_run_hooks",
    "device_setter",
    "evaluation",
    "export_output",
    "export_utils",
    "fn_args",
    "mode_keys",
    "model_utils",
    "path_helpers",
    "rewriter_config_pb2",
    "server_lib",
    "summary_pb2",
    "tensor_tracer",
    "training",
    "writes_text_graphs",
]

# The public means that would end each entry. The versions: TRIED_ON of
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
    "last_step": "a public attribute of StopAtStepHook",
    "saveables_by_name": "a public list of what a v1 Saver saves, by name",
    "stop_after_evals": "a public home of TensorFlow 1's session loops",
    "summary_collection": "a public list of a v1 graph's tf.summary ops",
    "summary_writer_initializers": "a public list of a v1 graph's writers",
    "writes_text_graphs": "a TensorFlow that writes text with protobuf 7",
}


def fn_args(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's arguments; partial and bound ones not."""
    return tuple(function_utils.fn_args(function))


def end_process(status: int) -> NoReturn:
    """Ends the process from any thread, without what Python does at an end."""
    os._exit(status)


def writes_text_graphs() -> bool:
    """Whether TensorFlow can write graph.pbtxt: with protobuf 7 some cannot."""
    try:
        text_format.MessageToString(graph_pb2.GraphDef(), float_format="")
    except TypeError:
        return False
    return True


def saveables_by_name() -> dict[str, Any]:
    """Returns what a Saver saves; parts of a variable under its name."""
    keys = tf.compat.v1.GraphKeys
    found: dict[str, Any] = saveable_object_util.op_list_to_dict(
        tf.compat.v1.get_collection(keys.GLOBAL_VARIABLES)
        + tf.compat.v1.get_collection(keys.SAVEABLE_OBJECTS)
    )
    return found


def global_step_read(graph: Any) -> Any:
    """The read of the global step that hooks of a session share."""
    return training_util._get_or_create_global_step_read(graph)


def add_global_step_read(graph: Any, read: Any) -> None:
    """Has hooks of a session share a read of the global step."""
    graph.add_to_collection(training_util.GLOBAL_STEP_READ_KEY, read)


def summary_writer_initializers(graph: Any) -> list[Any]:
    """The ops that open the graph's tf.summary writers."""
    name = summary_ops_v2._SUMMARY_WRITER_INIT_COLLECTION_NAME
    return list(graph.get_collection(name))


def flush_of_writer(writer: Any) -> Any:
    """The op that flushes a tf.summary writer, given its resource."""
    return summary_ops_v2.legacy_raw_flush(writer=writer)


def summary_collection(graph: Any) -> list[Any]:
    """The graph's own list of tf.summary ops; changes to it count."""
    name = tf.compat.v1.GraphKeys._SUMMARY_COLLECTION
    ops: list[Any] = graph.get_collection_ref(name)
    return ops


def eval_step() -> Any:
    """The variable that counts an evaluation's steps."""
    return evaluation._get_or_create_eval_step()


def stop_after_evals(steps: int) -> Any:
    """A hook that ends an evaluation after so many steps."""
    return evaluation._StopAfterNEvalsHook(num_evals=steps)


def evaluate_once(**options: Any) -> dict[str, Any]:
    """Restores a checkpoint, runs an evaluation's steps, returns its results."""
    results: dict[str, Any] = evaluation._evaluate_once(**options)
    return results


def last_step(hook: Any) -> int | None:
    """The global step at which a hook stops training; None if not known."""
    if isinstance(hook, tf.compat.v1.train.StopAtStepHook):
        step: int | None = hook._last_step
        return step
    return getattr(hook, "last_step", None)


def add_listeners(saver_hook: Any, listeners: Sequence[Any]) -> None:
    """Has a CheckpointSaverHook tell listeners, each once, of its saves."""
    for listener in listeners:
        if listener not in saver_hook._listeners:
            saver_hook._listeners.append(listener)


def initialize_too(scaffold: Any, ops: Sequence[Any]) -> None:
    """Has a finalized Scaffold run ops beside its init_op; once for all."""
    if not isinstance(scaffold.init_op, list):
        scaffold._init_op = [scaffold.init_op, *ops]


def iterator_saveable(handle: Any, policy: str) -> Any:
    """Wraps the position of a tf.data iterator for a Saver.

    Args:
      handle: the iterator's resource.
      policy: what to do about state outside of the iterator: "warn", "ignore"
        or "fail".
    """
    return tf.data.experimental.make_saveable_from_iterator(
        types.SimpleNamespace(_iterator_resource=handle), policy
    )


def add_train_op(builder: Any, train_op: Any) -> None:
    """Has a SavedModel's builder list the op of a training step."""
    builder._add_train_op(train_op)


# What Keras 3 counts names by, and the variable that ops without a seed share.
_KERAS_STATE = ("object_name_uids", "global_seed_generator")


@contextlib.contextmanager
def fresh_keras_state() -> Iterator[None]:
    """Inside, Keras 3 numbers names from the first; afterwards as before.

    Keras may be imported inside.
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
