"""How the benchmark judges its figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bars import Bar
from benchmarks.results import Results, add_limit_bar
from benchmarks.table import workload


def test_a_bar_holds_for_the_geometric_mean_of_its_cells():
    bar = Bar("find", 1.0, (("eager", 0.8), ("loop", 1.4)))
    assert bar.mean == pytest.approx((0.8 * 1.4) ** 0.5)
    assert bar.holds
    assert not Bar("find", 1.1, bar.cells).holds


def test_no_cell_may_be_far_from_the_bar():
    assert not Bar("find", 1.0, (("eager", 0.6), ("loop", 9.0))).holds
    assert not Bar("time", 1.0, (("a", 0.1), ("b", 1.6)), at_most=True).holds


def test_less_is_better_where_the_bar_says_so():
    assert Bar("time", 0.2, (("step", 0.19),), at_most=True).holds
    assert not Bar("time", 0.2, (("step", 0.21),), at_most=True).holds


def test_differences_that_are_0_do_not_make_up_for_all_others():
    cells = (("sparse", 0.0), ("ragged", 0.8), ("other", 1.6))
    assert Bar(
        "ms", 1.0, cells, at_most=True, is_sum=True
    ).mean == pytest.approx(0.8)
    assert Bar("ms", 1.0, cells, at_most=True).mean < 0.01


def test_a_limit_that_a_contender_beats_is_none():
    results = Results()
    add_limit_bar(results, "a", [("1 id", {"limit": 1.0, "a": 1.2, "b": 3})])
    add_limit_bar(results, "b", [("1 id", {"limit": 1.2, "a": 1.0, "b": 3})])
    add_limit_bar(results, "c", [("1 id", {"a": 1.0})])
    assert [bar.holds for bar in results.bars] == [True, False]


@pytest.mark.parametrize("kind", workload.KINDS)
def test_keys_are_distinct_and_none_is_zero(kind):
    keys = workload.keys(10_000, kind)
    assert len(np.unique(keys)) == 10_000
    assert keys.all()


def test_a_keys_name_spells_its_bits():
    keys = np.array([[1, -1], [2**62, 255]], np.int64)
    assert workload.names(keys).tolist() == [
        [b"0" * 15 + b"1", b"f" * 16],
        [b"4" + b"0" * 15, b"0" * 14 + b"ff"],
    ]


def test_half_of_the_keys_of_a_batch_can_be_missing():
    keys = workload.keys(10_000)
    batch = workload.batches(keys, 1, missing=0.5)
    assert 0.45 < np.isin(batch, keys).mean() < 0.55
