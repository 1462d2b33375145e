"""Loading the ops library: once, and with an explanation where it fails."""

from __future__ import annotations

import importlib.util
import os
import types

import pytest
import tensorflow as tf

import fresh_process
from tfembed.errors import LibraryError
from tfembed.ops import library, table


def test_the_library_is_loaded_once():
    assert library.load() is library.load()


def test_loading_the_file_again_is_harmless():
    again = tf.load_op_library(str(library.LIBRARY))
    handle = again.tfembed_table_create(dim=2)
    assert table.size(handle).numpy() == 0


def test_an_op_that_an_older_library_lacks_asks_for_a_build():
    module = library.load()

    with pytest.raises(
        LibraryError, match=r"no op `tfembed_x`.*build it again"
    ):
        _ = module.tfembed_x
    assert not hasattr(module, "other")


def test_a_forked_process_can_look_tables_up():
    handle = table.create(2)
    child = os.fork()
    if child == 0:
        # No threads of TensorFlow live here: what is tried is the library.
        found = library.load() is not None and handle is not None
        os._exit(0 if found else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert table.size(handle).numpy() == 0


def test_another_minor_version_is_refused_and_both_are_named():
    library.check_build("2.20.1", "2.20.0")
    with pytest.raises(LibraryError, match=r"2\.20\.0.*TensorFlow 2\.21\.0"):
        library.check_build("2.21.0", "2.20.0")


@pytest.mark.parametrize("version", ["2.15.1", "2.22.0", "3.0.0", "1.15.5"])
def test_unsupported_versions_of_tensorflow_are_refused(version, monkeypatch):
    monkeypatch.setattr(tf, "__version__", version)
    with pytest.raises(LibraryError, match=rf"2\.16 to 2\.21; {version}"):
        library.check_tensorflow()


def test_a_missing_tensorflow_is_explained(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'tfembed\[cpu\]'"):
        library.check_tensorflow()


FAKES = {
    "missing": "import sys; sys.modules['tensorflow'] = None",
    "too old": (
        "import sys, types; sys.modules['tensorflow'] = fake = "
        "types.ModuleType('tensorflow'); fake.__version__ = '2.15.1'; "
        "fake.__spec__ = types.SimpleNamespace()"
    ),
}


@pytest.mark.parametrize(
    "fake, said",
    [("missing", "none is installed"), ("too old", "2.15.1 is installed")],
)
@pytest.mark.parametrize("name", ["tfembed", "tfembed.dynamic_embedding"])
def test_importing_tfembed_explains_tensorflow_before_anything_fails(
    fake, said, name
):
    result = fresh_process.run(
        f"{FAKES[fake]}\nimport {name}", new_interpreter=True
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("tfembed.errors.LibraryError: ")
    assert said in last


@pytest.fixture
def fresh():
    """Forgets the loaded library for a test, and after it."""
    library._open.cache_clear()
    yield
    library._open.cache_clear()


def test_a_missing_library_is_explained(monkeypatch, tmp_path, fresh):
    missing = tmp_path / "_tfembed_ops.so"
    monkeypatch.setattr(library, "LIBRARY", missing)
    with pytest.raises(ImportError, match=f"{missing} is missing; to build"):
        library.load()


def test_a_checkout_that_is_not_built_is_explained(monkeypatch, fresh):
    def not_there(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(
        library, "importlib", types.SimpleNamespace(
            import_module=not_there, util=importlib.util
        )
    )  # fmt: skip
    with pytest.raises(ImportError, match="has not been built"):
        library.load()
