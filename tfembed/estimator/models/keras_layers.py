"""Keras 3 layers in a model_fn.

Keras 3 does not support TensorFlow 1 graphs: it numbers layers on from graph
to graph, and a layer's assignments (moving statistics, the state of random
seeds) are ops that nothing runs. `call_with_keras_layers` gives each graph the
same names, and makes assignments part of the step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import tensorflow as tf

from tfembed.errors import StateError, UnsupportedError
from tfembed.estimator.models import strategies
from tfembed.estimator.private import control_flow, v1_sessions
from tfembed.estimator.replicas.variable_order import (
    is_read,
    needed_ops,
    variable_behind,
)
from tfembed.estimator.spec import ModeKeys
from tfembed.ops.private import free_gradients_with_graph

_TENSORFLOW = os.path.dirname(tf.__file__) + os.sep  # noqa: PTH120 - a prefix
_WRITES = ("Assign", "ResourceScatter")
# The name that keras.random.SeedGenerator gives it.
_SEED = "seed_generator_state"
# Large, so that the seeds of replicas do not equal those of other layers.
_SEED_STEP = 0x9E3779B1
_REPLICA_ID = "replica_id_in_sync_group"


def call_with_keras_layers(
    call: Callable[[], Any],
    mode: str,
    seed: int | None,
    replica: Callable[[], Any] | None = None,
) -> Any:
    """Calls a model_fn that may make layers of Keras 3.

    - Layers and their variables have the same names in each graph.
    - Initial values and seeds that Keras draws derive from `seed`.
    - In mode TRAIN, the spec's train_op runs the layers' assignments.
    - In each mode, a random draw advances its seed. Each replica draws other
      numbers.
    - Reads and writes of a variable that layers assign run in the order of
      their creation, as in eager mode.
    - Under a MirroredStrategy, each replica's call does this for the variables
      on its own device.

    Custom gradients of the model_fn go with its graph.

    Args:
      call: Calls the model_fn and returns its spec.
      mode: The `ModeKeys`.
      seed: `RunConfig.tf_random_seed`.
      replica: Returns the number of the running replica, if there are several.

    Returns:
      The spec.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) a layer was made earlier,
        in eager mode or in another graph.
      tfembed.errors.UnsupportedError: A layer assigns in a control flow v1
        loop or branch, or under a strategy with several replicas that is not a
        MirroredStrategy.
    """
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    around = control_flow.frames_here()  # On a TPU, the loop of steps.
    with v1_sessions.fresh_keras_state(), seeded(seed):
        try:
            spec = call()
        except (RuntimeError, ValueError) as error:
            if _is_of_another_graph(error):
                raise StateError(
                    "model_fn uses a layer of Keras 3 that was made outside of "
                    "it, and whose variables belong to another graph. Make "
                    "layers in model_fn, in each call."
                ) from error
            if "specify an aggregation method" in str(error):
                raise _no_copies() from error
            raise
    free_gradients_with_graph()
    ops = graph.get_operations()[first:]
    if mode == ModeKeys.TRAIN and "tf_keras" in sys.modules:
        _warn_of_updates(ops, getattr(spec, "train_op", None))
    if "keras" not in sys.modules:
        return spec
    writes = [op for op in ops if _is_keras_write(op) or _is_merged_write(op)]
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        if writes and not _has_copies(context.strategy):
            raise _no_copies()
        writes = [op for op in writes if _is_of_replica(op, context)]
        replica = functools.partial(getattr, context, _REPLICA_ID)
    if not writes:
        return spec
    _refuse_frames(writes, around)
    users: dict[Any, list[tf.Operation]] = {
        variable_behind(op.inputs[0]): [] for op in writes
    }
    for op in ops:
        for tensor in op.inputs:
            if tensor.dtype == tf.resource:
                users.get(variable_behind(tensor), []).append(op)
    for variable, uses in users.items():
        own = {op for op in writes if op in uses}
        _order_as_made(uses, own, around)
        if _SEED in variable.name:
            _advance_seeds(ops, set(uses), own, replica)
    if mode == ModeKeys.TRAIN and getattr(spec, "train_op", None) is not None:
        spec = spec._replace(train_op=tf.group(spec.train_op, *writes))
    return spec


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seeds Python's random numbers, from which Keras draws its seeds."""
    if seed is None:
        yield
        return
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _is_of_another_graph(error: Exception) -> bool:
    text = str(error)
    frames = error.__traceback__
    of_keras = False
    while frames is not None:
        of_keras |= _is_of_keras(frames.tb_frame.f_code.co_filename)
        frames = frames.tb_next
    return of_keras and (
        "EagerTensor" in text or "same graph" in text or "out of scope" in text
    )


def _frames(op: tf.Operation) -> list[Any]:
    """Returns where an op was made, innermost first; empty if imported."""
    return list(op.traceback or ())[::-1]


def _is_of_keras(filename: str, package: str = "keras") -> bool:
    keras: Any = sys.modules.get(package)
    folder = os.path.dirname(keras.__file__) if keras else ""  # noqa: PTH120
    return bool(folder) and filename.startswith(folder + os.sep)


def _warn_of_updates(ops: Sequence[tf.Operation], train_op: Any) -> None:
    """Warns of updates of tf_keras layers that nothing runs.

    Updates of tf.compat.v1.layers are in UPDATE_OPS; those of tf_keras are
    not, and programs may omit them on purpose.
    """
    writes = [op for op in ops if _is_update_of_tf_keras(op)]
    if not writes or train_op is None:
        return
    runs = set(needed_ops([train_op]))
    lost = sorted(
        {
            variable.name
            for op in writes
            if op not in runs
            and (variable := variable_behind(op.inputs[0])) is not None
        }
    )
    if lost:
        tf.compat.v1.logging.warn(
            "Layers of tf_keras update %s, which train_op does not run: they "
            "keep their initial values. Put the layers' or the model's "
            "`updates` into train_op, as in tf.group(train_op, *model.updates).",
            lost,
        )


def _is_update_of_tf_keras(op: tf.Operation) -> bool:
    if not op.type.startswith(_WRITES) or not op.inputs:
        return False
    for frame in _frames(op):
        if not frame.filename.startswith(_TENSORFLOW):
            return (
                _is_of_keras(frame.filename, "tf_keras")
                and f"{os.sep}layers{os.sep}" in frame.filename
                and "initializ" not in op.name.lower()
            )
    return False


def _is_keras_write(op: tf.Operation) -> bool:
    """Whether a layer created this assignment, not an initializer or a Saver.

    No other code uses such an op: Keras returns only the value.
    """
    if not op.type.startswith(_WRITES) or not op.inputs:
        return False
    if variable_behind(op.inputs[0]) is None:
        return False
    for frame in _frames(op):
        if frame.name == "_init_from_args":
            return False
        if not frame.filename.startswith(_TENSORFLOW):
            return _is_of_keras(frame.filename)
    return False


def _is_merged_write(op: tf.Operation) -> bool:
    """Whether replicas of a strategy assigned together, for a layer.

    Layers with an `aggregation` of their weights do this; the op is created
    outside the replicas' threads, where no stack frame is Keras'.
    """
    if not op.type.startswith(_WRITES) or not op.inputs:
        return False
    variable = variable_behind(op.inputs[0])
    if variable is None or not _is_made_by_keras(variable):
        return False
    if any(frame.name == "_init_from_args" for frame in _frames(op)):
        return False
    trainable = {
        part.handle.op
        for each in tf.compat.v1.trainable_variables()
        for part in getattr(each, "values", [each])
        if hasattr(part, "handle")
    }
    return variable not in trainable and any(
        frame.filename == strategies.__file__ for frame in op.traceback
    )


def _is_made_by_keras(variable: tf.Operation) -> bool:
    for frame in _frames(variable):
        if not frame.filename.startswith(_TENSORFLOW):
            return _is_of_keras(frame.filename)
    return False


def _refuse_frames(
    writes: Sequence[tf.Operation], around: Sequence[Any]
) -> None:
    for op in writes:
        if control_flow.frames_around(op) != around:
            raise UnsupportedError(
                f"A layer of Keras 3 assigns a variable ('{op.name}') inside "
                "of a loop or branch of tf.compat.v1. Call the layer outside "
                "of it, or use tf.cond and tf.while_loop with "
                "tf.compat.v1.enable_control_flow_v2()."
            )


def _has_copies(strategy: Any) -> bool:
    return type(strategy).__name__.startswith("MirroredStrategy")


def _no_copies() -> UnsupportedError:
    name = type(tf.distribute.get_strategy()).__name__
    return UnsupportedError(
        "A layer of Keras 3 assigns a variable in a model_fn under a "
        f"{name}, whose replicas have no copies of it. Use a MirroredStrategy, "
        "the layer of tf_keras, or a TPUEstimator, whose replicas take it."
    )


def _is_of_replica(write: tf.Operation, context: Any) -> bool:
    """Whether an op writes a variable on the device of a replica."""
    variable = variable_behind(write.inputs[0])
    devices = map(tf.DeviceSpec.from_string, tf.nest.flatten(context.devices))
    return (
        variable is not None
        and tf.DeviceSpec.from_string(variable.device) in devices
    )


def _order_as_made(
    uses: Sequence[tf.Operation],
    writes: Set[tf.Operation],
    around: Sequence[Any],
) -> None:
    """Runs reads and writes of a variable in the order of their creation."""
    last: list[tf.Operation] = []
    reads: list[tf.Operation] = []
    for op in uses:
        if control_flow.frames_around(op) != around:
            continue
        if op in writes:
            control_flow.add_control_inputs(op, [*reads, *last])
            last, reads = [op], []
        elif is_read(op) and op.type != "VarIsInitializedOp":
            control_flow.add_control_inputs(op, last)
            reads.append(op)


def _advance_seeds(
    ops: Sequence[tf.Operation],
    uses: Set[tf.Operation],
    writes: Set[tf.Operation],
    replica: Callable[[], Any] | None,
) -> None:
    """Makes users of a seed advance it, and gives replicas different seeds.

    Keras reads a seed, assigns the next one, and draws with the value read:
    the ops that draw are those created after the assignment that use values
    from before it.
    """
    behind: dict[tf.Operation, tf.Operation] = {}
    read: dict[tf.Operation, None] = {}
    for op in ops:
        if op in writes:
            behind.update(dict.fromkeys(read, op))
            read = {}
            continue
        if op in uses and is_read(op):
            read[op] = None
            continue
        for index, tensor in enumerate(list(op.inputs)):
            if tensor.op in read:
                read[op] = None
            elif tensor.op in behind:
                control_flow.add_control_inputs(op, [behind[tensor.op]])
                if replica is not None:
                    control_flow.replace_input(
                        op, index, _of_replica(tensor, replica)
                    )


def _of_replica(seed: Any, replica: Callable[[], Any]) -> Any:
    """Returns the seed of a replica."""
    with tf.name_scope("seed_of_replica"):
        step = tf.cast(replica(), tf.int64) * _SEED_STEP
        return seed + tf.cast(step % (2**31 - 1), seed.dtype)
