"""Tables as sources of gradients answer what TensorFlow asks of variables.

The kind of fault: TensorFlow takes a table for a variable and finds half of one.
Looked at too: wrappers, shadows, Keras weights, the trap of DistributedEmbedding.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from gradients.tables import (
    DIM,
    IDS,
    RATE,
    ROWS,
    DistributedLayer,
    Grown,
    Shadow,
    Steps,
    TableLayer,
    filled,
)
from gradients.ways import ids, loss_of
from tfembed import errors

ZERO = tf.UnconnectedGradients.ZERO


@pytest.mark.parametrize(
    "make", [Grown, Shadow, lambda: TableLayer("weight"), DistributedLayer]
)
def test_a_reference_gives_the_source_back(make):
    (source,) = make().sources
    assert source.ref().deref() is source
    assert {source.ref(): 1}[source.ref()] == 1


def test_watched_variables_are_taken_for_their_tables():
    table = Grown()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([table.v])
        loss = loss_of(table.look_up(ids()))
    (watched,) = tape.watched_variables()
    assert isinstance(watched, tf.Variable)
    gradients = tape.gradient(loss, [watched])
    table.optimizer.apply_gradients(zip(gradients, [watched], strict=True))
    assert np.abs(table.rows() - ROWS).max(1).nonzero()[0].tolist() == [1, 3, 7]


def test_minimize_finds_what_a_tape_was_told_to_watch():
    table, dense = Grown(), tf.Variable(1.0)
    optimizer = de.DynamicEmbeddingOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(RATE)
    )
    for options in ({"watch_accessed_variables": False}, {}):
        before = table.rows()
        tape = tf.GradientTape(**options)
        with tape:
            tape.watch([table.v, dense])
            loss = loss_of(table.look_up(ids())) * dense
        optimizer.minimize(loss, None, tape=tape)
        assert np.abs(table.rows() - before).max() > 1e-3


def test_what_is_not_watched_has_no_gradient():
    watched, other = filled("watched"), filled("other")
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        rows = [
            de.embedding_lookup(v, ids(), name="x") for v in (watched, other)
        ]
        loss = loss_of(rows[0]) + loss_of(rows[1])
    found, nothing = tape.gradient(loss, [watched, other])
    assert found.indices.numpy().tolist() == IDS
    assert nothing is None


@pytest.mark.parametrize("in_graph", [False, True])
def test_zeros_are_gradients_that_move_nothing(in_graph):
    table, dense = Grown(), tf.Variable(2.0)
    sources = [table.v, dense]

    def step():
        with tf.GradientTape() as tape:
            loss = dense * dense
        if in_graph:  # TensorFlow makes others there: a dense tensor.
            found = tf.gradients(
                loss, sources, unconnected_gradients=ZERO.value
            )
        else:
            found = tape.gradient(loss, sources, unconnected_gradients=ZERO)
        table.optimizer.apply_gradients(zip(found, sources, strict=True))

    (tf.function(step) if in_graph else step)()
    np.testing.assert_array_equal(table.rows(), ROWS)
    assert dense.numpy() == 2.0 - RATE * 4.0


def recomputed_gradient(v, keys):
    """The rows of a gradient by key, of lookups that are made again."""
    scale = tf.range(1.0, 1.0 + len(keys))[:, tf.newaxis]

    @tf.recompute_grad
    def found(scale):
        return scale * de.embedding_lookup(v, keys, name="x")

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(found(scale))
    slices = tape.gradient(loss, v)
    return slices.indices.numpy().tolist(), slices.values.numpy()[:, 0].tolist()


@pytest.mark.parametrize(
    ("dtype", "keys"),
    [
        (tf.int64, [0, -1, 2**62 + 3, -(2**63), 2**63 - 1, 65535]),
        (tf.int32, [0, -1, 2**31 - 1, -(2**31), 65536]),
        (tf.string, [b"", b"a", b"\x00b\x00", b"\xff" * 40, "ü".encode()]),
    ],
)
def test_every_key_comes_through_a_recomputation(dtype, keys):
    v = de.Variable(key_dtype=dtype, dim=DIM, name="keys", initializer=1.0)
    found, rows = recomputed_gradient(v, tf.constant(keys, dtype))
    assert found == keys
    assert rows == [1.0 + i for i in range(len(keys))]


def test_a_recomputation_without_ids_has_an_empty_gradient():
    v = filled()
    assert recomputed_gradient(v, tf.zeros([0], tf.int64)) == ([], [])


def test_lookups_of_one_recomputation_add_up():
    v = filled()

    @tf.recompute_grad
    def found(ids):
        twice = 2.0 * de.embedding_lookup(v, ids[:2], name="y")
        return de.embedding_lookup(v, ids, name="x")[:2] + twice

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(found(ids())) + tf.reduce_sum(found(ids() - 1))
    slices = tape.gradient(loss, v)
    found = np.zeros([8])
    np.add.at(found, slices.indices.numpy(), slices.values.numpy()[:, 0])
    # The first two of each batch, by two lookups of one recomputation.
    assert found.tolist() == [3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]


def test_a_gradient_that_was_changed_as_a_tensor_is_refused():
    v = filled()

    @tf.custom_gradient
    def found(ids):
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(v, ids, name="x")

        def gradient(upstream, variables=None):
            of_table = tape.gradient(rows, variables, output_gradients=upstream)
            return None, [2.0 * tf.convert_to_tensor(one) for one in of_table]

        return rows, gradient

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(found(ids()))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Change its"):
        tape.gradient(loss, v)


@pytest.mark.parametrize(
    "use", [tf.convert_to_tensor, tf.nn.l2_loss, tf.reduce_sum]
)
def test_a_table_is_no_tensor(use):
    with pytest.raises(errors.DtypeError, match="embedding_lookup"):
        use(filled())


def test_a_table_may_be_an_argument_of_a_function():
    table = Grown()

    @tf.function
    def step(v, asked):
        with tf.GradientTape() as tape:
            loss = loss_of(de.embedding_lookup(v, asked))
        table.optimizer.apply_gradients([(tape.gradient(loss, v), v)])
        return loss

    step(table.v, ids())
    assert np.abs(table.rows() - ROWS).max() > 1e-3


def test_a_refused_dequeue_leaves_the_batch_to_the_next():
    steps = Steps()
    steps.embedding.enqueue(ids())
    with pytest.raises(errors.UnsupportedError, match="Dequeue before"):
        tf.recompute_grad(lambda x: x * steps.embedding.dequeue())(
            tf.constant(1.0)
        )
    rows = steps.embedding.dequeue()
    np.testing.assert_array_equal(rows, ROWS[IDS])
    double = tf.recompute_grad(lambda rows: 2.0 * rows)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        loss = tf.reduce_sum(double(rows))
    steps.embedding.apply_gradients(tape.gradient(loss, rows))
    assert np.isclose(steps.rows()[7], ROWS[7] - 2.0 * RATE).all()


def test_a_layer_in_a_function_that_was_traced_without_a_tape_is_trained():
    table = DistributedLayer()
    look_up = tf.function(table.look_up)
    look_up(ids())
    with tf.GradientTape() as tape:
        loss = loss_of(look_up(ids()))
    table.apply(tape.gradient(loss, table.sources))
    assert np.abs(table.rows() - ROWS).max(1).nonzero()[0].tolist() == [1, 3, 7]


def test_an_eager_tape_around_a_function_moves_a_layers_tables_once():
    table = DistributedLayer()
    look_up = tf.function(lambda asked: tf.reduce_sum(table.look_up(asked)))
    with tf.GradientTape() as tape:
        loss = look_up(ids())
    table.apply(tape.gradient(loss, table.sources))
    expected = ROWS.copy()
    np.subtract.at(expected, IDS, RATE)
    np.testing.assert_allclose(table.rows(), expected, 1e-6)


def test_forward_mode_moves_no_tables_of_a_layer():
    table = DistributedLayer()
    (trap,) = table.sources
    with (
        pytest.raises(errors.UnsupportedError, match="tf.GradientTape"),
        tf.autodiff.ForwardAccumulator(trap.value, tf.ones(trap.shape)),
    ):
        table.look_up(ids())
    np.testing.assert_array_equal(table.rows(), ROWS)


def test_the_tables_of_a_layer_may_be_watched_by_its_weights():
    for table in (TableLayer("weight"), DistributedLayer()):
        before = table.rows()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(table.layer.trainable_weights)
            loss = loss_of(table.look_up(ids()))
        table.apply(tape.gradient(loss, table.layer.trainable_weights))
        assert np.abs(table.rows() - before).max() > 1e-3
