"""What the limits move, and the hash table that is read beside ours."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import machine
from benchmarks.lookup import limit as lookup_limit
from benchmarks.lookup import workload as lookup_workload
from benchmarks.table import contenders, workload

TABLES = lookup_workload.Tables(width=64, rows=500, features=3, rule="adagrad")


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    work = lookup_workload.Work(ids=4, batch=8, count=2)
    folder = str(tmp_path_factory.mktemp("batches"))
    return lookup_workload.batches(TABLES, work, folder)


def test_a_training_limit_changes_each_line_of_the_rows_that_are_used(batches):
    limit = lookup_limit.Limit(TABLES, 2)

    seconds = limit.rounds(batches, "loop", train=True)()

    wanted = np.zeros((3, TABLES.rows), bool)
    for batch in batches:
        for f in range(3):
            wanted[f, batch.feature(f)[0]] = True
    lines = np.repeat(wanted.ravel(), 4)  # 64 floats.
    touched = limit.touched()
    assert seconds > 0
    assert len(touched) == 2  # Values and accumulators.
    for arena in touched:
        np.testing.assert_array_equal(arena[: len(lines)], lines)
        assert not arena[len(lines) :].any()


def test_a_lookups_limit_changes_nothing(batches):
    limit = lookup_limit.Limit(TABLES, 2)
    limit.rounds(batches, "loop", train=False)()
    assert not limit.touched().any()


def test_a_limit_counts_distinct_lines_and_all_bytes():
    first = [np.array([0, 8, 4]), np.array([4])]
    arena = machine.Arena(1 << 20)
    lines = machine.Lines([arena], first, 4, [machine.READ], 2)
    ids = np.zeros(1000, np.int64)
    rows = np.zeros(1000, np.float32)
    stream = machine.Stream(ids, rows, rows, 2, 1)

    assert lines.moved == 4 * 4
    assert stream.moved == 8000 + 2 * (4000 + 4000)


@pytest.mark.parametrize("past_caches", [0, 1])
def test_a_stream_writes_all_lines_of_what_it_writes(past_caches):
    arena = machine.Arena(1 << 20)
    arena.array()[:] = 0
    none = np.zeros(0, np.float32)
    stream = machine.Stream(none, none, arena.array(), 1, 2)
    stream._past_caches = past_caches
    arena.array()[:] = 0
    stream.seconds()
    assert (arena.array().view(np.uint64) == 1).all()


@pytest.mark.parametrize(("bytes_", "lines"), [(1, 1), (64, 1), (65, 2)])
def test_bytes_lie_in_whole_lines(bytes_, lines):
    assert machine.lines_of(bytes_) == lines


@pytest.mark.parametrize("work", ["find", "upsert"])
def test_a_tables_limit_takes_time_for_keys_that_miss_too(work):
    keys = workload.keys(100_000)
    limit = contenders.Limit(8, 2, keys)
    batches = workload.batches(keys, 2, missing=0.5)

    present, missing = limit._first_lines(batches[0])

    assert len(present) + len(missing) == len(np.unique(batches[0]))
    assert 0.45 < len(missing) / len(batches[0]) < 0.55
    assert limit.rounds(work, batches)() > 0
    assert limit.insert_seconds() > 0


def test_an_insert_takes_its_lines_after_its_pages(monkeypatch):
    limit = contenders.Limit(8, 2, workload.keys(100_000))
    asked = []
    monkeypatch.setattr(
        machine,
        "fresh_seconds",
        lambda size, threads: asked.append(size) or 9.0,
    )

    assert limit.insert_seconds() > 9.0
    assert asked == [100_000 * (12 + 4 * 8)]


@pytest.mark.parametrize("kind", workload.KINDS)
def test_neighbor_hash_finds_its_keys_and_no_others(kind):
    keys = workload.keys(100_000, kind)
    table = contenders.NeighborHash(8, 2, keys)
    rows = workload.values(8)
    at = np.random.default_rng(1).permutation(len(keys))[:10_000]

    found = table.find(keys[at]).copy()
    missing = table.find(-keys[at])

    np.testing.assert_array_equal(found, rows[at % workload.BATCH])
    assert not missing.any()
