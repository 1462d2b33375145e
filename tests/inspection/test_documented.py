"""The page's commands print what the page says."""

from __future__ import annotations

import re
import shlex

import pytest

from documents import DOCS
from tfembed.inspection import command

PAGE = (DOCS / "inspect.md").read_text()
COMMANDS = re.findall(r"```\n\$ tfembed (.*)\n((?:.*\n)*?)```\n", PAGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns the folder in which the page's first program has run."""
    folder = tmp_path_factory.mktemp("page")
    first, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(first, {})
    return folder


def masked(text):
    return re.sub(r"written [\d-]+ [\d:]+", "written TIME", text).strip()


@pytest.mark.parametrize(
    "line, output", COMMANDS, ids=[line for line, _ in COMMANDS]
)
def test_a_command_prints_what_the_page_says(
    capsys, folder, monkeypatch, line, output
):
    monkeypatch.chdir(folder)

    command.main(shlex.split(line))

    out, err = capsys.readouterr()
    assert masked(out + err) == masked(output)


def test_the_page_has_a_command_for_each_action():
    text = " ".join(line for line, _ in COMMANDS)
    for option in ("--table", "--key", "--top", "--diff", "--verify", "--to"):
        assert f"{option} " in f"{text} "


def test_the_program_of_the_page_runs(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    *_, last = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    exec(last, {})

    assert capsys.readouterr().out == "19 ('accumulators',) 3\n"
