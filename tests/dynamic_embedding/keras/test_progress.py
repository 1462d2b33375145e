"""A copy of rows that takes long tells how far it is."""

from __future__ import annotations

import pytest

from tfembed.dynamic_embedding.keras.row_files import tell_progress


@pytest.mark.parametrize(
    ("variable", "value", "lines"),
    [
        (
            "TFEMBED_PROGRESS_SECONDS",
            "0",
            ["Work: 33 %, some", "Work: 66 %, some", "Work: done in"],
        ),
        ("TFEMBED_PROGRESS_SECONDS", "-1", []),
        ("TFEMBED_PROGRESS_SECONDS", "60", []),
        ("TF_CPP_MIN_LOG_LEVEL", "1", []),
    ],
)
def test_lines_say_how_much_is_done(
    capsys, monkeypatch, variable, value, lines
):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.setenv("TFEMBED_PROGRESS_SECONDS", "0")
    monkeypatch.setenv(variable, value)

    assert list(tell_progress("Work", ["a", "b", "c"])) == ["a", "b", "c"]

    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(lines)
    for line, begin in zip(said, lines, strict=True):
        assert line.startswith(begin)
