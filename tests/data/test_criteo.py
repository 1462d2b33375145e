"""Click logs as a dataset. tests/examples reads damaged ones."""

from __future__ import annotations

import gzip
import pathlib

import numpy as np
import pytest

import tfembed
from tfembed.errors import DataError

SAMPLE = (
    pathlib.Path(__file__).parents[3] / "shared/data/criteo/criteo_sample.txt"
)


def line(label="1", first="7", category="68fd1e64"):
    fields = [label, first, *[""] * 12, category, *["a"] * 25]
    return "\t".join(fields) + "\n"


def test_a_log_is_read_in_batches(tmp_path):
    (tmp_path / "day_0").write_text(line() + line("0", "", "") + line())

    batches = list(tfembed.data.criteo(tmp_path / "day_*", 2))

    features, labels = batches[0]
    assert labels.numpy().tolist() == [1.0, 0.0]
    assert features["integers"].shape == (2, 13)
    assert features["integers"].numpy()[0, 0] == 7.0
    assert np.isnan(features["integers"].numpy()[1, 0])
    assert features["C1"].numpy().tolist() == [b"68fd1e64", b""]
    assert features["C26"].numpy().tolist() == [b"a"] * 2
    assert [len(labels) for _, labels in batches] == [2, 1]


def test_a_bad_line_ends_the_dataset_by_name_or_is_passed_over(tmp_path):
    (tmp_path / "day_0").write_text(line() + "no line\n" + line())
    path = tmp_path / "day_0"

    with pytest.raises(Exception, match=r"day_0:2: too few fields: 1"):
        list(tfembed.data.criteo(path, 2))
    (batch,) = tfembed.data.criteo(path, 2, skip_bad_lines=True)
    assert batch[1].shape == (2,)


def test_a_damaged_log_is_no_bad_line_to_pass_over(tmp_path):
    whole = gzip.compress((line() * 2).encode())
    (tmp_path / "day_0").write_bytes(whole[:-8])

    with pytest.raises(Exception, match=r"day_0:\d: cannot be read further"):
        list(tfembed.data.criteo(tmp_path / "day_0", 2, skip_bad_lines=True))


def test_missing_logs_are_an_error_before_anything_is_read(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        tfembed.data.criteo(tmp_path / "day_0", 2)


@pytest.mark.skipif(not SAMPLE.exists(), reason=f"{SAMPLE.name} is not here")
def test_the_sample_of_criteo_is_read_whole():
    labels = [y for _, y in tfembed.data.criteo(SAMPLE, 64)]

    assert sum(map(len, labels)) == len(SAMPLE.read_text().splitlines()) - 1
