"""The private TensorFlow symbols that the engine uses; there are no others.

Tried by tests/embedding/test_private.py on every supported version.
"""

from __future__ import annotations

from typing import Any

from tfembed.ops.private import single_variable

__all__ = ["add_variable", "single_variable", "track"]


def track(owner: Any, name: str, child: Any) -> Any:
    """Makes `child` part of what `owner` saves; restores it if that waits.

    Unlike an attribute's, the name may have any form.
    """
    return owner._track_trackable(child, name=name)


def add_variable(owner: Any, **arguments: Any) -> Any:
    """Makes and tracks a variable, from a checkpoint if one waits for it.

    Args:
      owner: a trackable object.
      **arguments: name, shape, dtype, initializer, getter, and more for getter.
    """
    return owner._add_variable_with_custom_getter(**arguments)
