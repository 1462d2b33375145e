"""`RunConfig`, the configuration of an Estimator, which reads TF_CONFIG."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, DtypeError
from tfembed.estimator.private import v1_sessions

_DEFAULT: Any = object()  # Distinguishes "not given" from None.
_LOCAL_MASTER = ""
_CHECKPOINT_PERIODS = (
    "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
    " Set one of them, or neither for a checkpoint every 600 seconds."
)
_REPLACEABLE = (
    "model_dir",
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "train_distribute",
    "device_fn",
    "protocol",
    "eval_distribute",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
    "session_creation_timeout_secs",
    "checkpoint_save_graph_def",
    "save_input_state",
)


class TaskType:
    """The kinds of tasks in a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


def _field(name: str, text: str) -> Any:
    return property(lambda config: getattr(config, f"_{name}"), doc=text)


class RunConfig:
    """Configures an Estimator: files, checkpoints, seeds, cluster.

    A RunConfig is immutable; `replace` makes another one. The cluster comes
    from the environment variable TF_CONFIG, a JSON object with `cluster` (task
    addresses by task type) and `task` (`type` and `index` of this process). A
    cluster has one `chief`; a task of type `evaluator` is not part of the
    cluster.

    Args:
      model_dir: The folder of checkpoints and summaries.
      tf_random_seed: The random seed of graphs.
      save_summary_steps: The steps between summaries.
      save_checkpoints_steps: The steps between checkpoints.
      save_checkpoints_secs: The seconds between checkpoints; 600 unless steps
        are given. With both None, no checkpoint is saved during training.
      session_config: A `tf.compat.v1.ConfigProto`.
      keep_checkpoint_max: The number of checkpoints to keep; None or 0 keeps
        all.
      keep_checkpoint_every_n_hours: The hours after which one more checkpoint
        is kept forever.
      log_step_count_steps: The steps between log lines of loss and speed.
      train_distribute: A `tf.distribute.Strategy` for training.
      device_fn: A callable from op to device, which replaces the default.
      protocol: "grpc", "grpc+verbs" or None.
      eval_distribute: A `tf.distribute.Strategy` for evaluation.
      experimental_distribute: Not supported: strategies of several processes.
      experimental_max_worker_delay_secs: The maximum number of seconds that a
        worker waits before it starts; None: 60.
      session_creation_timeout_secs: The maximum number of seconds to wait for
        a session.
      checkpoint_save_graph_def: Whether to save the graph with checkpoints.
      save_input_state: Whether to save the position of the input with
        checkpoints, so that a restarted training continues there. The input_fn
        must then return a `tf.data.Dataset`.

    Raises:
      ValueError: A value is not allowed, or TF_CONFIG is not valid.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | None = _DEFAULT,
        save_checkpoints_secs: int | None = _DEFAULT,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Callable[[Any], str] | None = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: int = 7200,
        checkpoint_save_graph_def: bool = True,
        save_input_state: bool = False,
    ) -> None:
        if save_checkpoints_steps is _DEFAULT:
            if save_checkpoints_secs is _DEFAULT:
                save_checkpoints_secs = 600
            save_checkpoints_steps = None
        elif save_checkpoints_secs is _DEFAULT:
            save_checkpoints_secs = None
        elif None not in (save_checkpoints_steps, save_checkpoints_secs):
            raise ArgumentError(_CHECKPOINT_PERIODS)
        _check_strategies(
            train_distribute, eval_distribute, experimental_distribute
        )
        environment = _tf_config()
        RunConfig._replace(
            self,
            allowed_properties_list=_REPLACEABLE,
            model_dir=_model_dir(environment, path_to_str(model_dir)),
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_steps=save_checkpoints_steps,
            save_checkpoints_secs=save_checkpoints_secs,
            session_config=session_config,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            train_distribute=train_distribute,
            device_fn=device_fn,
            protocol=protocol,
            eval_distribute=eval_distribute,
            experimental_distribute=experimental_distribute,
            experimental_max_worker_delay_secs=(
                experimental_max_worker_delay_secs
            ),
            session_creation_timeout_secs=session_creation_timeout_secs,
            checkpoint_save_graph_def=checkpoint_save_graph_def,
            save_input_state=save_input_state,
        )
        service = environment.get("service")
        if service is not None and not isinstance(service, dict):
            raise DtypeError(
                'If "service" is set in TF_CONFIG, it must be a dict. Given '
                f"{type(service)}."
            )
        self._service = service
        self.__dict__.update(
            {
                f"_{name}": value
                for name, value in dataclasses.asdict(
                    _task_of(environment)
                ).items()
            }
        )
        self._cluster_spec = tf.train.ClusterSpec(self._cluster_spec)
        if self._cluster_spec and not self._session_config:
            self._session_config = cluster_session_config(
                self._task_type, self._task_id
            )

    _cluster_spec: Any
    _session_config: Any
    _task_type: str
    _task_id: int
    _service: Any

    model_dir = _field("model_dir", "The folder of checkpoints, or None.")
    tf_random_seed = _field("tf_random_seed", "The graph's seed, or None.")
    save_summary_steps = _field(
        "save_summary_steps", "Steps between summaries."
    )
    save_checkpoints_steps = _field(
        "save_checkpoints_steps", "Steps between checkpoints, or None."
    )
    save_checkpoints_secs = _field(
        "save_checkpoints_secs", "Seconds between checkpoints, or None."
    )
    session_config = _field(
        "session_config", "The session's ConfigProto, or None."
    )
    keep_checkpoint_max = _field(
        "keep_checkpoint_max", "How many checkpoints are kept."
    )
    keep_checkpoint_every_n_hours = _field(
        "keep_checkpoint_every_n_hours",
        "Hours of which one checkpoint is kept for good.",
    )
    log_step_count_steps = _field(
        "log_step_count_steps", "Steps between logged lines of loss and speed."
    )
    train_distribute = _field(
        "train_distribute", "The strategy of training, or None."
    )
    eval_distribute = _field(
        "eval_distribute", "The strategy of evaluation, or None."
    )
    device_fn = _field(
        "device_fn", "The callable from op to device, or None for the default."
    )
    protocol = _field("protocol", "The protocol between tasks, or None.")
    experimental_max_worker_delay_secs = _field(
        "experimental_max_worker_delay_secs",
        "The longest time that a worker waits before it starts, or None.",
    )
    session_creation_timeout_secs = _field(
        "session_creation_timeout_secs",
        "The longest time to wait for a session.",
    )
    checkpoint_save_graph_def = _field(
        "checkpoint_save_graph_def",
        "Whether checkpoints have the graph with them.",
    )
    save_input_state = _field(
        "save_input_state", "Whether checkpoints have the input's position."
    )
    cluster_spec = _field("cluster_spec", "The cluster that trains.")
    task_type = _field("task_type", "This process' kind of task.")
    task_id = _field("task_id", "This process' index among its kind.")
    global_id_in_cluster = _field(
        "global_id_in_cluster",
        "This process' index in the whole cluster: the chief is 0, then come"
        " other tasks in alphabetical order, then parameter servers.",
    )
    is_chief = _field("is_chief", "Whether this process saves checkpoints.")
    master = _field("master", "The address of this process' session.")
    evaluation_master = _field(
        "evaluation_master", "The address of the session that evaluates."
    )
    num_ps_replicas = _field("num_ps_replicas", "How many parameter servers.")
    num_worker_replicas = _field(
        "num_worker_replicas", "How many workers, the chief included."
    )
    service = _field("service", "TF_CONFIG's `service`, a dict or None.")

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with other values in some of the arguments.

        Setting one of `save_checkpoints_steps` and `save_checkpoints_secs`
        resets the other.

        Raises:
          ValueError: A name is not an argument of the constructor, or a value
            is not allowed.
        """
        return RunConfig._replace(
            copy.deepcopy(self),
            allowed_properties_list=_REPLACEABLE,
            **kwargs,
        )

    @staticmethod
    def _replace(
        config: Any,
        allowed_properties_list: Collection[str] = (),
        **kwargs: Any,
    ) -> Any:
        """Sets fields of `config`, which no other code may have yet."""
        for key in kwargs:
            if key not in (allowed_properties_list or ()):
                raise ArgumentError(
                    f"Replacing {key} is not supported. Allowed properties "
                    f"are {list(allowed_properties_list)}."
                )
        for key, value in kwargs.items():
            setattr(config, f"_{key}", value)
        steps, seconds = (
            kwargs.get("save_checkpoints_steps"),
            kwargs.get("save_checkpoints_secs"),
        )
        if steps is not None and seconds is not None:
            raise ArgumentError(_CHECKPOINT_PERIODS)
        if steps is not None:
            config._save_checkpoints_secs = None
        elif seconds is not None:
            config._save_checkpoints_steps = None
        _check_values(config)
        return config


def get_default_session_config() -> Any:
    """Returns the default configuration of sessions."""
    rewrite = v1_sessions.rewriter_config_pb2.RewriterConfig(
        meta_optimizer_iterations=v1_sessions.rewriter_config_pb2.RewriterConfig.ONE
    )
    return tf.compat.v1.ConfigProto(
        allow_soft_placement=True,
        graph_options=tf.compat.v1.GraphOptions(rewrite_options=rewrite),
    )


def path_to_str(path: Any) -> Any:
    """Converts a path object to a string; returns other values unchanged."""
    if hasattr(path, "__fspath__"):
        return tf.compat.as_str_any(path.__fspath__())
    return path


def completed_config(config: Any, model_dir: Any) -> RunConfig:
    """Returns a config with model_dir and session_config set.

    Raises:
      ValueError: `config` is not a RunConfig, or has another model_dir.
    """
    if config is None:
        config = RunConfig()
        tf.compat.v1.logging.info("Using default config.")
    if not isinstance(config, RunConfig):
        raise ArgumentError(
            f"config must be an instance of `RunConfig`, but provided {config}."
        )
    if config.session_config is None:
        config = RunConfig.replace(
            config, session_config=get_default_session_config()
        )
    model_dir = path_to_str(model_dir)
    if model_dir is None:
        model_dir = config.model_dir
    elif config.model_dir not in (None, model_dir):
        raise ArgumentError(
            "`model_dir` are set both in constructor and `RunConfig`, but "
            f"with different values. In constructor: '{model_dir}', in "
            f"`RunConfig`: '{config.model_dir}' . Set one of them."
        )
    if not model_dir:
        model_dir = tempfile.mkdtemp()
        tf.compat.v1.logging.warn(
            "Using temporary folder as model directory: %s", model_dir
        )
    return RunConfig.replace(config, model_dir=model_dir)


@dataclasses.dataclass(frozen=True)
class _Task:
    """This process' place in the cluster, as fields of RunConfig."""

    cluster_spec: dict[str, Any]
    task_type: str
    task_id: int
    global_id_in_cluster: int | None
    is_chief: bool
    master: str
    evaluation_master: str
    num_ps_replicas: int
    num_worker_replicas: int


def _tf_config() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        environment = json.loads(text)
    except ValueError as error:
        raise ArgumentError(
            f"The environment variable TF_CONFIG must be JSON; got {text!r}: "
            f"{error}."
        ) from error
    if not isinstance(environment, dict):
        raise ArgumentError(
            "The environment variable TF_CONFIG must be a JSON object with "
            f"'cluster' and 'task'; got {text!r}."
        )
    if environment:
        tf.compat.v1.logging.info(
            "TF_CONFIG environment variable: %s", environment
        )
    return environment


def _model_dir(environment: Mapping[str, Any], model_dir: Any) -> Any:
    if model_dir == "":
        raise ArgumentError("model_dir should be non-empty.")
    given = environment.get("model_dir")
    if given == "":
        raise ArgumentError("model_dir in TF_CONFIG should be non-empty.")
    if not given:
        return model_dir
    if model_dir not in (None, given):
        raise ArgumentError(
            "`model_dir` provided in RunConfig construct, if set, must have "
            "the same value as the model_dir in TF_CONFIG. model_dir: "
            f'{model_dir}\nTF_CONFIG["model_dir"]: {given}.\n'
        )
    tf.compat.v1.logging.info("Using model_dir in TF_CONFIG: %s", given)
    return given


def _task_of(environment: Mapping[str, Any]) -> _Task:
    """Returns the task that TF_CONFIG describes."""
    cluster = tf.train.ClusterSpec(environment.get("cluster", {}))
    task = environment.get("task", {})
    if not cluster:
        return _local_task(environment, task)
    legacy = TaskType.MASTER in cluster.jobs
    if legacy and TaskType.CHIEF in cluster.jobs:
        raise ArgumentError(
            "If `master` node exists in `cluster`, job `chief` is not "
            "supported. Name the one that saves checkpoints `chief`."
        )
    chief = TaskType.MASTER if legacy else TaskType.CHIEF
    task_type, task_id = _checked_task(cluster, task, chief)
    if legacy and task_type == TaskType.EVALUATOR:
        raise ArgumentError(
            "If `master` node exists in `cluster`, task_type `evaluator` is "
            "not supported. Name the one that saves checkpoints `chief`."
        )
    evaluation_master = _LOCAL_MASTER
    if task_type == TaskType.EVALUATOR:
        evaluation_master = environment.get(
            "eval_session_master", _LOCAL_MASTER
        )
        # An evaluator is not part of the cluster: it knows of no other task.
        return _Task(
            {}, task_type, task_id, None, False, "", evaluation_master, 0, 0
        )
    tasks = cluster.as_dict()
    return _Task(
        cluster_spec=tasks,
        task_type=task_type,
        task_id=task_id,
        global_id_in_cluster=_global_id(cluster, task_type, task_id, chief),
        is_chief=task_type == chief,
        master=_session_master(cluster, task_type, task_id, environment),
        evaluation_master=evaluation_master,
        num_ps_replicas=len(tasks.get(TaskType.PS, [])),
        num_worker_replicas=len(tasks.get(TaskType.WORKER, []))
        + len(tasks.get(chief, [])),
    )


def _local_task(
    environment: Mapping[str, Any], task: Mapping[str, Any]
) -> _Task:
    if task.get("type", TaskType.WORKER) != TaskType.WORKER:
        raise ArgumentError(
            'If "cluster" is not set in TF_CONFIG, task type must be WORKER. '
            f"Given {task['type']!r}."
        )
    if int(task.get("index", 0)) != 0:
        raise ArgumentError(
            'If "cluster" is not set in TF_CONFIG, task index must be 0. '
            f"Given {task['index']!r}."
        )
    return _Task(
        cluster_spec={},
        task_type=TaskType.WORKER,
        task_id=0,
        global_id_in_cluster=0,
        is_chief=True,
        master=environment.get("session_master", _LOCAL_MASTER),
        evaluation_master=environment.get("eval_session_master", _LOCAL_MASTER),
        num_ps_replicas=0,
        num_worker_replicas=1,
    )


def _checked_task(
    cluster: Any, task: Mapping[str, Any], chief: str
) -> tuple[str, int]:
    """Returns the type and index of a cluster's task, or raises an error."""
    if chief not in cluster.jobs:
        raise ArgumentError(
            'If "cluster" is set in TF_CONFIG, it must have one '
            f'"{chief}" node. It has {cluster.jobs}.'
        )
    if len(cluster.job_tasks(chief)) > 1:
        raise ArgumentError(
            f'The "cluster" in TF_CONFIG must have only one "{chief}" node. '
            f"It has {cluster.job_tasks(chief)}."
        )
    task_type, index = task.get("type"), task.get("index")
    if not task_type:
        raise ArgumentError(
            'If "cluster" is set in TF_CONFIG, task type must be set, as in '
            '{"task": {"type": "worker", "index": 0}}.'
        )
    if index is None:
        raise ArgumentError(
            'If "cluster" is set in TF_CONFIG, task index must be set, as in '
            '{"task": {"type": "worker", "index": 0}}.'
        )
    task_id = int(index)
    if task_id < 0:
        raise ArgumentError(
            f"Task index must be non-negative number. Given {task_id}."
        )
    if task_type == TaskType.EVALUATOR:
        return task_type, task_id
    hint = (
        f" in the cluster_spec:\n{cluster}\n\nNote that these values may be "
        "coming from the TF_CONFIG environment variable."
    )
    if task_type not in cluster.jobs:
        raise ArgumentError(f"{task_type} is not a valid task_type{hint}")
    if task_id >= len(cluster.job_tasks(task_type)):
        raise ArgumentError(
            f"{task_id} is not a valid task_id for task_type {task_type}{hint}"
        )
    return task_type, task_id


def _global_id(cluster: Any, task_type: str, task_id: int, chief: str) -> int:
    """Numbers the tasks: the chief, others by name, parameter servers last."""
    order = sorted(
        cluster.jobs,
        key=lambda job: (job != chief, job == TaskType.PS, job),
    )
    before = order[: order.index(task_type)]
    return task_id + sum(len(cluster.job_tasks(job)) for job in before)


def _session_master(
    cluster: Any, task_type: str, task_id: int, environment: Mapping[str, Any]
) -> str:
    if "session_master" in environment:
        return str(environment["session_master"])
    if sum(len(cluster.job_tasks(job)) for job in cluster.jobs) == 1:
        return _LOCAL_MASTER  # Avoids the overhead of a server.
    return f"grpc://{cluster.job_tasks(task_type)[task_id]}"


def cluster_session_config(task_type: str, task_id: int) -> Any:
    """Returns a session config that hides other workers from a worker.

    A session of the chief or a worker sees only its own task and parameter
    servers: it neither waits for other workers nor ends with them. A parameter
    server sees all tasks. For other task types the result is None.
    """
    filters = {
        TaskType.MASTER: ["/job:ps", "/job:master"],
        TaskType.CHIEF: ["/job:ps", "/job:chief"],
        TaskType.WORKER: ["/job:ps", f"/job:worker/task:{task_id}"],
        TaskType.PS: ["/job:ps", "/job:worker", "/job:chief", "/job:master"],
    }.get(task_type)
    if filters is None:
        return None
    config = get_default_session_config()
    config.device_filters.extend(filters)
    return config


def _check_strategies(train: Any, evaluation: Any, experimental: Any) -> None:
    for strategy in (train, evaluation):
        if isinstance(
            strategy, tf.distribute.experimental.ParameterServerStrategy
        ):
            raise ArgumentError(
                "Please use `tf.compat.v1.distribute.experimental."
                "ParameterServerStrategy` for parameter server strategy with "
                "estimator, or no strategy and a TF_CONFIG with `ps` tasks."
            )
    if experimental:
        raise ArgumentError(
            "experimental_distribute is not supported: the coordinator that "
            "ran it left TensorFlow with 2.16. Use train_distribute and "
            "eval_distribute for strategies of one process, and TF_CONFIG "
            "with train_and_evaluate for several processes."
        )


def _check_values(config: Any) -> None:
    """Checks each value that is not None."""
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "model_dir": (bool, "model_dir should be non-empty"),
        "save_summary_steps": (_not_negative, ""),
        "save_checkpoints_steps": (_not_negative, ""),
        "save_checkpoints_secs": (_not_negative, ""),
        "session_config": (
            lambda value: isinstance(value, tf.compat.v1.ConfigProto),
            "session_config must be instance of ConfigProto",
        ),
        "keep_checkpoint_max": (_not_negative, ""),
        "keep_checkpoint_every_n_hours": (_positive, ""),
        "log_step_count_steps": (_positive, ""),
        "tf_random_seed": (
            lambda value: isinstance(value, int),
            "tf_random_seed must be integer",
        ),
        "experimental_max_worker_delay_secs": (
            lambda value: isinstance(value, int),
            "experimental_max_worker_delay_secs must be an integer if set",
        ),
        "session_creation_timeout_secs": (_positive, ""),
        "device_fn": (
            lambda value: (
                callable(value) and set(v1_sessions.fn_args(value)) == {"op"}
            ),
            'device_fn must be callable with exactly one argument "op"',
        ),
        "protocol": (
            lambda value: value in ("grpc", "grpc+verbs"),
            "protocol should be grpc or grpc+verbs",
        ),
    }
    bounds = {_not_negative: ">= 0", _positive: "> 0"}
    for name, (allowed, text) in checks.items():
        value = getattr(config, f"_{name}")
        if value is None or allowed(value):
            continue
        if allowed in bounds:
            text = f"{name} should be {bounds[allowed]}"
        raise ArgumentError(f"{text}. Given {value!r}.")


def _not_negative(value: Any) -> bool:
    return bool(value >= 0)


def _positive(value: Any) -> bool:
    return bool(value > 0)
