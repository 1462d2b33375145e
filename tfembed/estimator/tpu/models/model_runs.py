"""Training, evaluation, prediction and export of a model object."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.estimator import (
    checkpoints,
    exports,
    reports,
    sessions,
    sigterm,
)
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.spec import ModeKeys
from tfembed.estimator.tpu import loops, padding
from tfembed.estimator.tpu.context import (
    DeploymentContext,
    ModeContext,
    TPUContext,
)
from tfembed.estimator.tpu.models import model_tables
from tfembed.estimator.tpu.models.model_state import (
    ModelState,
    ReplicaInput,
    predictions_of_data,
    restore_objects,
)
from tfembed.estimator.tpu.models.trained_model import model_of

# Calls an input_fn for a mode's context, with the user's params.
InputCall = Callable[[Callable[..., Any], ModeContext, TPUContext], Any]


@dataclasses.dataclass(frozen=True)
class ModelParts:
    """The functions and settings that a TPUEstimator gives its model's runs.

    Attributes:
      make_model: Makes a model from the user's params.
      params: Returns a copy of the user's params for a call.
      context: The batch sizes and TPU systems of all modes.
      call_input_fn: Calls an input_fn with a context.
      batch_axis: As for `TPUEstimator`.
      embedding_spec: The tables besides the model's own; None without.
      warm_start_from: The path of a checkpoint to start from; None without.
    """

    make_model: Callable[..., Any]
    params: Callable[[ModeContext], Any]
    context: DeploymentContext
    call_input_fn: InputCall
    batch_axis: Sequence[int] | None = None
    embedding_spec: EmbeddingConfigSpec | None = None
    warm_start_from: str | None = None


class ModelRuns:
    """Runs a model object under a strategy, for an estimator's methods.

    One model is made for training, and another one for evaluation and
    prediction. Each call starts from the latest checkpoint.

    Args:
      parts: The functions and settings of the estimator.
    """

    def __init__(self, parts: ModelParts) -> None:
        self._parts = parts
        self._config = parts.context.config
        self._states: dict[str, ModelState] = {}

    def train(
        self,
        input_fn: Callable[..., Any],
        *,
        steps: int | None,
        max_steps: int | None,
        listeners: Sequence[Any],
        callbacks: Sequence[Any],
    ) -> Any:
        """Trains from the latest checkpoint; returns the last loss."""
        context = self._context(ModeKeys.TRAIN)
        sessions.check_writable(self._config.model_dir)
        inputs = self._inputs(input_fn, context)
        state = self._state(context, inputs)
        saved = state.latest_checkpoint()
        self._begin(state, saved)
        state.save_input(
            inputs.iterators if self._config.save_input_state else (), saved
        )
        run = _Training(state, self._config, listeners, callbacks)
        goal = max_steps
        if steps is not None:
            goal = state.step + steps
        with sigterm.stopping():
            return run.until(inputs.iterators, goal)

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        *,
        steps: int | None,
        checkpoint: str | None,
        callbacks: Sequence[Any],
        output_dir: str,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint; returns the results by name."""
        sigterm.check("an evaluation")
        context = self._context(ModeKeys.EVAL)
        inputs = self._inputs(input_fn, context)
        state = self._state(context, inputs)
        checkpoint = checkpoint or state.latest_checkpoint()
        self._begin(state, checkpoint)
        state.model.reset_metrics()
        total, rows, done = 0.0, 0.0, 0
        tell = _Callbacks(callbacks, state.model.model, "test")
        tell("begin")
        while steps is None or done < steps:
            try:
                loss, real = state.evaluate(inputs.iterators)
            except tf.errors.OutOfRangeError:
                break
            real = float(real)
            if not real:
                break  # The data of all hosts have ended.
            sigterm.check("an evaluation")
            total, rows, done = total + float(loss), rows + real, done + 1
            tell("batch_end", done, {"loss": total / rows})
        results: dict[str, Any] = {
            name: np.asarray(value)[()]
            for name, value in state.model.metrics().items()
        }
        results["loss"] = np.float32(total / rows) if rows else np.float32(0)
        if not rows:
            results = reports.of_no_rows(results)
        results["global_step"] = np.int64(state.step)
        tell("end", results)
        step = state.step
        with tf.Graph().as_default():  # SummaryWriterCache needs graphs.
            reports.write_dict_to_summary(output_dir, results, step)
            if checkpoint:
                reports.write_checkpoint_path(output_dir, checkpoint, step)
        return results

    def predict(
        self,
        input_fn: Callable[..., Any],
        *,
        checkpoint: str | None,
        callbacks: Sequence[Any],
    ) -> Iterator[Any]:
        """Yields the predictions of batches."""
        sigterm.check("a prediction")
        context = self._context(ModeKeys.PREDICT)
        inputs = self._inputs(input_fn, context)
        state = self._state(context, inputs)
        self._begin(state, checkpoint or state.latest_checkpoint())
        tell = _Callbacks(callbacks, state.model.model, "predict")
        tell("begin")
        done = 0
        while True:
            try:
                predictions, masks = state.predict(inputs.iterators)
            except tf.errors.OutOfRangeError:
                break
            if not any(np.any(mask.numpy() == 0) for mask in masks):
                break
            sigterm.check("a prediction")
            done += 1
            tell("batch_end", done, {"outputs": predictions})
            yield _real_rows(predictions, masks)
        tell("end")

    def export(
        self,
        export_dir_base: str,
        receiver_fn: Callable[[], Any],
        *,
        assets_extra: Mapping[str, str] | None,
        checkpoint: str | None,
    ) -> bytes:
        """Writes a SavedModel that serves the model of a checkpoint."""
        config = self._config
        checkpoint = exports.checkpoint_to_export(
            checkpoint,
            checkpoints.latest_checkpoint(config.model_dir),
            self._parts.warm_start_from,
            config.model_dir,
        )
        context = self._parts.context.in_mode(ModeKeys.PREDICT)
        served = ServedModel(
            lambda: self._parts.make_model(self._parts.params(context)),
            self._parts.embedding_spec,
            receiver_fn,
        )
        return exports.write_folder(
            export_dir_base,
            lambda folder: served.save(folder, checkpoint),
            assets_extra=assets_extra,
        )

    def _context(self, mode: str) -> ModeContext:
        if not tf.executing_eagerly():
            raise errors.StateError(
                "A model object runs in eager mode; it is off here. Call the "
                "estimator outside of graphs, and leave out "
                "tf.compat.v1.disable_eager_execution()."
            )
        context = self._parts.context.in_mode(mode)
        if context.model_parallelism_enabled:
            raise errors.UnsupportedError(
                "A model object has one core for each replica; got "
                "TPUConfig(num_cores_per_replica="
                f"{self._config.tpu_config.num_cores_per_replica}). Leave it "
                "out, or give a model_fn."
            )
        context.validate()
        return context

    def _inputs(
        self, input_fn: Callable[..., Any], context: ModeContext
    ) -> ReplicaInput:
        return ReplicaInput(
            lambda user: self._parts.call_input_fn(input_fn, context, user),
            context,
            self._parts.batch_axis,
            is_static=context.system.is_strict
            or self._parts.embedding_spec is not None,
        )

    def _state(self, context: ModeContext, inputs: ReplicaInput) -> ModelState:
        """Returns the ModelState of a mode, made at the first call."""
        # Evaluation and prediction share a model, unless it has tables, which
        # need one batch size.
        key = context.mode
        if key == ModeKeys.PREDICT and self._parts.embedding_spec is None:
            key = ModeKeys.EVAL
        key = f"{key}, on CPU: {context.is_running_on_cpu}"
        if key not in self._states:
            params = self._parts.params(context)
            self._states[key] = ModelState(
                lambda: self._parts.make_model(params),
                context,
                self._parts.embedding_spec,
            )
        state = self._states[key]
        state.build(inputs)
        return state

    def _begin(self, state: ModelState, checkpoint: str | None) -> None:
        warm = self._parts.warm_start_from
        if checkpoint:
            if warm:
                tf.compat.v1.logging.info(
                    "No warm start: the variables come from checkpoint %s.",
                    checkpoint,
                )
            state.restore(checkpoint)
        elif warm:
            tf.compat.v1.logging.info("Warm-starting from %s.", warm)
            state.restore(warm, step_too=False)
        else:
            tf.compat.v1.logging.info(
                "No checkpoint in %s: the model begins with its initial values.",
                self._config.model_dir,
            )


class _Callbacks:
    """Calls Keras callbacks, or objects with some of their methods.

    Args:
      callbacks: The objects.
      model: The model; its `stop_training` ends training.
      kind: "train", "test" or "predict".
    """

    def __init__(self, callbacks: Sequence[Any], model: Any, kind: str) -> None:
        self._callbacks = list(callbacks)
        self._kind = kind
        for callback in self._callbacks:
            if hasattr(callback, "set_model"):
                callback.set_model(model)

    def __call__(self, moment: str, *values: Any) -> None:
        """Calls the method `on_<kind>_<moment>` of callbacks that have it."""
        for callback in self._callbacks:
            method = getattr(callback, f"on_{self._kind}_{moment}", None)
            if method is not None:
                method(*values)


class _Training:
    """Runs loops of training, with checkpoints and logs between them."""

    def __init__(
        self,
        state: ModelState,
        config: Any,
        listeners: Sequence[Any],
        callbacks: Sequence[Any],
    ) -> None:
        self._state = state
        self._config = config
        self._listeners = list(listeners)
        self._model = state.model.model
        self._tell = _Callbacks(callbacks, self._model, "train")
        self._manager = state.manager(config)
        self._length = loops.parse_iterations_per_loop(
            config.tpu_config.iterations_per_loop
        )
        self._guess = loops.IterationCountEstimator()
        self._saved: tuple[int, float] = (-1, 0.0)
        self._logged: tuple[int, float] | None = None
        self._stops = False
        self._writer = tf.summary.create_file_writer(config.model_dir)

    def until(self, iterators: Sequence[Any], goal: int | None) -> Any:
        """Trains until a step is reached, the data end, or training is stopped.

        Callbacks, listeners and SIGTERM stop training after a loop.

        Returns:
          The loss of the last step; None without a step.
        """
        loss, first = None, self._state.step
        for listener in self._listeners:
            listener.begin()
        self._model.stop_training = False
        self._tell("begin")
        self._save(always=self._config.save_checkpoints_steps is not None)
        with self._writer.as_default(step=self._state.global_step):
            while not self._stops and (goal is None or self._state.step < goal):
                before = self._state.step
                found, ended = self._loop(iterators, goal)
                if self._state.step > before:
                    loss = found
                    # SIGTERM came while a callback or listener evaluated.
                    with contextlib.suppress(errors.StoppedError):
                        self._after_loop(before, loss, goal)
                if ended:
                    break
                if sigterm.came():
                    tf.compat.v1.logging.info(
                        "SIGTERM came: training saves a checkpoint and stops."
                    )
                    break
                self._stops |= bool(self._model.stop_training)
        self._end(goal, first)
        return loss

    def _loop(
        self, iterators: Sequence[Any], goal: int | None
    ) -> tuple[float | None, bool]:
        """Runs a loop; returns its last loss, and whether the data ended."""
        count = self._length.value
        if self._length.unit != "count":
            count = self._guess.get(self._length.value)
        if goal is not None:
            count = min(count, goal - self._state.step)
        began, before = time.perf_counter(), self._state.step
        ended = False
        try:
            self._state.train(iterators, count)
        except tf.errors.OutOfRangeError:
            ended = True
        made = self._state.step - before
        self._guess.update(time.perf_counter() - began, made)
        return float(self._state.last_loss), ended

    def _after_loop(self, before: int, loss: Any, goal: int | None) -> None:
        step = self._state.step
        if math.isnan(loss):
            raise tf.compat.v1.train.NanLossDuringTrainingError()
        self._log(loss, goal)
        every = self._config.save_summary_steps
        if every and (before == 0 or before // every != step // every):
            tf.summary.scalar("loss", loss, step=step)
        self._tell("batch_end", step, {"loss": loss})
        self._save()

    def _log(self, loss: Any, goal: int | None) -> None:
        every, step = self._config.log_step_count_steps, self._state.step
        if every is None or (self._logged and step - self._logged[0] < every):
            return
        now = time.perf_counter()
        since = None
        if self._logged:
            since = self._logged[0], now - self._logged[1]
        line = reports.progress_line(
            loss,
            step,
            goal,
            since=since,
            examples=self._state.global_batch_size,
        )
        tf.compat.v1.logging.info(line)
        self._logged = step, now

    def _save(self, *, always: bool = False, is_last: bool = False) -> None:
        """Saves a checkpoint if one is due, and calls the listeners."""
        step, now = self._state.step, time.time()
        last_step, last_time = self._saved
        steps = self._config.save_checkpoints_steps
        seconds = self._config.save_checkpoints_secs
        if not (steps or seconds) or step == last_step:
            return
        is_due = (
            always
            or is_last
            or last_step < 0
            or bool(steps and step - last_step >= steps)
            or bool(seconds and now - last_time >= seconds)
        )
        if not is_due:
            return
        for listener in self._listeners:
            listener.before_save(None, step)
        path = self._manager.save(checkpoint_number=step)
        tf.compat.v1.logging.info("Saved the checkpoint %s.", path)
        self._saved = step, now
        for listener in self._listeners:
            self._stops |= bool(listener.after_save(None, step))

    def _end(self, goal: int | None, first: int) -> None:
        step = self._state.step
        self._save(is_last=True)
        self._writer.flush()
        for listener in self._listeners:
            listener.end(None, step)
        self._tell("end", {})
        if step == first:
            tf.compat.v1.logging.warn(
                "Training with estimator made no steps. Perhaps input is empty"
                " or misspecified."
            )
        elif goal is not None and step < goal:
            tf.compat.v1.logging.info(
                "Training ended at step %d, before step %d that was asked "
                "for: the input ended, or a callback stopped it.",
                step,
                goal,
            )


def _real_rows(predictions: Sequence[Any], masks: Sequence[Any]) -> Any:
    """Concatenates the replicas' predictions without rows of padding."""
    of_data = [
        predictions_of_data(*of_replica)
        for of_replica in zip(predictions, masks)
    ]
    return tf.nest.map_structure(
        lambda *parts: np.concatenate([part.numpy() for part in parts]),
        *of_data,
    )


class ServedModel:
    """A model with the signature `serving_default`.

    Args:
      make_model: Makes the model, outside any strategy.
      spec: The tables besides the model's own; None without.
      receiver_fn: Returns a `ServingInputReceiver`, in a graph.
    """

    def __init__(
        self,
        make_model: Callable[[], Any],
        spec: EmbeddingConfigSpec | None,
        receiver_fn: Callable[[], Any],
    ) -> None:
        self._model = model_of(make_model())
        self._spec = spec
        self._receiver_fn = receiver_fn
        self._tables: Any = None
        if spec is not None:
            step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._tables = tfembed.TPUEmbeddingForServing(
                model_tables.feature_configs(spec, step), None
            )

    def save(self, folder: Any, checkpoint: str) -> None:
        """Writes a SavedModel with the values of a checkpoint."""
        with tf.Graph().as_default():
            features = self._receiver_fn().features
            specs = tf.nest.map_structure(tf.type_spec_from_value, features)
        self._predict(padding.zeros(specs, 1))  # The call makes the variables.
        objects = {"model": self._model.model}
        if self._tables is not None:
            objects["embedding"] = self._tables
        restore_objects(objects, checkpoint)
        found: dict[str, Any] = {}

        def serve() -> list[Any]:
            receiver = self._receiver_fn()
            found["inputs"] = _named(receiver.receiver_tensors, "input")
            found["outputs"] = _named(
                self._predict(receiver.features), "output"
            )
            return list(found["outputs"].values())

        wrapped = tf.compat.v1.wrap_function(serve, [])
        keys = list(found["inputs"])
        pruned = wrapped.prune(
            list(found["inputs"].values()), list(found["outputs"].values())
        )

        def serving(**tensors: Any) -> dict[str, Any]:
            outputs = pruned(*[tensors[key] for key in keys])
            return dict(zip(found["outputs"], outputs, strict=True))

        module = tf.Module()
        module.model, module.embedding = self._model.model, self._tables
        module.served = pruned
        signature = tf.function(serving).get_concrete_function(
            **{
                key: tf.TensorSpec(tensor.shape, tensor.dtype, name=key)
                for key, tensor in found["inputs"].items()
            }
        )
        tf.saved_model.save(
            module,
            tf.compat.as_str(folder),
            signatures={
                tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature
            },
        )

    def _predict(self, features: Any) -> Any:
        if self._spec is not None:
            apart = model_tables.apart(self._spec, features)
            embedded = apart["embedded"]
            rows = self._tables(embedded["ids"], embedded.get("weights"))
            features = {**apart["features"], **rows}
        return self._model.predict(features, training=False)


def _named(tensors: Any, name: str) -> dict[str, Any]:
    """Returns tensors by name; a single tensor gets the given name."""
    if not isinstance(tensors, dict):
        tensors = {name: tensors}
    for key, tensor in tensors.items():
        if not isinstance(tensor, tf.Tensor):
            raise errors.DtypeError(
                f"A served model takes and gives tensors; '{key}' is {tensor}. "
                "Use build_parsing_serving_input_receiver_fn, or make it dense."
            )
    return tensors
