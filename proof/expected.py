"""What a program has to give, in NumPy and float64.

The formulas of the update rules are those of the tests' oracle, which shares no
code with the package.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from oracle import Terms, apply_rule
from proof.cases import Case
from proof.programs import LEARNING_RATE, Lowered, Program

__all__ = ["Expected", "expect"]


@dataclasses.dataclass
class Expected:
    """The results of all replicas.

    Attributes:
      tables: per table its rows and slots after the step.
      dense: weights and biases after the step.
      results: per replica the activations, or a DLRM's logits.
      rounds: how many a lookup takes.
      most_rounds: how many an update may take: replicas go through an owner's
        rows together, so that a full buffer of one makes the others wait.
    """

    tables: list[list[Terms]]
    dense: list[np.ndarray]
    results: list[Terms]
    rounds: int
    most_rounds: int


def expect(lowered: Lowered, case: Case) -> Expected:
    """The results of a case."""
    p = lowered.program
    steps = [_forward(p, case, batch) for batch in case.batches]
    rounds = _rounds(lowered, [ids for ids, _, _ in steps])
    results = [activations for _, _, activations in steps]
    if not p.rule:
        return Expected([], [], results, *rounds)
    dense: list[np.ndarray] = []
    if p.is_dlrm:
        found = [
            _model(p, case, activations.value, batch)
            for (_, _, activations), batch in zip(
                steps, case.batches, strict=True
            )
        ]
        results = [Terms.of(logits) for logits, _, _ in found]
        slopes = [slope / lowered.replicas for _, slope, _ in found]
        dense = [
            value
            - LEARNING_RATE
            * sum(each[i] for _, _, each in found)
            / lowered.replicas
            for i, value in enumerate(case.dense)
        ]
    else:
        slopes = [
            activations.value - batch[-1]
            for activations, batch in zip(results, case.batches, strict=True)
        ]
    sums: list[dict[int, Terms]] = [{} for _ in p.vocabularies]
    for (ids, factors, _), slope in zip(steps, slopes, strict=True):
        _add(p, sums, ids, factors, slope)
    return Expected(_updated(lowered, case, sums), dense, results, *rounds)


def _forward(
    p: Program, case: Case, batch: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, Terms]:
    """Ids and factors [batch, features, length], and the activations."""
    ids = batch[0].reshape(p.batch, len(p.features), p.length)
    there = (ids >= 0).astype(np.float64)
    factors = there
    if p.weighted:
        factors = there * batch[1].astype(np.float64).reshape(ids.shape)
        norm = {
            "sum": np.ones_like,
            "mean": lambda w: w.sum(-1, keepdims=True),
            "sqrtn": lambda w: np.sqrt((w**2).sum(-1, keepdims=True)),
        }[p.combiner](factors)
        factors = np.divide(
            factors, norm, out=np.zeros_like(factors), where=norm != 0
        )
    rows = np.stack(
        [
            case.tables[table][0].astype(np.float64)[ids[:, i]]
            for i, table in enumerate(p.features)
        ],
        1,
    )
    terms = rows * factors[..., None]
    if not p.combiner:
        return ids, factors, Terms.of(terms)
    return ids, factors, Terms(terms.sum(2), np.abs(terms).sum(2))


def _add(
    p: Program,
    sums: list[dict[int, Terms]],
    ids: np.ndarray,
    factors: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Adds a replica's gradients to those of the rows."""
    if p.combiner:
        slopes = np.broadcast_to(
            slopes[:, :, None], (*ids.shape, slopes.shape[-1])
        )
    for at in np.argwhere(ids >= 0):
        sample, feature, place = map(int, at)
        of_table = sums[p.features[feature]]
        key = int(ids[sample, feature, place])
        term = Terms.of(
            slopes[sample, feature, place] * factors[sample, feature, place]
        )
        of_table[key] = of_table[key] + term if key in of_table else term


def _updated(
    lowered: Lowered, case: Case, sums: list[dict[int, Terms]]
) -> list[list[Terms]]:
    if lowered.program.taped == "own":
        return _keras_momentum(case, sums)
    rule, *words = lowered.rule.split()
    parameters = {k: float(v) for k, v in (word.split("=") for word in words)}
    tables = []
    for table, of_table in zip(case.tables, sums, strict=True):
        parts = [Terms.of(part) for part in table]
        keys = np.array(sorted(of_table), np.int64)
        if len(keys):
            summed = Terms(
                np.stack([of_table[k].value for k in keys]),
                np.stack([of_table[k].size for k in keys]),
            )
            rows, *slots = (
                Terms(part.value[keys], part.size[keys]) for part in parts
            )
            new_rows, new_slots = apply_rule(
                rule, rows, slots, summed, LEARNING_RATE, parameters
            )
            for part, new in zip(parts, [new_rows, *new_slots], strict=True):
                part.value[keys], part.size[keys] = new.value, new.size
        tables.append(parts)
    return tables


def _keras_momentum(
    case: Case, sums: list[dict[int, Terms]]
) -> list[list[Terms]]:
    """m = 0.9 m - rate g, w += m: of all rows, as Keras moves a variable."""
    tables = []
    for table, of_table in zip(case.tables, sums, strict=True):
        rows, momenta = (Terms.of(part) for part in table)
        moved = momenta * 0.9
        for key, gradient in of_table.items():
            step = gradient * -LEARNING_RATE
            moved.value[key] += step.value
            moved.size[key] += step.size
        tables.append([rows + moved, moved])
    return tables


def _rounds(lowered: Lowered, ids: list[np.ndarray]) -> tuple[int, int]:
    """As many as the fullest buffer between two replicas takes, and the most."""
    p, n = lowered.program, lowered.replicas
    if n == 1:  # Nothing is exchanged.
        return 1, 1
    buffers = np.zeros((n, n), np.int64)
    for replica, of_replica in enumerate(ids):
        wanted = {
            (p.features[f], int(key))
            for f in range(len(p.features))
            for key in np.unique(of_replica[:, f])
            if key >= 0
        }
        for _, key in wanted:
            buffers[replica, key % n] += 1
    rounds = -(-buffers // lowered.buffer)
    return max(1, int(rounds.max())), max(1, int(rounds.sum(0).max()))


def _model(
    p: Program, case: Case, activations: np.ndarray, batch: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """A DLRM's logits, the gradients of its activations, and of its weights.

    The loss is the mean of the cross entropies of this replica's samples.
    """
    dense, labels = batch[-2].astype(np.float64), batch[-1]
    weights = [w.astype(np.float64) for w in case.dense]
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    split = len(p.bottom) + 1
    x, bottom = _dense_forward(dense, layers[:split], last_relu=True)
    vectors = np.concatenate([x[:, None], activations], 1)
    rows, columns = np.tril_indices(vectors.shape[1], -1)
    products = vectors @ vectors.transpose(0, 2, 1)
    y = np.concatenate([x, products[:, rows, columns]], 1)
    y, top = _dense_forward(y, layers[split:], last_relu=False)
    logits = y[:, 0]
    slope = (1 / (1 + np.exp(-logits)) - labels)[:, None] / p.batch
    slope, of_top = _dense_backward(slope, layers[split:], top)
    of_x, of_pairs = slope[:, : p.width], slope[:, p.width :]
    of_products = np.zeros_like(products)
    of_products[:, rows, columns] = of_pairs
    of_vectors = (of_products + of_products.transpose(0, 2, 1)) @ vectors
    _, of_bottom = _dense_backward(
        of_x + of_vectors[:, 0], layers[:split], bottom
    )
    return logits, of_vectors[:, 1:], [*of_bottom, *of_top]


def _dense_forward(x, layers, *, last_relu):
    """The output, and per layer its input and where it passes gradients."""
    seen = []
    for i, (weight, bias) in enumerate(layers):
        y = x @ weight + bias
        has_relu = last_relu or i < len(layers) - 1
        passes = y > 0 if has_relu else np.ones_like(y, bool)
        seen.append((x, passes))
        x = y * passes
    return x, seen


def _dense_backward(slope, layers, seen):
    """The gradient of the input, and of each weight and bias."""
    found = []
    for (weight, _), (x, passes) in zip(
        reversed(layers), reversed(seen), strict=True
    ):
        slope = slope * passes
        found[:0] = [x.T @ slope, slope.sum(0)]
        slope = slope @ weight.T
    return slope, found
