"""Conversion of a layer's arguments to JSON and back."""

from __future__ import annotations

import contextvars
import dataclasses
import inspect
import sys
import warnings
from typing import Any

import keras

from tfembed import errors, policies
from tfembed.dynamic_embedding.keras import combiners
from tfembed.initializers import RowInitializer, row_initializer
from tfembed.policies.admission import as_admission
from tfembed.tables.seeded_rows import draws_by_seed

__all__ = [
    "FLOAT_IDS_REFUSED",
    "NoMatrix",
    "combiner_of",
    "initializer_config",
    "initializer_of",
    "is_below",
    "name_of",
    "object_of",
    "policy_config",
    "policy_of",
    "say_not_shared",
]

# Whether layers refuse float ids in a trace already, not only when it runs.
FLOAT_IDS_REFUSED = contextvars.ContextVar("float ids refused", default=False)


class NoMatrix:
    """The attribute `embeddings`, for wrappers that take Keras' own layer."""

    def __get__(self, layer: Any, owner: Any = None) -> Any:
        """Raises UnsupportedError, which `hasattr` lets through."""
        if layer is None:
            return self
        raise errors.UnsupportedError(
            f"Layer '{layer.name}' has no matrix `embeddings`, which "
            "keras.layers.SpectralNormalization, for example, divides by a norm "
            "of all rows: rows of a table are found by key, and there is no last "
            "one. Use the layer without that wrapper, or keras.layers.Embedding "
            "inside of it."
        )


def initializer_config(initializer: Any, dim: int, fan_in: int | None) -> Any:
    """Converts an initializer to JSON: Keras' form, or a `RowInitializer`'s.

    A function with a seed is saved by the name under which it is registered.

    Raises:
      tfembed.errors.ArgumentError: a function that is not registered.
    """
    if initializer is None or isinstance(initializer, (str, int, float)):
        return initializer
    if isinstance(initializer, keras.initializers.Initializer):
        return keras.initializers.serialize(initializer)
    if draws_by_seed(initializer, dim):
        return {"registered": name_of(initializer, "initializer")}
    return dataclasses.asdict(row_initializer(initializer, dim, fan_in))


def initializer_of(config: Any) -> Any:
    """Undoes `initializer_config`; returns other values as they are."""
    if not isinstance(config, dict):
        return config
    if "class_name" in config:
        return keras.initializers.deserialize(config)
    if "registered" in config:
        return object_of(config["registered"], "initializer")
    return RowInitializer(**{**config, "arguments": (*config["arguments"],)})


def combiner_of(combiner: Any) -> Any:
    """Returns a combiner's name, or a function, looked up if it is registered.

    Raises:
      tfembed.errors.ArgumentError: an unknown name.
    """
    if callable(combiner) or combiner in combiners.NAMES:
        return combiner
    found = keras.saving.get_registered_object(str(combiner))
    if found is None:
        raise errors.ArgumentError(
            f"`combiner` must be one of {combiners.NAMES} or a function of "
            f"(rows, axes); got {combiner!r}."
        )
    return found


def name_of(value: Any, argument: str) -> str | None:
    """Returns the registered name of a function or class.

    Raises:
      tfembed.errors.ArgumentError: the object is not registered.
    """
    if value is None or isinstance(value, str):
        return value
    name = ""
    if hasattr(value, "__name__"):  # Not a callable object.
        name = str(keras.saving.get_registered_name(value))
    if not name or _registered(name) is not value:
        raise errors.ArgumentError(
            f"`{argument}` of a layer that is saved must be registered; got "
            f"{value!r}. Put @keras.saving.register_keras_serializable() above it."
        )
    return name


def object_of(name: Any, argument: str) -> Any:
    """Returns the object of a name from `name_of`; other values unchanged.

    Raises:
      tfembed.errors.ArgumentError: nothing is registered under that name.
    """
    if not isinstance(name, str):
        return name
    found = _registered(name)
    if found is None:
        raise errors.ArgumentError(
            f"`{argument}` {name!r} of a saved layer is not registered. Import "
            "what registers it, or give it as `custom_objects`."
        )
    return found


def policy_config(policy: Any) -> dict[str, Any] | None:
    """Converts a policy of `tfembed.policies` to JSON, for `policy_of`."""
    if policy is None:
        return None
    return {"class_name": type(policy).__name__, **dataclasses.asdict(policy)}


def policy_of(config: Any) -> Any:
    """Returns the policy of a `policy_config`; other values unchanged.

    A number n means `CountAdmission(n)`.

    Raises:
      tfembed.errors.ArgumentError: a class that `tfembed.policies` lacks.
    """
    if not isinstance(config, dict):
        return as_admission(config)
    fields = dict(config)
    name = fields.pop("class_name", None)
    if name not in policies.__all__:
        raise errors.ArgumentError(
            f"A policy of a saved layer must be of {policies.__all__}; got "
            f"{name!r}. Was the model saved by a newer release?"
        )
    return getattr(policies, name)(**fields)


def is_below(cls: type, method: str, other: str) -> bool:
    """Says whether a subclass overrides `method` below the class of `other`."""
    changes, knows = (
        next(c for c in cls.__mro__ if name in vars(c))
        for name in (method, other)
    )
    return changes is not knows and issubclass(changes, knows)


def say_not_shared(layer: str) -> None:
    """Warns that the clone of a layer that shares tables has its own.

    Args:
      layer: the name of the layer.
    """
    warnings.warn(
        f"The clone of layer '{layer}' has tables of its own, where the layer "
        "looks up those of another layer: Keras makes clones one by one. Save "
        "the model and load it, or build it by its own code, to share them.",
        stacklevel=3,
    )


def _registered(name: str) -> Any:
    """Finds a name in Keras' registry, or in `dynamic_embedding` itself."""
    found = keras.saving.get_registered_object(name)
    ours = getattr(sys.modules["tfembed.dynamic_embedding"], name, None)
    return ours if found is None and inspect.isclass(ours) else found
