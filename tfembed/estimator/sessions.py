"""Training sessions: savers, hooks, restores, names of slots, and SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from tfembed.dynamic_embedding.tensorflow1.graph_saver import TableSaveable
from tfembed.errors import ArgumentError, StateError
from tfembed.estimator import private
from tfembed.estimator.embeddings.tpu_tables import EngineHook
from tfembed.estimator.input_functions import CheckpointInputPipelineHook
from tfembed.estimator.run_config import RunConfig, TaskType
from tfembed.estimator.spec import EstimatorSpec

# The seconds after which another SIGTERM counts as a second one.
_UNTIL_SECOND_SIGTERM = 5.0


def device_setter(config: RunConfig) -> Any:
    """Returns a function that puts variables on parameter servers, or None."""
    if not config.num_ps_replicas:
        return None
    return tf.compat.v1.train.replica_device_setter(
        ps_tasks=config.num_ps_replicas,
        worker_device=f"/job:{config.task_type}/task:{config.task_id}",
        merge_devices=True,
        ps_ops=list(private.device_setter.STANDARD_PS_OPS),
        cluster=config.cluster_spec,
    )


def load_global_step_from_checkpoint_dir(model_dir: str) -> int:
    """Returns the global step of the latest checkpoint; 0 without one."""
    latest = tf.train.latest_checkpoint(model_dir)
    if not latest:
        return 0
    reader = tf.train.load_checkpoint(latest)
    for name in ("global_step", "global_step/.ATTRIBUTES/VARIABLE_VALUE"):
        if reader.has_tensor(name):
            return int(reader.get_tensor(name))
    return 0


def check_tables_are_shared(config: RunConfig, graph: tf.Graph) -> None:
    """Checks that the workers of a cluster share a graph's hash tables.

    Raises:
      RuntimeError: Each worker would train its own copy of a table, and only
        the chief's copy would be saved.
    """
    if not config.num_ps_replicas or config.num_worker_replicas < 2:
        return
    for op in graph.get_operations():
        if op.type != "Tfembed>TableCreate":
            continue
        if tf.DeviceSpec.from_string(op.device).job != TaskType.PS:
            name = op.get_attr("table_name").decode()
            raise StateError(
                f"Table '{name}' is on '{op.device}', where each of the "
                f"cluster's {config.num_worker_replicas} workers would train "
                "its own copy. Leave out `devices`, or list parameter servers, "
                "for instance '/job:ps/task:0/CPU:0'. Make a `device_fn` of "
                "your own by tf.compat.v1.train.replica_device_setter, which "
                "tables recognize."
            )


def check_writable(model_dir: str) -> None:
    """Makes a folder, and checks that files can be created in it.

    Raises:
      RuntimeError: Files cannot be created.
    """
    probe = os.path.join(model_dir, f".writable-{uuid.uuid4().hex}")  # noqa: PTH118 - may be gs:
    try:
        tf.io.gfile.makedirs(model_dir)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)
    except (tf.errors.OpError, OSError) as error:
        raise StateError(
            f"model_dir '{model_dir}' cannot be written: {error}. Give a "
            "model_dir in which this process may make files."
        ) from error


def add_loss_to_collections(loss: Any) -> None:
    """Adds the loss to the graph's summaries and losses."""
    summaries = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        tf.compat.v1.summary.scalar("loss", loss)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOSSES, loss)


@contextlib.contextmanager
def explained_restore(checkpoint: str | None) -> Iterator[None]:
    """Adds to a restore's error which variables do not fit, or what is damaged.

    The error keeps its type and TensorFlow's text.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        if checkpoint and error.op is not None and "Restore" in error.op.type:
            raise type(error)(
                error.node_def,
                error.op,
                f"Checkpoint '{checkpoint}' is damaged, or cut short. Remove "
                "its files, and have the file `checkpoint` beside them name an "
                f"earlier one, or give another model_dir. {error.message}",
            ) from error
        raise
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        if checkpoint and "Restoring from checkpoint failed" in error.message:
            raise type(error)(
                error.node_def,
                error.op,
                f"{_differences(checkpoint)} {error.message}",
            ) from error
        raise


@contextlib.contextmanager
def training_session(
    config: RunConfig,
    spec: EstimatorSpec,
    hooks: Sequence[Any],
    saving_listeners: Sequence[Any],
) -> Iterator[Any]:
    """Makes a session that restores, saves checkpoints and writes summaries.

    Args:
      config: the config with the model_dir.
      spec: the result of the model_fn in mode TRAIN.
      hooks: hooks of all workers, besides those of the spec.
      saving_listeners: are called at each checkpoint.

    Raises:
      ValueError: There are listeners, but no hook that saves checkpoints.
    """
    with stopping_at_sigterm() as sigterm_hook:
        worker_hooks = [*hooks, *spec.training_hooks, sigterm_hook]
        _add_saver(config, spec)
        chief_hooks = _saver_hooks(
            config, spec, [*worker_hooks, *spec.training_chief_hooks]
        )
        all_hooks = [*chief_hooks, *worker_hooks, *spec.training_chief_hooks]
        watches = [
            hook.watch for hook in all_hooks if isinstance(hook, EngineHook)
        ]
        # First: users' listeners then see the rows that are saved.
        _listen(EngineHook, all_hooks)
        _tell(saving_listeners, all_hooks)
        _listen(CheckpointInputPipelineHook, all_hooks)
        summary_steps, log_steps = (
            config.save_summary_steps,
            config.log_step_count_steps,
        )
        jobs = config.cluster_spec.jobs
        if TaskType.WORKER in jobs and TaskType.MASTER in jobs:
            # A master only saves; the first worker writes summaries.
            summary_steps, log_steps = 0, None
            worker_hooks += _first_workers_hooks(config, spec)
        writes_graph = config.checkpoint_save_graph_def
        if writes_graph and not private.writes_text_graphs():
            writes_graph = False
            chief_hooks.append(_GraphHook(config.model_dir))
        if config.num_ps_replicas:
            _empty_tables_first(spec.scaffold)
        latest = tf.train.latest_checkpoint(config.model_dir)
        with explained_restore(latest):
            session = private.training.MonitoredTrainingSession(
                master=config.master,
                is_chief=config.is_chief,
                checkpoint_dir=config.model_dir,
                scaffold=spec.scaffold,
                hooks=worker_hooks,
                chief_only_hooks=(
                    *watches,
                    *chief_hooks,
                    *spec.training_chief_hooks,
                ),
                save_checkpoint_secs=0,  # A hook saves instead.
                save_summaries_steps=summary_steps,
                config=_session_config(
                    config, tf.compat.v1.get_default_graph()
                ),
                max_wait_secs=config.session_creation_timeout_secs,
                log_step_count_steps=log_steps,
                save_graph_def=writes_graph,
            )
        with session:
            yield session


def _empty_tables_first(scaffold: Any) -> None:
    """Makes a chief without a checkpoint clear tables on parameter servers.

    A chief that was killed before its first checkpoint leaves rows there. Its
    successor resets variables to initial values, and must clear tables too.
    """
    key = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
    cleared = [
        saveable.table.clear()
        for saveable in tf.compat.v1.get_collection(key)
        if isinstance(saveable, TableSaveable)
    ]
    finalize = scaffold.finalize

    def finalize_with_tables() -> Any:
        finalized = finalize()  # Hooks have made their variables now.
        private.initialize_too(finalized, cleared)
        return finalized

    scaffold.finalize = finalize_with_tables


def _session_config(config: RunConfig, graph: tf.Graph) -> Any:
    """Returns the ConfigProto for a session that trains a graph.

    TensorFlow's arithmetic rewrite (SimplifyEmbeddingLookupStage) turns a sum
    over rows of distinct ids into a sum over rows of the whole table. But a
    table with sparse updates is copied by each read of the whole, so such a
    step would read and write all tables. For such graphs the rewrite is off,
    unless the RunConfig turns it on.
    """
    given = config.session_config
    rewrites = given.graph_options.rewrite_options
    is_default = rewrites.arithmetic_optimization == rewrites.DEFAULT
    if not is_default or not _sums_trained_rows(graph):
        return given
    chosen = tf.compat.v1.ConfigProto()
    chosen.CopyFrom(given)
    chosen.graph_options.rewrite_options.arithmetic_optimization = rewrites.OFF
    return chosen


def _sums_trained_rows(graph: tf.Graph) -> bool:
    """Whether a graph sums rows of a variable that it updates by rows."""
    for op in graph.get_operations():
        if not op.type.startswith("SparseSegment") or "Grad" in op.type:
            continue
        gather = op.inputs[0].op
        while gather.type == "Identity":
            gather = gather.inputs[0].op
        if gather.type == "ResourceGather" and any(
            user.type.startswith(("ResourceSparseApply", "ResourceScatter"))
            for user in gather.inputs[0].consumers()
        ):
            return True
    return False


def _differences(checkpoint: str) -> str:
    """Lists the variables that a checkpoint lacks, or has in another shape."""
    saved = dict(tf.train.list_variables(checkpoint))
    missing, reshaped = [], []
    for variable in tf.compat.v1.global_variables():
        part = getattr(variable, "_save_slice_info", None)
        name = part.full_name if part else variable.op.name
        shape = part.full_shape if part else variable.shape.as_list()
        if name not in saved:
            missing.append(name)
        elif list(saved[name]) != list(shape):
            reshaped.append(
                f"'{name}' is {list(shape)} here and {saved[name]} there"
            )
    text = f"Checkpoint '{checkpoint}' is not of this model."
    if missing:
        text += f" The checkpoint lacks the variables {missing[:10]}"
        text += f" and {len(missing) - 10} more." if missing[10:] else "."
        text += f" It has {sorted(saved)[:10]}."
    if reshaped:
        text += f" Shapes differ: {'; '.join(reshaped[:10])}."
    return (
        f"{text} Give another model_dir, or start from it by warm_start_from."
    )


def _add_saver(config: RunConfig, spec: EstimatorSpec) -> None:
    """Adds a saver to the graph, unless the model has one."""
    savers = tf.compat.v1.GraphKeys.SAVERS
    if spec.scaffold.saver or tf.compat.v1.get_collection(savers):
        return
    options: dict[str, Any] = {
        "sharded": True,
        "max_to_keep": config.keep_checkpoint_max,
        "keep_checkpoint_every_n_hours": config.keep_checkpoint_every_n_hours,
        "defer_build": True,
        "save_relative_paths": True,
    }
    latest = tf.train.latest_checkpoint(config.model_dir)
    renamed = renamed_slots(private.saveables_by_name(), latest)
    if renamed:
        saver = SlotNamesSaver(latest, renamed, **options)
    else:
        saver = tf.compat.v1.train.Saver(**options)
    tf.compat.v1.add_to_collection(savers, saver)


def _saver_hooks(
    config: RunConfig, spec: EstimatorSpec, hooks: Sequence[Any]
) -> list[Any]:
    """Returns a hook that saves checkpoints, unless there is one already."""
    if any(
        isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)
        for hook in hooks
    ):
        return []
    if not (config.save_checkpoints_secs or config.save_checkpoints_steps):
        return []
    return [
        tf.compat.v1.train.CheckpointSaverHook(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=spec.scaffold,
            save_graph_def=config.checkpoint_save_graph_def
            and private.writes_text_graphs(),
        )
    ]


def _tell(listeners: Sequence[Any], hooks: Sequence[Any]) -> None:
    if not listeners:
        return
    savers = [
        hook
        for hook in hooks
        if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)
    ]
    if not savers:
        raise ArgumentError(
            "There should be a CheckpointSaverHook to use saving_listeners. "
            "Please set one of the RunConfig.save_checkpoints_steps or "
            "RunConfig.save_checkpoints_secs."
        )
    private.add_listeners(savers[0], listeners)


def _listen(kind: Any, hooks: Sequence[Any]) -> None:
    """Adds a listener for each checkpoint to hooks of a type."""
    listeners = [hook.listener for hook in hooks if isinstance(hook, kind)]
    for hook in hooks:
        if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook):
            private.add_listeners(hook, listeners)


def _first_workers_hooks(config: RunConfig, spec: EstimatorSpec) -> list[Any]:
    if (config.task_type, config.task_id) != (TaskType.WORKER, 0):
        return []
    hooks = []
    if config.save_summary_steps:
        hooks.append(
            tf.compat.v1.train.SummarySaverHook(
                save_steps=config.save_summary_steps,
                output_dir=config.model_dir,
                scaffold=spec.scaffold,
            )
        )
    if config.log_step_count_steps:
        hooks.append(
            tf.compat.v1.train.StepCounterHook(
                every_n_steps=config.log_step_count_steps,
                output_dir=config.model_dir,
            )
        )
    return hooks


class _GraphHook(tf.compat.v1.train.SessionRunHook):
    """Writes graph.pbtxt if TensorFlow's own writer fails (protobuf 7)."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "graph.pbtxt")  # noqa: PTH118 - may be gs:

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Writes the graph."""
        del coord
        text = text_format.MessageToString(
            session.graph.as_graph_def(add_shapes=True)
        )
        with tf.io.gfile.GFile(self._path, "w") as file:
            file.write(text)


class _SigtermHook(tf.compat.v1.train.SessionRunHook):
    """Requests the end of training after SIGTERM."""

    def __init__(self) -> None:
        self.came = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops training after a step; the session then saves a checkpoint."""
        del run_values
        if self.came:
            tf.compat.v1.logging.info(
                "SIGTERM came: training saves a checkpoint and stops."
            )
            run_context.request_stop()


@contextlib.contextmanager
def stopping_at_sigterm() -> Iterator[_SigtermHook]:
    """Delays SIGTERM until training has saved a checkpoint.

    Then the previous handler runs; without one, SystemExit ends the process
    with the status of that signal. If a step does not end because its input
    does not come, a second SIGTERM, some seconds later, ends the process at
    once. (Shells and schedulers may send the first one twice.)
    """
    hook = _SigtermHook()
    before = signal.getsignal(signal.SIGTERM)
    if (
        threading.current_thread() is not threading.main_thread()
        or before is signal.SIG_IGN
        or before is None
    ):
        yield hook
        return

    def note(signum: int, frame: Any) -> None:
        del signum, frame
        hook.came = True

    signal.signal(signal.SIGTERM, note)
    try:
        with _watched(before):
            yield hook
    finally:
        signal.signal(signal.SIGTERM, before)
        if hook.came:
            if callable(before):
                before(signal.SIGTERM, None)
            else:
                raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def _watched(before: Any) -> Iterator[None]:
    """Watches for SIGTERM in a thread, while the main thread waits for a step.

    Python runs handlers in the main thread, between two session runs.

    Args:
      before: The previous handler. If it is the user's, a second signal does
        not end the process.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    outer = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    if outer != -1:  # An event loop uses the wakeup fd.
        signal.set_wakeup_fd(outer)
        heard.close()
        told.close()
        yield
        return
    thread = threading.Thread(
        target=_hear, args=(heard, not callable(before)), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        told.close()  # The thread then reads EOF.
        thread.join()
        heard.close()


def _hear(heard: socket.socket, second_one_ends: bool) -> None:
    first: float | None = None
    while numbers := heard.recv(64):
        if signal.SIGTERM not in numbers:
            continue
        if first is None:
            first = time.monotonic()
            tf.compat.v1.logging.info(
                "SIGTERM came: training ends after the step that runs.%s",
                f" A second SIGTERM, {_UNTIL_SECOND_SIGTERM:g} s later or more, "
                "ends the process at once, without a checkpoint."
                if second_one_ends
                else "",
            )
        elif (
            second_one_ends
            and time.monotonic() - first >= _UNTIL_SECOND_SIGTERM
        ):
            tf.compat.v1.logging.warn(
                "A second SIGTERM came before the step had ended: the process "
                "ends without a checkpoint of it."
            )
            private.end_process(128 + signal.SIGTERM)


# Slots whose names differ between a CPU's optimizers and a TPU's tables. A
# CPU's AdamOptimizer names the slots of a variable `v` `v/Adam` and
# `v/Adam_1`, its RMSPropOptimizer `v/RMSProp` and `v/RMSProp_1`. TPUEstimator
# has always named the slots of its tables `v/Adam/m`, `v/Adam/v`,
# `v/RMSProp/ms` and `v/RMSProp/mom`. A checkpoint keeps the names of its
# writer; `SlotNamesSaver` reads both.
_CPU_OF_TPU = {
    "Adam/m": "Adam",
    "Adam/v": "Adam_1",
    "RMSProp/ms": "RMSProp",
    "RMSProp/mom": "RMSProp_1",
}
_OTHER = {**_CPU_OF_TPU, **{cpu: tpu for tpu, cpu in _CPU_OF_TPU.items()}}


def other_name(name: str) -> str | None:
    """Returns the other name of a slot; None for other variables.

    Example:
        >>> other_name("table/Adam/m"), other_name("table/Adam_1")
        ('table/Adam', 'table/Adam/v')
    """
    for suffix, other in _OTHER.items():
        if name.endswith(f"/{suffix}"):
            return name.removesuffix(suffix) + other
    return None


def renamed_slots(
    names: Iterable[str], checkpoint: str | None
) -> dict[str, str]:
    """Returns the checkpoint's slot names that differ from the graph's.

    The result is a dict from the graph's name to the checkpoint's name.

    Args:
      names: The names of the graph's variables.
      checkpoint: The path of the checkpoint, or None.
    """
    slots = {name: other for name in names if (other := other_name(name))}
    if not slots or not checkpoint:
        return {}
    saved = {name for name, _ in tf.train.list_variables(checkpoint)}
    return {
        name: other
        for name, other in slots.items()
        if name not in saved and other in saved
    }


class SlotNamesSaver(tf.compat.v1.train.Saver):
    """Restores a checkpoint by its own slot names; saves by the graph's names.

    Args:
      checkpoint: The path of the checkpoint.
      renamed: The result of `renamed_slots`.
      **options: The arguments of `tf.compat.v1.train.Saver`.
    """

    def __init__(
        self, checkpoint: str, renamed: dict[str, str], **options: Any
    ) -> None:
        self._checkpoint = checkpoint
        self._renamed = renamed
        self._reader: Any = None
        super().__init__(**options)

    def build(self) -> None:
        """Adds the ops to the graph."""
        super().build()
        saved = private.saveables_by_name()
        self._reader = tf.compat.v1.train.Saver(
            {self._renamed.get(name, name): saved[name] for name in saved},
            name="restore_slots",
        )

    def restore(self, sess: Any, save_path: Any) -> None:
        """Restores variables, by the other slot names for that checkpoint."""
        if tf.compat.as_str_any(save_path) != self._checkpoint:
            super().restore(sess, save_path)
            return
        tf.compat.v1.logging.info(
            "Slots are restored under other names: %s.", self._renamed
        )
        self._reader.restore(sess, save_path)
