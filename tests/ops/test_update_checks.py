"""One variable's update: whose memory changes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.ops import FeaturePlan, feature_ids, grouped_update
from tfembed.ops import table as table_ops

Refused = tf.errors.InvalidArgumentError
TEXT = "adagrad initial_accumulator_value=0.5"


def dense_step(variable, gradients=None, slots=(), rule="sgd", **options):
    """One update of a variable [4, 2] by ids 0 and 2."""
    if gradients is None:
        gradients = tf.ones([2, 2])
    return grouped_update(
        [variable],
        slots,
        [2],
        [feature_ids(tf.constant([0, 2]))],
        [FeaturePlan(0, "sum", name="f")],
        [gradients],
        rules=[rule],
        learning_rates=options.pop("rates", [1.0]),
        **options,
    )


def test_a_tensor_that_was_read_before_keeps_its_values():
    variable = tf.Variable(tf.zeros([4, 2]))
    read = variable.read_value()
    dense_step(variable)
    again = variable.read_value()
    dense_step(variable)
    assert not read.numpy().any()
    np.testing.assert_array_equal(again[0], [-1, -1])
    np.testing.assert_array_equal(variable[2], [-2, -2])


def test_a_variable_that_shares_its_initial_tensor_leaves_it_alone():
    initial = tf.zeros([4, 2])
    dense_step(tf.Variable(initial))
    assert not initial.numpy().any()


def test_an_assignment_after_an_update_is_a_value_of_its_own():
    variable, value = tf.Variable(tf.zeros([4, 2])), tf.ones([4, 2])
    dense_step(variable)
    variable.assign(value)
    dense_step(variable)
    assert value.numpy().all()
    np.testing.assert_array_equal(variable[0], [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_sums_that_are_not_finite_are_skipped_and_counted(bad):
    variable = tf.Variable(tf.zeros([4, 2]))
    counts = dense_step(variable, tf.constant([[1.0, bad], [1.0, 1.0]]))
    assert counts.numpy().tolist() == [1]
    expected = [[0, 0], [0, 0], [-1, -1], [0, 0]]
    np.testing.assert_array_equal(variable, expected)


def test_sums_that_are_not_finite_are_refused_unchanged_if_asked():
    variable = tf.Variable(tf.zeros([4, 2]))
    gradients = tf.constant([[1.0, 1.0], [1.0, np.nan]])
    with pytest.raises(Refused):
        dense_step(variable, gradients, nonfinite="refuse")
    assert not variable.numpy().any()


def test_sums_that_are_not_finite_are_applied_if_asked():
    variable = tf.Variable(tf.zeros([4, 2]))
    dense_step(variable, tf.constant([[np.nan, 1.0]] * 2), nonfinite="allow")
    assert np.isnan(variable.numpy()[0, 0])
    assert variable.numpy()[0, 1] == -1


def test_other_ways_with_sums_that_are_not_finite_are_refused():
    with pytest.raises((Refused, ValueError), match="nonfinite"):
        dense_step(tf.Variable(tf.zeros([4, 2])), nonfinite="hide")


@pytest.mark.parametrize("bad", [-1, 4, 1 << 40])
def test_an_id_that_is_not_in_its_table_changes_nothing(bad):
    variable = tf.Variable(tf.zeros([4, 2]))
    other = table_ops.create(2)
    with pytest.raises(
        Refused, match=rf"feature 'f': id {bad} is not in \[0, 4"
    ):
        grouped_update(
            [other, variable],
            [],
            [2, 2],
            [feature_ids(tf.constant([1])), feature_ids(tf.constant([0, bad]))],
            [FeaturePlan(0, "sum"), FeaturePlan(1, "sum", name="f")],
            [tf.ones([1, 2]), tf.ones([2, 2])],
            rules=["sgd"] * 2,
            learning_rates=[1.0] * 2,
        )
    assert not variable.numpy().any()
    assert table_ops.size(other).numpy() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gradients": tf.ones([3, 2])}, r"feature 'f'.*shape \[2,2\]; got"),
        ({"gradients": tf.ones([2, 3])}, r"feature 'f'.*shape \[2,2\]; got"),
        ({"gradients": tf.ones([2, 1, 2])}, r"feature 'f'.*shape \[2,2\]; got"),
        ({"rates": [float("nan")]}, "learning rate of table 0 must be finite"),
        ({"rates": [1.0, 2.0]}, "learning_rates.*1 tables"),
        ({"rule": "magic"}, "magic"),
        ({"rule": "sgd wings=2"}, "wings"),
        ({"rule": TEXT}, "1 slots in all; got 0"),
        ({"slots": [tf.Variable([1.0])]}, "0 slots in all; got 1"),
        (
            {"rule": TEXT, "slots": [tf.Variable(tf.zeros([4, 3]))]},
            "slot accumulators of table 0 must be float",
        ),
        (
            {"rule": TEXT, "slots": [tf.Variable(tf.zeros([5, 2]))]},
            "must have the table's 4 rows; got 5",
        ),
        (
            {"rule": TEXT, "slots": [table_ops.create(2)]},
            "slot accumulators of table 0 must be a tf.Variable",
        ),
    ],
)  # fmt: skip
def test_an_update_that_does_not_fit_is_refused_unchanged(options, text):
    variable = tf.Variable(tf.zeros([4, 2]))
    with pytest.raises(Refused, match=text):
        dense_step(variable, **options)
    assert not variable.numpy().any()


@pytest.mark.parametrize("kind", ["table", "slot", "hash"])
def test_a_table_given_twice_is_refused(kind):
    variable = tf.Variable(tf.zeros([4, 2]))
    pair, slots, rules = [variable, variable], [], ["sgd", "sgd"]
    if kind == "slot":
        pair, slots = [variable, tf.Variable(tf.zeros([4, 2]))], [variable]
        rules = [TEXT, "sgd"]
    if kind == "hash":
        pair = [table_ops.create(2)] * 2
    ids = feature_ids(tf.constant([1]))
    with pytest.raises(Refused, match="given twice"):
        grouped_update(
            pair,
            slots,
            [2, 2],
            [ids, ids],
            [FeaturePlan(0, "sum"), FeaturePlan(1, "sum")],
            [tf.ones([1, 2])] * 2,
            rules=rules,
            learning_rates=[1.0] * 2,
        )
    assert not variable.numpy().any()


@pytest.mark.parametrize("attached", [None, "adam"])
def test_a_table_without_the_slots_of_the_rule_is_refused(attached):
    handle = table_ops.create(2, name="user")
    if attached:
        table_ops.set_slots(
            handle, owner="adam", names=["m", "v"], initial_values=[0, 0]
        )
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="'user'.*Attach its optimizer"
    ):
        dense_step(handle, rule=TEXT)
    assert table_ops.size(handle).numpy() == 0


def test_long_rules_that_differ_in_the_middle_are_told_apart():
    filler = "clip_gradient_min=-1000 clip_gradient_max=1000 clip_weight_min=-9"
    for limit in (0.25, 0.75):
        variable = tf.Variable(tf.zeros([4, 2]))
        rule = f"sgd {filler} clip_weight_max={limit} weight_decay=0 {' ' * 60}"
        dense_step(variable, -tf.ones([2, 2]), rule=rule)
        np.testing.assert_array_equal(variable[0], [limit, limit])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
def test_eager_errors_call_tables_by_the_names_that_graphs_have(wrap):
    tables = [tf.Variable(tf.ones([4, 2])) for _ in range(2)]
    features = [feature_ids(tf.constant([1], tf.int64)) for _ in tables]
    plans = [FeaturePlan(table=t, combiner="sum") for t in range(2)]

    @wrap
    def update():
        return grouped_update(
            tables,
            [],
            [2, 2],
            features,
            plans,
            [tf.ones([1, 2])] * 2,
            rules=["sgd"] * 2,
            learning_rates=[0.1, float("nan")],
            table_names=["users", "items"],
        )

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="rate of table 'items'"
    ):
        update()


def test_an_update_calls_a_hash_table_by_its_own_name():
    table = table_ops.create(2, name="users")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="rate of table 'users'"
    ):
        grouped_update(
            [table],
            [],
            [2],
            [feature_ids(tf.constant([1], tf.int64))],
            [FeaturePlan(table=0, combiner="sum")],
            [tf.ones([1, 2])],
            rules=["sgd"],
            learning_rates=[float("nan")],
        )
