"""Whether shadow lookups train or only read."""

from __future__ import annotations

__all__ = [
    "ModelMode",
    "enable_inference_mode",
    "enable_train_mode",
    "get_model_mode",
]


class ModelMode:
    """The modes of a program; one holds for all of it.

    In train mode a lookup through a `ShadowVariable` carries a gradient and
    leaves its ids and rows in the shadow. In inference mode it does neither, so
    that any number of threads may look up through one shadow. A tf.function
    keeps the mode that it was traced in. Other lookups are the same in both.

    Attributes:
      TRAIN: "train".
      INFERENCE: "inference".
      CURRENT_SETTING: the mode that holds.
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def enable_train_mode() -> None:
    """Lets lookups train, as they do from the start."""
    ModelMode.CURRENT_SETTING = ModelMode.TRAIN


def enable_inference_mode() -> None:
    """Lets lookups only read; call it before functions are traced."""
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE


def get_model_mode() -> str:
    """The mode that holds, "train" or "inference"."""
    return ModelMode.CURRENT_SETTING
