"""The tasks of the lookup benchmark's contenders, and that they do them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks import measure
from benchmarks.lookup import contender, inputs, session, workload
from benchmarks.lookup.stock import Frozen, Safe, Stock
from benchmarks.lookup.tfembed_tables import Hash, Ops, Static

TABLES = workload.Tables(width=16, rows=50, features=3, rule="adagrad")


@pytest.fixture
def batches(tmp_path):
    work = workload.Work(ids=4, batch=8, count=2)
    return workload.batches(TABLES, work, str(tmp_path))


def test_batches_have_a_bag_for_each_sample_and_feature(batches):
    for batch in batches:
        lengths = np.diff(batch.splits)
        assert len(lengths) == 3 * 8
        assert batch.size == 8
        assert lengths.min() >= 2
        assert lengths.max() <= 6
        assert batch.ids.min() >= 0
        assert batch.ids.max() < TABLES.rows


def test_batches_are_kept_for_the_next_contender(tmp_path):
    work = workload.Work(ids=1, batch=8, count=2)
    first = workload.batches(TABLES, work, str(tmp_path))
    again = workload.batches(TABLES, work, str(tmp_path))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.splits, b.splits)


def test_features_of_one_table_have_favourites_of_their_own():
    tables = dataclasses.replace(TABLES, shared=True, rows=30_000)
    rng = np.random.default_rng(1)
    ids, _ = workload.make_batch(rng, tables, workload.Work(1, batch=1000))
    favourites = [np.bincount(part).argmax() for part in np.split(ids, 3)]
    assert len(set(favourites)) == 3


@pytest.mark.parametrize("kind", [Static, Hash, Ops, Stock])
def test_all_contenders_train_alike(kind, batches):
    train, look_up = kind(TABLES, 2), kind(TABLES, 2)
    form = "call sparse" if kind is Stock else "call"

    train.rounds(batches, form, train=True)()
    rows = train.values()
    look_up.rounds(batches, form, train=False)()

    np.testing.assert_allclose(rows, _trained(batches), rtol=1e-5)
    np.testing.assert_array_equal(
        look_up.values(), np.full_like(rows, contender.VALUE)
    )


@pytest.mark.parametrize("form", ["loop", "call", "eager"])
def test_seconds_are_those_of_the_clock(form, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "set_threads", lambda threads: None)
    made = session.Session("tfembed", 2)
    made.open(**dataclasses.asdict(TABLES))
    assert made.prepare("it", form, str(tmp_path), ids=4, batch=8, count=2)
    clock = itertools.count(step=3)
    monkeypatch.setattr(measure.time, "perf_counter", clock.__next__)
    assert made.run("it") == 3 / 2


@pytest.mark.parametrize("kind", [Safe, Frozen])
def test_other_forms_of_tensorflow_look_up_the_same(kind, batches):
    tables = dataclasses.replace(TABLES, rule="")
    found = []

    table = kind(tables, 2)
    consume = inputs.consume
    inputs.consume = found.extend
    try:
        table.rounds(batches, "call sparse", train=False)()
    finally:
        inputs.consume = consume

    assert len(found) == len(batches) * TABLES.features
    for activations in found:
        np.testing.assert_allclose(activations, contender.VALUE, rtol=1e-6)


def _trained(batches) -> np.ndarray:
    """Rows of all tables after exact Adagrad, in float64."""
    rows = np.full((3, TABLES.rows, TABLES.width), contender.VALUE)
    slots = np.full_like(rows, contender.FIRST_ACCUMULATOR)
    for batch in batches:
        sums = np.zeros_like(rows)
        for f in range(3):
            ids, splits = batch.feature(f)
            shares = contender.GRADIENT / np.diff(splits)
            np.add.at(sums[f], ids, np.repeat(shares, np.diff(splits))[:, None])
        slots += sums**2
        rows -= contender.LEARNING_RATE * sums / np.sqrt(slots)
    return rows
