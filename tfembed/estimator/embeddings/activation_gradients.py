"""Captures the gradients of activations, which no code requests by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["DUMMY_VARIABLE", "ActivationGradients"]

# The name of a trainable variable that each activation depends on, so that
# computing gradients of trainable variables computes those of activations.
DUMMY_VARIABLE = "tpu_embedding_dummy_table_variable"

_TWO_GRADIENTS = (
    "Duplicate gradients (w.r.t. TPUEmbedding activations) generated for "
    "feature '{key}': a step computes gradients twice, and its table can be "
    "trained by those of one call alone. Add the losses and compute gradients "
    "once, or give the other calls (compute_gradients, minimize, tf.gradients) "
    f"a var_list without '{DUMMY_VARIABLE}', or stop their gradients by "
    "tf.stop_gradient(activations)."
)


class ActivationGradients:
    """Stores the gradients of a step's activations when they are computed."""

    def __init__(self) -> None:
        self._captured: dict[str, tf.Tensor] = {}
        self._gradients: dict[str, tf.Tensor] = {}

    def capture(
        self, features: Mapping[str, Any], keys: Iterable[str]
    ) -> dict[str, Any]:
        """Returns features whose gradients are stored; call it once per step.

        Computing the gradients of a feature a second time raises a StateError.

        Args:
          features: the features of a replica.
          keys: the features that are activations.
        """
        features = dict(features)
        keys = list(keys)
        if not keys:
            return features
        dummy = tf.compat.v1.get_variable(
            DUMMY_VARIABLE,
            shape=[1],
            dtype=tf.float32,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=True,
            use_resource=True,
            # Not a global variable, so that no Saver saves it.
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        )
        read = dummy.read_value()
        for key in keys:
            self._captured[key] = features[key]
            features[key] = self._noted(key, features[key], read)
        return features

    def of(self, keys: Iterable[str]) -> list[tf.Tensor]:
        """Returns the gradients of features; call it after the model_fn.

        Gradients that were not computed are zeros, as on a TPU.
        """
        keys = list(keys)
        missing = [key for key in keys if key not in self._gradients]
        if missing:
            tf.compat.v1.logging.warning(
                "The gradients of the activations of %s are undefined: the loss "
                "does not depend on them, or no optimizer computed gradients of "
                "tf.compat.v1.trainable_variables(). They count as 0. A var_list "
                "of your own needs the variable '%s' beside the others: "
                "tf.compat.v1.trainable_variables() has it.",
                missing,
                DUMMY_VARIABLE,
            )
        return [
            self._gradients[key]
            if key in self._gradients
            else tf.zeros_like(self._captured[key])
            for key in keys
        ]

    def _noted(
        self, key: str, activation: tf.Tensor, dummy: tf.Tensor
    ) -> tf.Tensor:
        @tf.custom_gradient
        def through(
            activation: tf.Tensor, dummy: tf.Tensor
        ) -> tuple[tf.Tensor, Callable[..., Any]]:
            def gradient(upstream: Any) -> tuple[tf.Tensor, tf.Tensor]:
                if key in self._gradients:
                    raise errors.StateError(_TWO_GRADIENTS.format(key=key))
                upstream = tf.convert_to_tensor(upstream)
                self._gradients[key] = tf.identity(upstream)
                return upstream, tf.zeros_like(dummy)

            return tf.identity(activation), gradient

        noted: tf.Tensor = through(activation, dummy)
        return noted
