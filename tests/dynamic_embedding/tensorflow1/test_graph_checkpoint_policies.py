"""Notes of a table's policies, in a graph's Checkpoint and Savers by name."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.dynamic_embedding.graph_programs import (
    PolicyProgram,
    graph_and_session,
    v1,
)
from tfembed import policies

POLICIES = {
    "admission": policies.CountAdmission(3),
    "eviction": policies.LeastFrequent(),
}


class SavedByName:
    """A Saver that is given the table under a name of the program's."""

    def __init__(self, v):
        self.saver = v1.train.Saver({"mine": v})

    def save(self, session, path):
        return self.saver.save(session, path)

    def restore(self, session, path):
        self.saver.restore(session, path)


class SavedByCheckpoint:
    def __init__(self, v):
        self.checkpoint = tf.train.Checkpoint(mine=v)

    def save(self, session, path):
        with session.as_default():
            return self.checkpoint.save(path)

    def restore(self, session, path):
        self.checkpoint.restore(path).run_restore_ops(session)


class Program(PolicyProgram):
    """One that is trained by Adagrad, so that it has a slot."""

    def __init__(self, session, saved, **options):
        super().__init__(session, v1.train.AdagradOptimizer(0.5), **options)
        self.rows = self.v.lookup(self.ids)
        self.saved = saved(self.v)

    def rows_of(self, session, keys):
        return session.run(self.rows, {self.ids: keys}).tolist()


KINDS = pytest.mark.parametrize("saved", [SavedByName, SavedByCheckpoint])


@KINDS
@pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 2)])
def test_counts_and_notes_go_on(tmp_path, saved, shards):
    with graph_and_session() as session:
        program = Program(session, saved, shards=shards[0], **POLICIES)
        program.train(session, [1, 2, 3], [1, 2, 3], [1, 2], [1])
        path = program.saved.save(session, str(tmp_path / "ckpt"))
        expected = program.worths(session)
        rows = program.rows_of(session, [1, 2])
    assert expected == {1: 2, 2: 1}
    with graph_and_session() as session:
        program = Program(session, saved, shards=shards[1], **POLICIES)
        program.train(session, [9], [9], [9])
        program.saved.restore(session, path)
        assert program.worths(session) == expected
        assert program.rows_of(session, [1, 2]) == rows
        program.train(session, [3])  # Seen for the third time.
        assert program.worths(session) == {**expected, 3: 1}


@KINDS
def test_a_save_without_policies_restores_rows_alone(tmp_path, saved):
    with graph_and_session() as session:
        program = Program(session, saved)
        program.train(session, [1, 2], [2])
        path = program.saved.save(session, str(tmp_path / "ckpt"))
    with graph_and_session() as session:
        program = Program(session, saved, **POLICIES)
        program.train(session, [7], [7])
        program.saved.restore(session, path)
        assert program.worths(session) == {1: 1, 2: 1}
        program.train(session, [7])  # No longer for the third time.
        assert program.worths(session) == {1: 1, 2: 1}


@KINDS
def test_a_table_without_policies_takes_the_rows_of_one_with(tmp_path, saved):
    with graph_and_session() as session:
        program = Program(session, saved, **POLICIES)
        program.train(session, [1], [1], [1])
        path = program.saved.save(session, str(tmp_path / "ckpt"))
        rows = program.rows_of(session, [1, 2])
    with graph_and_session() as session:
        program = Program(session, saved)
        program.train(session, [2])
        program.saved.restore(session, path)
        assert program.rows_of(session, [1, 2]) == rows


def test_a_checkpoint_is_all_consumed(tmp_path):
    with graph_and_session() as session, session.as_default():
        program = Program(session, SavedByCheckpoint, **POLICIES)
        checkpoint = program.saved.checkpoint
        program.train(session, [1], [1], [1])
        path = checkpoint.save(str(tmp_path / "ckpt"))
        checkpoint.restore(path).assert_consumed().run_restore_ops()
        assert program.worths(session) == {1: 1}
    names = sorted(
        name for name, _ in tf.train.list_variables(path) if "mine" in name
    )
    assert names == [
        "mine/.ATTRIBUTES/policies-notes",
        "mine/.ATTRIBUTES/policies-policies",
        "mine/.ATTRIBUTES/policies-waiting/counters",
        "mine/.ATTRIBUTES/policies-waiting/keys",
        "mine/.ATTRIBUTES/policies-waiting/seen",
        "mine/.ATTRIBUTES/table-keys",
        "mine/.ATTRIBUTES/table-slots/adagrad/accumulators",
        "mine/.ATTRIBUTES/table-values",
    ]


def test_a_checkpoint_lets_rows_expire_once_a_save(tmp_path):
    with graph_and_session() as session, session.as_default():
        program = Program(
            session,
            SavedByCheckpoint,
            eviction=policies.LeastRecent(),
            expiry=policies.Expiry(2, at_checkpoints=True),
        )
        program.train(session, [1], [2], [2], [2])
        path = program.saved.checkpoint.save(str(tmp_path / "ckpt"))
        assert set(program.worths(session)) == {2}
    saved = tf.train.load_checkpoint(path)
    assert saved.get_tensor("mine/.ATTRIBUTES/table-keys").tolist() == [2]
    assert saved.get_tensor("mine/.ATTRIBUTES/policies-notes").shape == (1,)
