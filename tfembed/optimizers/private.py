"""The private TensorFlow symbols for optimizer descriptions.

tests/optimizers/test_custom_optimizer.py tries them, on the versions that
`tfembed/ops/private.py` lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["slots_of"]

# The public API that would end each entry.
ENDED_BY = {
    "slots_of": "public names and initial values of a description's slots"
}


def slots_of(
    description: Any,
) -> tuple[list[str], list[Callable[..., tf.Tensor]]]:
    """Returns the slots of TensorFlow's CustomOptimizer or CustomCombiner.

    Returns:
      Their names and their initializers.
    """
    return description._slot_names(), description._slot_initializers()
