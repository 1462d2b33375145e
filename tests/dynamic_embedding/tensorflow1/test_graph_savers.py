"""Savers and checkpoints in graphs of TensorFlow 1."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import graph_and_session, variable
from tfembed import errors, policies, tables

v1 = tf.compat.v1


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
def test_row_94_a_saver_saves_variables_and_tables(tmp_path, before, after):
    with graph_and_session() as session:
        v0 = v1.get_variable("v0", initializer=10.0)
        v = variable(before)
        session.run(v0.initializer)
        session.run(v.upsert([0, 1, 2], [[0.0], [1.0], [2.0]]))
        path = v1.train.Saver().save(session, str(tmp_path / "ckpt"))

    with graph_and_session() as session:
        v0 = v1.get_variable("v0", initializer=20.0)
        v = variable(after)
        session.run(v0.initializer)
        session.run(v.upsert([0, 1, 7], [[12.0], [24.0], [7.0]]))
        v1.train.Saver().restore(session, path)
        assert session.run(v0) == 10.0
        found = session.run(v.lookup([5, 0, 1, 2, 6]))
        assert found[:, 0].tolist() == [-1, 0, 1, 2, -1]
        assert session.run(v.size()) == 3


def test_row_94_a_saver_of_another_width_changes_nothing(tmp_path):
    with graph_and_session() as session:
        v = variable(dim=2)
        session.run(v.upsert([0], [[1.0, 2.0]]))
        saver = v1.train.Saver([v.saveable])
        path = saver.save(session, str(tmp_path / "ckpt"))
    with graph_and_session() as session:
        v = variable(dim=1)
        session.run(v.upsert([5], [[5.0]]))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="do not fit width 1"
        ):
            v1.train.Saver([v.saveable]).restore(session, path)
        assert session.run(v.lookup([5]))[0, 0] == 5


@pytest.mark.parametrize(
    "listed", [list, lambda dense_and_table: dict(zip("xy", dense_and_table))]
)
def test_a_saver_takes_the_variable_itself(tmp_path, listed):
    with graph_and_session() as session:
        dense, v = v1.get_variable("dense", initializer=1.0), variable(2)
        saver = v1.train.Saver(listed([dense, v]))
        session.run(dense.initializer)
        session.run(v.upsert([5, 6], [[5.0], [6.0]]))
        path = saver.save(session, str(tmp_path / "ckpt"))
        session.run([v.clear(), dense.assign(7.0)])
        saver.restore(session, path)
        assert session.run(dense) == 1.0
        assert session.run(v.lookup([5, 6]))[:, 0].tolist() == [5, 6]


def test_a_checkpoint_saves_and_restores_a_graphs_variable(tmp_path):
    with graph_and_session() as session, session.as_default():
        v = variable(2)
        checkpoint = tf.train.Checkpoint(table=v)
        session.run(v.upsert([5, 6], [[5.0], [6.0]]))
        path = checkpoint.save(str(tmp_path / "ckpt"))
        session.run(v.clear())
        session.run(v.upsert([7], [[7.0]]))
        checkpoint.restore(path).assert_consumed().run_restore_ops()
        assert session.run(v.lookup([5, 6, 7]))[:, 0].tolist() == [5, 6, -1]


def test_a_bare_tables_restore_is_refused_in_a_graph(tmp_path):
    table = tables.HashTable(1, name="bare")
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "ckpt"))
    with graph_and_session() as session, session.as_default():
        table = tables.HashTable(1, name="bare")
        with pytest.raises(errors.UnsupportedError, match="eager mode"):
            tf.train.Checkpoint(table=table).restore(path)


def test_savers_do_not_complain_of_get_variable(tmp_path, caplog):
    with graph_and_session() as session:
        v = de.get_variable("stored", dim=1)
        v1.train.Saver([v]).save(session, str(tmp_path / "ckpt"))
    assert "serializing" not in caplog.text


def test_a_variable_without_checkpoint_is_not_for_savers():
    with tf.Graph().as_default():
        assert variable(checkpoint=False).saveable is None
        assert not v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)
    assert variable().saveable is None


@pytest.mark.parametrize(
    ("at_checkpoints", "left"), [(True, {2, 3}), (False, {1, 2, 3, 4})]
)
def test_rows_expire_in_each_save_of_a_saver(tmp_path, at_checkpoints, left):
    expiry = policies.Expiry(2, every=100, at_checkpoints=at_checkpoints)
    with graph_and_session() as session:
        v = variable(2, eviction=policies.LeastFrequent(), expiry=expiry)
        saver = v1.train.Saver([v.saveable])
        keys = v.table.keys()
        for batch in ([1, 2], [2, 3], [3, 4]):
            session.run(v.upsert(batch, [[0.0], [0.0]]))
        saver.save(session, str(tmp_path / "first"))
        assert set(session.run(keys)) == left
        session.run(v.upsert([4], [[0.0]]))
        path = saver.save(session, str(tmp_path / "second"))
        assert set(session.run(keys)) == left

    with graph_and_session() as session:
        restored = variable()
        v1.train.Saver([restored.saveable]).restore(session, path)
        assert set(session.run(restored.table.keys())) == left
