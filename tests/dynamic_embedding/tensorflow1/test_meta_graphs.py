"""Graphs of TensorFlow 1 that are read back from a checkpoint's meta file."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de

v1 = tf.compat.v1


@pytest.mark.parametrize("shards", [1, 2])
def test_a_graph_is_imported_and_its_rows_are_restored(tmp_path, shards):
    with tf.Graph().as_default(), v1.Session() as session:
        dense = v1.get_variable("dense", initializer=1.0)
        v = de.Variable(
            dim=1,
            devices=["/CPU:0"] * shards,
            name="scope/rows",
            initializer=-1.0,
        )
        tf.identity(v.lookup([0, 1, 5]), name="found")
        tf.identity(dense, name="dense_now")
        session.run([dense.initializer, v.upsert([0, 1], [[0.0], [1.0]])])
        path = v1.train.Saver().save(session, str(tmp_path / "ckpt"))

    names = {name for name, _ in tf.train.list_variables(path)}
    assert names == {
        "dense",
        "scope_rows_mht_1of1-keys",
        "scope_rows_mht_1of1-values",
    }
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(f"{path}.meta").restore(session, path)
        assert session.run("found:0")[:, 0].tolist() == [0, 1, -1]
        assert session.run("dense_now:0") == 1.0
