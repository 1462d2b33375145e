"""What rows can be looked up in: the base of variables and their shadows."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["EmbeddingWeights"]


class EmbeddingWeights(abc.ABC):
    """Rows by key, differentiable.

    Attributes:
      name: what errors call it.
      key_dtype: dtype of the keys.
      value_dtype: dtype of the rows.
      dim: width of a row.
      as_keys: of a layer's table, what makes keys of the ids that come.
    """

    name: Any
    key_dtype: Any
    value_dtype: Any
    dim: Any
    as_keys: Any = None

    @abc.abstractmethod
    def embedding_lookup(
        self,
        ids: Any,
        name: str | None = None,
        max_norm: float | None = None,
        return_trainable: bool = False,
    ) -> Any:
        """The rows of `ids`, ids.shape + [dim], as `de.embedding_lookup`."""

    def verify_embedding_weights(
        self, sparse_ids: Any, sparse_weights: Any = None
    ) -> None:
        """Raises for ids or weights of another dtype than keys and rows.

        Args:
          sparse_ids: anything with a dtype.
          sparse_weights: anything with a dtype, or None.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) another dtype.
        """
        self._check_dtype("Ids", sparse_ids, self.key_dtype)
        if sparse_weights is not None:
            self._check_dtype("Weights", sparse_weights, self.value_dtype)

    def _check_dtype(self, what: str, value: Any, dtype: tf.DType) -> None:
        if value.dtype != dtype:
            raise errors.DtypeError(
                f"{what} for '{self.name}' must be {dtype.name}; got "
                f"{tf.as_dtype(value.dtype).name}. Cast them first."
            )
