"""Checkpoints that cannot be restored: a clear error, and nothing changed.

Whatever a restore writes is read and checked before the first write: rows, layouts,
strings beside hash tables, other widths, damage and cuts; files that cannot be read
at that moment are in tests/system_calls, those that lie in test_crafted_files.
"""

from __future__ import annotations

import contextlib
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from saved_models import (
    DIM,
    Model,
    assert_same_content,
    content,
    model_of,
    trained_model,
)
from tfembed import optimizers
from tfembed.tables import HashTable, StringTable

ADAGRAD = optimizers.Adagrad(0.1)


@pytest.fixture
def saved(tmp_path):
    """A model and where it was saved."""
    model = trained_model(300, optimizer=ADAGRAD)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    return model, pathlib.Path(path)


@pytest.fixture
def live():
    """A model in use, with other rows."""
    return trained_model(50, num_shards=3, first_key=7, optimizer=ADAGRAD)


def table_file(path: pathlib.Path) -> pathlib.Path:
    """The data file of the two that holds the table."""
    return max(path.parent.glob("ckpt.data-*"), key=lambda p: p.stat().st_size)


def flip(file: pathlib.Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.write_bytes(bytes(data))


def assert_refused(model: Model, path, error, text: str | None = None) -> None:
    """A restore raises, and the table keeps what it had."""
    before = content(model.table)
    with pytest.raises(error, match=text):
        tf.train.Checkpoint(model=model).read(str(path)).assert_consumed()
    assert_same_content(content(model.table), before)


def test_a_missing_checkpoint_is_named(live, tmp_path):
    assert_refused(
        live, tmp_path / "none", tf.errors.NotFoundError, str(tmp_path / "none")
    )


def test_a_missing_data_file_is_named(saved, live):
    file = table_file(saved[1])
    file.unlink()

    assert_refused(live, saved[1], tf.errors.OpError, f"'user'.*{file.name}")


@pytest.mark.parametrize("name", ["keys", "values", "accumulators"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_flipped_byte_of_a_table_is_found(saved, live, name, place):
    model, path = saved
    table = model.table
    columns = {
        "keys": table.export()[0],
        "values": table.export()[1],
        "accumulators": table.export_slots()[1]["accumulators"],
    }
    column = columns[name].numpy().tobytes()
    start = table_file(path).read_bytes().index(column)
    flip(
        table_file(path),
        start
        + {"first": 0, "middle": len(column) // 2, "last": len(column) - 1}[
            place
        ],
    )

    assert_refused(
        live, path, tf.errors.DataLossError, f"'user'.*{name}.*{path}.*damaged"
    )


def test_a_flipped_byte_of_the_layout_is_found(saved, live):
    file = table_file(saved[1])
    flip(file, file.read_bytes().index(b"dim 3") + 4)

    assert_refused(live, saved[1], tf.errors.DataLossError, "'user'.*layout")


@pytest.mark.parametrize("file", ["index", "data"])
@pytest.mark.parametrize("part", np.linspace(0, 1, 40))
def test_a_flipped_byte_anywhere_is_found_or_does_not_matter(
    saved, live, file, part
):
    files = {
        "index": saved[1].with_suffix(".index"),
        "data": table_file(saved[1]),
    }
    size = files[file].stat().st_size
    flip(files[file], min(int(part * size), size - 1))
    before = content(live.table)

    # The index has some bytes that nobody reads.
    restored = tf.train.Checkpoint(model=live)
    with contextlib.suppress(tf.errors.OpError):
        restored.read(str(saved[1])).assert_consumed()
        before = content(saved[0].table)
    assert_same_content(content(live.table), before)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_data_file_that_was_cut_off_is_found(saved, live, part):
    file = table_file(saved[1])
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])

    assert_refused(live, saved[1], tf.errors.DataLossError, "'user'.*damaged")


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_an_index_that_was_cut_off_is_found(saved, live, part):
    file = saved[1].with_suffix(".index")
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])

    assert_refused(live, saved[1], (tf.errors.OpError, ValueError))


def test_another_width_is_refused_by_both(saved):
    wide = model_of(dim=DIM + 1)
    wide.table.upsert([1], np.ones([1, DIM + 1]))

    assert_refused(
        wide,
        saved[1],
        tf.errors.InvalidArgumentError,
        f"'user'.*width {DIM}.*`dim` is {DIM + 1}",
    )


def test_a_variable_in_the_tables_place_is_refused(live, tmp_path):
    other = tf.Module()
    other.table, other.bias = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
    path = tf.train.Checkpoint(model=other).write(str(tmp_path / "ckpt"))

    assert_refused(
        live, path, tf.errors.NotFoundError, "'user'.*no hash table was saved"
    )


def test_a_table_in_a_variables_place_is_refused(saved):
    other = tf.Module()
    other.table = tf.Variable([1.0, 2.0])

    with pytest.raises(ValueError, match=r"tfembed\.HashTable"):
        tf.train.Checkpoint(model=other).read(str(saved[1]))

    np.testing.assert_array_equal(other.table, [1.0, 2.0])


def test_a_good_checkpoint_replaces_the_content_after_a_bad_one(saved, live):
    model, path = saved
    file = table_file(path)
    position = file.stat().st_size - 1
    flip(file, position)
    assert_refused(live, path, tf.errors.DataLossError)
    flip(file, position)

    tf.train.Checkpoint(model=live).read(str(path)).assert_consumed()

    assert_same_content(content(live.table), content(model.table))


def test_one_damaged_table_leaves_all_tables_as_they_were(tmp_path):
    def models():
        model = tf.Module()
        model.a = trained_model(20, name="a").table
        model.b = trained_model(20, name="b").table
        return model

    path = tf.train.Checkpoint(model=models()).write(str(tmp_path / "ckpt"))
    file = table_file(pathlib.Path(path))
    flip(file, file.stat().st_size - 1)
    model = models()
    model.a.clear()

    with pytest.raises(tf.errors.DataLossError, match="'b'"):
        tf.train.Checkpoint(model=model).read(path)

    assert int(model.a.size()) == 0
    assert int(model.b.size()) == 20


def strings_beside(names, seed, **options):
    """Tables of strings and hash tables, as attributes in this order."""
    model = tf.Module()
    keys = np.arange(seed, seed + 20)
    for name in names:
        if name.startswith("texts"):
            table = StringTable(2, name=name, **options)
            table.upsert(keys, [[f"text {seed}", f"text {k}"] for k in keys])
        else:
            table = HashTable(2, name=name)
            table.upsert(keys, np.full([20, 2], seed, np.float32))
        setattr(model, name, table)
    return model


def all_rows(model, names):
    rows = {}
    for name in names:
        keys, values = (x.numpy() for x in getattr(model, name).export())
        rows[name] = dict(zip(keys.tolist(), values.tolist(), strict=True))
    return rows


ORDERS = pytest.mark.parametrize(
    "names",
    [
        ("texts", "table"),
        ("table", "texts"),
        ("texts", "table", "texts_too", "table_too"),
        ("table", "texts", "table_too", "texts_too"),
    ],
)


def assert_strings_are_refused(names, path, error, **options):
    live = strings_beside(names, 7, **options)
    before = all_rows(live, names)
    with pytest.raises(error, match="texts"):
        tf.train.Checkpoint(model=live).read(path)
    assert all_rows(live, names) == before


@ORDERS
def test_damaged_strings_leave_hash_tables_as_they_were(tmp_path, names):
    path = str(tmp_path / "ckpt")
    tf.train.Checkpoint(model=strings_beside(names, 1)).write(path)
    for file in tmp_path.glob("ckpt.data-*"):
        data = file.read_bytes()
        if (place := data.rfind(b"text 12")) >= 0:
            flip(file, place + 5)

    assert_strings_are_refused(names, path, tf.errors.DataLossError)


@ORDERS
def test_strings_of_another_width_leave_hash_tables_as_they_were(
    tmp_path, names
):
    path = str(tmp_path / "ckpt")
    saved = strings_beside(names, 1)
    saved.texts = StringTable(3, name="texts")
    saved.texts.upsert([1], [["a", "b", "c"]])
    tf.train.Checkpoint(model=saved).write(path)

    assert_strings_are_refused(names, path, tf.errors.InvalidArgumentError)


@ORDERS
def test_strings_for_a_shard_that_is_not_there_leave_hash_tables_as_they_were(
    tmp_path, names
):
    path = str(tmp_path / "ckpt")
    tf.train.Checkpoint(model=strings_beside(names, 1)).write(path)

    assert_strings_are_refused(
        names,
        path,
        tf.errors.InvalidArgumentError,
        devices=["/CPU:0"] * 2,
        # What the table is filled with is dealt to shards that are there.
        partitioner=lambda keys, n: tf.cast(tf.where(keys < 7, n, 0), tf.int32),
    )


@ORDERS
def test_strings_beside_hash_tables_are_restored(tmp_path, names):
    path = str(tmp_path / "ckpt")
    saved, live = strings_beside(names, 1), strings_beside(names, 7)
    tf.train.Checkpoint(model=saved).write(path)

    tf.train.Checkpoint(model=live).read(path).assert_consumed()

    assert all_rows(live, names) == all_rows(saved, names)


def test_a_hash_table_in_the_place_of_strings_is_refused(tmp_path):
    names = ("texts", "table")
    path = str(tmp_path / "ckpt")
    saved = strings_beside(names, 1)
    saved.texts, saved.table = saved.table, saved.texts
    tf.train.Checkpoint(model=saved).write(path)
    live = strings_beside(names, 7)
    before = all_rows(live, names)

    with pytest.raises(tf.errors.OpError, match="texts"):
        tf.train.Checkpoint(model=live).read(path)

    assert all_rows(live, names) == before
