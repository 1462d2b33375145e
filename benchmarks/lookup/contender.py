"""What all contenders of `make bench-lookup` have in common."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.lookup.workload import Batch, Tables

LEARNING_RATE = 0.01
FIRST_ACCUMULATOR = 0.1
EPSILON = 1e-7
VALUE = 0.01  # Of all rows at first.
GRADIENT = 1e-3  # Of all activations.

# A round of all batches, which ends when all of their outputs were read; the
# limit's tells its seconds itself.
Round = Callable[[], float | None]


class Contender(abc.ABC):
    """Tables that can be looked up and trained.

    Args:
      tables: what to make.
      threads: that may be used.
    """

    forms: Sequence[str] = ()  # Of `rounds`; empty: any name is the same.
    moves_to_huge_pages = False  # Its tables, beside the first steps.

    def __init__(self, tables: Tables, threads: int) -> None:
        self.tables = tables
        self.threads = threads

    @abc.abstractmethod
    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        """One round: a step for each batch.

        Args:
          batches: of the contender's tables.
          form: how steps are called.
          train: whether a step updates the rows.
        """

    def values(self) -> np.ndarray:
        """The rows of all tables, [tables, rows, width]; for tests."""
        raise NotImplementedError(f"{type(self).__name__} shows no rows.")

    def has(self, form: str, *, train: bool) -> bool:
        """Whether `rounds` knows the form."""
        del train
        return not self.forms or form in self.forms

    def gradient(self, batch: int) -> np.ndarray:
        """float32 [features, batch, width]."""
        shape = (self.tables.features, batch, self.tables.width)
        return np.full(shape, GRADIENT, np.float32)
