"""Floats where a feature's ids belong."""

from __future__ import annotations

from typing import Any, TypeGuard

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.keras.float_ids import stand_in
from tfembed.embedding.features.inputs import check_ids

__all__ = ["are_floats", "ids_for", "stand_in"]


def are_floats(value: Any) -> TypeGuard[tf.Tensor]:
    """Whether `value` is a dense float tensor."""
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def ids_for(value: Any, path: str, feature: Any) -> Any:
    """Stand-ins for floats [...], all else as it is.

    Args:
      value: what was given as a feature's ids.
      path: what errors call the feature.
      feature: its FeatureConfig.

    Raises:
      As `stand_in`.
    """
    if not are_floats(value):
        return value
    try:
        check_ids(value.dtype, path, feature.table)
    except errors.DtypeError as error:
        wanted = getattr(feature.table, "key_dtype", tf.int64)
        ids = stand_in(value, wanted, str(error))
    # Only sparse ids have more dimensions, and Keras forgets that they are sparse.
    return tf.sparse.from_dense(ids) if (ids.shape.rank or 0) > 2 else ids
