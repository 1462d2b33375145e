"""Versions agree; Bazel versions are told apart; flags fit TensorFlow's.

Kind: a build that depends on what does not matter to it (pip's PATH is another
one each time). Looked for in: PYTHON, the build folder, LD_LIBRARY_PATH.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import os
import pathlib
import re
import stat
import subprocess
import sys

import pytest
import tensorflow as tf

from tfembed.ops import library

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build_tools"


def _load(name: str, monkeypatch: pytest.MonkeyPatch):
    """Imports a module of build_tools, which is no package."""
    monkeypatch.syspath_prepend(str(TOOLS))
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write_bazel(folder: pathlib.Path, version: str) -> None:
    folder.mkdir()
    program = folder / "bazel"
    program.write_text(f"#!/bin/sh\necho bazel {version}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_the_changelog_begins_with_the_version_of_setup_py():
    setup = (ROOT / "setup.py").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r'^VERSION = "(.+)"', setup, re.MULTILINE).group(1)

    assert (
        re.search(r"^## (\S+?),", changelog, re.MULTILINE).group(1) == version
    )


def test_found_tensorflow_is_the_one_that_is_imported(monkeypatch):
    found = _load("find_tensorflow", monkeypatch).find_tensorflow()

    assert found["version"] == tf.__version__
    assert pathlib.Path(found["root"]) == pathlib.Path(tf.__file__).parent


@pytest.mark.parametrize("version", ["2.15.1", "2.22.0-rc1", "3.0.0"])
def test_an_unknown_tensorflow_is_refused_before_anything_is_compiled(
    version, monkeypatch
):
    finder = _load("find_tensorflow", monkeypatch)

    with pytest.raises(LookupError, match=rf"{version}.*2\.16 to 2\.21.*pip"):
        finder.check_supported(version)


def test_a_python_that_is_not_there_is_named_before_anything_is_compiled(
    tmp_path,
):
    result = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": str(tmp_path / "python")},
        capture_output=True,
        text=True,
    )

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert (
        f"error: PYTHON is '{tmp_path}/python', which cannot be run: No such file"
        in result.stderr
    )


def test_a_tensorflow_that_was_cut_off_is_named(monkeypatch, tmp_path):
    finder = _load("find_tensorflow", monkeypatch)
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    (tmp_path / "tensorflow" / "libtensorflow_framework.so.2").touch()
    monkeypatch.setattr(
        finder.importlib.util,
        "find_spec",
        lambda name: importlib.machinery.PathFinder.find_spec(
            name, [str(tmp_path)]
        ),
    )

    with pytest.raises(LookupError, match="framework.* is missing or empty"):
        finder.find_tensorflow()


def test_the_build_and_the_package_support_the_same_versions(monkeypatch):
    finder = _load("find_tensorflow", monkeypatch)

    assert (finder.OLDEST, finder.NEWEST) == (library.OLDEST, library.NEWEST)
    for minor in range(finder.OLDEST[1], finder.NEWEST[1] + 1):
        finder.check_supported(f"2.{minor}.1")


def test_a_build_shows_its_steps_and_what_went_wrong(
    monkeypatch, tmp_path, capsys
):
    progress = _load("progress", monkeypatch)
    program = tmp_path / "bazel"
    program.write_text(
        "#!/bin/sh\necho '[1,203 / 2,000] Compiling cc/one.cc' >&2\n"
        "echo 'one.cc:1: error: no' >&2\nexit 1\n"
    )
    program.chmod(0o755)

    with pytest.raises(subprocess.CalledProcessError):
        progress.run([str(program)], dict(os.environ), tmp_path)

    said = capsys.readouterr()
    assert "tfembed: 1,203 of 2,000 known steps after 0 s" in said.out
    assert said.err == "one.cc:1: error: no\n"


def test_a_build_says_that_a_long_step_goes_on(monkeypatch, tmp_path, capsys):
    progress = _load("progress", monkeypatch)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.05)
    program = tmp_path / "bazel"
    # The step ends when the build has said that it goes on, not after a time.
    program.write_text(
        "#!/bin/sh\necho '[3 / 57] Compiling cc/one.cc' >&2\n"
        "until [ -e said ]; do sleep 0.02; done\n"
    )
    program.chmod(0o755)
    say = progress.say

    def say_and_end(line):
        say(line)
        if line.startswith("3 of 57 known steps, the next goes on"):
            (tmp_path / "said").touch()

    monkeypatch.setattr(progress, "say", say_and_end)
    clock = itertools.count(100, 30).__next__

    progress.run([str(program)], dict(os.environ), tmp_path, clock)

    lines = capsys.readouterr().out.splitlines()
    # A program that starts slowly is waited for, too: "no step, ...".
    at = [line.startswith("tfembed: 3 of 57") for line in lines].index(True)
    assert lines[at : at + 2] == [
        f"tfembed: 3 of 57 known steps after {30 * at + 30} s",
        "tfembed: 3 of 57 known steps, the next goes on after "
        f"{30 * at + 60} s",
    ]


@pytest.mark.skipif(
    not pathlib.Path("/dev/tty").exists(), reason="no terminals here"
)
def test_steps_are_shown_on_the_terminal_where_pip_hides_the_output():
    program = (
        "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "import progress; progress.say('3 of 57 known steps')"
    )
    terminal, its_end = os.openpty()
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TOOLS,
        stdin=its_end,
        capture_output=True,
        start_new_session=True,
    )

    assert result.stdout == b"tfembed: 3 of 57 known steps\n", result.stderr
    os.set_blocking(terminal, False)
    assert b"tfembed: 3 of 57 known steps" in os.read(terminal, 1000)
    os.close(its_end)
    os.close(terminal)


def test_a_busy_machine_is_said_to_take_longer(monkeypatch):
    progress = _load("progress", monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})

    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert progress.minutes() == 3
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 6.0, 6.0))
    assert progress.minutes() == 10


def test_xla_kernels_are_built_where_the_wheel_has_all_headers(monkeypatch):
    found = _load("find_tensorflow", monkeypatch).find_tensorflow()

    assert found["has_xla_headers"] is not tf.__version__.startswith("2.21")


def test_compile_flags_fit_those_of_the_tensorflow_wheel(monkeypatch):
    found = _load("find_tensorflow", monkeypatch).find_tensorflow()
    flags = tf.sysconfig.get_compile_flags()
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(found['cxx11_abi'])}"

    assert {abi, "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64"} < set(flags)


def test_a_bazel_that_is_too_new_is_passed_over(monkeypatch, tmp_path, capsys):
    _write_bazel(tmp_path / "new", "7.4.1")
    _write_bazel(tmp_path / "fitting", "5.4.0")
    bazel = _load("bazel", monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path}/new:{tmp_path}/fitting:/bin")

    assert bazel.find_bazel() == f"{tmp_path}/fitting/bazel"
    assert f"{tmp_path}/new/bazel (version 7.4.1) is passed over" in (
        capsys.readouterr().err
    )


def test_without_a_bazel_one_line_says_what_to_install(monkeypatch, tmp_path):
    bazel = _load("bazel", monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(LookupError, match="apt-get install bazel-bootstrap"):
        bazel.find_bazel()


@pytest.mark.parametrize(
    ("version", "fits"),
    [("4.1.0", False), ("4.2.3", True), ("6.5.0", True), ("7.0.0", False)],
)
def test_bazel_4_2_to_6_are_supported(monkeypatch, version, fits):
    assert _load("bazel", monkeypatch).is_supported(version) is fits


def test_debians_wrapper_is_asked_through_its_package(monkeypatch):
    bazel = _load("bazel", monkeypatch)
    answers = {"/b/bazel": "bazel no_version", "dpkg-query": "4.2.3+ds-9"}
    monkeypatch.setattr(bazel, "_output", lambda command: answers[command[0]])

    assert bazel.bazel_version("/b/bazel") == "4.2.3"


def test_the_running_tensorflow_has_a_constraints_file():
    minor = ".".join(tf.__version__.split(".")[:2])
    pins = (ROOT / "constraints" / f"tf-{minor}.txt").read_text()

    assert f"tensorflow-cpu=={tf.__version__}\n" in pins


# What Rocky 8, Debian 11 and Ubuntu 20.04 have, and TensorFlow's wheels ask for.
NEWEST_SYMBOLS = {
    "GLIBC": (2, 28),
    "GLIBCXX": (3, 4, 25),
    "CXXABI": (1, 3, 11),
    "GCC": (7, 0, 0),
}


@pytest.mark.parametrize(
    "path", sorted(pathlib.Path(library.__file__).parent.glob("*.so")), ids=str
)
def test_a_library_asks_for_symbols_that_older_systems_have(path):
    """Kind: a build that binds to what this machine alone has.

    Looked for in all libraries that a wheel has; `auditwheel` reads the same.
    """
    elffile = pytest.importorskip("elftools.elf.elffile")
    with path.open("rb") as file:
        needed = elffile.ELFFile(file).get_section_by_name(".gnu.version_r")
        names = [
            version.name
            for _, versions in needed.iter_versions()
            for version in versions
        ]
    assert "GLIBC_2.14" in names
    too_new = []
    for name in names:
        system, _, numbers = name.partition("_")
        if numbers[:1].isdigit() and system in NEWEST_SYMBOLS:
            version = tuple(int(number) for number in numbers.split("."))
            if version > NEWEST_SYMBOLS[system]:
                too_new.append(name)

    assert not too_new


def test_a_version_without_wheels_is_refused_before_anything_is_made():
    said = subprocess.run(
        [ROOT / "scripts" / "wheels", "2.15", "2.20"],
        capture_output=True,
        check=False,
        text=True,
    )

    assert (said.returncode, said.stdout) == (2, "")
    assert re.fullmatch(
        r"A version is one of 2\.16 .*; got 2\.15\.\n", said.stderr
    )
    assert not (ROOT / ".venv-wheel-2.15").exists()


class _Workspace:
    """One C++ file that is built as tfembed is."""

    _RULES = ("rules_cc", "rules_java", "rules_proto", "remote_coverage_tools")

    def __init__(self, folder: pathlib.Path, program: str) -> None:
        self._folder = folder / "workspace"
        self._folder.mkdir()
        self._command = [
            program,
            f"--output_base={folder / 'base'}",
            f"--bazelrc={ROOT / '.bazelrc'}",
            "--max_idle_secs=30",
        ]
        (self._folder / "one.cc").write_text("int one() { return 1; }\n")
        (self._folder / "BUILD").write_text(
            'cc_library(name = "one", srcs = ["one.cc"])\n'
        )
        (self._folder / "WORKSPACE").write_text(
            "".join(
                f'local_repository(name = "{name}", '
                f'path = "{ROOT / "third_party" / name}")\n'
                for name in self._RULES
            )
        )

    def run(self, *arguments: str, **environment: str) -> str:
        result = subprocess.run(
            [*self._command, *arguments],
            cwd=self._folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        return result.stderr

    def compiles(self, **environment: str) -> bool:
        said = self.run("build", "//:one", **environment)
        (processes,) = re.findall(r"^INFO: \d+ process(?:es)?: .*", said, re.M)
        return "local" in processes or "sandbox" in processes


@pytest.mark.slow
def test_a_build_from_pips_next_environment_compiles_nothing(
    monkeypatch, tmp_path
):
    try:
        program = _load("bazel", monkeypatch).find_bazel()
    except LookupError as error:
        pytest.skip(str(error))
    workspace = _Workspace(tmp_path, program)
    path = os.environ["PATH"]
    try:
        assert workspace.compiles(PATH=f"/tmp/pip-1/bin:{path}")
        assert not workspace.compiles(
            PATH=f"/tmp/pip-2/bin:{path}",
            PYTHON="/usr/bin/python3",
            LD_LIBRARY_PATH="/tmp/pip-2/lib",
        )
        (tmp_path / "workspace" / "one.cc").write_text("int two();\n")
        assert workspace.compiles(PATH=path)
    finally:
        workspace.run("clean", "--expunge")
