"""Where shards lie, by the names of their devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

__all__ = ["by_place", "place"]


@functools.lru_cache
def place(device: str) -> tuple[str, int, int, int]:
    """What tells one host device from another; an op runs on one of them.

    Args:
      device: its name, in part or in full; what it leaves out is the first, as
        in "/CPU:0" and "/job:localhost/task:0/CPU:0".

    Returns:
      Job, replica, task and number.
    """
    spec = tf.DeviceSpec.from_string(device)
    return (
        spec.job or "localhost",
        spec.replica or 0,
        spec.task or 0,
        spec.device_index or 0,
    )


def by_place(handles: Sequence[tf.Tensor]) -> list[list[int]]:
    """The positions of handles, by the devices that they lie on."""
    places: dict[tuple[str, int, int, int], list[int]] = {}
    for i, handle in enumerate(handles):
        places.setdefault(place(handle.device), []).append(i)
    return list(places.values())
