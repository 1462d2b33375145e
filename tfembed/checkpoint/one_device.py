"""Tables whose shards lie on several devices, which no file op can reach."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfembed import errors
from tfembed.tables.arguments import host_device

__all__ = ["check_one_device"]


def check_one_device(handles: Sequence[tf.Tensor], name: str) -> None:
    """Refuses to save or load shards of several devices.

    Args:
      handles: of the shards.
      name: the table's.

    Raises:
      tfembed.errors.UnsupportedError: they lie on several devices.
    """
    if len({host_device(handle.device) for handle in handles}) > 1:
        devices = sorted({handle.device or "/CPU:0" for handle in handles})
        raise errors.UnsupportedError(
            f"The shards of table '{name}' lie on {', '.join(devices)}; raw "
            "files, and checkpoints in eager mode, are written and read where "
            "all shards of a table lie on one device. Give its `devices` one "
            "name several times, or save what `export` gives and `upsert` it "
            "again."
        )
