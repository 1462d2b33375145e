"""The program in docs/estimator.md runs, and learns."""

from __future__ import annotations

import pytest

import documents


@pytest.mark.slow
def test_the_program_of_the_page_learns(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    names: dict[str, object] = {}
    exec(documents.program("estimator.md", "A TPUEstimator"), names)

    assert names["results"]["accuracy"] > 0.9
    assert len(names["classes"]) == 1000
