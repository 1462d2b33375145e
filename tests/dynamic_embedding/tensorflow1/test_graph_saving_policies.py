"""Savers of TensorFlow 1 and what a table's policies noted."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    PolicyProgram,
    graph_and_session,
    v1,
)
from tfembed import policies

SHARDS = pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 2)])
COUNT = policies.CountAdmission(3)


class Program(PolicyProgram):
    """One that is trained by SGD, and a Saver of all the graph has."""

    def __init__(self, session, **options):
        super().__init__(session, **options)
        self.found = self.v.table.contains(self.ids)
        self.keys = self.v.table.keys()
        self.saver = v1.train.Saver()

    def has(self, session, ids):
        return session.run(self.found, {self.ids: ids}).tolist()


def saved(folder, *batches, **options):
    """Trains a program, saves it, and gives the checkpoint."""
    with graph_and_session() as session:
        program = Program(session, **options)
        program.train(session, *batches)
        return program.saver.save(session, str(folder / "ckpt"))


@SHARDS
@pytest.mark.parametrize("dtype", [tf.int64, tf.int32, tf.string])
def test_counts_of_keys_that_wait_go_on(tmp_path, shards, dtype):
    def keys(*numbers):
        return [str(i) if dtype == tf.string else i for i in numbers]

    options = {"keys": dtype, "admission": COUNT}
    path = saved(
        tmp_path,
        keys(1, 2, 3, 4),
        keys(2, 3, 4),
        keys(4),
        shards=shards[0],
        **options,
    )
    with graph_and_session() as session:
        program = Program(session, shards=shards[1], **options)
        program.train(session, keys(1, 9))
        program.saver.restore(session, path)
        ids = keys(1, 2, 3, 4, 9)
        assert program.has(session, ids) == [False] * 3 + [True, False]
        program.train(session, ids)
        assert program.has(session, ids) == [False] + [True] * 3 + [False]
        program.train(session, ids)
        assert program.has(session, ids) == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("shards", "early"), [((1, 1), True), ((3, 3), True), ((3, 2), False)]
)
def test_a_bloom_filter_goes_on_in_as_many_shards(tmp_path, shards, early):
    admission = policies.BloomAdmission(3, capacity=1000)
    keys = np.arange(100)
    path = saved(tmp_path, keys, keys, shards=shards[0], admission=admission)
    with graph_and_session() as session:
        program = Program(session, shards=shards[1], admission=admission)
        program.train(session, keys)
        program.saver.restore(session, path)
        program.train(session, keys)
        assert program.has(session, keys) == [early] * 100


@pytest.mark.parametrize(
    "options", [{"capacity": 200}, {"capacity": 100, "error_rate": 0.001}]
)
def test_bloom_counters_of_another_shape_begin_anew(tmp_path, options):
    path = saved(
        tmp_path, [1], admission=policies.BloomAdmission(2, capacity=100)
    )
    with graph_and_session() as session:
        program = Program(
            session, admission=policies.BloomAdmission(2, **options)
        )
        program.saver.restore(session, path)
        program.train(session, [1])
        assert program.has(session, [1]) == [False]
        program.train(session, [1])
        assert program.has(session, [1]) == [True]


@SHARDS
@pytest.mark.parametrize(
    "eviction", [policies.LeastRecent(), policies.LeastFrequent()]
)
def test_rows_are_as_old_and_as_often_used_as_they_were(
    tmp_path, shards, eviction
):
    batches = [0, 1, 2], [1, 2, 3], [2, 1, 0], [3, 2, 1], [2]
    with graph_and_session() as session:
        program = Program(session, shards=shards[0], eviction=eviction)
        program.train(session, *batches)
        path = program.saver.save(session, str(tmp_path / "ckpt"))
        expected = program.worths(session)
    assert len(set(expected.values())) > 2
    with graph_and_session() as session:
        program = Program(session, shards=shards[1], eviction=eviction)
        program.train(session, [9])
        program.saver.restore(session, path)
        assert program.worths(session) == expected


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_seconds_stay_too_beside_narrow_rows_and_string_keys(tmp_path, dtype):
    options = {
        "keys": tf.string,
        "value_dtype": dtype,
        "eviction": policies.LeastRecent("seconds"),
    }
    path = saved(tmp_path, ["a", "b"], **options)
    again = str(tmp_path / "again")
    reader = tf.train.load_checkpoint(path)
    keys = reader.get_tensor("table_mht_1of1-keys")
    notes = reader.get_tensor("table_mht_1of1-notes")
    assert (abs(notes - tf.timestamp().numpy()) < 60).all()
    with graph_and_session() as session:
        program = Program(session, shards=3, **options)
        program.saver.restore(session, path)
        program.saver.save(session, again)
    reader = tf.train.load_checkpoint(again)
    assert dict(zip(keys, notes, strict=True)) == dict(
        zip(
            reader.get_tensor("table_mht_1of1-keys"),
            reader.get_tensor("table_mht_1of1-notes"),
            strict=True,
        )
    )


def test_a_bounded_table_keeps_the_best_of_what_it_restores(tmp_path):
    options = {"max_size": 8, "eviction": policies.LeastFrequent()}
    path = saved(tmp_path, range(8), *[range(4)] * 20, shards=1, **options)
    with graph_and_session() as session:
        program = Program(session, shards=1, **options)
        program.saver.restore(session, path)
        program.train(session, range(100, 104))
        kept = set(session.run(program.keys).tolist())
    assert kept == {*range(4), *range(100, 104)}


# The kind: restores into a smaller bound. Eager ones, of all kinds of files,
# are in tests/checkpoint/test_smaller_bound.py.
@pytest.mark.parametrize(
    "policy",
    [
        policies.LeastRecent(),
        policies.LeastFrequent(),
        policies.SmallestNorm(),
    ],
    ids=repr,
)
def test_a_smaller_bound_keeps_what_evict_would_of_each_shard(tmp_path, policy):
    keys = np.arange(10) * 7 % 10
    path = saved(
        tmp_path, *[keys[i:] for i in range(10)], shards=3, eviction=policy
    )
    worths = []
    for options in ({}, {"max_size": 6}):
        with graph_and_session() as session:
            program = Program(session, shards=2, eviction=policy, **options)
            program.saver.restore(session, path)
            worths.append(program.worths(session))
    every, kept = worths
    best = sorted(every, key=every.get)
    even, odd = ([k for k in best if k % 2 == i][-3:] for i in (0, 1))
    assert kept == {key: every[key] for key in [*even, *odd]}
    assert len(kept) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"eviction": policies.LeastRecent()},
        {"admission": COUNT, "eviction": policies.LeastFrequent()},
        {"admission": policies.BloomAdmission(3, capacity=100)},
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_file_without_notes_restores_rows_alone(tmp_path, options, shards):
    path = saved(tmp_path, [1, 2], [2])
    names = [name for name, _ in tf.train.list_variables(path)]
    assert [name for name in names if name.startswith("table")] == [
        "table_mht_1of1-keys",
        "table_mht_1of1-values",
    ]
    with graph_and_session() as session:
        program = Program(session, shards=shards, **options)
        program.train(session, [7, 8], [7])
        program.saver.restore(session, path)
        assert sorted(session.run(program.keys)) == [1, 2]
        if program.v.table.eviction is not None:
            assert len(set(program.worths(session).values())) == 1
        if program.v.table.admission is not None:
            program.train(session, [7])
            assert program.has(session, [7]) == [False]


def test_a_table_without_policies_takes_the_rows_of_one_with(tmp_path):
    options = {"admission": COUNT, "eviction": policies.LeastRecent()}
    path = saved(tmp_path, [1, 2], [1], [1], **options)
    with graph_and_session() as session:
        program = Program(session)
        program.saver.restore(session, path)
        assert session.run(program.keys).tolist() == [1]


def test_another_policy_leaves_the_notes(tmp_path):
    path = saved(tmp_path, [1, 2], [2], eviction=policies.LeastFrequent())
    with graph_and_session() as session:
        program = Program(session, eviction=policies.LeastRecent())
        program.saver.restore(session, path)
        assert set(program.worths(session).values()) == {0}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("reshape", [False, True])
def test_savers_of_all_kinds_keep_them(tmp_path, sharded, reshape):
    options = {"admission": COUNT, "eviction": policies.LeastFrequent()}
    with graph_and_session() as session:
        program = Program(session, **options)
        saver = v1.train.Saver(sharded=sharded, reshape=reshape)
        program.train(session, [1, 2], [1, 2], [1], [1])
        path = saver.save(session, str(tmp_path / "ckpt"))
        program.train(session, [1, 2])
        saver.restore(session, path)
        assert program.worths(session) == {1: 2}
        program.train(session, [2])
        assert program.worths(session) == {1: 2, 2: 1}


def test_an_imported_graph_keeps_them(tmp_path):
    path = saved(tmp_path, [1], [1], admission=COUNT)
    with graph_and_session() as session:
        saver = v1.train.import_meta_graph(f"{path}.meta")
        saver.restore(session, path)
        again = saver.save(session, str(tmp_path / "again"))
    with graph_and_session() as session:
        program = Program(session, admission=COUNT)
        program.saver.restore(session, again)
        program.train(session, [1])
        assert program.has(session, [1]) == [True]


@pytest.mark.parametrize("shards", [(2, 1), (1, 3)])
@pytest.mark.parametrize(
    "policy", [de.TimestampRestrictPolicy, de.FrequencyRestrictPolicy]
)
def test_a_restrict_policys_status_goes_to_any_shards(tmp_path, policy, shards):
    with graph_and_session() as session:
        program = Program(session, shards=shards[0], restrict_policy=policy)
        status = program.v.restrict_policy.status.export()
        program.train(session, [1, 2, 3], [2, 3], [3])
        path = program.saver.save(session, str(tmp_path / "ckpt"))
        keys, expected = session.run(status)
        expected = dict(zip(keys, expected[:, 0], strict=True))
    with graph_and_session() as session:
        program = Program(session, shards=shards[1], restrict_policy=policy)
        status = program.v.restrict_policy.status.export()
        program.saver.restore(session, path)
        keys, found = session.run(status)
        assert dict(zip(keys, found[:, 0], strict=True)) == expected
    assert sorted(expected) == [1, 2, 3]
