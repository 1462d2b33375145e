"""Training in graphs of TensorFlow 1: policies, bounds, sessions, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    start,
    table,
    train,
    v1,
)
from tfembed import errors, policies


def sgd(rate=0.5, **options):
    optimizer = v1.train.GradientDescentOptimizer(rate)
    return de.DynamicEmbeddingOptimizer(optimizer, **options)


def summed_step(v, optimizer=None, factor=1.0):
    """A placeholder of ids, and a step that trains the sum of their rows."""
    ids = v1.placeholder(tf.int64, [None])
    loss = factor * tf.reduce_sum(de.embedding_lookup(v, ids))
    return ids, (optimizer or sgd()).minimize(loss)


def test_a_restrict_policy_notes_what_steps_update():
    with graph_and_session() as session:
        v = table(restrict_policy=de.FrequencyRestrictPolicy)
        ids, step = summed_step(v)
        restrict, keys = v.restrict(1, trigger=1), v.table.keys()
        noted = v.restrict_policy.status.export()
        start(session)
        train(session, step, ids, [[1, 2], [1, 5, 5], [1]])
        keys_noted, counts = session.run(noted)
        assert dict(zip(keys_noted, counts[:, 0], strict=True)) == {
            1: 3,
            2: 1,
            5: 1,
        }
        session.run(restrict)
        assert session.run(keys).tolist() == [1]


def test_keys_are_admitted_and_expire():
    with graph_and_session() as session:
        v = table(
            admission=policies.CountAdmission(2),
            eviction=policies.LeastRecent(),
            expiry=policies.Expiry(2, every=4),
        )
        ids, step = summed_step(v)
        keys = v.table.keys()
        start(session)
        held = []
        for batch in ([1, 2], [1, 2], [1], [1]):
            session.run(step, {ids: batch})
            held.append(set(session.run(keys)))
    assert held == [set(), {1, 2}, {1, 2}, {1}]


def test_admission_is_refused_by_updates_that_are_not_fused():
    with tf.Graph().as_default():
        v = table(admission=policies.CountAdmission(2))
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        with pytest.raises(errors.UnsupportedError, match="admits keys"):
            summed_step(v, de.DynamicEmbeddingOptimizer(optimizer))
        assert v.table.optimizer is None


@pytest.mark.parametrize(
    "optimizer", [sgd, lambda: v1.train.MomentumOptimizer(0.5, 0.0)]
)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_batch_that_does_not_fit_moves_nothing(optimizer, shards):
    with graph_and_session() as session:
        v = table(
            dim=1,
            shards=shards,
            max_size=2 * shards,
            eviction=policies.LeastRecent(),
        )
        dense = v1.get_variable("dense", initializer=1.0)
        count = v1.train.get_or_create_global_step()
        ids = v1.placeholder(tf.int64, [None])
        made = optimizer()
        if not hasattr(made, "nonfinite_rows"):
            made = de.DynamicEmbeddingOptimizer(made)
        loss = tf.reduce_sum(de.embedding_lookup(v, ids)) * dense
        step = made.minimize(loss, global_step=count)
        state = [v.lookup([0, 2]), v.size(), dense, count, made.iterations]
        start(session)
        session.run(step, {ids: [0, 2]})
        before = session.run(state)
        with pytest.raises(tf.errors.InvalidArgumentError, match="distinct"):
            session.run(step, {ids: [0, 2, 4, 6, 8]})
        for one, other in zip(before, session.run(state), strict=True):
            np.testing.assert_array_equal(one, other)
        session.run(step, {ids: [4]})
        assert session.run(v.size()) <= 2 * shards


@pytest.mark.parametrize(
    ("nonfinite", "moved"), [("skip", [1, 3, 5]), ("refuse", [])]
)
def test_a_gradient_that_is_not_finite_is_skipped_or_refused(nonfinite, moved):
    with graph_and_session() as session:
        v = table(dim=1)
        optimizer = sgd(nonfinite=nonfinite)
        scale = v1.placeholder(tf.float32, [4, 1])
        ids = tf.constant([1, 2, 3, 5], tf.int64)
        rows = de.embedding_lookup(v, ids)
        step = optimizer.minimize(tf.reduce_sum(rows * scale))
        start(session)
        feed = {scale: [[1.0], [np.nan], [1.0], [1.0]]}
        if nonfinite == "refuse":
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(step, feed)
        else:
            session.run(step, feed)
            assert session.run(optimizer.nonfinite_rows) == 1
        assert sorted(session.run(v.table.keys())) == moved


def test_a_dense_gradient_that_is_refused_leaves_tables_alone():
    with graph_and_session() as session:
        v, dense = table(dim=1), v1.get_variable("dense", initializer=1.0)
        scale = v1.placeholder(tf.float32, [])
        loss = tf.reduce_sum(de.embedding_lookup(v, [1])) + dense * scale
        step = sgd(nonfinite="refuse").minimize(loss)
        start(session)
        with pytest.raises(tf.errors.InvalidArgumentError, match="refuse"):
            session.run(step, {scale: np.inf})
        assert session.run([v.size(), dense]) == [0, 1.0]


def test_sessions_of_one_server_train_one_table():
    server = tf.distribute.Server.create_local_server()
    with tf.Graph().as_default():
        v = table("shared_by_sessions", dim=1)
        optimizer = de.DynamicEmbeddingOptimizer(
            v1.train.AdagradOptimizer(0.5, initial_accumulator_value=1.0)
        )
        ids, step = summed_step(v, optimizer)
        (slot,) = v.get_slot_variables(optimizer)
        found = slot.lookup([1])
        with v1.Session(server.target) as session:
            start(session)
            train(session, step, ids, [[1], [1]])
        with v1.Session(server.target) as session:
            train(session, step, ids, [[1]])
            assert session.run(found) == [[4.0]]


def test_a_server_refuses_a_second_optimizer_of_another_program():
    server = tf.distribute.Server.create_local_server()
    for maker in (v1.train.AdagradOptimizer, v1.train.AdamOptimizer):
        with graph_and_session(server.target) as session:
            v = table("of_two_programs", dim=1)
            optimizer = de.DynamicEmbeddingOptimizer(maker(0.5))
            ids, step = summed_step(v, optimizer)
            start(session)
            if maker is v1.train.AdagradOptimizer:
                session.run(step, {ids: [1]})
                rows = session.run(v.lookup([1]))
                continue
            with pytest.raises(
                tf.errors.FailedPreconditionError, match="'of_two_programs'"
            ):
                session.run(step, {ids: [1]})
            np.testing.assert_array_equal(session.run(v.lookup([1])), rows)


def test_a_step_runs_in_a_monitored_session():
    with tf.Graph().as_default():
        v = table(dim=1)
        count = v1.train.get_or_create_global_step()
        step = sgd().minimize(
            tf.reduce_sum(de.embedding_lookup(v, [1])), global_step=count
        )
        row = v.lookup([1])
        hooks = [v1.train.StopAtStepHook(3)]
        scaffold = v1.train.Scaffold(saver=v1.train.Saver([count]))
        with v1.train.MonitoredTrainingSession(
            hooks=hooks, scaffold=scaffold
        ) as session:
            while not session.should_stop():
                session.run(step)
                found = session.run_step_fn(
                    lambda step_context: step_context.session.run(row)
                )
    assert found[0, 0] == 1.0 - 3 * 0.5


@pytest.mark.parametrize("take", ["minimize", "apply_gradients"])
def test_a_step_is_refused_in_the_branches_and_loops_of_a_graph(take):
    with tf.Graph().as_default():
        v, optimizer = table(dim=1), sgd()
        gradient = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1], tf.int64))

        def step():
            if take == "minimize":
                optimizer.minimize(lambda: v.embedding_lookup([1]), [v])
            else:
                optimizer.apply_gradients([(gradient, v)])
            return tf.constant(0)

        for in_graph in (
            lambda: tf.cond(
                v1.placeholder(tf.bool, []), step, lambda: tf.constant(0)
            ),
            lambda: tf.while_loop(lambda i: i < 3, lambda i: i + step(), [0]),
        ):
            with pytest.raises(errors.UnsupportedError, match="TensorFlow 1"):
                in_graph()
        assert v.table.optimizer is None


def test_an_optimizer_made_elsewhere_is_refused():
    elsewhere = sgd()
    with tf.Graph().as_default():
        v = table()
        with pytest.raises(errors.StateError, match="outside of the graph"):
            summed_step(v, elsewhere)
        assert v.table.optimizer is None


def test_keras_optimizers_are_refused_in_a_graph():
    made_before = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(0.1))
    with tf.Graph().as_default():
        v = table()
        rows = de.embedding_lookup(v, [1])
        gradient = tf.gradients(rows, v)[0]
        with pytest.raises(errors.StateError, match="outside of the graph"):
            made_before.apply_gradients([(gradient, v)])
        with pytest.raises(errors.UnsupportedError, match="compat.v1.train"):
            de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(0.1))


def test_several_replicas_are_refused_in_a_graph():
    with tf.Graph().as_default():
        strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
        with strategy.scope():
            optimizer = sgd()
            with pytest.raises(errors.UnsupportedError, match="2 replicas"):
                summed_step(table(), optimizer)


def test_what_depends_on_other_rows_is_refused_in_a_graph():
    class Normalized(v1.train.GradientDescentOptimizer):
        def _resource_apply_dense(self, grad, handle):
            return super()._resource_apply_dense(grad / tf.norm(grad), handle)

    with (
        tf.Graph().as_default(),
        pytest.raises(errors.UnsupportedError, match="other rows"),
    ):
        de.DynamicEmbeddingOptimizer(Normalized(0.1))


def test_variables_without_a_gradient_are_refused():
    with tf.Graph().as_default():
        v = table()
        with pytest.raises(errors.ArgumentError, match="No variable has"):
            sgd().minimize(tf.reduce_sum(v.lookup([1])), var_list=[v])


def test_a_gradient_that_comes_twice_is_refused():
    with tf.Graph().as_default():
        v = table()
        rows, wrapper = de.embedding_lookup(v, [1], return_trainable=True)
        with pytest.raises(errors.ArgumentError, match="twice"):
            sgd().minimize(tf.reduce_sum(rows), var_list=[v, wrapper])


def test_a_wrappers_gradient_that_was_clipped_twice_is_refused():
    with tf.Graph().as_default():
        rows, wrapper = de.embedding_lookup(table(), [1], return_trainable=True)
        pairs = sgd().compute_gradients(tf.reduce_sum(rows), [wrapper, wrapper])
        clipped = [(tf.clip_by_norm(g, 1.0), v) for g, v in pairs]
        with pytest.raises(errors.ArgumentError, match="comes twice"):
            sgd().apply_gradients(clipped)


@pytest.mark.parametrize("kind", ["number", "wrapper"])
def test_what_counts_no_steps_is_refused(kind):
    with tf.Graph().as_default() as graph:
        v = table()
        rows, wrapper = de.embedding_lookup(v, [1], return_trainable=True)
        count = 3 if kind == "number" else wrapper
        with pytest.raises(errors.DtypeError, match="counts steps"):
            sgd().minimize(tf.reduce_sum(rows), global_step=count)
        assert v.table.optimizer is None
        assert not graph.get_collection(v1.GraphKeys.TRAIN_OP)
