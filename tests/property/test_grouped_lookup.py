"""Grouped lookups and their gradient against the oracle, eager and traced."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from oracle import assert_close, lookup_feature, summed_gradients
from property import cases
from tfembed.ops import grouped
from tfembed.tables import HashTable

plans = st.integers(0, len(cases.PLANS) - 1)
seeds = st.integers(0, 2**32 - 1)
batches = st.sampled_from([1, 2, 5, 16])
INITIAL = 0.125  # The initial row of the hash tables: every third id is absent.


@functools.cache
def table_values(plan: int) -> list[np.ndarray]:
    rng = np.random.default_rng(plan)
    dims = cases.PLANS[plan][0]
    return [
        rng.normal(size=(cases.VOCABULARY, d)).astype(np.float32) for d in dims
    ]


def expected_row(plan: int, table: int, is_static: bool, key: int):
    values = table_values(plan)[table]
    if is_static or (0 <= key < len(values) and key % 3):
        return values[key]
    return np.full(values.shape[1], INITIAL)


@functools.cache
def tables_of(plan: int, is_static: bool) -> list:
    out = []
    for t, values in enumerate(table_values(plan)):
        if is_static:
            out.append(tf.Variable(values))
            continue
        table = HashTable(values.shape[1], name=f"t{t}", initializer=INITIAL)
        keys = [k for k in range(len(values)) if k % 3]
        table.upsert(tf.constant(keys, tf.int64), values[keys])
        out.append(table)
    return out


def lookup(plan: int, is_static: bool, nests):
    dims, slots = cases.PLANS[plan]
    return grouped.grouped_lookup(
        tables_of(plan, is_static),
        dims,
        cases.features_of(plan, nests),
        [slot.plan() for slot in slots],
    )


def gradient(plan: int, nests, upstream):
    tables = tables_of(plan, True)
    with tf.GradientTape() as tape:
        activations = lookup(plan, True, nests)
    return tape.gradient(activations, tables, upstream)


@functools.cache
def traced_lookup(plan: int, is_static: bool):
    return tf.function(
        functools.partial(lookup, plan, is_static),
        input_signature=[cases.signature(plan)],
    )


@functools.cache
def traced_gradient(plan: int):
    return tf.function(
        functools.partial(gradient, plan),
        input_signature=[
            cases.signature(plan),
            cases.gradient_signature(plan),
        ],
    )


def draw(plan: int, batch: int, seed: int):
    rng = np.random.default_rng(seed)
    slots = cases.PLANS[plan][1]
    features = [cases.draw_feature(rng, slot, batch) for slot in slots]
    return rng, features, cases.flat([cases.tensors(f) for f in features])


@given(plans, st.booleans(), batches, seeds)
def test_lookup_equals_the_oracle_eager_and_traced(
    plan, is_static, batch, seed
):
    _, features, nests = draw(plan, batch, seed)
    dims = cases.PLANS[plan][0]
    eager = lookup(plan, is_static, nests)
    graph = traced_lookup(plan, is_static)(nests)
    for f, got, got_traced in zip(features, eager, graph, strict=True):
        row = functools.partial(expected_row, plan, f.table, is_static)
        expected = lookup_feature(
            f, row, dims[f.table], fixed_vocabulary=is_static
        )
        assert_close(got, expected, f"activations of {f}")
        np.testing.assert_array_equal(got, got_traced)


@given(plans, batches, seeds)
def test_gradient_equals_the_oracle_eager_and_traced(plan, batch, seed):
    rng, features, nests = draw(plan, batch, seed)
    dims = cases.PLANS[plan][0]
    upstream = cases.draw_gradients(rng, features, dims)
    sent = [tf.constant(g) for g in upstream]
    eager = gradient(plan, nests, sent)
    graph = traced_gradient(plan)(nests, sent)
    for t, (got, got_traced) in enumerate(zip(eager, graph, strict=True)):
        sums = summed_gradients(
            [f for f in features if f.table == t],
            [
                g
                for f, g in zip(features, upstream, strict=True)
                if f.table == t
            ],
            fixed_vocabulary=True,
        )
        np.testing.assert_array_equal(got.indices, sorted(sums))
        np.testing.assert_array_equal(got.values, got_traced.values)
        for key, values in zip(
            got.indices.numpy(), got.values.numpy(), strict=True
        ):
            assert_close(values, sums[key], f"gradient of id {key}")
