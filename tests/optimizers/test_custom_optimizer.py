"""CustomOptimizer: updates by a user's function."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import steps
from property import cases
from tfembed import errors, optimizers

THEIRS = tf.tpu.experimental.embedding
HAS_THEIRS = hasattr(THEIRS, "CustomOptimizer")
IDS = range(-60, 60)


def sgd(gradient, row, slots, learning_rate, hyperparameters):
    del slots, hyperparameters
    return row - learning_rate * gradient


def adagrad(gradient, row, slots, learning_rate, hyperparameters):
    del hyperparameters
    accumulator = slots[0] + gradient * gradient
    return (
        row - learning_rate * gradient / tf.sqrt(accumulator),
        accumulator,
    )


def custom_adagrad(cls=optimizers.CustomOptimizer):
    return cls(adagrad, 0.5, ["accumulators"], [tf.constant_initializer(0.1)])


def zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def make(optimizer, **arguments):
    table = tfembed.TableConfig(4, 2, zeros, name="users")
    return tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), optimizer, **arguments
    )


def train(embedding, ids=(1,), factors=1.0):
    embedding.enqueue(tf.constant(ids))
    activations = embedding.dequeue()
    column = tf.reshape(tf.cast(factors, tf.float32), [-1, 1])
    embedding.apply_gradients(tf.ones_like(activations) * column)
    return embedding._variables["users"]["parameters"].numpy()


class AsAdagrad:
    """The rule by which the oracle checks `custom_adagrad`."""

    slot_names = ("accumulators",)

    def rule_text(self):
        return "adagrad initial_accumulator_value=0.1"


@pytest.mark.parametrize("vocabulary", [cases.VOCABULARY, None])
def test_it_trains_as_the_fused_rule_does(vocabulary):
    fixed = vocabulary is not None
    embedding = tfembed.TPUEmbedding(
        steps.configs(vocabulary=vocabulary), custom_adagrad()
    )
    for config in embedding.embedding_tables:
        object.__setattr__(config, "optimizer", AsAdagrad())
    rng = np.random.default_rng(3)
    for _ in range(4):
        step = steps.draw_step(rng)
        before = steps.Tables.of(embedding, IDS)
        embedding.enqueue(*step.inputs())
        embedding.dequeue()
        embedding.apply_gradients(step.structured_gradients())
        after = steps.Tables.of(embedding, IDS)
        steps.check_update(
            before, after, step, AsAdagrad(), 0.5, fixed_vocabulary=fixed
        )


def test_the_function_gets_single_rows_scalars_and_tuples():
    seen = []

    def rule(gradient, row, slots, learning_rate, hyperparameters):
        seen.append((gradient, row, slots, learning_rate, hyperparameters))
        return row + hyperparameters[0] * hyperparameters[1], slots[0] + 1.0

    embedding = make(
        optimizers.CustomOptimizer(
            rule,
            0.25,
            ["seen"],
            [tf.constant_initializer(7.0)],
            [2.0, lambda: 3.0],
        )
    )
    rows = train(embedding, (1, 1, 2))
    assert rows[:, 0].tolist() == [0.0, 6.0, 6.0, 0.0]
    slot = embedding._variables["users"]["seen"].numpy()
    assert slot[:, 0].tolist() == [7.0, 8.0, 8.0, 7.0]
    gradient, row, slots, rate, hyperparameters = seen[0]
    assert gradient.shape == row.shape == slots[0].shape == [2]
    assert isinstance(slots, tuple)
    assert rate.shape == []
    assert [h.shape for h in hyperparameters] == [[], []]


def test_rates_and_hyperparameters_are_evaluated_in_each_step():
    rate, factor = tf.Variable(1.0), tf.Variable(1.0)

    def rule(gradient, row, slots, learning_rate, hyperparameters):
        del slots
        return row - learning_rate * hyperparameters[0] * gradient

    embedding = make(
        optimizers.CustomOptimizer(
            rule, rate.read_value, hyperparameters=[factor.read_value]
        )
    )
    step = tf.function(lambda: train_graph(embedding))
    step()
    rate.assign(0.5)
    factor.assign(0.5)
    step()
    rows = embedding._variables["users"]["parameters"].numpy()
    assert rows[1, 0] == -1.25


def train_graph(embedding):
    embedding.enqueue(tf.constant([1]))
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.ones_like(activations))


def test_fused_and_custom_tables_train_in_one_step():
    one = tfembed.TableConfig(
        4, 2, zeros, optimizers.CustomOptimizer(sgd, 1.0), name="one"
    )
    two = tfembed.TableConfig(4, 2, zeros, optimizers.SGD(0.25), name="two")
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(two), tfembed.FeatureConfig(one)]
    )
    embedding.enqueue([tf.constant([1]), tf.constant([2])])
    activations = embedding.dequeue()
    embedding.apply_gradients([tf.ones_like(a) for a in activations])
    tables = embedding.embedding_tables
    assert tables[one].numpy()[2, 0] == -1
    assert tables[two].numpy()[1, 0] == -0.25


def test_gradients_that_are_not_finite_are_skipped_and_counted():
    embedding = make(optimizers.CustomOptimizer(sgd, 1.0))
    rows = train(embedding, (0, 1, 2), [np.nan, 1.0, np.inf])
    assert rows[:, 0].tolist() == [0.0, -1.0, 0.0, 0.0]
    assert embedding.sizes()["users"].nonfinite_rows == 2


def test_gradients_that_are_not_finite_may_be_refused():
    embedding = make(optimizers.CustomOptimizer(sgd, 1.0), nonfinite="refuse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="'users'"):
        train(embedding, (0, 1), [1.0, np.nan])
    assert not embedding._variables["users"]["parameters"].numpy().any()


@pytest.mark.skipif(not HAS_THEIRS, reason="TensorFlow has none yet")
def test_tensorflows_own_is_accepted():
    theirs = custom_adagrad(THEIRS.CustomOptimizer)
    ours = optimizers.from_tensorflow(theirs)
    assert ours.custom_computation is adagrad
    assert ours.slot_names == ("accumulators",)
    assert ours.slot_initial_values["accumulators"] == pytest.approx(0.1)
    rows = train(make(theirs))
    np.testing.assert_allclose(rows[1], -0.5 / np.sqrt(1.1), rtol=1e-6)


def test_slot_dims_are_taken_and_change_nothing():
    """TensorFlow 2.21 has them and heeds them nowhere."""
    slots = (["accumulators"], [tf.constant_initializer(0.1)])
    rule = optimizers.CustomOptimizer(adagrad, 0.5, *slots, slot_dims=[1])
    assert rule.slot_dims == (1,)
    embedding = make(rule)
    np.testing.assert_array_equal(
        train(embedding), train(make(custom_adagrad()))
    )
    assert embedding._variables["users"]["accumulators"].shape == [4, 2]


def test_slot_dims_of_tensorflows_own_are_read():
    class CustomOptimizer:
        """The attributes that are read of TensorFlow 2.21's."""

        custom_computation = staticmethod(adagrad)
        learning_rate = 0.5
        hyperparameters = ()
        slot_dims = (2,)

        def _slot_names(self):
            return ["accumulators"]

        def _slot_initializers(self):
            return [zeros]

    assert optimizers.from_tensorflow(CustomOptimizer()).slot_dims == (2,)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda row: (row, row), "a row and 0 slots.*got 2 values"),
        (lambda row: row[:1], r"of shape \(2,\); got one of shape \(1,\)"),
    ],
)
def test_what_the_function_returns_is_checked(returned, text):
    rule = optimizers.CustomOptimizer(
        lambda gradient, row, *others: returned(row)
    )
    with pytest.raises(errors.ArgumentError, match=text):
        train(make(rule))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("sgd",), "custom_computation"),
        ((sgd, "fast"), "learning_rate"),
        ((sgd, 0.1, ["a", "b"], [zeros]), r"\(2\) must match.*\(1\)"),
        (
            (sgd, 0.1, ["a"], [zeros], None, [1, 2]),
            r"slot_dims \(2\) must match.*\(1\)",
        ),
        (
            (sgd, 0.1, ["a"], [zeros], None, [3]),
            "slot dim 3 for slot 'a'.*1 or 2",
        ),
    ],
)
def test_what_is_not_allowed_is_refused(arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        optimizers.CustomOptimizer(*arguments)


def test_a_slot_of_a_table_without_vocabulary_starts_from_one_number():
    rule = optimizers.CustomOptimizer(
        adagrad, 0.5, ["a"], [tf.random_uniform_initializer()]
    )
    table = tfembed.TableConfig(None, 2, name="users")
    with pytest.raises(errors.ArgumentError, match="'users'.*one number"):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), rule)


def test_a_table_with_admission_is_refused():
    table = tfembed.TableConfig(
        None,
        2,
        name="users",
        admission=tfembed.policies.CountAdmission(2),
    )
    rule = optimizers.CustomOptimizer(sgd, 0.5)
    with pytest.raises(errors.ArgumentError, match="'users' admits"):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), rule)


def test_equal_attributes_make_equal_descriptions():
    def make_one():
        return optimizers.CustomOptimizer(sgd, 0.5, hyperparameters=[1.0])

    assert make_one() == make_one()
    assert hash(make_one()) == hash(make_one())
    assert make_one() != optimizers.CustomOptimizer(sgd, 0.25)


def test_a_step_that_a_bounded_table_cannot_hold_changes_no_other_table():
    small = tfembed.TableConfig(
        9, 1, zeros, name="s", optimizer=tfembed.SGD(1.0)
    )
    bounded = tfembed.TableConfig(
        None,
        1,
        name="h",
        max_size=2,
        eviction=tfembed.policies.LeastRecent(),
        optimizer=optimizers.CustomOptimizer(sgd, 1.0),
    )
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(small), tfembed.FeatureConfig(bounded)]
    )
    embedding.enqueue([tf.constant([1, 2, 3])] * 2)
    gradients = [tf.ones_like(one) for one in embedding.dequeue()]
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_size"):
        embedding.apply_gradients(gradients)
    assert not embedding.embedding_tables[small].numpy().any()
    assert int(embedding.embedding_tables[bounded].size()) == 0
