"""The learning rates of an embedding's tables, in the two forms for engines.

An engine takes a number, or a function without arguments, which it calls
whenever it applies gradients. A description may also have a schedule, a
function of the table's step, which is counted here; or None, for the rate of a
model's optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.embedding import private
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import is_tpu
from tfembed.ops.private import converted
from tfembed.optimizers.interface import is_schedule

__all__ = ["COUNT", "TableRates"]

# The name of a table's count in checkpoints, after the table's own.
COUNT = "learning_rate_steps"


class TableRates:
    """Learning rates, and the step counts of schedules.

    A schedule begins at step 0, as in Keras optimizers; a step is an update of
    the table. Checkpoints have the count as `<table>/learning_rate_steps`.

    Args:
      owner: the trackable object that saves the counts.
      plan: the features and tables.
      strategy: the strategy under which the tables are made.

    Attributes:
      plan: the plan with rates in the forms for engines.
      followed: a function that returns the rate of tables with
        `learning_rate=None`; or None.

    Raises:
      tfembed.errors.UnsupportedError: a schedule or None under a TPUStrategy.
    """

    def __init__(
        self, owner: Any, plan: EmbeddingPlan, strategy: tf.distribute.Strategy
    ) -> None:
        self._strategy = strategy
        self._owner = owner
        self._counts: dict[str, Any] = {}
        self._hidden: frozenset[str] = frozenset()
        self.followed: Callable[[], Any] | None = None
        self._following: list[str] = []
        rules = [
            None if rule is None else self._bound(rule, config.name)
            for config, rule in zip(plan.tables, plan.optimizers, strict=True)
        ]
        self.plan = dataclasses.replace(plan, optimizers=tuple(rules))

    @property
    def following(self) -> tuple[str, ...]:
        """The names of the tables with `learning_rate=None`."""
        return tuple(self._following)

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the tables that have an optimizer."""
        pairs = zip(self.plan.tables, self.plan.optimizers, strict=True)
        return tuple(c.name for c, rule in pairs if rule is not None)

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the tables that have a rate of their own."""
        return tuple(t for t in self.trained if t not in self._following)

    @property
    def counts(self) -> list[tf.Variable]:
        """The variables that count steps."""
        return list(self._counts.values())

    def advance(
        self, resources: Sequence[Any], tables: Collection[str] | None = None
    ) -> None:
        """Counts a step of tables, after their update.

        Args:
          resources: the resources of the engines. A refused update is not
            counted.
          tables: the names of the updated tables; None: all.
        """
        if not self._counts:
            return
        # The engines count updates in variables; a function reads these after
        # the update.
        done = [
            one.read_value()
            for one in resources
            if isinstance(one, tf.Variable) and not tf.executing_eagerly()
        ]
        with tf.control_dependencies(done):
            for table, count in self._counts.items():
                if tables is None or table in tables:
                    count.assign_add(1)

    def begin(self, tables: Iterable[str]) -> None:
        """Resets the schedules of some tables to step 0."""
        for table in tables:
            self._counts[table].assign(0)

    @property
    def are_hidden(self) -> bool:
        """Whether restores currently leave the counts unchanged."""
        return bool(self._hidden)

    def shown(self, children: dict[str, Any]) -> dict[str, Any]:
        """Filters the owner's children for checkpoints, by `are_hidden`."""
        hidden = {f"{table}/{COUNT}" for table in self._hidden}
        return {k: child for k, child in children.items() if k not in hidden}

    @contextlib.contextmanager
    def hidden(self, tables: Iterable[str] | None = None) -> Iterator[None]:
        """Makes restores leave the counts of tables unchanged, in this context.

        Args:
          tables: the tables whose counts are hidden; None: all.
        """
        self._hidden = frozenset(self._counts if tables is None else tables)
        try:
            yield
        finally:
            self._hidden = frozenset()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Returns the tables whose count a checkpoint, by its keys, lacks."""
        known = list(keys)
        return [
            table
            for table in self._counts
            if not any(f"/{_escaped(table)}.S{COUNT}/" in key for key in known)
        ]

    def _bound(
        self, rule: optimizers.Optimizer, table: str
    ) -> optimizers.Optimizer:
        rate: Any = rule.learning_rate
        if rate is not None and not (callable(rate) and is_schedule(rate)):
            return rule
        if is_tpu(self._strategy):
            raise errors.UnsupportedError(
                f"Table {table!r} has the learning rate {rate!r}, a schedule or "
                "that of a model's optimizer, which is not in this release under "
                "a TPUStrategy. Give a function without arguments that reads a "
                "tf.Variable."
            )
        if rate is None:
            self._following.append(table)
            return _with_rate(rule, self._follow)
        count = self._new_count(table)
        return _with_rate(rule, lambda: converted(rate)(count.read_value()))

    def _new_count(self, table: str) -> Any:
        with tf.init_scope():
            count = private.single_variable(
                initial_value=tf.constant(0, tf.int64),
                trainable=False,
                name=f"{table}/{COUNT}",
            )
        self._counts[table] = private.track(
            self._owner, f"{table}/{COUNT}", count
        )
        return count

    def _follow(self) -> Any:
        if self.followed is None:
            raise errors.StateError(
                f"Tables {self._following} have learning_rate=None, that is "
                "the rate of the optimizer of a Keras model, and no such model "
                "looks them up. Compile it before the first step, call "
                "`follow_learning_rate(lambda: optimizer.learning_rate)`, or "
                "give a number."
            )
        return self.followed()


def _with_rate(rule: Any, rate: Callable[[], Any]) -> optimizers.Optimizer:
    """Copies the rule, a dataclass, with another learning rate."""
    moved: optimizers.Optimizer = dataclasses.replace(rule, learning_rate=rate)
    return moved


def _escaped(name: str) -> str:
    """Escapes a table's name for a checkpoint's keys."""
    return name.replace(".", "..").replace("/", ".S")
