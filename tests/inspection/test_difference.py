"""Differences of two tables are those that NumPy finds in memory."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from inspection import saved_files
from tfembed.inspection import difference, ranking
from tfembed.saved.saved_tables import open_saved


def table(keys, rows, name, tmp_path, dtype=tf.int64):
    made = tfembed.HashTable(rows.shape[1], name="t", key_dtype=dtype)
    made.upsert(tf.constant(keys), rows)
    return open_saved(saved_files.save(tmp_path / name, t=made))["t"]


def two(tmp_path, dtype):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(500, 3)).astype(np.float32)
    moved = rows.copy()
    moved[100:200] += rng.normal(size=(100, 3)).astype(np.float32)
    numbers = rng.permutation(1000)[:600] * 1_000_003
    keys = np.asarray(
        [f"k{n}" for n in numbers] if dtype == tf.string else numbers
    )
    before = table(keys[:500], rows, "before", tmp_path, dtype)
    after = table(keys[100:600], moved, "after", tmp_path, dtype)
    old = dict(zip(keys[:500].tolist(), rows, strict=True))
    new = dict(zip(keys[100:600].tolist(), moved, strict=True))
    return before, after, old, new


@pytest.mark.parametrize("dtype", [tf.int64, tf.string])
@pytest.mark.parametrize("part_bytes", [1 << 27, 4096])
def test_a_difference_is_found_whatever_is_in_memory_at_a_time(
    tmp_path, monkeypatch, dtype, part_bytes
):
    monkeypatch.setattr(difference, "_PART_BYTES", part_bytes)
    before, after, old, new = two(tmp_path, dtype)

    found = difference.compare(before, after, count=5)

    kept = old.keys() & new.keys()
    distances = {k: float(np.linalg.norm(new[k] - old[k])) for k in kept}
    assert (found.gone, found.come, found.kept) == (100, 100, 400)
    assert found.unchanged == sum(d == 0 for d in distances.values())
    largest = sorted(distances.values())[:-6:-1]
    assert [d for d, _ in found.most_moved] == pytest.approx(largest, rel=1e-6)
    for share in (0.5, 0.9):
        exact = np.quantile(list(distances.values()), share, method="higher")
        assert exact <= found.quantile(share) * 1.0001 <= 1.05 * exact + 1e-9
    assert found.quantile(1.0) == found.most_moved[0][0]
    names = {k.decode() if isinstance(k, bytes) else k for k in found.some_gone}
    assert len(names) == 5
    assert names == set(sorted(old.keys() - new.keys())[:5])


def test_rows_of_another_width_are_not_compared(tmp_path):
    one = table([1, 2], np.ones([2, 3], np.float32), "a", tmp_path)
    other = table([2, 3], np.ones([2, 4], np.float32), "b", tmp_path)

    found = difference.compare(one, other)

    assert (found.gone, found.come, found.kept) == (1, 1, 1)
    assert found.moved is None


def test_keys_of_numbers_and_of_texts_cannot_be_compared(tmp_path):
    one = table([1], np.ones([1, 3], np.float32), "a", tmp_path)
    other = table(["1"], np.ones([1, 3], np.float32), "b", tmp_path, tf.string)

    with pytest.raises(tfembed.errors.DtypeError, match="cannot be compared"):
        difference.compare(one, other)


def test_a_row_that_is_not_finite_has_moved_most(tmp_path):
    rows = np.ones([3, 2], np.float32)
    worse = rows.copy()
    worse[1] = np.nan

    found = difference.compare(
        table([1, 2, 3], rows, "a", tmp_path),
        table([1, 2, 3], worse, "b", tmp_path),
    )

    assert found.most_moved == [(np.inf, 2)]
    assert found.unchanged == 2


@pytest.mark.filterwarnings("error")
def test_an_element_that_stays_infinite_has_not_moved(tmp_path):
    rows = np.ones([5, 2], np.float32)
    rows[1:, 0] = np.inf
    moved = rows.copy()
    moved[2, 1] = 4.0
    moved[3, 0] = -np.inf
    moved[4, 0] = np.nan

    found = difference.compare(
        table(range(5), rows, "a", tmp_path),
        table(range(5), moved, "b", tmp_path),
    )

    assert dict(map(reversed, found.most_moved)) == {
        2: 3.0,
        3: np.inf,
        4: np.inf,
    }
    assert found.unchanged == 2


@pytest.mark.parametrize("dtype", [tf.int64, tf.string])
def test_of_rows_that_are_alike_those_of_the_smallest_keys_come_first(
    tmp_path, dtype
):
    keys = [f"k{n:03}" if dtype == tf.string else n for n in range(300)]
    rows = np.ones([300, 2], np.float32)
    rows[7] = 3.0

    best = ranking.rank(table(keys, rows, "alike", tmp_path, dtype), "norm", 4)

    found = [
        k.decode() if isinstance(k, bytes) else k
        for k in (row.key for row in best)
    ]
    assert found == [keys[7], *keys[:3]]
