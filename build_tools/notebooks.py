"""Executes notebooks of docs/notebooks and writes their outputs into them.

    make notebooks                     # all
    make notebooks ARGS=2_retrieval    # the notebooks of these names

The site and the repository's pages show what is in the files: nothing is executed
there. A test executes each notebook anew.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
import tempfile

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
SECONDS_OF_A_CELL = 300
_NOTE = re.compile(
    r"^(I\d{4} |WARNING: All log messages before absl::InitializeLog).*\n?",
    re.M,
)
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def execute(path: pathlib.Path, folder: pathlib.Path) -> nbformat.NotebookNode:
    """Executes a notebook in a kernel of its own.

    Args:
      path: of the notebook; the file stays as it is.
      folder: where the kernel runs and what it writes lies.

    Returns:
      The notebook with its new outputs.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    # Else the first kernel of a machine warns that it makes this cache.
    import matplotlib.font_manager  # noqa: F401

    notebook = nbformat.read(path, as_version=4)
    beside_python = pathlib.Path(sys.executable).parent
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS_OF_A_CELL,
        kernel_name=_KERNEL["name"],
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(
        cwd=str(folder),
        env={
            **os.environ,
            "PATH": f"{beside_python}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
            ),
            "IPYTHONDIR": str(folder / ".ipython"),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "TF_CPP_MIN_LOG_LEVEL": "2",  # No notes on the machine's CPU.
            # Programs that a cell calls write plain text, 100 columns wide.
            "TERM": "dumb",
            "COLUMNS": "100",
            "LINES": "40",
        },
    )
    for cell in notebook.cells:
        _drop_notes(cell)
    # Whose Python it was is not what a notebook is about.
    notebook.metadata = nbformat.from_dict({"kernelspec": _KERNEL})
    return notebook


def _drop_notes(cell: nbformat.NotebookNode) -> None:
    """Takes TensorFlow's notes of level INFO out of a cell's stderr."""
    kept = []
    for output in cell.get("outputs", []):
        if output.get("name") == "stderr":
            output["text"] = _NOTE.sub("", output["text"])
            if not output["text"].strip():
                continue
        kept.append(output)
    if cell.cell_type == "code":
        cell["outputs"] = kept


def main(names: list[str]) -> int:
    """Executes the notebooks of these names, or all; returns the status."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, pathlib.Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
