"""A table in a checkpoint of its own, for tests."""

from __future__ import annotations

import pathlib

import tensorflow as tf


def save(table, directory):
    return tf.train.Checkpoint(table=table).save(str(directory / "ckpt"))


def restore(table, path):
    tf.train.Checkpoint(table=table).restore(path)


def damage(path, tensor):
    """Changes a bit of a tensor, which is found in the files by its bytes."""
    path = pathlib.Path(path)
    for file in path.parent.glob(f"{path.name}.data*"):
        content = bytearray(file.read_bytes())
        place = content.find(tensor.tobytes())
        if place >= 0:
            content[place + 100] ^= 1
            file.write_bytes(content)
            return
    raise AssertionError("the tensor is not in the files")
