"""What the xla engine cannot do, said before anything is made."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import is_tpu

__all__ = ["check_plan", "check_replicas"]


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


def check_plan(plan: EmbeddingPlan, options: Any) -> None:
    """Checks tables and options.

    Raises:
      tfembed.errors.UnsupportedError: what no compiled program can do.
      tfembed.errors.ArgumentError: tables that are larger than the memory.
    """
    if options.nonfinite == "refuse":
        raise errors.UnsupportedError(
            "nonfinite='refuse' stops a step before anything is changed, which "
            "a compiled program of engine='xla' cannot. Use 'skip', which "
            "`sizes` counts, or engine='host'."
        )
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        if getattr(rule, "slot_variable_creation_fn", None) and is_tpu(
            tf.distribute.get_strategy()
        ):
            raise _not_compiled(config, "a slot_variable_creation_fn")
        if is_custom(config.combiner):
            raise _not_compiled(config, "a CustomCombiner")
        if rule is not None and not rule.is_fused:
            raise _not_compiled(config, "a CustomOptimizer")
    _check_memory(plan)


def _not_compiled(config: Any, what: str) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        f"Table {config.name!r} has {what}, which engine='xla' does not "
        "compile. Use engine='host' for it."
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
