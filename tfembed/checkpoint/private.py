"""The private TensorFlow symbols for saving.

tests/checkpoint/test_private.py tries each of them, on the versions that
`tfembed/ops/private.py` lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.saved_model import registration, save_context
from tensorflow.python.training.saving import saveable_object

# The public API that would end each entry.
ENDED_BY = {
    "SaveSpec": "the end of tf.compat.v1.train.Saver",
    "SaveableObject": "the end of tf.compat.v1.train.Saver",
    "exporting_saved_model": "a public way to ask what a trace is for",
    "register_checkpoint_saver": "a public registration of savers",
    "register_serializable": "a public registration of classes of SavedModels",
}

# The objects that `tf.compat.v1.train.Saver` saves, and their tensors.
SaveableObject = saveable_object.SaveableObject
SaveSpec = saveable_object.SaveSpec


def register_checkpoint_saver(
    name: str,
    *,
    predicate: Callable[[Any], bool],
    save_fn: Callable[..., Any],
    restore_fn: Callable[..., Any],
) -> None:
    """Registers functions that save and restore objects of a kind.

    TensorFlow calls the functions with `trackables`, a dict from an object's
    path in the checkpoint to the object, and `file_prefix` or `merged_prefix`.
    """
    registration.register_checkpoint_saver(
        package="tfembed",
        name=name,
        predicate=predicate,
        save_fn=save_fn,
        restore_fn=restore_fn,
    )


def register_serializable(name: str, cls: type) -> None:
    """Makes `tf.saved_model.load` create objects of `cls`."""
    registration.register_serializable(
        package="tfembed", name=name, predicate=lambda x: type(x) is cls
    )(cls)


def exporting_saved_model() -> bool:
    """Whether this thread traces functions for `tf.saved_model.save`."""
    return bool(save_context.in_save_context())
