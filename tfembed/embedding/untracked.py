"""Keeps objects out of what TensorFlow tracks of an attribute."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

__all__ = ["Untracked"]

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, eq=False)
class Untracked(Generic[_T]):
    """Holds what a trackable object has, but does not save by itself."""

    value: _T
