"""A click log with a planted truth: Criteo's format, and a known best AUC.

    logit = bias + sum_f effect[id_f] + sum_j slope_j score_j
                 + sum_(f, g) <factor[id_f], factor[id_g]>
    label ~ Bernoulli(sigmoid(logit))

Ids follow Zipf's law in each of the 26 categories, whose vocabularies grow
geometrically. Nearly all of the signal is in the ids and little in the integers,
so that a model that does not learn rows for the ids cannot come far.

Example n is made from the uniforms 40 n .. 40 n + 39 of one Philox sequence, one
for each field of the format. So the stream can be entered at any example, in
batches of any size, and is always the same for a seed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfembed.data.criteo import NUM_CATEGORIES, NUM_FIELDS, NUM_INTEGERS

_UNIFORMS_PER_PHILOX_STEP = 4
_MISSING_INTEGERS = 0.1  # The share of every integer column.
_CATEGORIES_WITH_EMPTY = (2, 9, 15, 21)  # Their second commonest id is "".
_SIGNED_INTEGER = 1  # As in Criteo's logs, I2 goes down to -2.


@dataclasses.dataclass(frozen=True)
class PlantedTruth:
    """The parameters of a planted stream.

    Attributes:
      seed: of the effects and of the stream.
      smallest_vocabulary, largest_vocabulary: of the 26 categories.
      zipf_exponent: P(rank k) is proportional to k ** -zipf_exponent.
      effect_scale: standard deviation of the sum of the ids' effects.
      crowd: a category of n ids has effects of variance 1 / (1 + n / crowd), up
        to a common factor: the larger a vocabulary, the less each id says.
      factor_scale: of the sum of the `num_pairs` interactions.
      numeric_scale: of the integers' share of the logit.
      bias: of the logit.
    """

    seed: int = 0
    smallest_vocabulary: int = 100
    largest_vocabulary: int = 21_000
    zipf_exponent: float = 1.0
    effect_scale: float = 3.0
    crowd: float = 400.0
    factor_scale: float = 0.4
    num_pairs: int = 3
    numeric_scale: float = 0.3
    bias: float = -1.2


@dataclasses.dataclass(frozen=True)
class Examples:
    """Drawn examples.

    Attributes:
      labels: float32 [n], 0 or 1.
      integers: float32 [n, 13], NaN where missing.
      ids: int64 [n, 26], places in `PlantedStream.strings`.
      probabilities: float64 [n], of label 1.
    """

    labels: np.ndarray
    integers: np.ndarray
    ids: np.ndarray
    probabilities: np.ndarray


class PlantedStream:
    """Draws any part of a truth's stream. Threads may share one.

    Attributes:
      truth: its parameters.
      sizes: int64 [26], the vocabularies' sizes.
      strings: bytes [sum of sizes], the categories as they stand in a log.
      id_probabilities: float64 [sum of sizes]; sums to 1 in each category.
    """

    def __init__(self, truth: PlantedTruth | None = None) -> None:
        self.truth = truth or PlantedTruth()
        self.sizes = np.geomspace(
            self.truth.smallest_vocabulary,
            self.truth.largest_vocabulary,
            NUM_CATEGORIES,
        ).astype(np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        per_category = list(enumerate(self.sizes))
        self.strings = np.concatenate([_spell(*it) for it in per_category])
        parts = [_zipf(n, self.truth.zipf_exponent) for n in self.sizes]
        self.id_probabilities = np.concatenate(parts)
        accepts, aliases = zip(*(_alias_table(part) for part in parts))
        self._accept = np.concatenate(accepts)
        self._alias = np.concatenate(
            [alias + at for alias, at in zip(aliases, self._offsets)]
        )
        self._plant(np.random.default_rng([self.truth.seed, 1]))

    def draw(self, start: int, count: int) -> Examples:
        """Examples start .. start + count - 1."""
        bits = np.random.Philox(key=self.truth.seed)
        bits.advance(start * (NUM_FIELDS // _UNIFORMS_PER_PHILOX_STEP))
        uniforms = np.random.Generator(bits).random((count, NUM_FIELDS))
        label, integers, categories = np.split(
            uniforms, [1, 1 + NUM_INTEGERS], axis=1
        )
        ids = self._ids(categories)
        probabilities = 1 / (1 + np.exp(-self._logits(integers, ids)))
        return Examples(
            labels=(label[:, 0] < probabilities).astype(np.float32),
            integers=_integers(integers),
            ids=ids,
            probabilities=probabilities,
        )

    def lines(self, start: int, count: int) -> list[bytes]:
        """The same examples as lines of a Criteo log, tab-separated."""
        drawn = self.draw(start, count)
        rows = zip(drawn.labels, drawn.integers, self.strings[drawn.ids])
        return [
            b"\t".join(
                [
                    b"%d" % label,
                    *(b"" if np.isnan(x) else b"%d" % x for x in integers),
                    *strings,
                ]
            )
            + b"\n"
            for label, integers, strings in rows
        ]

    def _plant(self, rng: np.random.Generator) -> None:
        """Draws the effects, factors and slopes."""
        total = int(self.sizes.sum())
        truth = self.truth
        variances = 1 / (1 + self.sizes / truth.crowd)
        scales = truth.effect_scale * np.sqrt(variances / variances.sum())
        self._effects = rng.normal(0, np.repeat(scales, self.sizes))
        # The smallest categories: their pairs of ids are seen often enough.
        fields = rng.permutation(2 * truth.num_pairs)
        self._pairs = fields.reshape(-1, 2)
        rank = 2
        spread = truth.factor_scale**2 / (max(truth.num_pairs, 1) * rank)
        self._factors = rng.normal(0, spread**0.25, (total, rank))
        self._slopes = rng.choice([-1.0, 1.0], NUM_INTEGERS) * (
            truth.numeric_scale / np.sqrt(NUM_INTEGERS)
        )

    def _ids(self, uniforms: np.ndarray) -> np.ndarray:
        """Walker's alias method: one uniform gives a column and a coin."""
        scaled = uniforms * self.sizes
        columns = scaled.astype(np.int64)
        coins = scaled - columns
        columns += self._offsets
        kept = coins < self._accept[columns]
        return np.where(kept, columns, self._alias[columns])

    def _logits(self, uniforms: np.ndarray, ids: np.ndarray) -> np.ndarray:
        logits = self.truth.bias + self._effects[ids].sum(axis=1)
        logits += _scores(uniforms) @ self._slopes
        for left, right in self._pairs:
            factors = self._factors[ids[:, left]] * self._factors[ids[:, right]]
            logits += factors.sum(axis=1)
        return logits


def _zipf(size: int, exponent: float) -> np.ndarray:
    weights = np.arange(1, size + 1) ** -exponent
    return weights / weights.sum()


def _spell(category: int, size: int) -> np.ndarray:
    """Eight hex digits for each id of a category, all different."""
    salt = 0x9E3779B9 * (category + 1)
    spelled = [
        b"%08x" % ((rank * 0x85EBCA6B + salt) & 0xFFFFFFFF)
        for rank in range(size)
    ]
    if category in _CATEGORIES_WITH_EMPTY:
        spelled[1] = b""
    return np.array(spelled, dtype="S8")


def _alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vose's construction: column i keeps id i with accept[i], else alias[i]."""
    size = len(probabilities)
    accept = probabilities * size
    alias = np.arange(size)
    small = [i for i in range(size) if accept[i] < 1]
    large = [i for i in range(size) if accept[i] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        alias[low] = high
        accept[high] -= 1 - accept[low]
        if accept[high] < 1:
            small.append(large.pop())
    accept[small + large] = 1.0
    return accept, alias


def _scores(uniforms: np.ndarray) -> np.ndarray:
    """What the integers say: 0 where missing, else of mean 0, variance 1."""
    middle = (1 + _MISSING_INTEGERS) / 2
    width = (1 - _MISSING_INTEGERS) / np.sqrt(12)
    scores = (uniforms - middle) / width
    return np.where(uniforms < _MISSING_INTEGERS, 0.0, scores)


def _integers(uniforms: np.ndarray) -> np.ndarray:
    """Log-uniform counts between 0 and 1095, which tell the score by a log."""
    counts = np.floor(np.expm1(7 * uniforms)).astype(np.float32)
    counts[:, _SIGNED_INTEGER] -= 2
    return np.where(uniforms < _MISSING_INTEGERS, np.float32("nan"), counts)
