"""The steps of a TPUEstimator: a model_fn on several replicas, or on one."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.engine import EngineSystem
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.tpu_tables import TpuTables
from tfembed.estimator.models import input_functions
from tfembed.estimator.models.keras_layers import call_with_keras_layers
from tfembed.estimator.models.steps import (
    ServedGraph,
    StepInput,
    Steps,
    metrics_of,
    predict_batches,
    stop_after_evaluations,
    stop_at_step,
    warn_of_endless_input,
    warn_of_no_steps,
)
from tfembed.estimator.private import tpu_programs, v1_sessions
from tfembed.estimator.replicas import order_reads_before_writes
from tfembed.estimator.runs import sigterm
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


@dataclasses.dataclass(frozen=True)
class ReplicaOptions:
    """The arguments of a TPUEstimator that its steps need.

    Attributes:
      model_fn: The model_fn.
      params: The hyperparameters, which each call gets a copy of.
      context: The batch sizes and TPU systems of all modes.
      batch_axis: The dimensions along which batches are split; None: the first.
      export_to_tpu, export_to_cpu: Which graphs to export.
      rewrites_exports: Whether the steps put an exported model on the TPU; else
        the model_fn does.
      embedding_spec: The tables beside the model; None without.
      host_features: The names of features that stay on the host.
    """

    model_fn: Callable[..., Any]
    params: Any
    context: DeploymentContext
    batch_axis: Sequence[int] | None
    export_to_tpu: bool
    export_to_cpu: bool
    rewrites_exports: bool
    embedding_spec: EmbeddingConfigSpec | None
    host_features: tuple[str, ...]


class ReplicaSteps(Steps):
    """The steps of a model_fn on replicas, or on one with the whole batch.

    Args:
      options: The estimator's arguments.
    """

    def __init__(self, options: ReplicaOptions) -> None:
        self._options = options
        self._ctx = options.context
        self._config: RunConfig = options.context.config
        self._iterations = loops.parse_iterations_per_loop(
            self._config.tpu_config.iterations_per_loop
        )
        self._is_predicting = False

    def make_global_step(self, graph: Any) -> Any:
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

    def hooks_of_training(  # noqa: D102 - as Steps'
        self, steps: int | None, max_steps: int | None
    ) -> list[Any]:
        if self._ctx.in_mode(ModeKeys.TRAIN).is_running_on_cpu:
            return stop_at_step(steps, max_steps)
        if steps is None and max_steps is None:
            raise errors.ArgumentError(
                "For TPU training, one of `steps` or `max_steps` must be set. "
                "Cannot be both `None`."
            )
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None:
                loops.check_positive_integer(value, f"Train {name}")
        return [loops.TPUStopAtStepHook(self._iterations, steps, max_steps)]

    def hooks_of_evaluation(  # noqa: D102 - as Steps'
        self, steps: int | None
    ) -> list[Any]:
        if self._ctx.in_mode(ModeKeys.EVAL).is_running_on_cpu:
            return stop_after_evaluations(steps)
        if steps is None:
            return [loops.SetIterationsHook(1)]
        loops.check_positive_integer(steps, "Eval steps")
        return [
            v1_sessions.stop_after_evals(steps),
            loops.SetIterationsHook(steps),
        ]

    def take_input(self, input_fn: Callable[..., Any], mode: str) -> StepInput:
        """Makes the input of all replicas, as the features: `Batches`."""
        context = self._ctx.in_mode(mode)
        if context.is_running_on_cpu:
            features, labels, hooks = input_functions.parse_input_fn_result(
                self.call_input_fn(input_fn, mode)
            )
            if mode == ModeKeys.PREDICT:
                warn_of_endless_input(features)
                labels = None
            batches = Batches([ReplicaBatch(features, labels)], hooks)
            return self._given(batches)
        context.validate()
        self._host_tables(context)  # Raises errors before the input is made.
        batches = InputPipeline(
            lambda user_context: self._call_with_params(
                input_fn, context, user_context
            ),
            context,
            self._options.batch_axis,
        ).batches()
        return self._given(batches)

    def _given(self, batches: Batches) -> StepInput:
        size = self._ctx.batch_size(ModeKeys.TRAIN)
        examples = batches.by_replica[0].features if size is None else size
        return StepInput(batches, None, list(batches.hooks), examples)

    def call_input_fn(  # noqa: D102 - as Steps'
        self,
        input_fn: Callable[..., Any],
        mode: str,
        input_context: Any = None,
    ) -> Any:
        context = self._ctx.in_mode(mode)
        if (
            self._config.tpu_config.eval_training_input_configuration
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
        if "params" not in v1_sessions.fn_args(input_fn):
            raise errors.ArgumentError(
                f"input_fn ({input_fn}) does not include params argument, "
                "required by TPUEstimator to pass batch size as "
                'params["batch_size"].'
            )
        params = copy.deepcopy(self._options.params)
        size = context.plan.input_fn_batch_size
        if size is not None:
            _add(params, "batch_size", size)
        _add(params, "context", user_context)
        return input_functions.call_with_known(
            input_fn,
            {
                "params": params,
                "config": copy.deepcopy(self._config),
                "mode": context.mode,
                "input_context": input_context,
            },
        )

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: Any
    ) -> EstimatorSpec:
        """Builds a step for `Batches`, or a graph to export for features."""
        with with_host_features(self._options.host_features):
            return self._step_of(features, labels, mode, config)

    def _step_of(
        self, features: Any, labels: Any, mode: str, config: Any
    ) -> EstimatorSpec:
        if not isinstance(features, Batches):
            params = self._params_of_export(use_tpu=False)
            return self._on_cpu(features, labels, mode, config, params)
        context = self._ctx.in_mode(mode)
        if context.is_running_on_cpu:
            batch = features.by_replica[0]
            params = self._params_of_model(context)
            return self._on_cpu(
                batch.features, batch.labels, mode, config, params
            )
        parts = self._parts(features, context, config)
        if mode == ModeKeys.TRAIN:
            return replicated_steps.train_step(parts)
        return replicated_steps.predict_step(parts)

    def evaluate(  # noqa: D102 - as Steps'
        self, given: StepInput
    ) -> tuple[EstimatorSpec, dict[str, tuple[Any, Any]]]:
        context = self._ctx.in_mode(ModeKeys.EVAL)
        config = copy.deepcopy(self._config)
        if context.is_running_on_cpu:
            spec = self.call_model_fn(
                given.features, None, ModeKeys.EVAL, config
            )
            return spec, metrics_of(spec)
        with with_host_features(self._options.host_features):
            return replicated_steps.eval_step(
                self._parts(given.features, context, config)
            )

    def train(self, session: Any, spec: EstimatorSpec) -> Any:
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
            warn_of_no_steps()
        return loss

    def predict(
        self, session: Any, predictions: Any, graph: Any
    ) -> Iterator[Any]:
        """Yields batches; hooks see only the first batch of each loop."""
        context = self._ctx.in_mode(ModeKeys.PREDICT)
        if context.is_running_on_cpu or self._iterations.unit != "count":
            yield from predict_batches(session, predictions, graph)
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

    @contextlib.contextmanager
    def predicting(self) -> Iterator[None]:
        """Raises an error if another prediction of replicas runs."""
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

    def served_graphs(self, mode: str) -> list[ServedGraph]:
        """Returns the graphs for CPUs and for TPUs, as configured.

        Raises:
          tfembed.errors.ArgumentError: (also ValueError) neither is asked for.
        """
        options = self._options
        if not (options.export_to_cpu or options.export_to_tpu):
            raise errors.ArgumentError(
                "One of export_to_cpu and export_to_tpu must be true."
            )
        to_tpu = options.export_to_tpu and mode == ModeKeys.PREDICT
        if options.export_to_tpu and not to_tpu:
            tf.compat.v1.logging.warn(
                "Only the mode PREDICT is exported for TPUs. The graph of the "
                "mode %s is exported for CPUs.",
                mode,
            )
        to_cpu = options.export_to_cpu or not to_tpu
        graphs = []
        if to_cpu:
            graphs.append(
                ServedGraph(
                    lambda features, labels: self.call_model_fn(
                        features, labels, mode, copy.deepcopy(self._config)
                    ),
                    self._config.session_config,
                )
            )
        if to_tpu:
            session_config = tf.compat.v1.ConfigProto()
            session_config.CopyFrom(self._config.session_config)
            # TPU ops cannot be placed on this machine, and need not: none
            # runs.
            session_config.graph_options.place_pruned_graph = True
            graphs.append(
                ServedGraph(
                    lambda features, labels: self._spec_on_tpu(
                        features, is_needed=not to_cpu
                    ),
                    session_config,
                    [tf.saved_model.SERVING, tf.saved_model.TPU],
                    checks_variables=not to_cpu,
                )
            )
        return graphs

    def _spec_on_tpu(
        self, features: Any, *, is_needed: bool
    ) -> EstimatorSpec | None:
        """Builds the graph for serving on a TPU; None if there can be none."""
        try:
            return self._built_on_tpu(features)
        except Exception as error:
            if is_needed:
                raise
            tf.compat.v1.logging.error(
                "The export has no graph for TPUs, as its model_fn cannot "
                "run there: %s: %s Set export_to_tpu=False if none is "
                "needed.",
                type(error).__name__,
                error,
            )
            return None

    def _built_on_tpu(self, features: Any) -> EstimatorSpec:
        params = self._params_of_export(use_tpu=True)
        tables = None
        if HostTables.needed(self._options.embedding_spec, on_tpu=False):
            tables = HostTables(
                self._options.embedding_spec,  # type: ignore[arg-type] # is needed.
                ModeKeys.PREDICT,
                on_tpu=False,
            )
            features = tables.look_up([features])[0]

        def call_model(given: Any) -> Any:
            return self._call_users_model_fn(
                replicated_steps.with_padding(given, None),
                None,
                ModeKeys.PREDICT,
                copy.deepcopy(self._config),
                params,
            )

        with tpu_programs.inference_context():
            if self._options.rewrites_exports:
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
            self._options.host_features,
        )

    def _tables(self, context: ModeContext) -> HostTables | TpuTables | None:
        """Returns the tables of a step; None without tables."""
        on_host = self._host_tables(context)
        if on_host is not None and _is_for_engine(context):
            tables = TpuTables(
                self._options.embedding_spec,  # type: ignore[arg-type] # is needed.
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
        if not HostTables.needed(self._options.embedding_spec, on_tpu=True):
            return None
        return HostTables(
            self._options.embedding_spec,  # type: ignore[arg-type] # is needed.
            context.mode,
            num_replicas=context.num_replicas,
            batch_size=context.plan.model_fn_batch_size,
        )

    def _params_of_model(self, context: ModeContext) -> Any:
        params = copy.deepcopy(self._options.params)
        size = context.plan.model_fn_batch_size
        if size is not None:
            _add(params, "batch_size", size)
        _add(params, "use_tpu", not context.is_running_on_cpu)
        _add(params, "context", TPUContext(context))
        return params

    def _params_of_export(self, *, use_tpu: bool) -> Any:
        params = copy.deepcopy(self._options.params)
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
        names = v1_sessions.fn_args(self._options.model_fn)
        if labels is not None and "labels" not in names:
            raise errors.ArgumentError(
                "model_fn does not take labels, but input_fn returns labels. "
                "Add the argument `labels`, or return features only."
            )
        if "params" not in names:
            raise errors.ArgumentError(
                f"model_fn ({self._options.model_fn}) does not include params "
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
            lambda: input_functions.call_with_known(
                self._options.model_fn, given
            ),
            mode,
            self._config.tf_random_seed,
            tpu_programs.replica_id if num_replicas > 1 else None,
        )

    def _on_cpu(
        self, features: Any, labels: Any, mode: str, config: Any, params: Any
    ) -> EstimatorSpec:
        """Builds the step of a single replica with the whole batch."""
        on_host: dict[str, Any] = {}
        if self._options.host_features and isinstance(features, dict):
            features = features.copy()
            on_host = {
                name: features.pop(name)
                for name in self._options.host_features
                if name in features
            }
        tables, training = None, mode == ModeKeys.TRAIN
        if HostTables.needed(self._options.embedding_spec, on_tpu=False):
            tables = HostTables(
                self._options.embedding_spec,  # type: ignore[arg-type] # is needed.
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


def _is_for_engine(context: ModeContext) -> bool:
    """Says whether a TPU's engine has the tables; logs the reason if not."""
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
