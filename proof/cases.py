"""Inputs of the programs: random ones, and skews that are hard on an exchange."""

from __future__ import annotations

import dataclasses

import numpy as np

from proof.programs import Lowered, rows_of_shard

__all__ = ["SKEWS", "Case", "draw_case", "joined", "split"]

SKEWS = ("one id", "one owner", "each id another", "empty")


@dataclasses.dataclass
class Case:
    """The input of all replicas.

    Attributes:
      tables: per table its rows [vocabulary, width], then each slot.
      dense: weights and biases of a DLRM, the same on all replicas.
      batches: per replica the inputs behind them.
    """

    tables: list[list[np.ndarray]]
    dense: list[np.ndarray]
    batches: list[list[np.ndarray]]

    def inputs(self, lowered: Lowered) -> list[list[np.ndarray]]:
        """Per replica, all inputs."""
        shards = split(self.tables, lowered.replicas)
        return [
            [*shard, *self.dense, *batch]
            for shard, batch in zip(shards, self.batches, strict=True)
        ]


def draw_case(
    lowered: Lowered, rng: np.random.Generator, skew: str = ""
) -> Case:
    """A case; gradients of a row never cancel, so that it is well posed."""
    p, n = lowered.program, lowered.replicas
    tables = []
    for size in p.vocabularies:
        parts = [rng.uniform(-0.2, 0.2, (size, p.width))]
        for name, width, _ in lowered.slots:
            # A mean of gradients is less than the mean of their squares allows.
            scale = 0.3 if name == "mg" else 1.0
            parts.append(scale * rng.uniform(1.0, 2.0, (size, width)))
        tables.append([part.astype(np.float32) for part in parts])
    dense = []
    for inputs, outputs in p.layers():
        scale = 1 / np.sqrt(inputs)
        dense.append(rng.uniform(-scale, scale, (inputs, outputs)))
        dense.append(rng.uniform(-0.1, 0.1, outputs))
    return Case(
        tables,
        [part.astype(np.float32) for part in dense],
        [_batch(lowered, rng, skew, replica) for replica in range(n)],
    )


def _batch(
    lowered: Lowered, rng: np.random.Generator, skew: str, replica: int
) -> list[np.ndarray]:
    p = lowered.program
    features = [
        _ids(lowered, rng, skew, replica, p.vocabularies[table])
        for table in p.features
    ]
    parts = [np.stack(features, 1).reshape(p.batch, -1).astype(np.int32)]
    if p.weighted:
        parts.append(rng.uniform(0.5, 1.5, parts[0].shape))
    if p.is_dlrm:
        parts.append(rng.standard_normal((p.batch, p.dense)))
        parts.append(rng.integers(0, 2, p.batch))
    elif p.rule:
        places = [] if p.combiner else [p.length]
        shape = [p.batch, len(p.features), *places, p.width]
        parts.append(rng.uniform(-4.0, -3.0, shape))
    return [parts[0], *[part.astype(np.float32) for part in parts[1:]]]


def _ids(
    lowered: Lowered,
    rng: np.random.Generator,
    skew: str,
    replica: int,
    vocabulary: int,
) -> np.ndarray:
    """Ids [batch, length] of one feature."""
    shape = (lowered.program.batch, lowered.program.length)
    count = shape[0] * shape[1]
    if skew == "one id":
        return np.full(shape, vocabulary - 1)
    if skew == "empty":
        return np.full(shape, -1)
    if skew == "one owner":
        owned = np.arange(0, vocabulary, lowered.replicas)
        return owned[np.arange(count) % len(owned)].reshape(shape)
    if skew == "each id another":
        first = replica * count
        return ((first + np.arange(count)) % vocabulary).reshape(shape)
    ids = rng.integers(0, vocabulary, shape)
    return np.where(rng.uniform(size=shape) < 0.1, -1, ids)


def split(
    tables: list[list[np.ndarray]], replicas: int
) -> list[list[np.ndarray]]:
    """Rows and slots as they lie on the replicas: row i on i % replicas."""
    shards = []
    for replica in range(replicas):
        parts: list[list[np.ndarray]] = [[] for _ in tables[0]]
        for table in tables:
            rows = -(-len(table[0]) // replicas)
            for place, values in enumerate(table):
                own = values[replica::replicas]
                # Rows without an id keep what they have.
                pad = ((0, rows - len(own)), (0, 0))
                parts[place].append(np.pad(own, pad, constant_values=1.0))
        shards.append([np.concatenate(part) for part in parts])
    return shards


def joined(
    lowered: Lowered, shards: list[list[np.ndarray]]
) -> list[list[np.ndarray]]:
    """The reverse of `split`."""
    p, n = lowered.program, lowered.replicas
    tables = []
    first = 0
    for size, rows in zip(p.vocabularies, rows_of_shard(p, n), strict=True):
        parts = []
        for place in range(1 + len(lowered.slots)):
            width = shards[0][place].shape[1]
            values = np.zeros((rows * n, width), np.float32)
            for replica, shard in enumerate(shards):
                values[replica::n] = shard[place][first : first + rows]
            parts.append(values[:size])
        tables.append(parts)
        first += rows
    return tables
