"""Which tables share rows, and how many rows there may be."""

from __future__ import annotations

import pytest

import tfembed
from embedding.marks import NEEDS_XLA
from tfembed import errors
from tfembed.embedding.plan import make_plan
from tfembed.embedding.xla.stack import MOST_ROWS, stacks_of


def plan_of(*shapes, optimizer=None):
    return make_plan(
        [
            tfembed.FeatureConfig(tfembed.TableConfig(*shape, name=f"t{i}"))
            for i, shape in enumerate(shapes)
        ],
        optimizer or tfembed.SGD(0.1),
    )


def test_tables_of_one_width_share_a_stack():
    stacks = stacks_of(plan_of((9, 2), (5, 4), (10, 2)), 4)
    assert [one.tables for one in stacks] == [(0, 2), (1,)]
    assert [one.table_rows for one in stacks] == [(3, 3), (2,)]


def test_stacks_end_before_their_ids_leave_int32():
    shapes = [(700_000_000, 2)] * 5 + [(3, 2)]
    stacks = stacks_of(plan_of(*shapes), 256)
    assert [one.tables for one in stacks] == [(0, 1), (2, 3), (4, 5)]
    for stack in stacks:
        assert stack.replicas * stack.rows < 2**31


def test_a_table_as_large_as_a_stack_has_one_of_its_own():
    stacks = stacks_of(plan_of((1, 2), (MOST_ROWS, 2), (1, 2)), 64)
    assert [one.tables for one in stacks] == [(0,), (1,), (2,)]


TOO_LARGE = r"t0.*2,000,000,001.*2,000,000,000"


def test_a_larger_table_is_refused_with_the_figures():
    with pytest.raises(errors.ArgumentError, match=TOO_LARGE):
        stacks_of(plan_of((MOST_ROWS + 1, 2)), 64)


def test_v0_refuses_it_too():
    table = tfembed.TableConfig(MOST_ROWS + 1, 2, name="t0")
    with pytest.raises(errors.ArgumentError, match=TOO_LARGE):
        tfembed.TPUEmbeddingV0(tfembed.FeatureConfig(table), None, engine="xla")


def test_estimate_refuses_it_too():
    table = tfembed.TableConfig(MOST_ROWS + 1, 2, name="t0")
    with pytest.raises(errors.ArgumentError, match=TOO_LARGE):
        tfembed.tpu.estimate(
            tfembed.FeatureConfig(table),
            tfembed.SGD(0.1),
            topology="v5p:2x2x1",
            batch_size=8,
        )


@NEEDS_XLA
def test_the_xla_engine_refuses_it_too():
    table = tfembed.TableConfig(MOST_ROWS + 1, 2, name="t0")
    with pytest.raises(errors.UnsupportedError, match="t0.*2,000,000,000 rows"):
        tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(0.1), engine="xla"
        )
