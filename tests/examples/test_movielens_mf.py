"""The MovieLens example: what it reads, refuses and learns."""

from __future__ import annotations

import pathlib

import movielens_mf
import numpy as np
import pytest
import tensorflow as tf
from movielens import factorisation
from movielens.folds import folds

from tfembed.data import movielens
from tfembed.errors import DataError

ROOT = pathlib.Path(__file__).parents[2]
ML_100K = ROOT.parent / "shared/data/ml-100k/ml-100k.inter"

HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
LINES = "196\t242\t3\t881250949\n186\t302\t3.5\t891717742\n"


def file(tmp_path, text, name="ratings.inter"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [HEADER + LINES, LINES, LINES.rstrip("\n")])
def test_both_formats_are_read(tmp_path, text):
    read = movielens.read_ratings(file(tmp_path, text))
    assert read.users.tolist() == [196, 186]
    assert read.items.tolist() == [242, 302]
    assert read.values.tolist() == [3, 3.5]


def test_a_headers_columns_may_come_in_any_order(tmp_path):
    text = "rating:float\titem_id:token\tuser_id:token\n3\t242\t196\n"
    read = movielens.read_ratings(file(tmp_path, text))
    assert (read.users[0], read.items[0], read.values[0]) == (196, 242, 3)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", None, "an empty file"),
        (HEADER, None, "no ratings"),
        ("user_id:token\titem_id:token\n1\t2\n", 1, "no column 'rating'"),
        (HEADER + LINES + "200\t22", 4, "too few fields: 2; a row has 4"),
        (HEADER + "\n" + LINES, 2, "an empty line"),
        (LINES + "200\t222\n", 3, "too few fields: 2"),
        ("1 2 3\n", 1, "no column .user_id.*it has .1 2 3"),
        (HEADER + "x\t2\t3\t4\n", 2, "user_id is 'x'; it must be an integer"),
        (HEADER + "1\t2.5\t3\t4\n", 2, "item_id is '2.5'"),
        (HEADER + "1\t2\tgood\t4\n", 2, "'good'"),
        (HEADER + "1\t2\tnan\t4\n", 2, "rating is 'nan'; it must be a finite"),
        (HEADER + f"1\t{2**63}\t3\t4\n", 2, "must fit into int64"),
    ],
)
def test_a_bad_line_is_an_error_that_names_path_and_line(
    tmp_path, text, line, what
):
    path = file(tmp_path, text)
    with pytest.raises(DataError, match=what) as caught:
        movielens.read_ratings(path)
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert str(caught.value).startswith(f"{path}:{line or ''}")


@pytest.mark.parametrize("name", ["missing.inter", "."])
def test_a_file_that_cannot_be_opened_is_an_error(tmp_path, name):
    with pytest.raises(DataError, match="cannot be read"):
        movielens.read_ratings(tmp_path / name)


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        movielens.read_ratings(path)


def test_bad_lines_can_be_skipped_and_are_counted(tmp_path):
    path = file(tmp_path, HEADER + "x\t2\t3\t4\n" + LINES + "7\n")
    skipped = movielens.SkippedLines()
    assert len(movielens.read_ratings(path, skipped=skipped)) == 2
    assert skipped.count == 2
    assert [line.partition(": ")[0] for line in skipped.first] == [
        f"{path}:2",
        f"{path}:5",
    ]


def planted(num_users=60, num_items=40, seed=0):
    """Ratings of a rank-2 truth with biases, and little noise."""
    rng = np.random.default_rng(seed)
    users, items = np.divmod(np.arange(num_users * num_items), num_items)
    p, q = rng.normal(size=(num_users, 2)), rng.normal(size=(num_items, 2))
    values = (
        3 + rng.normal(size=num_users)[users] / 2 + (p[users] * q[items]).sum(1)
    )
    keep = rng.random(len(users)) < 0.6
    noise = rng.normal(size=len(users)) * 0.05
    # Ids anywhere in int64: there is no vocabulary.
    return movielens.Ratings(
        users[keep] * 10**15,
        -items[keep] - 1,
        (values + noise)[keep].astype("f4"),
    )


def test_every_rating_is_tested_once():
    data = planted()
    tested = [test.values for _, test in folds(data, 5, seed=1)]
    np.testing.assert_array_equal(
        np.sort(np.concatenate(tested)), np.sort(data.values)
    )
    for training, test in folds(data, 5, seed=1):
        assert len(training) + len(test) == len(data)


OPTIONS = factorisation.Options(
    dim=4, epochs=40, batch_size=256, l2=0.01, l2_biases=0.01
)


def test_training_finds_a_planted_truth():
    training, test = next(folds(planted(), 5, seed=0))
    model = factorisation.train(training, OPTIONS, seed=0)
    error = factorisation.root_mean_square_error(model, test)
    assert error < 0.3 * test.values.std()


def test_training_is_repeated_by_its_seed():
    training, test = next(folds(planted(), 5, seed=0))
    short = factorisation.Options(dim=4, epochs=2, batch_size=256)
    first, second, other = (
        factorisation.train(training, short, seed).predict(
            test.users, test.items
        )
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_epoch_is_traced_once():
    training, _ = next(folds(planted(), 5, seed=0))
    model = factorisation.Factorisation(3.0, len(training), OPTIONS, 0)
    for part in (training, training.take(np.arange(500))):
        model.train_epoch(
            *map(tf.constant, (part.users, part.items, part.values))
        )
    traces = model.train_epoch.experimental_get_tracing_count()
    # One for the first length and one for any length.
    assert traces <= 2


def test_who_was_never_seen_is_rated_the_mean():
    model = factorisation.Factorisation(3.25, 10, OPTIONS, 0)
    np.testing.assert_allclose(
        model.predict(np.array([5]), np.array([7])), 3.25
    )


def test_the_program_prints_its_error_beside_published_ones(tmp_path, capsys):
    data = planted(20, 15)
    rows = zip(data.users, data.items, data.values, strict=True)
    path = file(
        tmp_path, "".join(f"{u}\t{i}\t{v}\n" for u, i, v in rows) + "7\n"
    )
    arguments = ["--data", str(path), "--epochs", "1", "--folds", "2"]

    assert movielens_mf.main([*arguments, "--skip_bad_lines"]) == 0

    out = capsys.readouterr().out
    assert "skipped 1 bad lines" in out
    assert "tfembed, mean of 2 folds" in out
    assert "SVD++" in out


def test_the_program_fails_with_the_bad_line(tmp_path, capsys):
    path = file(tmp_path, LINES + "7\n")
    assert movielens_mf.main(["--data", str(path)]) == 1
    assert f"error: {path}:3: too few fields: 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not ML_100K.exists(), reason=f"{ML_100K.name} is not there")
def test_movielens_100k_beats_the_published_factorisation():
    data = movielens.read_ratings(ML_100K)
    figures = movielens_mf.cross_validate(
        data, factorisation.Options(), num_folds=5, seed=0
    )
    assert len(data) == 100_000
    assert np.mean(figures) <= 0.920
