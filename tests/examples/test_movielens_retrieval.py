"""The retrieval example: what it reads, refuses, learns and serves."""

from __future__ import annotations

import pathlib

import movielens_retrieval
import numpy as np
import pytest
from movielens import histories as reading
from movielens.retrieval_server import hit_rate
from movielens.two_tower import Options

from tfembed.data import read_histories
from tfembed.errors import DataError

ROOT = pathlib.Path(__file__).parents[2]
ML_100K = ROOT.parent / "shared/data/ml-100k/ml-100k.inter"

HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
LINES = "1\t20\t3\t200\n1\t10\t3\t100\n2\t10\t4\t5\n1\t30\t5\t300\n"


def _file(tmp_path, text):
    path = tmp_path / "ratings.inter"
    path.write_text(text)
    return path


@pytest.mark.parametrize("header", [HEADER, ""])
def test_histories_are_in_order_of_time(tmp_path, header):
    read = read_histories(_file(tmp_path, header + LINES))
    assert read == {2: [10], 1: [10, 20, 30]}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", None, "an empty file"),
        (HEADER, None, "no ratings"),
        ("user_id:token\titem_id:token\n1\t2\n", 1, "no column 'timestamp'"),
        (LINES + "1\t2\n", 5, "too few fields"),
        (HEADER + "x\t2\t3\t4\n", 2, "'x"),
    ],
)
def test_a_bad_file_is_an_error_that_names_path_and_line(
    tmp_path, text, line, what
):
    path = _file(tmp_path, text)
    with pytest.raises(DataError, match=what) as caught:
        read_histories(path)
    assert (caught.value.path, caught.value.line) == (str(path), line)


def test_the_last_item_of_each_user_is_the_test():
    training, test = reading.split({7: [1, 2, 3, 4], 8: [5, 6]}, length=2)
    assert training.items.tolist() == [2, 3, 6]
    assert training.histories.tolist() == [[1, 0], [2, 1], [5, 0]]
    assert training.lengths.tolist() == [1, 2, 1]
    assert (test.users.tolist(), test.items.tolist()) == ([7], [4])
    assert test.histories.tolist() == [[3, 2]]


def test_a_hit_is_among_the_best_that_were_not_seen():
    _, test = reading.split({7: [1, 2, 3], 8: [2, 1, 4]}, length=2)
    items = np.array([1, 2, 3, 4])
    scores = np.array([[9.0, 8.0, 7.0, 1.0], [9.0, 8.0, 7.0, 1.0]])
    seen = [[1, 2], [2, 1]]
    assert hit_rate(scores.copy(), test, items, seen, 1) == 0.5
    assert hit_rate(scores.copy(), test, items, seen, 2) == 1.0


def _planted(num_users=120, num_items=60, length=24):
    """Users go round a circle of items: the next one is known."""
    rng = np.random.default_rng(0)
    result = {}
    for user in range(num_users):
        start = rng.integers(num_items)
        places = (start + np.arange(length)) % num_items
        # Ids anywhere in int64: there is no vocabulary.
        result[user * 10**15] = (-1 - places).tolist()
    return result


def test_the_model_learns_what_comes_next_and_serves_it():
    options = Options(dim=16, length=3, epochs=12, batch_size=128)
    figures = movielens_retrieval.evaluate(_planted(), options, seed=0)
    assert figures["two towers"] > 0.9
    assert figures["what is popular"] < 0.5


def test_the_program_fails_with_the_bad_line(tmp_path, capsys):
    path = _file(tmp_path, LINES + "7\n")
    assert movielens_retrieval.main(["--data", str(path)]) == 1
    assert f"error: {path}:5: too few fields" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--epochs=-1", "--epochs=0", "--dim=0"])
def test_the_program_refuses_a_model_that_cannot_be(capsys, flag):
    with pytest.raises(SystemExit):
        movielens_retrieval.main([flag])
    assert "a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not ML_100K.exists(), reason=f"{ML_100K.name} is not there")
def test_movielens_100k_beats_what_is_popular():
    histories = read_histories(ML_100K)
    figures = movielens_retrieval.evaluate(histories, Options(), seed=0)
    assert len(histories) == 943
    assert figures["two towers"] > 1.5 * figures["what is popular"]
