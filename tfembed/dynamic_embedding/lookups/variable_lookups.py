"""The lookup methods of `Variable`."""

from __future__ import annotations

import weakref
from typing import Any

from tfembed import errors
from tfembed.dynamic_embedding.lookups.trainable import look_up
from tfembed.dynamic_embedding.variables.embedding_weights import (
    EmbeddingWeights,
)

__all__ = ["VariableLookups"]


class VariableLookups(EmbeddingWeights):
    """Differentiable lookups, found again by name. Base of `Variable`."""

    _trainables: Any = None

    def embedding_lookup(
        self,
        ids: Any,
        name: str | None = None,
        max_norm: float | None = None,
        return_trainable: bool = False,
    ) -> Any:
        """The rows of `ids`, differentiable: `embedding_lookup` as a method.

        Args:
          ids: keys of any shape.
          name: of the lookup.
          max_norm: rows longer than this (L2) are scaled to it.
          return_trainable: whether to return a `TrainableWrapper` too.

        Returns:
          Rows, ids.shape + [dim]; with `return_trainable` a pair.
        """
        return look_up(self, ids, name, max_norm, return_trainable)

    def remember_trainable(self, trainable: Any) -> None:
        """Lets `get_trainable_by_name` find a lookup or shadow while it lives."""
        if self._trainables is None:
            self._trainables = weakref.WeakValueDictionary()
        self._trainables[trainable.name] = trainable

    def get_trainable_by_name(self, name: str) -> Any:
        """The lookup or shadow called `name`, while it lives, or None.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) `name` is no string.
        """
        if not isinstance(name, str):
            raise errors.DtypeError(f"`name` must be a string; got {name!r}.")
        return (self._trainables or {}).get(name)

    @property
    def trainable_store(self) -> dict[str, Any]:
        """The lookups and shadows that live, by name; a copy."""
        return dict(self._trainables or {})

    # TFRA's documentation calls it so.
    get_eager_trainable_by_name = get_trainable_by_name
