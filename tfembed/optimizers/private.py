"""The private TensorFlow symbols of descriptions.

Tried by tests/optimizers/test_custom_optimizer.py, on the versions that
`tfembed/ops/private.py` lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["slots_of"]

# By entry, the public means that would end it.
ENDED_BY = {
    "slots_of": "public names and initial values of a description's slots"
}


def slots_of(
    description: Any,
) -> tuple[list[str], list[Callable[..., tf.Tensor]]]:
    """The slots of TensorFlow's CustomOptimizer or CustomCombiner.

    Returns:
      Their names and what fills them.
    """
    return description._slot_names(), description._slot_initializers()
