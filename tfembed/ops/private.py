"""The private TensorFlow symbols of the op wrappers and the floors above them.

Each is wrapped in a function here and exercised by tests/ops/test_private.py. A
floor that needs more symbols has its own `private.py` of the same form; no
other module uses private symbols (tests/test_architecture.py).
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.eager import (
    backprop,
    context,
    forwardprop_util,
    record,
    tape,
)
from tensorflow.python.framework import (
    auto_control_deps,
    auto_control_deps_utils,
    func_graph,
    ops,
)
from tensorflow.python.ops import (
    cond_v2,
    control_flow_util,
    control_flow_v2_func_graphs,
    custom_gradient,
    handle_data_util,
    resource_variable_ops,
    while_v2,
)
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for
from tensorflow.python.training import device_setter
from tensorflow.python.util import dispatch, object_identity

# The versions of TensorFlow on which the entries of every `private.py` were
# tested.
TRIED_ON = ("2.16.2", "2.20.0", "2.21.0")

# Symbol -> the public API that would make it unnecessary.
ENDED_BY = {
    "Reference": "a public class for what `tf.Variable.ref` returns",
    "acts_as_variable": "a public name of what tapes take for a variable",
    "asked_by_custom_gradient": "a hook of tf.custom_gradient for its sources",
    "asked_by_saver": "TensorFlow 1's Saver asking objects by a name of its own",
    "asked_by_watch": "a hook of tape.watch for what it is given",
    "at_each_call": "a hook of a function that runs wherever it is called",
    "called_layers": "a public way to ask which layer is being called",
    "checkpoint_read_by_names": "a public error of checkpoints without objects",
    "captured": "a public tf.Graph.capture",
    "control_flow_left": "a public way to ask a graph what branch or loop it is",
    "converted": "tf.autograph.to_graph obeying the status of its caller",
    "differentiated_around": "a public way to ask whose gradient is being made",
    "eager_mode": "a public tf.init_scope that is eager in graphs too",
    "free_gradients_with_graph": "custom gradients that go with their graphs",
    "gradients_are_apart": "a public way to ask whose gradient is being made",
    "handle_shape": "shape and dtype as attributes of resource handles",
    "have_tangents": "ForwardAccumulator telling which tensors it follows",
    "in_order": "automatic control dependencies as a public context",
    "in_symbolic_scope": "a public way to ask whether shapes alone are computed",
    "in_session_graph": "the end of tf.compat.v1.Session",
    "is_in_loop": "a public way to ask an op what control flow it is in",
    "is_in_some_branches": "tf.cond making zeros for handles of unknown shape",
    "is_recomputed": "tf.recompute_grad telling that it calls a function",
    "is_vectorized": "a public way to ask whether what is traced is vectorized",
    "leaves_old_branch": "the end of TensorFlow 1's control flow",
    "leave_unconverted": "a mark by which a package keeps AutoGraph out",
    "mark_read_only": "an attribute of registered ops: resource read only",
    "number_tensor": "an eager cache of constants that is bounded",
    "orders_by_itself": "the end of tf.compat.v1.Session",
    "outside_function": "gradients of functions that keep captured handles",
    "parameter_servers": "a public replica_device_setter that tells its servers",
    "register_dispatchable": "dispatch_for_api taking any class",
    "register_read_only": "an attribute of registered ops: resource read only",
    "running_frames": "the ends of the entries that walk frames",
    "set_handle_shape": "shape functions run for eager resource handles",
    "spec_slices_with": "IndexedSlices keeping a dense shape that is no tensor",
    "single_variable": "an argument of tf.Variable: not distributed",
    "table_accessed": "freezing that leaves handles of unknown resources alone",
    "table_read": "an export that finds objects of a model's attributes",
    "tape_records": "a public tf.GradientTape.is_recording of the thread",
    "tape_watches": "a public tape.watches(tensor)",
    "traced_for_xla": "a public way to ask whether XLA compiles what is traced",
    "track": "a public tracking of children under any name",
    "unnamed_variable": "eager kernels of variables that are freed with them",
    "unreachable": "a public way to ask where eager ops run",
    "untracked": "a public mark against tracking",
    "variable_accessed": "a public tape.watch_accessed for all open tapes",
    "waits_for_nothing": "the end of tf.compat.v1.Session",
    "weight_accessed": "freezing and tapes that take an object in place of a variable",
    "outermost_trace": "a public way to ask which function is being traced",
    "when_traced": "a public callback for the end of a trace",
}

Reference: Any = object_identity.Reference  # The class of `tf.Variable.ref()`.


def leave_unconverted(package: str) -> None:
    """Keeps AutoGraph from converting a package's functions, as for Keras.

    It would convert each function of tfembed that a user's `tf.function` calls,
    100 of them in a training step, which takes 10 s. There is nothing to
    convert: no Python branch or loop of tfembed depends on a tensor. (The
    public `tf.autograph.experimental.do_not_convert` would be needed on every
    public function, and would keep users' callbacks from being converted too.)
    """
    autograph_config.CONVERSION_RULES = (
        autograph_config.DoNotConvert(package),
        *autograph_config.CONVERSION_RULES,
    )


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Converts a user's function by AutoGraph if the user's code is converted.

    It is for callbacks that may branch or loop over tensors.
    """
    status = tf.__internal__.autograph.control_status_ctx()
    if status.status.name != "ENABLED":
        return function
    result: Callable[..., Any] = tf.__internal__.autograph.tf_convert(
        function, status
    )
    return result


_STAND_IN = "_tfembed_stand_in"
_READ_TABLES = "_tfembed_read_tables"
_GRADIENTS = "_tfembed_custom_gradients"
_WILL_KEEP_GRADIENTS = "_tfembed_will_keep_gradients"


def set_handle_shape(
    handle: tf.Tensor, shape: tf.TensorShape, dtype: tf.DType = tf.float32
) -> None:
    """Sets the shape and dtype of an eager resource handle's resource.

    Graphs get them from the op's shape function, which eager execution does not
    run; gradients and function captures read them.
    """
    data = handle_data_util.create_handle_data(shape, dtype)
    handle_data_util.set_handle_data(handle, data)


def handle_shape(handle: tf.Tensor) -> tf.TensorShape:
    """Returns the shape of a handle's resource, as far as it is known."""
    data = handle_data_util.get_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return tf.TensorShape(None)
    return tf.TensorShape(data.shape_and_type[0].shape)


def variable_accessed(variable: Any) -> None:
    """Makes the tapes and the function being traced watch `variable`.

    `variable` is a tf.Variable or acts as one: `handle`, `trainable` and
    `_should_act_as_resource_variable`.
    """
    resource_variable_ops.variable_accessed(variable)


def table_accessed(anchor: Any) -> None:
    """Acts as `variable_accessed`, for tables that an op takes by handle.

    The function that is being traced keeps a stand-in, so that freezing it
    (`convert_variables_to_constants_v2`) does not replace the handle by a
    constant, which tfembed's ops cannot take.
    """
    _keep_stand_in(anchor)
    if anchor.trainable:
        tape.variable_accessed(anchor)


def weight_accessed(anchor: Any) -> None:
    """Acts as `variable_accessed`, for a weight that stands before a variable.

    Freezing makes a constant of the variable, `anchor.stand_in()`, whose handle
    is the anchor's.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    if hasattr(graph, "watch_variable"):
        graph.watch_variable(_stand_in(anchor, _WeightStandIn))
    if anchor.trainable:
        tape.variable_accessed(anchor)


def table_read(anchor: Any) -> None:
    """Acts as `table_accessed`, for reads without a gradient.

    The function that is being traced also keeps `anchor` alive, as it does the
    handle: functions have only weak references to variables.
    """
    if tf.executing_eagerly():  # There is no function to note an eager read.
        return
    _keep_stand_in(anchor, is_read=True)
    graph: Any = tf.compat.v1.get_default_graph()
    while hasattr(graph, "watch_variable"):
        read = getattr(graph, _READ_TABLES, {})
        setattr(graph, _READ_TABLES, {**read, id(anchor): anchor})
        graph = graph.outer_graph


def _keep_stand_in(anchor: Any, *, is_read: bool = False) -> None:
    """Adds a stand-in to the function that is being traced, if any."""
    graph: Any = tf.compat.v1.get_default_graph()
    if hasattr(graph, "watch_variable"):
        kind = _ReadStandIn if is_read else _StandIn
        graph.watch_variable(_stand_in(anchor, kind))


class _StandIn(tf.__internal__.tracking.Trackable):
    """Represents an object with a handle among a function's variables.

    Freezing converts each input of a function that is the handle object of one
    of its variables to a constant. A stand-in has another handle object with
    the same tensor id, by which tapes identify tensors.

    Args:
      anchor: the represented object, which keeps the stand-in alive.
    """

    _should_act_as_resource_variable = True

    def __init__(self, anchor: Any) -> None:
        self._anchor = weakref.ref(anchor)

    @property
    def anchor(self) -> Any:
        """The represented object."""
        anchor = self._anchor()
        if anchor is None:
            raise AssertionError(
                "A function was called that uses a table which has been deleted. "
                "Keep a reference to the table."
            )
        return anchor

    @property
    def trainable(self) -> bool:
        """Whether the anchor is trainable.

        Each call of the function reads it, and if it is True tapes watch this
        object. A tape keeps the first object that it gets for a handle. So this
        property makes tapes watch the anchor first, and `watched_variables`
        lists the anchor.
        """
        anchor = self.anchor
        if not anchor.trainable:
            return False
        tape.variable_accessed(anchor)
        return True

    @property
    def handle(self) -> Any:
        """The object that tapes use as the anchor's handle."""
        return _HandleNumber(self.anchor.handle._id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.anchor, name)

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        del save_type, kwargs
        return {"anchor": self.anchor}

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Marks this for a SavedModel as an object, not a variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1


class _ReadStandIn(_StandIn):
    """Represents an object that the function only reads, without a gradient."""

    @property
    def trainable(self) -> bool:
        """False, if the anchor is still there."""
        return self.anchor is None


class _WeightStandIn(_StandIn):
    """Represents a weight that stands before a variable."""

    @property
    def handle(self) -> Any:
        """The variable's handle."""
        return self.anchor.handle

    def numpy(self) -> Any:
        """Returns the variable's numbers, for freezing."""
        return self.anchor.stand_in().numpy()


class _CallCheck(tf.__internal__.tracking.Trackable):
    """A function's pseudo-variable that runs a check at each call.

    TensorFlow reads `trainable` of a function's variables at each call.

    Args:
      check: a function that raises if the call is not allowed.
    """

    _should_act_as_resource_variable = True
    name = "call_check"

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    @property
    def trainable(self) -> bool:
        """False, if the check passes."""
        self._check()
        return False

    @property
    def handle(self) -> Any:
        """A handle that no tape and no function has."""
        return _HandleNumber(-1)


_CALL_CHECKS: dict[Callable[[], None], _CallCheck] = {}


def at_each_call(check: Callable[[], None]) -> None:
    """Runs `check` at each call of the function that is being traced.

    Args:
      check: a function that is never deleted, and raises if the call is not
        allowed.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    graph.watch_variable(_CALL_CHECKS.setdefault(check, _CallCheck(check)))


class _HandleNumber(tf.__internal__.types.Tensor):
    """A tensor that a tape treats as a resource handle, by its id."""

    def __init__(self, number: int) -> None:
        self._id = number

    @property
    def dtype(self) -> tf.DType:
        """The dtype of handles."""
        return tf.resource


def _stand_in(anchor: Any, kind: type[_StandIn]) -> _StandIn:
    """Returns the stand-in of `anchor`, one of each kind."""
    name = f"{_STAND_IN}{kind.__name__}"
    found: _StandIn | None = anchor.__dict__.get(name)
    if found is None:
        found = kind(anchor)
        # Bypasses attribute tracking, which would add it as a child.
        object.__setattr__(anchor, name, found)
    return found


def tape_records() -> bool:
    """Says whether a gradient tape of this thread is open and not paused."""
    return bool(record.could_possibly_record())


def tape_watches(tensor: tf.Tensor) -> bool:
    """Says whether a gradient tape of this thread watches `tensor`."""
    return bool(record.should_record_backprop([tensor]))


def have_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Says whether a ForwardAccumulator of this thread has one of `tensors`."""
    if not tape_records():
        return False
    inside = tensors
    if not tf.executing_eagerly():
        inside = [captured(tensor) for tensor in tensors]
    return bool(forwardprop_util.pack_tangents(inside).tangents)


def running_frames(*names: str) -> list[types.FrameType]:
    """Returns this thread's running calls of functions with such names.

    The innermost comes first. Without names they are those of methods and their
    closures, which know a `self`. It is the package's only walk over all frames:
    it takes some 100 ns a frame, and calls nothing.
    """
    found = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if (
            code.co_name in names
            if names
            else "self" in code.co_varnames or "self" in code.co_freevars
        ):
            found.append(frame)
        frame = frame.f_back
    return found


def _asking() -> types.FrameType:
    """Returns the frame that called the caller of the caller."""
    return sys._getframe(3)


def called_layers() -> Any:
    """Returns Keras' context of running layer calls; None outside of calls.

    Its `entry_layer` is the outermost layer.
    """
    return _global_of_keras("current_call_ctx")


def in_symbolic_scope() -> bool:
    """Says whether Keras only computes shapes, as when it builds a model."""
    return _global_of_keras("symbolic_scope") is not None


def _global_of_keras(name: str) -> Any:
    module = sys.modules.get("keras.src.backend.common.global_state")
    return None if module is None else module.get_global_attribute(name)


def _is_of(module: types.ModuleType, frame: types.FrameType) -> bool:
    return bool(frame.f_globals.get("__name__") == module.__name__)


def asked_by_custom_gradient() -> bool:
    """Says whether tf.custom_gradient itself called the caller."""
    return _is_of(custom_gradient, _asking())


def asked_by_saver() -> bool:
    """Says whether a tf.compat.v1.train.Saver called the caller."""
    return bool(_asking().f_locals.get("tf1_saver", False))


def checkpoint_read_by_names() -> str:
    """Returns the path that tf.train.Checkpoint reads name-based, or "".

    It reads a Saver's checkpoint by names, and one whose object graph cannot be
    read.
    """
    for frame in running_frames("globally_named_object_attributes"):
        return str(getattr(frame.f_locals.get("self"), "save_path", ""))
    return ""


def asked_by_watch() -> bool:
    """Says whether `tape.watch` is at most five calls above."""
    frame: types.FrameType | None = _asking()
    for _ in range(5):
        if frame is None:
            break
        if frame.f_code.co_name == "watch" and _is_of(backprop, frame):
            return True
        frame = frame.f_back
    return False


def is_recomputed() -> bool:
    """Says whether tf.recompute_grad calls this, and will again for a gradient.

    It pauses tapes for the first call, and opens a tape for the second.
    Otherwise no frame is inspected, so that a dequeue outside of tapes pays
    nothing.
    """
    may_record = record.could_possibly_record()
    if not (may_record or pywrap_tfe.TFE_Py_TapeSetIsStopped()):
        return False
    return any(
        _is_of(custom_gradient, frame)
        for frame in running_frames("inner", "inner_recompute_grad")
    )


def is_vectorized() -> bool:
    """Says whether tf.vectorized_map or tape.jacobian vectorizes this trace."""
    if tf.executing_eagerly():
        return False  # TensorFlow traces what it vectorizes.
    return any(
        _is_of(parallel_for, frame)
        for frame in running_frames("_pfor_impl", "for_loop", "vectorized_map")
    )


def track(owner: Any, name: str, child: Any) -> Any:
    """Tracks `child` for `owner`'s saves; restores it if a restore is pending.

    Unlike an attribute's name, `name` may be any string.
    """
    return owner._track_trackable(child, name=name)


def eager_mode() -> Any:
    """Returns a context of eager mode, even inside a graph of TensorFlow 1."""
    return tf.__internal__.eager_context.eager_mode()


def unreachable(device: str) -> str | None:
    """Returns where `device` lies, if no eager op of this process can run there.

    A MultiWorkerMirroredStrategy knows its other workers' devices, but connects
    to them for collectives alone: any other op there ends the process.

    Args:
      device: the name of a device, in the present `tf.device`.
    """
    eager: Any = context.context()
    scope = tf.DeviceSpec.from_string(eager.device_name)
    there = scope.make_merged_spec(tf.DeviceSpec.from_string(device))
    if there.job is there.task is None or eager.get_server_def() is not None:
        return None
    with tf.device(None):
        here = tf.DeviceSpec.from_string(tf.constant(0).device)
    if there.job in (None, here.job) and there.task in (None, here.task):
        return None
    return str(there.to_string())


def untracked(owner: Any, child: Any) -> Any:
    """Marks `child` as not saved, before `owner` has it as an attribute."""
    return owner._no_dependency(child)


def captured(handle: tf.Tensor) -> tf.Tensor:
    """Captures `handle` in the function, branch or loop that is traced."""
    graph: Any = tf.compat.v1.get_default_graph()
    is_function = not tf.executing_eagerly() and hasattr(graph, "capture")
    return graph.capture(handle) if is_function else handle


def outside_function(handle: tf.Tensor) -> tf.Tensor:
    """Returns the eager tensor of `handle`, for gradients of called functions.

    For a function inside of a persistent tape, TensorFlow adds all of its
    tensors that its gradient uses to the outputs, whose gradients cannot be
    slices. A gradient inside of another function uses that function's tensors.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or hasattr(
        getattr(graph, "outer_graph", None), "captures"
    ):
        return handle
    own = getattr(handle, "graph", None)  # Eager tensors have no graph.
    for outer, inner in getattr(own, "captures", ()):
        if inner is handle and not hasattr(outer, "op"):
            return outer
    return handle


def spec_slices_with(shape_class: type, spec_class: type) -> None:
    """Gives slices with such a dense shape a spec of their own.

    TensorFlow makes new tf.IndexedSlices where it adds or clips gradients, and
    takes only their dense shape along.

    Args:
      shape_class: the class of the dense shapes.
      spec_class: a class of `tf.IndexedSlicesSpec` without a tensor for them.
    """
    plain = tf.IndexedSlices._type_spec.fget

    def type_spec(slices: Any) -> Any:
        if not isinstance(slices.dense_shape, shape_class):
            return plain(slices)
        values, indices = slices.values, slices.indices
        return spec_class(
            tf.TensorShape([None]).concatenate(values.shape[1:]),
            values.dtype,
            indices.dtype,
            None,
            indices.shape.merge_with(values.shape[:1]),
        )

    tf.IndexedSlices._type_spec = property(type_spec)


def register_dispatchable(cls: type) -> type:
    """Registers `cls` for tf.experimental.dispatch_for_api; returns it."""
    return dispatch.register_dispatchable_type(cls)


def acts_as_variable(value: Any) -> bool:
    """Says whether tapes watch `value` by its `handle`."""
    return resource_variable_ops.is_resource_variable(value)


def register_read_only(op_type: str) -> None:
    """Lets a tf.function run ops of this type on one table concurrently."""
    auto_control_deps_utils.register_read_only_resource_op(op_type)


def mark_read_only(op: tf.Operation, inputs: Sequence[int]) -> None:
    """Marks some inputs of one graph op as `register_read_only` does."""
    name = auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR
    ops.set_int_list_attr(op, name, list(inputs))


def traced_for_xla() -> bool:
    """Says whether the function that is being traced is compiled by XLA."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def orders_by_itself() -> bool:
    """Says whether all ops run, in the order in which they are made.

    It is so in eager mode and in a tf.function. In a graph of TensorFlow 1 only
    the ops that a fetch needs run, also in its branches and loops, though
    TensorFlow builds these as functions.
    """
    if tf.executing_eagerly():
        return True
    graph = tf.compat.v1.get_default_graph()
    return bool(graph._add_control_dependencies)


def parameter_servers() -> list[str]:
    """Returns the devices of the default graph's parameter servers.

    They are those of the innermost `tf.compat.v1.train.replica_device_setter`;
    the list is empty without such a setter, and in eager mode.
    """
    with tf.init_scope():
        if tf.executing_eagerly():
            return []
        graph: Any = tf.compat.v1.get_default_graph()
    for function in reversed(graph._device_functions_outer_to_inner):
        chooser = getattr(function, "__self__", None)
        if isinstance(chooser, device_setter._ReplicaDeviceChooser):
            tasks = range(chooser._ps_tasks if chooser._ps_device else 0)
            job = str(chooser._ps_device)
            return [f"{job}/task:{task}/device:CPU:0" for task in tasks]
    return []


def in_session_graph() -> bool:
    """Says whether ops are made in a graph of TensorFlow 1, which sessions run.

    It is False in functions, and in the branches and loops of such a graph.
    """
    if tf.executing_eagerly():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    is_function = isinstance(graph, func_graph.FuncGraph)
    return not is_function and graph._get_control_flow_context() is None


def waits_for_nothing() -> bool:
    """Says whether a graph of TensorFlow 1 has no current control dependencies.

    Then an op that was made before can be reused.
    """
    if not in_session_graph() or orders_by_itself():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    return not graph._current_control_dependencies()


def in_order(make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Orders the ops of `make` in a graph of TensorFlow 1 as in a function.

    All of them run before the result is available, and ops on one resource run
    in the order of creation. Each op is placed individually; the ops of a
    called function are not, if resources are on several machines.

    Args:
      make: a function that makes ops in the current graph, and returns a
        tensor.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    ordered = auto_control_deps.AutomaticControlDependencies()
    try:
        with ordered:
            return ordered.mark_as_return(make())
    finally:
        graph._add_control_dependencies = False


def when_traced(callback: Callable[[], None]) -> bool:
    """Calls `callback` after the trace of the outermost function.

    Returns:
      Whether a function is being traced.
    """
    graph = outermost_trace()
    if graph is None:
        return False
    graph._add_scope_exit_callback(callback)
    return True


def outermost_trace() -> Any:
    """Returns the graph of the outermost function being traced, or None."""
    graph = _outermost_graph()
    return graph if isinstance(graph, func_graph.FuncGraph) else None


def _outermost_graph() -> Any:
    """Returns the graph of the outermost function, or of TensorFlow 1."""
    if tf.executing_eagerly():
        return None
    graph: Any = tf.compat.v1.get_default_graph()
    while isinstance(graph, func_graph.FuncGraph) and isinstance(
        graph.outer_graph, func_graph.FuncGraph
    ):
        graph = graph.outer_graph
    return graph


def free_gradients_with_graph() -> None:
    """Has the custom gradients of the graph that is being built go with it.

    TensorFlow registers a function for each call of `tf.custom_gradient` in a
    graph, and never forgets it. The function has tensors of the graph, so that
    all that the graph captured stays too: tables, weights, slots. Keras' steps
    sum gradients over replicas by such a function. After this call the graph
    alone keeps these functions, and the registry has weak references. In a
    `tf.function` that is done at the end of the trace, for inner functions and
    for all that was traced before this call too.
    """
    graph = _outermost_graph()
    if graph is None:  # Eager tapes keep gradients of their own.
        return
    if not isinstance(graph, func_graph.FuncGraph):
        _keep_gradients(graph)
    elif not getattr(graph, _WILL_KEEP_GRADIENTS, False):
        setattr(graph, _WILL_KEEP_GRADIENTS, True)
        graph._add_scope_exit_callback(lambda: _keep_gradients(graph))


def _keep_gradients(outermost: Any) -> None:
    """Moves the custom gradients in `outermost` from the registry to graphs."""
    setattr(outermost, _WILL_KEEP_GRADIENTS, False)
    for name, entry in list(ops.gradient_registry._registry.items()):
        graph = enclosing = _graph_of_gradient(entry["type"])
        while enclosing is not outermost and enclosing is not None:
            enclosing = getattr(enclosing, "outer_graph", None)
        if enclosing is not None:
            kept = getattr(graph, _GRADIENTS, ())
            setattr(graph, _GRADIENTS, (*kept, entry["type"]))
            entry["type"] = _weak_gradient(name, entry["type"])


def _graph_of_gradient(gradient: Any) -> Any:
    """Returns the graph that a function of tf.custom_gradient is for, or None.

    Args:
      gradient: any registered gradient.
    """
    found = gradient
    for name in ("tape_grad_fn", "result"):
        code = getattr(found, "__code__", None)
        if code is None or name not in code.co_freevars:
            return None
        found = found.__closure__[code.co_freevars.index(name)].cell_contents
    tensors = tf.nest.flatten(found, expand_composites=True)
    return next((x.graph for x in tensors if hasattr(x, "graph")), None)


def _weak_gradient(name: str, gradient: Any) -> Any:
    """Makes a gradient that leaves the registry when `gradient` is deleted."""
    registry = ops.gradient_registry._registry
    reference = weakref.ref(gradient, lambda _: registry.pop(name, None))

    def call(op: Any, *upstream: Any) -> Any:
        kept: Any = reference()  # There, as long as `op` is.
        return kept(op, *upstream)

    return call


def is_in_loop(op: tf.Operation) -> bool:
    """Says whether a loop (tf.while_loop, tf.map_fn, ...) repeats `op`.

    It is False for an op of a tf.function that a loop calls, since other code
    may call that function too.
    """
    # If control flow v2 is disabled, loops are not functions.
    if control_flow_util.IsInWhileLoop(op):
        return True
    graph: Any = op.graph
    while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
        graph = graph.outer_graph
    return isinstance(graph, control_flow_v2_func_graphs.WhileBodyFuncGraph)


def control_flow_left(graph: Any) -> str:
    """Returns the control flow that a gradient of ops of `graph` leaves.

    It includes gradients of a function that a branch or loop calls, if
    TensorFlow makes them together with those of the branch or loop.

    Args:
      graph: the graph of the ops; the default graph when they were made.

    Returns:
      "branch", "loop" or "".
    """
    left = ""
    if isinstance(graph, control_flow_v2_func_graphs.WhileBodyFuncGraph):
        left = "loop"
    elif isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
        left = "branch"
    here: Any = tf.compat.v1.get_default_graph()
    if gradients_are_apart(graph):
        return left or differentiated_around()
    while here is not None:
        if here is graph:
            return ""
        if isinstance(here, while_v2._WhileBodyGradFuncGraph):
            left = "loop"
        elif isinstance(here, cond_v2._CondGradFuncGraph):
            left = left or "branch"
        here = getattr(here, "outer_graph", None)
    return left


def gradients_are_apart(graph: Any) -> bool:
    """Says whether the gradient of function `graph` is a separate function.

    TensorFlow makes such a gradient once, and calls it wherever the function
    was called: in branches and loops too.
    """
    here: Any = tf.compat.v1.get_default_graph()
    return (
        isinstance(graph, func_graph.FuncGraph)
        and here is not graph
        and getattr(here, "outer_graph", None) is graph
        and not isinstance(here, while_v2._WhileBodyGradFuncGraph)
        and not isinstance(here, cond_v2._CondGradFuncGraph)
    )


def is_in_some_branches() -> bool:
    """Says whether the differentiated op is in some branches, but not in all.

    It is for `TrainableRowsOf` in a tf.cond or tf.switch_case inside of a tape;
    a branch may have the op in a function that it calls.
    """
    return any(
        _is_of(cond_v2, frame)
        and not all(
            any(_may_look_up(op) for op in branch.get_operations())
            for branch in cond_v2.get_func_graphs(
                frame.f_locals["op"].outputs[0].op
            )
        )
        for frame in running_frames("_IfGrad", "_CaseGrad")
    )


def _may_look_up(op: tf.Operation) -> bool:
    is_call = any(
        isinstance(value.func.name, str) and value.func.name
        for value in op.node_def.attr.values()
    )
    return is_call or op.type == "Tfembed>TrainableRowsOf"


def differentiated_around() -> str:
    """Returns what TensorFlow is differentiating: "loop", "branch", or ""."""
    left = ""
    for frame in running_frames("_create_grad_func"):
        if _is_of(while_v2, frame):
            return "loop"
        if _is_of(cond_v2, frame):
            left = "branch"
    return left


def leaves_old_branch(op: tf.Operation) -> bool:
    """Says whether a gradient leaves a branch of control flow v1."""
    own: Any = op
    branch = control_flow_util.GetContainingCondContext(
        own._get_control_flow_context()
    )
    context = own.graph._get_control_flow_context()
    while context is not None and context is not branch:
        context = context.outer_context
    return branch is not None and context is None


def unnamed_variable(name: str, **arguments: Any) -> tf.Variable:
    """Makes an eager variable called `name` without a cached kernel.

    TensorFlow caches a kernel of 36 KB for each name of a new variable and
    never frees it. So the variable is made without a name, which is set after.

    Args:
      name: the variable's name.
      **arguments: the other arguments of tf.Variable.
    """
    if tf.distribute.has_strategy():  # It may make one for each replica.
        return tf.Variable(name=name, **arguments)
    with tf.name_scope(""):  # Else the scope becomes a part of the name.
        variable: Any = tf.Variable(**arguments)
    variable._handle_name = variable.handle._name = f"{name}:0"
    return variable


def number_tensor(value: Any) -> tf.Tensor:
    """Converts a Python number that changes often to a tensor.

    `tf.convert_to_tensor` caches a tensor of 1 KB for each distinct Python
    number and never frees it: a decaying learning rate has a new value in each
    step.
    """
    if isinstance(value, float):
        value = np.array(value, np.float32)
    elif type(value) is int and abs(value) < 2**31:
        value = np.array(value, np.int32)
    return tf.convert_to_tensor(value)


def single_variable(**arguments: Any) -> Any:
    """Makes a variable with one copy, regardless of the strategy in scope.

    The strategy would mirror a tf.Variable.

    Args:
      **arguments: the arguments of tf.Variable.
    """
    return resource_variable_ops.ResourceVariable(**arguments)
