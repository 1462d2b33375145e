"""README.md's first program prints what the page shows."""

from __future__ import annotations

import pathlib
import re

import numpy as np

import fresh_process

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
NUMBER = re.compile(r"-?\d+\.\d+")


def _blocks() -> tuple[str, str]:
    text = README.read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"This prints:\n\n```\n(.*?)```", text, re.DOTALL)
    assert program and shown
    return program[1], shown[1]


def test_the_first_program_prints_what_the_page_shows():
    program, shown = _blocks()

    printed = fresh_process.output_of(program, new_interpreter=True)

    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    np.testing.assert_allclose(
        [float(n) for n in NUMBER.findall(printed)],
        [float(n) for n in NUMBER.findall(shown)],
        atol=0.011,
    )


def test_the_first_program_shows_a_loss_that_falls_and_rows_that_are_not_zero():
    _, shown = _blocks()
    losses = [float(n) for n in re.findall(r"loss (\S+)", shown)]
    rows = [float(n) for n in NUMBER.findall(shown.partition("[[")[2])]

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
    assert len(rows) == 8
    assert all(rows)
