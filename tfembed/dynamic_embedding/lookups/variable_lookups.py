"""The lookup methods of `Variable`."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from tfembed import errors
from tfembed.dynamic_embedding.lookups.gradient_source import TableSource
from tfembed.dynamic_embedding.lookups.trainable import look_up
from tfembed.dynamic_embedding.variables.embedding_weights import (
    EmbeddingWeights,
)

__all__ = ["VariableLookups"]

_MOST_NAMES = (
    1000  # Of lookups; whoever makes up a name for each keeps the last.
)


class VariableLookups(EmbeddingWeights, TableSource):
    """Differentiable lookups, found again by name. Base of `Variable`."""

    _trainables: Any = None

    @functools.cached_property
    def _lookup_names(self) -> dict[str, None]:
        return {}

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

    def remember_trainable(
        self, trainable: Any, name: str | None = None
    ) -> None:
        """Lets `get_trainable_by_name` find a lookup or shadow while it lives.

        Args:
          trainable: the wrapper or shadow.
          name: the lookup's; None: the wrapper's own.
        """
        # In one go: of two threads that are here, neither is forgotten.
        known = self.__dict__.setdefault(
            "_trainables", weakref.WeakValueDictionary()
        )
        # In a graph each lookup has one, also where several share a name.
        known[trainable.name] = trainable
        known[name or trainable.name] = trainable

    def note_lookup(self, name: str) -> None:
        """Lets `get_trainable_by_name` find what lookups of `name` train."""
        if name not in self._lookup_names:
            if len(self._lookup_names) >= _MOST_NAMES:
                self._lookup_names = {}
            self._lookup_names[name] = None

    def note_step(self) -> None:
        """Lets the values of lookups and shadows follow a step in eager mode."""
        for trainable in self._living():
            trainable.note_step()

    def get_trainable_by_name(self, name: str) -> Any:
        """What to differentiate by for the lookups called `name`.

        The wrapper or shadow of that name, while it lives. For lookups without
        `return_trainable`, in eager mode or in a tf.function that was traced,
        the variable itself, which stands for all of its lookups. None where
        there are none of that name.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) `name` is no string.
        """
        if not isinstance(name, str):
            raise errors.DtypeError(f"`name` must be a string; got {name!r}.")
        found = (self._trainables or {}).get(name)
        return self if found is None and name in self._lookup_names else found

    @property
    def trainable_store(self) -> dict[str, Any]:
        """What to differentiate by for all lookups so far, by name; a copy.

        The wrappers and shadows that live; once there was a lookup without
        `return_trainable`, the variable alone, under the first such name.
        """
        for name in self._lookup_names:
            return {name: self}
        return {trainable.name: trainable for trainable in self._living()}

    def _living(self) -> list[Any]:
        """The wrappers and shadows that live; another thread may add some."""
        if self._trainables is None:
            return []
        found = [reference() for reference in self._trainables.valuerefs()]
        return [trainable for trainable in found if trainable is not None]

    # TFRA's documentation calls it so.
    get_eager_trainable_by_name = get_trainable_by_name
