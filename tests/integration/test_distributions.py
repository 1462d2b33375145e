"""The wheel and the sdist work in a fresh environment, outside the checkout."""

from __future__ import annotations

import email
import os
import pathlib
import re
import site
import subprocess
import sys
import tarfile
import zipfile

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).parent / "programs" / "lookup.py"
SAVING = """
import tensorflow as tf, tfembed
users = tfembed.HashTable(2, name="users")
users.upsert([42], [[0.5, 0.25]])
tf.train.Checkpoint(users=users).save("saved/model")
"""
TYPED = """
import tfembed

films = tfembed.TableConfig(vocabulary_size=None, dim=4, name="films")
features = {"film": tfembed.FeatureConfig(table=films)}
embedding = tfembed.TPUEmbedding(features, tfembed.optimizers.Adagrad(0.3))
"""
MINOR = ".".join(tf.__version__.split(".")[:2])

pytestmark = pytest.mark.slow


def _run(*command: object, cwd: pathlib.Path | None = None, **variables: str):
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ
        | {"PYTHON": sys.executable, "PYTHONPATH": ""}
        | variables,
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def _options(folder: pathlib.Path) -> dict[str, str]:
    """Has setuptools build below `folder`: several tests may build at once."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("these tests do not lie in a checkout")
    pytest.importorskip("setuptools", "77", reason="too old to build a wheel")
    options = folder / "setup.cfg"
    options.write_text(
        f"[build]\nbuild_base={folder}/build\n[egg_info]\negg_base={folder}\n"
    )
    return {"DIST_EXTRA_CONFIG": str(options)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """Builds the wheel as `make wheel` does."""
    pytest.importorskip("auditwheel", reason="make setup installs it")
    folder = tmp_path_factory.mktemp("wheel")
    _run(ROOT / "scripts" / "wheel", folder, **_options(folder))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture
def environment(tmp_path) -> pathlib.Path:
    """Returns a new environment's Python, which sees this one's packages.

    An editable tfembed is linked by a .pth file, and those are read of the
    first folder only.
    """
    folder = tmp_path / "environment"
    _run(sys.executable, "-m", "venv", folder)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "tensorflow.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def _metadata(wheel: pathlib.Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_pypi_takes_the_wheels_tag_and_version(wheel):
    digits = MINOR.replace(".", "")

    named = re.fullmatch(
        rf"tfembed-\d+\.\d+\.\d+\.{digits}-py3-none"
        r"-manylinux_2_(\d+)_x86_64\.whl",
        wheel.name,
    )
    assert int(named[1]) <= 28


def test_the_wheel_holds_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert {
        "tfembed/include/tfembed_sealed.h",
        "tfembed/ops/_tfembed_ops.so",
        "tfembed/ops/_tfembed_sealed.so",
    } < set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "tfembed",
        "tfembed_command.py",
    }
    assert not any("libtensorflow" in name for name in names)


def test_the_wheels_extras_ask_for_its_tensorflow(wheel):
    required = _metadata(wheel).get_all("Requires-Dist")

    assert f'tensorflow-cpu~={MINOR}.0; extra == "cpu"' in required
    assert f'tensorflow~={MINOR}.0; extra == "tensorflow"' in required
    assert not any(
        name.startswith("tensorflow") and "extra ==" not in name
        for name in required
    )


def test_links_of_the_wheels_readme_work_outside_of_the_checkout(wheel):
    text = _metadata(wheel).get_payload()
    links = re.findall(r"\]\(([^)]+)\)", text)

    assert "docs/tpu_embedding.md" in str(links)
    assert all(link.startswith(("https://", "#")) for link in links)
    assert "# tfembed" in text


def test_the_wheel_names_its_project_pages(wheel):
    urls = _metadata(wheel).get_all("Project-URL")

    assert {url.split(",")[0] for url in urls} >= {
        "Homepage",
        "Documentation",
        "Source",
        "Issues",
        "Changelog",
    }


def test_an_installed_wheel_looks_up_rows_outside_the_checkout(
    wheel, environment, tmp_path
):
    _run(environment, "-m", "pip", "install", "--quiet", "--no-deps", wheel)

    said = _run(environment, "-I", PROGRAM, cwd=tmp_path).stdout

    assert str(environment.parents[1] / "lib") in said
    _run(environment, "-I", "-c", SAVING, cwd=tmp_path)
    command = environment.parent / "tfembed"
    shown = _run(
        *(command, "inspect", "saved", "--table", "users", "--key", "42"),
        cwd=tmp_path,
    ).stdout
    assert "users: key 42" in shown
    assert "0.5  0.25" in shown
    said = _run(command, "--version", cwd=tmp_path).stdout
    assert re.match(rf"tfembed [\d.]+, for TensorFlow {MINOR}\.", said)
    for program in (ROOT / "examples" / "models").glob("*.py"):
        _run(command, "example", program.stem, "--to", "a.py", cwd=tmp_path)
        assert (tmp_path / "a.py").read_text() == program.read_text()
        (tmp_path / "a.py").unlink()


def test_a_type_checker_reads_the_installed_wheel(wheel, environment, tmp_path):
    pytest.importorskip("mypy", reason="make setup installs it")
    _run(environment, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    (tmp_path / "right.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(TYPED.replace("dim=4", "dimension=4"))
    said = subprocess.run(
        (
            *(sys.executable, "-m", "mypy", "--no-incremental", "--strict"),
            *(f"--python-executable={environment}", "right.py", "wrong.py"),
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout

    assert 'wrong.py:4: error: Unexpected keyword argument "dimension"' in said
    assert "right.py" not in said


def test_an_sdist_builds_and_looks_up_rows(environment, tmp_path):
    """Compiles nothing where the checkout's build filled its disk cache."""
    pytest.importorskip("build", reason="make setup installs it")
    options = _options(tmp_path)
    _run(
        *(sys.executable, "-m", "build", "--sdist", "--no-isolation"),
        *("--outdir", tmp_path / "dist", ROOT),
        **options,
    )
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    # setuptools adds some files of tests, without what they import.
    assert not (source / "tests").exists()
    own = ROOT / "user.bazelrc"
    (source / "user.bazelrc").write_text(
        own.read_text()
        if own.exists()
        else f"build --disk_cache={ROOT}/.bazel/disk_cache\n"
    )

    # By this environment's setuptools; that of a new one may be too old.
    _run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
        *("--no-build-isolation", "--wheel-dir", tmp_path / "dist", source),
    )
    (built,) = (tmp_path / "dist").glob("*.whl")
    _run(environment, "-m", "pip", "install", "--quiet", "--no-deps", built)
    said = _run(environment, "-I", PROGRAM, cwd=tmp_path).stdout

    assert str(environment.parents[1] / "lib") in said
    assert re.fullmatch(r"tfembed-\d+\.\d+\.\d+\.tar\.gz", sdist.name)
