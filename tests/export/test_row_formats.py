"""Rows of exports as float32, bfloat16 and int8: by the format's page alone."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.export import to_stock
from tfembed.saved.saved_tables import open_saved

_KEYS = np.arange(40) * 977 - 9999


def _export(folder, rows, dtype=tf.float32):
    """Saves a model with one table; the last key of those asked is not there."""
    model = tf.Module()
    model.table = tfembed.HashTable(
        rows.shape[1], name="user", value_dtype=dtype, seed=3
    )
    model.table.upsert(_KEYS[: len(rows)], tf.cast(rows, dtype))
    model.serve = tf.function(
        lambda ids: {"rows": model.table.lookup(ids)[0]},
        input_signature=[tf.TensorSpec([None], tf.int64, "ids")],
    )
    tf.saved_model.save(model, folder, signatures={"serve": model.serve})
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model; its rows, of which some are all alike or large."""
    folder = tmp_path_factory.mktemp("rows") / "ours"
    rows = np.random.default_rng(0).normal(size=[40, 6]).astype(np.float32)
    rows[3:8] *= [[1e4], [1e-3], [1e-7], [0], [1]]
    rows[7] = -0.3
    model = _export(folder, rows)
    return types.SimpleNamespace(folder=folder, rows=rows, model=model)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_lookup_gives_the_rows_that_the_page_describes(
    trained, tmp_path, form
):
    report = to_stock(trained.folder, tmp_path / "stock", rows=form)

    serve = tf.saved_model.load(tmp_path / "stock").signatures["serve"]
    found = serve(ids=tf.constant(_KEYS))["rows"].numpy()
    by_the_page = open_saved(tmp_path / "stock")["user"].find(_KEYS.tolist())
    np.testing.assert_array_equal([one.row for one in by_the_page], found)
    ranges = trained.rows.max(axis=1) - np.minimum(trained.rows.min(axis=1), 0)
    bounds = {
        "float32": 0 * trained.rows,
        "bfloat16": np.abs(trained.rows) / 256,
        "int8": np.broadcast_to(ranges[:, None] / 500 + 1e-7, found.shape),
    }
    apart = np.abs(found - trained.rows)
    (table,) = report.tables
    assert (apart <= bounds[form]).all()
    assert table.largest_error == pytest.approx(apart.max(), abs=1e-12)
    assert table.row_bytes == {"float32": 24, "bfloat16": 12, "int8": 10}[form]


def test_an_id_without_a_row_reads_its_initial_row_in_any_format(
    trained, tmp_path
):
    to_stock(trained.folder, tmp_path / "stock", rows="int8")
    serve = tf.saved_model.load(tmp_path / "stock").signatures["serve"]

    strangers = tf.constant([5, -1], tf.int64)
    np.testing.assert_array_equal(
        serve(ids=strangers)["rows"], trained.model.serve(strangers)["rows"]
    )


def test_a_report_shows_errors_and_most_error_refuses_them(trained, tmp_path):
    report = to_stock(trained.folder, tmp_path / "stock", rows="int8")

    assert "24 -> 10 B" in str(report)
    assert "largest error" in str(report)
    with pytest.raises(errors.ArgumentError, match="'user' as 'int8' are off"):
        to_stock(
            trained.folder, tmp_path / "other", rows="int8", most_error=1e-6
        )
    assert [path.name for path in tmp_path.iterdir()] == ["stock"]


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e6])
def test_a_row_without_a_form_is_refused_by_its_key(tmp_path, number):
    rows = np.ones([3, 2], np.float32)
    rows[1, 1] = number
    _export(tmp_path / "ours", rows)

    with pytest.raises(errors.ArgumentError, match=f"row of key {_KEYS[1]} "):
        to_stock(tmp_path / "ours", tmp_path / "stock", rows="int8")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_formats_that_do_not_fit_are_refused_first(trained, tmp_path):
    _export(tmp_path / "ours", np.ones([1, 2]), tf.int32)

    with pytest.raises(errors.DtypeError, match="'user'.* for rows of int32"):
        to_stock(tmp_path / "ours", tmp_path / "stock", rows="int8")
    with pytest.raises(errors.ArgumentError, match="must be one of .*'int4'"):
        to_stock(trained.folder, tmp_path / "stock", rows="int4")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
