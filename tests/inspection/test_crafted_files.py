"""Damaged and crafted files are refused in one line, or read as they are."""

from __future__ import annotations

import os
import pathlib
import random
import struct
import tracemalloc
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from checkpoint import bundle_files, crafted_files
from inspection import saved_files
from tfembed.inspection import command
from tfembed.saved.saved_tables import open_saved

CheckpointError = tfembed.errors.CheckpointError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of all kinds of tables, some in slices."""
    users = saved_files.users(
        50,
        eviction=tfembed.policies.LeastFrequent(),
        admission=tfembed.policies.CountAdmission(3),
    )
    users.apply_gradients(tf.constant([1, 2], tf.int64), tf.ones([2, 4]))
    strings = tfembed.tables.StringTable(2, name="s")
    strings.upsert(tf.constant([1], tf.int64), tf.constant([["a", "b"]]))
    config = tfembed.TableConfig(10, 4, name="static")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(config), tfembed.Adam(0.1)
    )
    embedding.build()
    prefix = saved_files.save(
        tmp_path_factory.mktemp("saved") / "ckpt",
        users=users,
        names=saved_files.names(),
        strings=strings,
        embedding=embedding,
    )
    bundle = bundle_files.Bundle.load(prefix)
    for name in list(bundle.entries):
        if bundle.entries[name].shape.dim and b"users" in name:
            rows = bundle.entries[name].shape.dim[0].size
            if rows == 50:
                bundle.slice_rows(name, [20, 35, 50])
    bundle.slice_rows(b"model/names/.ATTRIBUTES/keys", [2, 6])
    bundle.write(prefix)
    return prefix, users


def run(capsys, *arguments):
    """The exit status, of a run that was silent or wrote one line of error."""
    status = command.main(["inspect", *map(str, arguments)])
    _, err = capsys.readouterr()
    assert err.count("\n") == (status == 2)
    return status


def test_tables_that_were_cut_into_slices_are_read(saved):
    prefix, users = saved
    tables = open_saved(prefix)

    saved_files.assert_same(tables["users"], saved_files.content_of(users))
    tables.check()


def test_crafted_checkpoints_are_refused_or_read(capsys, tmp_path, saved):
    prefix, _ = saved
    bundle = bundle_files.Bundle.load(prefix)
    crafted = tmp_path / "crafted"
    crafted.mkdir()
    counts = {0: 0, 1: 0, 2: 0}
    for seed in range(40):
        crafted_files.clear_folder(crafted)
        for path in crafted.iterdir():
            path.unlink()
        crafted_files.craft_checkpoint(
            random.Random(seed), bundle, str(crafted / "ckpt")
        )
        for arguments in (
            *(["--verify"], ["--key", "5"], ["--top", "norm"], []),
            ["--html", tmp_path / "r.html"],
        ):
            status = run(capsys, crafted / "ckpt", *arguments)
            counts[status] += 1
    assert counts[2] > 60 and counts[0] > 10


def test_crafted_row_files_are_refused_or_read(capsys, tmp_path):
    variable = tfembed.dynamic_embedding.Variable(
        tf.string, dim=2, name="v", devices=["/CPU:0"]
    )
    variable.upsert(tf.constant(["a", "x" * 300]), [[1.0, 2], [3, 4]])
    variable.save_to_file_system(str(tmp_path))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    crafted = tmp_path / "crafted"
    crafted.mkdir()
    refused = 0
    for seed in range(60):
        for path in list(crafted.iterdir()):
            crafted_files.clear_folder(crafted)
            if path.exists() or path.is_symlink():
                path.rmdir() if path.is_dir() else path.unlink()
        crafted_files.craft_row_files(random.Random(seed), files, crafted)
        refused += run(capsys, crafted, "--verify") == 2
        run(capsys, crafted, "--top", "norm")
    assert refused > 20


def _data_file(prefix: str) -> pathlib.Path:
    path = pathlib.Path(prefix)
    return min(path.parent.glob(f"{path.name}.data-*"))


def _copy(prefix: str, folder: pathlib.Path) -> str:
    path = pathlib.Path(prefix)
    for file in path.parent.glob(f"{path.name}.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return str(folder / path.name)


@pytest.mark.parametrize("table", ["users", "names", "strings", "static"])
def test_a_flipped_bit_of_any_column_is_not_shown(tmp_path, saved, table):
    prefix = _copy(saved[0], tmp_path)
    whole = open_saved(prefix)[table]
    for name, column in whole.columns.items():
        part = column.parts[-1]
        path = pathlib.Path(part.file.path)
        content = path.read_bytes()
        for at in (0, part.size // 2, part.size - 1):
            damaged = bytearray(content)
            damaged[part.offset + at] ^= 4
            path.write_bytes(damaged)
            again = open_saved(prefix)[table]
            with pytest.raises(CheckpointError, match="damaged"):
                list(again.columns[name].stream())
            with pytest.raises(CheckpointError, match="damaged"):
                list(again.chunks())
        path.write_bytes(content)


def test_a_column_of_many_megabytes_is_compared_at_its_end(
    tmp_path, monkeypatch
):
    from tfembed.saved import column

    monkeypatch.setattr(column, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(column, "_BLOCK_BYTES", 400)
    rows = tf.Variable(tf.reshape(tf.range(4000.0), [1000, 4]))
    prefix = saved_files.save(tmp_path / "ckpt", w=rows)
    table = open_saved(prefix)["model/w"]

    chunks = list(table.chunks())
    assert len(chunks) > 10
    np.testing.assert_array_equal(
        np.concatenate([chunk.rows for chunk in chunks]), rows.numpy()
    )
    np.testing.assert_array_equal(table.find([999])[0].row, rows[999])

    part = table.columns["rows"].parts[0]
    with pathlib.Path(part.file.path).open("r+b") as file:
        file.seek(part.offset + part.size - 1)
        file.write(b"\x55")
    with pytest.raises(CheckpointError, match="checksum"):
        list(table.chunks())
    with pytest.raises(CheckpointError, match="checksum"):
        table.find([0])


def test_long_columns_of_strings_are_read_block_by_block(tmp_path, monkeypatch):
    from tfembed.saved import column

    monkeypatch.setattr(column, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(column, "_BLOCK_BYTES", 50)
    monkeypatch.setattr(column, "_STRINGS", 7)
    table = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    keys = [f"{'x' * (i % 40)}{i}" for i in range(200)]
    table.upsert(tf.constant(keys), tf.range(200.0)[:, None])
    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    saved_files.assert_same(saved, saved_files.content_of(table))


def test_a_missing_file_of_data_is_named(tmp_path, saved):
    prefix = _copy(saved[0], tmp_path)
    _data_file(prefix).unlink()

    with pytest.raises(CheckpointError, match="no file.*data-00000-of"):
        open_saved(prefix)


def test_a_fifo_in_the_place_of_a_file_is_refused(tmp_path, saved):
    prefix = _copy(saved[0], tmp_path)
    data = _data_file(prefix)
    data.unlink()
    os.mkfifo(data)

    with pytest.raises(CheckpointError, match="is not a file"):
        open_saved(prefix)


def test_a_shape_of_a_terabyte_takes_no_memory(tmp_path, saved):
    prefix = _copy(saved[0], tmp_path)
    bundle = bundle_files.Bundle.load(prefix)
    for name in (b"keys", b"values"):
        entry = bundle.entries[b"model/strings/.ATTRIBUTES/" + name]
        entry.shape.dim[0].size = 1 << 37
    bundle.write(prefix)

    tracemalloc.start()
    with pytest.raises(CheckpointError, match="cannot have"):
        open_saved(prefix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_table_without_rows_whose_width_is_beyond_numpy_is_refused(tmp_path):
    table = tfembed.HashTable(4, name="t")
    prefix = saved_files.save(tmp_path / "ckpt", t=table)
    bundle = bundle_files.Bundle.load(prefix)
    entry = bundle.entries[b"model/t/.ATTRIBUTES/values"]
    entry.shape.dim[1].size = 1 << 62
    bundle.write(prefix)

    with pytest.raises(CheckpointError, match="its shape is none"):
        open_saved(prefix)


def test_bytes_of_two_tensors_count_once(tmp_path, saved):
    prefix = _copy(saved[0], tmp_path)
    bundle = bundle_files.Bundle.load(prefix)
    big = bundle_files.slice_name(
        b"model/users/.ATTRIBUTES/values", [(0, 20), (0, 4)]
    )
    for i in range(30):
        entry = bundle_files.Entry.FromString(
            bundle.entries[big].SerializeToString()
        )
        bundle.entries[b"model/w%d/.ATTRIBUTES/VARIABLE_VALUE" % i] = entry
    bundle.write(prefix)

    with pytest.raises(CheckpointError, match="overlap those of other"):
        open_saved(prefix).check()


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory):
    """A `.keras` file with one table."""
    layer = tfembed.dynamic_embedding.keras.layers.Embedding(4)
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    layer.params.upsert(np.arange(20), np.ones([20, 4], np.float32))
    path = tmp_path_factory.mktemp("keras") / "m.keras"
    model.save(path)
    return path


def test_damaged_keras_files_are_refused_or_read(capsys, tmp_path, keras_file):
    content = keras_file.read_bytes()
    refused = 0
    for seed in range(80):
        rng = random.Random(seed)
        path = tmp_path / "m.keras"
        path.write_bytes(crafted_files.some_bytes(rng, content))
        refused += run(capsys, path, "--verify") == 2
        run(capsys, path)
    assert refused > 20


def test_verify_compares_the_members_of_an_archive_that_are_no_tables(
    tmp_path, keras_file
):
    with zipfile.ZipFile(keras_file) as archive:
        place = archive.getinfo("model.weights.h5").header_offset + 500
    content = bytearray(keras_file.read_bytes())
    content[place] ^= 1
    (tmp_path / "m.keras").write_bytes(content)

    with pytest.raises(CheckpointError, match="for file 'model.weights.h5'"):
        open_saved(tmp_path / "m.keras").check()


def test_damaged_weights_are_refused_or_read(capsys, tmp_path, keras_file):
    model = keras.models.load_model(keras_file)
    model.save_weights(tmp_path / "m.weights.h5")
    content = (tmp_path / "m.weights.h5").read_bytes()
    for size in (8, 100, len(content) // 2, len(content) - 1):
        path = tmp_path / "cut.weights.h5"
        path.write_bytes(content[:size])
        assert run(capsys, path, "--verify") == 2


def test_a_compressed_archive_is_refused_with_the_way_out(tmp_path, keras_file):
    with (
        zipfile.ZipFile(keras_file) as old,
        zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))

    with pytest.raises(CheckpointError, match="compressed.*Unpack"):
        open_saved(tmp_path / "m.keras")


def test_addresses_that_tfra_wrote_for_strings_are_not_read(tmp_path):
    (tmp_path / "t-keys").write_bytes(struct.pack("<4Q", *range(4)))
    (tmp_path / "t-values").write_bytes(b"\0" * 33)

    with pytest.raises(CheckpointError, match="Give the dtypes"):
        open_saved(tmp_path / "t")
