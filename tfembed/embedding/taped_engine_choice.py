"""Which engine looks up the tables that a tape trains, and why."""

from __future__ import annotations

from typing import Any

from tfembed import errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.engines.choice import (
    EngineChoice,
    EngineChoices,
    check_engine_name,
    check_fixed_size,
)
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import is_tpu
from tfembed.embedding.xla.stack import check_rows
from tfembed.embedding.xla.taped_shards import are_sharded

__all__ = ["TAPED_ENGINES", "choose_taped_engines"]

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
