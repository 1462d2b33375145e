"""Temporary files of the tests and of their processes go when the tests end."""

from __future__ import annotations

import os
import pathlib
import tempfile

import fresh_process

CONFTEST = pathlib.Path(__file__).with_name("conftest.py")


def test_processes_of_tests_have_the_same_temporary_folder():
    printed = fresh_process.output_of(
        "import tempfile; print(tempfile.gettempdir())"
    )

    assert printed.strip() == tempfile.gettempdir() == os.environ["TMPDIR"]
    assert pathlib.Path(printed.strip()).name.startswith("tfembed_tests_")


def test_what_a_killed_process_left_goes_with_the_folder(
    request, monkeypatch, tmp_path
):
    (plugin,) = (
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if getattr(plugin, "__file__", None) == str(CONFTEST)
    )
    monkeypatch.setenv("TMPDIR", os.environ["TMPDIR"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove = plugin.temporary_folder()
    left = pathlib.Path(tempfile.mkdtemp(), "__autograph_generated_file.py")
    left.touch()
    assert tmp_path in left.parents
    remove()

    assert not left.exists()
    assert list(tmp_path.iterdir()) == []
