"""An eager step passes through few modules of tfembed, by few calls."""

from __future__ import annotations

import pathlib

import pytest

import fresh_process

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts/count_walks.py"


@pytest.fixture(scope="module")
def walks():
    printed = fresh_process.output_of(SCRIPT.read_text())
    rows = [line.rsplit(None, 3) for line in printed.splitlines()[1:]]
    return {name.strip(): tuple(map(int, counts)) for name, *counts in rows}


@pytest.mark.parametrize(
    ("walk", "most_files", "most_calls"),
    [
        ("step, cold", 18, 150),
        ("step, warm", 10, 63),
        ("apply_gradients, rule", 14, 155),
        ("apply_gradients, Keras Adagrad", 16, 176),
        ("Embedding, cold", 35, 350),
        ("Embedding, warm", 29, 235),
        ("DistributedEmbedding, cold", 41, 505),
        ("DistributedEmbedding, warm", 30, 300),
        ("lookup outside of models, cold", 11, 47),
        ("lookup under a tape, cold", 11, 60),
    ],
)
def test_an_eager_step_is_short(walks, walk, most_files, most_calls):
    files, calls, _ = walks[walk]

    assert files <= most_files
    assert calls <= most_calls


@pytest.mark.parametrize("walk", ["outside of models", "under a tape"])
def test_a_lookup_runs_no_code_of_keras(walks, walk):
    *_, of_keras = walks[f"lookup {walk}, warm"]

    assert of_keras == 0


def test_a_lookup_makes_as_many_calls_wherever_it_is_called(walks):
    # No call for each frame of the stack: other walks use the same function.
    deep = walks["lookup under a tape, 200 calls deep"]

    assert deep == walks["lookup under a tape, warm"]
