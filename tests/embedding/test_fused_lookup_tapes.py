"""Where TPUEmbeddingV0 looks up by the host's own op, and what tapes make of it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed
from cpu_replicas import mirrored
from embedding import v0, v0_batches


def _embedding():
    table = tfembed.TableConfig(9, 3, v0_batches.rows, name="users")
    embedding = tfembed.TPUEmbeddingV0(
        [tfembed.FeatureConfig(table) for _ in range(2)], None
    )
    embedding.build()
    return embedding


def _types(embedding, *batch):
    graph = tf.function(embedding).get_concrete_function(*batch).graph
    return [op.type for op in graph.get_operations()]


def test_each_table_is_looked_up_in_one_op():
    tables = [tfembed.TableConfig(9, 3, name=name) for name in "ab"]
    features = [tfembed.FeatureConfig(t) for t in (*tables, tables[0])]
    embedding = tfembed.TPUEmbeddingV0(features, None)
    embedding.build()
    types = _types(embedding, [tf.constant([1])] * 3)
    assert types.count("Tfembed>GroupedLookup") == 2
    assert "ResourceGather" not in types


def test_rows_are_not_gathered_for_weights_that_no_tape_asks_for():
    embedding = _embedding()
    (table,) = embedding.trainable_variables
    weights = v0.RAGGED.with_values(tf.ones([3]))

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            found = embedding([tf.constant([3]), v0.RAGGED], [None, weights])
        return tape.gradient(found[1], table).values

    graph = gradient.get_concrete_function().graph
    types = [op.type for op in graph.get_operations()]
    assert "Tfembed>GroupedLookupGradient" in types
    assert "ResourceGather" not in types


def test_a_table_that_the_loss_does_not_use_has_no_gradient():
    tables = [tfembed.TableConfig(9, 3, name=name) for name in "ab"]
    embedding = tfembed.TPUEmbeddingV0(
        [tfembed.FeatureConfig(table) for table in tables], None
    )
    with tf.GradientTape() as tape:
        used, _ = embedding([tf.constant([1])] * 2)
        loss = tf.reduce_sum(used)
    first, second = tape.gradient(loss, embedding.trainable_variables)
    assert first is not None
    assert second is None


@pytest.mark.parametrize("taken", [True, False])
def test_a_tape_may_be_around_a_branch(taken):
    embedding = _embedding()
    (table,) = embedding.trainable_variables

    @tf.function
    def gradient(taken):
        with tf.GradientTape() as tape:
            found = tf.cond(
                taken,
                lambda: embedding([tf.constant([3]), tf.constant([1])])[1],
                lambda: tf.zeros([1, 3]),
            )
        return tf.convert_to_tensor(tape.gradient(found, table))

    ones = gradient(tf.constant(taken)).numpy().sum(1).tolist()
    assert ones == [3.0 * (taken and i == 1) for i in range(9)]


@pytest.mark.parametrize("place", ["branch", "loop"])
def test_weights_have_gradients_out_of_branches_and_loops(place):
    embedding = _embedding()
    ids = tf.ragged.constant([[1, 3], [8]])

    def look_up(numbers):
        weights = ids.with_values(numbers)
        return embedding([tf.constant([3]), ids], [None, weights])[1]

    @tf.function
    def gradient(numbers):
        with tf.GradientTape() as tape:
            tape.watch(numbers)
            found = tf.zeros([2, 3])
            if place == "loop":
                for _ in tf.range(1):
                    found += look_up(numbers)
            elif tf.reduce_all(numbers > 0):
                found = look_up(numbers)
        return tape.gradient(found, numbers)

    numbers = tf.constant([2.0, 0.5, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        found = look_up(numbers)
    expected = tape.gradient(found, numbers)
    np.testing.assert_allclose(gradient(numbers), expected, 1e-5, 1e-6)
    assert np.abs(expected).max() > 0


def test_a_tape_may_be_around_a_loop():
    embedding = _embedding()
    (table,) = embedding.trainable_variables

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            loss = 0.0
            for i in tf.range(3):
                found = embedding([ids, ids + i])
                loss += tf.reduce_sum(found[1])
        return tf.convert_to_tensor(tape.gradient(loss, table))

    found = gradient(tf.constant([1, 2])).numpy()[:, 0]
    assert found.tolist() == [0, 1, 2, 2, 1, 0, 0, 0, 0]


def test_a_persistent_tape_gives_gradients_again():
    embedding = _embedding()
    (table,) = embedding.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(embedding([tf.constant([3]), v0.RAGGED])[1])
    first, second = (tape.gradient(loss, table) for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)


def test_a_gradient_penalty_on_activations_has_a_gradient():
    embedding = _embedding()
    (table,) = embedding.trainable_variables
    with tf.GradientTape() as outer:
        found = embedding([tf.constant([3]), tf.constant([1])])[1]
        with tf.GradientTape() as inner:
            inner.watch(found)
            loss = tf.reduce_sum(found**3)
        penalty = tf.reduce_sum(inner.gradient(loss, found) ** 2)
    slices = outer.gradient(penalty, table)
    np.testing.assert_allclose(
        tf.convert_to_tensor(slices)[1], 36 * v0_batches.ROWS[1] ** 3, 1e-5
    )


def test_second_order_gradients_say_that_there_are_none():
    embedding = _embedding()
    (table,) = embedding.trainable_variables
    weights = v0.RAGGED.with_values(tf.ones([3]))
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape(persistent=True) as inner:
            outer.watch(weights.values)
            inner.watch(weights.values)
            found = embedding([tf.constant([3]), v0.RAGGED], [None, weights])
            loss = tf.reduce_sum(found[1] ** 3)
        of_table = inner.gradient(loss, table).values
        of_weights = inner.gradient(loss, weights.values)
    with pytest.raises(LookupError, match="no second-order"):
        outer.gradient(of_table, table)
    with pytest.raises(LookupError, match="no second-order"):
        outer.gradient(of_weights, weights.values)


@pytest.mark.parametrize("in_function", [False, True])
def test_replicas_look_up_in_their_own_copy(in_function):
    strategy = mirrored(2)
    with strategy.scope():
        embedding = v0.embedding(combiner="sum")
    table = v0.table_of(embedding)
    devices = []

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            found = embedding(tf.reshape(replica, [1]) + 2)
        gradient = tape.gradient(found, table)
        devices.append(found.device)
        return found, tf.convert_to_tensor(gradient)

    found, gradients = (
        strategy.experimental_local_results(one)
        for one in strategy.run(tf.function(step) if in_function else step)
    )
    for i in range(2):
        np.testing.assert_array_equal(found[i], v0.ROWS[[i + 2]])
        assert gradients[i].numpy()[:, 0].tolist() == [
            float(row == i + 2) for row in range(4)
        ]
        assert devices[i].endswith(f"CPU:{i}")


def test_outside_of_replicas_tensorflow_looks_up():
    strategy = mirrored(2)
    with strategy.scope():
        embedding = v0.embedding(combiner="sum")
        found = embedding(v0.SPARSE)
    assert found[0].numpy().tolist() == (v0.ROWS[1] + v0.ROWS[3]).tolist()


def test_a_graph_of_tensorflow_1_looks_up():
    for device in (None, "/CPU:0"):
        with (
            tf.Graph().as_default(),
            tf.compat.v1.Session() as session,
            tf.device(device),
        ):
            embedding = v0.embedding(combiner="sum")
            ragged = tf.RaggedTensor.from_row_splits(
                tf.constant([1, 3, 2]), tf.constant([0, 2, 2, 3])
            )
            found = embedding(ragged)
            (gradient,) = tf.gradients(found, [v0.table_of(embedding)])
            session.run(tf.compat.v1.global_variables_initializer())
            rows, slopes = session.run([found, gradient])
        assert rows[0].tolist() == (v0.ROWS[1] + v0.ROWS[3]).tolist()
        assert sorted(slopes.indices.tolist()) == [1, 2, 3]
        assert slopes.values.tolist() == [[1.0, 1.0]] * 3


def test_tables_without_a_vocabulary_are_looked_up_beside_others():
    grown = tfembed.TableConfig(None, 3, name="grown", seed=3)
    fixed = tfembed.TableConfig(9, 3, v0_batches.rows, name="fixed")
    features = [tfembed.FeatureConfig(table) for table in (grown, fixed, grown)]
    embedding = tfembed.TPUEmbeddingV0(features, None)
    found = embedding([tf.constant([10**9]), tf.constant([1]), v0.RAGGED])
    np.testing.assert_array_equal(found[1], v0_batches.ROWS[[1]])
    assert found[2].shape == [3, 3]


def test_functions_for_xla_keep_tensorflows_ops():
    embedding = _embedding()
    batch = [tf.constant([3]), tf.constant([1])]
    compiled = tf.function(embedding, jit_compile=True)
    np.testing.assert_array_equal(compiled(batch)[1], v0_batches.ROWS[[1]])


def test_engines_of_programs_are_traced_for_programs_that_come_later():
    embedding = v0_batches.embedding("replicated")
    look_up = tf.function(embedding)
    batch = {"clicks": tf.constant([1])}
    look_up(batch)
    later = tf.function(lambda batch: look_up(batch), jit_compile=True)
    np.testing.assert_array_equal(later(batch)["clicks"], v0_batches.ROWS[[1]])


class _Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.embedding = _embedding()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def serve(self, ids):
        return self.embedding([ids, ids])[1]


def test_an_exported_model_needs_tensorflow_alone(tmp_path):
    """Also where its function was called before."""
    model = _Model()
    model.serve(tf.constant([1], tf.int64))
    path = str(tmp_path / "model")
    tf.saved_model.save(model, path, signatures=model.serve)
    output = fresh_process.output_of(
        """
        import sys
        import tensorflow as tf

        model = tf.saved_model.load(sys.argv[1])
        print(model.serve(tf.constant([1, 8], tf.int64)).numpy().tolist())
        assert "tfembed" not in sys.modules
        """,
        path,
    )
    np.testing.assert_allclose(eval(output), v0_batches.ROWS[[1, 8]], 1e-6)
