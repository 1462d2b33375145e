"""Small reads of tables in the words of Python, and data frames."""

from __future__ import annotations

import sys

import numpy as np
import pandas
import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed import errors
from tfembed.tables import HashTable, StringTable


def hash_table(**options):
    options = {"name": "users", "initializer": -1.0, **options}
    table = HashTable(2, **options)
    table.upsert([3, 2**62], [[1, 2], [3, 4]])
    return table


def variable():
    table = de.Variable(dim=2, name="users", initializer=-1.0)
    table.upsert([3, 2**62], [[1.0, 2.0], [3.0, 4.0]])
    return table


BOTH = pytest.mark.parametrize("make", [hash_table, variable])


@BOTH
@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        (3, [1, 2]),
        (7, [-1, -1]),
        (np.int32(3), [1, 2]),
        ([3, 7], [[1, 2], [-1, -1]]),
        ((3, 7), [[1, 2], [-1, -1]]),
        (range(2, 4), [[-1, -1], [1, 2]]),
        (np.array([[2**62]]), [[[3, 4]]]),
        (tf.constant([3], tf.int32), [[1, 2]]),
    ],
)
def test_a_subscript_reads_rows_and_inserts_nothing(make, keys, rows):
    table = make()
    np.testing.assert_array_equal(table[keys], rows)
    assert len(table) == 2


def test_a_subscript_works_in_functions():
    table = hash_table()
    read = tf.function(lambda keys: table[keys])
    np.testing.assert_array_equal(read(tf.constant([3])), [[1, 2]])


@BOTH
def test_in_tells_whether_one_key_is_there(make):
    table = make()
    assert 3 in table
    assert np.int64(2**62) in table
    assert tf.constant(7) not in table


def string_keys():
    table = HashTable(1, key_dtype="string", name="users")
    table.upsert(["3", "a"], [[1.0], [2.0]])
    return table


def strings():
    table = StringTable(1, name="users")
    table.upsert([3], [["a"]])
    return table


@pytest.mark.parametrize("make", [hash_table, variable, string_keys, strings])
def test_a_key_of_another_kind_is_not_in_a_table_as_in_a_dict(make):
    table = make()
    is_text = table.key_dtype == tf.string
    others = [1.5, None, 2**70, float("nan"), object(), tf.constant(3.5)]
    others += [3, tf.constant(3)] if is_text else ["a", b"3", tf.constant("3")]
    assert [key for key in others if key in table] == []
    same = ["3", b"3", np.str_("3")] if is_text else [3, 3.0, np.float32(3)]
    assert all(key in table for key in same)


@BOTH
def test_keys_are_counted_and_come_by_iteration(make):
    table = make()
    assert len(table) == 2
    assert sorted(table) == [3, 2**62]


def test_an_empty_table_is_true():
    table = HashTable(2, name="t")
    assert table
    assert len(table) == 0
    assert list(table) == []


def test_string_keys_come_as_text():
    table = HashTable(1, key_dtype="string", name="t")
    table.upsert(["é", b"b"], [[1.0], [2.0]])
    assert sorted(table) == ["b", "é"]
    assert "é" in table
    assert b"b" in table
    np.testing.assert_array_equal(table["b"], [2.0])


def test_keys_that_are_no_text_come_as_bytes():
    table = HashTable(1, key_dtype="string", name="t")
    table.upsert([b"\xff", "a"], [[1.0], [2.0]])
    assert sorted(table) == [b"a", b"\xff"]
    assert sorted(table.to_pandas().index) == [b"a", b"\xff"]


def test_a_table_of_strings_reads_so_too():
    table = StringTable(1, name="t", initializer="?")
    table.upsert([1], [["a"]])
    assert table[1].numpy().tolist() == [b"a"]
    assert 2 not in table
    assert len(table) == 1


@pytest.mark.parametrize(
    ("read", "error", "match"),
    [
        (lambda t: t[1:2], ValueError, "no order.*'users'|'users'.*no order"),
        (lambda t: [1, 2] in t, ValueError, "'users' for one key"),
        (lambda t: t[1.5], TypeError, "'users' must be integers"),
    ],
)
@BOTH
def test_other_reads_say_what_to_do(make, read, error, match):
    with pytest.raises(error, match=match):
        read(make())


@pytest.mark.parametrize("read", [len, list, lambda t: 3 in t])
def test_reads_as_python_values_are_refused_in_functions(read):
    table = hash_table()
    with pytest.raises(errors.UnsupportedError, match="eager"):
        tf.function(lambda: read(table), autograph=False)()


@BOTH
def test_a_data_frame_has_all_rows_by_key(make):
    frame = make().to_pandas().sort_index()
    assert frame.index.name == "key"
    assert frame.index.tolist() == [3, 2**62]
    assert frame.columns.tolist() == [0, 1]
    np.testing.assert_array_equal(frame, [[1, 2], [3, 4]])


@pytest.mark.parametrize("key_dtype", ["int64", "int32", "string"])
@pytest.mark.parametrize("value_dtype", ["float32", "bfloat16"])
def test_a_data_frame_of_one_table_makes_another(key_dtype, value_dtype):
    options = {"key_dtype": key_dtype, "value_dtype": value_dtype}
    table = HashTable(2, name="t", **options)
    keys = ["a", "b"] if key_dtype == "string" else [5, -6]
    table.upsert(keys, [[0.5, -1.5], [2.0, 8.0]])
    other = HashTable(2, name="u", **options)
    other.from_pandas(table.to_pandas())
    np.testing.assert_array_equal(
        tf.cast(other[keys], tf.float32), [[0.5, -1.5], [2.0, 8.0]]
    )
    assert len(other) == 2


def test_slots_are_in_the_frame_where_they_are_asked_for():
    def trained():
        table = HashTable(2, name="t", initializer=0.0)
        table.attach(tfembed.AdagradMomentum(0.5, momentum=0.9))
        return table

    table = trained()
    table.apply_gradients([4], [[1.0, 2.0]])
    frame = table.to_pandas(slots=True)
    assert frame.columns.tolist() == [
        *(0, 1),
        *("accumulators_0", "accumulators_1"),
        *("momenta_0", "momenta_1"),
    ]
    other = trained()
    other.from_pandas(frame)
    for one in (table, other):
        one.apply_gradients([4], [[1.0, 2.0]])
    np.testing.assert_array_equal(other[4], table[4])


def test_a_column_of_keys_stands_for_the_index():
    table = hash_table()
    table.from_pandas(
        pandas.DataFrame({"key": [3, 9], "x": [7, 8], "y": [0.5, 1]})
    )
    np.testing.assert_array_equal(
        table[[3, 9, 2**62]], [[7, 0.5], [8, 1], [3, 4]]
    )


def test_a_missing_number_of_a_frame_is_written_and_counted_as_by_upsert():
    table = hash_table()
    table.from_pandas(pandas.DataFrame([[1.0, np.nan]], index=[9]))
    np.testing.assert_array_equal(table[9], [1, np.nan])
    assert table.stats().nan_rows == 1


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (pandas.DataFrame([[1.0]], index=[3]), "2 columns"),
        (pandas.DataFrame([[1.0, 2.0]] * 2, index=[3, 3]), r"\[3\] more than"),
        (pandas.DataFrame([["a", "b"]], index=[3]), "must be numbers"),
        (pandas.DataFrame([[1.0, None]], index=[3]), "got None, of NoneType"),
        (pandas.DataFrame([[1.0, 2.0]], index=["a"]), "must be integers"),
        ([[1.0, 2.0]], "must be a pandas.DataFrame"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_a_row_changes(
    frame, match
):
    table = hash_table()
    with pytest.raises(errors.TfembedError, match=match):
        table.from_pandas(frame)
    np.testing.assert_array_equal(table[[3, 2**62]], [[1, 2], [3, 4]])
    assert len(table) == 2


def test_a_missing_package_is_named_with_what_to_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.UnsupportedError, match="pip install pandas"):
        hash_table().to_pandas()


LISTS = [[1], [2, 3]]


@pytest.mark.parametrize(
    ("key_dtype", "keys", "text"),
    [
        ("int64", LISTS, "lists that differ in length, .*Join them"),
        ("string", [["a"], ["b", "c"]], "lists that differ in length"),
        ("string", ["a", float("nan")], "must be strings; got nan, of float"),
        ("int64", None, "must be integers of int64; got None, of NoneType"),
        ("int64", np.array([1], np.uint64), "got uint64: cast them"),
        ("int32", [1, 2**40], f"got {2**40}, of int64"),
    ],
)
@pytest.mark.parametrize("call", ["subscript", "upsert", "lookup"])
def test_keys_that_do_not_fit_are_named(key_dtype, keys, text, call):
    table = HashTable(2, key_dtype=key_dtype, name="users")
    calls = {
        "subscript": lambda: table[keys],
        "upsert": lambda: table.upsert(keys, [[1.0, 2.0]]),
        "lookup": lambda: table.lookup(keys),
    }
    with pytest.raises(
        errors.DtypeError, match=f"Keys of table 'users'.*{text}"
    ):
        calls[call]()


@BOTH
def test_contains_asks_for_several_keys(make):
    np.testing.assert_array_equal(make().contains([3, 4]), [True, False])


@BOTH
@pytest.mark.parametrize("columns", [[1, 0], ["1", "0"]])
def test_columns_that_are_numbered_go_by_their_numbers(make, columns):
    table = make()
    table.from_pandas(pandas.DataFrame([[5.0, 6.0]], [3], columns))
    np.testing.assert_array_equal(table[3], [6, 5])


@BOTH
@pytest.mark.parametrize("columns", [["b", "a"], ["x", "x"], [1, 2]])
def test_other_columns_go_by_their_order(make, columns):
    table = make()
    table.from_pandas(pandas.DataFrame([[5.0, 6.0]], [3], columns))
    np.testing.assert_array_equal(table[3], [5, 6])
