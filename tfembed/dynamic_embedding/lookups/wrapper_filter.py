"""Telling what stands for tables from dense variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tfembed.dynamic_embedding.lookups.lookup_buffer import LookupBuffer
from tfembed.dynamic_embedding.variables.embedding_weights import (
    EmbeddingWeights,
)

__all__ = ["trainable_wrapper_filter"]


def trainable_wrapper_filter(
    iterable_object_in: Iterable[Any],
    test_unaggregated_function: Callable[[Any], bool] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Parts dense variables from those of tables.

    Args:
      iterable_object_in: variables.
      test_unaggregated_function: says of a variable whether it is a table's.
        None: a `Variable`, `TrainableWrapper` or `ShadowVariable` is.

    Returns:
      The dense ones and the tables', each in the order given.
    """
    is_table = test_unaggregated_function or _is_of_a_table
    parts: tuple[list[Any], list[Any]] = ([], [])
    for item in iterable_object_in:
        parts[bool(is_table(item))].append(item)
    return tuple(parts[0]), tuple(parts[1])


def _is_of_a_table(variable: Any) -> bool:
    return isinstance(variable, (LookupBuffer, EmbeddingWeights))
