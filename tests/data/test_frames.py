"""Batches of data frames: what a column becomes, and which frames are refused.

Kind: rows in memory that `fit` does not take, or takes bent. Looked at: pandas' and
Arrow's types, missing values, labels, weights, shuffling, splits.
"""

from __future__ import annotations

import datetime

import keras
import numpy as np
import pandas
import pyarrow
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.data import from_pandas


def frame(**columns):
    return pandas.DataFrame({"user": ["ann", "bob", "cid"], **columns})


def only(given, batch_size=8, **options):
    """The features of the only batch."""
    (batch,) = from_pandas(given, batch_size=batch_size, **options)
    return batch


@pytest.mark.parametrize(
    ("column", "dtype", "values"),
    [
        (["a", "é", "c"], "string", ["a", "é", "c"]),
        (
            pandas.Series(["a", "b", "a"], dtype="string"),
            "string",
            ["a", "b", "a"],
        ),
        (pandas.Categorical(["x", "y", "x"]), "string", ["x", "y", "x"]),
        (pandas.Categorical([7, 9, 7]), "int64", [7, 9, 7]),
        ([b"\xff", b"a", b""], "string", [b"\xff", b"a", b""]),
        (np.array([1, 2, 3], np.uint8), "int64", [1, 2, 3]),
        (pandas.array([2**62, 2, 3], "Int64"), "int64", [2**62, 2, 3]),
        ([True, False, True], "int64", [1, 0, 1]),
        (np.array([0.5, 1, 2], np.float32), "float32", [0.5, 1, 2]),
        ([0.1, 1, 2], "float64", [0.1, 1, 2]),
        (
            pandas.to_datetime(
                [
                    "1970-01-02 00:00:00.0",
                    "2020-01-01 12:00:00.5",
                    "1969-12-31 00:00:00.0",
                ]
            ),
            "float64",
            [86400.0, 1577880000.5, -86400.0],
        ),
        (
            pandas.to_datetime(["1970-01-01 02:00"] * 3).tz_localize(
                "Europe/Paris"
            ),
            "float64",
            [3600.0] * 3,
        ),
        ([datetime.date(1970, 1, 2)] * 3, "float64", [86400.0] * 3),
        (pandas.to_timedelta(["1s", "2s", "1ms"]), "float64", [1, 2, 0.001]),
    ],
)
def test_a_column_becomes_ids_numbers_or_seconds(column, dtype, values):
    found = only(frame(x=column))["x"]
    assert found.dtype == dtype
    expected = tf.constant(values, dtype) if dtype == "string" else values
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "column",
    [
        [[1, 2], [], [3]],
        [np.array([1, 2]), np.array([], int), np.array([3])],
        pandas.Series(
            [[1, 2], [], [3]],
            dtype=pandas.ArrowDtype(pyarrow.large_list(pyarrow.int32())),
        ),
    ],
)
def test_lists_become_ragged_rows(column):
    found = only(frame(x=column), batch_size=3)["x"]
    assert found.to_list() == [[1, 2], [], [3]]
    assert found.dtype == tf.int64


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (["a", None, float("nan")], "?", [b"a", b"?", b"?"]),
        (pandas.array([1, None, 3], "Int64"), -1, [1, -1, 3]),
        (pandas.Categorical(["x", None, "x"]), "none", [b"x", b"none", b"x"]),
        ([1.5, None, 2.5], 0.0, [1.5, 0, 2.5]),
        ([True, None, False], -1, [1, -1, 0]),
        (pandas.to_datetime(["1970-01-02", None, None]), -1.0, [86400, -1, -1]),
        ([None] * 3, "none", [b"none"] * 3),
    ],
)
def test_a_missing_value_is_an_id_of_its_own_or_refused(
    column, value, expected
):
    given = frame(x=column)
    found = only(given, missing={"x": value})["x"].numpy()
    assert found.tolist() == expected
    with pytest.raises(
        errors.DataError, match=r"row [12]: column 'x' has a mis"
    ):
        only(given)


def test_missing_lists_are_empty_and_missing_items_are_replaced():
    given = frame(x=[["a", None], None, ["b"]])
    found = only(given, missing={"x": "?"})["x"]
    assert found.to_list() == [[b"a", b"?"], [], [b"b"]]
    with pytest.raises(errors.DataError, match="row 2: column 'x'"):
        only(given)
    with pytest.raises(errors.DataError, match="item 2: column 'x'"):
        only(given[:1])


def test_lists_may_have_lists():
    given = frame(x=[[[1, 2], []], [], [[3]]])
    assert only(given)["x"].to_list() == [[[1, 2], []], [], [[3]]]


def test_tables_of_arrow_are_read_as_frames_are():
    types = pyarrow.schema(
        {
            "text": pyarrow.string_view(),
            "coded": pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
            "bag": pyarrow.list_(pyarrow.int64(), 2),
        }
    )
    rows = {"text": ["a", None], "coded": ["x", "y"], "bag": [[1, 2], None]}
    table = pyarrow.table(rows, schema=types)
    table = pyarrow.concat_tables([table, table])
    found = only(table, missing={"text": "", "bag": 0})
    assert found["text"].numpy().tolist() == [b"a", b"", b"a", b""]
    assert found["coded"].numpy().tolist() == [b"x", b"y"] * 2
    assert found["bag"].to_list() == [[1, 2], [], [1, 2], []]


def test_frames_of_polars_are_read_as_pandas_are():
    polars = pytest.importorskip("polars")
    given = polars.DataFrame({"user": ["ann", None], "bag": [[1], [2, 3]]})
    found = only(given, missing={"user": "?"})
    assert found["user"].numpy().tolist() == [b"ann", b"?"]
    assert found["bag"].to_list() == [[1], [2, 3]]


def test_labels_and_weights_come_beside_the_features():
    given = frame(clicked=[1, 0, 1], often=[1, 2, 3])
    ((features, labels, weights),) = from_pandas(
        given, batch_size=3, label="clicked", weight="often"
    )
    assert list(features) == ["user"]
    assert labels.numpy().tolist() == [1, 0, 1]
    assert (weights.dtype, weights.numpy().tolist()) == (tf.float32, [1, 2, 3])


def test_each_epoch_has_an_order_of_its_own_of_all_rows():
    given = pandas.DataFrame(
        {"x": range(100), "bag": [[i] for i in range(100)]}
    )
    data, again = (
        from_pandas(given, batch_size=32, shuffle=True, seed=5)
        for _ in range(2)
    )
    epochs = [
        np.concatenate([batch["x"] for batch in one])
        for one in (data, data, again)
    ]
    assert data.cardinality() == 4
    assert [len(batch["x"]) for batch in data] == [32, 32, 32, 4]
    for order in epochs:
        assert sorted(order) == list(range(100))
    assert (epochs[0] != epochs[1]).any()
    assert (epochs[0] != np.arange(100)).any()
    np.testing.assert_array_equal(epochs[0], epochs[2])
    for batch in data:
        np.testing.assert_array_equal(batch["x"], batch["bag"].flat_values)


def test_the_last_rows_are_held_out():
    given = pandas.DataFrame({"x": range(10)})
    train, held_out = from_pandas(
        given, batch_size=4, shuffle=True, validation_split=0.2
    )
    rows = np.concatenate([batch["x"] for batch in train])
    assert sorted(rows) == list(range(8))
    (last,) = held_out
    assert last["x"].numpy().tolist() == [8, 9]


def test_a_model_trains_on_a_frame():
    given = frame(price=[1.0, 2.0, 3.0], stars=[1, 2, 3])
    user = keras.Input((), dtype="string", name="user")
    price = keras.Input((1,), name="price")
    users = tfembed.keras.layers.Embedding(2)
    both = keras.layers.Concatenate()([users(user), price])
    model = keras.Model(
        {"user": user, "price": price}, keras.layers.Dense(1)(both)
    )
    model.compile("sgd", "mse", run_eagerly=True)
    data = from_pandas(given, batch_size=2, label="stars", shuffle=True)
    model.fit(data, verbose=0)
    _, exists = users.rows(["ann", "bob", "cid", "eve"])
    assert exists.numpy().tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("given", "options", "error", "text"),
    [
        (
            frame(x=[1, "a", 2]),
            {},
            "ArgumentError",
            "one type each: .*column x",
        ),
        (frame(x=["a", b"a", 1.5]), {}, "ArgumentError", "column x"),
        (frame(x=[2**70, 1, 2]), {}, "ArgumentError", "one type each"),
        (frame(x=[{"a": 1}] * 3), {}, "DtypeError", "'x' .* got struct"),
        (
            frame(x=np.array([1, 2, 2**63], np.uint64)),
            {},
            "DataError",
            "row 3: column 'x' is 9223372036854775808",
        ),
        (frame()[:0], {}, "ArgumentError", "got 0 rows"),
        (
            pandas.concat([frame(), frame()], axis=1),
            {},
            "ArgumentError",
            r"names that differ.*\['user', 'user'\]",
        ),
        ([[1, 2]], {}, "DtypeError", "got <class 'list'>"),
        (
            frame(),
            {"label": "x"},
            "ArgumentError",
            r"columns of \['user'\]; got 'x'",
        ),
        (frame(), {"missing": {"x": 1}}, "ArgumentError", "got 'x'"),
        (frame(), {"weight": "user"}, "ArgumentError", "beside a `label`"),
        (
            frame(x=[1, 2, 3]),
            {"label": "x", "weight": "user"},
            "ArgumentError",
            "got 'user', beside 'x'",
        ),
        (
            frame(x=[1.0, None, 2]),
            {"label": "x"},
            "DataError",
            "row 2: column 'x' has a missing",
        ),
        (
            frame(x=[1.0, None, 2]),
            {"missing": {"x": "?"}},
            "ArgumentError",
            "value of column 'x', which is double",
        ),
        (frame(), {"validation_split": 1}, "ArgumentError", "a share of"),
        (frame(), {"validation_split": -0.5}, "ArgumentError", "a share of"),
        (frame(), {"validation_split": 0.1}, "ArgumentError", "one of 3"),
        (frame(), {"shuffle": 1000}, "ArgumentError", "True, for all rows"),
        (frame(), {"batch_size": 0}, "ArgumentError", "`batch_size`"),
    ],
)
def test_other_frames_are_refused_with_their_column(
    given, options, error, text
):
    with pytest.raises(getattr(errors, error), match=text):
        from_pandas(given, **{"batch_size": 2, **options})
