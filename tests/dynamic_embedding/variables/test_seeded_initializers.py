"""Initial rows that a function of the program's own draws by a seed a key."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from keras_models import batches, model_of, table_of
from tests.dynamic_embedding.graph_programs import (
    graph_and_session,
    start,
    v1,
)
from tests.dynamic_embedding.seeded_variables import (
    DIM,
    gamma,
    row_of,
    variable,
)
from tfembed import optimizers
from tfembed.tables import HashTable


class Doubled:
    """An object that is called, without `dtype`."""

    def __call__(self, shape, *, seed):
        return 2 * gamma(shape, seed=seed)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_missing_key_reads_what_the_function_draws_of_it(shards, in_function):
    v = variable(shards=shards)
    v.upsert([4], np.zeros([1, DIM]))
    run = tf.function if in_function else lambda function: function

    rows, exists = run(lambda ids: v.lookup(ids, return_exists=True))(
        tf.constant([[4, -7], [2**40, -7]], tf.int64)
    )

    seed = v.table.seed
    expected = [
        [np.zeros(DIM), row_of(seed, -7)],
        [row_of(seed, 2**40), row_of(seed, -7)],
    ]
    np.testing.assert_array_equal(rows, expected)
    assert exists.numpy().tolist() == [[True, False], [False, False]]
    assert v.size() == 1


def test_an_object_may_be_called_and_rows_are_cast():
    v = variable(Doubled(), value_dtype=tf.float16)
    seed = v.table.seed
    np.testing.assert_array_equal(
        v.lookup([5])[0], (2 * row_of(seed, 5)).astype(np.float16)
    )


def test_strings_have_rows_of_their_own():
    v = variable(key_dtype=tf.string)
    a, b, again = v.lookup(tf.constant(["a", "b", "a"])).numpy()
    assert (a != b).all()
    np.testing.assert_array_equal(a, again)


def test_lookups_of_all_kinds_read_them():
    v = variable()
    expected = v.lookup([1, 2]).numpy()
    ids = tf.constant([1, 2], tf.int64)
    sparse = tf.sparse.from_dense(ids[None])
    np.testing.assert_array_equal(
        de.embedding_lookup(v, ids, name="a"), expected
    )
    np.testing.assert_allclose(
        de.embedding_lookup_sparse(v, sparse, None, combiner="sum", name="b"),
        expected.sum(0, keepdims=True),
        rtol=1e-6,
    )
    shadow = de.shadow_ops.ShadowVariable(v)
    np.testing.assert_array_equal(
        de.shadow_ops.embedding_lookup(shadow, ids), expected
    )
    np.testing.assert_array_equal(v.tables[0].lookup(ids), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizers.SGD(0.5),
        lambda: tf.keras.optimizers.SGD(0.5),
        lambda: v1.train.GradientDescentOptimizer(0.5),
        # Not fused; its first step is one of learning_rate * sign.
        lambda: tf.keras.optimizers.Lion(0.5),
    ],
    ids=["our own", "keras", "v1", "its own update"],
)
@pytest.mark.parametrize("bp_v2", [False, True])
def test_training_begins_at_them(make, bp_v2):
    v = variable(shards=2, bp_v2=bp_v2)
    seed = v.table.seed
    optimizer = de.DynamicEmbeddingOptimizer(make())

    @tf.function
    def step():
        optimizer.minimize(
            lambda: tf.reduce_sum(de.embedding_lookup(v, [1, 8], name="l")),
            var_list=[v],
        )

    step()
    np.testing.assert_allclose(
        v.lookup([1, 8, 9]),
        [row_of(seed, 1) - 0.5, row_of(seed, 8) - 0.5, row_of(seed, 9)],
        rtol=1e-5,
        atol=1e-6,
    )
    assert v.size() == 2


@pytest.mark.parametrize("nonfinite", ["skip", "refuse"])
@pytest.mark.parametrize(
    "make", [lambda: optimizers.SGD(0.5), lambda: tf.keras.optimizers.Lion(0.5)]
)
def test_keys_with_a_bad_gradient_are_not_inserted(make, nonfinite):
    v = variable()
    optimizer = de.DynamicEmbeddingOptimizer(make(), nonfinite=nonfinite)
    gradient = tf.IndexedSlices(
        tf.constant([[np.nan] * DIM, [1.0] * DIM]),
        tf.constant([1, 2], tf.int64),
    )
    if nonfinite == "refuse":
        with pytest.raises(tf.errors.InvalidArgumentError):
            optimizer.apply_gradients([(gradient, v)])
        assert v.size() == 0
    else:
        optimizer.apply_gradients([(gradient, v)])
        assert v.export()[0].numpy().tolist() == [2]


def test_a_graph_of_tensorflow_1_trains_from_them():
    with graph_and_session() as session:
        v = variable()
        seed = v.table.seed
        optimizer = de.DynamicEmbeddingOptimizer(
            v1.train.GradientDescentOptimizer(0.5)
        )
        rows = de.embedding_lookup(v, tf.constant([1, 8], tf.int64), name="l")
        step = optimizer.minimize(tf.reduce_sum(rows))
        start(session)
        session.run(step)
        session.run(step)
        found = session.run(v.lookup([1, 9]))
    np.testing.assert_allclose(
        found, [row_of(seed, 1) - 1, row_of(seed, 9)], rtol=1e-5, atol=1e-6
    )


def test_a_saved_model_draws_them_too(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.v = variable()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, ids):
            return self.v.lookup(ids)

    model = Model()
    model.v.upsert([1], np.ones([1, DIM]))
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    ids = tf.constant([1, 2], tf.int64)
    np.testing.assert_array_equal(loaded(ids), model(ids))


def test_the_table_of_a_saved_model_draws_them_by_itself(tmp_path):
    model = tf.Module()
    model.table = HashTable(DIM, name="t", initializer=gamma, seed=5)
    model.table.upsert([1], np.ones([1, DIM]))
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(
        loaded.table.lookup([1, 2])[0], [np.ones(DIM), row_of(5, 2)]
    )
    tf.saved_model.save(loaded, str(tmp_path / "again"))
    again = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_array_equal(again.table.lookup([2])[0], [row_of(5, 2)])


def test_a_function_may_read_a_variable_that_no_saved_model_has(tmp_path):
    scale = tf.Variable(2.0)
    model = tf.Module()
    model.table = HashTable(
        DIM,
        name="t",
        initializer=lambda shape, seed: gamma(shape, seed=seed) * scale,
        seed=5,
    )
    np.testing.assert_array_equal(
        model.table.lookup([2])[0], [2 * row_of(5, 2)]
    )
    model.table.upsert([1], np.ones([1, DIM]))
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(
        loaded.table.lookup([1])[0], np.ones([1, DIM])
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="reads variables"):
        loaded.table.lookup([1, 2])


def test_a_function_may_read_tensors_of_a_graph():
    with graph_and_session() as session:
        scale = v1.placeholder_with_default(2.0, [])
        v = variable(lambda shape, seed: gamma(shape, seed=seed) * scale)
        rows = session.run(v.lookup([2]))
    np.testing.assert_array_equal(rows, [2 * row_of(v.table.seed, 2)])


def test_constant_nan_rows_are_alike():
    v = variable(lambda shape, seed: tf.fill(shape, np.nan))
    assert np.isnan(v.lookup([1])).all()


def test_a_restore_brings_its_seed_to_functions_traced_before(tmp_path):
    tf.random.set_seed(1)
    saved = variable(name="again")
    saved.upsert([1], np.ones([1, DIM]))
    path = tf.train.Checkpoint(v=saved).save(str(tmp_path / "c"))
    expected = saved.lookup([1, 2])
    tf.random.set_seed(2)
    other = variable(name="again")
    lookup = tf.function(other.lookup)
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.SGD(0.5))
    step = tf.function(
        lambda: optimizer.minimize(
            lambda: tf.reduce_sum(de.embedding_lookup(other, [3], name="l")),
            var_list=[other],
        )
    )
    step()
    assert (lookup([1, 2]).numpy() != expected.numpy()).all()
    tf.train.Checkpoint(v=other).restore(path)
    np.testing.assert_array_equal(lookup([1, 2]), expected)
    step()
    np.testing.assert_allclose(
        other.lookup([3])[0], saved.lookup([3])[0] - 0.5, rtol=1e-6
    )


def test_a_key_is_drawn_once_a_batch():
    calls = []

    def counted(shape, dtype, seed):
        tf.py_function(lambda: calls.append(1), [], [])
        return gamma(shape, dtype, seed)

    v = variable(counted)
    calls.clear()
    v.lookup([7, 7, 8, 7])
    assert len(calls) == 2


def test_many_variables_warn_of_no_retracing():
    # TensorFlow warns twice in a process.
    result = fresh_process.run(
        """
        import tensorflow as tf
        import tfembed.dynamic_embedding as de

        def gamma(shape, dtype, seed):
            return tf.random.stateless_gamma(shape, seed, 2.0, dtype=dtype)

        for i in range(8):
            v = de.Variable(dim=3, initializer=gamma, name=f"drawn_{i}")
            v.lookup([1])
        """
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "retracing" not in result.stderr


@keras.saving.register_keras_serializable("tests")
def drawn_rows(shape, dtype, seed):
    return gamma(shape, dtype, seed)


def test_a_keras_file_has_them(tmp_path):
    model = model_of(initializer=drawn_rows)
    model.fit(batches(), verbose=0)
    assert int(table_of(model).size()) == 37

    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")

    ids = np.array([[1, 2], [1000, 1001]])  # The last are in neither table.
    np.testing.assert_array_equal(loaded.predict(ids), model.predict(ids))
