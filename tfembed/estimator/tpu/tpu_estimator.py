"""`TPUEstimator`: an Estimator whose model_fn runs on several replicas."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfembed import errors
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.estimator import Estimator
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs.warm_start import WarmStartSettings
from tfembed.estimator.spec import ModeKeys
from tfembed.estimator.tpu import loops
from tfembed.estimator.tpu.config import InputPipelineConfig, RunConfig
from tfembed.estimator.tpu.context import DeploymentContext
from tfembed.estimator.tpu.steps import ReplicaOptions, ReplicaSteps

_RESERVED = ("batch_size", "context")


class ExportSavedModelApiVersion(enum.Enum):
    """Decides which code puts the graph of an export on the TPU.

    V1: the estimator puts all of model_fn there. V2: the model_fn does it
    itself if `params["use_tpu"]` is true.
    """

    V1 = 1
    V2 = 2


class TPUEstimator(Estimator):
    """Trains, evaluates, predicts and exports a model_fn on replicas.

    The batch sizes given here are those of a step of all replicas. In input_fn
    and model_fn, `params["batch_size"]` is the size of their part,
    `params["use_tpu"]` says whether they run for a replica, and
    `params["context"]` is a `TPUContext` with hosts and devices. A model_fn is
    called once and runs on each replica; it returns a `TPUEstimatorSpec`.

    With `use_tpu=True` and no TPU, this process simulates replicas:
    `TFEMBED_SIMULATED_CORES`, or else `TPUConfig(num_shards)`, is their
    number. With `use_tpu=False` one replica has the whole batch.

    Args:
      model_fn: A function of `features` and `params` and, if it has these
        arguments, `labels`, `mode` and `config`.
      model_dir: The folder of checkpoints and summaries. Default: the folder
        of `config`, or else a temporary one.
      config: A `tfembed.estimator.tpu.RunConfig`.
      params: A dict of hyperparameters for both functions.
      use_tpu: Whether to run on replicas.
      train_batch_size, eval_batch_size, predict_batch_size: The number of
        examples of a step. On replicas, each mode in use needs its batch size.
      batch_axis: For each tensor of features and labels, the dimension along
        which a host's batch is split over its replicas.
      eval_on_tpu: Whether evaluations run on replicas too.
      export_to_tpu, export_to_cpu: Which graphs to export.
      warm_start_from: As for `Estimator`.
      embedding_config_spec: An `EmbeddingConfigSpec` of tables that are looked
        up and trained outside the replicas. A TPU with embedding engine
        version 1 holds the tables that fit into it.
      export_saved_model_api_version: Which code puts an exported graph on the
        TPU.
      host_features: Names of features that stay on the host, for instance
        strings. The model_fn does not get them; predictions do, and host
        functions with arguments of these names.

    Raises:
      ValueError: Arguments contradict each other; the text says what to
        change.
      TypeError: A batch size is not an integer.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: str | WarmStartSettings | None = None,
        embedding_config_spec: EmbeddingConfigSpec | None = None,
        export_saved_model_api_version: ExportSavedModelApiVersion | int = (
            ExportSavedModelApiVersion.V1
        ),
        host_features: Sequence[str] = (),
    ) -> None:
        if not isinstance(config, RunConfig):
            raise errors.ArgumentError(
                "`config` must be provided with type `tpu_config.RunConfig`: "
                f"tfembed.estimator.tpu.RunConfig; got {config!r}."
            )
        if params is not None and any(key in params for key in _RESERVED):
            raise errors.ArgumentError(
                f"{list(_RESERVED)} are reserved keys but existed in params "
                f"{params}: the estimator sets them for each call. Rename "
                "yours."
            )
        batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        if use_tpu and config.num_ps_replicas:
            raise errors.ArgumentError(
                "Replicas are driven from one process and share no parameter "
                f"servers; TF_CONFIG has {config.num_ps_replicas}. Set "
                "use_tpu=False for a cluster with `ps` tasks, or leave these "
                "out of TF_CONFIG."
            )
        if use_tpu:
            _check_batch_sizes(batch_sizes)
            _check_pipeline(config, embedding_config_spec)
        if (
            embedding_config_spec is not None
            and embedding_config_spec.partition_strategy == "mod"
            and not (use_tpu and eval_on_tpu)
        ):
            raise errors.ArgumentError(
                "Mod sharding of embedding tables not supported on CPU. Set "
                "partition_strategy='div' in the EmbeddingConfigSpec."
            )
        # Raises an error for columns that cannot be looked up.
        HostTables.needed(embedding_config_spec, on_tpu=use_tpu)
        api_version = _api_version(export_saved_model_api_version)
        if (
            params is None
            and model_fn is not None
            and "params" in v1_sessions.fn_args(model_fn)
        ):
            params = {}  # Non-empty when model_fn is called.
        super().__init__(
            model_fn,  # type: ignore[arg-type] # Estimator refuses None.
            model_dir=model_dir,
            config=config,
            params=params,
            warm_start_from=warm_start_from,
        )
        self._steps = ReplicaSteps(
            ReplicaOptions(
                self._model_fn,
                self._params,
                DeploymentContext(
                    self._config,  # type: ignore[arg-type] # as `config` is.
                    batch_sizes=batch_sizes,
                    use_tpu=use_tpu,
                    eval_on_tpu=eval_on_tpu,
                ),
                batch_axis,
                export_to_tpu,
                export_to_cpu,
                api_version == ExportSavedModelApiVersion.V1,
                embedding_config_spec,
                tuple(host_features),
            )
        )


def _check_batch_sizes(sizes: Mapping[str, int | None]) -> None:
    if all(size is None for size in sizes.values()):
        raise errors.ArgumentError(
            "`train_batch_size` cannot be `None`, unless eval_batch_size or "
            "predict_batch_size is given: each mode needs its batch size."
        )
    for mode, name in (
        (ModeKeys.TRAIN, "train_batch_size"),
        (ModeKeys.EVAL, "eval_batch_size"),
        (ModeKeys.PREDICT, "predict_batch_size"),
    ):
        if sizes[mode] is not None:
            loops.check_positive_integer(sizes[mode], name)


def _check_pipeline(
    config: RunConfig, spec: EmbeddingConfigSpec | None
) -> None:
    tpu_config = config.tpu_config
    pipeline = tpu_config.per_host_input_for_training
    if (
        pipeline == InputPipelineConfig.PER_SHARD_V1
        and tpu_config.num_cores_per_replica
    ):
        raise errors.ArgumentError(
            "Model parallelism only supports per host input for training. "
            "Please adjust TPUConfig.per_host_input_for_training."
        )
    if spec is not None and pipeline not in (
        InputPipelineConfig.PER_HOST_V1,
        InputPipelineConfig.PER_HOST_V2,
    ):
        raise errors.ArgumentError(
            "Only PER_HOST_V1 and PER_HOST_V2 is supported when using TPU "
            f"Embedding; got {pipeline}."
        )


def _api_version(given: Any) -> ExportSavedModelApiVersion:
    try:
        return ExportSavedModelApiVersion(given)
    except ValueError:
        raise errors.ArgumentError(
            f"export_saved_model_api_version should be 1 or 2; got {given!r}."
        ) from None
