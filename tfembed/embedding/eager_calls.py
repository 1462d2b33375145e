"""Calls that come eagerly, as functions once they have come often.

A step of 26 features is hundreds of TensorFlow's ops: 20 ms of Python where they
are called one by one, 1 ms where each of a step's calls is one function. To
trace that takes a second, so the first calls run as they are.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable
from typing import Any

import tensorflow as tf

from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.engine_choice import EngineChoices
from tfembed.embedding.plan import EmbeddingPlan

__all__ = ["EagerCalls"]

_AS_THEY_ARE = 8


class EagerCalls:
    """The functions of one object's calls.

    Users' own functions, of combiners, update rules and learning rates, run in
    Python in every eager step: objects with such have none of these.

    Args:
      plan: of the features and tables.
      choices: where the tables live.
      is_pipelined: whether updates wait for the next step.
    """

    def __init__(
        self, plan: EmbeddingPlan, choices: EngineChoices, *, is_pipelined: bool
    ) -> None:
        self._can_trace = (
            not is_pipelined
            and all(one.engine == "host" for one in choices.of_tables)
            and not any(is_custom(table.combiner) for table in plan.tables)
            and all(_is_plain(rule) for rule in plan.optimizers)
        )
        self._counts: collections.Counter[Hashable] = collections.Counter()
        self._functions: dict[Hashable, Callable[..., Any]] = {}

    def find(
        self, key: Hashable, body: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """A function that does what `body` does, or None for now.

        Args:
          key: what the body depends on, beside its arguments.
          body: what to trace; called again, in a graph, with tensors.
        """
        if (
            not self._can_trace
            or not tf.executing_eagerly()
            or tf.config.functions_run_eagerly()
            or tf.distribute.has_strategy()
        ):
            return None
        self._counts[key] += 1
        if self._counts[key] <= _AS_THEY_ARE:
            return None
        if key not in self._functions:
            self._functions[key] = tf.function(body, autograph=False)
        return self._functions[key]


def _is_plain(rule: Any) -> bool:
    return rule is None or (rule.is_fused and not callable(rule.learning_rate))
