"""What the callers of savers to and loaders of raw files may give."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tfembed import checks, errors

__all__ = ["folder", "path", "rows"]


def folder(dirpath: Any, dirpath_env: str | None) -> tf.Tensor:
    """The folder, a string scalar: the environment's, if set, else `dirpath`.

    Raises:
      tfembed.errors.ArgumentError: an empty path.
    """
    override = os.environ.get(dirpath_env) if dirpath_env else None
    if not override and tf.is_tensor(dirpath):
        return dirpath
    name = override or os.fspath(dirpath)
    if not name:
        raise errors.ArgumentError(
            f"`dirpath` must be a folder's path, as in '.'; got {dirpath!r}."
        )
    return tf.constant(name)


def path(folder: tf.Tensor) -> str:
    """The folder's path, to look for files now.

    Raises:
      tfembed.errors.ArgumentError: it is known only when a graph runs.
    """
    value = tf.get_static_value(folder)
    if value is None:
        raise errors.ArgumentError(
            "`dirpath` must be known when files are looked for; got a tensor "
            "of a graph. Give a path, or name the files."
        )
    return str(
        tf.compat.as_str(value.item() if hasattr(value, "item") else value)
    )


def rows(buffer_size: Any) -> int:
    """`buffer_size`, rows that are copied at a time.

    Raises:
      tfembed.errors.ArgumentError: below 1, or no integer.
    """
    return checks.integer(buffer_size, "buffer_size", least=1)
