"""The private TensorFlow symbols that descriptions need; there are no others.

Tried by tests/optimizers/test_custom_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["slots_of"]


def slots_of(
    description: Any,
) -> tuple[list[str], list[Callable[..., tf.Tensor]]]:
    """The slots of TensorFlow's CustomOptimizer or CustomCombiner.

    Returns:
      Their names and what fills them.
    """
    return description._slot_names(), description._slot_initializers()
