"""The private TensorFlow symbols of the op wrappers and the floors above them.

Each is wrapped in a function here and tried by tests/ops/test_private.py. Every
floor that needs more has a `private.py` of its own, of the same form; no other
module uses private symbols (tests/test_architecture.py).
"""

from __future__ import annotations

import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.eager import backprop, forwardprop_util, record, tape
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

# The versions of TensorFlow that the entries of every `private.py` were tried on.
TRIED_ON = ("2.16.2", "2.20.0", "2.21.0")

# By entry, the public means that would end it.
ENDED_BY = {
    "Reference": "a public class for what `tf.Variable.ref` returns",
    "acts_as_variable": "a public name of what tapes take for a variable",
    "asked_by_custom_gradient": "a hook of tf.custom_gradient for its sources",
    "asked_by_saver": "TensorFlow 1's Saver asking objects by a name of its own",
    "asked_by_watch": "a hook of tape.watch for what it is given",
    "at_each_call": "a hook of a function that runs wherever it is called",
    "checkpoint_read_by_names": "a public error of checkpoints without objects",
    "captured": "a public tf.Graph.capture",
    "control_flow_left": "a public way to ask a graph what branch or loop it is",
    "converted": "tf.autograph.to_graph obeying the status of its caller",
    "differentiated_around": "a public way to ask whose gradient is being made",
    "eager_mode": "a public tf.init_scope that is eager in graphs too",
    "gradients_are_apart": "a public way to ask whose gradient is being made",
    "handle_shape": "shape and dtype as attributes of resource handles",
    "have_tangents": "ForwardAccumulator telling which tensors it follows",
    "in_order": "automatic control dependencies as a public context",
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
    "single_variable": "an argument of tf.Variable: not distributed",
    "table_accessed": "freezing that leaves handles of unknown resources alone",
    "table_read": "an export that finds objects of a model's attributes",
    "tape_records": "a public tf.GradientTape.is_recording of the thread",
    "tape_watches": "a public tape.watches(tensor)",
    "traced_for_xla": "a public way to ask whether XLA compiles what is traced",
    "track": "a public tracking of children under any name",
    "unnamed_variable": "eager kernels of variables that are freed with them",
    "untracked": "a public mark against tracking",
    "variable_accessed": "a public tape.watch_accessed for all open tapes",
    "waits_for_nothing": "the end of tf.compat.v1.Session",
    "when_traced": "a public callback for the end of a trace",
}

Reference: Any = object_identity.Reference  # What `tf.Variable.ref` gives.


def leave_unconverted(package: str) -> None:
    """Keeps AutoGraph from rewriting a package's functions, as it leaves Keras'.

    It would rewrite each function of ours that a user's `tf.function` calls, 100
    of them in a training step, which takes 10 s. There is nothing to rewrite: no
    Python branch or loop of ours depends on a tensor. (The public
    `tf.autograph.experimental.do_not_convert` would have to stand on every public
    function, and keeps the users' functions that ours call from being converted.)
    """
    autograph_config.CONVERSION_RULES = (
        autograph_config.DoNotConvert(package),
        *autograph_config.CONVERSION_RULES,
    )


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function, as AutoGraph converts it where it converts the caller's.

    For functions that may branch or loop over tensors and are called by ours.
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


def set_handle_shape(
    handle: tf.Tensor,
    shape: tf.TensorShape,
    dtype: tf.DType = tf.float32,
) -> None:
    """Tells an eager resource handle the shape and dtype of what it stands for.

    Graphs take it from the op's shape function; eager execution runs none, and
    gradients and function captures ask for it.
    """
    data = handle_data_util.create_handle_data(shape, dtype)
    handle_data_util.set_handle_data(handle, data)


def handle_shape(handle: tf.Tensor) -> tf.TensorShape:
    """The shape of what a resource handle stands for, as far as it is known."""
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
    """As `variable_accessed`, for tables that an op takes by handle.

    The function that is being traced keeps a stand-in, so that freezing it
    (`convert_variables_to_constants_v2`) leaves the handle what it is: no op of
    ours takes a constant in its place.
    """
    _keep_stand_in(anchor)
    if anchor.trainable:
        tape.variable_accessed(anchor)


def table_read(anchor: Any) -> None:
    """As `table_accessed`, where no gradient goes to what is read.

    The function that is being traced keeps `anchor` alive, too, as it does the
    handle: functions have weak references to variables alone.
    """
    if tf.executing_eagerly():  # An eager read has no function to tell.
        return
    _keep_stand_in(anchor, is_read=True)
    graph: Any = tf.compat.v1.get_default_graph()
    while hasattr(graph, "watch_variable"):
        read = getattr(graph, _READ_TABLES, {})
        setattr(graph, _READ_TABLES, {**read, id(anchor): anchor})
        graph = graph.outer_graph


def _keep_stand_in(anchor: Any, *, is_read: bool = False) -> None:
    """Lets the function that is being traced, if one is, keep a stand-in."""
    graph: Any = tf.compat.v1.get_default_graph()
    if hasattr(graph, "watch_variable"):
        graph.watch_variable(_stand_in(anchor, is_read=is_read))


class _StandIn(tf.__internal__.tracking.Trackable):
    """Stands among a function's variables for something with a handle.

    TensorFlow makes a constant of each input of a function that is the very
    handle of one of its variables. This has a handle of the same number alone,
    by which tapes know tensors.

    Args:
      anchor: what it stands for, which keeps it alive.
      is_read: whether the function only reads it, and no gradient goes there.
    """

    _should_act_as_resource_variable = True

    def __init__(self, anchor: Any, *, is_read: bool) -> None:
        self._anchor = weakref.ref(anchor)
        self._is_read = is_read

    @property
    def anchor(self) -> Any:
        """The object that it stands for."""
        anchor = self._anchor()
        if anchor is None:
            raise AssertionError(
                "A function was called that uses a table which has been deleted. "
                "Keep a reference to the table."
            )
        return anchor

    @property
    def trainable(self) -> bool:
        """Whether that is, unless it is only read.

        A call of the function asks for it, and then tells tapes of this object
        if it is. They keep what they are told of first for a handle, and are told
        of the anchor here, so that `watched_variables` lists that.
        """
        anchor = self.anchor
        if self._is_read or not anchor.trainable:
            return False
        tape.variable_accessed(anchor)
        return True

    @property
    def handle(self) -> Any:
        """The object that tapes take for the anchor's handle."""
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
        """Tells a SavedModel that this is an object, no variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1


class _CallCheck(tf.__internal__.tracking.Trackable):
    """A variable of a function that has a check run at each of its calls.

    Whoever calls a function asks its variables whether they are trainable.

    Args:
      check: raises where the function must not be called.
    """

    _should_act_as_resource_variable = True
    name = "call_check"

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    @property
    def trainable(self) -> bool:
        """False, where the check passes."""
        self._check()
        return False

    @property
    def handle(self) -> Any:
        """A number that no tape and no function knows."""
        return _HandleNumber(-1)


_CALL_CHECKS: dict[Callable[[], None], _CallCheck] = {}


def at_each_call(check: Callable[[], None]) -> None:
    """Has `check` run wherever the function that is being made is called.

    Args:
      check: a function that lives as long as the program, and raises where the
        other must not be called.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    graph.watch_variable(_CALL_CHECKS.setdefault(check, _CallCheck(check)))


class _HandleNumber(tf.__internal__.types.Tensor):
    """To a tape a resource handle, by its number."""

    def __init__(self, number: int) -> None:
        self._id = number

    @property
    def dtype(self) -> tf.DType:
        """The dtype of handles."""
        return tf.resource


def _stand_in(anchor: Any, *, is_read: bool) -> _StandIn:
    """The only one of `anchor`, for functions that only read it or the others."""
    name = f"{_STAND_IN}_read" if is_read else _STAND_IN
    found: _StandIn | None = anchor.__dict__.get(name)
    if found is None:
        found = _StandIn(anchor, is_read=is_read)
        # Past the tracking of attributes, for which it would be a child.
        object.__setattr__(anchor, name, found)
    return found


def tape_records() -> bool:
    """Whether a gradient tape of this thread is open and not paused."""
    return bool(record.could_possibly_record())


def tape_watches(tensor: tf.Tensor) -> bool:
    """Whether a gradient tape of this thread follows `tensor`."""
    return bool(record.should_record_backprop([tensor]))


def have_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a ForwardAccumulator of this thread follows one of `tensors`."""
    if not tape_records():
        return False
    inside = [captured(tensor) for tensor in tensors]
    return bool(forwardprop_util.pack_tangents(inside).tangents)


def running_frames() -> Iterator[types.FrameType]:
    """The calls that run in this thread: the caller first, the outermost last."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of(module: types.ModuleType, frame: types.FrameType) -> bool:
    return bool(frame.f_globals.get("__name__") == module.__name__)


def asked_by_custom_gradient() -> bool:
    """Whether tf.custom_gradient itself called the caller."""
    (asking,) = itertools.islice(running_frames(), 2, 3)
    return _is_of(custom_gradient, asking)


def asked_by_saver() -> bool:
    """Whether tf.compat.v1.train.Saver asks the caller for what it saves."""
    return bool(sys._getframe(2).f_locals.get("tf1_saver", False))


def checkpoint_read_by_names() -> str:
    """The path that tf.train.Checkpoint reads as a Saver's checkpoint, or "".

    It does so too if a checkpoint's object graph cannot be read.
    """
    for frame in running_frames():
        if frame.f_code.co_name == "globally_named_object_attributes":
            return str(getattr(frame.f_locals.get("self"), "save_path", ""))
    return ""


def asked_by_watch() -> bool:
    """Whether `tape.watch` takes apart what it is given, up to five calls above."""
    return any(
        frame.f_code.co_name == "watch" and _is_of(backprop, frame)
        for frame in itertools.islice(running_frames(), 2, 7)
    )


def is_recomputed() -> bool:
    """Whether tf.recompute_grad calls this, and will again for a gradient.

    It stops the recording of tapes for the first call, and opens a tape for the
    second. Where neither is the case no frame is looked at, so that a dequeue
    outside of tapes pays nothing for the question.
    """
    may_record = record.could_possibly_record()
    if not (may_record or pywrap_tfe.TFE_Py_TapeSetIsStopped()):
        return False
    for frame in running_frames():
        is_inner = frame.f_code.co_name in ("inner", "inner_recompute_grad")
        if is_inner and _is_of(custom_gradient, frame):
            return True
    return False


def is_vectorized() -> bool:
    """Whether what is traced runs many times: tf.vectorized_map, tape.jacobian."""
    if tf.executing_eagerly():
        return False  # TensorFlow traces what it vectorizes.
    return any(_is_of(parallel_for, frame) for frame in running_frames())


def track(owner: Any, name: str, child: Any) -> Any:
    """Makes `child` part of what `owner` saves; restores it if that waits.

    Unlike an attribute's, the name may have any form.
    """
    return owner._track_trackable(child, name=name)


def eager_mode() -> Any:
    """Executes eagerly, also where a graph of TensorFlow 1 is being built."""
    return tf.__internal__.eager_context.eager_mode()


def untracked(owner: Any, child: Any) -> Any:
    """Marks `child`, before it becomes an attribute of `owner`, as not saved."""
    return owner._no_dependency(child)


def captured(handle: tf.Tensor) -> tf.Tensor:
    """`handle` as an input of the function, branch or loop that is traced."""
    graph: Any = tf.compat.v1.get_default_graph()
    is_function = not tf.executing_eagerly() and hasattr(graph, "capture")
    return graph.capture(handle) if is_function else handle


def outside_function(handle: tf.Tensor) -> tf.Tensor:
    """The eager tensor of `handle`, for gradients of called functions.

    TensorFlow gives a function that a persistent tape is around all of its own
    tensors that its gradient uses as outputs, with gradients that are no slices.
    A gradient inside of another function keeps to tensors of that one.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or hasattr(
        getattr(graph, "outer_graph", None), "captures"
    ):
        return handle
    own = getattr(handle, "graph", None)  # A tensor of eager mode has none.
    for outer, inner in getattr(own, "captures", ()):
        if inner is handle and not hasattr(outer, "op"):
            return outer
    return handle


def register_dispatchable(cls: type) -> type:
    """Lets tf.experimental.dispatch_for_api tell objects of `cls`; returns it."""
    return dispatch.register_dispatchable_type(cls)


def acts_as_variable(value: Any) -> bool:
    """Whether tapes take `value` for its `handle`."""
    return resource_variable_ops.is_resource_variable(value)


def register_read_only(op_type: str) -> None:
    """Lets a tf.function run ops of this type on one table side by side."""
    auto_control_deps_utils.register_read_only_resource_op(op_type)


def mark_read_only(op: tf.Operation, inputs: Sequence[int]) -> None:
    """As `register_read_only`, for some inputs of one op of a graph."""
    name = auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR
    ops.set_int_list_attr(op, name, list(inputs))


def traced_for_xla() -> bool:
    """Whether a function is being traced that XLA compiles, or one inside it."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def orders_by_itself() -> bool:
    """Whether ops run in the order in which they are made, all of them.

    In eager mode and in a tf.function they do. In a graph of TensorFlow 1 only
    what a fetch needs is run; so it is in the branches and loops of one, though
    TensorFlow builds these as functions.
    """
    if tf.executing_eagerly():
        return True
    graph = tf.compat.v1.get_default_graph()
    return bool(graph._add_control_dependencies)


def parameter_servers() -> list[str]:
    """The servers on which the default graph's variables are put, as devices.

    They are those of the innermost `tf.compat.v1.train.replica_device_setter`;
    none without such a setter, or in eager mode.
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
    """Whether ops are made in a graph of TensorFlow 1, which sessions run.

    Not in a function, nor in the branches and loops of such a graph.
    """
    if tf.executing_eagerly():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    is_function = isinstance(graph, func_graph.FuncGraph)
    return not is_function and graph._get_control_flow_context() is None


def waits_for_nothing() -> bool:
    """Whether an op that is made in a graph of TensorFlow 1 waits for no other.

    So that one that was made before does as well.
    """
    if not in_session_graph() or orders_by_itself():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    return not graph._current_control_dependencies()


def in_order(make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Has a graph of TensorFlow 1 run what `make` makes as a function would.

    All of it runs, what touches one resource in the order in which it was made,
    before the result is there. Each op is placed by itself, as ops of a function
    that is called are not where resources lie on several machines.

    Args:
      make: makes ops in the current graph, and gives a tensor.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    ordered = auto_control_deps.AutomaticControlDependencies()
    try:
        with ordered:
            return ordered.mark_as_return(make())
    finally:
        graph._add_control_dependencies = False


def when_traced(callback: Callable[[], None]) -> bool:
    """Has `callback` called once the outermost function that is traced is made.

    Returns:
      Whether one is.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    outermost = None
    while not tf.executing_eagerly() and isinstance(
        graph, func_graph.FuncGraph
    ):
        outermost, graph = graph, graph.outer_graph
    if outermost is None:
        return False
    outermost._add_scope_exit_callback(callback)
    return True


def is_in_loop(op: tf.Operation) -> bool:
    """Whether a loop repeats `op`: tf.while_loop, tf.map_fn and such.

    Not said of an op of a tf.function that a loop calls: others may call it too.
    """
    # Where control flow of TensorFlow 2 is disabled, loops are no functions.
    if control_flow_util.IsInWhileLoop(op):
        return True
    graph: Any = op.graph
    while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
        graph = graph.outer_graph
    return isinstance(graph, control_flow_v2_func_graphs.WhileBodyFuncGraph)


def control_flow_left(graph: Any) -> str:
    """Which control flow a gradient of ops of `graph` leaves, if any.

    So do those of a function that a branch or loop calls, where TensorFlow makes
    them with the branch's or loop's own.

    Args:
      graph: where the ops are; the default graph when they were made.

    Returns:
      "branch", "loop" or "": neither.
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
    """Whether a gradient that is being made is that of a call of function `graph`.

    TensorFlow makes such a gradient once, as a function beside that one, and calls
    it wherever the function was called: in branches and loops too.
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
    """Whether what is differentiated now is in one branch and not in the others.

    Said of `TrainableRowsOf` in a tf.cond or tf.switch_case around which the tape
    is. A branch that calls functions may have it in one of these.
    """
    return any(
        frame.f_globals.get("__name__") == cond_v2.__name__
        and frame.f_code.co_name in ("_IfGrad", "_CaseGrad")
        and not all(
            any(_may_look_up(op) for op in branch.get_operations())
            for branch in cond_v2.get_func_graphs(
                frame.f_locals["op"].outputs[0].op
            )
        )
        for frame in running_frames()
    )


def _may_look_up(op: tf.Operation) -> bool:
    is_call = any(
        isinstance(value.func.name, str) and value.func.name
        for value in op.node_def.attr.values()
    )
    return is_call or op.type == "Tfembed>TrainableRowsOf"


def differentiated_around() -> str:
    """Says what TensorFlow differentiates now: a "loop", a "branch", or ""."""
    left = ""
    for frame in running_frames():
        if frame.f_code.co_name == "_create_grad_func":
            module = frame.f_globals.get("__name__")
            if module == while_v2.__name__:
                return "loop"
            if module == cond_v2.__name__:
                left = "branch"
    return left


def leaves_old_branch(op: tf.Operation) -> bool:
    """Whether a gradient leaves a branch of TensorFlow 1's control flow."""
    own: Any = op
    branch = control_flow_util.GetContainingCondContext(
        own._get_control_flow_context()
    )
    context = own.graph._get_control_flow_context()
    while context is not None and context is not branch:
        context = context.outer_context
    return branch is not None and context is None


def unnamed_variable(name: str, **arguments: Any) -> tf.Variable:
    """An eager variable called `name`, by which TensorFlow keeps nothing.

    It keeps a kernel of 36 KB for each name that a variable was made by, for
    ever. So this one is made without, and called `name` after.

    Args:
      name: the variable's.
      **arguments: the others of tf.Variable.
    """
    if tf.distribute.has_strategy():  # Which may make one for each replica.
        return tf.Variable(name=name, **arguments)
    with tf.name_scope(""):  # Which is part of a name.
        variable: Any = tf.Variable(**arguments)
    variable._handle_name = variable.handle._name = f"{name}:0"
    return variable


def number_tensor(value: Any) -> tf.Tensor:
    """`tf.convert_to_tensor(value)`, of a number that is another one each time.

    Eager TensorFlow keeps a tensor of 1 KB for each number of Python's that it
    made one of, for ever: a learning rate that declines is as many as steps.
    """
    if isinstance(value, float):
        value = np.array(value, np.float32)
    elif type(value) is int and abs(value) < 2**31:
        value = np.array(value, np.int32)
    return tf.convert_to_tensor(value)


def single_variable(**arguments: Any) -> Any:
    """A variable of which there is one copy, whatever strategy is in scope.

    tf.Variable is made by the strategy, which mirrors it.

    Args:
      **arguments: those of tf.Variable.
    """
    return resource_variable_ops.ResourceVariable(**arguments)
