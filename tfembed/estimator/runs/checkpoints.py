"""Checkpoints before a session restores them: which one, and whether it fits.

TensorFlow takes a folder whose state file `checkpoint` is damaged for one
without checkpoints, and its Saver does not compare the shapes of variables.
Every restore of an estimator passes `restoring` or `check_fits`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfembed.errors import CheckpointError
from tfembed.estimator.models.input_functions import INPUT_STATE
from tfembed.estimator.runs.slot_names import SlotNamesSaver
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.saved import state_file

# Another process may be between the files of a checkpoint and the state file
# that names it, or may have deleted an old checkpoint: looks again.
_LOOKS = 5
_SECONDS_BETWEEN_LOOKS = 0.5

# Ops between a restored tensor and its variable that keep its shape.
_KEEPING_SHAPE = ("Cast", "Identity", "RealDiv")


def latest_checkpoint(folder: str) -> str | None:
    """Returns the path of a folder's latest checkpoint; None without one.

    Raises:
      tfembed.errors.CheckpointError: (also ValueError) the folder's state file
        is damaged, or names no checkpoint that is there, or is missing beside
        checkpoints.
    """
    for looks in range(_LOOKS):
        if looks:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            latest: str | None = tf.train.latest_checkpoint(folder)
        except ValueError:  # The state file is empty, or not text.
            latest = None
        if latest:
            return latest
        fault = _fault_of_state(folder)
        if fault is None:
            return None
    raise CheckpointError(fault)


def usable_checkpoint(folder: str) -> str | None:
    """Returns the path of a folder's latest checkpoint, whose files are whole.

    Raises:
      tfembed.errors.CheckpointError, tf.errors.OpError: As for
        `latest_checkpoint` and `check_files`.
    """
    while latest := latest_checkpoint(folder):
        try:
            check_files(latest)
        except tf.errors.NotFoundError:
            if latest_checkpoint(folder) == latest:
                raise
            continue  # Another process has saved a newer one meanwhile.
        break
    return latest


def check_files(checkpoint: str) -> None:
    """Checks that all files of a checkpoint are there, and not cut.

    Raises:
      tf.errors.NotFoundError: a file is missing.
      tf.errors.DataLossError: a file is cut, or the index is damaged.
    """
    try:
        checkpoint_ops.check_sizes(checkpoint)
    except (tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        fault = "is damaged, or cut short"
        if isinstance(error, tf.errors.NotFoundError):
            fault = "lacks a file"
        raise _damage(checkpoint, fault, error) from error


def check_fits(saver: Any, checkpoint: str) -> None:
    """Checks the shapes and dtypes that a Saver of the graph restores.

    Args:
      saver: The Saver; its ops are in the default graph.
      checkpoint: The path of the checkpoint.

    Raises:
      tf.errors.InvalidArgumentError: a variable has another shape or dtype in
        the checkpoint.
    """
    text = _differences(saver, checkpoint, only_of_both=True)
    if text:
        raise tf.errors.InvalidArgumentError(None, None, text)


@contextlib.contextmanager
def restoring(checkpoint: str | None, scaffold: Any) -> Iterator[None]:
    """Checks a checkpoint before a session that the block makes restores it.

    An error of the restore keeps its type and TensorFlow's text, and says
    which variables do not fit, or that the files are damaged.

    Args:
      checkpoint: The path of the checkpoint; None: the session restores none.
      scaffold: The Scaffold of the session.

    Raises:
      tf.errors.OpError: As for `check_files` and `check_fits`.
    """
    if not checkpoint:
        yield
        return
    check_files(checkpoint)
    _check_when_finalized(scaffold, checkpoint)
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        if error.op is not None and "Restore" in error.op.type:
            fault = "is damaged, or cut short"
            raise _damage(checkpoint, fault, error) from error
        raise
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        if "Restoring from checkpoint failed" in error.message:
            text = _differences(scaffold.saver, checkpoint)
            raise type(error)(
                error.node_def, error.op, f"{text} {error.message}"
            ) from error
        raise


def checks_of_init_fn(scaffold: Any, checkpoint: str | None) -> list[Any]:
    """Returns the hook that checks what a Scaffold's init_fn sets, if it runs.

    Args:
      scaffold: The Scaffold of a session.
      checkpoint: The path that the session restores; None: the init_fn runs.
    """
    runs = scaffold.init_fn is not None and not checkpoint
    return [VariableShapesHook()] if runs else []


class VariableShapesHook(tf.compat.v1.train.SessionRunHook):
    """Checks the shapes of variables that a Scaffold's init_fn has set.

    An init_fn restores by Savers of its own, from paths that it alone knows.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, tf.TensorShape] = {}
        self._found: dict[str, Any] = {}

    def begin(self) -> None:
        """Adds ops that read the shapes, before the graph is finalized."""
        for variable in tf.compat.v1.global_variables():
            if variable.shape.rank is not None and _is_resource(variable):
                self._wanted[variable.op.name] = variable.shape
                self._found[variable.op.name] = tf.raw_ops.VariableShape(
                    input=variable.handle
                )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Compares the shapes.

        Raises:
          tf.errors.InvalidArgumentError: A variable has another shape than in
            the model.
        """
        del coord
        found = session.run(self._found)
        differ = [
            f"'{name}' is {wanted.as_list()} here and {found[name].tolist()} "
            "there"
            for name, wanted in self._wanted.items()
            if not wanted.is_compatible_with(found[name].tolist())
        ]
        if differ:
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                "The Scaffold's init_fn restored variables of another model. "
                f"Shapes differ: {'; '.join(differ[:10])}. Leave them out of "
                "the Saver's var_list.",
            )


class _Read(NamedTuple):
    """A tensor that a Saver reads from checkpoints.

    Attributes:
      name: The tensor's name there.
      dtype: The dtype that the Saver wants.
      shape: The shape that the Saver wants; of a slice, that of the whole.
    """

    name: str
    dtype: tf.DType
    shape: tf.TensorShape


def reads_of(op: tf.Operation) -> Iterator[_Read]:
    """Yields the tensors that a RestoreV2 op reads."""
    names = tf.get_static_value(op.inputs[1])
    slices = tf.get_static_value(op.inputs[2])
    for name, part, output in zip(names, slices, op.outputs, strict=True):
        *whole, _ = tf.compat.as_str(part).split(" ")
        shape = tf.TensorShape(
            [int(size) for size in whole] if whole else _shape_set_by(output)
        )
        yield _Read(tf.compat.as_str(name), output.dtype, shape)


def differences(
    reads: list[_Read], checkpoint: str
) -> tuple[list[str], list[str]]:
    """Compares what is read with what a checkpoint has.

    Returns:
      The names that it lacks; a text for each tensor of another shape or
      dtype.
    """
    saved = tf.train.load_checkpoint(checkpoint)
    shapes = saved.get_variable_to_shape_map()
    dtypes = saved.get_variable_to_dtype_map()
    missing, others = [], []
    for name, dtype, shape in reads:
        if name not in shapes:
            missing.append(name)
            continue
        here = shape.as_list() if shape.rank is not None else "of any shape"
        there = list(shapes[name])
        if dtype != dtypes[name]:
            others.append(
                f"'{name}' is {dtype.name} {here} here and "
                f"{dtypes[name].name} {there} there"
            )
        elif not shape.is_compatible_with(there):
            others.append(f"'{name}' is {here} here and {there} there")
    return missing, others


def _fault_of_state(folder: str) -> str | None:
    """Returns what is wrong with a folder that names no checkpoint, if so."""
    state = os.path.join(folder, state_file.NAME)  # noqa: PTH118 - may be gs:
    is_there = tf.io.gfile.exists(state)
    found = _checkpoints_in(folder)
    if not is_there and not found:
        return None
    named = None
    with (
        contextlib.suppress(tf.errors.OpError),
        tf.io.gfile.GFile(state, "rb") as file,
    ):
        named = state_file.latest_of(file.read(state_file.MOST_BYTES))
    text = f"'{state}', the file that names the latest checkpoint, "
    if not is_there:
        text += "is missing"
    elif named is None:
        text += "is damaged, or cut short"
    else:
        path = os.path.join(folder, named)  # noqa: PTH118 - may be gs:
        text += f"names '{path}', which is not there"
    if not found:
        return (
            f"{text}. No checkpoint lies in the folder. Bring that checkpoint "
            "back, or remove the file to begin without one."
        )
    return (
        f"{text}. In the folder lie {found[-10:]}. To go on from the last of "
        "them, let the file have the line\n"
        f'model_checkpoint_path: "{found[-1]}"\n'
        "To begin anew, give another folder, or remove these files."
    )


def _checkpoints_in(folder: str) -> list[str]:
    """Returns the names of a folder's checkpoints, that of the last step last.

    Files of the input's position are none.
    """
    if not tf.io.gfile.isdir(folder):
        return []
    files = tf.io.gfile.listdir(folder)
    with_data = {re.sub(r"\.data-\d+-of-\d+$", "", name) for name in files}
    found = [
        name.removesuffix(".index")
        for name in files
        if name.endswith(".index") and not name.startswith(INPUT_STATE)
    ]

    def step_of(name: str) -> tuple[int, str]:
        match = re.search(r"-(\d+)$", name)
        return int(match[1]) if match else -1, name

    return sorted(
        (
            name
            for name in found
            if name in with_data or name.startswith("model.ckpt-")
        ),
        key=step_of,
    )


def _damage(checkpoint: str, fault: str, error: Any) -> Any:
    """Returns an error of the type of one that a read of files raised."""
    text = re.sub(r"^\{\{.*?\}\} | \[Op:.*$", "", error.message)
    return type(error)(
        error.node_def,
        error.op,
        f"Checkpoint '{checkpoint}' {fault}. Bring its files back, or remove "
        "them and have the file `checkpoint` beside them name an earlier one, "
        f"or give another model_dir. {text}",
    )


def _check_when_finalized(scaffold: Any, checkpoint: str) -> None:
    """Makes a Scaffold check its Saver before a session restores by it.

    A session that is made again restores what training saved meanwhile.
    """
    finalize = scaffold.finalize

    def finalize_and_check() -> Any:
        scaffold.finalize = finalize
        finalized = finalize()
        check_fits(finalized.saver, checkpoint)
        return finalized

    scaffold.finalize = finalize_and_check


def _differences(
    saver: Any, checkpoint: str, *, only_of_both: bool = False
) -> str:
    """Returns a text about what a checkpoint has otherwise, or lacks.

    Args:
      saver: The Saver that reads it.
      checkpoint: The path of the checkpoint.
      only_of_both: Whether the text is empty unless a tensor that both have
        differs.
    """
    missing, others = differences(_reads(saver, checkpoint), checkpoint)
    if only_of_both and not others:
        return ""
    text = f"Checkpoint '{checkpoint}' is not of this model."
    if missing:
        text += f" The checkpoint lacks the variables {missing[:10]}"
        text += f" and {len(missing) - 10} more." if missing[10:] else "."
        saved = sorted(name for name, _ in tf.train.list_variables(checkpoint))
        text += f" It has {saved[:10]}."
    if others:
        text += f" Shapes or dtypes differ: {'; '.join(others[:10])}."
    return (
        f"{text} Give another model_dir, or start from it by warm_start_from."
    )


def _reads(saver: Any, checkpoint: str) -> list[_Read]:
    """Returns the tensors that a Saver reads from a checkpoint."""
    if isinstance(saver, SlotNamesSaver):
        saver = saver.reader_of(checkpoint)
    saver_def = getattr(saver, "saver_def", None)
    if saver_def is None:  # A Saver without variables.
        return []
    prefix = tf.compat.v1.get_default_graph().get_tensor_by_name(
        saver_def.filename_tensor_name
    )
    return [
        read
        for op in prefix.consumers()
        if op.type == "RestoreV2"
        for read in reads_of(op)
    ]


def _shape_set_by(tensor: tf.Tensor) -> Any:
    """Returns the shape of the variable to which a tensor is assigned.

    None for what is no variable, or may have any shape.
    """
    for op in tensor.consumers():
        if op.type in _KEEPING_SHAPE:
            shape = _shape_set_by(op.outputs[0])
            if shape is not None:
                return shape
        is_checked = op.type == "AssignVariableOp" or (
            op.type == "Assign" and op.get_attr("validate_shape")
        )
        variable = op.inputs[0].op
        if is_checked and variable.type in ("VarHandleOp", "VariableV2"):
            return variable.get_attr("shape")
    return None


def _is_resource(variable: Any) -> bool:
    return variable.dtype.base_dtype == variable.dtype and hasattr(
        variable, "handle"
    )
