"""Attributes of a wrapped optimizer, asked of what wraps it."""

from __future__ import annotations

from typing import Any

__all__ = ["inner_attribute"]


def inner_attribute(front: Any, holder: str, name: str) -> Any:
    """A public attribute of the optimizer that `front` wraps, such as `beta_1`.

    For `__getattr__`, which may be asked before there is that optimizer.

    Args:
      front: what wraps it.
      holder: the attribute of `front` that is the optimizer.
      name: of the attribute asked for.

    Raises:
      AttributeError: the optimizer has none of that name, or it is private.
    """
    inner = vars(front).get(holder)
    if name.startswith("_") or not hasattr(inner, name):
        raise AttributeError(
            f"'{type(front).__name__}' object has no attribute '{name}'"
        )
    return getattr(inner, name)
