"""The NCF example: what it draws, and a model that all ways of use agree on."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import estimator_ncf
import numpy as np
import pytest
from movielens import leave_one_out

from tfembed.data import read_histories

ROOT = pathlib.Path(__file__).parents[2]
ML_100K = ROOT.parent / "shared/data/ml-100k/ml-100k.inter"

SMALL = estimator_ncf.Options(
    factors=8, batch_size=256, epochs=8, rate=0.005, replicas=2
)


def test_the_last_item_is_left_out_and_ranked_among_items_never_rated():
    data = leave_one_out.leave_one_out({7: [30, 10, 20], 9: [10, 40]})

    assert data.users.tolist() == [0, 0, 1]
    assert data.items.tolist() == [2, 0, 0]
    assert data.candidates[:, 0].tolist() == [1, 3]
    assert set(data.candidates[0, 1:].tolist()) == {3}
    assert data.candidates.shape == (2, 100)


def test_a_pass_has_each_pair_once_and_negatives_that_were_not_rated():
    data = leave_one_out.leave_one_out(leave_one_out.drawn_histories(20, 150))
    rated = set(zip(data.users.tolist(), data.items.tolist(), strict=True))

    stream = leave_one_out.batches(data, 50, negatives=2, seed=0)
    batches = list(itertools.islice(stream, len(rated) * 3 // 50))
    users, items, labels = (
        np.concatenate(column) for column in zip(*batches, strict=True)
    )
    pairs = list(zip(users.tolist(), items.tolist(), strict=True))

    assert len(pairs) == 3 * len(rated)
    positive = [p for p, label in zip(pairs, labels, strict=True) if label == 1]
    assert sorted(positive) == sorted(rated)
    assert all(
        (pair in rated) == (label == 1)
        for pair, label in zip(pairs, labels, strict=True)
    )


def test_a_hit_is_among_the_best_and_ties_do_not_help():
    scores = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 1.0, 2.0]])

    assert leave_one_out.hit_rate(scores, 1) == pytest.approx(1 / 3)
    assert leave_one_out.hit_rate(scores, 2) == pytest.approx(2 / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "vocabulary"), [(2, True), (0, True), (2, False)]
)
def test_evaluation_prediction_and_serving_agree(
    tmp_path, replicas, vocabulary
):
    data = leave_one_out.leave_one_out(leave_one_out.drawn_histories())
    options = dataclasses.replace(
        SMALL, replicas=replicas, vocabulary=vocabulary
    )

    figures = estimator_ncf.run(data, options, tmp_path)

    assert figures["evaluated"] > 3 * figures["what is popular"]
    assert figures["predicted"] == pytest.approx(figures["evaluated"])
    assert figures["served"] == pytest.approx(figures["evaluated"])


@pytest.mark.slow
@pytest.mark.skipif(not ML_100K.exists(), reason=f"{ML_100K.name} is not there")
def test_movielens_100k_beats_what_is_popular(tmp_path):
    data = leave_one_out.leave_one_out(read_histories(ML_100K))
    options = estimator_ncf.Options(factors=16, epochs=4, rate=0.002)

    figures = estimator_ncf.run(data, options, tmp_path)

    assert figures["evaluated"] > 1.3 * figures["what is popular"]


@pytest.mark.slow
def test_the_program_says_that_its_data_is_synthetic(capsys, monkeypatch):
    monkeypatch.setattr(
        estimator_ncf, "DEFAULT_DATA", pathlib.Path("not/there.inter")
    )
    status = estimator_ncf.main(["--epochs=1", "--factors=4"])

    printed = capsys.readouterr().out
    assert status == 0
    assert "from a synthetic draw, as not/there.inter is not there" in printed
    assert "HR@10" in printed
    assert "0.705  He et al. 2017" in printed


def test_the_program_fails_with_the_bad_line(tmp_path, capsys):
    path = tmp_path / "ratings.inter"
    path.write_text("1\t2\n")

    assert estimator_ncf.main(["--data", str(path)]) == 1
    assert f"error: {path}:1: has no column" in capsys.readouterr().err
