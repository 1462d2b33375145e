"""Lengths of loops: counts, times, and guesses from times."""

from __future__ import annotations

import numpy as np
import pytest

from tfembed import errors
from tfembed.estimator.tpu import loops


@pytest.mark.parametrize(
    "given, value, unit",
    [
        (100, 100, "count"),
        ("7", 7, "count"),
        ("30s", 30, "seconds"),
        ("5m", 300, "seconds"),
        ("2h", 7200, "seconds"),
        (np.int64(3), 3, "count"),
    ],
)
def test_a_length_is_a_count_or_a_time(given, value, unit):
    assert loops.parse_iterations_per_loop(given) == (value, unit)


@pytest.mark.parametrize(
    "given", [0, -1, "0s", "01", "-5m", "1.5h", "3d", "", "10|", None, 2.5]
)
def test_other_lengths_are_refused(given):
    with pytest.raises(errors.ArgumentError, match="must be positive"):
        loops.parse_iterations_per_loop(given)


def test_a_batch_size_that_is_no_integer_is_a_type_error():
    for value in (1.0, "8", True, None):
        with pytest.raises(errors.DtypeError, match="size must be int"):
            loops.check_positive_integer(value, "size")
    with pytest.raises(errors.ArgumentError, match="size must be positive"):
        loops.check_positive_integer(0, "size")
    loops.check_positive_integer(np.int32(4), "size")


def test_a_guess_is_one_step_before_any_loop():
    assert loops.IterationCountEstimator().get(60) == 1


def test_a_guess_is_the_time_over_the_mean_time_of_a_step():
    estimator = loops.IterationCountEstimator()
    estimator.update(1.0, 10)
    estimator.update(3.0, 10)

    assert estimator.get(10) == 50


def test_loops_older_than_the_capacity_are_forgotten():
    estimator = loops.IterationCountEstimator(capacity=2)
    for seconds in (100.0, 1.0, 1.0):
        estimator.update(seconds, 1)

    assert estimator.get(10) == 10


def test_loops_without_time_or_steps_are_left_out():
    estimator = loops.IterationCountEstimator()
    estimator.update(0.0, 5)
    estimator.update(5.0, 0)

    assert estimator.get(10) == 1


def test_a_guess_stays_while_loops_take_the_wanted_time():
    estimator = loops.IterationCountEstimator(capacity=3)
    for _ in range(4):
        estimator.update(10.0, 100)
        assert estimator.get(10) == 100
    estimator.update(10.2, 100)

    assert estimator.get(10) == 100


def test_a_guess_follows_steps_that_become_slower():
    estimator = loops.IterationCountEstimator(capacity=3)
    for _ in range(4):
        estimator.update(10.0, 100)
    for _ in range(3):
        estimator.update(20.0, 100)

    assert estimator.get(10) == 50


def test_a_time_must_be_positive():
    estimator = loops.IterationCountEstimator()
    with pytest.raises(errors.ArgumentError, match="total_secs"):
        estimator.get(0)
    with pytest.raises(errors.ArgumentError, match="capacity"):
        loops.IterationCountEstimator(capacity=0)
