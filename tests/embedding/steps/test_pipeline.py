"""Pipeline_execution_with_tensor_core: one step stale, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks, steps
from property import cases


def _rows(shape, dtype):
    return tf.random.stateless_uniform(shape, [3, 5], -1.0, 1.0, dtype)


def _strategy(replicas):
    if replicas == 0:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)]
    )


def _embedding(replicas=0, *, vocabulary=cases.VOCABULARY, pipelined=True):
    arguments = {"seed": 7} if vocabulary is None else {"initializer": _rows}
    with _strategy(replicas).scope():
        return tfembed.TPUEmbedding(
            steps.configs(vocabulary=vocabulary, **arguments),
            tfembed.Adagrad(0.5),
            pipelined,
        )


def _steps(n):
    rng = np.random.default_rng(5)
    return [steps.draw_step(rng) for _ in range(n)]


def _reference(embedding, batches):
    """One step stale by hand: lookup t is before update t - 1."""
    activations, waiting = [], None
    for i, step in enumerate(batches):
        features, weights = step.inputs()
        name = f"step{i % 2}"
        embedding.enqueue(features, weights, name=name)
        activations.append(embedding.dequeue(name))
        if waiting is not None:
            embedding.apply_gradients(*waiting)
        waiting = (step.structured_gradients(), name)
    embedding.apply_gradients(*waiting)
    return activations


def _assert_same(ours, reference, embedding, expected):
    for one, other in zip(ours, reference, strict=True):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 1e-6),
            one,
            other,
        )
    ids = range(-60, 60)
    tables = [steps.Tables.of(e, ids) for e in (embedding, expected)]
    for one, other in zip(tables[0].rows, tables[1].rows, strict=True):
        for i in one:
            np.testing.assert_allclose(one[i], other[i], 1e-6, 1e-6)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    "vocabulary", [cases.VOCABULARY, pytest.param(None, marks=marks.GROWS)]
)
def test_activations_are_one_step_stale_whoever_enqueues_when(
    vocabulary, in_function, ahead
):
    batches = _steps(6)
    expected = _embedding(vocabulary=vocabulary, pipelined=False)
    reference = _reference(expected, batches)
    embedding = _embedding(vocabulary=vocabulary)

    def enqueue(features, weights):
        embedding.enqueue(features, weights)

    def compute(gradients):
        activations = embedding.dequeue()
        embedding.apply_gradients(gradients)
        return activations

    if in_function:
        enqueue = tf.function(enqueue, reduce_retracing=True)
        compute = tf.function(compute)
    ours = []
    if ahead:
        enqueue(*batches[0].inputs())
    for i, step in enumerate(batches):
        if not ahead:
            enqueue(*step.inputs())
        elif i + 1 < len(batches):
            enqueue(*batches[i + 1].inputs())
        ours.append(compute(step.structured_gradients()))
    _assert_same(ours, reference, embedding, expected)


def test_a_loop_in_a_function_is_one_step_stale():
    table = tfembed.TableConfig(4, 1, _zeros, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(1.0), True
    )

    @tf.function
    def loop(n):
        seen = tf.TensorArray(tf.float32, n)
        for i in tf.range(n):
            embedding.enqueue(tf.constant([1]))
            activations = embedding.dequeue()
            seen = seen.write(i, activations[0, 0])
            embedding.apply_gradients(tf.ones_like(activations))
        return seen.stack()

    assert loop(tf.constant(5)).numpy().tolist() == [0, 0, -1, -2, -3]
    assert embedding.embedding_tables[table].numpy()[1].tolist() == [-5]


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=marks.REPLICAS)])
def test_replicas_are_one_step_stale_together(replicas):
    strategy = _strategy(replicas)
    table = tfembed.TableConfig(4, 1, _zeros, name="users")
    with strategy.scope():
        embedding = tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(1.0), True
        )

    def step():
        embedding.enqueue(tf.constant([1]))
        activations = embedding.dequeue()
        embedding.apply_gradients(tf.ones_like(activations))
        return activations

    run = tf.function(lambda: strategy.run(step))
    seen = []
    for _ in range(4):
        outputs = strategy.experimental_local_results(run())
        seen.append({float(output) for output in outputs})
    assert seen == [{0.0}, {0.0}, {-1.0 * replicas}, {-2.0 * replicas}]
    assert embedding.embedding_tables[table].numpy()[1] == -4 * replicas


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def _one_step():
    """An embedding with one update that waits: row 1 by -1."""
    table = tfembed.TableConfig(4, 1, _zeros, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(1.0), True
    )
    embedding.enqueue(tf.constant([1]))
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    return table, embedding


def _raw(embedding):
    """Row 1 as it is in memory."""
    return float(embedding._engine.tables[0].parameters[1, 0])


def test_the_update_waits_for_the_next_step():
    _, embedding = _one_step()
    assert _raw(embedding) == 0
    embedding.flush()
    assert _raw(embedding) == -1
    embedding.flush()
    assert _raw(embedding) == -1


READERS = {
    "embedding_tables": lambda e, _: e.embedding_tables,
    "_variables": lambda e, _: e._variables,
    "_retrieve_variables": lambda e, _: e._retrieve_variables(),
    "sizes": lambda e, _: e.sizes(),
    "inference": lambda e, _: e.enqueue(tf.constant([1]), training=False),
    "reset_steps": lambda e, _: e.reset_steps(),
    "save": lambda e, path: tf.train.Checkpoint(e=e).save(path / "model"),
}


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_the_tables_sees_the_last_step(reader, tmp_path):
    _, embedding = _one_step()
    READERS[reader](embedding, tmp_path)
    assert _raw(embedding) == -1


def test_asynchronous_checkpoints_have_the_last_step_each(tmp_path):
    table, embedding = _one_step()
    checkpoint = tf.train.Checkpoint(embedding=embedding)
    options = tf.train.CheckpointOptions(
        experimental_enable_async_checkpoint=True
    )
    paths = [checkpoint.save(str(tmp_path / "model"), options)]
    embedding.enqueue(tf.constant([1]))
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    paths.append(checkpoint.save(str(tmp_path / "model"), options))
    checkpoint.sync()
    key = "embedding/users/.ATTRIBUTES/VARIABLE_VALUE"
    saved = [tf.train.load_checkpoint(path).get_tensor(key) for path in paths]
    assert [rows[1, 0] for rows in saved] == [-1, -2]
    assert embedding.embedding_tables[table].numpy()[1] == -2


def test_a_restore_forgets_the_update_that_waits(tmp_path):
    table, embedding = _one_step()
    checkpoint = tf.train.Checkpoint(embedding=embedding)
    path = checkpoint.save(tmp_path / "model")
    embedding.enqueue(tf.constant([1]))
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    checkpoint.restore(path)
    assert embedding.embedding_tables[table].numpy()[1] == -1


def test_a_rate_is_that_of_its_own_step():
    rate = tf.Variable(1.0)
    table = tfembed.TableConfig(4, 1, _zeros, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(rate.read_value), True
    )
    for value in (1.0, 0.25):
        rate.assign(value)
        embedding.enqueue(tf.constant([1]))
        embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    assert _raw(embedding) == -1
    assert embedding.embedding_tables[table].numpy()[1] == -1.25


def test_the_rules_of_pairing_still_hold():
    _, embedding = _one_step()
    embedding.enqueue(tf.constant([1]))
    embedding.dequeue()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="waiting for its apply_gradients"
    ):
        embedding.dequeue()
    embedding.reset_steps()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no dequeued"):
        embedding.apply_gradients(tf.ones([1, 1]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="nothing enqueued"
    ):
        embedding.dequeue()


def _refusing():
    table = tfembed.TableConfig(4, 1, _zeros, name="t")
    return tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table),
        tfembed.SGD(1.0),
        True,
        nonfinite="refuse",
        engine="host",
    )


def _train(embedding, row, gradient):
    embedding.enqueue(tf.constant([row]))
    embedding.apply_gradients(tf.fill(embedding.dequeue().shape, gradient))


def test_an_update_that_is_refused_does_not_take_the_next_one_with_it():
    embedding = _refusing()
    _train(embedding, 1, np.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        _train(embedding, 2, 1.0)
    (rows,) = embedding.embedding_tables.values()
    assert rows.numpy().ravel().tolist() == [0, 0, -1, 0]


def test_a_reset_forgets_an_update_that_is_refused():
    embedding = _refusing()
    _train(embedding, 1, np.nan)
    embedding.enqueue(tf.constant([3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        embedding.reset_steps()
    embedding.reset_steps()
    _train(embedding, 2, 1.0)
    (rows,) = embedding.embedding_tables.values()
    assert rows.numpy().ravel().tolist() == [0, 0, -1, 0]


def test_a_function_that_evaluates_is_warned_of_where_it_is_traced_too_early(
    caplog,
):
    embedding = _refusing()

    @tf.function
    def look(ids):
        embedding.enqueue(ids, training=False)
        return embedding.dequeue()

    look(tf.constant([1]))
    assert "all updates but the last" in caplog.text
    caplog.clear()
    _train(embedding, 1, 1.0)

    @tf.function
    def look_later(ids):
        embedding.enqueue(ids, training=False)
        return embedding.dequeue()

    assert look_later(tf.constant([1])).numpy().tolist() == [[-1]]
    assert "all updates but the last" not in caplog.text
