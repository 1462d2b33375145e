"""Distributes a batch to cores, hosts, replicas and calls of input_fn.

    TPUSystem    the cores and hosts, real or simulated
    BatchPlan    the arithmetic of one mode, without TensorFlow
    ModeContext  both, with devices, for the estimator
    TPUContext   the view of a user's function, `params["context"]`

Symbols: B is the global batch size, H the number of hosts, R the number of
replicas.

| pipeline     | input_fn is called | with batch size | model_fn's batch size |
|--------------|--------------------|-----------------|-----------------------|
| none (CPU)   | once               | B               | B                     |
| PER_SHARD_V1 | R times            | B/R             | B/R                   |
| PER_HOST_V1  | H times            | B/H             | B/R                   |
| PER_HOST_V2  | H times            | B/R             | B/R                   |
| BROADCAST    | once               | B               | B                     |
| SLICED       | once               | B               | B/R                   |

PER_SHARD_V1 is only for training, SLICED only for evaluation and prediction. A
replica whose cores lie on several hosts has its own call, with B/R.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.private import tpu_programs
from tfembed.estimator.spec import ModeKeys
from tfembed.estimator.tpu.config import InputPipelineConfig, RunConfig

SIMULATED_CORES = "TFEMBED_SIMULATED_CORES"
SIMULATED_HOSTS = "TFEMBED_SIMULATED_HOSTS"

# The shapes of a replica's cores: chips in x, y and z, then cores of a chip.
_COMPUTATION_SHAPES = {
    1: [1, 1, 1, 1],
    2: [1, 1, 1, 2],
    4: [1, 2, 1, 2],
    8: [2, 2, 1, 2],
    16: [4, 2, 1, 2],
    32: [4, 4, 1, 2],
    64: [8, 4, 1, 2],
    128: [8, 8, 1, 2],
}


@dataclasses.dataclass(frozen=True)
class TPUSystem:
    """The cores and hosts of a TPU, or of a simulated one.

    Attributes:
      num_cores, num_hosts, num_of_cores_per_host: the counts of the TPU, or of
        the simulation.
      topology: the mesh of the cores; None if no replica has several cores.
      devices: TensorFlow's list of devices, for error texts.
      is_simulated: whether replicas run without a TPU.
      is_strict: whether shapes must be static, as a TPU's compiler requires.
    """

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Any = None
    devices: tuple[Any, ...] = ()
    is_simulated: bool = False
    is_strict: bool = True


def find_system(config: RunConfig, master: str) -> TPUSystem:
    """Finds a TPU, or else simulates one.

    Args:
      config: its `tpu_config` gives the number of cores of a replica and,
        without a TPU, the number of replicas.
      master: the address of the TPU; "" is this process.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) there is no TPU, but
        `RunConfig(require_tpu=True)` asks for one.
      tfembed.errors.ArgumentError: an environment variable is not a positive
        number, or the simulated cores cannot be shared evenly by the hosts.
    """
    tpu_config = config.tpu_config
    per_replica = tpu_config.num_cores_per_replica
    simulated = _from_environment(SIMULATED_CORES)
    if (
        tpu_config.num_shards == 1
        and per_replica is None
        and not config.require_tpu
    ):
        # num_shards=1 means one core on any machine; TensorFlow is not asked.
        tf.compat.v1.logging.info(
            "TPUConfig(num_shards=1): one replica is computed in this process, "
            "and no TPU is looked for. Leave num_shards out to use a TPU, or "
            "set RunConfig(require_tpu=True)."
        )
        return TPUSystem(1, 1, 1, is_simulated=True, is_strict=False)
    found = _query(config, master, with_topology=False)
    if found.num_cores and per_replica:
        found = _query(config, master, with_topology=True)
    if found.num_cores:
        return TPUSystem(
            found.num_cores,
            found.num_hosts,
            found.num_of_cores_per_host,
            found.topology,
            tuple(found.devices),
            is_simulated=simulated is not None,
        )
    if config.require_tpu:
        raise errors.StateError(
            "Cannot find any TPU cores in the system, and "
            "RunConfig(require_tpu=True) asks for them. Check the master's "
            f"address and the TPU's workers; got master {master!r} with the "
            f"devices {found.devices}."
        )
    cores = simulated or (tpu_config.num_shards or 1) * (per_replica or 1)
    hosts = _from_environment(SIMULATED_HOSTS) or 1
    if cores % hosts:
        raise errors.ArgumentError(
            f"{cores} simulated cores cannot be dealt to {hosts} hosts evenly: "
            f"change {SIMULATED_CORES} or {SIMULATED_HOSTS}."
        )
    tf.compat.v1.logging.info(
        "No TPU was found: %d cores on %d hosts are simulated.", cores, hosts
    )
    return TPUSystem(
        cores,
        hosts,
        cores // hosts,
        simulated_topology(cores, hosts, per_replica) if per_replica else None,
        tuple(found.devices),
        is_simulated=True,
        is_strict=tpu_config.strict_tpu,
    )


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise errors.ArgumentError(
            f"The environment variable {name} must be a positive number; got "
            f"{text!r}."
        )
    return int(text)


def _query(config: RunConfig, master: str, *, with_topology: bool) -> Any:
    session_config = config.session_config
    cluster_def = None
    if session_config is not None and session_config.cluster_def.job:
        cluster_def = session_config.cluster_def
    return tpu_programs.query_system(
        master, cluster_def, with_topology=with_topology
    )


def simulated_topology(cores: int, hosts: int, per_replica: int) -> Any:
    """Makes a mesh in which the cores of each replica are neighbours.

    Returns None if `per_replica` or `hosts` does not divide `cores`.
    """
    if cores % per_replica or cores % hosts:
        return None
    x, y, z, core = _COMPUTATION_SHAPES[per_replica]
    replicas = cores // per_replica
    # Replicas lie along y; a host has the cores of whole replicas, or of a
    # part of one replica.
    coordinates = [
        [i, replica * y + j, k, c]
        for replica in range(replicas)
        for i in range(x)
        for j in range(y)
        for k in range(z)
        for c in range(core)
    ]
    return tpu_programs.topology(
        mesh_shape=[x, y * replicas, z, core],
        device_coordinates=np.array(coordinates, np.int32).reshape(
            hosts, cores // hosts, 4
        ),
    )


def count_replicas(num_cores: int, num_cores_per_replica: int | None) -> int:
    """Returns the number of replicas that `num_cores` cores can hold.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) one replica needs more.
      tfembed.errors.StateError: (also RuntimeError) some cores would be
        unused.
    """
    if num_cores_per_replica is None:
        return num_cores
    if num_cores_per_replica > num_cores:
        raise errors.ArgumentError(
            "The num of cores required by the model parallelism, specified by "
            "TPUConfig.num_cores_per_replica, is larger than the total num of "
            f"TPU cores in the system. num_cores_per_replica: "
            f"{num_cores_per_replica}, num cores in the system: {num_cores}."
        )
    if num_cores % num_cores_per_replica:
        raise errors.StateError(
            f"The num of cores in the system ({num_cores}) is not divisible by "
            f"the num of cores ({num_cores_per_replica}) of a replica, "
            "specified by TPUConfig.num_cores_per_replica."
        )
    return num_cores // num_cores_per_replica


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Maps each call of input_fn to its replicas and its batch size.

    Attributes:
      mode: a key of `ModeKeys`.
      pipeline: the `InputPipelineConfig` of this mode; None if all runs on the
        CPU.
      global_batch_size: B; None if the mode has no batch size.
      num_hosts, num_replicas: H and R.
      is_replica_across_hosts: whether a replica has cores on several hosts.
    """

    mode: str
    pipeline: int | None
    global_batch_size: int | None
    num_hosts: int = 1
    num_replicas: int = 1
    is_replica_across_hosts: bool = False

    @property
    def num_of_replicas_per_host(self) -> int:
        """R/H; 0 if a replica lies on several hosts."""
        return self.num_replicas // self.num_hosts

    @property
    def num_invocations(self) -> int:
        """The number of calls of input_fn."""
        if self.pipeline in (None, *_CALLED_ONCE):
            return 1
        if (
            self.pipeline == InputPipelineConfig.PER_SHARD_V1
            or self.is_replica_across_hosts
        ):
            return self.num_replicas
        return self.num_hosts

    @property
    def replicas_per_invocation(self) -> int:
        """The number of replicas that one call of input_fn feeds."""
        return self.num_replicas // self.num_invocations

    @property
    def input_fn_batch_size(self) -> int | None:
        """The `params["batch_size"]` of input_fn."""
        size = self.global_batch_size
        if size is None or self.pipeline in (None, *_CALLED_ONCE):
            return size
        if self.is_replica_across_hosts or self.pipeline in (
            InputPipelineConfig.PER_SHARD_V1,
            InputPipelineConfig.PER_HOST_V2,
        ):
            return size // self.num_replicas
        return size // self.num_hosts

    @property
    def model_fn_batch_size(self) -> int | None:
        """The `params["batch_size"]` of model_fn."""
        size = self.global_batch_size
        if size is None or self.pipeline in (
            None,
            InputPipelineConfig.BROADCAST,
        ):
            return size
        return size // self.num_replicas

    def check(self) -> None:
        """Raises an error if these hosts cannot run the batch size or mode.

        Raises:
          tfembed.errors.ArgumentError: (also ValueError) the text says what to
            change.
        """
        if self.pipeline is None:
            return
        name = _BATCH_SIZES[self.mode]
        if self.global_batch_size is None:
            method = {"train": "train", "eval": "evaluate"}.get(name, "predict")
            raise errors.ArgumentError(
                f"{name}_batch_size in TPUEstimator constructor cannot be "
                f"`None` if .{method} is running on TPU."
            )
        if (
            self.global_batch_size % self.num_replicas
            and self.pipeline not in _CALLED_ONCE
        ):
            raise errors.ArgumentError(
                f"{name} batch size {self.global_batch_size} must be divisible "
                f"by number of replicas {self.num_replicas}."
            )
        if self.mode == ModeKeys.TRAIN or self.num_hosts == 1:
            return
        allowed = self.pipeline in _CALLED_ONCE or (
            self.pipeline == InputPipelineConfig.PER_HOST_V2
            and (self.mode == ModeKeys.EVAL or self.num_replicas == 1)
        )
        if not allowed:
            method, more = (
                ("evaluate", "")
                if self.mode == ModeKeys.EVAL
                else ("predict", " with num_replicas=1")
            )
            raise errors.ArgumentError(
                f"TPUEstimator.{method} is only supported under three "
                "conditions: 1. num_hosts=1; 2. BROADCAST mode; 3. PER_HOST_V2 "
                f"mode{more}. Got the mode {self.pipeline} with "
                f"{self.num_hosts} hosts and {self.num_replicas} replicas."
            )


_CALLED_ONCE = (InputPipelineConfig.BROADCAST, InputPipelineConfig.SLICED)
_BATCH_SIZES = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "predict",
}


def pipeline_in_mode(config: Any, mode: str) -> int:
    """Returns the `InputPipelineConfig` that `config` has for a mode."""
    if mode == ModeKeys.TRAIN:
        return int(config.per_host_input_for_training)
    if config.eval_training_input_configuration == InputPipelineConfig.SLICED:
        return InputPipelineConfig.SLICED
    if config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1:
        return InputPipelineConfig.PER_HOST_V1
    return int(config.per_host_input_for_training)


class DeploymentContext:
    """The batch sizes and TPU systems that all calls of an estimator share.

    The first call that needs the system of a master finds it; others reuse it.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        batch_sizes: dict[str, int | None],
        use_tpu: bool,
        eval_on_tpu: bool,
    ) -> None:
        self.config = config
        self._batch_sizes = batch_sizes
        self._use_tpu = use_tpu
        self._eval_on_tpu = eval_on_tpu
        self._systems: dict[str, TPUSystem] = {}
        self._engines: dict[str, int] = {}

    def in_mode(self, mode: str) -> ModeContext:
        """Returns the context of a mode."""
        on_cpu = not self._use_tpu or (
            mode == ModeKeys.EVAL and not self._eval_on_tpu
        )
        return ModeContext(self, mode, on_cpu)

    def of_export(self) -> ModeContext:
        """Returns the context of an exported model, which has one replica."""
        return ModeContext(self, ModeKeys.PREDICT, on_cpu=True)

    def batch_size(self, mode: str) -> int | None:
        """Returns the global batch size of a mode."""
        return self._batch_sizes.get(mode)

    def system(self, master: str) -> TPUSystem:
        """Returns the TPUSystem of a master."""
        if master not in self._systems:
            found = self._systems[master] = find_system(self.config, master)
            job = self.config.tpu_config.tpu_job_name
            if job and found.is_simulated:
                tf.compat.v1.logging.info(
                    "TPUConfig(tpu_job_name=%r) is ignored: no TPU runs the "
                    "replicas.",
                    job,
                )
        return self._systems[master]

    def embedding_engine(self, master: str) -> int:
        """Returns the version of a TPU's embedding engine; 0 without one."""
        if master not in self._engines:
            found = _query(self.config, master, with_topology=True)
            self._engines[master] = tpu_programs.embedding_engine(
                found.topology
            )
        return self._engines[master]


class ModeContext:
    """The batch plan of a mode, with the devices of its hosts and replicas."""

    def __init__(
        self, deployment: DeploymentContext, mode: str, on_cpu: bool
    ) -> None:
        self._deployment = deployment
        self.mode = mode
        self.config = deployment.config
        self.is_running_on_cpu = on_cpu
        self.model_parallelism_enabled = not on_cpu and bool(
            self.config.tpu_config.num_cores_per_replica
        )
        self._assignment: Any = None

    @property
    def master(self) -> str:
        """The session's master in this mode."""
        if self.mode == ModeKeys.EVAL:
            return str(self.config.evaluation_master)
        return str(self.config.master)

    @property
    def system(self) -> TPUSystem:
        """The cores and hosts; on a CPU, one of each."""
        if self.is_running_on_cpu:
            return TPUSystem(1, 1, 1, is_simulated=True, is_strict=False)
        return self._deployment.system(self.master)

    @property
    def embedding_engine(self) -> int:
        """The version of the TPU's embedding engine; 0 without one."""
        if self.system.is_simulated:
            return 0
        return self._deployment.embedding_engine(self.master)

    @property
    def plan(self) -> BatchPlan:
        """The BatchPlan of this mode."""
        size = self._deployment.batch_size(self.mode)
        if self.is_running_on_cpu:
            return BatchPlan(self.mode, None, size)
        tpu_config, system = self.config.tpu_config, self.system
        per_replica = tpu_config.num_cores_per_replica
        return BatchPlan(
            self.mode,
            pipeline_in_mode(tpu_config, self.mode),
            size,
            system.num_hosts,
            count_replicas(system.num_cores, per_replica),
            per_replica is not None
            and per_replica > system.num_of_cores_per_host,
        )

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return self.plan.num_replicas

    def validate(self) -> None:
        """Checks the configuration against the system.

        Raises:
          tfembed.errors.ArgumentError: (also ValueError) they do not agree.
        """
        if self.is_running_on_cpu:
            return
        tpu_config, system, plan = (
            self.config.tpu_config,
            self.system,
            self.plan,
        )
        if tpu_config.num_shards not in (None, plan.num_replicas):
            raise errors.ArgumentError(
                "TPUConfig.num_shards is not set correctly: for the master "
                f"{self.master!r}, which has {system.num_cores} cores, it must "
                f"be the number of replicas, {plan.num_replicas}, or None; got "
                f"{tpu_config.num_shards}."
            )
        per_replica = tpu_config.num_cores_per_replica
        if (
            plan.is_replica_across_hosts
            and plan.pipeline != InputPipelineConfig.PER_HOST_V2
        ):
            raise errors.ArgumentError(
                "Except the PER_HOST_V2 mode, the num of cores required by "
                "model parallelism specified by "
                "TPUConfig.num_cores_per_replica should be less than or equal "
                "to the num_cores_per_host. num_cores_per_replica: "
                f"{per_replica}, num_cores_per_host: "
                f"{system.num_of_cores_per_host}."
            )
        plan.check()

    @property
    def master_job(self) -> str | None:
        """Returns the job name of the TPU's hosts; None for this process.

        Raises:
          tfembed.errors.ArgumentError: several jobs of the cluster match.
        """
        if self.config.tpu_config.tpu_job_name and not self.system.is_simulated:
            return str(self.config.tpu_config.tpu_job_name)
        session_config = self.config.session_config
        try:
            job = tpu_programs.master_job(
                self.master,
                session_config.cluster_def if session_config else None,
            )
        except ValueError as error:
            raise errors.ArgumentError(
                f"{error} Please specify a tpu_job_name as part of your "
                "TPUConfig."
            ) from error
        return job

    def host_device(self, host: int) -> str:
        """Returns the CPU device of a host."""
        job = self.master_job
        if job is None:
            return "/replica:0/task:0/device:CPU:0"
        return f"/job:{job}/task:{host}/device:CPU:0"

    def device_for_replica(self, replica: int) -> tuple[str, int]:
        """Returns the CPU device of a replica's host, and its core there."""
        job = self.master_job
        if self.model_parallelism_enabled:
            assignment = self.device_assignment
            return (
                assignment.host_device(replica=replica, job=job),
                assignment.tpu_ordinal(replica=replica),
            )
        per_host = self.plan.num_of_replicas_per_host
        prefix = "" if job is None else f"/job:{job}"
        host, ordinal = divmod(replica, per_host)
        return f"{prefix}/task:{host}/device:CPU:0", ordinal

    def host_of_replica(self, replica: int) -> int:
        """Returns the number of the host that feeds a replica."""
        device, _ = self.device_for_replica(replica)
        return int(tf.DeviceSpec.from_string(device).task or 0)

    @property
    def device_assignment(self) -> Any:
        """The DeviceAssignment of cores; None without model parallelism."""
        if not self.model_parallelism_enabled:
            return None
        if self._assignment is None:
            self._assignment = tpu_programs.device_assignment(
                self.system.topology,
                computation_shape=_COMPUTATION_SHAPES[
                    self.config.tpu_config.num_cores_per_replica
                ],
                num_replicas=self.num_replicas,
            )
        return self._assignment


@dataclasses.dataclass(frozen=True)
class Invocation:
    """One call of input_fn.

    Attributes:
      device: the CPU device of the host.
      host: the number of the host.
      index: the number of the call, from 0.
    """

    device: str
    host: int
    index: int


class TPUContext:
    """Tells a user's function where it runs: `params["context"]`.

    An input_fn queries its own call (`current_input_fn_deployment`,
    `current_host`), a model_fn the cores of a replica (`device_assignment`).
    On a CPU there is one host with one replica.
    """

    def __init__(
        self, context: ModeContext, invocation: Invocation | None = None
    ) -> None:
        self._context = context
        self._invocation = invocation

    def __deepcopy__(self, memo: dict[int, Any]) -> TPUContext:
        """Returns a shallow copy: params are copied for each call."""
        return copy.copy(self)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Identifies this call of input_fn.

        Returns:
          The device of the call, its number, the number of all calls, and the
          number of replicas that its data feed.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) the caller is a
            model_fn.
        """
        call, plan = self._call(), self._context.plan
        return (
            call.device,
            call.index,
            plan.num_invocations,
            plan.replicas_per_invocation,
        )

    @property
    def current_host(self) -> int:
        """The number of the host of this call of input_fn."""
        return self._call().host

    @property
    def num_replicas(self) -> int:
        """The number of replicas of the model."""
        return self._context.plan.num_replicas

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return self._context.plan.num_hosts

    @property
    def num_of_replicas_per_host(self) -> int:
        """The number of replicas of each host.

        Raises:
          tfembed.errors.ArgumentError: (also ValueError) a replica has several
            cores.
        """
        if self._context.model_parallelism_enabled:
            raise errors.ArgumentError(
                "num_of_replicas_per_host is not supported for "
                "model_parallelism: use num_replicas and num_hosts."
            )
        return self._context.plan.num_of_replicas_per_host

    @property
    def device_assignment(self) -> Any:
        """The DeviceAssignment of cores; None without model parallelism.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) the caller is an
            input_fn.
        """
        if self._invocation is not None:
            raise errors.StateError(
                "This TPUContext instance must not be called from input_fn."
            )
        return self._context.device_assignment

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """Returns the CPU device of a replica's host, and its core there."""
        return self._context.device_for_replica(replica_id)

    @property
    def tpu_host_placement_function(self) -> Callable[[int], str]:
        """Returns a function from a host's number to its device."""
        return lambda host_id: self._context.host_device(host_id)

    def _call(self) -> Invocation:
        if self._invocation is None:
            raise errors.StateError(
                "This TPUContext instance must not be called from model_fn."
            )
        return self._invocation
