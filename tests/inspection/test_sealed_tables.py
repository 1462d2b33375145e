"""Sealed tables by the reader of their page: all of them, whole or damaged.

The kind: bytes that are wrong are refused in words, or the file's checksums
find them. test_crafted_files.py has it for checkpoints of hash tables.
"""

from __future__ import annotations

import pathlib
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.__main__ import main
from tfembed.export import perfect_hash, to_stock
from tfembed.export.initial_rows import InitialRows
from tfembed.export.row_format import RowFormat
from tfembed.export.sealed_table import seal
from tfembed.export.stock_lookup import fingerprints_of
from tfembed.inspection import difference
from tfembed.saved.column import Column, Encoding, Part
from tfembed.saved.file_bytes import FileBytes
from tfembed.saved.formats.sealed_table import sealed_table
from tfembed.saved.saved_tables import open_saved

_ROWS = np.random.default_rng(0).normal(size=[300, 3]).astype(np.float32)
_TEXTS = [b"x" * (i % 30) + b"%d" % i for i in range(300)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A table of integers and one of strings, in a model and in a SavedModel."""
    folder = tmp_path_factory.mktemp("sealed")
    model = tf.Module()
    model.ids = tfembed.HashTable(3, name="user ids", seed=1)
    model.ids.upsert(np.arange(300) * 77 - 9999, _ROWS)
    model.words = tfembed.HashTable(3, key_dtype=tf.string, name="words")
    model.words.upsert(tf.constant(_TEXTS), _ROWS)
    model.serve = tf.function(
        lambda ids: (
            model.ids.lookup(ids)[0]
            + model.words.lookup(tf.strings.as_string(ids))[0]
        ),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(model, folder / "ours")
    to_stock(folder / "ours", folder / "stock")
    return types.SimpleNamespace(
        model=model, ours=folder / "ours", stock=folder / "stock"
    )


def _sealed(table, path, form="as_trained"):
    """Returns a table of a file of sealed bytes, and what reads it."""
    row_format = RowFormat(form, table.dtype, table.width)
    missing = InitialRows("constant", [0], 1, table.width, tf.float32)
    seal(table, path, row_format, fingerprints_of, missing)
    return _opened(path)


def _opened(path):
    file = FileBytes(path)
    size = file.size
    part = Part(file, 0, size, None, 0, size, Encoding.NUMBERS)
    return sealed_table("t", "t", Column("t", "uint8", (size,), [part]))


@pytest.mark.parametrize("form", ["as_trained", "bfloat16"])
@pytest.mark.parametrize("name", ["user ids", "words"])
def test_keys_and_rows_of_many_regions_are_those_of_the_source(
    saved, tmp_path, monkeypatch, name, form
):
    monkeypatch.setattr(perfect_hash, "_KEYS_A_REGION", 20)
    source = open_saved(saved.ours)[name]

    table = _sealed(source, tmp_path / "t", form)
    found = difference.compare(source, table)

    assert table.num_rows == found.kept == 300
    assert found.gone == found.come == 0
    largest = found.most_moved[0][0] if found.most_moved else 0.0
    assert largest <= (0.02 if form == "bfloat16" else 0.0)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_table_of_few_rows_has_no_others(tmp_path, count):
    model = tf.Module()
    model.few = tfembed.HashTable(2, name="few")
    model.few.upsert(np.arange(count), np.ones([count, 2]))
    tf.train.Checkpoint(model=model).write(tmp_path / "ckpt")
    source = open_saved(tmp_path / "ckpt")["few"]

    chunks = list(_sealed(source, tmp_path / "t").chunks())

    keys = [key for chunk in chunks for key in chunk.keys.tolist()]
    assert sorted(keys) == list(range(count))


def test_the_command_shows_tables_rows_and_differences(saved, capsys):
    stock = str(saved.stock)
    asked = ["--key", "-9999", "--key", _TEXTS[29].decode()]
    statuses = [
        main(["inspect", stock]),
        main(["inspect", stock, *asked]),
        main(["inspect", stock, "--key", "stranger"]),
        main(["inspect", stock, "--verify"]),
        main(["inspect", "--diff", str(saved.ours), stock]),
    ]

    assert statuses == [0, 0, 1, 0, 0]
    out, _ = capsys.readouterr()
    assert "user ids   300   int64      3  float32" in out
    assert f"row    {_ROWS[0, 0]:.6g}" in out
    assert f"row    {_ROWS[29, 0]:.6g}" in out
    assert "all checksums are right" in out
    assert out.count("unchanged    300") == 2


def test_strings_of_which_a_file_has_hashes_alone_go_nowhere_else(
    saved, tmp_path
):
    with pytest.raises(errors.UnsupportedError, match="as hashes alone"):
        tfembed.warm_start(saved.model.words, str(saved.stock), name="words")

    source = open_saved(saved.ours)["words"]
    one, two = (_sealed(source, tmp_path / name) for name in "ab")
    with pytest.raises(errors.DtypeError, match="by a secret of its own"):
        difference.compare(one, two)


def test_sealed_bytes_with_any_byte_flipped_or_cut_are_read_or_refused(
    saved, tmp_path
):
    source = open_saved(saved.ours)["user ids"]
    path = tmp_path / "t"
    _sealed(source, path, "int8")
    whole = path.read_bytes()
    drawn = np.random.default_rng(1)
    places = {*range(168), *drawn.integers(128, len(whole), 150).tolist()}
    damaged = [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        for at in sorted(places)
    ]
    damaged += [whole[:size] for size in (0, 8, 127, 128, len(whole) - 1)]
    refused = 0

    for text in damaged:
        path.write_bytes(text)
        try:
            table = _opened(path)
            sum(len(chunk) for chunk in table.chunks())
            table.find([5])
        except errors.CheckpointError as error:
            assert "Sealed table 't' is damaged" in str(error)
            refused += 1
    # The secret and the dtype's other bits are part of no check here.
    assert refused > 100


def test_damage_of_a_file_is_found_before_a_row_is_shown(saved, tmp_path):
    folder = shutil.copytree(saved.stock / "variables", tmp_path / "variables")
    prefix = folder / "variables"
    for table in open_saved(prefix).values():
        (part,) = table.columns["rows"].parts
        data = pathlib.Path(part.file.path)
        whole = data.read_bytes()
        ends = part.offset, part.offset + part.size - 1
        for at in np.linspace(*ends, 20, dtype=int).tolist():
            data.write_bytes(
                whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
            )
            with pytest.raises(errors.CheckpointError):
                next(iter(open_saved(prefix)[table.name].chunks()))
        data.write_bytes(whole)
