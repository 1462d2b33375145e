"""Inputs and outputs of exported graphs, and SavedModels of several modes."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, CheckpointError
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs import checkpoints, sigterm
from tfembed.estimator.spec import EstimatorSpec, ModeKeys

ExportOutput = v1_sessions.export_output.ExportOutput
PredictOutput = v1_sessions.export_output.PredictOutput
ClassificationOutput = v1_sessions.export_output.ClassificationOutput
RegressionOutput = v1_sessions.export_output.RegressionOutput
EvalOutput = v1_sessions.export_output.EvalOutput
TrainOutput = v1_sessions.export_output.TrainOutput
EXPORT_TAG_MAP = v1_sessions.model_utils.EXPORT_TAG_MAP
SIGNATURE_KEY_MAP = v1_sessions.model_utils.SIGNATURE_KEY_MAP
build_all_signature_defs = v1_sessions.model_utils.build_all_signature_defs
export_outputs_for_mode = v1_sessions.model_utils.export_outputs_for_mode
get_export_outputs = v1_sessions.model_utils.get_export_outputs
get_temp_export_dir = v1_sessions.model_utils.get_temp_export_dir
get_timestamped_export_dir = v1_sessions.model_utils.get_timestamped_export_dir

_NAMES_OF_SINGLE = {
    "feature": v1_sessions.export_utils.SINGLE_FEATURE_DEFAULT_NAME,
    "label": v1_sessions.export_utils.SINGLE_LABEL_DEFAULT_NAME,
    "receiver_tensor": v1_sessions.export_utils.SINGLE_RECEIVER_DEFAULT_NAME,
    "receiver_tensors_alternative": v1_sessions.export_utils.SINGLE_RECEIVER_DEFAULT_NAME,
}


class ServingInputReceiver(
    collections.namedtuple(
        "ServingInputReceiver",
        [
            "features",
            "receiver_tensors",
            "receiver_tensors_alternatives",
        ],
    )
):
    """The placeholders of an exported graph, and the features made from them.

    Args:
      features: A tensor (Tensor, SparseTensor or RaggedTensor), or a dict of
        tensors, for the model_fn. A single tensor becomes a dict of one.
      receiver_tensors: The placeholder to feed, or a dict of placeholders.
      receiver_tensors_alternatives: By signature name, other tensors to feed
        in place of the placeholders, each a tensor or a dict.

    Raises:
      ValueError: A value is not a tensor, or a key is not a string (of
        features: nor an integer).
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    ) -> ServingInputReceiver:
        features = wrap_and_check_input_tensors(
            features, "feature", allow_int_keys=True
        )
        receiver_tensors = wrap_and_check_input_tensors(
            receiver_tensors, "receiver_tensor"
        )
        alternatives = receiver_tensors_alternatives
        if alternatives is not None:
            if not isinstance(alternatives, dict):
                raise ArgumentError(
                    "receiver_tensors_alternatives must be a dict: "
                    f"{alternatives}."
                )
            alternatives = {
                name: wrap_and_check_input_tensors(
                    tensors, "receiver_tensors_alternative"
                )
                for name, tensors in alternatives.items()
            }
        return super().__new__(cls, features, receiver_tensors, alternatives)


class TensorServingInputReceiver(
    collections.namedtuple(
        "TensorServingInputReceiver",
        [
            "features",
            "receiver_tensors",
            "receiver_tensors_alternatives",
        ],
    )
):
    """A `ServingInputReceiver` for a model_fn that takes a single tensor.

    `features` stays a tensor: the model_fn gets it unchanged.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    ) -> TensorServingInputReceiver:
        if features is None:
            raise ArgumentError("features must be defined. Give a tensor.")
        _check_tensor(features, None, "feature")
        receiver = ServingInputReceiver(
            features, receiver_tensors, receiver_tensors_alternatives
        )
        return super().__new__(
            cls,
            receiver.features[
                v1_sessions.export_utils.SINGLE_FEATURE_DEFAULT_NAME
            ],
            receiver.receiver_tensors,
            receiver.receiver_tensors_alternatives,
        )


class SupervisedInputReceiver(
    collections.namedtuple(
        "SupervisedInputReceiver", ["features", "labels", "receiver_tensors"]
    )
):
    """The placeholders of an exported graph of training or evaluation.

    Args:
      features: A tensor or a dict of tensors for the model_fn.
      labels: A tensor or a dict of tensors for the model_fn.
      receiver_tensors: The placeholder to feed, or a dict of placeholders.

    Raises:
      ValueError: A value is not a tensor, or a key is not a string (of
        features and labels: nor an integer).
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls, features: Any, labels: Any, receiver_tensors: Any
    ) -> SupervisedInputReceiver:
        wrap_and_check_input_tensors(features, "feature", allow_int_keys=True)
        wrap_and_check_input_tensors(labels, "label", allow_int_keys=True)
        receiver_tensors = wrap_and_check_input_tensors(
            receiver_tensors, "receiver_tensor"
        )
        return super().__new__(cls, features, labels, receiver_tensors)


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a receiver function for serialized tf.Examples.

    Args:
      feature_spec: Features as for `tf.io.parse_example`.
      default_batch_size: The batch size; None: any.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        serialized = tf.compat.v1.placeholder(
            tf.string, [default_batch_size], name="input_example_tensor"
        )
        features = tf.io.parse_example(serialized, feature_spec)
        return ServingInputReceiver(features, {"examples": serialized})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a receiver function for the features themselves.

    Args:
      features: Tensors by name; only dtypes and shapes matter.
      default_batch_size: The batch size; None: any.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {
            name: _placeholder_like(tensor, default_batch_size)
            for name, tensor in features.items()
        }
        return ServingInputReceiver(fed, fed)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Returns a receiver function for features and labels.

    Args:
      features: A tensor or tensors by name; only dtypes and shapes matter.
      labels: A tensor or tensors by name; only dtypes and shapes matter.
      default_batch_size: The batch size; None: any.

    Raises:
      ValueError: A feature and a label have the same name.
    """
    single = {
        "features": v1_sessions.export_utils.SINGLE_RECEIVER_DEFAULT_NAME,
        "labels": v1_sessions.export_utils.SINGLE_LABEL_DEFAULT_NAME,
    }

    def named(tensors: Any, kind: str) -> Any:
        if hasattr(tensors, "keys"):
            return tensors
        return {single[kind]: tensors}

    both = set(named(features, "features")) & set(named(labels, "labels"))
    if both:
        raise ArgumentError(
            "Features and labels must have distinct keys. Found overlapping "
            f"keys: {both}. Rename some of them."
        )

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        fed = {}
        parts = []
        for kind, tensors in (("features", features), ("labels", labels)):
            part = {
                name: _placeholder_like(tensor, default_batch_size)
                for name, tensor in named(tensors, kind).items()
            }
            fed.update(part)
            parts.append(
                part if isinstance(tensors, dict) else part[single[kind]]
            )
        return SupervisedInputReceiver(parts[0], parts[1], fed)

    return supervised_input_receiver_fn


def wrap_and_check_input_tensors(
    tensors: Any, field_name: str, allow_int_keys: bool = False
) -> dict[Any, Any]:
    """Returns tensors by name; a single tensor gets the default name.

    Args:
      tensors: A tensor or a dict.
      field_name: "feature", "label", "receiver_tensor" or
        "receiver_tensors_alternative".
      allow_int_keys: Whether keys may be integers.

    Raises:
      ValueError: A value is not a tensor, or a key is not allowed.
    """
    if tensors is None:
        raise ArgumentError(f"{field_name}s must be defined. Given None.")
    if not isinstance(tensors, dict):
        tensors = {_NAMES_OF_SINGLE[field_name]: tensors}
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            if not allow_int_keys:
                raise ArgumentError(
                    f"{field_name} keys must be strings: {name}."
                )
            if not isinstance(name, int):
                raise ArgumentError(
                    f"{field_name} keys must be strings or ints: {name}."
                )
        _check_tensor(tensor, name, field_name)
    return tensors


def write_saved_model(
    export_dir_base: Any,
    add_graphs: Callable[[Any], None],
    *,
    assets_extra: Mapping[str, str] | None,
    as_text: bool,
) -> bytes:
    """Writes a SavedModel into a new folder, which appears once it is complete.

    Args:
      export_dir_base: The parent of the new folder.
      add_graphs: Adds meta graphs to a `saved_model.Builder`.
      assets_extra: Files to copy, by their path under `assets.extra`.
      as_text: Whether to write the SavedModel's proto as text.

    Returns:
      The path of the new folder.
    """
    sigterm.check("an export")
    export_dir = get_timestamped_export_dir(export_dir_base)
    unfinished = get_temp_export_dir(export_dir)
    try:
        builder = tf.compat.v1.saved_model.Builder(unfinished)
        add_graphs(builder)
        builder.save(as_text)
        for relative, source in (assets_extra or {}).items():
            target = os.path.join(  # noqa: PTH118 - may be gs:
                tf.compat.as_bytes(unfinished),
                b"assets.extra",
                tf.compat.as_bytes(relative),
            )
            tf.io.gfile.makedirs(os.path.dirname(target))  # noqa: PTH120 - may be gs:
            tf.io.gfile.copy(source, target)
        sigterm.check("an export")
    except BaseException:
        if tf.io.gfile.exists(unfinished):
            tf.io.gfile.rmtree(unfinished)
        raise
    tf.io.gfile.rename(unfinished, export_dir)
    return export_dir


def add_meta_graph(
    builder: Any,
    spec: EstimatorSpec,
    receiver: Any,
    *,
    mode: str,
    checkpoint_path: str,
    save_variables: bool,
    session_config: Any,
    tags: Any = None,
    check_variables: bool = True,
    strip_default_attrs: bool = True,
) -> None:
    """Adds the default graph to a SavedModel.

    Args:
      builder: A `saved_model.Builder`.
      spec: The result of the model_fn.
      receiver: The result of the receiver function.
      mode: The mode of the graph.
      checkpoint_path: The checkpoint with the values of the variables.
      save_variables: Whether to save the variables too, as for the first
        graph.
      session_config: The session's ConfigProto.
      tags: The tags of the graph; None: those of the mode.
      check_variables: Whether the checkpoint must have all variables.
      strip_default_attrs: Whether to remove attributes with default values.

    Raises:
      ValueError: The checkpoint lacks a variable, or has one of another shape
        or dtype.
    """
    if save_variables and not check_variables:
        raise ArgumentError(
            "If `save_variables` is `True`, `check_variables` must not be "
            "`False`: the values come from the checkpoint."
        )
    signatures = build_all_signature_defs(
        receiver.receiver_tensors,
        export_outputs_for_mode(
            mode=spec.mode,
            serving_export_outputs=spec.export_outputs,
            predictions=spec.predictions,
            loss=spec.loss,
            metrics=spec.eval_metric_ops,
        ),
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=mode == ModeKeys.PREDICT,
    )
    scaffold = spec.scaffold
    local_init_op = scaffold.local_init_op
    if local_init_op is None:
        local_init_op = tf.compat.v1.train.Scaffold.default_local_init_op()
    # A scaffold's own saver restores here, and in programs that load the
    # export.
    saver = scaffold.saver or tf.compat.v1.train.Saver(sharded=True)
    with tf.compat.v1.Session(config=session_config) as session:
        if check_variables:
            _restore(saver, session, checkpoint_path, mode)
        v1_sessions.add_train_op(builder, spec.train_op)
        options = {
            "tags": EXPORT_TAG_MAP[mode] if tags is None else tags,
            "signature_def_map": signatures,
            "assets_collection": tf.compat.v1.get_collection(
                tf.compat.v1.GraphKeys.ASSET_FILEPATHS
            ),
            "main_op": local_init_op,
            "saver": saver,
            "strip_default_attrs": strip_default_attrs,
        }
        if save_variables:
            builder.add_meta_graph_and_variables(session, **options)
        else:
            builder.add_meta_graph(**options)


def _restore(saver: Any, session: Any, checkpoint: str, mode: str) -> None:
    checkpoints.check_files(checkpoint)
    saver.build()
    try:
        checkpoints.check_fits(saver, checkpoint)
        saver.restore(session, checkpoint)
    except tf.errors.InvalidArgumentError as error:
        raise CheckpointError(
            f"The export in mode `{mode}`: {error.message}"
        ) from error
    except tf.errors.NotFoundError as error:
        raise CheckpointError(
            "Could not load all requested variables from checkpoint. Please "
            "make sure your model_fn does not expect variables that were not "
            f"saved in the checkpoint.\n\nEncountered error with mode `{mode}`"
            f" while restoring checkpoint from: `{checkpoint}`. Full "
            f"Traceback:\n\n{error}"
        ) from error


def _check_tensor(tensor: Any, name: Any, label: str) -> None:
    kinds = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)
    if isinstance(tensor, kinds):
        return
    shown = f" {name}" if name else ""
    text = (
        f"{label}{shown} must be a Tensor, SparseTensor, or RaggedTensor."
        f" Given {type(tensor).__name__}."
    )
    if not hasattr(tensor, "tensor"):
        raise ArgumentError(text)
    try:  # An object that TensorFlow can convert.
        tf.convert_to_tensor(tensor)
    except TypeError as error:
        raise ArgumentError(text) from error


def _placeholder_like(tensor: Any, batch_size: int | None) -> Any:
    shape = tf.TensorShape([batch_size]).concatenate(tensor.shape[1:])
    try:
        name = tensor.op.name
    except AttributeError:  # An eager tensor has no op.
        name = None
    return tf.compat.v1.placeholder(tensor.dtype, shape, name=name)
