"""Benchmarks judge rounds on a machine that changes its speed."""

from __future__ import annotations

import pytest

from benchmarks import contest, measure


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


class _Machine:
    """Workers of a machine that takes longer with every turn."""

    def __init__(self) -> None:
        self.slowness = 0.0
        self.turns: list[tuple[str, str]] = []

    def workers(self, **seconds: float) -> dict[str, _Worker]:
        return {
            name: _Worker(self, name, value) for name, value in seconds.items()
        }


class _Worker:
    def __init__(self, machine: _Machine, name: str, seconds: float) -> None:
        self.machine, self.name, self.seconds = machine, name, seconds

    def call(self, method: str, name: str) -> float:
        assert method == "run"
        self.machine.turns.append((name, self.name))
        self.machine.slowness += 1
        return self.seconds * self.machine.slowness


def test_turns_go_there_and_back():
    machine = _Machine()
    workers = machine.workers(tfembed=1.0, limit=1.0)
    contest.take_turns({"find": workers, "upsert": workers}, rounds=2)
    there = [(r, w) for r in ("find", "upsert") for w in ("tfembed", "limit")]
    assert machine.turns == there + there[::-1] + there


def test_turns_compare_what_was_measured_side_by_side():
    machine = _Machine()
    workers = machine.workers(tfembed=2.0, limit=3.0)
    runs = {"find": workers, "zipf": workers}
    turns = contest.take_turns(runs, rounds=40)
    found = turns.of("find")
    # The machine was 40 times as slow in the end, a turn apart a few percent.
    assert found["limit"] / found["tfembed"] == pytest.approx(1.5, rel=0.02)
    assert turns.ratio("find", "zipf") == pytest.approx(1.0, rel=0.05)
    one, two = (turns.seconds[run, "tfembed"] for run in ("find", "zipf"))
    gaps = sorted(a - b for a, b in zip(one, two, strict=True))
    assert gaps[19] <= turns.difference("find", "zipf") <= gaps[20]


def test_spells_are_joined_run_by_run():
    spells = [
        contest.Turns({("find", "tfembed"): [1.0], ("find", "limit"): [2.0]}),
        contest.Turns({("find", "tfembed"): [9.0], ("find", "limit"): [6.0]}),
    ]
    assert contest.Turns.joined(spells).seconds == {
        ("find", "tfembed"): [1.0, 9.0],
        ("find", "limit"): [2.0, 6.0],
    }
