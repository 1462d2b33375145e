"""The choice of an engine for each table, and the limits of the xla engine."""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import cores_of, is_tpu
from tfembed.embedding.tpu.tensorflow_configs import why_not_tensorflows
from tfembed.embedding.xla.stack import MOST_ROWS

__all__ = [
    "ENGINES",
    "EngineChoice",
    "EngineChoices",
    "check_engine_name",
    "check_fixed_size",
    "check_xla_plan",
    "check_xla_replicas",
    "choose_engines",
    "engine_class",
    "missing",
]


# Modules that are imported on first use: programs without TPUs need not load
# them.
_CLASSES = {
    "host": ("tfembed.embedding.host.engine", "HostEngine"),
    "tpu_host": ("tfembed.embedding.tpu.host_engine", "TpuHostEngine"),
    "tpu_xla": ("tfembed.embedding.xla.engine", "XlaShardedEngine"),
    "xla": ("tfembed.embedding.xla.engine", "XlaDeviceEngine"),
    "tpu": ("tfembed.embedding.tpu.engine", "TpuEngine"),
}


def missing(engine: str) -> str | None:
    """Says why an engine is missing, as a sentence; None if it is there."""
    module, _ = _CLASSES[engine]
    why = getattr(importlib.import_module(module), "why_missing", None)
    return None if why is None else why()


def engine_class(engine: str) -> Any:
    """Returns the class of an engine that is there, an `Engine`."""
    module, name = _CLASSES[engine]
    return getattr(importlib.import_module(module), name)


ENGINES = ("auto", "host", "xla", "tpu")


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """The engine of one table, and why it was chosen.

    Attributes:
      table: the table's name.
      engine: "host", "xla" or "tpu".
      why: the reason, for users.
    """

    table: str
    engine: str
    why: str


@dataclasses.dataclass(frozen=True)
class EngineChoices:
    """The choice of each table, in the plan's order.

    Attributes:
      of_tables: one choice for each table.
      on_tpu: whether the strategy is a TPUStrategy.
    """

    of_tables: tuple[EngineChoice, ...]
    on_tpu: bool

    @property
    def all_on_host(self) -> bool:
        """Whether the host engine has all tables."""
        return all(one.engine == "host" for one in self.of_tables)

    def __str__(self) -> str:
        """Formats the choices as a table of text."""
        rows = [("table", "engine", "why")]
        rows += [(one.table, one.engine, one.why) for one in self.of_tables]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(
            f"{table:{widths[0]}}  {engine:{widths[1]}}  {why}"
            for table, engine, why in rows
        )


def choose_engines(
    plan: EmbeddingPlan, asked: str, strategy: Any, nonfinite: str
) -> EngineChoices:
    """Chooses an engine for each table.

    Args:
      plan: the tables.
      asked: one of ENGINES.
      strategy: the tf.distribute.Strategy in scope, where the tables are made.
      nonfinite: as for TPUEmbedding.

    Raises:
      tfembed.errors.ArgumentError: an unknown engine, or an engine that cannot
        hold one of the tables.
      tfembed.errors.UnsupportedError: an engine that is missing here, or does
        not support a requested option.
    """
    choices = _chosen(plan, asked, strategy, nonfinite)
    _check_cores(choices, strategy)
    return choices


def _chosen(
    plan: EmbeddingPlan, asked: str, strategy: Any, nonfinite: str
) -> EngineChoices:
    check_engine_name(asked, ENGINES)
    if asked == "auto":
        return EngineChoices(
            tuple(
                EngineChoice(
                    config.name,
                    *_automatic(config, rule, strategy, nonfinite),
                )
                for config, rule in zip(
                    plan.tables, plan.optimizers, strict=True
                )
            ),
            is_tpu(strategy),
        )
    if asked != "host":
        check_fixed_size(plan, asked)
        absent = missing(asked)
        if absent is not None:
            raise errors.UnsupportedError(
                f"engine={asked!r} is not there: {absent} Use engine='host', "
                "or engine='auto'."
            )
    if asked == "xla":
        check_xla_replicas()
        check_xla_plan(plan, nonfinite)
    if asked == "tpu":
        _check_has_embedding_engine(strategy)
        _check_tensorflow_has(plan)
    why = f"engine={asked!r} was asked for"
    return EngineChoices(
        tuple(EngineChoice(one.name, asked, why) for one in plan.tables),
        is_tpu(strategy),
    )


def _check_cores(choices: EngineChoices, strategy: Any) -> None:
    cores = cores_of(strategy)
    elsewhere = [one for one in choices.of_tables if one.engine != "tpu"]
    if cores > 1 and elsewhere:
        raise errors.UnsupportedError(
            f"A replica of this TPUStrategy has {cores} cores, over which the "
            "TPU's embedding engine alone spreads a batch. Not in it is table "
            f"{elsewhere[0].table!r}: {elsewhere[0].why}. Use one core per "
            "replica."
        )


def check_engine_name(asked: str, engines: tuple[str, ...]) -> None:
    """Raises tfembed.errors.ArgumentError if `asked` is not in `engines`."""
    if asked not in engines:
        raise errors.ArgumentError(
            f"`engine` must be one of {engines}; got {asked!r}."
        )


def check_fixed_size(plan: EmbeddingPlan, asked: str) -> None:
    """Raises tfembed.errors.ArgumentError if a table has no vocabulary."""
    for config in plan.tables:
        if config.vocabulary_size is None:
            raise errors.ArgumentError(
                f"engine={asked!r} holds tables of a fixed size only; "
                f"table {config.name!r} has vocabulary_size=None. Give it "
                "a vocabulary_size, or use engine='auto', which keeps such "
                "tables in host memory."
            )


def check_xla_replicas() -> None:
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


def check_xla_plan(plan: EmbeddingPlan, nonfinite: str) -> None:
    """Checks that programs of the xla engine can have the tables.

    Raises:
      tfembed.errors.UnsupportedError: an option of a table that is not
        compiled, or nonfinite="refuse".
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
    """Returns the option of a table that no program compiles, or None."""
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


def _automatic(
    config: Any, rule: Any, strategy: Any, nonfinite: str
) -> tuple[str, str]:
    if not is_tpu(strategy):
        return "host", "no TPUStrategy: one table in host memory serves all"
    if config.vocabulary_size is None:
        return "host", "no fixed vocabulary: rows come and go in host memory"
    feature = embedding_feature(strategy)
    refusal = why_not_tensorflows(config, rule)
    if feature == "v1" and refusal is None:
        return "tpu", "the TPU has an embedding engine, and the size is fixed"
    if feature == "v1":
        no_engine = f"not for the TPU's embedding engine: {refusal}"
    elif feature == "unsupported":
        no_engine = "the TPU has no embedding engine"
    else:
        no_engine = f"no driver here for the TPU's embedding engine ({feature})"
    what = not_compiled(config, rule, strategy)
    if nonfinite == "refuse":
        what = "nonfinite='refuse'"
    refusal = what and f"engine 'xla' compiles no {what}"
    if refusal is None:
        absent = missing("xla")
        refusal = absent and f"engine 'xla' is not there: {absent}"
    if refusal is None:
        return "xla", f"{no_engine}: rows are sharded over the TensorCores"
    return "host", f"{no_engine}, and {refusal}"


def embedding_feature(strategy: Any) -> str:
    """Returns a TPUStrategy's embedding hardware: "v1", "v2", "unsupported"."""
    feature = strategy.extended.tpu_hardware_feature
    # Some cluster resolvers have no description of the hardware.
    if feature.tpu_hardware_feature_proto is None:
        return "unsupported"
    return str(feature.embedding_feature.value).lower()


def _check_tensorflow_has(plan: EmbeddingPlan) -> None:
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        refusal = why_not_tensorflows(config, rule)
        if refusal is not None:
            raise errors.ArgumentError(
                f"engine='tpu' cannot hold table {config.name!r}: {refusal}. "
                "Use engine='auto'."
            )


def _check_has_embedding_engine(strategy: Any) -> None:
    if not is_tpu(strategy):
        raise errors.ArgumentError(
            "engine='tpu' needs a TPUStrategy; the object is made under "
            f"{type(strategy).__name__}. Use engine='auto'."
        )
    feature = embedding_feature(strategy)
    if feature != "v1":
        raise errors.ArgumentError(
            "engine='tpu' needs a TPU with an embedding engine (version 1); "
            f"the TPUStrategy's hardware says {feature!r}. Use engine='auto'."
        )


def _check_memory(plan: EmbeddingPlan) -> None:
    """Refuses tables of the xla engine that exceed the host's memory.

    A CPU's tables are in that memory; a GPU's tables are made there.

    Raises:
      tfembed.errors.ArgumentError: the tables and slots are larger.
    """
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
