"""Lookups: gather, weigh, combine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oracle.features import Feature, bags_of
from oracle.tolerance import Terms, as_terms


def combine(pairs, row: Callable[[int], np.ndarray | Terms], dim: int) -> Terms:
    """Sum of factor * row over (id, factor) pairs."""
    total = Terms.of(np.zeros(dim))
    for key, factor in pairs:
        total = total + as_terms(row(key)) * factor
    return total


def lookup_feature(
    feature: Feature,
    row: Callable[[int], np.ndarray],
    dim: int,
    *,
    fixed_vocabulary: bool,
) -> Terms:
    """Activations [B, dim], or [B, max_sequence_length, dim]."""
    shape = [len(feature.bags), dim]
    if feature.max_sequence_length:
        shape.insert(1, feature.max_sequence_length)
    out = Terms.of(np.zeros(shape))
    for at, pairs in bags_of(feature, fixed_vocabulary):
        terms = combine(pairs, row, dim)
        out.value[at], out.size[at] = terms.value, terms.size
    return out
