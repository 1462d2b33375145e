"""The runs of the hash tables' benchmark, each with a few keys."""

from __future__ import annotations

import pytest

from benchmarks import measure
from benchmarks.table import session


@pytest.fixture
def filled(monkeypatch):
    monkeypatch.setattr(measure, "set_threads", lambda threads: None)
    made = session.Session("tfembed", 2)
    made.fill(width=4, n=500)
    return made


@pytest.mark.parametrize("form", ["eager", "call", "loop"])
@pytest.mark.parametrize("work", ["find", "upsert", "accum"])
def test_work_on_keys_takes_time(filled, work, form):
    filled.prepare("it", work, form, size=100)
    assert filled.run("it") > 0


def test_a_training_step_takes_time(filled):
    filled.prepare_training("step", width=4, keys=500)
    assert filled.run("step") > 0
