"""Sealed tables are written from front to back, in little memory.

The kind: what is written for tables of any size holds no whole column.
tests/checkpoint has it for saves, tests/inspection for `--to`.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed.export import sealed_table
from tfembed.export.bundle_index import index_of_bytes
from tfembed.export.initial_rows import InitialRows
from tfembed.export.row_format import RowFormat
from tfembed.export.stock_lookup import fingerprints_of
from tfembed.saved import column
from tfembed.saved.checksum import crc32c
from tfembed.saved.saved_tables import open_saved


def test_rows_and_keys_of_one_window_of_places_are_in_memory(
    tmp_path, monkeypatch
):
    table = tfembed.HashTable(16, name="t", seed=1)
    table.upsert(np.arange(2000) * 977, np.ones([2000, 16]))
    tf.train.Checkpoint(t=table).write(tmp_path / "ckpt")
    saved = open_saved(tmp_path / "ckpt")["t"]
    monkeypatch.setattr(sealed_table, "_WINDOW_BYTES", 6400)
    take, taken = column.Column.take, []

    def noted(self, rows):
        taken.append(len(rows) * (8 if len(self.shape) == 1 else 64))
        return take(self, rows)

    monkeypatch.setattr(column.Column, "take", noted)
    sealed = sealed_table.seal(
        saved,
        tmp_path / "sealed",
        RowFormat("as_trained", "float32", 16),
        fingerprints_of,
        InitialRows("constant", [0], 1, 16, tf.float32),
    )

    assert max(taken) <= 6400
    assert sum(taken) == 2000 * 72 + 8  # And the key of free places.
    written = np.fromfile(tmp_path / "sealed", np.uint8)
    assert len(written) == sealed.layout.num_bytes
    assert sealed.checksums == (crc32c(written),)


@pytest.mark.parametrize("slice_bytes", [64, 300, 1000, 5000])
def test_tensorflow_reads_bytes_by_an_index_of_their_slices(
    tmp_path, slice_bytes
):
    name = "table/sealed\0\xff"
    octets = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    octets.tofile(tmp_path / "part.data-00000-of-00001")
    checksums = [
        crc32c(octets[at : at + slice_bytes])
        for at in range(0, 1000, slice_bytes)
    ]
    index = index_of_bytes(name, 1000, slice_bytes, checksums)
    (tmp_path / "part.index").write_bytes(index)

    reader = tf.train.load_checkpoint(str(tmp_path / "part"))

    assert reader.get_variable_to_shape_map() == {name: [1000]}
    np.testing.assert_array_equal(reader.get_tensor(name), octets)


def test_sealed_bytes_say_their_name_initial_rows_and_checksums(tmp_path):
    table = tfembed.HashTable(2, name="t", seed=1)
    table.upsert([1, 2], np.ones([2, 2]))
    tf.train.Checkpoint(t=table).write(tmp_path / "ckpt")
    missing = InitialRows("uniform", [-1, 0.5], 2**64 - 3, 2, tf.float64)
    sealed = sealed_table.seal(
        open_saved(tmp_path / "ckpt")["t"],
        tmp_path / "sealed",
        RowFormat("float32", "float64", 2),
        fingerprints_of,
        missing,
    )

    written = (tmp_path / "sealed").read_bytes()
    layout = sealed.layout
    dtype, kind, seed, count, size = np.frombuffer(written[128:168], "<i8")
    assert (dtype, kind, seed, count, size) == (2, 2, -3, 2, 1)
    assert np.frombuffer(written[168:184], "<f8").tolist() == [-1, 0.5]
    assert written[184:185] == b"t"
    checks = np.frombuffer(written[layout.at_checks :], "<u4")
    assert checks[0] == crc32c(written[: layout.at_checks])
    assert checks[-4] == crc32c(written[: layout.at_pilots])
    assert checks[-3] == crc32c(written[layout.at_checks : -12])
    assert written.endswith(b"tfsealed")
