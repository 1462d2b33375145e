"""Random operations on a Variable, each compared with what a dict says."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import optimizers

DIM = 3
INITIAL = -1.0


def key_pool(n: int, first: int = 0, step: int = 1) -> np.ndarray:
    """n keys: small, negative, far apart; for another `first`, others."""
    numbers = np.arange(first, first + n * step, step, dtype=np.int64)
    kinds = np.arange(n) % 3
    return np.select(
        [kinds == 0, kinds == 1], [numbers, ~numbers], numbers << 40
    )


def new_variable(shards: int, name: str) -> de.Variable:
    """A variable for fuzzers, on so many shards."""
    return de.Variable(
        dim=DIM,
        devices=["/CPU:0"] * shards,
        initializer=INITIAL,
        name=name,
        restrict_policy=de.FrequencyRestrictPolicy,
    )


class VariableFuzzer:
    """Does random operations on a variable, with keys of its own.

    The columns of a row hold one whole number, so that sums are exact. Several
    fuzzers may use one variable at once, each with other keys: `alone` False
    leaves out what concerns the keys of all.
    """

    def __init__(
        self,
        variable: de.Variable,
        pool: np.ndarray,
        seed: int,
        *,
        alone: bool = True,
    ) -> None:
        self.variable = variable
        self.model: dict[int, float] = {}
        self.done = 0  # Keys that were operated on.
        self._pool = pool
        self._random = np.random.default_rng(seed)
        self._optimizer = de.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))
        self._operations = [
            *[self.upsert, self.accum, self.lookup] * 8,
            *[self.remove] * 5,
            *[self.train] * 3,
            self.export,
        ]
        if alone:
            self._operations += [self.size, self.restrict]

    def step(self) -> None:
        """One operation on a random batch."""
        number = self._random.integers(len(self._operations))
        self._operations[number]()

    def _batch(self) -> tuple[np.ndarray, np.ndarray]:
        large = self._random.random() < 0.05
        n = int(self._random.integers(2000 if large else 100))
        self.done += n
        keys = self._random.choice(self._pool, n)
        return keys, self._random.integers(-500, 500, n).astype(np.float32)

    def upsert(self) -> None:
        keys, numbers = self._batch()
        self.variable.upsert(keys, _rows(numbers))
        self.model.update(zip(keys.tolist(), numbers.tolist(), strict=True))

    def accum(self) -> None:
        keys, numbers = self._batch()
        exists = self._random.random(len(keys)) < 0.5
        old = np.where(exists, 7, 0).astype(np.float32)
        self.variable.accum(keys, _rows(old), _rows(old + numbers), exists)
        for key, number, flag in zip(
            keys.tolist(), numbers.tolist(), exists, strict=True
        ):
            if flag and key in self.model:
                self.model[key] += number
            elif not flag and key not in self.model:
                self.model[key] = number

    def train(self) -> None:
        keys, numbers = self._batch()
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(self.variable, keys, name="rows")
            loss = tf.reduce_sum(rows * _rows(numbers))
        gradient = tape.gradient(loss, self.variable)
        self._optimizer.apply_gradients([(gradient, self.variable)])
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
            self.model[key] = self.model.get(key, INITIAL) - number

    def remove(self) -> None:
        keys, _ = self._batch()
        self.variable.remove(tf.constant(keys))
        for key in keys.tolist():
            self.model.pop(key, None)

    def clear(self) -> None:
        self.variable.clear()
        self.model.clear()

    def lookup(self) -> None:
        self.check(self._batch()[0])

    def check(self, keys: np.ndarray) -> None:
        """Compares the rows of these keys."""
        rows, exists = self.variable.lookup(keys, return_exists=True)
        listed = keys.tolist()
        np.testing.assert_array_equal(
            exists.numpy(), [key in self.model for key in listed]
        )
        expected = [self.model.get(key, INITIAL) for key in listed]
        np.testing.assert_array_equal(
            rows.numpy(), _rows(np.array(expected, np.float32))
        )

    def check_all(self) -> None:
        """Compares the rows of all keys that the fuzzer has, there or not."""
        self.check(self._pool)

    def export(self) -> None:
        """Compares all rows of the fuzzer's keys; counts one operation each."""
        keys, rows = (x.numpy() for x in self.variable.export())
        own = np.isin(keys, self._pool)
        found = dict(zip(keys[own].tolist(), rows[own].tolist(), strict=True))
        assert len(found) == np.count_nonzero(own)
        assert found == {key: [x] * DIM for key, x in self.model.items()}
        self.done += len(found)

    def size(self) -> None:
        assert int(self.variable.size()) == len(self.model)
        assert len(self.model) == sum(
            int(self.variable.size(shard))
            for shard in range(len(self.variable.devices))
        )
        if self._random.random() < 0.05:
            self.clear()

    def restrict(self) -> None:
        """The keys that were trained least often go, whatever their shards."""
        status = self.variable.restrict_policy.status
        keys = np.array(list(self.model), np.int64)
        counts = dict(
            zip(keys.tolist(), status.lookup(keys).numpy()[:, 0], strict=True)
        )
        size = len(keys)
        kept = int(self._random.integers(size // 2, size + 2))
        trigger = int(self._random.integers(size // 2, size + 2))

        self.variable.restrict(kept, trigger=trigger)

        left = set(self.variable.export()[0].numpy().tolist())
        gone = self.model.keys() - left
        assert left <= self.model.keys()
        assert len(gone) == (max(size - kept, 0) if size > trigger else 0)
        if gone and left:
            assert max(counts[key] for key in gone) <= min(
                counts[key] for key in left
            )
        for key in gone:
            del self.model[key]

    def save_and_restore(self, folder: pathlib.Path, shards: int) -> None:
        """Goes on with a restored variable, of another number of shards."""
        path = tf.train.Checkpoint(v=self.variable).write(str(folder / "rows"))
        restored = new_variable(shards, self.variable.name)
        self._optimizer = de.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))
        tf.train.Checkpoint(v=restored).read(path).assert_consumed()
        self.variable = restored
        self.export()

    def save_and_load_files(self, folder: pathlib.Path) -> None:
        """Loads raw files, which merge, over rows that were changed since."""
        self.variable.save_to_file_system(str(folder))
        saved = dict(self.model)
        self.upsert()
        self.remove()
        self.variable.load_from_file_system(str(folder))
        self.model.update(saved)
        self.export()


def run(
    fuzzer: VariableFuzzer,
    operations: int,
    shard_counts: Sequence[int],
    folder: pathlib.Path,
) -> None:
    """At least `operations` keys' worth, with a few saves in between."""
    saves = 4
    for save in range(saves):
        while fuzzer.done < operations * (save + 1) / saves:
            fuzzer.step()
        fuzzer.save_and_load_files(folder / f"files {save}")
        fuzzer.save_and_restore(
            folder / f"checkpoint {save}",
            shard_counts[save % len(shard_counts)],
        )
    fuzzer.check_all()


def _rows(numbers: np.ndarray) -> np.ndarray:
    return np.repeat(numbers[:, None], DIM, 1)
