"""Grouped updates against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from oracle import apply_rule, assert_close, summed_gradients
from tests.ops import batches
from tfembed.ops import FeaturePlan, feature_ids, grouped_lookup, grouped_update
from tfembed.ops import table as table_ops

RULE = "adagrad"
TEXT = "adagrad initial_accumulator_value=0.5"
PARAMETERS = {"initial_accumulator_value": 0.5}
SLOT = {"owner": RULE, "names": ["accumulators"], "initial_values": [0.5]}


def make(static):
    """Two tables and the slots that they need beside them."""
    tables = batches.make_tables(static)
    if static:
        return tables, [tf.Variable(tf.fill(t.shape, 0.5)) for t in tables]
    for handle in tables:
        table_ops.set_slots(handle, **SLOT)
    return tables, []


def update(tables, slots, features, gradients, **options):
    return grouped_update(
        tables,
        slots,
        batches.DIMS,
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
        gradients,
        rules=options.pop("rules", [TEXT, TEXT]),
        learning_rates=options.pop("rates", [0.1, 0.3]),
        **options,
    )


def expect_updated(tables, slots, features, gradients, static):
    for t, (source, rate) in enumerate(zip(tables, [0.1, 0.3], strict=True)):
        mine = [f for f in features if f.table == t]
        sums = summed_gradients(
            mine,
            [
                g
                for f, g in zip(features, gradients, strict=True)
                if f.table == t
            ],
            fixed_vocabulary=static,
        )
        before, after = batches.rows(t), batches.read_rows(source, t)
        for i in range(batches.VOCABULARY):
            if i not in sums:
                np.testing.assert_array_equal(after[i], before[i])
                continue
            slot = [np.full(batches.DIMS[t], 0.5)]
            row, new_slots = apply_rule(
                RULE, before[i], slot, sums[i].value, rate, PARAMETERS
            )
            assert_close(after[i], row, f"row {i} of table {t}")
            if slots:
                assert_close(slots[t][i], new_slots[0], f"slot of row {i}")


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("run", [lambda f: f, tf.function])
def test_one_step_agrees_with_the_oracle(static, run):
    features = batches.features()
    gradients = batches.gradients_of(features)
    tables, slots = make(static)
    counts = run(lambda: update(tables, slots, features, gradients))()
    assert counts.numpy().tolist() == [0, 0]
    expect_updated(tables, slots, features, gradients, static)


def test_variables_and_tables_train_in_one_call():
    features = batches.features()
    gradients = batches.gradients_of(features)
    tables, slots = make(True)
    tables[1] = make(False)[0][1]
    update(tables, slots[:1], features, gradients)
    expect_updated(tables, [], features, gradients, True)


def test_empty_batches_change_nothing():
    features = [batches.feature("ragged", [[], []], table=t) for t in (0, 1)]
    tables, slots = make(True)
    update(tables, slots, features, batches.gradients_of(features))
    for t, source in enumerate(tables):
        np.testing.assert_array_equal(source, batches.rows(t))


def test_missing_keys_are_inserted_from_their_initial_row():
    handle = table_ops.create(4, initializer="normal", initializer_args=[0, 1])
    before, _ = table_ops.lookup(handle, [7], dim=4)
    grouped_update(
        [handle],
        [],
        [4],
        [feature_ids(tf.constant([7, 7]))],
        [FeaturePlan(0, "sum")],
        [tf.ones([2, 4])],
        rules=["sgd"],
        learning_rates=[tf.constant(0.25)],
    )
    after, exists = table_ops.lookup(handle, [7], dim=4)
    assert exists.numpy().all()
    np.testing.assert_allclose(after, before - 0.5, rtol=1e-6)


def test_loops_in_a_function_train_step_by_step():
    variable = tf.Variable(tf.zeros([4, 2]))
    ids, plan = feature_ids(tf.constant([1])), FeaturePlan(0, "sum")

    @tf.function
    def train(steps):
        for _ in tf.range(steps):
            (activations,) = grouped_lookup([variable], [2], [ids], [plan])
            grouped_update(
                [variable],
                [],
                [2],
                [ids],
                [plan],
                [activations - 1.0],
                rules=["sgd"],
                learning_rates=[0.5],
            )

    train(tf.constant(3))
    np.testing.assert_allclose(variable[1], [0.875, 0.875])
