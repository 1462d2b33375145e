"""The tables' part of a step, which engine, estimates and proof compile."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from tfembed.embedding.plan import make_plan
from tfembed.embedding.xla.entries import entries_of, entries_of_matrix
from tfembed.embedding.xla.program import TablesProgram
from tfembed.embedding.xla.stack import StackRows, stacks_of
from tfembed.ops import FeaturePlan, feature_ids
from tfembed.tpu.estimate import TablesStep

pytestmark = NEEDS_XLA

ROWS, WIDTH = 20, 4
IDS = np.array([[1, 5, 1], [7, -1, 30], [-1, -1, -1], [2, 3, 4]], np.int32)


def _plan(combiner="sum"):
    rules = (tfembed.Adagrad(0.1), tfembed.Adagrad(0.1), tfembed.SGD(0.1))
    return make_plan(
        [
            tfembed.FeatureConfig(
                tfembed.TableConfig(
                    ROWS, WIDTH, name=f"t{i}", optimizer=rule, combiner=combiner
                )
            )
            for i, rule in enumerate(rules)
        ],
        None,
    )


def _step(program, rows, entries):
    @tf.function(jit_compile=True)
    def run():
        looked = program.look_up(rows, entries())
        gradients = [tf.sin(x) + 0.5 for x in looked.activations]
        updated = program.update(rows, entries(), gradients, [0.1] * 3)
        return looked.activations, {
            s: (one.values, one.slots) for s, one in updated.items()
        }

    return run()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("combiner", "length"), [("sum", 0), ("mean", 0), ("sqrtn", 0), ("sum", 3)]
)
def test_equally_many_ids_a_sample_are_those_of_a_sparse_tensor(
    combiner, length, weighted
):
    plan = _plan(combiner)
    (first, _) = stacks_of(plan, 1)
    program = TablesProgram(plan.tables, [first])
    rng = np.random.default_rng(0)
    rows = {
        0: StackRows(
            tf.constant(rng.standard_normal(first.shapes()[0]), tf.float32),
            (tf.ones(first.shapes()[1]),),
        )
    }
    weights = rng.uniform(0.5, 1.5, IDS.shape).astype(np.float32)
    feature = FeaturePlan(1, combiner, length)
    # Ids outside of the vocabulary are none in the matrix.
    at = np.argwhere((IDS >= 0) & (IDS < ROWS))

    def matrix():
        given = tf.constant(weights) if weighted else None
        return [entries_of_matrix(tf.constant(IDS), given, feature, ROWS)]

    def sparse():
        shape = tf.constant(IDS.shape, tf.int64)
        ids, by = (
            tf.SparseTensor(at, part[tuple(at.T)], shape)
            for part in (IDS.astype(np.int64), weights)
        )
        one = feature_ids(ids, by if weighted else None)
        size = tf.constant(len(IDS), tf.int64)
        one = type(one)(one.kind, one.ids, one.rows, one.weights, size)
        return [entries_of(one, feature, ROWS, "" if length else combiner)]

    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        _step(program, rows, matrix),
        _step(program, rows, sparse),
    )


def test_tables_of_one_rule_and_width_share_a_stack_and_its_ids_follow():
    stack, other = stacks_of(_plan(), 4)

    found = stack.ids(1, tf.constant([[0, 5], [-1, 19]]))

    assert (stack.tables, other.tables) == ((0, 1), (2,))
    assert stack.shapes() == [(10, WIDTH), (10, WIDTH)]
    assert found.numpy().tolist() == [[20, 25], [-1, 39]]


def test_stacks_without_features_are_not_touched():
    plan = _plan()
    program = TablesProgram(plan.tables, stacks_of(plan, 1))
    feature = FeaturePlan(2, "sum")
    rows = {1: StackRows(tf.ones([ROWS, WIDTH]), ())}

    activations, updated = _step(
        program,
        rows,
        lambda: [entries_of_matrix(tf.constant(IDS), None, feature, ROWS)],
    )

    np.testing.assert_array_equal(activations[0][:, 0], [3, 1, 0, 3])
    assert list(updated) == [1]


@pytest.mark.parametrize(
    ("replicas", "buffer", "expected"), [(1, 0, 1), (4, 0, 48), (4, 7, 7)]
)
def test_a_buffer_is_as_given_or_as_large_as_mostly_suffices(
    replicas, buffer, expected
):
    stack = stacks_of(_plan(), replicas, buffer=buffer)[0]

    assert stack.exchange_for(100).buffer == expected


@pytest.mark.skipif(
    tf.__version__.startswith("2.16."), reason="writes no StableHLO"
)
def test_rows_leave_their_owner_as_integers_so_that_no_compiler_rounds_tables():
    text = TablesStep(_plan(), 4, 4, [1] * 3).stablehlo()

    assert re.search(r"optimization_barrier .*: tensor<\d+x4xi32>", text)
