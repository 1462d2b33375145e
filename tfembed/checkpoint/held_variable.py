"""A variable's handle, without the variable, for a SavedModel's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfembed.checkpoint import private

__all__ = ["HeldVariable", "register"]


def register() -> None:
    """Registers the class, which SavedModels name."""
    private.register_serializable("HeldVariable", HeldVariable)


class HeldVariable(tf.__internal__.tracking.Trackable):
    """Provides a variable's handle to functions as a captured resource.

    When a loaded function is frozen (`convert_variables_to_constants_v2`),
    TensorFlow replaces each captured variable by a constant. Our ops need a
    handle, not a constant. A SavedModel with a HeldVariable beside the
    variable binds the handles that its functions capture to the HeldVariable.

    Args:
      variable: a tf.Variable without copies.
    """

    # The name of the attribute that a loaded function captures.
    _should_act_as_resource_variable = True

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the variable."""
        return self._variable.handle

    @property
    def is_distributed_variable(self) -> bool:
        """Whether the variable was loaded under a strategy, with copies."""
        return getattr(self._variable, "is_distributed_variable", False)

    def __getattr__(self, name: str) -> Any:
        # A function looks up a replica's copy by this attribute.
        if name == "__tf_experimental_restore_capture__":
            return getattr(self._variable, name)
        raise AttributeError(name)

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        del save_type, kwargs
        return {"variable": self._variable}

    def _deserialization_dependencies(
        self, children: Mapping[str, Any]
    ) -> dict[str, Any]:
        del children
        return {"variable": self._variable}

    def _export_to_saved_model_graph(self, **kwargs: Any) -> list[tf.Tensor]:
        """Maps to the handle of the variable, which is exported before."""
        del kwargs
        return [self._variable.handle]

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Marks the node in the SavedModel as an object, not a variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1

    @classmethod
    def _deserialize_from_proto(
        cls, dependencies: Mapping[str, Any], **kwargs: Any
    ) -> HeldVariable:
        del kwargs
        return cls(dependencies["variable"])

    def _add_trackable_child(self, name: str, value: Any) -> None:
        """Ignores the loaded variable, which is set already."""
        del name, value
