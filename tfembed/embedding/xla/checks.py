"""The limits of the xla engine, told before anything is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import is_tpu
from tfembed.embedding.xla.stack import MOST_ROWS

__all__ = ["check_has_samples", "check_plan", "check_replicas", "not_compiled"]


def check_replicas() -> None:
    """Raises tfembed.errors.UnsupportedError under several replicas."""
    strategy = tf.distribute.get_strategy()
    if (
        isinstance(strategy, tf.distribute.TPUStrategy)
        or strategy.num_replicas_in_sync == 1
    ):
        return
    raise errors.UnsupportedError(
        "engine='xla' spreads tables over the replicas of one program, and "
        f"TensorFlow compiles each of the {strategy.num_replicas_in_sync} "
        f"replicas of a {type(strategy).__name__} alone. Use engine='host', "
        "which serves all of them, or one device."
    )


def check_plan(plan: EmbeddingPlan, nonfinite: str) -> None:
    """Checks tables and what to do with rows that are not finite.

    Raises:
      tfembed.errors.UnsupportedError: what no compiled program can do.
      tfembed.errors.ArgumentError: tables that are larger than the memory.
    """
    if nonfinite == "refuse":
        raise errors.UnsupportedError(
            "nonfinite='refuse' stops a step before anything is changed, which "
            "a compiled program of engine='xla' cannot. Use 'skip', which "
            "`sizes` counts, or engine='host'."
        )
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        what = not_compiled(config, rule, tf.distribute.get_strategy())
        if what is not None:
            raise errors.UnsupportedError(
                f"Table {config.name!r} has a {what}, which engine='xla' does "
                "not compile. Use engine='host' for it."
            )
    _check_memory(plan)


def not_compiled(config: Any, rule: Any, strategy: Any) -> str | None:
    """The feature of a fixed-size table that no program has; None: nothing."""
    creates = rule is not None and rule.slot_variable_creation_fn
    if creates and is_tpu(strategy):
        return "slot_variable_creation_fn"
    if is_custom(config.combiner):
        return "CustomCombiner"
    if rule is not None and not rule.is_fused:
        return "CustomOptimizer"
    if rule is not None and rule.norm_limit is not None:
        return str(rule.norm_limit)
    if config.vocabulary_size > MOST_ROWS:
        return f"vocabulary of more than {MOST_ROWS:,} rows"
    return None


def check_has_samples(specs: Sequence[InputSpec], paths: Sequence[str]) -> None:
    """Raises tfembed.errors.UnsupportedError for batches of no samples."""
    for one, path in zip(specs, paths, strict=True):
        if one.batch_size == 0:
            raise errors.UnsupportedError(
                f"Input {path} has no samples, for which engine='xla' compiles "
                "no program. Leave such batches out, or use engine='host'."
            )


def _check_memory(plan: EmbeddingPlan) -> None:
    """The host's, which a CPU's tables are in and a GPU's come from."""
    total = 0
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        shape = (config.vocabulary_size, config.dim)
        shapes = [shape]
        if rule is not None:
            shapes += [rule.slot_shape(s, shape) for s in rule.slot_names]
        total += 4 * sum(rows * width for rows, width in shapes)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > memory:
        raise errors.ArgumentError(
            f"The tables and slots of engine='xla' take {total:,} bytes, and "
            f"the machine has {memory:,}. Use smaller tables, an optimizer with "
            "fewer slots, or more devices."
        )
