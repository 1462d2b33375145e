"""Lookups and updates through the API, against a float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks, steps
from property import cases
from tfembed import optimizers

IDS = range(-60, 60)

OPTIMIZERS = [
    optimizers.SGD(0.5),
    optimizers.SGD(0.5, clipvalue=(-0.5, 0.75), clip_weight_max=0.25),
    optimizers.Adagrad(0.5),
    optimizers.Adagrad(
        0.5,
        weight_decay_factor=0.25,
        multiply_weight_decay_factor_by_learning_rate=True,
    ),
    optimizers.AdagradMomentum(
        0.5, momentum=0.9, use_nesterov=True, epsilon=1e-3
    ),
    optimizers.AdagradMomentum(
        0.5, momentum=0.5, exponent=3, beta2=0.9, epsilon=1e-2
    ),
    optimizers.Adam(0.5),
    optimizers.Adam(0.5, 0.5, 0.9, 1e-3, sum_inside_sqrt=False),
    optimizers.FTRL(0.5, l2_regularization_strength=0.125),
    optimizers.FTRL(
        0.5,
        l1_regularization_strength=0.0625,
        beta=0.5,
        multiply_linear_by_learning_rate=True,
    ),
    optimizers.Momentum(0.5, use_nesterov=True),
    optimizers.RMSProp(0.5, momentum=0.5, epsilon=1e-3),
    optimizers.CenteredRMSProp(0.5, epsilon=1e-2),
    optimizers.ProximalAdagrad(
        0.5, l1_regularization_strength=0.125, l2_regularization_strength=0.25
    ),
    optimizers.Adadelta(0.5, epsilon=1e-3),
    optimizers.Lion(0.0625),
    optimizers.Adam(0.5, lazy_adam=False, weight_decay_factor=0.125),
    optimizers.Lion(0.0625, lazy_lion=False),
    optimizers.RowWiseAdagrad(0.5, epsilon=1e-3),
    optimizers.Yogi(0.0625, l1_regularization_strength=0.25),
]


@pytest.mark.parametrize(
    "vocabulary", [cases.VOCABULARY, pytest.param(None, marks=marks.GROWS)]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.rule_text())
def test_every_step_equals_the_oracle(optimizer, vocabulary):
    fixed = vocabulary is not None
    embedding = tfembed.TPUEmbedding(
        steps.configs(vocabulary=vocabulary), optimizer
    )
    rng = np.random.default_rng(7)
    for _ in range(5):
        step = steps.draw_step(rng)
        before = steps.Tables.of(embedding, IDS)
        features, weights = step.inputs()
        embedding.enqueue(features, weights)
        activations = embedding.dequeue()
        steps.check_activations(
            activations, step, before, fixed_vocabulary=fixed
        )
        embedding.apply_gradients(step.structured_gradients())
        after = steps.Tables.of(embedding, IDS)
        steps.check_update(
            before,
            after,
            step,
            optimizer,
            optimizer.learning_rate,
            fixed_vocabulary=fixed,
        )


def test_each_table_may_have_its_own_optimizer():
    one = tfembed.TableConfig(4, 2, _zeros, optimizers.SGD(1.0), name="one")
    two = tfembed.TableConfig(4, 2, _zeros, name="two")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(one), tfembed.FeatureConfig(two)],
        optimizers.SGD(0.25),
    )
    _train(embedding, [tf.constant([1]), tf.constant([1])])
    tables = embedding.embedding_tables
    assert tables[one].numpy()[1].tolist() == [-1.0, -1.0]
    assert tables[two].numpy()[1].tolist() == [-0.25, -0.25]


def test_tensorflows_own_configs_and_optimizers_are_accepted():
    theirs = tf.tpu.experimental.embedding
    table = theirs.TableConfig(4, 2, _zeros)
    embedding = tfembed.TPUEmbedding(
        theirs.FeatureConfig(table), theirs.SGD(0.5)
    )
    _train(embedding, tf.constant([3]))
    assert (table.name, table.optimizer) == ("table_0", theirs.SGD(0.5))
    assert embedding.embedding_tables[table].numpy()[3].tolist() == [-0.5] * 2


def test_a_callable_learning_rate_is_called_at_every_step():
    rate = tf.Variable(1.0)
    table, embedding = _one_table(optimizers.SGD(rate.read_value))

    @tf.function
    def step():
        _train(embedding, tf.constant([0]))

    step()
    rate.assign(0.125)
    step()
    assert embedding.embedding_tables[table].numpy()[0, 0] == -1.125


def test_tables_that_share_a_rate_call_it_once_a_step():
    calls = []

    def rate():
        calls.append(1)
        return 0.5

    tables = [tfembed.TableConfig(4, 2, _zeros, name=n) for n in "ab"]
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(t) for t in tables], optimizers.SGD(rate)
    )
    _train(embedding, [tf.constant([0]), tf.constant([1])])
    assert len(calls) == 1


def test_a_missing_gradient_is_zero_and_still_decays():
    optimizer = optimizers.Adam(1.0, weight_decay_factor=0.5)
    table, embedding = _one_table(optimizer, initializer=_ones)
    embedding.enqueue(tf.constant([1]))
    embedding.dequeue()
    embedding.apply_gradients(None)
    rows = embedding.embedding_tables[table].numpy()
    assert rows[:, 0].tolist() == [1.0, 0.5, 1.0, 1.0]


def test_gradients_that_are_not_finite_are_skipped_and_counted():
    table, embedding = _one_table(optimizers.SGD(1.0))
    _train(embedding, tf.constant([0, 1, 2]), [np.nan, 1.0, np.inf])
    rows = embedding.embedding_tables[table].numpy()
    assert rows[:, 0].tolist() == [0.0, -1.0, 0.0, 0.0]
    assert embedding.sizes()["users"].nonfinite_rows == 2


@marks.REFUSES
def test_gradients_that_are_not_finite_may_be_refused():
    table, embedding = _one_table(optimizers.SGD(1.0), nonfinite="refuse")
    with pytest.raises(tf.errors.InvalidArgumentError):
        _train(embedding, tf.constant([0, 1]), [1.0, np.nan])
    assert not embedding.embedding_tables[table].numpy().any()


def test_gradients_that_are_not_finite_may_be_allowed():
    table, embedding = _one_table(optimizers.SGD(1.0), nonfinite="allow")
    _train(embedding, tf.constant([0, 1]), [1.0, np.nan])
    rows = embedding.embedding_tables[table].numpy()
    assert rows[0, 0] == -1.0
    assert np.isnan(rows[1, 0])


def test_an_embedding_without_an_optimizer_looks_up():
    table, embedding = _one_table(None, initializer=_ones)
    embedding.enqueue(tf.constant([1, 2]), training=False)
    assert embedding.dequeue().numpy().tolist() == [[1.0, 1.0]] * 2
    assert list(embedding._variables["users"]) == ["parameters"]
    del table


@marks.GROWS
def test_sizes_count_rows_and_bytes():
    static = tfembed.TableConfig(10, 4, name="static")
    growing = tfembed.TableConfig(None, 4, name="growing")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(static), tfembed.FeatureConfig(growing)],
        optimizers.Adagrad(0.5),
    )
    _train(embedding, [tf.constant([1, 2, 1]), tf.constant([1, -2, 1])])
    sizes = embedding.sizes()
    assert (sizes["static"].rows, sizes["static"].bytes) == (10, 10 * 4 * 2 * 4)
    assert sizes["static"].bytes_per_row == 32
    assert sizes["growing"].rows == 2
    assert sizes["growing"].bytes_per_row >= 32


def test_a_static_table_uses_an_initializer_as_tensorflow_does():
    seen = []

    def initializer(shape, dtype):
        seen.append((tuple(shape), dtype))
        return tf.zeros(shape, dtype)

    table, embedding = _one_table(None, initializer=initializer)
    embedding.build()
    assert seen == [((4, 2), tf.float32)]
    assert embedding.embedding_tables[table].name == "users:0"


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def _ones(shape, dtype):
    return tf.ones(shape, dtype)


def _one_table(optimizer, *, initializer=_zeros, **arguments):
    table = tfembed.TableConfig(4, 2, initializer, name="users")
    feature = tfembed.FeatureConfig(table)
    return table, tfembed.TPUEmbedding(feature, optimizer, **arguments)


def _train(embedding, features, factors=1.0):
    """One step with gradients of `factors` per sample."""
    embedding.enqueue(features)

    def gradient(activation):
        column = tf.reshape(tf.cast(factors, tf.float32), [-1, 1])
        return tf.ones_like(activation) * column

    activations = embedding.dequeue()
    embedding.apply_gradients(tf.nest.map_structure(gradient, activations))
