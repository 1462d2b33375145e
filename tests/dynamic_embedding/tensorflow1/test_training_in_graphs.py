"""Training in graphs of TensorFlow 1: what a session's step does to rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    loss_of,
    sgd,
    start,
    table,
    train,
    v1,
    wrapped,
)
from tests.dynamic_embedding.optimizer_makers import IN_GRAPHS
from tfembed import optimizers

# All ids in each, as some optimizers of tf.compat.v1 move all rows of a dense
# variable; some of them several times.
BATCHES = [[0, 1, 2], [2, 1, 0, 1], [0, 0, 0, 1, 2], [1, 2, 0]] * 2


@pytest.mark.parametrize("maker", IN_GRAPHS.values(), ids=IN_GRAPHS.keys())
def test_a_table_is_trained_as_a_dense_variable_of_the_graph(maker):
    with graph_and_session() as session:
        ids = v1.placeholder(tf.int64, [None])
        v = table()
        rows, wrapper = de.embedding_lookup(v, ids, return_trainable=True)
        dense = v1.get_variable("dense", initializer=np.ones([3, 3], "f"))
        step = wrapped(maker(0.1)).minimize(loss_of(rows), var_list=[wrapper])
        gradients = tf.gradients(loss_of(tf.gather(dense, ids)), [dense])
        other = maker(0.1).apply_gradients([(gradients[0], dense)])
        start(session)
        train(session, [step, other], ids, BATCHES)
        found, expected = session.run([v.lookup([0, 1, 2]), dense])
    assert np.abs(found - 1).max() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "bp_v2"),
    [(name, False) for name in IN_GRAPHS]
    + [("v1 Momentum", True), ("v1 Adam", True), ("legacy Adamax", True)],
)
def test_a_graph_trains_as_eager_mode_does(name, bp_v2):
    maker = IN_GRAPHS[name]
    batches = [[1, 2, 1], [3, 1], [2, 2, 5]]

    eager = table(bp_v2=bp_v2)
    optimizer = wrapped(maker(0.1))
    for batch in batches:
        optimizer.minimize(
            lambda batch=batch: loss_of(
                de.embedding_lookup(eager, batch, name="x")
            ),
            var_list=[eager],
        )
    with graph_and_session() as session:
        v, ids = table(bp_v2=bp_v2), v1.placeholder(tf.int64, [None])
        optimizer = wrapped(maker(0.1))
        step = optimizer.minimize(loss_of(de.embedding_lookup(v, ids)))
        start(session)
        train(session, step, ids, batches)
        found, size = session.run([v.lookup([1, 2, 3, 5]), v.size()])
    assert size == eager.size()
    expected = eager.lookup([1, 2, 3, 5])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def var_lists(v, wrapper, dense):
    return {
        "wrapper": [wrapper],
        "variable": [v],
        "none": None,
        "both": [dense, wrapper],
        "function": lambda: [v],
        "one": wrapper,
        "nested": {"of tables": [v], "other": ((dense,),)},
        "listed": v1.trainable_variables(),
    }


@pytest.mark.parametrize(
    ("kind", "moves_dense"),
    [
        ("wrapper", False),
        ("variable", False),
        ("function", False),
        ("one", False),
        ("nested", True),
        ("none", True),
        ("both", True),
        ("listed", True),
    ],
)
def test_a_var_list_says_what_moves(kind, moves_dense):
    with graph_and_session() as session:
        v = table(dim=1)
        dense = v1.get_variable("dense", initializer=2.0)
        unused = v1.get_variable("unused", initializer=2.0)
        rows, wrapper = de.embedding_lookup(v, [7], return_trainable=True)
        step = wrapped().minimize(
            tf.reduce_sum(rows) * dense,
            var_list=var_lists(v, wrapper, dense)[kind],
        )
        start(session)
        session.run(step)
        row, moved, same = session.run([v.lookup([7]), dense, unused])
    assert row[0, 0] == 0.0
    assert moved == (1.5 if moves_dense else 2.0)
    assert same == 2.0


def test_the_gradient_goes_through_max_norm():
    found = []
    for in_graph in (True, False):
        if in_graph:
            with graph_and_session() as session:
                v = table()
                rows = de.embedding_lookup(v, [1], max_norm=0.5)
                step = wrapped().minimize(loss_of(rows))
                start(session)
                session.run(step)
                found.append(session.run(v.lookup([1])))
        else:
            v = table()
            wrapped().minimize(
                lambda v=v: loss_of(
                    de.embedding_lookup(v, [1], max_norm=0.5, name="x")
                ),
                var_list=[v],
            )
            found.append(v.lookup([1]).numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_gradients_are_clipped_between_compute_and_apply():
    with graph_and_session() as session:
        v, dense = table(dim=1), v1.get_variable("dense", initializer=1.0)
        rows = de.embedding_lookup(v, [3])
        optimizer = wrapped(sgd(1.0))
        pairs = optimizer.compute_gradients(
            3 * tf.reduce_sum(rows) + 4 * dense, gate_gradients=2
        )
        gradients, variables = zip(*pairs, strict=True)
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        count = v1.train.get_or_create_global_step()
        step = optimizer.apply_gradients(
            zip(clipped, variables, strict=True), global_step=count
        )
        start(session)
        assert session.run([norm, step])[0] == 5.0
        found = session.run([v.lookup([3])[0, 0], dense, count])
    np.testing.assert_allclose(found, [0.4, 0.2, 1])


@pytest.mark.parametrize("beside_dense", [False, True])
def test_a_run_counts_one_step_and_is_one_of_the_graphs_training_ops(
    beside_dense,
):
    with graph_and_session() as session:
        v, dense = table(dim=1), v1.get_variable("dense", initializer=1.0)
        loss = tf.reduce_sum(de.embedding_lookup(v, [3])) * dense
        count = v1.train.get_or_create_global_step()
        optimizer = wrapped(IN_GRAPHS["v1 Adam"](0.1))
        step = optimizer.minimize(
            loss, count, [v, dense] if beside_dense else [v], name="my_step"
        )
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [step]
        assert step.name == "my_step"
        start(session)
        for _ in range(3):
            session.run(step)
        assert session.run([count, optimizer.iterations]) == [3, 3]


def test_a_decaying_rate_is_that_of_each_step():
    with graph_and_session() as session:
        v, count = table(dim=1), v1.train.get_or_create_global_step()
        for maker in (
            v1.train.GradientDescentOptimizer,
            lambda rate: v1.train.MomentumOptimizer(rate, 0.0),
        ):
            v = table(dim=1)
            rate = v1.train.exponential_decay(1.0, count, 1, 0.5)
            step = wrapped(maker(rate)).minimize(
                tf.reduce_sum(de.embedding_lookup(v, [3])),
                count,
                var_list=[v],
            )
            start(session)
            for _ in range(2):
                session.run(step)
            assert session.run(v.lookup([3]))[0, 0] == 1.0 - 1.0 - 0.5


@pytest.mark.parametrize("look_up_twice", [False, True])
def test_a_step_reads_what_the_loss_needs_before_it_writes(look_up_twice):
    with graph_and_session() as session:
        v = table(dim=1)
        rows, wrapper = de.embedding_lookup(v, [1], return_trainable=True)
        loss = tf.reduce_sum(rows)  # Its gradient needs no rows.
        if look_up_twice:
            loss += tf.reduce_sum(de.embedding_lookup(v, [1, 1]))
        step = wrapped().minimize(loss, var_list=[wrapper, wrapper])
        needed = v1.graph_util.extract_sub_graph(
            session.graph.as_graph_def(), [step.name]
        )
        assert loss.op.name in {node.name for node in needed.node}
        start(session)
        found = [session.run([loss, step])[0] for _ in range(3)]
    expected = np.array([1.0, 0.5, 0.0]) * (3 if look_up_twice else 1)
    assert found == expected.tolist()


def test_a_description_trains_tables_of_a_graph():
    with graph_and_session() as session:
        v = table(dim=1)
        optimizer = wrapped(optimizers.SGD(0.5))
        step = optimizer.minimize(
            tf.reduce_sum(de.embedding_lookup(v, [3])), [v]
        )
        start(session)
        session.run(step)
        assert session.run([v.lookup([3])[0, 0], optimizer.iterations]) == [
            0.5,
            1,
        ]


def test_several_tables_move_in_one_step():
    with graph_and_session() as session:
        one, two = table("one", dim=1), table("two", dim=2, shards=1)
        loss = tf.reduce_sum(de.embedding_lookup(one, [1])) + 2 * tf.reduce_sum(
            de.embedding_lookup(two, [1, 2])
        )
        step = wrapped().minimize(loss)
        start(session)
        session.run(step)
        assert session.run(one.lookup([1])).tolist() == [[0.5]]
        assert session.run(two.lookup([1, 2, 3])).tolist() == [
            [0, 0],
            [0, 0],
            [1, 1],
        ]


def test_slots_are_seen_before_and_after_a_step():
    with graph_and_session() as session:
        v = table(dim=1)
        optimizer = wrapped(v1.train.AdagradOptimizer(0.5))
        step = optimizer.minimize(
            tf.reduce_sum(de.embedding_lookup(v, [3])), var_list=[v]
        )
        (slot,) = v.get_slot_variables(optimizer)
        assert optimizer.get_slot(v, "accumulator").params.name == slot.name
        found, exported = slot.lookup([3, 4]), slot.export()
        write = slot.upsert([4], [[5.0]])
        start(session)
        np.testing.assert_allclose(session.run(found), [[0.1], [0.1]])
        session.run(step)
        session.run(write)
        np.testing.assert_allclose(session.run(found), [[1.1], [5.0]])
        assert sorted(session.run(exported)[0]) == [3, 4]
