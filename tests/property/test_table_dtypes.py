"""Random operations on tables of all dtypes, beside a dict."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfembed import tables

DIM = 3
PAIRS = [
    ("int64", "float16"),
    ("int64", "bfloat16"),
    ("int64", "int8"),
    ("int64", "int64"),
    ("int64", "float64"),
    ("int32", "float32"),
    ("int32", "int32"),
    ("string", "float32"),
    ("string", "int8"),
    ("string", "bool"),
]

# Small numbers, so that sums are exact in every dtype.
KEYS = st.lists(st.integers(0, 12), max_size=8)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "accum", "remove", "clear", "export"]),
        KEYS,
        st.integers(0, 5),
    ),
    max_size=12,
)


class Model:
    """A table and the dict that it should be."""

    def __init__(self, key_dtype, value_dtype, shards):
        self.table = tables.HashTable(
            DIM,
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            name="model",
            initializer=1,
            devices=["/CPU:0"] * shards,
        )
        self.rows = {}

    def keys(self, numbers):
        if self.table.key_dtype == tf.string:
            return tf.constant(["key " * n for n in numbers], tf.string)
        return tf.constant(numbers, self.table.key_dtype)

    def values(self, numbers):
        rows = np.reshape(np.repeat(numbers, DIM), [-1, DIM])
        return tf.cast(rows, self.table.value_dtype)

    def upsert(self, numbers, value):
        fill = [(value + i) % 2 for i in range(len(numbers))]
        self.table.upsert(self.keys(numbers), self.values(fill))
        self.rows.update(zip(numbers, fill, strict=True))

    def accum(self, numbers, value):
        if self.table.value_dtype == tf.bool:
            return
        exists = [n in self.rows for n in numbers]
        self.table.accum(
            self.keys(numbers), self.values([value] * len(numbers)), exists
        )
        before = set(self.rows)
        for n in numbers:
            if n in before:
                self.rows[n] += value
            else:
                self.rows.setdefault(n, value)

    def remove(self, numbers, value):
        self.table.remove(self.keys(numbers))
        for n in numbers:
            self.rows.pop(n, None)

    def clear(self, numbers, value):
        if value == 0:
            self.table.clear()
            self.rows = {}

    def export(self, numbers, value):
        keys, values = self.table.export()
        names = self.keys(list(range(13))).numpy().tolist()
        found = {
            names.index(key): row
            for key, row in zip(
                keys.numpy().tolist(), values.numpy().tolist(), strict=True
            )
        }
        assert found == {n: [x] * DIM for n, x in self.rows.items()}

    def check(self):
        numbers = list(range(13))
        values, exists = self.table.lookup(self.keys(numbers))
        expected = [self.rows.get(n, 1) for n in numbers]
        np.testing.assert_array_equal(values, self.values(expected))
        assert exists.numpy().tolist() == [n in self.rows for n in numbers]
        assert self.table.size().numpy() == len(self.rows)


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
def test_any_operations_leave_what_a_dict_would_hold(pair, shards, steps):
    model = Model(*pair, shards)
    for name, numbers, value in steps:
        getattr(model, name)(numbers, value)
        model.check()
    model.export([], 0)
