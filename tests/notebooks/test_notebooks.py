"""The notebooks of the site run, and show what they make."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
import types

import nbformat
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000
# The fourth notebook shows this finding, and its text explains it.
EXPLAINED = "TableMonitor: users: "
each_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS]
)


def _runner() -> types.ModuleType:
    path = ROOT / "build_tools" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _outputs(notebook) -> list:
    return [o for cell in notebook.cells for o in cell.get("outputs", [])]


def _plots(notebook) -> int:
    return sum("image/png" in o.get("data", {}) for o in _outputs(notebook))


def _warnings(notebook) -> list[str]:
    """The lines of stderr, and those of stdout that name a warning."""
    return [
        line
        for output in _outputs(notebook)
        for line in output.get("text", "").splitlines()
        if output.name == "stderr" or re.search("warning", line, re.I)
        if EXPLAINED not in line
    ]


def test_the_sites_menu_has_five_notebooks():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r"notebooks/(\w+)\.ipynb", menu)

    assert named == [path.stem for path in NOTEBOOKS]
    assert len(named) == 5


@pytest.mark.slow
@each_notebook
def test_a_notebook_runs_without_errors_and_warnings(path, tmp_path):
    kept = nbformat.read(path, as_version=4)

    notebook = _runner().execute(path, tmp_path)

    assert _warnings(notebook) == []
    assert _plots(notebook) == _plots(kept)


@each_notebook
def test_a_notebook_is_kept_with_its_plots_and_without_warnings(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    nbformat.validate(notebook)
    # From the first cell to the last, in one go.
    counts = [cell.execution_count for cell in code]
    assert counts == list(range(1, len(code) + 1))
    assert _plots(notebook) >= 1
    assert _warnings(notebook) == []
    assert not [o for o in _outputs(notebook) if o.output_type == "error"]
    assert path.stat().st_size < MOST_BYTES


def test_commands_of_notebooks_run_in_the_notebooks_own_python():
    """Another `python` of PATH may lack tfembed, or have an older one."""
    lines = [
        line
        for path in NOTEBOOKS
        for cell in nbformat.read(path, as_version=4).cells
        for line in cell.source.splitlines()
        if cell.cell_type == "code" and line.startswith(("!", "%"))
    ]

    assert len(lines) >= 3
    for line in lines:
        assert line.startswith("!{sys.executable} -m tfembed ")


@each_notebook
def test_the_links_of_a_notebook_lead_to_pages(path):
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)

    assert links
    assert [x for x in links if not (path.parent / x).is_file()] == []


def test_the_code_of_notebooks_is_formatted():
    result = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", *NOTEBOOKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout


def test_a_warning_of_a_cell_is_found():
    cell = nbformat.v4.new_code_cell()
    for name, text in [
        ("stdout", "loss 1.0\nWARNING:tensorflow:slow\n"),
        ("stdout", f"WARNING:tensorflow:{EXPLAINED}few rows\n"),
        ("stderr", "a line\n"),
    ]:
        cell.outputs.append(
            nbformat.v4.new_output("stream", name=name, text=text)
        )

    found = _warnings(nbformat.v4.new_notebook(cells=[cell]))

    assert found == ["WARNING:tensorflow:slow", "a line"]
