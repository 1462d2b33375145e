"""The programs of docs/watching.md print what the page shows."""

from __future__ import annotations

import pathlib
import re

import pytest

import documents

SECTIONS = (
    "One answer for all tables",
    "In TensorBoard",
    "What a policy would keep",
)


def _blocks(text: str) -> list[str]:
    """Blocks without a language."""
    return re.findall(r"\n\n```\n(.*?)\n```\n", text, re.DOTALL)


def _shape(line: str) -> str:
    """A line without the numbers that differ from run to run: bytes."""
    line = re.sub(r"[\d.,]+ (B|kB|MB|GB)\b", "?", line)
    # What an index has of places and probes depends on salts.
    line = re.sub(r"[\d.]+ %( +[\d.]+, at most \d+)$", r"?", line)
    return re.sub(r" +", " ", line)


@pytest.mark.slow
def test_the_page_of_watching_runs_as_it_says(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = {}
    for section in SECTIONS:
        exec(documents.program("watching.md", section), names)
    printed = [_shape(x) for x in capfd.readouterr().out.splitlines()]
    page = (documents.DOCS / "watching.md").read_text()
    tables = [b for b in _blocks(page) if " rows" in b or "policy" in b]
    exact = [
        _shape(line)
        for block in tables
        for line in block.splitlines()
        if line.startswith(("table ", "policy ", "all ids", "seen 3", "users "))
    ]

    assert len(exact) > 8
    assert set(exact) <= set(printed)
    assert pathlib.Path("policies.html").exists()
    assert pathlib.Path("logs/tables/users_keys.tsv").exists()
