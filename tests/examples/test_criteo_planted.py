"""The planted stream: what it draws, and that its truth is the best there is."""

from __future__ import annotations

import numpy as np
import pytest
from criteo.evaluation import auc
from criteo.planted import PlantedStream, PlantedTruth

from tfembed.data.criteo import (
    CATEGORY_NAMES,
    INTEGER_NAMES,
    find_logs,
    read_log,
    stacked,
)


@pytest.fixture(scope="module")
def stream():
    return PlantedStream()


@pytest.fixture(scope="module")
def drawn(stream):
    return stream.draw(0, 100_000)


def test_examples_do_not_depend_on_the_size_of_the_draws(stream):
    whole = stream.draw(1000, 300)
    parts = [stream.draw(1000, 1), stream.draw(1001, 299)]
    for field in ("labels", "integers", "ids", "probabilities"):
        np.testing.assert_array_equal(
            getattr(whole, field),
            np.concatenate([getattr(part, field) for part in parts]),
        )


def test_a_seed_gives_the_same_stream_and_another_one_another():
    first, same, other = (
        PlantedStream(PlantedTruth(seed=seed)).draw(5, 100).ids
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).mean() > 0.5


def test_labels_have_the_probabilities_of_the_truth(drawn):
    bins = np.digitize(drawn.probabilities, np.linspace(0.1, 0.9, 9))
    for place in range(10):
        p = drawn.probabilities[bins == place]
        rate = drawn.labels[bins == place].mean()
        deviation = np.sqrt((p * (1 - p)).mean() / len(p))
        assert abs(rate - p.mean()) < 4 * deviation


def test_the_truths_auc_is_the_expected_auc_of_its_probabilities(drawn):
    p = np.sort(drawn.probabilities[:20_000])
    below = np.concatenate([[0], np.cumsum(1 - p)[:-1]])
    pairs = p.sum() * (1 - p).sum() - (p * (1 - p)).sum()
    expected = (p * below).sum() / pairs
    found = auc(drawn.labels[:20_000], drawn.probabilities[:20_000])
    assert abs(found - expected) < 0.01


def test_ids_follow_zipfs_law(stream, drawn):
    n = len(drawn.ids)
    counts = np.bincount(drawn.ids.ravel(), minlength=len(stream.strings))
    expected = stream.id_probabilities * n
    deviations = np.sqrt(expected * (1 - stream.id_probabilities))
    scores = (counts - expected) / deviations
    frequent = expected > 100
    assert np.abs(scores[frequent]).max() < 5
    assert 0.9 < np.mean(scores[frequent] ** 2) < 1.1


def test_each_category_draws_its_own_ids_and_spells_them_apart(stream, drawn):
    end = 0
    for category, size in enumerate(stream.sizes):
        start, end = end, end + size
        ids = drawn.ids[:, category]
        assert start <= ids.min() and ids.max() < end
        assert len(np.unique(stream.strings[start:end])) == size


def test_the_default_run_draws_at_least_100_000_ids(stream):
    examples = 2_000_000
    missed = (1 - stream.id_probabilities) ** examples
    assert len(stream.strings) - missed.sum() > 100_000


def test_the_integers_alone_say_little(drawn):
    logs = np.sign(drawn.integers) * np.log1p(np.abs(drawn.integers))
    features = np.nan_to_num(logs - np.nanmean(logs, axis=0))
    slopes, *_ = np.linalg.lstsq(features, drawn.labels - 0.5, rcond=None)
    assert auc(drawn.labels, features @ slopes) < 0.6


def test_lines_read_back_as_the_examples_they_were_made_of(stream, tmp_path):
    drawn = stream.draw(7, 500)
    (tmp_path / "log").write_bytes(b"".join(stream.lines(7, 500)))
    (rows,) = read_log(*find_logs(str(tmp_path / "log")))
    assert not rows.faults
    np.testing.assert_array_equal(rows.columns["label"], drawn.labels)
    np.testing.assert_array_equal(stacked(rows, INTEGER_NAMES), drawn.integers)
    np.testing.assert_array_equal(
        stacked(rows, CATEGORY_NAMES), stream.strings[drawn.ids].astype(object)
    )


def test_auc_counts_pairs_and_ties():
    labels = np.array([0, 1, 0, 1, 1])
    scores = np.array([0.1, 0.1, 0.5, 0.7, 0.3])
    wins = [
        (a > b) + 0.5 * (a == b)
        for a in scores[labels == 1]
        for b in scores[labels == 0]
    ]
    assert auc(labels, scores) == pytest.approx(np.mean(wins))
