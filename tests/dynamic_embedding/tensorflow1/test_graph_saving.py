"""Savers of TensorFlow 1 and the tables that a graph trains: slots go along."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    loss_of,
    start,
    table,
    train,
    v1,
)
from tests.dynamic_embedding.optimizer_makers import legacy
from tfembed import policies

OPTIMIZERS = {
    "Adam": lambda: v1.train.AdamOptimizer(0.1),
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "legacy Adam": lambda: legacy().Adam(0.1),
    "legacy Nadam": lambda: legacy().Nadam(0.1),
}


class Program:
    """A table that a graph trains, and a Saver of all that the graph has."""

    def __init__(self, name="Adam", keys=tf.int64, **options):
        self.ids = v1.placeholder(keys, [None], name="ids")
        self.v = table(key_dtype=keys, **options)
        rows = de.embedding_lookup(self.v, self.ids)
        self.optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
        self.step = self.optimizer.minimize(loss_of(rows), name="step")
        self.rows = self.v.lookup(self.ids, name="rows")
        self.saver = v1.train.Saver()

    def train(self, session, batches):
        train(session, self.step, self.ids, batches)

    def found(self, session, ids):
        return session.run(self.rows, {self.ids: ids})


def saved(folder, batches=((1, 2), (2, 3)), **options):
    """Trains a program, saves it, and gives the checkpoint."""
    with graph_and_session() as session:
        program = Program(**options)
        start(session)
        program.train(session, batches)
        return program.saver.save(session, str(folder / "ckpt"))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_it_had_not_stopped(
    tmp_path, name, before, after
):
    with graph_and_session() as session:
        program = Program(name, shards=before)
        start(session)
        program.train(session, [[1, 2, 1], [2, 3]])
        path = program.saver.save(session, str(tmp_path / "ckpt"))
        program.train(session, [[1, 3], [4, 4]])
        expected = program.found(session, [1, 2, 3, 4])
    with graph_and_session() as session:
        program = Program(name, shards=after)
        start(session)
        program.train(session, [[1, 9]])
        program.saver.restore(session, path)
        assert session.run(program.v.size()) == 3
        program.train(session, [[1, 3], [4, 4]])
        np.testing.assert_array_equal(
            program.found(session, [1, 2, 3, 4]), expected
        )


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_narrow_rows_and_string_keys_go_on_too(tmp_path, dtype):
    options = {"keys": tf.string, "value_dtype": dtype}
    with graph_and_session() as session:
        program = Program(**options)
        start(session)
        program.train(session, [["a", "b", "a"], ["b"]])
        path = program.saver.save(session, str(tmp_path / "ckpt"))
        program.train(session, [["a", "c"]])
        expected = program.found(session, ["a", "b", "c"])
    with graph_and_session() as session:
        program = Program(**options, shards=3)
        program.saver.restore(session, path)
        program.train(session, [["a", "c"]])
        np.testing.assert_array_equal(
            program.found(session, ["a", "b", "c"]), expected
        )


def test_slots_are_tensors_beside_keys_and_values(tmp_path):
    found = dict(tf.train.list_variables(saved(tmp_path)))
    assert {
        name: shape for name, shape in found.items() if name.startswith("table")
    } == {
        "table_mht_1of1-keys": [3],
        "table_mht_1of1-slots/adam/momenta": [3, 3],
        "table_mht_1of1-slots/adam/velocities": [3, 3],
        "table_mht_1of1-values": [3, 3],
    }


def test_a_graph_without_the_optimizer_takes_the_rows(tmp_path):
    with graph_and_session() as session:
        program = Program()
        start(session)
        program.train(session, [[1, 2]])
        path = program.saver.save(session, str(tmp_path / "ckpt"))
        expected = program.found(session, [1, 2])
    with graph_and_session() as session:
        v = table(shards=3)
        v1.train.Saver().restore(session, path)
        np.testing.assert_array_equal(session.run(v.lookup([1, 2])), expected)


def test_a_saver_made_before_the_optimizer_knows_rows_alone(tmp_path):
    path = saved(tmp_path, name="Adagrad", batches=[[1, 2]])
    with graph_and_session() as session:
        v = table()
        saver = v1.train.Saver([v])
        rows = de.embedding_lookup(v, [1])
        optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS["Adam"]())
        step = optimizer.minimize(loss_of(rows))
        slots = [slot.lookup([1]) for slot in v.get_slot_variables(optimizer)]
        start(session)
        session.run(step)
        saver.restore(session, path)
        assert session.run(v.size()) == 2
        np.testing.assert_array_equal(session.run(slots), np.zeros([2, 1, 3]))
        session.run(step)
        rows_alone = saver.save(session, str(tmp_path / "rows"))
    names = {name for name, _ in tf.train.list_variables(rows_alone)}
    assert names == {"table_mht_1of1-keys", "table_mht_1of1-values"}


@pytest.mark.parametrize("other", ["Adagrad", None])
def test_a_checkpoint_without_these_slots_changes_nothing(tmp_path, other):
    if other:
        path = saved(tmp_path, name=other)
    else:
        with graph_and_session() as session:
            v = table()
            session.run(v.upsert([1], [[5.0] * 3]))
            path = v1.train.Saver().save(session, str(tmp_path / "ckpt"))
    with graph_and_session() as session:
        program = Program()
        start(session)
        program.train(session, [[1, 9]])
        before = program.found(session, [1, 9])
        with pytest.raises(tf.errors.NotFoundError, match="slots/adam"):
            v1.train.Saver([program.v]).restore(session, path)
        np.testing.assert_array_equal(program.found(session, [1, 9]), before)


def test_rows_that_do_not_fit_a_bound_change_nothing(tmp_path):
    path = saved(tmp_path)
    with graph_and_session() as session:
        program = Program(max_size=2, shards=1, eviction=policies.LeastRecent())
        start(session)
        program.train(session, [[9]])
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"no notes by which its policy LeastRecent(.|\n)*\[2\]",
        ):
            program.saver.restore(session, path)
        assert session.run(program.v.table.keys()).tolist() == [9]


def test_a_table_with_another_optimizers_slots_is_left_alone(tmp_path):
    path = saved(tmp_path)
    server = tf.distribute.Server.create_local_server()
    with graph_and_session(server.target) as session:
        program = Program("Adagrad")
        start(session)
        program.train(session, [[9]])
        expected = program.found(session, [9])
    with graph_and_session(server.target) as session:
        program = Program()
        with pytest.raises(tf.errors.FailedPreconditionError, match="adagrad"):
            program.saver.restore(session, path)
        np.testing.assert_array_equal(program.found(session, [9]), expected)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_status_of_a_policy_is_restored_with_the_rows(tmp_path, shards):
    options = {"restrict_policy": de.FrequencyRestrictPolicy}
    path = saved(tmp_path, batches=[[1, 2], [2, 3], [2]], **options)
    with graph_and_session() as session:
        program = Program(shards=shards, **options)
        status = program.v.restrict_policy.status.export()
        start(session)
        for _ in range(5):  # Both are restored side by side.
            program.train(session, [[1, 9]])
            program.saver.restore(session, path)
            keys, counts = session.run(status)
            noted = dict(zip(keys, counts[:, 0], strict=True))
            assert noted == {1: 1, 2: 3, 3: 1}


def test_a_monitored_session_goes_on_from_its_folder(tmp_path):
    found = []
    for last in (2, 4):
        with tf.Graph().as_default():
            count = v1.train.get_or_create_global_step()
            v = table()
            rows = de.embedding_lookup(v, [1])
            step = de.DynamicEmbeddingOptimizer(OPTIMIZERS["Adam"]()).minimize(
                loss_of(rows), count
            )
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                hooks=[v1.train.StopAtStepHook(last_step=last)],
                log_step_count_steps=None,
                save_summaries_steps=None,
            ) as session:
                while not session.should_stop():
                    found.append(session.run([rows, step])[0])
    expected = []
    with graph_and_session() as session:
        program = Program()
        start(session)
        for _ in range(4):
            expected.append(program.found(session, [1]))
            program.train(session, [[1]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_imported_graph_trains_on(tmp_path):
    with graph_and_session() as session:
        program = Program()
        start(session)
        program.train(session, [[1, 2]])
        path = program.saver.save(session, str(tmp_path / "ckpt"))
        program.train(session, [[1], [1, 3]])
        expected = program.found(session, [1, 2, 3])
    with graph_and_session() as session:
        saver = v1.train.import_meta_graph(f"{path}.meta")
        saver.restore(session, path)
        (step,) = v1.get_collection(v1.GraphKeys.TRAIN_OP)
        train(session, step, "ids:0", [[1], [1, 3]])
        again = saver.save(session, str(tmp_path / "again"))
    with graph_and_session() as session:
        program = Program()
        program.saver.restore(session, again)
        np.testing.assert_allclose(
            program.found(session, [1, 2, 3]), expected, rtol=1e-6
        )


def test_a_checkpoint_object_of_a_graph_saves_slots(tmp_path):
    with graph_and_session() as session, session.as_default():
        program = Program("Momentum")
        checkpoint = tf.train.Checkpoint(v=program.v)
        start(session)
        program.train(session, [[1, 2]])
        path = checkpoint.save(str(tmp_path / "ckpt"))
        program.train(session, [[1, 2]])
        expected = program.found(session, [1, 2])
        checkpoint.restore(path).assert_consumed().run_restore_ops()
        program.train(session, [[1, 2]])
        np.testing.assert_array_equal(program.found(session, [1, 2]), expected)
