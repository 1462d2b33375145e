"""The rows of a layer in the files that Keras writes for a model.

A `.keras` file has a folder of assets for each layer; a `.weights.h5` file has
arrays only. Both get the same bytes: a checkpoint of the table, written and
read in slices, so that memory holds no second copy of the table. A long copy
prints its progress on stderr.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops import checkpoint as checkpoint_ops

__all__ = [
    "assets_follow",
    "read_assets",
    "read_store",
    "saved_key_dtype",
    "stored_assets",
    "tell_progress",
    "write_assets",
    "write_store",
]

_PREFIX = "rows"
_KEYS = "params/table/.ATTRIBUTES/keys"
_STEPS = "params/table/trained_steps/.ATTRIBUTES/VARIABLE_VALUE"
_CHUNK_BYTES = 2 << 20
# One array of bytes per chunk of a file.
_KEY = "{file}|{chunk:06d}"


def assets_follow(store: Any) -> bool:
    """Says whether Keras will save assets too, after this store of arrays.

    In doubt the answer is False: then rows may be written twice, but are never
    left out.
    """
    if isinstance(store, dict):  # save_model(weights_format="npz").
        return True
    if getattr(store, "archive", None) is not None:
        return True
    # `save_weights` requires this suffix; a `.keras` file that does not fit in
    # memory goes through a temporary file without a suffix.
    path = getattr(store, "path_or_io", None)
    return path is not None and not str(path).endswith(".weights.h5")


def write_assets(params: Any, folder: str) -> None:
    """Writes the table as files into an existing folder.

    Args:
      params: a Variable, or a trackable object that has tables and a `name`.
      folder: the folder.
    """
    checkpoint = tf.train.Checkpoint(params=params)
    checkpoint.write(str(pathlib.Path(folder) / _PREFIX))


def read_assets(
    params: Any, folder: str | None, *, is_partial: bool = False
) -> None:
    """Replaces the table's content by the files of `write_assets`.

    Args:
      params: as for `write_assets`. If it has a method `reading`, that is
        called with the file's keys and returns the context for the read.
      folder: the folder.
      is_partial: whether the files may lack slots, which then stay unchanged.

    Raises:
      tfembed.errors.CheckpointError: the folder has no table.
      tf.errors.OpError: a table of another kind, or damaged files. No table is
        changed.
    """
    prefix = pathlib.Path(folder or "") / _PREFIX
    if not folder or not prefix.with_name(f"{_PREFIX}.index").exists():
        raise errors.CheckpointError(
            f"The file holds no rows for '{params.name}'. Was it saved by another "
            "model?"
        )
    checkpoint_ops.check_sizes(str(prefix))
    saved = tf.train.load_checkpoint(str(prefix))
    reading = getattr(params, "reading", lambda _: contextlib.nullcontext())
    with reading(saved.get_variable_to_shape_map()):
        status = tf.train.Checkpoint(params=params).read(str(prefix))
        if not (is_partial or _is_new_expiry(params, saved)):
            status.assert_existing_objects_matched()
        else:
            status.expect_partial()


def _is_new_expiry(params: Any, saved: Any) -> bool:
    """Says whether the table has an expiry whose step count the file lacks."""
    return (
        isinstance(params, Variable)
        and params.table.expiry is not None
        and not saved.has_tensor(_STEPS)
    )


def saved_key_dtype(folder: str | None) -> tf.DType | None:
    """Returns the dtype of the keys that `write_assets` wrote.

    Returns None if there are no keys or no readable files.
    """
    prefix = str(pathlib.Path(folder or "") / _PREFIX)
    try:
        checkpoint_ops.check_sizes(prefix)
        saved = tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError):
        return None  # `read_assets` raises the error.
    return saved.get_variable_to_dtype_map().get(_KEYS)


def write_store(params: Any, store: Any) -> None:
    """Writes the table into `store` as arrays of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        write_assets(params, folder)
        chunks = [
            (path, i)
            for path in sorted(pathlib.Path(folder).iterdir())
            for i in range(-(-path.stat().st_size // _CHUNK_BYTES))
        ]
        what = f"Writing the rows of '{params.name}' into the file"
        for path, i in tell_progress(what, chunks):
            store[_KEY.format(file=path.name, chunk=i)] = _chunk(path, i)


def read_store(params: Any, store: Any) -> None:
    """Replaces the table's content by the arrays of `write_store`.

    Raises:
      The errors of `read_assets`.
    """
    with stored_assets(store) as folder:
        read_assets(params, folder)


@contextlib.contextmanager
def stored_assets(store: Any) -> Iterator[str]:
    """Yields a folder with the files that `write_store` put into `store`."""
    with tempfile.TemporaryDirectory() as folder:
        what = "Reading rows out of the file"
        for key in tell_progress(what, sorted(store.keys())):
            name, mark, _ = key.partition("|")
            # A name with a "/" would point outside of the folder.
            is_file = name.startswith(f"{_PREFIX}.") and "/" not in name
            if mark and is_file:
                with (pathlib.Path(folder) / name).open("ab") as file:
                    file.write(np.ascontiguousarray(store[key]))
        yield folder


def _chunk(path: pathlib.Path, i: int) -> np.ndarray[Any, Any]:
    with path.open("rb") as file:
        file.seek(i * _CHUNK_BYTES)
        return np.frombuffer(file.read(_CHUNK_BYTES), np.uint8)


_T = TypeVar("_T")

_PAUSE = 5.0  # Seconds between lines, as in the checkpoint ops.


def tell_progress(what: str, parts: Sequence[_T]) -> Iterator[_T]:
    """Yields the parts of a task one by one, and prints how many are done.

    It prints a line every five seconds. The environment variable
    TFEMBED_PROGRESS_SECONDS sets another pause, or no lines if it is negative;
    TF_CPP_MIN_LOG_LEVEL=1 hides the lines too, as TensorFlow's own log.

    Args:
      what: the task, as in "Writing the rows of 'users' into the file".
      parts: parts of about equal size.
    """
    pause = _pause()
    begin = last = time.monotonic()
    for done, part in enumerate(parts):
        now = time.monotonic()
        if done and 0 <= pause <= now - last:
            last = now
            left = (now - begin) * (len(parts) - done) / done
            _say(
                f"{what}: {100 * done // len(parts)} %, some {left:.0f} s left"
            )
        yield part
    if last > begin:
        _say(f"{what}: done in {time.monotonic() - begin:.1f} s")


def _pause() -> float:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") != "0":
        return -1.0
    try:
        return float(os.environ.get("TFEMBED_PROGRESS_SECONDS", _PAUSE))
    except ValueError:
        return _PAUSE


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
