"""Tables that a gradient tape trains: the base of V0 and serving."""

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
    """Chooses an engine for each table; all tables have the same one.

    Args:
      plan: the tables.
      asked: one of TAPED_ENGINES.
      strategy: the tf.distribute.Strategy in whose scope the tables are made.
      kind: the name of the calling class, for errors.

    Raises:
      tfembed.errors.ArgumentError: an unknown engine, or an engine that cannot
        hold one of the tables.
      tfembed.errors.UnsupportedError: a combination that is not in this
        release.
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
    """Named tables with slots, as variables of the strategy in scope.

    The checkpoint keys are those of TPUEmbedding.

    Args:
      feature_config: a FeatureConfig or a `tf.nest` structure of them.
      optimizer: the optimizer whose slots the tables get; None: none.
      engine: one of TAPED_ENGINES.

    Raises:
      tfembed.errors.ArgumentError: a config or optimizer that is not allowed,
        a table name used twice, or an engine that cannot hold a table.
      tfembed.errors.UnsupportedError: an option that is not in this release.
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
            # Replicas run one after the other, so none can build for all.
            self.build()

    def build(self) -> None:
        """Makes the tables; a second call does nothing.

        Without it the first lookup makes them, in a function too.

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
        """Calls `embedding_lookup`."""
        return self.embedding_lookup(features, weights)

    def __repr__(self) -> str:
        tables = None if self._store is None else self._store.value
        return f"<{type(self).__name__}: {self._in_words(tables)}>"

    def describe(self) -> str:
        """Describes each table's engine and the reason, as a table of text."""
        return str(self._choices)

    @abc.abstractmethod
    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """Returns the activations of `features`, in the same structure."""

    @property
    def embedding_tables(self) -> TablesByConfig:
        """The tables by TableConfig or name.

        Each is a tf.Variable [vocabulary_size, dim] or, without a vocabulary, a
        `tfembed.dynamic_embedding.Variable`. If rows are sharded over replicas,
        it is a view with `assign`, `numpy` and `read_value`.
        """
        return TablesByConfig(
            (config, table.parameters)
            for config, table in zip(
                self._plan.tables, self._built_tables(), strict=True
            )
        )

    @property
    def variables(self) -> Mapping[str, Mapping[str, Any]]:
        """The variables by table name: "parameters", and the slots by name.

        The keys are table names, as in TensorFlow 2.21. The mapping is
        read-only: assign to the variables in it.
        """
        return types.MappingProxyType(
            {
                name: types.MappingProxyType(of_table)
                for name, of_table in self._variables.items()
            }
        )

    @property
    def trainable_variables(self) -> list[Any]:
        """The tables, the sources of a tape's gradients."""
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
        """Restores tables of a checkpoint's stacks; returns them by name."""
        return {}

    # TensorFlow's private names, which layers on top of it read.

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
    described = initializers.table_initializer(
        config.initializer, config.dim, config.known_fan_in(), config.name
    )
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
