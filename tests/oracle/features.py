"""One feature's input as plain Python lists."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass
class Bag:
    """The ids of one sample, their weights and their places in a sequence."""

    ids: list[int]
    weights: list[float]
    places: list[int]


@dataclasses.dataclass
class Feature:
    """One feature of a batch; `bags` has one entry per sample."""

    bags: list[Bag]
    kind: str = "ragged"
    combiner: str = "mean"
    weighted: bool = False
    max_sequence_length: int = 0
    validate: bool = True
    table: int = 0

    def pruned(self, fixed_vocabulary: bool) -> list[Bag]:
        """The bags that the lookup sees."""
        if self.kind != "sparse" or not self.validate:
            return self.bags
        return [_prune(bag, self, fixed_vocabulary) for bag in self.bags]


def _prune(bag: Bag, feature: Feature, fixed_vocabulary: bool) -> Bag:
    kept = [
        i
        for i in range(len(bag.ids))
        if not (fixed_vocabulary and bag.ids[i] < 0)
        and not (feature.combiner != "sum" and bag.weights[i] <= 0)
    ]
    return Bag(
        *([field[i] for i in kept] for field in dataclasses.astuple(bag))
    )


def bags_of(feature: Feature, fixed_vocabulary: bool):
    """Yields (output position, [(id, factor)]) for every activation row.

    A factor is what the id's row is multiplied with: weight, divided by the
    combiner's divisor, and 0 where that divisor is 0.
    """
    for b, bag in enumerate(feature.pruned(fixed_vocabulary)):
        length = feature.max_sequence_length
        if length:
            at = dict(zip(bag.places, zip(bag.ids, bag.weights)))
            for p in range(length):
                yield (b, p), [at[p]] if p in at else []
        else:
            yield (b,), list(zip(bag.ids, _factors(bag.weights, feature)))


def _factors(weights: list[float], feature: Feature) -> np.ndarray:
    w = np.asarray(weights, np.float64)
    divisor = {
        "sum": 1.0,
        "mean": w.sum(),
        "sqrtn": np.sqrt((w * w).sum()),
    }[feature.combiner]
    return w / divisor if divisor else np.zeros_like(w)
