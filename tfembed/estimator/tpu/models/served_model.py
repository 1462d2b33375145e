"""A model object in a SavedModel, behind an estimator's serving receivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.tpu import padding
from tfembed.estimator.tpu.models import model_tables
from tfembed.estimator.tpu.models.trained_model import model_of


class ServedModel:
    """A model with the signature `serving_default`.

    Args:
      make_model: Makes the model, outside of any strategy.
      spec: The tables beside the model's own; None without.
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
        self._predict(padding.zeros(specs, 1))  # Makes the variables.
        objects = {"model": self._model.model}
        if self._tables is not None:
            objects["embedding"] = self._tables
        status = tf.train.Checkpoint(**objects).restore(checkpoint)
        status.assert_existing_objects_matched().expect_partial()
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
    """Returns tensors by name; a single one has the name that is given."""
    if not isinstance(tensors, dict):
        tensors = {name: tensors}
    for key, tensor in tensors.items():
        if not isinstance(tensor, tf.Tensor):
            raise errors.DtypeError(
                f"A served model takes and gives tensors; '{key}' is {tensor}. "
                "Use build_parsing_serving_input_receiver_fn, or make it dense."
            )
    return tensors
