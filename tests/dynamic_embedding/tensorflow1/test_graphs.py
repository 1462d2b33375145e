"""Variables in graphs and sessions of TensorFlow 1."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import graph_and_session, variable
from tfembed import policies

v1 = tf.compat.v1


@pytest.mark.parametrize("shards", [1, 2])
def test_every_method_works_in_a_graph(shards):
    with graph_and_session() as session:
        v = variable(shards)
        batch = v1.placeholder(tf.int64, [None])
        found = v.lookup(batch, return_exists=True)
        upsert = v.upsert(batch, tf.cast(batch, tf.float32)[:, tf.newaxis])
        accum = v.accum([0, 7], [[0.0], [0.0]], [[5.0], [6.0]], [True, False])
        remove, clear, size = v.remove(batch), v.clear(), v.size()
        export = v.export()

        session.run(upsert, {batch: [0, 1, 2]})
        session.run(accum)
        session.run(remove, {batch: [1, 9]})

        assert session.run(size) == 3
        values, exists = session.run(found, {batch: [0, 1, 2, 7]})
        assert values.tolist() == [[5], [-1], [2], [6]]
        assert exists.tolist() == [True, False, True, True]
        keys, rows = session.run(export)
        assert sorted(zip(keys, rows[:, 0], strict=True)) == [
            (0, 5),
            (2, 2),
            (7, 6),
        ]
        session.run(clear)
        assert session.run(size) == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_sizes_are_asked_for_again_when_the_graph_is_finished(shards):
    with graph_and_session() as session:
        v = variable(shards)
        of_all, of_each = v.size(), v.size_ops
        upsert = v.upsert([0, 1, 2], [[0.0]] * 3)
        with tf.control_dependencies([upsert]):
            after = v.size()
        named = v.size(name="how_many")
        session.graph.finalize()

        assert v.size() is of_all
        assert session.run([v.size(), *v.size_ops]) == [0] * (1 + shards)
        assert session.run(after) == 3
        assert session.run([v.size(), named]) == [3, 3]
        assert session.run(of_each) == ([3] if shards == 1 else [2, 1])
    assert named.op.name.startswith("how_many")


@pytest.mark.parametrize("shards", [1, 2])
def test_files_are_saved_and_loaded_in_a_graph(tmp_path, shards):
    with graph_and_session() as session:
        v = variable(shards)
        upsert = v.upsert([0, 1, 2], [[0.0], [1.0], [2.0]])
        folder = tf.constant(str(tmp_path))
        save, load = (
            v.save_to_file_system(folder),
            v.load_from_file_system(folder),
        )
        session.run(upsert)
        session.run(save)
        session.run(v.clear())
        session.run(v.upsert([5], [[5.0]]))

        session.run(load)

        found = session.run(v.lookup([0, 1, 2, 3, 5]))
        assert found[:, 0].tolist() == [0, 1, 2, -1, 5]


def test_rows_are_restored_into_other_shards_in_a_graph(tmp_path):
    v = variable(2)
    v.upsert(range(5), np.arange(5.0)[:, np.newaxis])
    v.save_to_file_system(tmp_path)
    with graph_and_session() as session:
        w = variable(3)
        session.run(w.load_from_file_system_with_restore_function(tmp_path))
        sizes = session.run([w.size(i) for i in range(3)])
    assert sizes == [2, 2, 1]


def test_tables_of_one_graph_are_apart_whatever_their_names():
    with graph_and_session() as session:
        first, second = variable(), variable()
        session.run(first.upsert([1], [[1.0]]))
        assert session.run([first.size(), second.size()]) == [1, 0]


def test_row_48_get_variable_refuses_a_name_that_is_there():
    name = "Variable embedding/t900 already exists"
    with tf.Graph().as_default():
        with v1.variable_scope("embedding", reuse=False):
            de.get_variable("t900")
            with pytest.raises(ValueError, match=name):
                de.get_variable("t900")
        with (
            v1.variable_scope("embedding", reuse=False),
            pytest.raises(ValueError, match=name),
        ):
            de.get_variable("t900")
        with v1.variable_scope("embedding", reuse=True):
            assert de.get_variable("t900").name == "embedding/t900"


def test_variables_of_two_graphs_are_found_each_in_its_own():
    found = []
    for _ in range(2):
        with graph_and_session() as session:
            v = de.get_variable("graphs/mine", initializer=-1.0)
            session.run(v.upsert([1], [[1.0]]))
            found.append((v, session.run(v.size())))
    assert found[0][0] is not found[1][0]
    assert [size for _, size in found] == [1, 1]


@pytest.fixture(name="server", scope="module")
def make_server():
    return tf.distribute.Server.create_local_server()


def test_row_93_sessions_of_one_server_share_a_table(server):
    with tf.Graph().as_default():
        v = variable(2, "row_93")
        upsert = v.upsert([0, 1, 11], [[0.0], [1.0], [11.0]])
        size, found = v.size(), v.lookup([0, 1, 2, 11])
        with v1.Session(server.target) as first:
            first.run(upsert)
            assert first.run(size) == 3
        with v1.Session(server.target) as second:
            assert second.run(size) == 3
            assert second.run(found)[:, 0].tolist() == [0, 1, -1, 11]


def test_row_93_the_same_graph_built_again_finds_the_table(server):
    with graph_and_session(server.target) as session:
        v = variable(2, "row_93_again")
        session.run(v.upsert([0, 1], [[0.0], [1.0]]))
    with graph_and_session(server.target) as session:
        v, other = variable(2, "row_93_again"), variable(2, "row_93_other")
        assert session.run([v.size(), other.size()]) == [2, 0]
        assert session.run(v.lookup([1, 2]))[:, 0].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("initializer", "row"),
    [
        (lambda: tf.constant([-1, -2], tf.int64), [-1, -2]),
        (lambda: tf.constant(-1.0), [-1, -1]),
        (lambda: 2 * tf.identity([1.0, 2.0]), [2, 4]),
        (lambda: lambda: tf.fill([2], 3.0), [3, 3]),
        (lambda: lambda shape, dtype=None: tf.ones(shape), [1, 1]),
        (lambda: tf.keras.initializers.Constant(2.5), [2.5, 2.5]),
    ],
)
def test_rows_38_and_40_an_initializer_may_be_a_tensor_of_the_graph(
    initializer, row
):
    with graph_and_session() as session:
        v = de.Variable(dim=2, initializer=initializer())
        assert session.run(v.lookup([7])).tolist() == [row]


@pytest.mark.parametrize(
    "initializer",
    [
        lambda: v1.placeholder(tf.float32, [2]),
        lambda: lambda: tf.random.normal([2]),
    ],
)
def test_an_initializer_that_is_not_constant_in_the_graph_is_refused(
    initializer,
):
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match="cannot be the initializer"),
    ):
        de.Variable(dim=2, initializer=initializer())


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "policy", [de.TimestampRestrictPolicy, de.FrequencyRestrictPolicy]
)
def test_restrict_removes_keys_and_status_in_a_graph(policy, shards):
    with graph_and_session() as session:
        v = variable(shards, restrict_policy=policy)
        batch = v1.placeholder(tf.int64, [None])
        upsert = v.upsert(batch, tf.ones([tf.size(batch), 1]))
        note = v.restrict_policy.apply_update(batch)
        restrict = v.restrict(2, trigger=5)
        keys, noted = v.table.keys(), v.restrict_policy.status.table.keys()

        session.run(upsert, {batch: range(5)})
        session.run(note, {batch: [1, 2, 77]})
        assert session.run(restrict) == 0
        assert sorted(session.run(noted)) == [1, 2, 77]
        session.run(upsert, {batch: [9]})
        assert session.run(restrict) == 4

        assert sorted(session.run(keys)) == [1, 2]
        assert sorted(session.run(noted)) == [1, 2]


def test_writes_in_a_branch_of_a_graph_are_ops_that_run():
    with graph_and_session() as session:
        v = variable(2)
        is_time = v1.placeholder(tf.bool, [])
        write = tf.cond(
            is_time, lambda: v.upsert([1, 2], [[1.0], [2.0]]), tf.no_op
        )
        sizes = []
        for choice in (False, True):
            session.run(write, {is_time: choice})
            sizes.append(session.run(v.size()))
    assert sizes == [0, 2]


def test_a_bounded_variable_sweeps_its_status_in_a_graph():
    policy = de.FrequencyRestrictPolicy
    with graph_and_session() as session:
        v = variable(
            max_size=8, eviction=policies.LeastRecent(), restrict_policy=policy
        )
        batch = v1.placeholder(tf.int64, [None])
        note = v.restrict_policy.apply_update(batch)
        noted = v.restrict_policy.status.size()
        for start in range(0, 40, 4):
            session.run(note, {batch: range(start, start + 4)})
        assert session.run(noted) <= 9
