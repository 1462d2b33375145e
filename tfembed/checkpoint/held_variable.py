"""The handle of a variable, without the variable, in functions of a SavedModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfembed.checkpoint import private

__all__ = ["HeldVariable", "register"]


def register() -> None:
    """Registers the class that a SavedModel names."""
    private.register_serializable("HeldVariable", HeldVariable)


class HeldVariable(tf.__internal__.tracking.Trackable):
    """Has a variable's handle in functions, and is no variable of theirs.

    TensorFlow makes a constant of each variable of a loaded function when the
    function is frozen (`convert_variables_to_constants_v2`). An op of ours takes
    a handle, and no constant in its place. A SavedModel in which this is a child
    beside the variable binds the functions' handles to this.

    Args:
      variable: a tf.Variable of one copy.
    """

    # What makes a loaded function ask for `handle`.
    _should_act_as_resource_variable = True

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    @property
    def handle(self) -> tf.Tensor:
        """The variable's."""
        return self._variable.handle

    @property
    def is_distributed_variable(self) -> bool:
        """Whether the variable was loaded under a strategy, which has copies."""
        return getattr(self._variable, "is_distributed_variable", False)

    def __getattr__(self, name: str) -> Any:
        # By this a function takes a replica's copy.
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
        """Takes the handle over from the variable, which comes before."""
        del kwargs
        return [self._variable.handle]

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Tells a SavedModel that this is an object, no variable."""
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
        """The loaded variable is there already."""
        del name, value
