"""Fused updates against the oracle: every rule, static and hash tables."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st

from oracle import (
    apply_rule,
    assert_close,
    initial_slots,
    slot_names,
    summed_gradients,
)
from property import cases
from tfembed.ops import grouped, table

LEARNING_RATE = 0.5
INITIAL = 0.25
plans = st.integers(0, len(cases.PLANS) - 1)
rules = st.integers(0, len(cases.RULES) - 1)
seeds = st.integers(0, 2**32 - 1)


class StaticTables:
    """tf.Variables and their slots, reset before each case."""

    def __init__(self, plan: int, rule: int):
        self.rule, self.parameters = cases.RULES[rule]
        self.dims = cases.PLANS[plan][0]
        shape = [cases.VOCABULARY, 0]
        self.start = [
            np.random.default_rng(d).normal(size=(shape[0], d))
            for d in self.dims
        ]
        self.start = [s.astype(np.float32) for s in self.start]
        self.tables = [tf.Variable(s) for s in self.start]
        self.slots = [
            [
                tf.Variable(np.tile(s.astype(np.float32), (shape[0], 1)))
                for s in initial_slots(self.rule, self.parameters, d)
            ]
            for d in self.dims
        ]

    def reset(self):
        for variable, start, slots, d in zip(
            self.tables, self.start, self.slots, self.dims
        ):
            variable.assign(start)
            first = initial_slots(self.rule, self.parameters, d)
            for slot, value in zip(slots, first):
                slot.assign(
                    tf.broadcast_to(tf.cast(value, tf.float32), slot.shape)
                )

    def inputs(self):
        slots = [s.handle for per_table in self.slots for s in per_table]
        return [t.handle for t in self.tables], slots

    def row(self, t, key):
        return self.start[t][key]

    def read(self, t, keys):
        return [v.numpy()[keys] for v in (self.tables[t], *self.slots[t])]

    def untouched_stays(self, t, keys):
        others = np.setdiff1d(np.arange(cases.VOCABULARY), keys)
        np.testing.assert_array_equal(
            self.tables[t].numpy()[others], self.start[t][others]
        )


class HashTables:
    """Tables that start empty: every row is first the initial one."""

    def __init__(self, plan: int, rule: int):
        self.rule, self.parameters = cases.RULES[rule]
        self.dims = cases.PLANS[plan][0]
        self.handles = []
        for d in self.dims:
            handle = table.create(
                d, initializer="constant", initializer_args=[INITIAL]
            )
            slots = initial_slots(self.rule, self.parameters, 1)
            if slots:
                table.set_slots(
                    handle,
                    owner=self.rule,
                    names=slot_names(self.rule),
                    initial_values=[float(s[0]) for s in slots],
                )
            self.handles.append(handle)

    def reset(self):
        for handle in self.handles:
            table.clear([handle])

    def inputs(self):
        return self.handles, []

    def row(self, t, key):
        return np.full(self.dims[t], INITIAL)

    def read(self, t, keys):
        got, values, slots, *_ = table.snapshot([self.handles[t]])
        order = {int(k): i for i, k in enumerate(got.numpy())}
        at = [order[k] for k in keys]
        columns = [values.numpy()[at]]
        slots = slots.numpy()[at]
        d = self.dims[t]
        return columns + [
            slots[:, i : i + d] for i in range(0, slots.shape[1], d)
        ]

    def untouched_stays(self, t, keys):
        assert int(table.size(self.handles[t])) == len(keys)


@functools.cache
def tables_of(kind, plan: int, rule: int):
    return (StaticTables if kind == "static" else HashTables)(plan, rule)


@functools.cache
def traced(plan: int, rule: int, kind: str):
    def run(nests, gradients):
        return update(tables_of(kind, plan, rule), plan, nests, gradients)

    return tf.function(
        run,
        input_signature=[
            cases.signature(plan),
            cases.gradient_signature(plan),
        ],
    )


def update(tables, plan, nests, gradients):
    handles, slot_handles = tables.inputs()
    return grouped.grouped_update(
        handles,
        slot_handles,
        tables.dims,
        cases.features_of(plan, nests),
        [s.plan() for s in cases.PLANS[plan][1]],
        gradients,
        rules=[cases.rule_text(tables.rule, tables.parameters)] * len(handles),
        learning_rates=[LEARNING_RATE] * len(handles),
    )


@given(plans, rules, st.sampled_from(["static", "hash"]), st.booleans(), seeds)
def test_update_equals_the_oracle(plan, rule, kind, is_traced, seed):
    rng = np.random.default_rng(seed)
    dims, slots = cases.PLANS[plan]
    batch = int(rng.choice([1, 3, 9]))
    features = [cases.draw_feature(rng, slot, batch) for slot in slots]
    upstream = cases.draw_gradients(rng, features, dims)
    sums = [
        summed_gradients(
            [f for f in features if f.table == t],
            [g for f, g in zip(features, upstream) if f.table == t],
            fixed_vocabulary=kind == "static",
        )
        for t in range(len(dims))
    ]
    assume(all(g.well_posed() for s in sums for g in s.values()))
    tables = tables_of(kind, plan, rule)
    tables.reset()
    nests = cases.flat([cases.tensors(f) for f in features])
    sent = [tf.constant(g) for g in upstream]
    if is_traced:
        traced(plan, rule, kind)(nests, sent)
    else:
        update(tables, plan, nests, sent)
    for t, by_key in enumerate(sums):
        check_table(tables, t, by_key)


def check_table(tables, t, sums):
    keys = sorted(sums)
    tables.untouched_stays(t, keys)
    got = tables.read(t, keys)
    first = initial_slots(tables.rule, tables.parameters, tables.dims[t])
    for i, key in enumerate(keys):
        w, slots = apply_rule(
            tables.rule,
            np.asarray(tables.row(t, key), np.float64),
            first,
            sums[key].value,
            LEARNING_RATE,
            tables.parameters,
        )
        for part, (actual, expected) in enumerate(zip(got, [w, *slots])):
            # The rounding of the summed gradient is part of the input.
            expected.size = expected.size + LEARNING_RATE * sums[key].size
            assert_close(actual[i], expected, f"part {part} of id {key}")
