"""Checks of numbers and shapes.

A shape is not compared by broadcasting, where [2] is as good as [2, 2]: here, in
saved rows and strings (test_crafted_files), upserts, gradients and partitioners.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tfembed import checks, errors


@pytest.mark.parametrize(
    "value",
    [
        2,
        9,
        np.int8(2),
        np.uint64(9),
        2.0,
        np.float32(3),
        np.array(4.0),
        np.array(5),
        tf.constant(6),
        tf.constant(7.0),
        8 / 1,
        np.longdouble(9),
    ],
)
def test_an_integer_within_its_limits_is_an_int(value):
    found = checks.integer(value, "n", least=2, most=9)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize(
    "value",
    [
        1,
        10,
        2.5,
        True,
        "3",
        None,
        [3],
        np.float32(3.5),
        np.bool_(True),
        np.array(True),
        np.array([3]),
        float("nan"),
        math.inf,
        tf.constant(2.5),
    ],
)
def test_anything_else_is_refused(value):
    with pytest.raises(errors.ArgumentError) as caught:
        checks.integer(value, "n", least=2, most=9, owner="table 't'")
    assert str(caught.value) == (
        "`n` must be an integer of at least 2 and at most 9; got "
        f"{value!r} for table 't'."
    )


def test_an_integer_may_have_one_limit():
    assert checks.integer(10**30, "n", least=0) == 10**30
    with pytest.raises(ValueError, match="of at least 0; got -1.$"):
        checks.integer(-1, "n", least=0)


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (1.0, TypeError), (False, TypeError), ("1", TypeError)],
)
def test_a_number_of_keys_is_an_integer_that_is_not_negative(value, error):
    assert checks.key_count(np.int32(0), "keep") == 0
    with pytest.raises(error, match="`keep`") as caught:
        checks.key_count(value, "keep")
    assert isinstance(caught.value, errors.TfembedError)


def test_a_shape_that_is_known_to_be_another_is_refused():
    expected = tf.TensorShape([3, 2])
    checks.shape("value", tf.zeros([3, 2]), expected)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        checks.shape("value", tf.zeros([2, 3]), expected)
    assert "Expected shape [3,2] for value, got [2,3]." in str(caught.value)


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("shape", [[], [2], [2, 2, 2], [1, 2], [2, 3]])
def test_a_shape_is_compared_when_it_runs_with_its_rank(shape, eager):
    def call(tensor, other):
        checks.run_shape(tensor, tf.shape(other), "not as the other")

    if not eager:
        unknown = tf.TensorSpec(None)
        call = tf.function(call, input_signature=[unknown, unknown])

    call(tf.zeros([2, 2]), tf.zeros([2, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="as the other"):
        call(tf.zeros(shape), tf.zeros([2, 2]))


def test_a_shape_that_is_not_known_is_left_to_the_op():
    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None])])
    def check(unknown, vector):
        checks.shape("value", unknown, tf.TensorShape([3]))
        checks.shape("value", vector, tf.TensorShape([3]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[\?\]"):
            checks.shape("value", vector, tf.TensorShape([3, 2]))

    check(1.0, [1.0])
