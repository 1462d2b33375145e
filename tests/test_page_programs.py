"""The programs of README and of the site's pages run, without warnings.

Kind: code of a page that no test runs. Looked for in all Markdown files. A page's
Python blocks are one program, from the first to the last, in an empty namespace:
a reader pastes them as they stand. A block of a
diff on a page of `migrate/` is two programs: that of the other package runs where
it is installed and can train here, ours always.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import shutil
import subprocess
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tfembed

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *DOCS.glob("**/*.md"))
    if "```python" in path.read_text()
)
# Plain blocks of these pages are what their programs print.
SHOWN = {
    "docs/index.md",
    "docs/data.md",
    *(page for page in PAGES if page.startswith("docs/tasks/")),
}
MIGRATIONS = sorted(page.name for page in DOCS.glob("migrate/*.md"))
# Packages of which programs of the old kind run in this environment.
RUNS_BEFORE = {"tfrs.md"}


def _blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.M)
    return [block for name, block in blocks if name == language]


def _run(program: str, page: str) -> str:
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("error")
        # Of what Keras and TensorFlow import, not of what the page does.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="unclosed|subprocess")
        warnings.filterwarnings("ignore", message="float_format is deprecated")
        exec(compile(program, page, "exec"), {"__name__": "__page__"})
    return said.getvalue()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    keras.backend.clear_session()


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page):
    said = _run("\n".join(_blocks(page, "python")), page)

    for shown in _blocks(page, "") if page in SHOWN else ():
        assert shown in said


def test_the_pages_that_readers_paste_from_are_run():
    assert {"README.md", "docs/keras.md", "docs/checkpoints.md"} < set(PAGES)
    assert len(PAGES) > 25


def test_the_c_program_of_serve_answers_as_the_program_in_python(tmp_path):
    compiler = shutil.which("cc")
    folder = pathlib.Path(tf.sysconfig.get_lib())
    libraries = [f"libtensorflow_{part}.so.2" for part in ("cc", "framework")]
    needed = [folder / "include/tensorflow/c/c_api.h", folder / libraries[0]]
    if compiler is None or not all(path.exists() for path in needed):
        pytest.skip("no C compiler, or a TensorFlow without its C API")
    page = "docs/tasks/serve.md"
    program = "\n".join(_blocks(page, "python"))
    said = _run(f"{program}\nprint(scores.numpy()[0, 0])", page)
    (tmp_path / "serve.c").write_text("".join(_blocks(page, "c")))
    saved = saved_model_pb2.SavedModel.FromString(
        (tmp_path / "served/saved_model.pb").read_bytes()
    )
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    (given,), (output,) = signature.inputs.values(), signature.outputs.values()

    subprocess.run(
        [compiler, "serve.c", "-o", "serve", f"-I{folder}/include"]
        + [f"-L{folder}", f"-Wl,-rpath,{folder}"]
        + [f"-l:{library}" for library in libraries],
        check=True,
    )
    names = [one.name.removesuffix(":0") for one in (given, output)]
    answer = subprocess.run(
        ["./serve", tfembed.sysconfig.get_lib(), "served", *names, "ann"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert float(answer.stdout) == pytest.approx(
        float(said.splitlines()[-1]), abs=2e-6
    )


def test_the_c_program_without_tensorflow_answers_as_the_page_in_python(
    tmp_path,
):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    page = "docs/tasks/serve_without_tensorflow.md"
    program = "\n".join(_blocks(page, "python"))
    said = _run(f"{program}\nprint(*rows[1])", page)
    (tmp_path / "rows.c").write_text("".join(_blocks(page, "c")))
    config = tfembed.sysconfig

    subprocess.run(
        [
            compiler,
            "-Wall",
            "-Werror",
            "-pedantic",
            "rows.c",
            "-o",
            "rows",
            f"-I{config.get_include()}",
            *config.get_sealed_link_flags(),
        ],
        check=True,
    )
    asked = ["users", "ann", "a stranger"]
    answer = subprocess.run(
        ["./rows", "ranker/1", *asked],
        check=True,
        capture_output=True,
        text=True,
    )
    refused = subprocess.run(
        ["./rows", "ranker/1", "user", "ann"], capture_output=True, text=True
    )

    ann, stranger = answer.stdout.splitlines()
    assert ann == "ann has 1 2 3 4"
    begin, numbers = stranger.split(" with ")
    assert begin == "a stranger would begin"
    assert np.array_equal(
        np.array(numbers.split(), np.float32),
        np.array(said.split(), np.float32),
    )
    assert refused.returncode == 1
    assert "no table 'user'; its tables are 'users'" in refused.stderr


def _versions(diff: str) -> tuple[str, str]:
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    return before, after


@pytest.mark.parametrize("page", MIGRATIONS)
def test_a_program_that_moved_here_runs(page):
    (diff, *_) = _blocks(f"docs/migrate/{page}", "diff")
    before, after = _versions(diff)

    assert before != after
    said = _run(after, page)
    assert "loss" in said
    if page in RUNS_BEFORE:
        assert "loss" in _run(before, page)
