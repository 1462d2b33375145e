"""Tables that a gradient tape trains: what V0 and serving have in common."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfembed import dynamic_embedding, errors, initializers
from tfembed.config.custom_combiner import is_custom
from tfembed.config.table_config import TablesByConfig
from tfembed.embedding import private
from tfembed.embedding.engines.choice import (
    EngineChoice,
    EngineChoices,
    check_engine_name,
    check_fixed_size,
)
from tfembed.embedding.host.tables import HostTable, make_static_table
from tfembed.embedding.plan import MAKING, EmbeddingPlan, PlanNames, make_plan
from tfembed.embedding.private import Untracked
from tfembed.embedding.replicas import Replicas, is_tpu
from tfembed.embedding.xla.stack import check_rows
from tfembed.embedding.xla.taped_shards import are_sharded

__all__ = ["TAPED_ENGINES", "TapedEmbedding", "choose_taped_engines"]


TAPED_ENGINES = ("auto", "host", "replicated", "xla")


def choose_taped_engines(
    plan: EmbeddingPlan, asked: str, strategy: Any, kind: str
) -> EngineChoices:
    """An engine for each table; all have the same.

    Args:
      plan: the tables.
      asked: one of TAPED_ENGINES.
      strategy: the tf.distribute.Strategy in whose scope the tables are made.
      kind: the class that asks, for errors.

    Raises:
      tfembed.errors.ArgumentError: another engine, or one that cannot hold one
        of the tables.
      tfembed.errors.UnsupportedError: what is not in this release.
    """
    check_engine_name(asked, TAPED_ENGINES)
    why = f"engine={asked!r} was asked for"
    if asked == "auto":
        asked = "replicated" if is_tpu(strategy) else "host"
        why = (
            "a TPUStrategy: each replica has the tables and looks up in its "
            "step; engine='xla' spreads rows over the replicas"
            if is_tpu(strategy)
            else "no TPUStrategy: the host's op looks up in tables on a CPU, and "
            "TensorFlow's ops do in others"
        )
    if asked == "host" and is_tpu(strategy):
        raise errors.UnsupportedError(
            f"{kind} under a TPUStrategy with tables in host memory is not in "
            "this release; use TPUEmbedding."
        )
    if asked in ("replicated", "xla"):
        check_fixed_size(plan, asked)
        for config in plan.tables:
            check_rows(config)
            if is_custom(config.combiner):
                raise errors.UnsupportedError(
                    f"Table {config.name!r} has a CustomCombiner, which "
                    f"engine={asked!r} does not compile. Use TPUEmbedding with "
                    "engine='host' for it."
                )
    if are_sharded(asked, strategy):
        _check_slots(plan)
        why += ": rows are spread over the replicas"
    return EngineChoices(
        tuple(EngineChoice(one.name, asked, why) for one in plan.tables),
        is_tpu(strategy),
    )


def _check_slots(plan: EmbeddingPlan) -> None:
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        if rule is not None and rule.slot_variable_creation_fn is not None:
            raise errors.UnsupportedError(
                f"Table {config.name!r} has an optimizer with "
                "slot_variable_creation_fn, and engine='xla' spreads slots over "
                "replicas by itself. Leave it out, or use engine='replicated'."
            )


class TapedEmbedding(
    PlanNames, tf.__internal__.tracking.AutoTrackable, abc.ABC
):
    """Named tables with slots, as variables of the strategy they are made in.

    The checkpoint keys are those of TPUEmbedding.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them.
      optimizer: the optimizer whose slots the tables get; None: none.
      engine: one of TAPED_ENGINES.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        a table name used twice, or an engine that cannot hold a table.
      tfembed.errors.UnsupportedError: what is not in this release.
    """

    def __init__(
        self, feature_config: Any, optimizer: Any, engine: str
    ) -> None:
        self._replicas = Replicas(type(self).__name__)
        self._strategy = tf.distribute.get_strategy()
        self._plan: EmbeddingPlan = make_plan(feature_config, optimizer)
        self._choices = choose_taped_engines(
            self._plan, engine, self._strategy, type(self).__name__
        )
        self._store: Untracked[list[HostTable]] | None = None
        if self._replicas.count > 1:
            # Replicas run one after the other: none could build for all.
            self.build()

    def build(self) -> None:
        """Makes the tables; a second call does nothing.

        The first lookup does it where nobody did, in a function too.

        Raises:
          tfembed.errors.StateError: under another strategy than the object's.
        """
        if self._store is None:
            self._replicas.check_strategy("build")
            with MAKING:
                if self._store is None:
                    with tf.init_scope(), self._scope():
                        self._store = Untracked(self._make_tables())

    def __call__(self, features: Any, weights: Any = None) -> Any:
        """As `embedding_lookup`."""
        return self.embedding_lookup(features, weights)

    def __repr__(self) -> str:
        tables = None if self._store is None else self._store.value
        return f"<{type(self).__name__}: {self._in_words(tables)}>"

    def describe(self) -> str:
        """Tells each table's engine and why it has that engine, as a table of text."""
        return str(self._choices)

    @abc.abstractmethod
    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """The activations of `features`, structured as these."""

    @property
    def embedding_tables(self) -> TablesByConfig:
        """By TableConfig or name: a tf.Variable [vocabulary_size, dim] or, without a
        vocabulary, a `tfembed.dynamic_embedding.Variable`. Rows that are spread
        over replicas: a view with `assign`, `numpy` and `read_value`.
        """
        return TablesByConfig(
            (config, table.parameters)
            for config, table in zip(
                self._plan.tables, self._built_tables(), strict=True
            )
        )

    @property
    def variables(self) -> Mapping[str, Mapping[str, Any]]:
        """By name of a table: the table as "parameters", and its slots by name.

        As TensorFlow 2.21's, which is keyed by name whatever it says of configs.
        It cannot be written to: assign to the variables in it.
        """
        return types.MappingProxyType(
            {
                name: types.MappingProxyType(of_table)
                for name, of_table in self._variables.items()
            }
        )

    @property
    def trainable_variables(self) -> list[Any]:
        """The tables, for which a tape differentiates."""
        return list(self.embedding_tables.values())

    def _make_tables(self) -> list[HostTable]:
        stacked = self._restore_stacks()
        return [
            HostTable(stacked[config.name], {})
            if config.name in stacked
            else _make_table(self, config, optimizer)
            for config, optimizer in zip(
                self._plan.tables, self._plan.optimizers, strict=True
            )
        ]

    def _restore_stacks(self) -> dict[str, tf.Variable]:
        """Restores the tables that a checkpoint has in stacks, by name."""
        return {}

    # Under TensorFlow's private names, which layers on top of it read.

    @property
    def _built(self) -> bool:
        return self._store is not None

    @property
    def _output_shapes(self) -> list[tf.TensorShape]:
        return [feature.output_shape for feature in self._plan.features]

    @property
    def _variables(self) -> dict[str, dict[str, Any]]:
        return self._variables_of(self._built_tables())

    def _scope(self) -> Any:
        is_inside_run = (
            not tf.distribute.in_cross_replica_context()
            and tf.distribute.get_strategy() is self._strategy
        )
        return (
            contextlib.nullcontext()
            if is_inside_run
            else self._strategy.scope()
        )

    def _built_tables(self) -> list[HostTable]:
        self.build()
        assert self._store is not None
        return self._store.value


def _make_table(owner: Any, config: Any, optimizer: Any) -> HostTable:
    if config.vocabulary_size is not None:
        return make_static_table(owner, config, optimizer, tf.Variable)
    described = initializers.row_initializer(config.initializer, config.dim)
    if config.seed is not None:
        described = dataclasses.replace(described, seed=config.seed)
    variable = dynamic_embedding.Variable(
        config.key_dtype,
        config.dtype,
        config.dim,
        name=config.name,
        initializer=described,
        admission=config.admission,
        eviction=config.eviction,
        expiry=config.expiry,
        max_size=config.max_size,
        stochastic_rounding=config.stochastic_rounding,
        # Saved as the table itself, as TPUEmbedding saves it.
        checkpoint=False,
    )
    private.track(owner, config.name, variable.table)
    return HostTable(variable, {})
