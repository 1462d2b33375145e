"""The ops that read raw files: strings, chunks, and what they refuse."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tensorflow as tf

from tfembed.ops import files, library, table

STRINGS = files.RowFormat(tf.string, tf.float32, 2)
TEXTS = [b"", b"a", "größer".encode(), b"\0" * 300]


def string_bytes(texts):
    return b"".join(struct.pack("<I", len(t)) + t for t in texts)


def write_strings(folder, texts, rows):
    (folder / "s-keys").write_bytes(string_bytes(texts))
    np.asarray(rows, "<f4").tofile(folder / "s-values")


def check(folder, row_format=STRINGS):
    handle = table.create(2)
    return files.check([handle], tf.constant(str(folder)), ["s"], row_format)


def read_all(paths, sizes, row_format, max_rows):
    offsets, parts = tf.zeros([2], tf.int64), []
    while offsets[0] < sizes[0, 0]:
        *part, offsets = files.read(
            paths[0], offsets, row_format, max_rows=max_rows
        )
        parts.append(part)
    assert (offsets.numpy() == sizes[0].numpy()).all()
    return [tf.concat(x, 0).numpy() for x in zip(*parts, strict=True)]


@pytest.mark.parametrize("max_rows", [1, 3, 100])
def test_string_keys_are_lengths_and_bytes(tmp_path, max_rows):
    rows = np.arange(8.0).reshape(4, 2)
    write_strings(tmp_path, TEXTS, rows)

    keys, values = read_all(*check(tmp_path), STRINGS, max_rows)

    assert keys.tolist() == TEXTS
    np.testing.assert_array_equal(values, rows)


def test_string_values_are_lengths_and_bytes(tmp_path):
    np.asarray([7, 8], "<i8").tofile(tmp_path / "s-keys")
    (tmp_path / "s-values").write_bytes(string_bytes(TEXTS))
    row_format = files.RowFormat(tf.int64, tf.string, 2)

    keys, values = read_all(*check(tmp_path, row_format), row_format, 1)

    assert keys.tolist() == [7, 8]
    assert values.tolist() == [TEXTS[:2], TEXTS[2:]]


def test_memory_in_place_of_strings_is_refused(tmp_path):
    # Two strings as TensorFlow Recommenders Addons writes them: addresses.
    (tmp_path / "s-keys").write_bytes(struct.pack("<6Q", *[0x7F00DEADBEEF] * 6))
    np.zeros([2, 2], "<f4").tofile(tmp_path / "s-values")

    with pytest.raises(tf.errors.DataLossError, match="it holds no strings"):
        check(tmp_path)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_strings_that_were_cut_off_are_refused(tmp_path, cut):
    write_strings(tmp_path, [b"abc", b"def"], np.zeros([2, 2]))
    content = (tmp_path / "s-keys").read_bytes()
    (tmp_path / "s-keys").write_bytes(content[:-cut])

    with pytest.raises(tf.errors.DataLossError, match="s-keys"):
        check(tmp_path)


def test_another_number_of_strings_than_rows_is_refused(tmp_path):
    write_strings(tmp_path, TEXTS, np.zeros([3, 2]))
    with pytest.raises(tf.errors.DataLossError, match="the 4 keys"):
        check(tmp_path)


def test_dtypes_that_no_file_holds_are_refused(tmp_path):
    write_strings(tmp_path, TEXTS, np.zeros([4, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers, bools"):
        check(tmp_path, files.RowFormat(tf.int64, tf.variant, 2))


def test_offsets_outside_of_the_files_are_refused(tmp_path):
    write_strings(tmp_path, TEXTS, np.zeros([4, 2]))
    paths, _ = check(tmp_path)
    for offsets in ([-1, 0], [0, 1000]):
        with pytest.raises(tf.errors.OutOfRangeError, match="`offsets` must"):
            files.read(
                paths[0], tf.constant(offsets, tf.int64), STRINGS, max_rows=1
            )


def test_shapes_that_no_wrapper_sends_are_refused(tmp_path):
    ops, handle = library.load(), table.create(2)
    folder = tf.constant(str(tmp_path))
    numbers = {"key_dtype": tf.int64, "value_dtype": tf.float32, "dim": 2}
    with pytest.raises(tf.errors.InvalidArgumentError, match="folder"):
        ops.tfembed_row_files_check([handle], [folder], ["s"], **numbers)
    with pytest.raises(tf.errors.InvalidArgumentError, match="stems"):
        ops.tfembed_table_save_files(
            [handle], folder, ["a", "b"], buffer_size=1
        )
    for paths, offsets in ((["a"], [0, 0]), (["a", "b"], [0])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            ops.tfembed_row_files_read(
                paths,
                tf.constant(offsets, tf.int64),
                max_rows=1,
                **numbers,
            )


@tf.function
def traced(handle, folder, stems):
    return library.load().tfembed_row_files_check(
        [handle],
        folder,
        stems,
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        dim=2,
    )


def test_wrong_ranks_are_refused_when_a_function_is_traced():
    handle = table.create(2)
    with pytest.raises(ValueError, match="rank 1"):
        traced(handle, tf.constant("a"), tf.constant("b"))
    with pytest.raises(ValueError, match="rank 0"):
        traced(handle, tf.constant(["a"]), tf.constant(["b"]))


def test_a_manifest_that_is_damaged_or_later_is_refused(tmp_path):
    handle = table.create(2)
    folder = tf.constant(str(tmp_path))
    files.save([handle], folder, ["s"], buffer_size=1)
    manifest = tmp_path / ".tfembed.s"
    text = manifest.read_text()
    numbers = files.RowFormat(tf.int64, tf.float32, 2)
    for bad, error, why in (
        (text.replace("dim 2", "dim 3"), tf.errors.DataLossError, "checksum"),
        (text[:-20], tf.errors.DataLossError, "damaged or cut off"),
        ("", tf.errors.DataLossError, "does not begin"),
        (
            text.replace("row_files 1", "row_files 2"),
            tf.errors.InvalidArgumentError,
            "this release reads",
        ),
    ):
        manifest.write_text(bad)
        with pytest.raises(error, match=why):
            files.check([handle], folder, ["s"], numbers)


@pytest.mark.parametrize("dim", [-1, 2**30 + 1, 2**62 - 2, 2**62])
def test_rows_wider_than_any_table_are_refused(dim, tmp_path):
    paths = []
    for name, size in (("k", 8), ("v", 4)):
        path = tmp_path / name
        path.write_bytes(b"\0" * size)
        paths.append(str(path))
    with pytest.raises(tf.errors.InvalidArgumentError, match="dim"):
        files.read(
            tf.constant(paths),
            tf.zeros([2], tf.int64),
            files.RowFormat(tf.int64, tf.float32, dim),
            max_rows=1,
        )
