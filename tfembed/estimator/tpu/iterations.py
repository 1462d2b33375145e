"""How many steps one loop runs: a count, or as many as fit into a time."""

from __future__ import annotations

import collections
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfembed import errors

_PATTERN = re.compile(r"(?P<number>[1-9]\d*)(?P<unit>[smh]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class IterationsPerLoopCounter(NamedTuple):
    """A loop's length: `value` steps (`count`) or `value` `seconds`."""

    value: int
    unit: str


def check_positive_integer(value: Any, name: str) -> None:
    """Refuses what is not an integer above 0.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) not an integer.
      tfembed.errors.ArgumentError: (also ValueError) 0 or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise errors.DtypeError(f"{name} must be int, got {type(value)}.")
    if value <= 0:
        raise errors.ArgumentError(f"{name} must be positive, got {value}.")


def parse_iterations_per_loop(value: Any) -> IterationsPerLoopCounter:
    """Reads `TPUConfig.iterations_per_loop`: `100`, `"30s"`, `"5m"`, `"1h"`.

    Raises:
      tfembed.errors.ArgumentError: neither a positive integer nor a time.
    """
    match = _PATTERN.fullmatch(str(value))
    if match is None:
        raise errors.ArgumentError(
            "TPUConfig `iterations_per_loop` must be positive: a number of "
            "steps, or a time as '<N>s', '<N>m' or '<N>h' for N seconds, "
            f"minutes or hours; got {value!r}."
        )
    number, unit = int(match["number"]), match["unit"]
    if not unit:
        return IterationsPerLoopCounter(number, "count")
    return IterationsPerLoopCounter(number * _SECONDS[unit], "seconds")


class _Loop(NamedTuple):
    """The time that one loop took."""

    runtime_secs: float
    steps: float
    step_time_secs: float


class IterationCountEstimator:
    """Guesses how many steps fit into a time, from the loops run before.

    The guess moves with the mean time of a step over the last `capacity`
    loops. While the last loops took nearly the wanted time and a step's time
    is steady, the guess stays, so that loops do not change their length for
    noise.
    """

    def __init__(self, capacity: int = 20) -> None:
        self._reset(capacity)

    def _reset(self, capacity: int = 20) -> None:
        if capacity <= 0:
            raise errors.ArgumentError(
                "IterationCountEstimator `capacity` must be positive; got "
                f"{capacity}."
            )
        self._capacity = capacity
        self._buffer_wheel: collections.deque[_Loop] = collections.deque(
            maxlen=capacity
        )
        self._min_iterations = 1
        self._last_iterations: float = self._min_iterations
        self._sample_count = 0

    def update(self, runtime_secs: float, count: float) -> None:
        """Notes that a loop of `count` steps took `runtime_secs` seconds.

        A loop without time or steps says nothing about a step and is left out.
        """
        if runtime_secs <= 0 or count <= 0:
            return
        self._buffer_wheel.append(
            _Loop(runtime_secs, count, runtime_secs / count)
        )
        self._sample_count += 1

    def get(self, total_secs: float) -> int:
        """Guesses the number of steps that fit into `total_secs` seconds.

        Raises:
          tfembed.errors.ArgumentError: `total_secs` is not positive.
        """
        if total_secs <= 0:
            raise errors.ArgumentError(
                f"Invalid `total_secs`: must be positive; got {total_secs}."
            )
        if not self._buffer_wheel:
            return self._min_iterations
        if not self._is_settled(total_secs):
            self._last_iterations = max(
                total_secs / self._mean_step_time_secs(), self._min_iterations
            )
        guess = int(self._last_iterations + 0.5)
        tf.compat.v1.logging.info(
            "Steps of the next loop: %d (wanted: %.3f s a loop, a step takes "
            "%.4f s).",
            guess,
            total_secs,
            self._mean_step_time_secs(),
        )
        return guess

    def _is_settled(self, total_secs: float) -> bool:
        last = self._buffer_wheel[-1].runtime_secs
        near = self._diff_less_than_percentage(
            last, total_secs, 10
        ) or self._diff_less_than_percentage(
            self._mean_runtime_secs(), total_secs, 5
        )
        steady = (
            self._std_step_time_secs() < 0.03
            and self._sample_count > self._capacity
        )
        return near and steady

    def _mean_runtime_secs(self) -> float:
        return self._statistic(np.mean, "runtime_secs")

    def _mean_step_time_secs(self) -> float:
        return self._statistic(np.mean, "step_time_secs")

    def _std_step_time_secs(self) -> float:
        return self._statistic(np.std, "step_time_secs")

    def _statistic(self, of: Any, field: str) -> float:
        if not self._buffer_wheel:
            return 0.0
        return float(of([getattr(loop, field) for loop in self._buffer_wheel]))

    def _diff_less_than_percentage(
        self, actual: float, target: float, percentage: float
    ) -> bool:
        for name, value in (("actual", actual), ("target", target)):
            if value == 0:
                raise errors.ArgumentError(
                    f"Invalid `{name}` value: must not be zero."
                )
        return abs(target - actual) / target <= percentage * 0.01
