"""One optimizer per table: slots, gradients, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.tables import HashTable

DIM = 2
RATE = 0.5


def table_of(num_shards=1, **options):
    options = {"name": "t", "initializer": 1.0, **options}
    return HashTable(DIM, devices=["/CPU:0"] * num_shards, **options)


@pytest.fixture(params=[1, 3])
def table(request):
    return table_of(request.param)


def test_gradients_of_a_repeated_key_are_summed(table):
    table.attach(optimizers.SGD(RATE))

    count = table.apply_gradients([[5, 6], [5, 5]], np.ones([2, 2, DIM]))

    assert int(count) == 0
    np.testing.assert_allclose(
        table.lookup([5, 6, 7])[0], [[-0.5] * 2, [0.5] * 2, [1.0] * 2]
    )
    assert int(table.size()) == 2


def test_adagrad_moves_rows_and_slots_by_its_formula(table):
    table.attach(optimizers.Adagrad(RATE, initial_accumulator_value=0.25))
    gradients = np.array([[1.0, -2.0], [0.5, 0.0]])

    table.apply_gradients([4, 9], gradients)

    accumulators = 0.25 + gradients**2
    expected = 1.0 - RATE * gradients / np.sqrt(accumulators)
    np.testing.assert_allclose(table.lookup([4, 9])[0], expected, rtol=1e-6)
    keys, slots = table.export_slots()
    np.testing.assert_allclose(
        slots["accumulators"].numpy()[np.argsort(keys)], accumulators, rtol=1e-6
    )


def test_a_learning_rate_may_be_given_with_the_step(table):
    table.attach(optimizers.SGD(100.0))

    table.apply_gradients([1], [[1.0, 1.0]], learning_rate=0.25)

    np.testing.assert_allclose(table.lookup([1])[0], [[0.75, 0.75]])


def test_a_learning_rate_may_be_a_function(table):
    table.attach(optimizers.SGD(lambda: 0.25))

    table.apply_gradients([1], [[1.0, 1.0]])

    np.testing.assert_allclose(table.lookup([1])[0], [[0.75, 0.75]])


def test_training_works_in_a_function(table):
    table.attach(optimizers.SGD(RATE))
    step = tf.function(table.apply_gradients)

    step(tf.constant([1, 1], tf.int64), tf.ones([2, DIM]))

    np.testing.assert_allclose(table.lookup([1])[0], [[0.0, 0.0]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sums_that_are_not_finite_are_skipped_and_counted(table, bad):
    table.attach(optimizers.SGD(RATE))

    count = table.apply_gradients([1, 2], [[bad, 1.0], [1.0, 1.0]])

    assert int(count) == 1
    np.testing.assert_allclose(
        table.lookup([1, 2])[0], [[1.0, 1.0], [0.5, 0.5]]
    )


def test_sums_that_are_not_finite_can_be_refused_before_any_change(table):
    table.attach(optimizers.SGD(RATE))

    with pytest.raises(tf.errors.InvalidArgumentError):
        table.apply_gradients(
            [1, 2, 3],
            [[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0]],
            nonfinite="refuse",
        )

    assert int(table.size()) == 0


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (2,), (1, 2, 2)])
def test_gradients_of_another_shape_are_refused(table, shape):
    table.attach(optimizers.SGD(RATE))

    with pytest.raises(tf.errors.InvalidArgumentError, match="'t'"):
        table.apply_gradients([1, 2], np.zeros(shape, np.float32))


def test_training_without_an_optimizer_is_refused(table):
    with pytest.raises(errors.StateError, match="'t'.*attach"):
        table.apply_gradients([1], [[1.0, 1.0]])


def test_the_same_optimizer_may_come_again(table):
    table.attach(optimizers.Adagrad(0.1))
    table.apply_gradients([1], [[1.0, 1.0]])
    before = table.export_slots()[1]["accumulators"].numpy()

    table.attach(optimizers.Adagrad(0.2))

    after = table.export_slots()[1]["accumulators"].numpy()
    np.testing.assert_array_equal(before, after)


def test_a_second_optimizer_is_refused_by_both_names(table):
    table.attach(optimizers.Adagrad(0.1))

    with pytest.raises(ValueError, match="'t'.*'adagrad.*'adam"):
        table.attach(optimizers.Adam(0.1))


def test_an_optimizer_attached_to_a_filled_table_starts_its_slots(table):
    keys = np.arange(100)
    table.upsert(keys, np.ones([100, DIM]))

    table.attach(optimizers.Adagrad(0.1, initial_accumulator_value=0.5))

    slots = table.export_slots()[1]["accumulators"]
    np.testing.assert_array_equal(slots, np.full([100, DIM], 0.5))
    np.testing.assert_array_equal(table.lookup(keys)[0], np.ones([100, DIM]))


@pytest.mark.parametrize("attach_first", [True, False])
def test_new_rows_after_a_restore_start_from_the_attached_slots(
    attach_first, tmp_path
):
    saved = table_of()
    saved.attach(optimizers.Adagrad(0.1, initial_accumulator_value=0.5))
    saved.upsert([1], np.ones([1, DIM]))
    path = tf.train.Checkpoint(table=saved).save(tmp_path / "c")

    restored = table_of(2)
    optimizer = optimizers.Adagrad(0.1, initial_accumulator_value=0.75)
    if attach_first:
        restored.attach(optimizer)
    tf.train.Checkpoint(table=restored).restore(path)
    restored.attach(optimizer)
    restored.upsert([2], np.ones([1, DIM]))

    slots = restored.lookup_trained([1, 2, 3])[:, DIM:]
    expected = [[0.5] * DIM, [0.75] * DIM, [0.75] * DIM]
    np.testing.assert_array_equal(slots, expected)


def test_full_rows_are_written_or_added_to(table):
    table.attach(optimizers.Adagrad(0.1, initial_accumulator_value=0.5))
    rows = np.array([[1, 2, 3, 4]], np.float32)

    table.write_trained(tf.constant([7], tf.int64), tf.constant(rows))
    table.write_trained(
        tf.constant([7, 8], tf.int64), tf.ones([2, 2 * DIM]), add=True
    )

    assert table.trained_width == 2 * DIM
    expected = [[2, 3, 4, 5], [2, 2, 1.5, 1.5]]
    np.testing.assert_array_equal(table.lookup_trained([7, 8]), expected)


def test_ftrl_refuses_a_learning_rate_of_zero_unless_it_multiplies(table):
    table.attach(optimizers.FTRL(0.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="above 0"):
        table.apply_gradients([1], [[1.0, 1.0]])
    assert int(table.size()) == 0

    other = table_of()
    other.attach(optimizers.FTRL(0.0, multiply_linear_by_learning_rate=True))
    other.apply_gradients([1], [[1.0, 1.0]])
    assert np.all(np.isfinite(other.lookup([1])[0]))


def test_gradients_of_another_shape_are_refused_when_it_runs():
    table = HashTable(4, name="t", initializer=0.0)
    table.attach(optimizers.SGD(1.0))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec(None, tf.float32),
        ]
    )
    def step(keys, gradients):
        return table.apply_gradients(keys, gradients)

    keys = tf.constant([1, 2], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape of the"):
        step(keys, tf.ones([4, 2]))
    assert int(table.size()) == 0
    step(keys, tf.ones([2, 4]))
    assert table.lookup(keys)[0].numpy().tolist() == [[-1] * 4] * 2


def test_another_optimizer_may_take_the_place_of_the_first(table):
    table.attach(optimizers.Adagrad(RATE))
    table.apply_gradients([4, 9], np.ones([2, DIM]))
    before = table.lookup([4, 9])[0]

    with pytest.warns(
        UserWarning, match=r"2 rows stay.*\(accumulators\) are gone"
    ):
        table.attach(optimizers.Adam(RATE), replaces=True)

    np.testing.assert_array_equal(table.lookup([4, 9])[0], before)
    assert table.slot_names == ("momenta", "velocities")
    assert not np.any(list(table.export_slots()[1].values()))
    table.apply_gradients([4], np.ones([1, DIM]))
    assert table.lookup([4])[0][0, 0] < before[0, 0]


def test_an_update_during_which_the_table_is_detached_is_refused(table):
    def detaching_rate():
        table.detach()
        return RATE

    table.attach(optimizers.Adam(detaching_rate))

    with pytest.raises(tf.errors.FailedPreconditionError, match="no slots"):
        table.apply_gradients([4], np.ones([1, DIM]))
    assert int(table.size()) == 0


def test_a_table_that_is_detached_takes_any_optimizer(table):
    table.attach(optimizers.Adagrad(RATE))
    table.apply_gradients([4], np.ones([1, DIM]))
    with pytest.raises(errors.ArgumentError, match=r"table.detach\(\)"):
        table.attach(optimizers.SGD(RATE))

    table.detach()

    assert table.optimizer is None
    table.attach(optimizers.SGD(RATE))
    table.apply_gradients([4], np.ones([1, DIM]))
    assert int(table.size()) == 1


@pytest.mark.parametrize("call", ["lookup_trained", "write_trained"])
def test_slots_of_another_rule_are_neither_read_nor_written(table, call):
    table.attach(optimizers.Adagrad(RATE))
    table.upsert([4], np.ones([1, DIM]))

    @tf.function(autograph=False)
    def traced():
        rows = [tf.zeros([1, 2 * DIM])] if call == "write_trained" else []
        return getattr(table, call)([4], *rows)

    traced()
    table.detach()
    table.attach(optimizers.Momentum(RATE))
    before = table.lookup_trained([4]).numpy()

    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match=r"adagrad' \(accumulators\) met rows with those of 'momentum'",
    ):
        traced()

    np.testing.assert_array_equal(table.lookup_trained([4]), before)
