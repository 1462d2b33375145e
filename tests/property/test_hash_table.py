"""A hash table against a Python dict, over random sequences of operations."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tfembed.tables import HashTable

DIM = 3
INITIAL = -1.5
EXTREMES = [0, -1, -2, -3, 2**63 - 1, -(2**63), 1 << 20, 7 << 48]
keys = st.lists(st.sampled_from(EXTREMES) | st.integers(-20, 20), max_size=12)
seeds = st.integers(0, 1000)


def rows(seed: int, n: int) -> np.ndarray:
    # Eighths: sums of a few are exact in float32.
    drawn = np.random.default_rng(seed).integers(-80, 80, (n, DIM))
    return (drawn / 8).astype(np.float32)


class TableMachine(RuleBasedStateMachine):
    @initialize(shards=st.sampled_from([1, 2, 3]), traced=st.booleans())
    def create(self, shards, traced):
        self.table = HashTable(
            DIM,
            name="t",
            initializer=INITIAL,
            devices=["/CPU:0"] * shards,
        )
        self.model: dict[int, np.ndarray] = {}
        wrap = tf.function if traced else lambda f, **_: f
        any_keys = tf.TensorSpec([None], tf.int64)
        any_rows = tf.TensorSpec([None, DIM], tf.float32)
        exists = tf.TensorSpec([None], tf.bool)
        self.lookup_op = wrap(self.table.lookup, input_signature=[any_keys])
        self.upsert_op = wrap(
            self.table.upsert, input_signature=[any_keys, any_rows]
        )
        self.accum_op = wrap(
            self.table.accum, input_signature=[any_keys, any_rows, exists]
        )
        self.remove_op = wrap(self.table.remove, input_signature=[any_keys])

    @rule(keys=keys, seed=seeds)
    def upsert(self, keys, seed):
        values = rows(seed, len(keys))
        self.upsert_op(tf.constant(keys, tf.int64), tf.constant(values))
        for key, value in zip(keys, values):
            self.model[key] = value

    @rule(keys=keys, seed=seeds)
    def accum(self, keys, seed):
        values = rows(seed, len(keys))
        exists = np.random.default_rng(seed + 1).random(len(keys)) < 0.7
        self.accum_op(
            tf.constant(keys, tf.int64),
            tf.constant(values),
            tf.constant(exists),
        )
        for key, value, flag in zip(keys, values, exists):
            if flag and key in self.model:
                self.model[key] = self.model[key] + value
            elif not flag and key not in self.model:
                self.model[key] = value

    @rule(keys=keys)
    def remove(self, keys):
        self.remove_op(tf.constant(keys, tf.int64))
        for key in keys:
            self.model.pop(key, None)

    @rule()
    def clear(self):
        self.table.clear()
        self.model.clear()

    @rule(keys=keys)
    def lookup(self, keys):
        values, exists = self.lookup_op(tf.constant(keys, tf.int64))
        assert values.shape == (len(keys), DIM)
        for key, value, found in zip(keys, values.numpy(), exists.numpy()):
            assert found == (key in self.model)
            expected = self.model.get(key, np.full(DIM, INITIAL))
            np.testing.assert_array_equal(value, expected)

    @invariant()
    def content_is_the_same(self):
        if not hasattr(self, "table"):
            return
        assert int(self.table.size()) == len(self.model)
        keys, values = self.table.export()
        got = dict(zip(keys.numpy().tolist(), values.numpy()))
        assert got.keys() == self.model.keys()
        for key, value in self.model.items():
            np.testing.assert_array_equal(got[key], value)


TestHashTable = TableMachine.TestCase
