"""What benchmarks make of rounds on a machine that changes its speed."""

from __future__ import annotations

import pytest

from benchmarks import measure


def test_the_speed_of_a_round_does_not_count():
    speeds = [1.0, 4.0, 1.0, 2.0, 3.9]
    times = {
        "ours": [2.0 * speed for speed in speeds],
        "theirs": [3.0 * speed for speed in speeds],
    }
    steady = measure.steadied(times)
    assert steady["theirs"] / steady["ours"] == pytest.approx(1.5)
    assert steady["ours"] == pytest.approx(2.0 * 2.0)  # Of a median round.


def test_one_disturbed_turn_does_not_count():
    times = {"ours": [1.0, 1.0, 9.0, 1.0, 1.0], "theirs": [2.0] * 5}
    steady = measure.steadied(times)
    assert steady["theirs"] / steady["ours"] == pytest.approx(2.0)


def test_one_contender_has_its_median():
    assert measure.steadied({"ours": [3.0, 1.0, 2.0]}) == {
        "ours": pytest.approx(2.0)
    }
