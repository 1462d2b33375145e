"""Configures a TPUEstimator: `TPUConfig`, and the `RunConfig` that holds it."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import run_config
from tfembed.estimator.tpu import loops

_CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)


class InputPipelineConfig:
    """How batches are distributed to hosts and replicas.

    `context.py` has a table of the modes with their calls and batch sizes.
    """

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class TPUConfig(
    collections.namedtuple(
        "TPUConfig",
        [
            "iterations_per_loop",
            "num_shards",
            "num_cores_per_replica",
            "per_host_input_for_training",
            "tpu_job_name",
            "initial_infeed_sleep_secs",
            "input_partition_dims",
            "eval_training_input_configuration",
            "experimental_host_call_every_n_steps",
            "experimental_allow_per_host_v2_parallel_get_next",
            "experimental_feed_hook",
            "check_cross_replica",
            "strict_tpu",
        ],
    )
):
    """Configures the steps, replicas and inputs of a TPU.

    Args:
      iterations_per_loop: The number of steps between two returns to the host,
        where hooks run; or a time: "30s", "5m" or "1h". An evaluation of N
        steps runs them all in one loop.
      num_shards: The number of replicas. On a TPU it must be None or the
        number that the TPU has; elsewhere this number is simulated.
      num_cores_per_replica: The number of cores of one replica of a
        model-parallel model: 1, 2, 4, ... 128.
      per_host_input_for_training: An `InputPipelineConfig` other than SLICED.
        True means PER_HOST_V1, False PER_SHARD_V1.
      tpu_job_name: The job name of the TPU's hosts, if a cluster has several
        jobs.
      initial_infeed_sleep_secs: How long the first batch waited for the
        compiler of old TPUs; ignored here, with a line in the log.
      input_partition_dims: How tensors are split over the cores of a replica:
        one or two structures like features and labels, with a list of parts
        per dimension, or None for a tensor that each core gets whole.
      eval_training_input_configuration: SLICED calls input_fn once and gives
        each replica a slice, in evaluation and prediction. PER_HOST_V1 follows
        per_host_input_for_training.
      experimental_host_call_every_n_steps: The number of steps from one
        host_call to the next in a loop. The first step of each loop has one.
      experimental_allow_per_host_v2_parallel_get_next: Whether replicas may
        take their batches in any order.
      experimental_feed_hook: A class of hooks that fed a TPU in place of the
        estimator's; ignored here, with a line in the log.
      check_cross_replica: Whether training refuses a model without any
        cross-replica sum. Without the check each replica trains its own model,
        and only that of replica 0 is kept.
      strict_tpu: Whether simulated replicas refuse dynamic shapes, as a TPU's
        compiler does.

    Raises:
      ValueError: A value is not allowed, or two values contradict each other.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        iterations_per_loop: int | str = 2,
        num_shards: int | None = None,
        num_cores_per_replica: int | None = None,
        per_host_input_for_training: int | bool = True,
        tpu_job_name: str | None = None,
        initial_infeed_sleep_secs: int | None = None,
        input_partition_dims: Sequence[Any] | None = None,
        eval_training_input_configuration: int = (
            InputPipelineConfig.PER_HOST_V1
        ),
        experimental_host_call_every_n_steps: int = 1,
        experimental_allow_per_host_v2_parallel_get_next: bool = False,
        experimental_feed_hook: Any = None,
        check_cross_replica: bool = True,
        strict_tpu: bool = False,
    ) -> TPUConfig:
        loops.parse_iterations_per_loop(iterations_per_loop)
        if num_shards is not None:
            loops.check_positive_integer(num_shards, "TPUConfig num_shards")
        if initial_infeed_sleep_secs:
            loops.check_positive_integer(
                initial_infeed_sleep_secs,
                "TPUConfig initial_infeed_sleep_secs",
            )
        loops.check_positive_integer(
            experimental_host_call_every_n_steps,
            "TPUConfig experimental_host_call_every_n_steps",
        )
        if num_cores_per_replica not in (None, *_CORES_PER_REPLICA):
            raise errors.ArgumentError(
                "num_cores_per_replica must be 1, 2, 4, 8, 16, 32, 64, 128; "
                f"got {num_cores_per_replica}."
            )
        pipeline = _pipeline(per_host_input_for_training)
        _check_partition(input_partition_dims, pipeline, num_cores_per_replica)
        if eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise errors.ArgumentError(
                "eval_training_input_configuration must be PER_HOST_V1 or "
                f"SLICED; got {eval_training_input_configuration}."
            )
        for name, value in (
            ("initial_infeed_sleep_secs", initial_infeed_sleep_secs),
            ("experimental_feed_hook", experimental_feed_hook),
        ):
            if value:
                tf.compat.v1.logging.warn(
                    "TPUConfig(%s=%r) has no effect: batches go with each "
                    "step, and no thread of a hook feeds them.",
                    name,
                    value,
                )
        return super().__new__(
            cls,
            iterations_per_loop,
            num_shards,
            num_cores_per_replica,
            pipeline,
            tpu_job_name or _job_name_of_environment(),
            initial_infeed_sleep_secs,
            input_partition_dims,
            eval_training_input_configuration,
            experimental_host_call_every_n_steps,
            experimental_allow_per_host_v2_parallel_get_next,
            experimental_feed_hook,
            check_cross_replica,
            strict_tpu,
        )

    def _replace(self, **fields: Any) -> TPUConfig:
        """Returns a validated copy with other values in some fields."""
        return TPUConfig(**{**self._asdict(), **fields})


def _pipeline(given: Any) -> int:
    if given is True:
        return InputPipelineConfig.PER_HOST_V1
    if given is False:
        return InputPipelineConfig.PER_SHARD_V1
    if given not in (
        InputPipelineConfig.PER_SHARD_V1,
        InputPipelineConfig.PER_HOST_V1,
        InputPipelineConfig.PER_HOST_V2,
        InputPipelineConfig.BROADCAST,
    ):
        raise errors.ArgumentError(
            "per_host_input_for_training must be True, False, or PER_SHARD_V1, "
            "PER_HOST_V1, PER_HOST_V2 or BROADCAST of InputPipelineConfig; got "
            f"{given!r}. SLICED is a value of "
            "eval_training_input_configuration."
        )
    return int(given)


def _check_partition(dims: Any, pipeline: int, cores: int | None) -> None:
    if dims is None:
        return
    if len(dims) not in (1, 2):
        raise errors.ArgumentError(
            "input_partition_dims must be a list/tuple with one or two "
            f"elements, for features and labels; got {dims!r}."
        )
    if pipeline != InputPipelineConfig.PER_HOST_V2:
        raise errors.ArgumentError(
            "input_partition_dims is only supported in PER_HOST_V2 mode."
        )
    if cores is None:
        raise errors.ArgumentError(
            "input_partition_dims requires setting num_cores_per_replica."
        )
    if dims[0] is None:
        raise errors.ArgumentError(
            "input_partition_dims[0] must not be None: it says how features "
            f"are cut; got {dims!r}."
        )


def _job_name_of_environment() -> str | None:
    try:
        service = json.loads(os.environ.get("TF_CONFIG") or "{}")["service"]
        name = service["tpu_worker_job_name"]
    except (KeyError, TypeError, ValueError):
        return None  # RunConfig reports the error in TF_CONFIG.
    tf.compat.v1.logging.info("TPU job name in TF_CONFIG: %s", name)
    return str(name)


class RunConfig(run_config.RunConfig):
    """How and where a TPUEstimator runs.

    Args:
      tpu_config: A `TPUConfig`; None is the default one.
      evaluation_master: The address of the session that evaluates; None: the
        same as `master`.
      master: The address of the session that trains and predicts.
      cluster: A `tf.distribute.cluster_resolver.ClusterResolver` that resolves
        the address.
      require_tpu: Whether to raise an error instead of simulating replicas if
        there is no TPU.
      **kwargs: The arguments of `tfembed.estimator.RunConfig`.

    Raises:
      ValueError: Both `master` and `cluster` are given, or a cluster and a
        `session_config` with a cluster of its own; or a value is not allowed.
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        *,
        require_tpu: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._tpu_config = tpu_config or TPUConfig()
        self._cluster = cluster
        self._require_tpu = require_tpu
        if not self.num_ps_replicas:
            # One process drives all workers of a TPU: no device filters.
            self._session_config = kwargs.get("session_config")
        if master is not None and cluster is not None:
            raise errors.ArgumentError(
                "Both master and cluster are set. Give one of them."
            )
        if master is not None:
            self._master = master
        elif cluster is not None:
            self._master = cluster.master()
        if evaluation_master is not None:
            self._evaluation_master = evaluation_master
        elif (
            not self._evaluation_master
            and self.task_type != run_config.TaskType.EVALUATOR
        ):
            self._evaluation_master = self._master
        if cluster is not None:
            self._join_cluster(cluster)

    _master: str
    _evaluation_master: str

    def _join_cluster(self, cluster: Any) -> None:
        self._cluster_spec = cluster.cluster_spec()
        session_config = tf.compat.v1.ConfigProto()
        if self._session_config is None:
            session_config.allow_soft_placement = True
            session_config.isolate_session_state = True
        else:
            session_config.CopyFrom(self._session_config)
        if session_config.HasField("cluster_def"):
            raise errors.ArgumentError(
                "You cannot provide a ClusterResolver and "
                "session_config.cluster_def. Give one of them."
            )
        if self._cluster_spec:
            session_config.cluster_def.CopyFrom(
                self._cluster_spec.as_cluster_def()
            )
        self._session_config = session_config

    @property
    def tpu_config(self) -> TPUConfig:
        """The `TPUConfig`."""
        return self._tpu_config

    @property
    def cluster(self) -> Any:
        """The ClusterResolver, or None."""
        return self._cluster

    @property
    def require_tpu(self) -> bool:
        """Whether a missing TPU is an error."""
        return self._require_tpu

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with other values in some of the arguments.

        `tpu_config` is one of these arguments.
        """
        tpu_config = kwargs.pop("tpu_config", self._tpu_config)
        copy: Any = super().replace(**kwargs)
        copy._tpu_config = tpu_config
        return copy
