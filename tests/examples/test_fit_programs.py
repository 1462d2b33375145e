"""The programs that train by fit find what their drawn data has."""

from __future__ import annotations

import re

import ctr
import pytest
import two_tower

pytestmark = pytest.mark.slow


def test_two_towers_find_more_than_what_is_popular(capsys):
    assert two_tower.main(["--epochs=8"]) == 0

    said = capsys.readouterr().out
    popular = float(re.search(r"what is popular +([\d.]+)", said).group(1))
    towers = float(re.search(r"two towers +([\d.]+)", said).group(1))
    assert towers > 1.5 * popular
    assert re.search(r"user 1 is shown \['\d+'(, '\d+'){9}\]", said)
    assert "served, the same: True" in said


def test_clicks_are_told_apart_and_a_saved_model_predicts_the_same(capsys):
    assert ctr.main(["--epochs=2", "--examples=20000"]) == 0

    said = capsys.readouterr().out
    assert float(re.search(r"AUC of the best epoch: ([\d.]+)", said)[1]) > 0.6
    assert "26 tables of" in said
    assert "saved, loaded, and it predicts the same" in said


@pytest.mark.parametrize("program", [two_tower, ctr])
def test_missing_data_is_one_line(program, capsys):
    assert program.main(["--data=nowhere"]) == 1
    assert capsys.readouterr().err.startswith("error: nowhere: ")
