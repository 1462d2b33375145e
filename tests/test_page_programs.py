"""The programs of the site's pages run, without warnings.

A page's Python blocks are one program, from the first to the last. A block of a
diff on a page of `migrate/` is two programs: that of the other package runs where
it is installed and can train here, ours always.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import warnings

import keras
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [
    "index.md",
    "data.md",
    *(f"tasks/{page.name}" for page in sorted(DOCS.glob("tasks/*.md"))),
]
MIGRATIONS = sorted(page.name for page in DOCS.glob("migrate/*.md"))
# Packages of which programs of the old kind run in this environment.
RUNS_BEFORE = {"tfrs.md"}


def _blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.M)
    return [block for name, block in blocks if name == language]


def _run(program: str, page: str) -> str:
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("error")
        # Of what Keras and TensorFlow import, not of what the page does.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="unclosed|subprocess")
        exec(compile(program, page, "exec"), {"__name__": "__page__"})
    return said.getvalue()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    keras.backend.clear_session()


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page):
    blocks = _blocks(page, "python")

    said = _run("\n".join(blocks), page)

    assert blocks or page == "tasks/scale_out.md"
    for shown in _blocks(page, ""):
        assert shown in said


def _versions(diff: str) -> tuple[str, str]:
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    return before, after


@pytest.mark.parametrize("page", MIGRATIONS)
def test_a_program_that_moved_here_runs(page):
    (diff, *_) = _blocks(f"migrate/{page}", "diff")
    before, after = _versions(diff)

    assert before != after
    said = _run(after, page)
    assert "loss" in said
    if page in RUNS_BEFORE:
        assert "loss" in _run(before, page)
