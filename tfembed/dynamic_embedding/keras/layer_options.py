"""What layers take by keyword alone: TFRA's options, and a table's policies."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tfembed import checks, errors
from tfembed.dynamic_embedding.keras import layer_config
from tfembed.dynamic_embedding.variables.partition import default_partition_fn

__all__ = ["LayerOptions"]

_POLICIES = ("admission", "eviction", "expiry")
_INTEGERS = {"init_capacity": 0, "max_size": 1}  # And the least of each.


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Options of a layer's table. `max_norm` is the lookup's, others Variable's."""

    admission: Any = None
    bp_v2: bool = False
    checkpoint: bool = True
    eviction: Any = None
    expiry: Any = None
    init_capacity: int = 0
    kv_creator: Any = None
    max_norm: float | None = None
    max_size: int | None = None
    partitioner: Any = None
    restrict_policy: Any = None
    stochastic_rounding: bool = False

    @classmethod
    def take_from(cls, kwargs: dict[str, Any]) -> LayerOptions:
        """Takes the options out of a layer's keyword arguments.

        Raises:
          tfembed.errors.UnsupportedError: a `distribute_strategy`, or a Keras
            that does not run on TensorFlow.
        """
        if keras.backend.backend() != "tensorflow":
            raise errors.UnsupportedError(
                "tfembed's layers need Keras on TensorFlow; it runs on "
                f"'{keras.backend.backend()}'. Set KERAS_BACKEND=tensorflow."
            )
        if kwargs.pop("distribute_strategy", None) is not None:
            raise errors.UnsupportedError(
                "`distribute_strategy` is not in this release; leave it None. "
                "tfembed.TPUEmbedding trains under strategies."
            )
        kwargs.pop("keep_distribution", None)  # Devices are always kept.
        names = [field.name for field in dataclasses.fields(cls)]
        options = {name: kwargs.pop(name) for name in names if name in kwargs}
        for name, least in _INTEGERS.items():
            if options.get(name) is not None:
                options[name] = checks.integer(options[name], name, least=least)
        if options.get("max_norm") is not None:
            # As Python's, so that it is JSON; `check_max_norm` tells of others.
            options["max_norm"] = checks.scalar(options["max_norm"])
        for name in ("partitioner", "restrict_policy"):
            options[name] = layer_config.object_of(options.get(name), name)
        if options["partitioner"] is default_partition_fn:
            options["partitioner"] = None  # So that it need not be registered.
        for name in _POLICIES:
            options[name] = layer_config.policy_of(options.get(name))
        return cls(**options)

    def config(self) -> dict[str, Any]:
        """The options as JSON, for `take_from`.

        The only creator there is makes what None makes, and is left out.

        Raises:
          tfembed.errors.ArgumentError: a function or class is not registered.
        """
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self)
        }
        for name in ("partitioner", "restrict_policy"):
            fields[name] = layer_config.name_of(fields[name], name)
        for name in _POLICIES:
            fields[name] = layer_config.policy_config(fields[name])
        return {**fields, "kv_creator": None}
