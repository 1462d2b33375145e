"""V0's lookups and training steps of stacked tables, as functions of tensors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from dynamic_embedding.optimizer_makers import legacy
from embedding.marks import NEEDS_XLA
from tfembed.embedding.plan import make_plan
from tfembed.embedding.xla.stack import StackRows, stacks_of
from tfembed.embedding.xla.taped_shards import TapedProgram
from tfembed.foreign_optimizers.keras_family import KerasRows
from tfembed.foreign_optimizers.rules import FusedRule
from tfembed.foreign_optimizers.v1_family import V1Rows
from tfembed.foreign_optimizers.v2_family import V2Rows
from tfembed.ops import exchange

pytestmark = NEEDS_XLA

SIZES, WIDTH = (5, 3, 4), 2
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(sum(SIZES), WIDTH)).astype(np.float32)
SLOT = RNG.uniform(1, 2, ROWS.shape).astype(np.float32)
# Of the first and last table; 9 and -1 have no row.
IDS = {0: [1, 4, 1, -1], 2: [0, 9, 3]}


def _program():
    tables = [
        tfembed.TableConfig(size, WIDTH, name=f"table_{i}")
        for i, size in enumerate(SIZES)
    ]
    plan = make_plan([tfembed.FeatureConfig(one) for one in tables], None)
    (stack,) = stacks_of(plan, 1)
    return TapedProgram(plan.tables, [stack])


def _gradients():
    return {
        table: tf.IndexedSlices(
            tf.reshape(
                tf.range(len(ids) * WIDTH, dtype=tf.float32) + 1, [-1, WIDTH]
            ),
            tf.constant(ids),
        )
        for table, ids in IDS.items()
    }


def _summed():
    sums = np.zeros_like(ROWS)
    for table, slices in _gradients().items():
        for value, i in zip(slices.values.numpy(), IDS[table], strict=True):
            if 0 <= i < SIZES[table]:
                sums[sum(SIZES[:table]) + i] += value
    return sums


def test_gradients_are_summed_by_row_and_others_are_dropped():
    program = _program()

    @tf.function(jit_compile=True)
    def run():
        return program.sum_gradients(0, _gradients())

    np.testing.assert_array_equal(run(), _summed())


def test_gradients_that_are_not_finite_stay_so_in_their_row():
    ids = tf.constant([1, 2])
    values = tf.constant([[np.nan, 1.0], [np.inf, 2.0]])

    @tf.function(jit_compile=True)
    def run():
        return exchange.sum_gradients(
            ids, values, 4, exchange.Exchange(1, 1)
        ).rows

    np.testing.assert_array_equal(
        run(), [[0, 0], [np.nan, 1], [np.inf, 2], [0, 0]]
    )


def test_ids_without_a_row_have_zeros_and_no_gradient():
    program = _program()

    @tf.function(jit_compile=True)
    def run():
        anchors = {table: tf.zeros([0, WIDTH]) for table in IDS}
        ids = {
            0: tf.constant([1, -1, 1]),
            2: tf.constant([3]),
        }
        with tf.GradientTape() as tape:
            tape.watch(anchors)
            found = program.look_up({0: tf.constant(ROWS)}, anchors, ids)
            loss = tf.add_n([tf.reduce_sum(3 * x) for x in found.rows])
        gradients = tape.gradient(loss, anchors)
        return found.rows, {
            table: (one.indices, one.values) for table, one in gradients.items()
        }

    (first, last), gradients = run()

    np.testing.assert_array_equal(first, [ROWS[1], [0, 0], ROWS[1]])
    np.testing.assert_array_equal(last, ROWS[None, 8 + 3])
    indices, values = gradients[0]
    assert indices.numpy().tolist() == [1, -1, 1]
    assert values.numpy().tolist() == [[3, 3], [0, 0], [3, 3]]
    assert gradients[2][0].numpy().tolist() == [3]


def _expected(optimizer, slot_of):
    """By the optimizer itself, on each table, with a dense gradient."""
    rows, slots, sums = ROWS.copy(), SLOT.copy(), _summed()
    for table in IDS:
        part = slice(sum(SIZES[:table]), sum(SIZES[: table + 1]))
        variable, made = tf.Variable(rows[part]), optimizer()
        made.apply_gradients([(tf.zeros_like(variable), variable)])
        variable.assign(rows[part])
        slot = slot_of(made, variable)
        slot.assign(slots[part])
        if hasattr(made, "iterations"):
            made.iterations.assign(0)
        made.apply_gradients([(tf.constant(sums[part]), variable)])
        rows[part], slots[part] = variable.numpy(), slot.numpy()
    return rows, slots


@pytest.mark.parametrize("with_momentum", [False, True])
def test_tables_move_as_variables_of_dense_gradients_do(with_momentum):
    program = _program()
    if with_momentum:

        def make():
            return keras.optimizers.SGD(0.5, momentum=0.9)

        rule = KerasRows(make())
        slot = "_momentums" if hasattr(make(), "_momentums") else "momentums"
    else:

        def make():
            return keras.optimizers.Adagrad(0.5, epsilon=0.0)

        rule = FusedRule(tfembed.optimizers.Adagrad())
        slot = "_accumulators"

    @tf.function(jit_compile=True)
    def run():
        rows = StackRows(tf.constant(ROWS), (tf.constant(SLOT),))
        new = program.train(rule, {0: rows}, _gradients(), tf.constant(0.5))[0]
        return new.values, new.slots[0]

    def slot_of(optimizer, variable):
        del variable
        return getattr(optimizer, slot)[0].value

    rows, slots = _expected(make, slot_of)
    found = run()
    np.testing.assert_allclose(found[0], rows, 1e-5, 1e-6)
    np.testing.assert_allclose(found[1], slots, 1e-5, 1e-6)
    # The second table has no gradient.
    np.testing.assert_array_equal(found[0][5:8], ROWS[5:8])


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (V1Rows, lambda: tf.compat.v1.train.MomentumOptimizer(0.5, 0.9)),
        (V2Rows, lambda: legacy().SGD(0.5, 0.9)),
    ],
    ids=["v1", "legacy"],
)
def test_kernels_update_in_place_and_other_tables_are_put_back(kind, make):
    program = _program()
    rule = kind(make())
    values, slot = tf.Variable(ROWS), tf.Variable(SLOT)
    rule.prepare(values)
    before = StackRows(tf.constant(ROWS), (tf.constant(SLOT),))
    rule.update_variables(values, [slot], tf.constant(_summed()))
    after = StackRows(values.read_value(), (slot.read_value(),))

    merged = program.merged(0, before, after, [0, 2])

    rows, slots = _expected(
        make, lambda optimizer, var: optimizer.get_slot(var, "momentum")
    )
    np.testing.assert_allclose(merged.values, rows, 1e-5, 1e-6)
    np.testing.assert_allclose(merged.slots[0], slots, 1e-5, 1e-6)
