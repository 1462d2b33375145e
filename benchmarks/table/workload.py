"""The keys and batches of all contenders, from seeds."""

from __future__ import annotations

import functools

import numpy as np

BATCH = 65_536
KINDS = ("random", "consecutive", "shifted", "fields")


@functools.lru_cache(maxsize=2)
def keys(n: int, kind: str = "random") -> np.ndarray:
    """n distinct int64 keys in random order, none 0.

    Args:
      n: how many.
      kind: "random"; "consecutive": 1, 2, ...; "shifted": i << 20; "fields":
        field << 48 | i of 26 fields.
    """
    rng = np.random.default_rng(11)
    numbers = np.arange(1, n + 1, dtype=np.int64)
    if kind == "random":
        drawn = rng.integers(1, 2**63 - 1, n + n // 100 + 10, np.int64)
        numbers = np.unique(drawn)
    elif kind == "shifted":
        numbers <<= 20
    elif kind == "fields":
        numbers = (numbers % 26 + 1) << 48 | numbers // 26 + 1
    return rng.permutation(numbers)[:n]


def names(keys: np.ndarray) -> np.ndarray:
    """The 16 hexadecimal digits of each key, bytes, of the keys' shape."""
    text = keys.astype(">i8").tobytes().hex().encode()
    return np.frombuffer(text, "S16").reshape(keys.shape)


def batches(
    present: np.ndarray, count: int, *, missing: float = 0, zipf: float = 0
) -> np.ndarray:
    """int64 [count, BATCH] of keys that are there.

    Args:
      present: the table's keys.
      count: of batches.
      missing: share of random other keys.
      zipf: exponent of the keys' popularity; 0: all alike.
    """
    rng = np.random.default_rng(2)
    shape = (count, BATCH)
    if zipf:
        weights = np.arange(1, len(present) + 1, dtype=np.float64) ** -zipf
        total = np.cumsum(weights)
        ranks = np.searchsorted(total, rng.random(shape) * total[-1])
        return present[np.minimum(ranks, len(present) - 1)]
    drawn = present[rng.integers(0, len(present), shape)]
    if missing:
        others = rng.integers(-(2**63), -1, shape, np.int64)
        drawn = np.where(rng.random(shape) < missing, others, drawn)
    return drawn


def values(width: int) -> np.ndarray:
    """float32 [BATCH, width]."""
    return np.random.default_rng(1).random((BATCH, width), np.float32)
