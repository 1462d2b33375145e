"""Settings of all tests: quiet logs, four logical CPUs, hypothesis profiles.

HYPOTHESIS_PROFILE selects the depth: `ci` (the default) or `full`.
`--part=1/2` runs half of the tests, `--part=2/2` the other half.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing.util
import os
import shutil
import tempfile
import zlib
from collections.abc import Generator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# oneDNN brings an allocator that gives no memory back to the system: a process of
# all tests would hold the most that each kind of its tests ever used.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import hypothesis
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import short_memory

LOGICAL_CPUS = 4
_LIBC = ctypes.CDLL(None)


def _split_the_cpu() -> None:
    """Gives MirroredStrategy its devices; possible only before the first op."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
    )


_split_the_cpu()
hypothesis.settings.register_profile(
    "ci", max_examples=50, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile(
    "full", max_examples=2500, deadline=None, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def temporary_folder() -> multiprocessing.util.Finalize:
    """Gives temporary files a folder; returns what removes it at the end.

    A process that is killed leaves its own: AutoGraph's functions, models without
    a folder. Processes of the tests inherit the folder; `tmp_path` is beside it.
    """
    root = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", root)
    folder = tempfile.mkdtemp(prefix="tfembed_tests_", dir=root)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # Behind multiprocessing's own folder, which has the priority -100.
    return multiprocessing.util.Finalize(
        None,
        shutil.rmtree,
        args=(folder,),
        kwargs={"ignore_errors": True},
        exitpriority=-200,
    )


def pytest_configure() -> None:
    """Has temporary files go with the tests."""
    temporary_folder()


@pytest.fixture(scope="module", autouse=True)
def _freed_memory_goes_back() -> Generator[None, None, None]:
    """Gives the memory of a module's tests back to the system.

    Graphs and models are cycles, which Python finds late; malloc would keep in
    pieces what is freed. And TensorFlow keeps each gradient of tf.custom_gradient
    that a graph has, with the graph: a step of Keras has one where it sums over
    replicas. A process of all tests grew to 3 GB.
    """
    gradients = ops.gradient_registry._registry
    known = set(gradients)
    yield
    for name in gradients.keys() - known:
        if name.startswith("CustomGradient-"):
            del gradients[name]
    gc.collect()
    _LIBC.malloc_trim(0)


def pytest_collection_finish() -> None:
    """Spares collections the half a million objects that are there for good."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skips a test that a machine short of memory cannot run, and says so."""
    try:
        return (yield)
    except Exception as error:
        said = short_memory.refusal(error)
        if said is None:
            raise
        pytest.skip(f"The machine is short of memory: {said}")


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (
        part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)
    ):
        raise pytest.UsageError(f"--part must be like 1/2; got {text!r}.")
    return int(part), int(parts)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--part`."""
    parser.addoption("--part", type=_part, help="run part K of N, as K/N")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out what is not in the part: by the test's name, in any process."""
    if config.getoption("--part") is None:
        return
    part, parts = config.getoption("--part")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_kept = zlib.crc32(item.nodeid.encode()) % parts == part - 1
        (kept if is_kept else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
