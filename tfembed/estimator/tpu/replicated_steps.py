"""Builds the graph of one step on simulated replicas, for each mode.

    input of the replicas -> lookups of tables
      -> R replicas of model_fn (tfembed.estimator.replicas)
      -> tensors of all replicas concatenated -> host_call, metric_fn
      -> updates of tables

`LoopHook` runs a step as often as a loop has steps. A replica returns all its
outputs in one structure, so that model_fn is called once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings.host_tables import HostTables, note_layers
from tfembed.estimator.embeddings.tpu_tables import TpuTables
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.replicas import (
    Replicas,
    order_reads_before_writes,
    replicate,
)
from tfembed.estimator.spec import (
    EstimatorSpec,
    ModeKeys,
    check_metric_names,
)
from tfembed.estimator.tpu import loops, padding
from tfembed.estimator.tpu.config import InputPipelineConfig
from tfembed.estimator.tpu.context import ModeContext
from tfembed.estimator.tpu.input_pipeline import (
    Batches,
    ReplicaBatch,
    check_static,
    named,
    paths,
)
from tfembed.estimator.tpu.spec import HostCall, TPUEstimatorSpec
from tfembed.estimator.tpu.tpu_graph import EngineParts, replicate_on_tpu

_V1_SUMMARIES = frozenset(
    {
        "AudioSummary",
        "AudioSummaryV2",
        "HistogramSummary",
        "ImageSummary",
        "MergeSummary",
        "ScalarSummary",
        "TensorSummary",
        "TensorSummaryV2",
    }
)
_GIGABYTE = 1 << 30
# The fields of a Scaffold that a model_fn may set.
_SCAFFOLD = (
    "init_op",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
    "saver",
    "init_fn",
)

# Calls the user's model_fn with features and labels, and checks the result.
ModelCall = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class StepParts:
    """The parts of a step.

    Attributes:
      context: The context of the mode.
      batches: The input of the replicas.
      call_model: Calls the model_fn.
      tables: The embedding tables; None without.
      host_features: The names of features that stay on the host.
    """

    context: ModeContext
    batches: Batches
    call_model: ModelCall
    tables: HostTables | TpuTables | None = None
    host_features: Sequence[str] = ()


class _Step:
    """A step of all replicas, with the outputs of each replica.

    Args:
      parts: The parts of the step.
      hand_out: Converts the model_fn's spec to the outputs of a replica: a
        structure of tensors and ops.
    """

    def __init__(
        self, parts: StepParts, hand_out: Callable[[Any], dict[str, Any]]
    ) -> None:
        self._parts = parts
        self._context = parts.context
        self._is_broadcast = (
            parts.context.plan.pipeline == InputPipelineConfig.BROADCAST
        )
        batches = parts.batches.by_replica
        if self._is_broadcast:
            self._masks = [batches[0].mask]
        else:
            self._masks = [batch.mask for batch in batches]
        # The number of replicas with rows of their own.
        self.num_parts = len(self._masks)
        self._keep_mixed: dict[str, list[bool]] = {}
        batches = self._keep_on_host(batches)
        if parts.tables is not None:
            looked_up = parts.tables.look_up(
                [batch.features for batch in batches]
            )
            batches = [
                dataclasses.replace(batch, features=features)
                for batch, features in zip(batches, looked_up)
            ]
        self._check_inputs(batches[0])
        self.spec: Any = None
        fields = [batch.fields() for batch in batches]

        def step(*flat: Any) -> dict[str, Any]:
            given = tf.nest.pack_sequence_as(
                fields[0], flat, expand_composites=True
            )
            self.spec = self._call_model(given)
            handed = hand_out(self.spec)
            self._note_padding(handed, given.get("mask"))
            if (
                parts.tables is not None
                and parts.context.mode == ModeKeys.TRAIN
            ):
                handed["gradients"] = parts.tables.gradients()
            return handed

        inputs = [
            tf.nest.flatten(field, expand_composites=True) for field in fields
        ]
        self.hooks: list[Any] = []
        self._replicas: Replicas
        if parts.context.system.is_simulated:
            self._replicas = replicate(step, inputs)
        else:
            engine = self._engine
            self._replicas, self.hooks = replicate_on_tpu(
                step,
                inputs,
                parts.context,
                in_loops=parts.context.mode != ModeKeys.PREDICT,
                engine=None
                if engine is None
                else EngineParts(engine.proto, engine.enqueued),
            )
        self.start_of_loop = self._replicas.start_of_loop
        self.has_collectives = self._replicas.has_collectives
        self.ops = self._replicas.ops
        if parts.tables is not None:
            parts.tables.make_variables()
        if self._engine is not None:
            # The hook that initializes the engine comes first.
            self.hooks.append(self._engine.hook())

    @property
    def _engine(self) -> TpuTables | None:
        """The tables of a TPU's embedding engine; None without an engine."""
        tables = self._parts.tables
        return tables if isinstance(tables, TpuTables) else None

    def end_of_loop(self, step: Any) -> Any:
        """Returns an op that ends after the step and the loop it completes."""
        end = self._replicas.end_of_loop
        return step if end is None else tf.group(step, end)

    def _keep_on_host(self, batches: list[ReplicaBatch]) -> list[ReplicaBatch]:
        """Removes the host's features from the replicas' batches."""
        self.on_host: dict[str, list[Any]] = {}
        names = self._parts.host_features
        if not names:
            return batches
        left = []
        taken: dict[str, list[Any]] = {name: [] for name in names}
        for batch in batches:
            features = batch.features
            missing = set(names) - set(
                features if isinstance(features, Mapping) else ()
            )
            if missing:
                raise errors.ArgumentError(
                    f"host_features names {sorted(missing)}, which input_fn "
                    f"does not return: its features are {features!r}."
                )
            features = dict(features)
            for name in names:
                taken[name].append(features.pop(name))
            left.append(dataclasses.replace(batch, features=features))
        self.on_host = taken
        return left

    def _check_inputs(self, batch: ReplicaBatch) -> None:
        """Raises an error that names an input which a TPU cannot take."""
        strict = self._context.system.is_strict
        for what, structure in (
            ("features", batch.features),
            ("labels", batch.labels),
        ):
            for name, tensor in named(structure):
                if tensor.dtype == tf.string:
                    of = f" '{name}'" if name else ""
                    raise errors.DtypeError(
                        f"The {what}{of} given by input_fn are strings, which "
                        "a replica of a TPU cannot take. Turn them into "
                        "numbers in input_fn, or name the feature in "
                        "TPUEstimator(host_features=[...]): host_call and "
                        f"predictions get it then. Tensor: {tensor}."
                    )
                if strict:
                    check_static(what, name, tensor)

    def _call_model(self, given: dict[str, Any]) -> Any:
        features, mask = given["features"], given.get("mask")
        # The model increments the global step.
        first = self._engine.read_rates() if self._engine else []
        if self._parts.tables is not None:
            features = self._parts.tables.capture(features)
        if self._parts.tables is not None or self._engine is not None:
            note_layers()
        with tf.control_dependencies(first):
            return self._parts.call_model(
                with_padding(features, mask), given.get("labels")
            )

    def of_replicas(self, name: str) -> list[Any]:
        """Returns the output `name` of each replica."""
        return [outputs[name] for outputs in self._replicas.outputs]

    def _note_padding(self, handed: dict[str, Any], mask: Any) -> None:
        """Notes which tensors for the host have left padding out themselves."""
        if mask is None:
            return
        for name in ("eval_metrics", "host_call", "predictions"):
            self._keep_mixed[name] = [
                padding.leaves_padding_out(tensor, mask)
                for tensor in handed.get(name, ())
            ]

    def gathered(self, name: str, names: Sequence[str]) -> list[Any]:
        """Joins each tensor of the output `name`, without rows of padding.

        Args:
          name: The name of the output.
          names: The names of its tensors, for errors.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) a tensor is a scalar.
        """
        of_tensors = list(zip(*self.of_replicas(name)))
        keep_mixed = self._keep_mixed.get(name) or [False] * len(of_tensors)
        return [
            self._joined(parts, f"{name}: the tensor {tensor}", keeps)
            for parts, tensor, keeps in zip(of_tensors, names, keep_mixed)
        ]

    def host_features(self) -> dict[str, Any]:
        """Joins the features that stay on the host, without padding."""
        return {
            name: self._joined(parts, f"host_features: the feature {name}")
            for name, parts in self.on_host.items()
        }

    def _joined(
        self, parts: Sequence[Any], what: str, keeps_mixed: bool = False
    ) -> Any:
        if self._is_broadcast:
            parts = parts[:1]
        elif isinstance(parts[0], tf.Tensor) and parts[0].shape.rank == 0:
            raise errors.StateError(
                "All tensors outfed from TPU should preserve batch size "
                f"dimension, but got scalar {parts[0]}. Give it one, by "
                "tf.reshape(tensor, [1])."
            )
        return padding.rows_of_data(
            parts,
            None if self._masks[0] is None else self._masks,
            what,
            keeps_mixed=keeps_mixed,
            way_out=" Or leave padding out in the model_fn, by the feature "
            "is_padding, which every model_fn has: all rows are kept then.",
        )

    def mean(self, tensors: list[Any]) -> Any:
        """Returns the mean of a scalar over replicas."""
        if self._is_broadcast or len(tensors) == 1:
            return tensors[0]
        return tf.reduce_mean(tf.stack(tensors), 0)

    def real_rows(self) -> list[Any] | None:
        """Returns the number of data rows of each replica; None: all rows."""
        if self._masks[0] is None:
            return None
        return [tf.reduce_sum(1 - mask) for mask in self._masks]

    def host_call(
        self, call: HostCall | None, name: str, *, unless: Any = None
    ) -> Any:
        """Calls a host function with the tensors of all replicas.

        The tensors have no rows of padding (`padding.rows_of_data`). A
        function with an argument named like a host feature gets that feature.

        Args:
          call: The function, or None.
          name: The name of the replicas' output with its tensors.
          unless: A bool tensor; if it is true, the ops that use the tensors do
            not run.
        """
        if call is None:
            return None
        tensors = self.gathered(name, call.paths)
        more = self.host_features()
        if unless is not None:
            tensors, more = tf.nest.map_structure(
                lambda t: tf.raw_ops.Switch(data=t, pred=unless).output_false,
                (tensors, more),
                expand_composites=True,
            )
        with refusing_v1_summaries(name):
            return call(tensors, **more)


def with_padding(features: Any, mask: Any) -> Any:
    """Adds `is_padding` to a dict of features; returns others unchanged.

    Args:
      features: The features of input_fn.
      mask: [batch], 1 for a row of padding; None without padding.
    """
    if not isinstance(features, dict):
        return features

    def is_padding() -> Any:
        if mask is not None:
            return tf.cast(mask, tf.bool)
        for _, tensor in named(features):
            if isinstance(tensor, tf.Tensor):
                return tf.zeros(tf.shape(tensor)[:1], tf.bool)
        raise errors.ArgumentError(
            "features['is_padding'] needs a dense feature, by which the rows "
            f"are counted; features are {dict(features)}."
        )

    return padding.FeaturesWithPadding(features, is_padding)


@contextlib.contextmanager
def refusing_v1_summaries(name: str) -> Iterator[None]:
    """Raises an error if a host function uses `tf.compat.v1.summary`."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    for op in graph.get_operations()[before:]:
        if op.type in _V1_SUMMARIES:
            raise errors.ArgumentError(
                f"The function of {name} makes a summary of "
                f"tf.compat.v1.summary ('{op.name}'), which nothing would "
                "write. Use tf.summary with a writer of "
                "tf.summary.create_file_writer there, or make the summary in "
                "model_fn."
            )


@contextlib.contextmanager
def refusing_captures(what: str, graph: Any, ops: frozenset[Any]) -> Any:
    """Raises an error if new ops use tensors of a replica."""
    before = len(graph.get_operations())
    yield
    for op in graph.get_operations()[before:]:
        for tensor in op.inputs:
            if tensor.op in ops:
                raise errors.ArgumentError(
                    f"{what}: Op {op.name} depends on TPU computation "
                    f"{tensor.name}, which is not allowed. Such a tensor "
                    "exists only in a replica: pass it to host_call, and make "
                    "summaries there."
                )


def make_scaffold(spec: Any, replica_ops: frozenset[Any]) -> Any:
    """Returns the result of scaffold_fn, which must not use replicas' tensors.

    Without a scaffold_fn the result is None.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the result uses such
        tensors, or is None.
    """
    scaffold_fn = getattr(spec, "scaffold_fn", None)
    if scaffold_fn is None:
        return None
    graph = tf.compat.v1.get_default_graph()
    with refusing_captures("Inside scaffold_fn", graph, replica_ops):
        scaffold = scaffold_fn()
    if scaffold is None:
        raise errors.ArgumentError(
            "TPUEstimatorSpec.scaffold_fn returns None, which is not allowed. "
            "Return a tf.compat.v1.train.Scaffold."
        )
    finalize = scaffold.finalize

    def finalize_without_captures() -> Any:
        with refusing_captures(
            "Inside Scaffold.finalize, which merges summaries",
            graph,
            replica_ops,
        ):
            return finalize()

    scaffold.finalize = finalize_without_captures
    return scaffold


def train_step(parts: StepParts) -> EstimatorSpec:
    """Builds a training step of all replicas.

    Returns:
      A spec whose train_op makes the last step of a loop; its last training
      hook makes the other steps.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) replicas cannot run the
        model_fn's spec.
    """
    context = parts.context
    tpu_config = context.config.tpu_config

    def hand_out(spec: Any) -> dict[str, Any]:
        _check_train_spec(spec)
        call = HostCall.checked("host_call", getattr(spec, "host_call", None))
        return {
            "loss": spec.loss,
            "train_op": _as_operation(spec.train_op),
            "host_call": [] if call is None else list(call.tensors),
        }

    step = _Step(parts, hand_out)
    spec = step.spec
    if (
        context.num_replicas > 1
        and not step.has_collectives
        and tpu_config.check_cross_replica
    ):
        raise errors.ArgumentError(
            "CrossShardOptimizer must be used for model training on TPUs: no "
            f"op of the model_fn's train_op sums over the "
            f"{context.num_replicas} replicas, so each would train its own "
            "model. Wrap the optimizer, as "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer), or, to train "
            "several models, set TPUConfig(check_cross_replica=False)."
        )
    ops: list[Any] = step.of_replicas("train_op")
    if parts.tables is not None:
        ops.append(parts.tables.update(step.of_replicas("gradients")))
    # Before host_call: its summaries have their own frequency.
    ops += summary_ops()
    order_reads_before_writes([*ops, *_summaries_of(step)])
    scaffold = make_scaffold(spec, step.ops)
    with summaries_apart():
        host_ops = step.host_call(
            HostCall.checked("host_call", getattr(spec, "host_call", None)),
            "host_call",
        )
    loss = step.mean(step.of_replicas("loss"))
    one_step = tf.group(*ops, loss, name="tpu_estimator_step")
    last_step = step.end_of_loop(one_step)
    hook = loops.LoopHook(
        one_step,
        iterations=loops.iterations_per_loop_variable(),
        host_ops=host_ops,
        host_ops_every=tpu_config.experimental_host_call_every_n_steps,
        start=step.start_of_loop,
    )
    return EstimatorSpec(
        ModeKeys.TRAIN,
        loss=loss,
        train_op=tf.group(last_step, *_checks(context, last_step)),
        scaffold=scaffold,
        training_hooks=(
            *spec.training_hooks,
            *step.hooks,
            hook,
        ),
    )


def eval_step(parts: StepParts) -> tuple[EstimatorSpec, dict[str, Any]]:
    """Builds an evaluation step of all replicas.

    Returns:
      A spec, and its metrics by name, with the metric of the loss.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) the model_fn's spec has no
        metric function.
    """

    def hand_out(spec: Any) -> dict[str, Any]:
        if not isinstance(spec, TPUEstimatorSpec):
            raise errors.StateError(
                "estimator_spec used by TPU evaluation must have type "
                f"`TPUEstimatorSpec`. Got {type(spec)}. Return one with "
                "`eval_metrics`, or evaluate on the CPU by eval_on_tpu=False."
            )
        calls = _calls(spec)
        return {
            "loss": spec.loss,
            **{name: list(call.tensors) for name, call in calls.items()},
        }

    step = _Step(parts, hand_out)
    spec = step.spec
    calls = _calls(spec)
    scaffold = make_scaffold(spec, step.ops)
    losses = step.of_replicas("loss")
    loss = step.mean(losses)
    metrics = step.host_call(calls.get("eval_metrics"), "eval_metrics") or {}
    check_metric_names(metrics)
    host_ops = step.host_call(calls.get("host_call"), "host_call")
    spec_of_cpu = EstimatorSpec(
        ModeKeys.EVAL,
        loss=loss,
        eval_metric_ops=metrics,
        scaffold=scaffold,
    )
    update = {
        **spec_of_cpu.eval_metric_ops,
        "loss": _mean_loss(losses, step.real_rows()),
    }
    updates = tf.group(*[pair[1] for pair in update.values()])
    last_step = step.end_of_loop(updates)
    checks = _checks(parts.context, last_step)
    counted = tf.compat.v1.assign_add(
        v1_sessions.eval_step(), 1, use_locking=True
    )
    hook = loops.LoopHook(
        updates,
        iterations=loops.iterations_per_loop_variable(),
        host_ops=host_ops,
        start=step.start_of_loop,
        before_last=counted,
    )
    spec_of_cpu = spec_of_cpu._replace(
        evaluation_hooks=(
            *spec.evaluation_hooks,
            *step.hooks,
            hook,
        )
    )
    name = next(iter(update))
    value, update_op = update[name]
    update[name] = (value, tf.group(update_op, last_step, *checks))
    return spec_of_cpu, update


def predict_step(parts: StepParts) -> EstimatorSpec:
    """Builds a prediction step of all replicas.

    Returns:
      A spec whose predictions have no rows of padding; a hook stops
      prediction.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) the model_fn returned
        another type of spec.
      tfembed.errors.ArgumentError: (also ValueError) predictions are too large
        or have no static size.
    """
    strict = parts.context.system.is_strict

    def hand_out(spec: Any) -> dict[str, Any]:
        if not isinstance(spec, TPUEstimatorSpec):
            raise errors.StateError(
                "estimator_spec used by TPU prediction must have type "
                f"`TPUEstimatorSpec`. Got {type(spec)}. Return one with the "
                "same `predictions`; a plain one is for exports alone."
            )
        if strict:
            _check_predictions(spec.predictions)
        return {
            "predictions": tf.nest.flatten(spec.predictions),
            **{
                name: list(call.tensors)
                for name, call in _calls(spec).items()
                if name == "host_call"
            },
        }

    step = _Step(parts, hand_out)
    spec = step.spec
    scaffold = make_scaffold(spec, step.ops)
    predictions = tf.nest.pack_sequence_as(
        spec.predictions, step.gathered("predictions", paths(spec.predictions))
    )
    if isinstance(predictions, dict):
        _check_size(spec.predictions, step)
        predictions = {**step.host_features(), **predictions}
    stopping = parts.batches.by_replica[0].stopping
    made = step.host_call(
        _calls(spec).get("host_call"), "host_call", unless=stopping
    )
    ops = [op for op in tf.nest.flatten(made) if op is not None]
    # Group the ops: tensors that do not run could not be fetched.
    host_ops = [tf.group(*ops)] if ops else []
    hooks: tuple[Any, ...] = (loops.StoppingPredictHook(stopping, host_ops),)
    if host_ops:
        hooks += (loops.HostOpsHook(host_ops),)
    return EstimatorSpec(
        ModeKeys.PREDICT,
        predictions=predictions,
        scaffold=scaffold,
        prediction_hooks=(
            *step.hooks,
            *hooks,
            *spec.prediction_hooks,
        ),
    )


def _check_train_spec(spec: Any) -> None:
    if isinstance(spec, TPUEstimatorSpec):
        return
    if not isinstance(spec, EstimatorSpec):
        raise errors.ArgumentError(
            "model_fn should return a TPUEstimatorSpec or an EstimatorSpec. "
            f"Given {type(spec).__name__}: {spec}."
        )
    if spec.training_chief_hooks:
        raise errors.ArgumentError(
            "training_chief_hooks returned by EstimatorSpec is not supported "
            "in TPUEstimator. If you want to pass training hooks, please pass "
            "via training_hooks."
        )
    given = [name for name in _SCAFFOLD if getattr(spec.scaffold, name, None)]
    if given:
        tf.compat.v1.logging.warn(
            "EstimatorSpec.scaffold is ignored in TPU training; %s of it would "
            "be used. Return a TPUEstimatorSpec with scaffold_fn.",
            given,
        )


def _calls(spec: Any) -> dict[str, HostCall]:
    calls = {
        name: HostCall.checked(name, getattr(spec, name, None))
        for name in ("eval_metrics", "host_call")
    }
    return {name: call for name, call in calls.items() if call is not None}


def _as_operation(train_op: Any) -> Any:
    return train_op if isinstance(train_op, tf.Operation) else train_op.op


def _checks(context: ModeContext, after: Any) -> list[Any]:
    """Returns ops that check the trainable variables for NaN."""
    if context.plan.pipeline == InputPipelineConfig.BROADCAST:
        return []  # The model checks its own variables.
    with tf.control_dependencies([after]):
        return [
            tf.debugging.check_numerics(
                variable.read_value(), f"Gradient for {variable.name} is NaN"
            ).op
            for variable in tf.compat.v1.trainable_variables()
            if variable.dtype.base_dtype.is_floating
        ]


def _mean_loss(losses: list[Any], rows: list[Any] | None) -> Any:
    """Returns the metric of the loss, in which rows of padding do not count."""
    if rows is None:
        return tf.compat.v1.metrics.mean(tf.stack(losses))
    losses = losses[: len(rows)]
    weights = tf.cast(tf.stack(rows), losses[0].dtype)
    values = tf.stack(losses)
    # A replica of only padding may have any loss, even NaN.
    values = tf.where(weights > 0, values, tf.zeros_like(values))
    return tf.compat.v1.metrics.mean(values, weights)


def _check_predictions(predictions: Any) -> None:
    for name, tensor in named(predictions):
        if tensor.shape.rank is None or tensor.shape[:1] == [None]:
            raise errors.ArgumentError(
                f"The tensor with key ({name}) in TPUEstimatorSpec.predictions "
                "has dynamic shape (should be static). Tensor: "
                f"{tensor}."
            )


def _check_size(predictions: dict[str, Any], step: _Step) -> None:
    of_one = {
        **{name: parts[0] for name, parts in step.on_host.items()},
        **predictions,
    }
    sizes = {
        name: (tensor.shape.num_elements() or 0)
        * tensor.dtype.size
        * step.num_parts
        for name, tensor in of_one.items()
        if isinstance(tensor, tf.Tensor)
    }
    if sum(sizes.values()) >= _GIGABYTE:
        raise errors.ArgumentError(
            "The estimated size for TPUEstimatorSpec.predictions is too large: "
            f"{sum(sizes.values())} bytes a step, of at most {_GIGABYTE}. Use a "
            f"smaller predict_batch_size. The sizes are {sizes}."
        )


def _summaries_of(step: _Step) -> list[Any]:
    """Returns the v1 summaries of model_fn."""
    made = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    return [summary for summary in made if summary.op in step.ops]


def summary_ops() -> list[Any]:
    """Returns the ops of `tf.summary` that are in the graph."""
    return list(tf.compat.v1.summary.all_v2_summary_ops() or ())


@contextlib.contextmanager
def summaries_apart() -> Iterator[None]:
    """Removes the block's `tf.summary` ops from the graph's collection.

    Code that runs all ops of the collection would run them at the wrong time.
    """
    collection = v1_sessions.summary_collection(
        tf.compat.v1.get_default_graph()
    )
    before = len(collection)
    yield
    del collection[before:]
