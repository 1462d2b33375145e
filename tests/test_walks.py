"""An eager step passes through few modules of tfembed, by few calls."""

from __future__ import annotations

import pathlib

import pytest

import fresh_process

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts/count_walks.py"


@pytest.fixture(scope="module")
def walks():
    printed = fresh_process.output_of(SCRIPT.read_text())
    rows = [line.rsplit(None, 2) for line in printed.splitlines()[1:]]
    return {name.strip(): (int(files), int(n)) for name, files, n in rows}


@pytest.mark.parametrize(
    ("walk", "most_files", "most_calls"),
    [
        ("step, cold", 18, 150),
        ("step, warm", 10, 63),
        ("apply_gradients, rule", 14, 160),
        ("apply_gradients, Keras Adagrad", 16, 180),
    ],
)
def test_an_eager_step_is_short(walks, walk, most_files, most_calls):
    files, calls = walks[walk]

    assert files <= most_files
    assert calls <= most_calls
