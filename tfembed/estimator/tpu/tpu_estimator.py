"""`TPUEstimator`: an Estimator whose model_fn runs on several replicas."""

from __future__ import annotations

import contextlib
import copy
import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import exports, input_functions, private, sigterm
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.engine import EngineSystem
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.tpu_tables import TpuTables
from tfembed.estimator.estimator import (
    Estimator,
    metric_ops,
)
from tfembed.estimator.keras_layers import call_with_keras_layers
from tfembed.estimator.replicas import order_reads_before_writes
from tfembed.estimator.spec import EstimatorSpec, ModeKeys
from tfembed.estimator.tpu import export, loops, replicated_steps
from tfembed.estimator.tpu.config import InputPipelineConfig, RunConfig
from tfembed.estimator.tpu.context import (
    DeploymentContext,
    Invocation,
    ModeContext,
    TPUContext,
)
from tfembed.estimator.tpu.input_pipeline import (
    Batches,
    InputPipeline,
    ReplicaBatch,
)
from tfembed.estimator.tpu.spec import (
    TPUEstimatorSpec,
    with_host_features,
)
from tfembed.estimator.warm_start import WarmStartSettings

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
        self._api_version = _api_version(export_saved_model_api_version)
        if (
            params is None
            and model_fn is not None
            and "params" in private.fn_args(model_fn)
        ):
            params = {}  # Non-empty when model_fn is called.
        super().__init__(
            model_fn,  # type: ignore[arg-type] # Estimator refuses None.
            model_dir=model_dir,
            config=config,
            params=params,
            warm_start_from=warm_start_from,
        )
        self._ctx = DeploymentContext(
            self._config,  # type: ignore[arg-type] # as `config` is.
            batch_sizes=batch_sizes,
            use_tpu=use_tpu,
            eval_on_tpu=eval_on_tpu,
        )
        self._iterations = loops.parse_iterations_per_loop(
            config.tpu_config.iterations_per_loop
        )
        self._batch_axis = batch_axis
        self._export_to_tpu = export_to_tpu
        self._export_to_cpu = export_to_cpu
        self._embedding_spec = embedding_config_spec
        self._host_features = tuple(host_features)
        self._is_predicting = False

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions until the input ends.

        As `Estimator.predict`. On replicas, one prediction runs at a time:
        exhaust or close a generator before the next.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) another generator of
            this estimator has not ended.
        """
        with self._alone_on_replicas():
            yield from super().predict(
                input_fn,
                predict_keys,
                hooks,
                checkpoint_path,
                yield_single_examples,
            )

    @contextlib.contextmanager
    def _alone_on_replicas(self) -> Iterator[None]:
        if self._ctx.in_mode(ModeKeys.PREDICT).is_running_on_cpu:
            yield
            return
        if self._is_predicting:
            raise errors.StateError(
                "A generator of predict() has not ended, and replicas run one "
                "prediction at a time. Take all it yields, or call its close()."
            )
        self._is_predicting = True
        try:
            yield
        finally:
            self._is_predicting = False

    def _create_global_step(self, graph: Any) -> Any:
        """Makes the global step as a resource variable, which replicas need."""
        if tf.compat.v1.train.get_global_step(graph) is not None:
            raise errors.ArgumentError(
                '"global_step" already exists. The estimator makes it.'
            )
        with graph.as_default(), tf.name_scope(""):
            return tf.compat.v1.get_variable(
                tf.compat.v1.GraphKeys.GLOBAL_STEP,
                shape=[],
                dtype=tf.int64,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                use_resource=True,
                collections=[
                    tf.compat.v1.GraphKeys.GLOBAL_VARIABLES,
                    tf.compat.v1.GraphKeys.GLOBAL_STEP,
                ],
            )

    def _convert_train_steps_to_hooks(
        self, steps: int | None, max_steps: int | None
    ) -> list[Any]:
        if self._ctx.in_mode(ModeKeys.TRAIN).is_running_on_cpu:
            return super()._convert_train_steps_to_hooks(steps, max_steps)
        if steps is None and max_steps is None:
            raise errors.ArgumentError(
                "For TPU training, one of `steps` or `max_steps` must be set. "
                "Cannot be both `None`."
            )
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None:
                loops.check_positive_integer(value, f"Train {name}")
        return [loops.TPUStopAtStepHook(self._iterations, steps, max_steps)]

    def _convert_eval_steps_to_hooks(self, steps: int | None) -> list[Any]:
        if self._ctx.in_mode(ModeKeys.EVAL).is_running_on_cpu:
            return super()._convert_eval_steps_to_hooks(steps)
        if steps is None:
            return [loops.SetIterationsHook(1)]
        loops.check_positive_integer(steps, "Eval steps")
        return [
            private.stop_after_evals(steps),
            loops.SetIterationsHook(steps),
        ]

    def _get_features_and_labels_from_input_fn(
        self, input_fn: Callable[..., Any], mode: str
    ) -> tuple[Any, Any, list[Any]]:
        """Returns the input of all replicas, as the features."""
        batches = self._batches(input_fn, mode)
        return batches, None, batches.hooks

    def _get_features_from_input_fn(
        self, input_fn: Callable[..., Any], mode: str
    ) -> tuple[Any, list[Any]]:
        batches = self._batches(input_fn, mode)
        return batches, batches.hooks

    def _batches(self, input_fn: Callable[..., Any], mode: str) -> Batches:
        context = self._ctx.in_mode(mode)
        if context.is_running_on_cpu:
            features, labels, hooks = input_functions.parse_input_fn_result(
                self._call_input_fn(input_fn, mode)
            )
            if mode == ModeKeys.PREDICT:
                self._validate_features_in_predict_input(features)
                labels = None
            return Batches([ReplicaBatch(features, labels)], hooks)
        context.validate()
        self._host_tables(context)  # Raises errors before the input is made.
        return InputPipeline(
            lambda user_context: self._call_with_params(
                input_fn, context, user_context
            ),
            context,
            self._batch_axis,
        ).batches()

    def _call_input_fn(
        self,
        input_fn: Callable[..., Any],
        mode: str,
        input_context: Any = None,
    ) -> Any:
        context = self._ctx.in_mode(mode)
        if (
            self._config.tpu_config.eval_training_input_configuration  # type: ignore[attr-defined]
            == InputPipelineConfig.SLICED
            and mode != ModeKeys.TRAIN
        ):
            raise errors.ArgumentError(
                "Invalid TPUConfig `eval_training_input_configuration` value. "
                "SLICED mode only works on use_tpu = True."
            )
        device = "/device:CPU:0"
        with tf.device(device):
            return self._call_with_params(
                input_fn,
                context,
                TPUContext(context, Invocation(device, 0, 0)),
                input_context,
            )

    def _call_with_params(
        self,
        input_fn: Callable[..., Any],
        context: ModeContext,
        user_context: TPUContext,
        input_context: Any = None,
    ) -> Any:
        """Calls an input_fn with the arguments it has, and its own params."""
        if "params" not in private.fn_args(input_fn):
            raise errors.ArgumentError(
                f"input_fn ({input_fn}) does not include params argument, "
                "required by TPUEstimator to pass batch size as "
                'params["batch_size"].'
            )
        params = self.params
        size = context.plan.input_fn_batch_size
        if size is not None:
            _add(params, "batch_size", size)
        _add(params, "context", user_context)
        return input_functions.call_with_known(
            input_fn,
            {
                "params": params,
                "config": self.config,
                "mode": context.mode,
                "input_context": input_context,
            },
        )

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, config: Any
    ) -> EstimatorSpec:
        """Builds a step for `Batches`, or a graph to export for features."""
        with with_host_features(self._host_features):
            return self._step_of(features, labels, mode, config)

    def _step_of(
        self, features: Any, labels: Any, mode: str, config: Any
    ) -> EstimatorSpec:
        if not isinstance(features, Batches):
            params = self._params_of_export(use_tpu=False)
            return self._on_cpu(features, labels, mode, config, params)
        context = self._ctx.in_mode(mode)
        if context.is_running_on_cpu:
            batch = features.of_replicas[0]
            params = self._params_of_model(context)
            return self._on_cpu(
                batch.features, batch.labels, mode, config, params
            )
        parts = self._parts(features, context, config)
        if mode == ModeKeys.TRAIN:
            return replicated_steps.train_step(parts)
        return replicated_steps.predict_step(parts)

    def _call_model_fn_eval(
        self, input_fn: Callable[..., Any]
    ) -> tuple[EstimatorSpec, Any, dict[str, Any], list[Any]]:
        context = self._ctx.in_mode(ModeKeys.EVAL)
        if context.is_running_on_cpu:
            return super()._call_model_fn_eval(input_fn)
        batches = self._batches(input_fn, ModeKeys.EVAL)
        with with_host_features(self._host_features):
            spec, metrics = replicated_steps.eval_step(
                self._parts(batches, context, self.config)
            )
        update_op, results = metric_ops(metrics)
        return spec, update_op, results, batches.hooks

    def _examples_in(self, features: Any) -> Any:
        size = self._ctx.batch_size(ModeKeys.TRAIN)
        if size is not None:
            return size
        return features.of_replicas[0].features

    def _run_train_steps(self, session: Any, spec: EstimatorSpec) -> Any:
        """Runs loops until a hook or the end of the input stops training."""
        loss = None
        with contextlib.suppress(
            tf.errors.OutOfRangeError, StopIteration, errors.StoppedError
        ):
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        in_loops = [
            hook.num_steps
            for hook in spec.training_hooks
            if isinstance(hook, loops.LoopHook)
        ]
        if loss is None and not any(in_loops):
            tf.compat.v1.logging.warn(
                "Training with estimator made no steps. Perhaps input is empty"
                " or misspecified."
            )
        return loss

    def _run_predictions(
        self, session: Any, predictions: Any, graph: Any
    ) -> Iterator[Any]:
        """Yields batches; hooks see only the first batch of each loop."""
        context = self._ctx.in_mode(ModeKeys.PREDICT)
        if context.is_running_on_cpu or self._iterations.unit != "count":
            yield from super()._run_predictions(session, predictions, graph)
            return
        fetches = [predictions, loops.step_of_prediction(graph)]
        while not session.should_stop():
            for i in range(self._iterations.value):
                with graph.as_default():
                    if i == 0:
                        batch = session.run(predictions)
                    else:
                        batch, signals = session.run_step_fn(
                            lambda step_context: step_context.session.run(
                                fetches
                            )
                        )
                        if signals[0]:
                            return
                sigterm.check("a prediction")
                yield batch

    def _add_meta_graph_for_mode(
        self,
        builder: Any,
        input_receiver_fn_map: Mapping[str, Any],
        checkpoint_path: str,
        save_variables: bool = True,
        mode: str = ModeKeys.PREDICT,
        export_tags: Any = None,
        check_variables: bool = True,
        strip_default_attrs: bool = True,
    ) -> None:
        """Adds the graphs for CPUs and for TPUs, as configured."""
        if not (self._export_to_cpu or self._export_to_tpu):
            raise errors.ArgumentError(
                "One of export_to_cpu and export_to_tpu must be true."
            )
        to_tpu = self._export_to_tpu and mode == ModeKeys.PREDICT
        if self._export_to_tpu and not to_tpu:
            tf.compat.v1.logging.warn(
                "Only the mode PREDICT is exported for TPUs. The graph of the "
                "mode %s is exported for CPUs.",
                mode,
            )
        to_cpu = self._export_to_cpu or not to_tpu
        if to_cpu:
            super()._add_meta_graph_for_mode(
                builder,
                input_receiver_fn_map,
                checkpoint_path,
                save_variables,
                mode,
                export_tags,
                check_variables,
                strip_default_attrs,
            )
        if not to_tpu:
            return
        with tf.Graph().as_default() as graph:
            self._create_and_assert_global_step(graph)
            tf.compat.v1.random.set_random_seed(self._config.tf_random_seed)
            receiver = input_receiver_fn_map[mode]()
            try:
                spec = self._spec_on_tpu(receiver.features)
            except Exception as error:
                if not to_cpu:
                    raise
                tf.compat.v1.logging.error(
                    "The export has no graph for TPUs, as its model_fn cannot "
                    "run there: %s: %s Set export_to_tpu=False if none is "
                    "needed.",
                    type(error).__name__,
                    error,
                )
                return
            session_config = tf.compat.v1.ConfigProto()
            session_config.CopyFrom(self._session_config)
            # TPU ops cannot be placed on this machine, and need not: none
            # runs.
            session_config.graph_options.place_pruned_graph = True
            exports.add_meta_graph(
                builder,
                spec,
                receiver,
                mode=mode,
                checkpoint_path=checkpoint_path,
                save_variables=save_variables and not to_cpu,
                session_config=session_config,
                tags=[tf.saved_model.SERVING, tf.saved_model.TPU],
                check_variables=not to_cpu,
                strip_default_attrs=strip_default_attrs,
            )

    def _spec_on_tpu(self, features: Any) -> EstimatorSpec:
        """Builds the graph for serving on a TPU."""
        params = self._params_of_export(use_tpu=True)
        tables = None
        if HostTables.needed(self._embedding_spec, on_tpu=False):
            tables = HostTables(
                self._embedding_spec,  # type: ignore[arg-type] # is needed.
                ModeKeys.PREDICT,
                on_tpu=False,
            )
            features = tables.look_up([features])[0]

        def call_model(given: Any) -> Any:
            return self._call_users_model_fn(
                replicated_steps.with_padding(given, None),
                None,
                ModeKeys.PREDICT,
                self.config,
                params,
            )

        with private.inference_context():
            if self._api_version == ExportSavedModelApiVersion.V1:
                spec = export.spec_on_tpu(call_model, features)
            else:
                spec = call_model(features)
        if isinstance(spec, TPUEstimatorSpec):
            spec = spec.as_estimator_spec()
        if tables is not None:
            tables.make_variables()
        return spec

    def _parts(
        self, batches: Batches, context: ModeContext, config: Any
    ) -> replicated_steps.StepParts:
        params = self._params_of_model(context)
        return replicated_steps.StepParts(
            context,
            batches,
            lambda features, labels: self._call_users_model_fn(
                features,
                labels,
                context.mode,
                config,
                params,
                context.num_replicas,
            ),
            self._tables(context),
            self._host_features,
        )

    def _tables(self, context: ModeContext) -> HostTables | TpuTables | None:
        """Returns the tables of a step; None without tables."""
        on_host = self._host_tables(context)
        if on_host is not None and _is_for_engine(context):
            tables = TpuTables(
                self._embedding_spec,  # type: ignore[arg-type] # is needed.
                context.mode,
                _engine_system(context),
            )
            if tables.on_host:
                tf.compat.v1.logging.info(
                    "These tables are in host memory, not in the TPU's "
                    "embedding engine: %s.",
                    tables.on_host,
                )
            if tables.feature_keys:
                return tables
        return on_host

    def _host_tables(self, context: ModeContext) -> HostTables | None:
        if not HostTables.needed(self._embedding_spec, on_tpu=True):
            return None
        return HostTables(
            self._embedding_spec,  # type: ignore[arg-type] # is needed.
            context.mode,
            num_replicas=context.num_replicas,
            batch_size=context.plan.model_fn_batch_size,
        )

    def _params_of_model(self, context: ModeContext) -> Any:
        params = self.params
        size = context.plan.model_fn_batch_size
        if size is not None:
            _add(params, "batch_size", size)
        _add(params, "use_tpu", not context.is_running_on_cpu)
        _add(params, "context", TPUContext(context))
        return params

    def _params_of_export(self, *, use_tpu: bool) -> Any:
        params = self.params
        _add(params, "use_tpu", use_tpu)
        _add(params, "context", TPUContext(self._ctx.of_export()))
        return params

    def _call_users_model_fn(
        self,
        features: Any,
        labels: Any,
        mode: str,
        config: Any,
        params: Any,
        num_replicas: int = 1,
    ) -> Any:
        names = private.fn_args(self._model_fn)
        if labels is not None and "labels" not in names:
            raise errors.ArgumentError(
                "model_fn does not take labels, but input_fn returns labels. "
                "Add the argument `labels`, or return features only."
            )
        if "params" not in names:
            raise errors.ArgumentError(
                f"model_fn ({self._model_fn}) does not include params "
                "argument, required by TPUEstimator to pass batch size as "
                "params['batch_size']."
            )
        given = {
            "features": features,
            "labels": labels,
            "mode": mode,
            "params": params,
            "config": copy.deepcopy(config),
        }
        return call_with_keras_layers(
            lambda: input_functions.call_with_known(self._model_fn, given),
            mode,
            self._config.tf_random_seed,
            private.replica_id if num_replicas > 1 else None,
        )

    def _on_cpu(
        self, features: Any, labels: Any, mode: str, config: Any, params: Any
    ) -> EstimatorSpec:
        """Builds the step of a single replica with the whole batch."""
        on_host: dict[str, Any] = {}
        if self._host_features and isinstance(features, dict):
            features = features.copy()
            on_host = {
                name: features.pop(name)
                for name in self._host_features
                if name in features
            }
        tables, training = None, mode == ModeKeys.TRAIN
        if HostTables.needed(self._embedding_spec, on_tpu=False):
            tables = HostTables(
                self._embedding_spec,  # type: ignore[arg-type] # is needed.
                mode,
                on_tpu=False,
            )
            features = tables.look_up([features])[0]
            features = tables.capture(features)
        features = replicated_steps.with_padding(features, None)
        spec = self._call_users_model_fn(features, labels, mode, config, params)
        if isinstance(spec, TPUEstimatorSpec):
            spec = spec.as_estimator_spec(**on_host)
        if not isinstance(spec, EstimatorSpec):
            raise errors.ArgumentError(
                "model_fn should return a TPUEstimatorSpec or an "
                f"EstimatorSpec. Given {type(spec).__name__}: {spec}."
            )
        if tables is not None:
            gradients = tables.gradients() if training else []
            tables.make_variables()
            if training:
                update = tables.update([gradients])
                spec = spec._replace(train_op=tf.group(spec.train_op, update))
        if on_host and isinstance(spec.predictions, dict):
            spec = spec._replace(predictions={**on_host, **spec.predictions})
        if training:
            order_reads_before_writes(
                [spec.train_op, spec.loss, *_host_ops(spec)]
            )
        return spec


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


def _is_for_engine(context: ModeContext) -> bool:
    """Whether tables go to a TPU's embedding engine; logs the reason if not."""
    if context.system.is_simulated:
        return False
    version = context.embedding_engine
    if version == 1 and not context.model_parallelism_enabled:
        return True
    tf.compat.v1.logging.info(
        "Tables are in host memory: %s.",
        "a replica has several cores"
        if version == 1
        else "the TPU has no embedding engine of version 1, but "
        f"{version or 'none'}",
    )
    return False


def _engine_system(context: ModeContext) -> EngineSystem:
    size = context.plan.model_fn_batch_size
    assert size is not None  # `BatchPlan.check` has refused None.
    return EngineSystem(
        [context.host_device(host) for host in range(context.plan.num_hosts)],
        [
            context.device_for_replica(replica)
            for replica in range(context.num_replicas)
        ],
        size,
    )


def _api_version(given: Any) -> ExportSavedModelApiVersion:
    try:
        return ExportSavedModelApiVersion(given)
    except ValueError:
        raise errors.ArgumentError(
            f"export_saved_model_api_version should be 1 or 2; got {given!r}."
        ) from None


def _add(params: Any, key: str, value: Any) -> None:
    """Sets a key of params, which are a dict or an HParams object."""
    if not hasattr(params, "set_hparam"):
        params[key] = value
    elif key in params:
        params.set_hparam(key, value)
    else:
        params.add_hparam(key, value)


def _host_ops(spec: EstimatorSpec) -> list[Any]:
    return [
        op
        for hook in spec.training_hooks
        if isinstance(hook, loops.HostOpsHook)
        for op in hook.ops
    ]
