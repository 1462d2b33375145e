"""Exports hold what the table held."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from inspection import saved_files
from tfembed import warm_start
from tfembed.inspection import table_exports
from tfembed.saved.saved_tables import open_saved


@pytest.fixture
def users(tmp_path):
    """A saved table, and what it held."""
    table = saved_files.users(30, eviction=tfembed.policies.LeastFrequent())
    prefix = saved_files.save(tmp_path / "ckpt", t=table)
    return open_saved(prefix)["t"], saved_files.content_of(table)


@pytest.fixture
def names(tmp_path):
    """A saved table of texts, and what it held."""
    table = saved_files.names()
    prefix = saved_files.save(tmp_path / "ckpt-names", t=table)
    return open_saved(prefix)["t"], saved_files.content_of(table)


def test_an_archive_of_arrays_has_keys_rows_slots_and_counters(users, tmp_path):
    table, content = users
    table_exports.export(table, tmp_path / "t.npz")

    with np.load(tmp_path / "t.npz") as saved:
        arrays = dict(saved)

    assert list(arrays) == ["keys", "rows", "slots/accumulators", "counters"]
    assert len(arrays["keys"]) == 30
    for i, key in enumerate(arrays["keys"].tolist()):
        np.testing.assert_array_equal(arrays["rows"][i], content.rows[key])
        np.testing.assert_array_equal(
            arrays["slots/accumulators"][i], content.slots["accumulators"][key]
        )
    assert arrays["counters"].tolist() == [1] * 30


def test_an_archive_of_text_keys_needs_no_pickles(names, tmp_path):
    table, content = names
    table_exports.export(table, tmp_path / "t.npz")

    with np.load(tmp_path / "t.npz", allow_pickle=False) as saved:
        assert set(saved["keys"].tolist()) == content.rows.keys()


def test_an_empty_table_makes_an_archive_of_empty_arrays(tmp_path):
    table = tfembed.HashTable(3, name="t")
    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]
    table_exports.export(saved, tmp_path / "t.npz")

    with np.load(tmp_path / "t.npz") as arrays:
        assert arrays["rows"].shape == (0, 3)
        assert arrays["keys"].dtype == np.int64


def test_a_csv_reads_back_to_the_last_bit(users, tmp_path):
    table, content = users
    table_exports.export(table, tmp_path / "t.csv")

    with (tmp_path / "t.csv").open(newline="") as file:
        head, *lines = csv.reader(file)

    assert head[:2] + head[5:6] + head[-1:] == [
        *("key", "row_0", "accumulators_0", "counter")
    ]
    assert len(lines) == 30
    for key, *numbers in lines:
        row = np.asarray(numbers[:4], np.float32)
        np.testing.assert_array_equal(row, content.rows[int(key)])


def test_a_parquet_file_has_a_list_a_row(users, names, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for i, (table, content) in enumerate((users, names)):
        table_exports.export(table, tmp_path / f"{i}.parquet")

        read = parquet.read_table(tmp_path / f"{i}.parquet")

        keys = read["keys"].to_pylist()
        rows = np.asarray(read["rows"].to_pylist(), np.float32)
        assert keys and set(keys) == content.rows.keys()
        for key, row in zip(keys, rows, strict=True):
            np.testing.assert_array_equal(row, content.rows[key])


def test_a_parquet_file_reads_back_by_data_and_by_warm_start(
    users, names, tmp_path
):
    pytest.importorskip("pyarrow.parquet")
    for i, (table, content) in enumerate((users, names)):
        path = tmp_path / f"{i}.parquet"
        table_exports.export(table, path)
        dtype = "string" if i else "int64"

        columns = {"keys": dtype, "rows": tfembed.data.Bag("float32")}
        (batch,) = tfembed.data.parquet(path, columns, 1000)
        started = tfembed.dynamic_embedding.Variable(
            dim=table.width, key_dtype=dtype, name=f"started_{i}"
        )
        warm_start(started, path)

        read = dict(zip(batch["keys"].numpy(), batch["rows"].to_list()))
        assert read.keys() == content.rows.keys()
        keys = list(read)
        for rows in (list(read.values()), started.lookup(tf.constant(keys))):
            wanted = [content.rows[key] for key in keys]
            np.testing.assert_array_equal(np.asarray(rows), wanted)


def test_without_pyarrow_parquet_is_refused_with_the_way_out(
    users, tmp_path, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    with pytest.raises(
        tfembed.errors.UnsupportedError,
        match=r"^A '\.parquet' file needs pyarrow, .* pip install pyarrow",
    ):
        table_exports.export(users[0], tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()


def test_a_projector_has_a_label_for_each_tensor(names, tmp_path):
    table, content = names
    table_exports.export(table, f"{tmp_path}/projector/")

    folder = tmp_path / "projector"
    labels = (folder / "metadata.tsv").read_text().splitlines()
    rows = np.loadtxt(folder / "tensors.tsv", delimiter="\t")
    assert labels[0] != ""
    assert "alice" in labels
    alice = rows[labels.index("alice")]
    np.testing.assert_array_equal(alice, content.rows[b"alice"])
    assert len(labels) == len(rows) == 6
    assert "metadata.tsv" in (folder / "projector_config.pbtxt").read_text()


def test_a_limit_takes_the_first_rows(users, tmp_path):
    assert table_exports.export(users[0], tmp_path / "t.csv", limit=7) == 7
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 8


def test_what_is_there_is_not_replaced(users, tmp_path):
    (tmp_path / "t.csv").write_text("mine")

    with pytest.raises(tfembed.errors.ArgumentError, match="there already"):
        table_exports.export(users[0], tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "mine"


def test_an_export_of_a_damaged_file_leaves_nothing(users, tmp_path):
    data = next(tmp_path.glob("ckpt.data-00000*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    table = open_saved(tmp_path / "ckpt")["t"]

    with pytest.raises(tfembed.errors.CheckpointError, match="damaged"):
        table_exports.export(table, tmp_path / "t.csv")
    assert [p for p in tmp_path.iterdir() if "ckpt" not in p.name] == []


def test_rows_of_bfloat16_are_exported_as_float32(tmp_path):
    table = saved_files.names(tf.bfloat16)
    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]
    table_exports.export(saved, tmp_path / "t.npz")

    with np.load(tmp_path / "t.npz") as arrays:
        assert arrays["rows"].dtype == np.float32
