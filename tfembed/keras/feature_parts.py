"""Some of a layer's features: those of a user tower alone, say."""

from __future__ import annotations

from typing import Any

__all__ = ["part_of"]


def part_of(inputs: Any, structure: Any) -> Any:
    """The part of a structure that `inputs` names.

    Dicts may leave keys out, at any depth. Lists and tuples may not, since what
    is in them has no name.

    Args:
      inputs: structured as the features, or as a part of them.
      structure: of all features.

    Returns:
      All of `structure` where `inputs` has what it has not: the error of whoever
      compares the two says what.
    """
    if not isinstance(inputs, dict) or not isinstance(structure, dict):
        return structure
    if not inputs or any(key not in structure for key in inputs):
        return structure
    return {
        key: part_of(inputs[key], one)
        for key, one in structure.items()
        if key in inputs
    }
