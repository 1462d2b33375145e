"""The C library answers as stock lookups and the reader in NumPy do.

Kind: one format, three readers. tests/inspection/test_sealed_tables.py holds
the reader in NumPy, cc/core/sealed/sealed_table_test.cc damage byte by byte.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.export import open_sealed
from tfembed.export.initial_rows import InitialRows
from tfembed.export.row_format import RowFormat
from tfembed.export.sealed_table import seal
from tfembed.export.stock_lookup import StockTable, fingerprints_of
from tfembed.saved.saved_tables import open_saved

_COUNT = 300
_KEYS = np.random.default_rng(0).integers(-(2**62), 2**62, _COUNT)
_ASKED = np.concatenate([_KEYS[:90], np.arange(-5, 5)])
_TEXTS = [b"w" * (i % 90) + b"%d\0" % i for i in range(_COUNT)]
_TEXTS_ASKED = [*_TEXTS[:90], b"", b"\0", b"stranger", "é".encode()]
_UNIFORM = ("uniform", [-1.0, 0.5])
_NORMAL = ("normal", [0.5, 2.0])
_TRUNCATED = ("truncated_normal", [0.0, 0.1])
_CONSTANT = ("constant", [1.0])
_VECTOR = ("vector", [1.0, 2.0, 0.3, 4.0, 5.0])


@dataclasses.dataclass(frozen=True)
class _Model:
    """Tables that were sealed into one folder, by their names."""

    folder: pathlib.Path
    stock: dict[str, StockTable]
    sealed: dict[str, tf.Variable]

    def lookup(self, name, keys):
        """What the served graph answers, bfloat16 as float32."""
        table = self.stock[name]
        given = tf.constant(keys, table.key_dtype)
        rows, exists = table.lookup(self.sealed[name].handle, given)
        if rows.dtype == tf.bfloat16:
            rows = tf.cast(rows, tf.float32)
        return rows.numpy(), exists.numpy()


def _saved(folder, dtypes, dim=5, count=_COUNT):
    """Tables in a checkpoint, one for each name and pair of dtypes."""
    drawn = np.random.default_rng(1).normal(size=[count, dim]) * 9
    tables = {}
    for name, (keys, values) in dtypes.items():
        table = tfembed.HashTable(
            dim, key_dtype=keys, value_dtype=values, name=name
        )
        given = {"string": _TEXTS, "int32": range(count)}.get(keys, _KEYS)
        if not name.startswith("empty"):
            rows = drawn > 0 if values == "bool" else drawn
            rows = tf.cast(tf.constant(rows), values)
            table.upsert(tf.constant(given, keys), rows)
        tables[name] = table
    prefix = tf.train.Checkpoint(**tables).write(folder / "ckpt")
    return open_saved(prefix)


def _sealed(folder, saved, initial, form="as_trained"):
    """Seals tables as `to_stock` does, which would trace a graph too."""
    (folder / "variables").mkdir(parents=True)
    stock, sealed = {}, {}
    for number, (name, table) in enumerate(saved.items()):
        kind, arguments = initial[name]
        dtype = tf.as_dtype(table.dtype)
        missing = InitialRows(kind, arguments, 2**63 + 7, table.width, dtype)
        file = f"variables.data-{number:05}-of-{len(saved):05}"
        path = folder / "variables" / file
        row_format = RowFormat(form, table.dtype, table.width)
        made = seal(table, path, row_format, fingerprints_of, missing)
        stock[name] = StockTable(
            name=name,
            tensor="",
            key_dtype=tf.as_dtype(table.key_dtype),
            value_dtype=dtype,
            layout=made.layout,
            missing=missing,
        )
        sealed[name] = tf.Variable(np.fromfile(path, np.uint8))
    return _Model(folder, stock, sealed)


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    """Tables of floats in a checkpoint, and their initial rows."""
    initial = {
        "float32": _UNIFORM,
        "float16": _NORMAL,
        "bfloat16": _TRUNCATED,
        "float64": _NORMAL,
        "empty": _TRUNCATED,
    }
    dtypes = {
        name: ("int64", "float32" if name == "empty" else name)
        for name in initial
    }
    return _saved(tmp_path_factory.mktemp("floats"), dtypes), initial


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Tables of other dtypes of keys and rows, sealed."""
    folder = tmp_path_factory.mktemp("others")
    dtypes = {
        "int8": ("int64", "int8"),
        "int32": ("int64", "int32"),
        "int64": ("int64", "int64"),
        "small": ("int32", "float32"),
        "words": ("string", "float32"),
        "flags": ("string", "bool"),
        "empty words": ("string", "float16"),
    }
    initial = dict.fromkeys(dtypes, _CONSTANT)
    initial |= {"small": _VECTOR, "words": _TRUNCATED, "empty words": _UNIFORM}
    return _sealed(folder / "model", _saved(folder, dtypes), initial)


def _asked(model, name):
    by_dtype = {tf.string: _TEXTS_ASKED, tf.int32: range(-5, 400, 7)}
    return by_dtype.get(model.stock[name].key_dtype, _ASKED)


def _check_all(model):
    with open_sealed(model.folder) as opened:
        assert set(opened) == set(model.stock)
        for name in model.stock:
            keys = _asked(model, name)
            rows, exists = opened[name].find(keys)
            expected, are_there = model.lookup(name, keys)
            assert rows.dtype == expected.dtype
            assert rows.tobytes() == expected.tobytes(), name
            np.testing.assert_array_equal(exists, are_there, name)
            assert not exists.all()
            assert exists.any() is not np.bool_(name.startswith("empty"))


def test_rows_and_initial_rows_equal_those_of_stock_lookups(model):
    _check_all(model)


@pytest.mark.parametrize("form", ["as_trained", "float32", "bfloat16", "int8"])
def test_rows_of_all_forms_equal_those_of_both_other_readers(
    floats, tmp_path, form
):
    saved, initial = floats
    model = _sealed(tmp_path, saved, initial, form)

    _check_all(model)

    with open_sealed(tmp_path) as opened:
        for name, table in opened.items():
            source = saved[name]
            if form == "as_trained" and source.num_rows:
                # The reader in NumPy of the source; all keys.
                (chunk,) = source.chunks()
                rows, exists = table.find(chunk.keys)
                assert exists.all()
                np.testing.assert_array_equal(rows, chunk.rows, name)


def test_rows_with_nan_are_read_as_they_are(tmp_path):
    table = tfembed.HashTable(3, name="t")
    given = np.array([[np.nan, np.inf, -0.0], [1, 2, 3]], np.float32)
    table.upsert([1, 2], given)
    saved = open_saved(tf.train.Checkpoint(t=table).write(tmp_path / "ckpt"))
    _sealed(tmp_path / "model", saved, {"t": _CONSTANT}, "bfloat16")

    with open_sealed(tmp_path / "model") as opened:
        rows, _ = opened["t"].find([[1], [2]])

    assert rows.shape == (2, 1, 3)
    np.testing.assert_array_equal(rows[:, 0], given)
    assert np.signbit(rows[0, 0, 2])


def test_tables_of_one_name_are_told_apart_by_their_places(tmp_path):
    table = tfembed.HashTable(3, name="t")
    table.upsert([1], tf.ones([1, 3]))
    saved = open_saved(tf.train.Checkpoint(t=table).write(tmp_path / "ckpt"))
    _sealed(tmp_path / "model", saved, {"t": _CONSTANT})
    (data,) = (tmp_path / "model" / "variables").iterdir()
    for number in range(2):
        shutil.copy(
            data, data.with_name(f"variables.data-{number:05}-of-00002")
        )
    data.unlink()

    with open_sealed(tmp_path / "model") as opened:
        with pytest.raises(
            errors.MissingTableError, match="2 tables.*`tables`"
        ):
            opened["t"]
        rows, _ = opened.tables[1].find([1])

    np.testing.assert_array_equal(rows, [[1, 1, 1]])


def test_threads_find_in_one_model_at_once(model):
    with open_sealed(model.folder) as opened:
        expected = {
            name: opened[name].find(_asked(model, name)) for name in opened
        }

        def find(name):
            return [opened[name].find(_asked(model, name)) for _ in range(9)]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            names = [*opened] * 3
            for name, found in zip(names, pool.map(find, names), strict=True):
                for rows, exists in found:
                    assert rows.tobytes() == expected[name][0].tobytes()
                    assert exists.tobytes() == expected[name][1].tobytes()


_SERVE = """
    import ctypes, pathlib, sys

    class Nothing:
        def find_spec(self, name, *others):
            if name.split(".")[0] in ("tensorflow", "tfembed", "numpy"):
                raise ImportError(name)

    sys.meta_path.insert(0, Nothing())
    sealed = ctypes.CDLL(sys.argv[1])

    def run(name, *arguments):
        assert not getattr(sealed, f"tfembed_sealed_{name}")(*arguments)

    def memory():
        text = pathlib.Path("/proc/self/smaps_rollup").read_text()
        lines = [line.split() for line in text.splitlines()[1:]]
        return {line[0]: int(line[1]) >> 10 for line in lines}

    model, table = ctypes.c_void_p(), ctypes.c_void_p()
    before = memory()
    run("open", sys.argv[2].encode(), ctypes.byref(model))
    run("get", model, b"t", ctypes.byref(table))
    opened = memory()
    n, dim = 1024, 768
    rows = (ctypes.c_float * (n * dim))()
    for first in range(0, 1 << 13, n):
        keys = (ctypes.c_int64 * n)(*range(first, first + n))
        run("find", table, keys, ctypes.c_int64(n), rows, None)
        assert rows[0] == rows[n * dim - 1] == 1.0
    found = memory()
    own = found["Anonymous:"] - before["Anonymous:"]
    print(opened["Rss:"] - before["Rss:"], found["Rss:"] - before["Rss:"], own)
"""


def test_a_process_opens_a_head_and_has_no_rows_of_its_own(tmp_path):
    table = tfembed.HashTable(768, name="t")
    ids = tf.range(1 << 13, dtype=tf.int64)
    table.upsert(ids, tf.ones([1 << 13, 768]))
    saved = open_saved(tf.train.Checkpoint(t=table).write(tmp_path / "ckpt"))
    _sealed(tmp_path / "model", saved, {"t": _CONSTANT})

    said = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            textwrap.dedent(_SERVE),
            tfembed.sysconfig.get_sealed_lib(),
            str(tmp_path / "model"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )

    opened, found, own = map(int, said.stdout.split())  # MB; the table has 24.
    assert opened < 12
    assert found > 20
    assert own < 12


def test_damage_is_found_by_open_or_by_check(model, tmp_path):
    copy = pathlib.Path(shutil.copytree(model.folder, tmp_path / "copy"))
    files = sorted((copy / "variables").glob("variables.data-*"))
    for file in (files[0], files[4]):
        whole = file.read_bytes()
        for at in [0, 9, 130, 200, len(whole) // 2, len(whole) - 3]:
            flipped = bytes([whole[at] ^ 64])
            file.write_bytes(whole[:at] + flipped + whole[at + 1 :])
            with (
                pytest.raises(errors.CheckpointError, match="damaged.* Copy"),
                open_sealed(copy) as opened,
            ):
                opened.check()
        for cut in (whole[:-1], whole[:200], whole[64:]):
            file.write_bytes(cut)
            with pytest.raises(errors.CheckpointError, match=file.name):
                open_sealed(copy)
        file.write_bytes(whole)
    with open_sealed(copy) as opened:
        opened.check()
    files[1].unlink()
    with pytest.raises(
        errors.CheckpointError, match="of-00007' cannot be read"
    ):
        open_sealed(copy)


def test_wrong_calls_say_what_is_allowed(model, tmp_path):
    (tmp_path / "ours" / "variables").mkdir(parents=True)
    with pytest.raises(errors.CheckpointError, match="no SavedModel.*export"):
        open_sealed(tmp_path)
    with pytest.raises(
        errors.CheckpointError, match="no sealed table. Convert"
    ):
        open_sealed(tmp_path / "ours")
    with open_sealed(model.folder) as opened:
        table = opened["words"]
        with pytest.raises(KeyError, match="no table 'wrds'.*'words'"):
            opened["wrds"]
        for name, keys in (("words", [1]), ("int8", [1.5]), ("int8", ["a"])):
            with pytest.raises(errors.DtypeError, match=f"table '{name}'"):
                opened[name].find(keys)
        beyond = np.array([2**63], np.uint64)
        with pytest.raises(errors.ArgumentError, match="the largest int64"):
            opened["int8"].find(beyond)
        rows, exists = table.find([])
        assert (rows.shape, exists.shape) == ((0, 5), (0,))
    with pytest.raises(errors.ArgumentError, match="closed. Open it again"):
        table.find(["a"])
    assert table.key_dtype == "string"
