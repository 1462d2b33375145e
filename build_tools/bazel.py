"""Runs Bazel on this checkout for the TensorFlow of one interpreter.

  python build_tools/bazel.py test //...

builds against the TensorFlow of that `python`. Each TensorFlow version other
than the reference has an output folder of its own under .bazel/, so that
switching between versions rebuilds nothing. The reference shares Bazel's
default folder with a plain `bazel build`.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import find_tensorflow
import progress

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = "2.20.0"
OLDEST, NEWEST = (4, 2), (6,)
DEBIAN_PACKAGES = (
    "bazel-bootstrap",
    "bazel-platforms",
    "bazel-rules-java",
    "bazel-rules-proto",
    "bazel-skylib",
)
MISSING = (
    "tfembed is built by Bazel 4.2 to 6, and none is on the PATH. Install one:"
    f" apt-get install {' '.join(DEBIAN_PACKAGES)}"
)


def find_bazel() -> str:
    """Returns the first fitting Bazel on the PATH; raises LookupError."""
    for folder in os.get_exec_path():
        path = shutil.which("bazel", path=folder)
        if path is None:
            continue
        version = bazel_version(path)
        if version is not None and is_supported(version):
            return path
        print(
            f"{path} (version {version or 'unknown'}) is passed over: tfembed is"
            " built by Bazel 4.2 to 6.",
            file=sys.stderr,
        )
    raise LookupError(MISSING)


def bazel_version(path: str) -> str | None:
    """Returns for example "4.2.3"; None if the program does not tell."""
    text = _output([path, "--version"])
    if "no_version" in text:  # Debian's build does not know; its package does.
        text = _output(["dpkg-query", "-W", "-f=${Version}", "bazel-bootstrap"])
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    return match.group() if match else None


def is_supported(version: str) -> bool:
    """Says whether this version of Bazel builds tfembed."""
    parts = tuple(int(part) for part in version.split("."))
    return parts >= OLDEST and parts[:1] <= NEWEST


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=60, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout


def output_folder(tensorflow_version: str) -> pathlib.Path | None:
    """Returns where this version's output lies; None means Bazel's default."""
    if tensorflow_version == REFERENCE:
        return None
    return ROOT / ".bazel" / f"tf-{tensorflow_version}"


def bin_folder(tensorflow_version: str) -> pathlib.Path:
    """Returns the folder in which built files are found."""
    folder = output_folder(tensorflow_version)
    return ROOT / "bazel-bin" if folder is None else folder / "bin"


def command_line(
    bazel: str, tensorflow_version: str, arguments: list[str]
) -> list[str]:
    """Returns the command that runs `bazel arguments...` for this version."""
    folder = output_folder(tensorflow_version)
    if folder is None:
        return [bazel, *arguments]
    verb, *rest = arguments
    places = (
        [f"--symlink_prefix={folder}/"] if verb in ("build", "test") else []
    )
    return [bazel, f"--output_base={folder}/base", verb, *places, *rest]


def run(python: str, tensorflow_version: str, arguments: list[str]) -> None:
    """Runs Bazel; raises CalledProcessError if it fails."""
    command = command_line(find_bazel(), tensorflow_version, arguments)
    environment = dict(os.environ, PYTHON=python)
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def build(python: str, tensorflow_version: str, targets: list[str]) -> None:
    """Builds targets and shows how far it is; raises as `run` does."""
    arguments = ["build", *progress.OPTIONS, *targets]
    command = command_line(find_bazel(), tensorflow_version, arguments)
    progress.say(
        f"compiling for TensorFlow {tensorflow_version}; a first build takes"
        f" about {progress.minutes()} minutes on this machine, as busy as it is"
    )
    progress.run(command, dict(os.environ, PYTHON=python), ROOT)


def main() -> int:
    """Runs Bazel with the command line's arguments; --find prints its path."""
    try:
        if sys.argv[1:] == ["--find"]:
            print(find_bazel())
            return 0
        found = find_tensorflow.find_tensorflow()
        run(sys.executable, str(found["version"]), sys.argv[1:])
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
