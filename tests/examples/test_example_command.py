"""`tfembed example` lists, prints and writes the programs of examples/models.

Kind: programs that a wheel does not bring, or that need more than their file. Looked
at: the checkout, what setup.py puts into a wheel, and what the programs import.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
import setuptools

import tfembed.__main__ as program
from tfembed.__main__ import main

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "examples" / "models").glob("*.py"))


def test_the_programs_are_listed_with_what_they_are_about(capsys):
    assert main(["example"]) == 0
    said = capsys.readouterr().out
    assert "two_tower             Two towers: which items fit a user?" in said

    assert main(["example", "--json"]) == 0
    programs = json.loads(capsys.readouterr().out)["programs"]
    assert [one["name"] for one in programs] == [p.stem for p in PROGRAMS]
    assert all(one["about"].endswith(".") for one in programs)


def test_a_program_is_printed_as_it_is(capsys):
    text = PROGRAMS[0].read_text()
    assert main(["example", PROGRAMS[0].stem]) == 0
    assert capsys.readouterr().out == text

    assert main(["example", PROGRAMS[0].stem, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["program"] == text


def test_a_program_is_written_and_replaces_nothing(capsys, tmp_path):
    path = tmp_path / "mine.py"
    assert main(["example", PROGRAMS[0].stem, "--to", str(path)]) == 0
    assert path.read_text() == PROGRAMS[0].read_text()
    assert f"python {path}" in capsys.readouterr().out

    path.write_text("mine")
    assert main(["example", PROGRAMS[0].stem, "--to", str(path)]) == 2
    assert path.read_text() == "mine"
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nothing"], ["--to", "x.py"]])
def test_an_unknown_program_is_refused_with_those_there_are(capsys, arguments):
    assert main(["example", *arguments]) == 2
    assert "one of ctr, " in capsys.readouterr().err


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_one_short_file_that_needs_no_other(path):
    text = path.read_text()
    named = {
        (node.module or "").partition(".")[0]
        if isinstance(node, ast.ImportFrom)
        else node.names[0].name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    others = named - set(sys.stdlib_module_names)
    assert others <= {"keras", "numpy", "tensorflow", "tfembed"}
    assert text.count("\n") <= 150


def test_a_wheel_has_the_programs(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    monkeypatch.setattr(subprocess, "run", _no_tensorflow)
    monkeypatch.syspath_prepend(ROOT)  # What setup.py adds goes with it.
    spec = importlib.util.spec_from_file_location("its", ROOT / "setup.py")
    its = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(its)
    build = its.BuildWithPrograms(setuptools.Distribution())
    build.ensure_finalized()
    build.build_lib = str(tmp_path)
    build.run()

    package = tmp_path / "tfembed"
    monkeypatch.setattr(program, "__file__", str(package / "__main__.py"))
    assert main(["example", "two_tower"]) == 0
    text = (ROOT / "examples" / "models" / "two_tower.py").read_text()
    assert capsys.readouterr().out == text
    names = [path.name for path in sorted((package / "examples").iterdir())]
    assert names == [path.name for path in PROGRAMS]


def _no_tensorflow(*arguments, **options):
    raise OSError(0, "not asked here")
