"""Which enqueue, dequeue and apply_gradients belong together."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from tfembed import errors


def _embedding():
    table = tfembed.TableConfig(8, 2, name="users")
    config = {"clicks": tfembed.FeatureConfig(table)}
    return tfembed.TPUEmbedding(config, tfembed.SGD(0.1))


def _dense(*ids):
    return {"clicks": tf.constant(ids, tf.int64)}


def test_a_step_that_failed_can_be_forgotten():
    embedding = _embedding()
    embedding.enqueue(_dense(1, 2))
    embedding.enqueue(_dense(3, 4))
    embedding.dequeue()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="waiting for its apply_gradients"
    ):
        embedding.dequeue()
    embedding.reset_steps()
    embedding.enqueue(_dense(5, 6))
    embedding.dequeue()
    embedding.apply_gradients({"clicks": tf.ones([2, 2])})


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_refused_dequeue_changes_nothing(pipelined, in_function):
    table = tfembed.TableConfig(8, 2, tf.ones_initializer(), name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(1.0), pipelined
    )
    embedding.build(per_replica_batch_size=2)
    dequeue = (
        tf.function(embedding.dequeue) if in_function else (embedding.dequeue)
    )
    for ids in ([1, 2], [2, 3]):
        embedding.enqueue(tf.constant(ids))
    dequeue()
    for _ in range(2):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="waiting for its apply_grad"
        ):
            dequeue()
    embedding.apply_gradients(tf.ones([2, 2]))
    dequeue()
    embedding.apply_gradients(tf.ones([2, 2]))
    rows = embedding.embedding_tables[table].numpy()[:, 0]
    assert rows.tolist() == [1, 0, -1, 0, 1, 1, 1, 1]


def test_inference_needs_no_gradients_and_refuses_them():
    embedding = _embedding()
    for _ in range(3):
        embedding.enqueue(_dense(1, 2), training=False)
        embedding.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError, match="training=False"):
        embedding.apply_gradients({"clicks": tf.ones([2, 2])})


@pytest.mark.parametrize("name", [None, "constant"])
def test_a_tape_leaves_out_a_lookup_that_is_enqueued_for_inference(name):
    embedding = _embedding()
    (start,) = (t.numpy() for t in embedding.embedding_tables.values())
    with tf.GradientTape() as tape:
        with tape.stop_recording():
            embedding.enqueue(_dense(1, 1), training=False, name=name)
            constant = tf.reduce_sum(embedding.dequeue(name=name)["clicks"])
        embedding.enqueue(_dense(1, 2))
        rows = embedding.dequeue()["clicks"]
        tape.watch(rows)
        loss = tf.reduce_sum(rows) * constant
    embedding.apply_gradients({"clicks": tape.gradient(loss, rows)})

    start[1:3] -= 0.1 * constant
    (end,) = embedding.embedding_tables.values()
    tf.debugging.assert_near(end, start)


def test_lookups_of_different_names_do_not_meet():
    embedding = _embedding()
    embedding.enqueue(_dense(1, 1), name="one")
    embedding.enqueue(_dense(2, 2), name="two")
    two, one = embedding.dequeue("two"), embedding.dequeue("one")
    start = next(iter(embedding.embedding_tables.values())).numpy()
    tf.debugging.assert_equal(one["clicks"][0], start[1])
    tf.debugging.assert_equal(two["clicks"][0], start[2])
    embedding.apply_gradients({"clicks": tf.ones([2, 2])}, "one")
    embedding.apply_gradients({"clicks": tf.zeros([2, 2])}, "two")
    moved = start - next(iter(embedding.embedding_tables.values())).numpy()
    assert moved[1].tolist() == pytest.approx([0.2, 0.2])
    assert not moved[2].any()


def test_a_gradient_trap_may_apply_the_gradients():
    """As layers on top do: the update runs inside a custom gradient."""
    embedding = _embedding()
    dummy = tf.Variable(0.0)

    @tf.custom_gradient
    def trap(value):
        activations = embedding.dequeue("trap")["clicks"]

        def gradient(upstream):
            embedding.apply_gradients({"clicks": upstream}, "trap")
            return tf.zeros_like(value)

        return activations, gradient

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(trap(dummy) * 2.0)
        tape.gradient(loss, dummy)

    start = next(iter(embedding.embedding_tables.values())).numpy()
    embedding.enqueue(_dense(1, 3), name="trap")
    step()
    moved = start - next(iter(embedding.embedding_tables.values())).numpy()
    assert moved[:, 0].tolist() == pytest.approx([0, 0.2, 0, 0.2, 0, 0, 0, 0])


@marks.REPLICAS
def test_a_batch_that_is_wrong_for_one_replica_reaches_none():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        embedding = _embedding()
    batches = [tf.constant([1, 2]), tf.constant([1, 2, 3])]
    wrong = strategy.experimental_distribute_values_from_function(
        lambda context: batches[context.replica_id_in_sync_group]
    )
    embedding.build(2)
    with pytest.raises(errors.ArgumentError, match="Inconsistent.*clicks"):
        embedding.enqueue({"clicks": wrong})
    embedding.enqueue(_dense(3, 3))
    activations = strategy.run(lambda: embedding.dequeue()["clicks"])
    row = next(iter(embedding.embedding_tables.values())).numpy()[3]
    for one in strategy.experimental_local_results(activations):
        assert one.numpy().tolist() == [row.tolist()] * 2
