"""Which keys training inserts, beside a dict that follows the same rules."""

from __future__ import annotations

import numpy as np
import pytest

from tables.sgd_tables import (
    INITIAL,
    SHARDS,
    batches,
    contents,
    table_of,
    train,
)
from tfembed import optimizers, policies
from tfembed.tables import HashTable


@SHARDS
@pytest.mark.parametrize("seen", [1, 2, 4])
def test_count_admission_is_exact(shards, seen):
    table = table_of(shards, admission=policies.CountAdmission(seen))
    rows, counts = {}, {}
    for batch in batches(seen):
        train(table, batch)
        for key in set(batch.tolist()):
            if key not in rows:
                counts[key] = counts.get(key, 0) + 1
                if counts[key] < seen:
                    continue
                rows[key] = INITIAL
            rows[key] -= np.count_nonzero(batch == key)

        assert contents(table) == rows

    stats = table.stats()
    assert stats.admitted == len(rows)
    assert stats.refused == sum(counts.values()) - len(rows)


@SHARDS
def test_bloom_admission_is_never_late_and_seldom_early(shards):
    admission = policies.BloomAdmission(3, capacity=4000, error_rate=0.05)
    table = table_of(shards, admission=admission)
    keys = np.arange(0, 12000, 3)

    train(table, keys)
    train(table, keys)
    early = int(table.size())
    train(table, keys)

    assert early <= 0.05 * len(keys)
    assert int(table.size()) == len(keys)


@SHARDS
@pytest.mark.parametrize("value", [None, -7.0])
def test_keys_that_wait_read_the_initial_row_or_the_given_value(shards, value):
    admission = policies.CountAdmission(2, value=value)
    table = table_of(shards, admission=admission)
    waiting = INITIAL if value is None else value

    for expected in (waiting, INITIAL - 1, INITIAL - 2):
        train(table, [4])
        assert table.lookup([4])[0].numpy().tolist() == [[expected] * 2]
    assert table.lookup([5])[0].numpy().tolist() == [[waiting] * 2]


def test_upsert_and_accum_insert_at_once():
    table = table_of(admission=policies.CountAdmission(9))

    table.upsert([1], [[1.0, 1.0]])
    table.accum([2], [[2.0, 2.0]], [False])

    assert contents(table) == {1: 1.0, 2: 2.0}


def test_without_accumulation_admission_counts_a_step_once():
    table = HashTable(1, name="t", admission=policies.CountAdmission(2))
    table.attach(optimizers.SGD(1.0, use_gradient_accumulation=False))

    train(table, [1, 1, 1])
    assert contents(table) == {}
    train(table, [1, 1])
    assert contents(table) == {1: -2.0}
