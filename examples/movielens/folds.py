"""Parts of ratings for a cross-validation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfembed.data import Ratings


def folds(
    ratings: Ratings, num_folds: int, seed: int
) -> Iterator[tuple[Ratings, Ratings]]:
    """Shuffles and yields (train, test); each rating is in one test part."""
    order = np.random.default_rng(seed).permutation(len(ratings))
    parts = np.array_split(order, num_folds)
    for fold, test in enumerate(parts):
        train = np.concatenate(parts[:fold] + parts[fold + 1 :])
        yield ratings.take(train), ratings.take(test)
