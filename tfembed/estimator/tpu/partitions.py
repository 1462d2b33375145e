"""How tensors are cut for the cores of a replica: `input_partition_dims`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfembed import errors

_NAMES = ("feature", "label")


def check(dims: Sequence[Any], features: Any, labels: Any, cores: int) -> None:
    """Checks `TPUConfig.input_partition_dims` against the tensors it cuts.

    Args:
      dims: One or two structures, for features and labels.
      features, labels: Nested tensors of a replica; labels may be None.
      cores: How many parts a tensor is cut into.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) structures that differ, or
        a tensor that cannot be cut so.
    """
    for place, structure in enumerate((features, labels)):
        if structure is None or place >= len(dims) or dims[place] is None:
            continue
        keys = _keys(structure)
        if keys != _keys(dims[place]):
            raise errors.ArgumentError(
                f"TPUConfig.input_partition_dims[{place}] mismatched "
                f"{_NAMES[place]} keys. Expected {keys}, got "
                f"{_keys(dims[place])}."
            )
        _check(dims[place], structure, _Whose(place, cores), "")


class _Whose:
    """Names the owner of the dimensions in error texts."""

    def __init__(self, place: int, cores: int) -> None:
        self.place = place
        self.cores = cores

    def mismatch(self, dims: Any, structure: Any) -> errors.ArgumentError:
        return errors.ArgumentError(
            f"TPUConfig.input_partition_dims[{self.place}] mismatched the "
            f"structure of {_NAMES[self.place]}s. It needs a list of parts, or "
            f"None, for each tensor: got {dims!r} for {structure!r}."
        )


def _keys(structure: Any) -> list[str]:
    return sorted(structure) if isinstance(structure, Mapping) else []


def _check(dims: Any, structure: Any, whose: _Whose, path: str) -> None:
    if isinstance(structure, Mapping):
        if not isinstance(dims, Mapping) or set(dims) != set(structure):
            raise whose.mismatch(dims, structure)
        for key, value in structure.items():
            _check(dims[key], value, whose, f"{path}['{key}']")
    elif isinstance(structure, (tuple, list)):
        if not isinstance(dims, (tuple, list)) or len(dims) != len(structure):
            raise whose.mismatch(dims, structure)
        for i, value in enumerate(structure):
            _check(dims[i], value, whose, f"{path}[{i}]")
    elif dims is not None:
        _check_tensor(dims, structure, whose, path)


def _check_tensor(dims: Any, tensor: Any, whose: _Whose, path: str) -> None:
    owner = f"{_NAMES[whose.place]}s{path}"
    if not isinstance(dims, (tuple, list)):
        raise whose.mismatch(dims, tensor)
    if any(part < 1 for part in dims):
        raise errors.ArgumentError(
            f"All input partition dims must be >= 1. Given {list(dims)} for "
            f"{owner}."
        )
    parts = math.prod(dims)
    if parts == 1:
        return
    if parts != whose.cores:
        raise errors.ArgumentError(
            "The product of each input partition dim should equal to "
            f"num_cores_per_replica. Given {list(dims)} for {owner}, and "
            f"num_cores_per_replica is {whose.cores}."
        )
    if tensor.shape.rank != len(dims):
        raise errors.ArgumentError(
            "Input partition dims must have the same number of dimensions as "
            f"the tensor they cut. Given {list(dims)} for {owner} of shape "
            f"{tensor.shape}."
        )
