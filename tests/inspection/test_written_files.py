"""Whatever a command or a function of ours writes is a file, whole or not at all.

A report replaced `/dev/null`. Tried with each function that writes a file:
reports, exports, pages of simulations, files of projectors; row files have the
same tests in dynamic_embedding/variables/test_variable_file_errors.py.
"""

from __future__ import annotations

import os
import pathlib
import stat

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from inspection import saved_files
from tfembed import errors
from tfembed.inspection import command, html_report, table_exports
from tfembed.monitoring.table_monitor import write_projector
from tfembed.saved.saved_tables import open_saved


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return saved_files.save(folder / "ckpt", t=saved_files.names())


def simulated(path):
    outcome = tfembed.simulate(np.arange(9), {"a": {}}, dim=2)
    outcome.save_html(path)


def projector(path):
    """Writes a projector whose first file is at `path`."""
    table = tfembed.HashTable(2, name=path.stem)
    table.upsert([1], [[1.0, 2.0]])
    write_projector(table, path.parent)


WRITERS = {
    "report": (
        "f.html",
        lambda path, p: html_report.write(open_saved(p), path),
    ),
    "simulation": ("f.html", lambda path, p: simulated(path)),
    "projector": ("f.tsv", lambda path, p: projector(path)),
}


def a_device(path):
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def a_link(path):
    pathlib.Path(path).symlink_to("nowhere")


@pytest.mark.parametrize("make", [a_device, os.mkfifo, os.mkdir])
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_file_is_not_replaced(
    tmp_path, prefix, writer, make, is_link
):
    name, write = WRITERS[writer]
    there = tmp_path / ("there" if is_link else name)
    make(there)
    if is_link:
        (tmp_path / name).symlink_to(there)
    before = there.lstat().st_ino

    with pytest.raises(errors.ArgumentError, match="is a (device|folder)"):
        write(tmp_path / name, prefix)

    assert there.lstat().st_ino == before
    assert (tmp_path / name).is_symlink() == is_link


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_is_followed_and_a_file_keeps_its_permissions(
    tmp_path, prefix, writer, is_there
):
    name, write = WRITERS[writer]
    (tmp_path / "other").mkdir()
    end = tmp_path / "other" / "end"
    if is_there:
        end.touch(0o600)
    (tmp_path / name).symlink_to(end)

    write(tmp_path / name, prefix)

    assert (tmp_path / name).is_symlink()
    assert end.stat().st_size and not end.is_symlink()
    assert not is_there or end.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in end.parent.iterdir()] == ["end"]


@pytest.mark.parametrize("end", [".csv", ".npz", ".parquet", "/"])
@pytest.mark.parametrize(
    "make",
    [a_device, os.mkfifo, os.mkdir, a_link],
)
def test_an_export_replaces_nothing(tmp_path, prefix, end, make):
    path = f"{tmp_path}/f{end}"
    make(path.rstrip("/"))

    with pytest.raises(errors.ArgumentError, match="is there already"):
        table_exports.export(open_saved(prefix)["t"], path)
    assert [str(one) for one in tmp_path.iterdir()] == [path.rstrip("/")]


@pytest.mark.parametrize("option", ["--html", "--to"])
@pytest.mark.parametrize(
    "path", ["x" * 300 + ".csv", "/dev/full/x.csv", "/proc/x.csv", "none/x.csv"]
)
def test_a_path_that_cannot_be_written_is_one_line(
    capsys, prefix, option, path
):
    assert command.main(["inspect", prefix, option, path]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.startswith("tfembed: ")


def test_keys_that_are_no_text_stay_apart(capsys, tmp_path):
    table = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    table.upsert(tf.constant([b"\xff", rb"\xff"]), [[1.0], [2.0]])
    prefix = saved_files.save(tmp_path / "ckpt", t=table)
    saved = open_saved(prefix)["t"]

    table_exports.export(saved, f"{tmp_path}/p/")
    assert command.main(["inspect", str(prefix), "--top", "norm"]) == 0
    out, _ = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        r"'\\xff'",
        r"b'\xff'",
    ]
    with pytest.raises(errors.UnsupportedError, match="not UTF-8.*parquet"):
        table_exports.export(saved, tmp_path / "t.csv")

    labels = (tmp_path / "p" / "metadata.tsv").read_text().splitlines()
    assert sorted(labels) == [r"\\xff", r"\xff"]
    assert not (tmp_path / "t.csv").exists()
