"""Training sessions: their savers, hooks and configuration."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from tfembed.dynamic_embedding.tensorflow1.graph_saver import TableSaveable
from tfembed.errors import ArgumentError, StateError
from tfembed.estimator.embeddings.tpu_tables import EngineHook
from tfembed.estimator.models.input_functions import CheckpointInputPipelineHook
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.run_config import RunConfig, TaskType
from tfembed.estimator.runs import checkpoints, sigterm
from tfembed.estimator.runs.slot_names import SlotNamesSaver, renamed_slots
from tfembed.estimator.spec import EstimatorSpec


def device_setter(config: RunConfig) -> Any:
    """Returns a function that puts variables on parameter servers, or None."""
    if not config.num_ps_replicas:
        return None
    return tf.compat.v1.train.replica_device_setter(
        ps_tasks=config.num_ps_replicas,
        worker_device=f"/job:{config.task_type}/task:{config.task_id}",
        merge_devices=True,
        ps_ops=list(v1_sessions.device_setter.STANDARD_PS_OPS),
        cluster=config.cluster_spec,
    )


def load_global_step_from_checkpoint_dir(model_dir: str) -> int:
    """Returns the global step of the latest checkpoint; 0 without one."""
    latest = checkpoints.usable_checkpoint(model_dir)
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
    latest = checkpoints.usable_checkpoint(config.model_dir)
    with sigterm.stopping() as sigterm_hook:
        worker_hooks = [*hooks, *spec.training_hooks, sigterm_hook]
        worker_hooks[:0] = checkpoints.checks_of_init_fn(spec.scaffold, latest)
        _add_saver(config, spec, latest)
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
        if writes_graph and not v1_sessions.writes_text_graphs():
            writes_graph = False
            chief_hooks.append(_GraphHook(config.model_dir))
        if config.num_ps_replicas:
            _empty_tables_first(spec.scaffold)
        # Workers restore nothing.
        with checkpoints.restoring(
            latest if config.is_chief else None, spec.scaffold
        ):
            session = tf.compat.v1.train.MonitoredTrainingSession(
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
        v1_sessions.initialize_too(finalized, cleared)
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


def _add_saver(
    config: RunConfig, spec: EstimatorSpec, latest: str | None
) -> None:
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
    renamed = renamed_slots(v1_sessions.saveables_by_name(), latest)
    if latest and renamed:
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
            and v1_sessions.writes_text_graphs(),
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
    v1_sessions.add_listeners(savers[0], listeners)


def _listen(kind: Any, hooks: Sequence[Any]) -> None:
    """Adds a listener for each checkpoint to hooks of a type."""
    listeners = [hook.listener for hook in hooks if isinstance(hook, kind)]
    for hook in hooks:
        if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook):
            v1_sessions.add_listeners(hook, listeners)


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
