"""The private TensorFlow symbols of `TPUEmbedding` and its engines.

tests/embedding/test_private.py exercises them, on the versions that
`tfembed/ops/private.py` lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.saved_model.registration import registration

from tfembed.ops.private import running_frames, single_variable, track

__all__ = [
    "Folder",
    "SINGLE_VARIABLE_ARGUMENTS",
    "Untracked",
    "VARIABLE_VALUE",
    "add_variable",
    "cores_per_replica",
    "describe_table",
    "functions_since_run",
    "is_made_inside_run",
    "load_variables",
    "new_config_proto",
    "note_callback_of",
    "num_hosts",
    "parsed_layouts",
    "retrieve_variables",
    "saved_captures",
    "single_variable",
    "tpu_devices",
    "track",
    "tracked",
    "unchecked_call",
    "variables_of",
    "without_mark",
]

# Symbol -> the public API that would make it unnecessary.
ENDED_BY = {
    "Folder": "a public trackable object without attributes",
    "SINGLE_VARIABLE_ARGUMENTS": "an argument of tf.Variable: not distributed",
    "VARIABLE_VALUE": "a public name of a variable's value in checkpoints",
    "add_variable": "a public restore of what waits for a new variable",
    "cores_per_replica": "a public property of TPUStrategy",
    "describe_table": "a public TableDescriptor of a TableConfig",
    "functions_since_run": "a public way to ask whether strategy.run calls this",
    "is_made_inside_run": "a public way to ask whether strategy.run calls this",
    "load_variables": "TPUEmbedding.load with no checkpoint",
    "new_config_proto": "a public TPUEmbeddingConfiguration",
    "note_callback_of": "checkpoint callbacks for objects of any class",
    "num_hosts": "a public property of TPUStrategy",
    "parsed_layouts": "public SparseCoreTableLayouts",
    "retrieve_variables": "TPUEmbedding.retrieve into its variables",
    "saved_captures": "tf.saved_model.save telling objects what uses them",
    "tpu_devices": "a public property of TPUStrategy",
    "tracked": "a public look at a child that was tracked by name",
    "unchecked_call": "concrete functions that are called without checks",
    "variables_of": "a public property of TensorFlow's TPUEmbedding",
    "without_mark": "a public mark against tracking",
}

# The name of a variable's value in checkpoints.
VARIABLE_VALUE = "VARIABLE_VALUE"

# The arguments of tf.Variable's creators that `single_variable` takes.
SINGLE_VARIABLE_ARGUMENTS = (
    "initial_value",
    "trainable",
    "validate_shape",
    "caching_device",
    "name",
    "dtype",
    "import_scope",
    "constraint",
    "synchronization",
    "aggregation",
    "shape",
)

# The name of a TPUEmbedding's callback in checkpoints.
_CALLBACK = "tf.TPUEmbeddingCallback"

# A trackable object without state.
Folder = tf.__internal__.tracking.AutoTrackable


def tracked(owner: Any, name: str) -> Any:
    """Returns the child that `owner` tracks under `name`, or None."""
    owner._maybe_initialize_trackable()
    return owner._lookup_dependency(name)


def without_mark(value: Any) -> Any:
    """Unwraps an object marked by `tf.Module._no_dependency`."""
    mark = type(Folder()._no_dependency(None))
    return value.value if isinstance(value, mark) else value


def add_variable(owner: Any, **arguments: Any) -> Any:
    """Makes and tracks a variable, restored if a checkpoint is pending.

    Args:
      owner: a trackable object.
      **arguments: name, shape, dtype, initializer, getter, and more for getter.
    """
    return owner._add_variable_with_custom_getter(**arguments)


def unchecked_call(function: Any) -> Callable[..., Any]:
    """Returns a fast call of a concrete function, without argument checks.

    It is for eager mode only, and tapes do not record it. If the function has a
    single op of tfembed, the op runs directly, which is faster.
    """
    captured = tuple(function.captured_inputs)
    run = _only_op(function) or function.inference_fn.call_preflattened
    # Keeps the function alive, which owns `run`.
    return lambda *tensors, _owner=function: run((*tensors, *captured))


def _only_op(function: Any) -> Callable[[Sequence[tf.Tensor]], Any] | None:
    """Returns a call of the single op of a function; None if it has others."""
    made = function.graph.get_operations()
    ops = [one for one in made if one.type not in _HAND_ON]
    if len(ops) != 1 or not ops[0].type.startswith("Tfembed>"):
        return None
    (op,) = ops
    inputs = _positions(op.inputs, function.inputs)
    outputs = _positions(function.outputs, op.outputs)
    if inputs is None or outputs is None:
        return None
    attrs: list[Any] = []
    for name in op.node_def.attr:
        if not name.startswith("_"):
            attrs += [name, op.get_attr(name)]
    pack = function.function_type.pack_output
    # Read once, since `run` is called in every step.
    op_type, device, of_op = op.type, op.device, tuple(attrs)
    num_outputs = len(op.outputs)

    def run(tensors: Sequence[tf.Tensor]) -> Any:
        with tf.device(device):
            found = execute.execute(
                op_type,
                num_outputs=num_outputs,
                inputs=[tensors[i] for i in inputs],
                attrs=of_op,
                ctx=context.context(),
            )
        return pack([found[i] for i in outputs])

    return run


# Ops that only pass arguments and results of functions.
_HAND_ON = ("Placeholder", "Identity", "NoOp")


def _positions(
    tensors: Sequence[tf.Tensor], given: Sequence[tf.Tensor]
) -> list[int] | None:
    """Returns the index of each tensor in `given`; None if one is missing."""
    known = {tensor.name: i for i, tensor in enumerate(given)}
    sources = [_source(one).name for one in tensors]
    return None if set(sources) - set(known) else [known[s] for s in sources]


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def variables_of(embedding: Any) -> dict[str, dict[str, Any]]:
    """Returns the variables of TensorFlow's TPUEmbedding by table and slot."""
    found: dict[str, dict[str, Any]] = embedding._variables
    return found


def retrieve_variables(embedding: Any) -> None:
    """Copies the hardware's rows into TensorFlow's TPUEmbedding's variables."""
    embedding._retrieve_variables()


def load_variables(embedding: Any) -> None:
    """Copies TensorFlow's TPUEmbedding's variables to the hardware."""
    embedding._load_variables()


def note_callback_of(cls: type) -> None:
    """Registers a TPUEmbedding's checkpoint callback for `cls`.

    A checkpoint notes that it was written with TensorFlow's callback, which
    updates variables before a save. Without that note TensorFlow restores
    variables, but does not load them to the TPU.
    """
    predicates = registration._saver_registry._registered_predicates
    is_theirs = predicates[_CALLBACK]
    predicates[_CALLBACK] = lambda one: isinstance(one, cls) or is_theirs(one)


def new_config_proto() -> Any:
    """Makes an empty TPUEmbeddingConfiguration."""
    from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2

    return tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration()


def describe_table(
    config: Any, descriptor: Any, hosts: int, tags: Mapping[Any, int]
) -> None:
    """Fills the TableDescriptor of TensorFlow's TableConfig.

    Args:
      config: the TableConfig.
      descriptor: the proto.
      hosts: the number of hosts that share the table.
      tags: learning rate function -> its tag, an index.
    """
    config._set_table_descriptor(descriptor, hosts, tags)


def num_hosts(strategy: Any) -> int:
    """Returns the number of hosts of a strategy's TPUs; 1 without TPUs."""
    return int(getattr(strategy.extended, "num_hosts", 1))


def cores_per_replica(strategy: Any) -> int | None:
    """Returns the cores per replica of a TPUStrategy; None if not assigned."""
    assignment = getattr(strategy.extended, "_device_assignment", None)
    return assignment.num_cores_per_replica if assignment else None


def tpu_devices(strategy: Any) -> list[list[str]]:
    """Returns the devices of the cores of each replica of a TPUStrategy."""
    return [list(cores) for cores in strategy.extended._tpu_devices]


def parsed_layouts(text: bytes) -> list[Any]:
    """Parses the SparseCoreTableLayouts in the text of a checkpoint."""
    from tensorflow.core.tpu.kernels import sparse_core_layout_pb2

    layouts = sparse_core_layout_pb2.SparseCoreTableLayouts()
    layouts.ParseFromString(text)
    return list(layouts.tables)


# The frames in which TensorFlow calls the function of strategy.run (one replica
# on this thread, several on their own threads), and those in which it traces a
# function or a branch.
_RUN = ("tensorflow/python/distribute/", "run")

_TRACE = (
    "tensorflow/python/framework/func_graph.py",
    "func_graph_from_py_func",
)


def functions_since_run() -> int | None:
    """Counts the functions and branches being traced inside of strategy.run.

    Returns None outside of strategy.run.
    """
    functions = 0
    for frame in running_frames(_TRACE[1], _RUN[1]):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        functions += _is(_TRACE, file, name)
        if _is(_RUN, file, name):
            return functions
    return None


def is_made_inside_run(op: tf.Operation) -> bool:
    """Says whether an operation was made in the function of strategy.run."""
    return any(_is(_RUN, frame.filename, frame.name) for frame in op.traceback)


def saved_captures(
    owner: Any, children: Iterable[Any]
) -> tuple[set[int], set[int]] | None:
    """Finds the tensors that functions of the saved model capture.

    `_trackable_children` calls it; it gets the model that is being saved from
    its caller's frame. Functions that were never called are traced.

    Args:
      owner: the object whose `_trackable_children` runs.
      children: the children of the owner, as far as it knows them.

    Returns:
      The ids of all captured tensors, and of those captured by functions with
      an op of tfembed; or None if the model is not known.
    """
    view = _saved_view()
    if view is None or view.root is owner:  # Its signatures are not set yet.
        return None
    captured: set[int] = set()
    beside_ops: set[int] = set()
    seen, waiting = {id(owner)}, [view.root, *children]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        tensors = set(map(id, getattr(one, "captured_inputs", ())))
        captured |= tensors
        if tensors and _has_ops(one.graph):
            beside_ops |= tensors
        waiting += [child.ref for child in view.list_children(one)]
    return captured, beside_ops


def _has_ops(graph: tf.Graph) -> bool:
    """Says whether a function, or one that it calls, has an op of tfembed."""
    saved = graph.as_graph_def()
    called = (node for f in saved.library.function for node in f.node_def)
    return any(
        node.op.startswith("Tfembed>")
        for nodes in (saved.node, called)
        for node in nodes
    )


def _saved_view() -> Any:
    """Returns TensorFlow's view of the model that is being saved, or None."""
    frames = running_frames("list_children", "breadth_first_traversal")
    callers = (frame.f_locals.get("self") for frame in frames)
    return next(
        (c for c in callers if type(c).__name__ == "_AugmentedGraphView"), None
    )


def _is(entry: tuple[str, str], file: str, name: str) -> bool:
    path, function = entry
    return name == function and path in file


_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, eq=False)
class Untracked(Generic[_T]):
    """Wraps an attribute that a trackable object must not save."""

    value: _T
