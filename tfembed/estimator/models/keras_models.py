"""`model_to_estimator`: an Estimator that trains a compiled Keras model.

A step does what a step of the model's `fit` does, for models of Keras 3 and of
tf_keras. The model's functions are traced in eager mode, as `fit` traces them.
Their ops go into the estimator's graphs, where variables of a graph stand for
those of the model:

TracedFunction      a traced function, and its copies in graphs
StandIns            the variables of a graph that stand for a model's
KerasModelFn        the model_fn
model_to_estimator  makes the Estimator
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import tensorflow as tf

from tfembed.errors import (
    ArgumentError,
    DtypeError,
    StateError,
    UnsupportedError,
)
from tfembed.estimator.estimator import Estimator
from tfembed.estimator.exports import saved_models
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.run_config import RunConfig, completed_config
from tfembed.estimator.runs import checkpoints
from tfembed.estimator.runs.warm_start import WarmStartSettings
from tfembed.estimator.spec import EstimatorSpec, ModeKeys

# The name of the state from which Keras 3 draws, and how far replicas are apart.
_SEED = "seed_generator_state"
_SEED_STEP = 0x9E3779B1 % (2**31 - 1)
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "saver",
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
) -> Estimator:
    """Makes an Estimator that trains a compiled model of Keras 3 or tf_keras.

    A step of the Estimator equals a step of the model's `fit` with the same
    batch: loss weights, several outputs, regularization, moving statistics,
    dropout and metrics are as compiled. Training begins with the model's
    weights and with the state of its optimizer; those of the model itself do
    not change. The features of the input_fn are the model's inputs; a dict
    {"features": ..., "sample_weights": ...} adds weights to them.

    Args:
      keras_model: A compiled model.
      keras_model_path: The path of a compiled model, in place of
        `keras_model`; `tf.keras.models.load_model` reads it.
      custom_objects: The user's classes and functions by name, for
        `keras_model_path`.
      model_dir: The folder of checkpoints and summaries. Default: the folder
        of `config`, or else a temporary one. The weights that training begins
        with are in its folder `keras`.
      config: A `RunConfig`.
      checkpoint_format: "saver": checkpoints have variables by name, as those
        of other model_fns. "checkpoint": they have them by object, and
        `tf.train.Checkpoint(keras_model).restore` reads them too.
      metric_names_map: A name for each compiled metric, by Keras' name.
      export_outputs: By name of an output, the class of
        `tfembed.estimator.export` that exports it, as a signature of that
        name. Default: all outputs are one `PredictOutput`.

    Returns:
      The Estimator.

    Raises:
      ValueError: Both or none of `keras_model` and `keras_model_path` is
        given, the model is not compiled, the format is unknown, or a name of
        a map is no metric or output of the model.
      tfembed.errors.DtypeError: (also TypeError) `keras_model` is no Keras
        model.
      tfembed.errors.StateError: (also RuntimeError) eager mode is off.
      tfembed.errors.UnsupportedError: The model has its own `train_step` or
        `test_step`, or layers with tables of tfembed.
    """
    if not tf.executing_eagerly():
        raise StateError(
            "model_to_estimator traces the model in eager mode, which is off "
            "here. Call it outside of graphs, and leave out "
            "tf.compat.v1.disable_eager_execution()."
        )
    if (keras_model is None) == (keras_model_path is None):
        raise ArgumentError(
            "Give either `keras_model` or `keras_model_path`; got "
            f"keras_model={keras_model!r} and "
            f"keras_model_path={keras_model_path!r}."
        )
    if checkpoint_format not in (None, "saver", "checkpoint"):
        raise ArgumentError(
            'checkpoint_format must be "saver" or "checkpoint"; got '
            f"{checkpoint_format!r}."
        )
    if keras_model is None:
        keras_model = tf.keras.models.load_model(
            os.fspath(keras_model_path),  # type: ignore[arg-type] # not None.
            custom_objects=custom_objects,
        )
    _check_model(keras_model)
    config = completed_config(config, model_dir)
    folder = os.path.join(config.model_dir, "keras")  # noqa: PTH118 - may be gs:
    if not config.is_chief:
        folder = tempfile.mkdtemp()
    first_checkpoint = f"{folder}/keras_model.ckpt"
    model_fn = KerasModelFn(
        keras_model,
        first_checkpoint=first_checkpoint,
        by_object=checkpoint_format == "checkpoint",
        metric_names=metric_names_map,
        export_outputs=export_outputs,
    )
    if keras_model.built:
        model_fn.save_first_checkpoint(config.model_dir)
    return Estimator(
        model_fn,
        config=config,
        warm_start_from=WarmStartSettings(
            first_checkpoint, vars_to_warm_start=["(?!global_step:)"]
        ),
    )


def _check_model(model: Any) -> None:
    """Raises an error for a model that no Estimator can train."""
    package = next(
        (name for name in ("keras", "tf_keras") if _is_of(name, model)), None
    )
    if package is None:
        raise DtypeError(
            "keras_model must be a model of Keras 3 or tf_keras; got "
            f"{model!r}."
        )
    if getattr(model, "optimizer", None) is None:
        raise ArgumentError(
            f"The model '{model.name}' has not been compiled. Call its "
            "compile(optimizer, loss, metrics=...) first."
        )
    own = [
        name
        for name in ("train_step", "test_step", "predict_step")
        if getattr(type(model), name)
        is not getattr(sys.modules[package].Model, name)
    ]
    if own:
        raise UnsupportedError(
            f"The model '{model.name}' of {type(model).__name__} overrides "
            f"{own}, which an Estimator does not call. Override compute_loss, "
            "or write a model_fn."
        )
    tables = sorted(
        f"'{layer.name}' ({type(layer).__name__})"
        for layer in v1_sessions.layers_of(model)
        if any(
            each.__module__.startswith("tfembed.")
            for each in type(layer).__mro__
        )
    )
    if tables:
        raise UnsupportedError(
            f"The model '{model.name}' has layers with tables of tfembed, "
            f"which no graph of an Estimator can hold: {', '.join(tables)}. "
            "Train it by fit, or look rows up in a model_fn: by "
            "tfembed.dynamic_embedding, or by a TPUEstimator's "
            "embedding_config_spec."
        )


class TracedFunction:
    """A function that was traced in eager mode, and can be put into graphs.

    Args:
      function: A function of nested tensors, some of which may be None.
      specs: A tuple of the arguments' nested specs.

    Attributes:
      variables: The eager variables that the function uses.
    """

    def __init__(self, function: Callable[..., Any], specs: Any) -> None:
        traced = tf.function(function, autograph=False)
        self._traced = _eagerly(lambda: traced.get_concrete_function(*specs))
        self._graph_def = self._traced.graph.as_graph_def()
        self.variables: tuple[Any, ...] = tuple(self._traced.variables)

    def put_into_graph(
        self,
        arguments: Any,
        handle: Callable[[Any], Any],
        name: str,
    ) -> tuple[Any, tf.Operation]:
        """Copies the function's ops into the default graph.

        Args:
          arguments: The arguments, as in the constructor.
          handle: Returns the graph's resource for a resource of eager mode;
            None for a resource that is no variable.
          name: The name scope of the ops.

        Returns:
          The function's result, and an op that has all of its effects.

        Raises:
          tfembed.errors.UnsupportedError: The function uses a resource that is
            no variable, such as a table.
        """
        flat = tf.nest.flatten(arguments, expand_composites=True)
        given = [tensor for tensor in flat if tensor is not None]
        for captured in self._traced.captured_inputs:
            if captured.dtype not in (tf.resource, tf.variant):
                given.append(tf.constant(captured.numpy()))
                continue
            resource = handle(captured)
            if resource is None:
                raise UnsupportedError(
                    "The model uses a resource that is no variable, which "
                    f"checkpoints of an Estimator do not have: {captured}. "
                    "Look keys up in the input_fn."
                )
            given.append(resource)
        inputs = [tensor.name for tensor in self._traced.inputs]
        results = [tensor.name for tensor in self._traced.outputs]
        effects = [op.name for op in self._traced.graph.control_outputs]
        found = tf.graph_util.import_graph_def(
            self._graph_def,
            input_map=dict(zip(inputs, given, strict=True)),
            return_elements=[*results, *effects],
            name=name,
        )
        result = tf.nest.pack_sequence_as(
            self._traced.structured_outputs,
            found[: len(results)],
            expand_composites=True,
        )
        return result, tf.group(*found[len(results) :])


class StandIns:
    """The variables of a graph that stand for a model's eager variables.

    Weights and the state of the optimizer are global variables, which
    checkpoints have. All others (the learning rate, sums of metrics) are local
    variables that begin with the eager variable's value.

    Args:
      eager: The model's variables by `_key`.
      names: The names of the global variables by `_key`.
    """

    def __init__(
        self, eager: Mapping[int, Any], names: Mapping[int, str]
    ) -> None:
        self._eager = eager
        self._names = names
        self._made: dict[int, Any] = {}
        self._seeds: list[tuple[Any, Any, Any]] = []

    def by_key(self) -> dict[int, Any]:
        """Returns the graph's variables by `_key` of the eager variable."""
        return dict(self._made)

    def handle(self, resource: Any) -> Any:
        """Returns what stands for a resource of eager mode, in this replica."""
        made = self._variable(id(resource))
        if made is None:
            return None
        if _SEED in self._names.get(id(resource), "") and _replicas() > 1:
            return self._seed_of_replica(made)
        return made.handle

    def sum_over_replicas(self, resource: Any) -> Any:
        """Returns a resource with the sum of a local variable's values.

        It is called outside of replicas.
        """
        made = self._variable(id(resource))
        if made is None:
            return None
        return _scratch(tf.distribute.get_strategy().extended.read_var(made))

    def _variable(self, key: int) -> Any:
        """Returns the graph's variable; the first call makes it."""
        if key not in self._made and key in self._eager:
            eager = self._eager[key]
            name = self._names.get(key)
            self._made[key] = (
                self._local(eager)
                if name is None
                else tf.compat.v1.get_variable(
                    name,
                    eager.shape,
                    eager.dtype,
                    # A warm start has the value.
                    tf.compat.v1.zeros_initializer(),
                    trainable=eager.trainable,
                    use_resource=True,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
            )
        return self._made.get(key)

    def write_seeds(self) -> list[Any]:
        """Returns ops that note how far the seeds of replicas have come."""
        seeds, self._seeds = self._seeds, []
        return [
            state.assign(
                tf.raw_ops.ReadVariableOp(resource=own, dtype=state.dtype)
                - offset
            )
            for state, own, offset in seeds
        ]

    def _local(self, variable: Any) -> Any:
        keys = tf.compat.v1.GraphKeys
        value = _eagerly(variable.numpy)
        return tf.compat.v1.get_variable(
            f"keras_local_{len(self._made)}",
            variable.shape,
            variable.dtype,
            tf.compat.v1.constant_initializer(value),
            trainable=False,
            use_resource=True,
            collections=[keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES],
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def _seed_of_replica(self, state: Any) -> Any:
        """Returns a resource with a seed of this replica alone."""
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        offset = tf.cast(replica * _SEED_STEP % (2**31 - 1), state.dtype)
        own = _scratch(state.read_value() + offset)
        self._seeds.append((state, own, offset))
        return own


def _scratch(value: Any) -> Any:
    """Returns a resource that has a value in each run of the session."""
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype,
        shape=value.shape,
        shared_name=tf.compat.v1.get_default_graph().unique_name("scratch"),
    )
    assigned = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    with tf.control_dependencies([assigned]):
        return tf.identity(handle)


def _is_of(package: str, model: Any) -> bool:
    """Says whether an object is a model of "keras" or "tf_keras"."""
    return package in sys.modules and isinstance(
        model, sys.modules[package].Model
    )


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _of_tensorflow(variable: Any) -> Any:
    """Returns the tf.Variable of a variable of Keras 3 or tf_keras."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _key(variable: Any) -> int:
    return id(variable.handle)


def _eagerly(function: Callable[[], Any]) -> Any:
    """Calls a function in eager mode, outside of all graphs and strategies."""
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


class KerasModelFn:
    """The model_fn of a compiled Keras model.

    Args:
      model: The model.
      first_checkpoint: The path of the checkpoint that training begins with.
      by_object: Whether checkpoints have variables by object, not by name.
      metric_names: A name for each metric, by Keras' name; None: Keras' names.
      export_outputs: Classes of exports by output; None: all are exported
        together.
    """

    def __init__(
        self,
        model: Any,
        *,
        first_checkpoint: str,
        by_object: bool,
        metric_names: Mapping[str, str] | None,
        export_outputs: Mapping[str, Any] | None,
    ) -> None:
        self._model = model
        self._first_checkpoint = first_checkpoint
        self._by_object = by_object
        self._metric_names = metric_names
        self._export_outputs = export_outputs or {}
        self._functions: dict[Any, TracedFunction] = {}
        self._eager: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        self._saved: set[str] = set()
        # The places, in trainable_variables, of those that have a gradient.
        self._with_gradient: list[int] = []

    def __call__(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        """Builds the graph of a mode; returns its spec."""
        x, weights = self._inputs(features)
        build = {
            ModeKeys.TRAIN: self._train,
            ModeKeys.EVAL: self._evaluate,
            ModeKeys.PREDICT: self._predict,
        }[mode]
        variables = StandIns(self._eager, self._names)
        spec = build(variables, x, labels, weights)
        self.save_first_checkpoint(config.model_dir)
        if self._by_object:
            scaffold = tf.compat.v1.train.Scaffold(
                saver=self._saver_by_object(variables, config)
            )
            spec = spec._replace(scaffold=scaffold)
        return spec

    def save_first_checkpoint(self, model_dir: str) -> None:
        """Saves the model as it is, unless training has begun already."""
        _eagerly(self._build_optimizer)
        names = set(self._names.values())
        if names == self._saved or checkpoints.latest_checkpoint(model_dir):
            return
        path = self._first_checkpoint
        tf.io.gfile.makedirs(os.path.dirname(path))  # noqa: PTH120 - may be gs:
        _eagerly(
            lambda: tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=["global_step", *self._names.values()],
                shape_and_slices=[""] * (1 + len(self._names)),
                tensors=[
                    tf.constant(0, tf.int64),
                    *(self._eager[key].read_value() for key in self._names),
                ],
            )
        )
        self._saved = names

    def _train(
        self, variables: StandIns, x: Any, labels: Any, weights: Any
    ) -> EstimatorSpec:
        replicas = _replicas()

        def forward_and_backward(x: Any, labels: Any, weights: Any) -> Any:
            trained = list(map(_of_tensorflow, self._model.trainable_variables))
            with tf.GradientTape() as tape:
                predictions = self._call(x, training=True)
                loss = self._loss(x, labels, predictions, weights, True)
                loss /= tf.cast(replicas, loss.dtype)
                scaled = self._scaled(loss)
            gradients = self._unscaled(tape.gradient(scaled, trained))
            self._with_gradient = [
                place
                for place, gradient in enumerate(gradients)
                if gradient is not None
            ]
            if not self._with_gradient:
                raise ArgumentError(
                    f"The loss of model '{self._model.name}' depends on none "
                    "of its weights: there is nothing to train."
                )
            return loss, [gradients[place] for place in self._with_gradient]

        def update(gradients: list[Any]) -> tuple[()]:
            trained = self._model.trainable_variables
            self._model.optimizer.apply_gradients(
                zip(
                    gradients, [trained[place] for place in self._with_gradient]
                )
            )
            return ()

        (loss, gradients), effects = self._put(
            f"train_of_{replicas}",
            forward_and_backward,
            (x, labels, weights),
            variables,
        )
        if replicas > 1:
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(
                tf.distribute.ReduceOp.SUM, gradients
            )
        with tf.control_dependencies([effects]):
            gradients = tf.nest.map_structure(
                tf.identity, gradients, expand_composites=True
            )
        _, updates = self._put("update", update, (gradients,), variables)
        with tf.control_dependencies([updates]):
            step = tf.compat.v1.assign_add(
                tf.compat.v1.train.get_global_step(), 1
            )
        return EstimatorSpec(
            ModeKeys.TRAIN, loss=loss, train_op=tf.group(step, updates)
        )

    def _evaluate(
        self, variables: StandIns, x: Any, labels: Any, weights: Any
    ) -> EstimatorSpec:
        def evaluate(x: Any, labels: Any, weights: Any) -> Any:
            predictions = self._call(x, training=False)
            loss = self._loss(x, labels, predictions, weights, False)
            self._model.compute_metrics(x, labels, predictions, weights)
            return loss, self._by_output(predictions)

        arguments = (x, labels, weights)
        self._function("evaluate", evaluate, arguments)
        _eagerly(self._model.reset_metrics)
        (loss, predictions), updates = self._put(
            "evaluate", evaluate, arguments, variables
        )
        values = self._metric_values(variables)
        return EstimatorSpec(
            ModeKeys.EVAL,
            predictions=predictions,
            loss=loss,
            eval_metric_ops={
                name: (value, updates) for name, value in values.items()
            },
        )

    def _predict(
        self, variables: StandIns, x: Any, labels: Any, weights: Any
    ) -> EstimatorSpec:
        del labels, weights
        predictions, effects = self._put(
            "predict",
            lambda x: self._by_output(self._call(x, training=False)),
            (x,),
            variables,
        )
        with tf.control_dependencies([effects]):
            predictions = tf.nest.map_structure(
                tf.identity, predictions, expand_composites=True
            )
        unknown = sorted(set(self._export_outputs) - set(predictions))
        if unknown:
            raise ArgumentError(
                f"export_outputs has {unknown}, which are no outputs of the "
                f"model '{self._model.name}'. It has {list(predictions)}."
            )
        return EstimatorSpec(
            ModeKeys.PREDICT,
            predictions=predictions,
            export_outputs={
                tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: (
                    saved_models.PredictOutput(predictions)
                ),
                **{
                    name: output(predictions[name])
                    for name, output in self._export_outputs.items()
                },
            },
        )

    def _put(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: Any,
        variables: StandIns,
    ) -> tuple[Any, tf.Operation]:
        """Puts a function of the model into the graph; traces it if need be."""
        traced = self._function(name, function, arguments)
        result, effects = traced.put_into_graph(
            arguments, variables.handle, name
        )
        with tf.control_dependencies([effects]):
            return result, tf.group(effects, *variables.write_seeds())

    def _function(
        self, name: str, function: Callable[..., Any], arguments: Any
    ) -> TracedFunction:
        specs = tf.nest.map_structure(_spec, arguments)
        key = name, repr(specs)
        if key not in self._functions:
            _eagerly(self._build_optimizer)
            traced = TracedFunction(function, specs)
            self._functions[key] = traced
            self._eager.update((_key(each), each) for each in traced.variables)
            _eagerly(self._build_optimizer)  # The trace may make the weights.
        return self._functions[key]

    def _build_optimizer(self) -> None:
        """Makes the state of the optimizer, and names all variables."""
        build = getattr(self._model.optimizer, "build", None)
        if build is not None and self._model.built:
            build(self._model.trainable_variables)
        self._name_variables()

    def _metric_values(self, variables: StandIns) -> dict[str, Any]:
        """Returns the values of the compiled metrics by name."""
        results = self._function("metrics", self._results, ())
        if _replicas() == 1:
            values, _ = results.put_into_graph((), variables.handle, "metrics")
        else:
            values = tf.distribute.get_replica_context().merge_call(
                lambda strategy: results.put_into_graph(
                    (), variables.sum_over_replicas, "metrics"
                )[0]
            )
        names = self._metric_names
        if names is None:
            return dict(values)
        if set(names) != set(values):
            raise ArgumentError(
                "metric_names_map needs a name for each metric of the model "
                f"'{self._model.name}': {sorted(values)}; got names for "
                f"{sorted(names)}."
            )
        return {names[name]: value for name, value in values.items()}

    def _results(self) -> dict[str, Any]:
        outputs = getattr(self._model, "output_names", None) or ()
        losses = {"loss", *(f"{output}_loss" for output in outputs)}
        return {
            name: tf.convert_to_tensor(value)
            for name, value in self._model.get_metrics_result().items()
            if name not in losses
        }

    def _inputs(self, features: Any) -> tuple[Any, Any]:
        """Returns the model's inputs, and the weights of samples or None."""
        weights = None
        if isinstance(features, dict) and set(features) == {
            "features",
            "sample_weights",
        }:
            features, weights = features["features"], features["sample_weights"]
        if isinstance(features, dict) and getattr(self._model, "inputs", None):
            expected = self._model.input  # In the structure of the model.
            by_key = expected if isinstance(expected, dict) else {}
            names = list(by_key or [each.name for each in self._model.inputs])
            missing = sorted(set(names) - set(features))
            if missing:
                raise ArgumentError(
                    f"The features lack the inputs {missing} of the model "
                    f"'{self._model.name}'; got {list(features)}."
                )
            features = {name: features[name] for name in names}
            if not by_key:
                features = tf.nest.pack_sequence_as(
                    expected, list(features.values())
                )
        return features, weights

    def _call(self, x: Any, *, training: bool) -> Any:
        # `fit` of tf_keras gives it to each model.
        if _is_of("tf_keras", self._model) or _takes(
            self._model.call, "training"
        ):
            return self._model(x, training=training)
        return self._model(x)

    def _loss(
        self,
        x: Any,
        labels: Any,
        predictions: Any,
        weights: Any,
        training: bool,
    ) -> Any:
        compute = self._model.compute_loss
        more = {"training": training} if _takes(compute, "training") else {}
        return compute(
            x=x, y=labels, y_pred=predictions, sample_weight=weights, **more
        )

    def _scaled(self, loss: Any) -> Any:
        """Scales the loss, for an optimizer of mixed precision."""
        for name in ("scale_loss", "get_scaled_loss"):
            scale = getattr(self._model.optimizer, name, None)
            if scale is not None:
                return scale(loss)
        return loss

    def _unscaled(self, gradients: list[Any]) -> list[Any]:
        unscale = getattr(self._model.optimizer, "get_unscaled_gradients", None)
        return gradients if unscale is None else list(unscale(gradients))

    def _by_output(self, predictions: Any) -> dict[str, Any]:
        """Returns the model's outputs by their names."""
        if isinstance(predictions, dict):
            return dict(predictions)
        if not isinstance(predictions, (list, tuple)):
            predictions = [predictions]
        names = list(getattr(self._model, "output_names", None) or ())
        if len(names) != len(predictions):
            names = [f"output_{i + 1}" for i in range(len(predictions))]
            if len(names) == 1 and self._model.layers:
                names = [self._model.layers[-1].name]
        return dict(zip(names, predictions, strict=True))

    def _name_variables(self) -> None:
        """Names the variables that checkpoints have, as Keras names them."""
        for variable, name in self._global_variables():
            if _key(variable) in self._names:
                continue
            used = set(self._names.values())
            name = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name.split(":")[0])
            unique = itertools.chain(
                [name], (f"{name}_{i}" for i in itertools.count(1))
            )
            self._eager[_key(variable)] = variable
            self._names[_key(variable)] = next(
                each for each in unique if each not in used
            )

    def _global_variables(self) -> Iterator[tuple[tf.Variable, str]]:
        """Yields weights and the optimizer's state, and their names in Keras."""
        optimizer = self._model.optimizer
        state = optimizer.variables
        rate = getattr(optimizer, "learning_rate", None)
        for each in (
            *self._model.variables,
            *(state() if callable(state) else state),
        ):
            if each is not rate:  # That of the program counts.
                yield _of_tensorflow(each), getattr(each, "path", each.name)

    def _saver_by_object(self, variables: StandIns, config: RunConfig) -> Any:
        """Makes a Saver whose names are those of `tf.train.Checkpoint`."""
        with tempfile.TemporaryDirectory() as folder:
            path = _eagerly(
                lambda: tf.train.Checkpoint(root=self._model).write(
                    f"{folder}/0"
                )
            )
            described = tf.train.load_checkpoint(path).get_tensor(_OBJECT_GRAPH)
        objects = tf.train.TrackableView(self._model).descendants()
        graph = v1_sessions.object_graph(described)
        saved = {"global_step": tf.compat.v1.train.get_global_step()}
        in_graph = variables.by_key()
        names = dict(self._names)
        for each, node in zip(objects, graph.nodes):
            key = None
            if [a.name for a in node.attributes] == ["VARIABLE_VALUE"]:
                key = _key(_of_tensorflow(each))
            if key in names and key in in_graph:
                names[key] = node.attributes[0].checkpoint_key
            else:  # A restore asks for all that are described.
                node.ClearField("attributes")
        for key in in_graph.keys() & names.keys():
            saved[names[key]] = in_graph[key]
        saved[_OBJECT_GRAPH] = tf.compat.v1.get_variable(
            "keras_object_graph",
            [],
            tf.string,
            tf.compat.v1.constant_initializer(graph.SerializeToString()),
            trainable=False,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        )
        return tf.compat.v1.train.Saver(
            saved,
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=(
                config.keep_checkpoint_every_n_hours
            ),
        )


def _spec(tensor: Any) -> Any:
    """Returns the dtype and the shape of a tensor or None."""
    return None if tensor is None else tf.type_spec_from_value(tensor)


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(
        each.kind is each.VAR_KEYWORD for each in parameters.values()
    )
