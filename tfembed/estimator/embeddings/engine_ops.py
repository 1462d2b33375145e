"""The ops of a TPU's embedding engine, in the graph of a step.

    host, once a session:    load
    host, each step:         enqueue
    program, each step:      receive -> model -> send
    host, before a save:     retrieve

A table's rows lie on the TPU's hosts: with the strategy "div" one after another,
with "mod" row i on host i % hosts. Checkpoints have them one after another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import ops
from tfembed.estimator.embeddings.shares import id_checks, indices_of, used_ids

__all__ = [
    "EnginePlace",
    "engine_ids",
    "enqueue",
    "load",
    "part_of",
    "receive",
    "retrieve",
    "send",
    "shard_of",
]

# By the name of a rule in `tfembed.optimizers`: how its ops are called, and what
# they call its slots, in the order of the rule's own.
_STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Adagrad": ("Adagrad", ("accumulators",)),
    "Adam": ("ADAM", ("momenta", "velocities")),
    "FTRL": ("FTRL", ("accumulators", "linears")),
    "Momentum": ("Momentum", ("momenta",)),
    "ProximalAdagrad": ("ProximalAdagrad", ("accumulators",)),
    "RMSProp": ("RMSProp", ("ms", "mom")),
    "SGD": ("StochasticGradientDescent", ()),
}


@dataclasses.dataclass(frozen=True)
class EnginePlace:
    """A host's rows of a table.

    Attributes:
      table: the table's name.
      host: the host.
      num_hosts: how many there are.
      config: the configuration, which the first op of a graph that loads or
        retrieves brings; empty in the others, as in TensorFlow's own graphs.
    """

    table: str
    host: int
    num_hosts: int
    config: bytes = b""

    def attributes(self) -> dict[str, Any]:
        """Returns those of an op that loads or retrieves."""
        return {
            "num_shards": self.num_hosts,
            "shard_id": self.host,
            "table_name": self.table,
            "config": self.config,
        }


def engine_ids(
    ids: ops.FeatureIds, plan: ops.FeaturePlan, num_rows: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a feature as the engine takes it, on the host.

    Ids that a lookup passes over are left out, and those behind the end of a
    sequence; other ids that are no rows fail.

    Args:
      ids: the feature.
      plan: how it is looked up.
      num_rows: of its table.

    Returns:
      The places, int32: [0] for an id a sample, the row splits [B + 1] of ragged
      ids, or indices [n, 2] or, of sequences, [n, 3]; the ids, int64 [n]; the
      weights, float32 [n], or [0] where all are 1.
    """
    values, weights = ids.ids, ids.weights
    if ids.kind == "dense" or (
        ids.kind == "ragged" and not plan.max_sequence_length
    ):
        places = ids.rows
    else:
        places = indices_of(ids)
        keep = used_ids(ids, plan, has_vocabulary=True)
        conditions = [] if keep is None else [keep]
        if plan.max_sequence_length:
            conditions.append(places[:, 1] < plan.max_sequence_length)
        if conditions:
            kept = tf.where(tf.reduce_all(tf.stack(conditions), 0))[:, 0]
            places, values = tf.gather(places, kept), tf.gather(values, kept)
            if weights.shape[0] != 0:
                weights = tf.gather(weights, kept)
        if plan.max_sequence_length:
            # The last dimension is that over which ids would be combined.
            places = tf.pad(places, [[0, 0], [0, 1]])
    checks = id_checks(values, plan.name, num_rows, are_padded=False)
    with tf.control_dependencies(checks):
        values = tf.identity(values)
    return tf.cast(places, tf.int32), values, weights


def enqueue(
    features: Sequence[tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
    combiners: Sequence[str],
    core: int,
    *,
    is_training: bool,
) -> tf.Operation:
    """Hands the ids of a core's batch to the engine.

    Args:
      features: of each what `engine_ids` gave.
      combiners: of each table.
      core: its number on the op's host.
      is_training: whether gradients come.
    """
    places, ids, weights = zip(*features, strict=True)
    return tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(
        sample_indices_or_row_splits=places,
        embedding_indices=ids,
        aggregation_weights=weights,
        mode_override="train" if is_training else "inference",
        device_ordinal=core,
        combiners=list(combiners),
    )


def receive(proto: Any) -> list[tf.Tensor]:
    """Returns each feature's activations, in the program of a core."""
    return list(
        tf.raw_ops.RecvTPUEmbeddingActivations(
            num_outputs=len(proto.feature_descriptor),
            config=proto.SerializeToString(),
        )
    )


def send(
    proto: Any, gradients: Sequence[tf.Tensor], rates: Sequence[tf.Tensor]
) -> tf.Operation:
    """Gives the engine the gradients of a core's activations.

    Args:
      proto: the configuration.
      gradients: of each feature, in the shape of its activations.
      rates: the learning rates, float32 [], by tag.
    """
    return tf.raw_ops.SendTPUEmbeddingGradients(
        inputs=list(gradients),
        learning_rates=list(rates),
        config=proto.SerializeToString(),
    )


def load(
    place: EnginePlace, rule: str, values: Sequence[tf.Tensor]
) -> tf.Operation:
    """Writes a host's rows of a table to the engine.

    Args:
      place: which rows these are.
      rule: the name of the table's rule.
      values: the rows, then their slots.
    """
    stem, slots = _STATES[rule]
    op = getattr(tf.raw_ops, f"LoadTPUEmbedding{stem}Parameters")
    named = dict(zip(("parameters", *slots), values, strict=True))
    return op(**named, **place.attributes())


def retrieve(place: EnginePlace, rule: str) -> list[tf.Tensor]:
    """Reads what `load` writes."""
    stem, slots = _STATES[rule]
    op = getattr(tf.raw_ops, f"RetrieveTPUEmbedding{stem}Parameters")
    found = op(**place.attributes())
    return list(found) if slots else [found]


def shard_of(
    parts: Sequence[tf.Tensor], host: int, *, by_mod: bool
) -> tf.Tensor:
    """Returns the rows that the engine has on a host.

    Args:
      parts: the table's rows one after another, a part on each host.
      host: the host.
      by_mod: whether row i is on host i % hosts; else parts stay where they are.
    """
    if not by_mod:
        return parts[host]
    num_hosts = len(parts)
    firsts = _first_rows([part.shape[0] for part in parts])
    found = []
    for part, first in zip(parts, firsts, strict=True):
        with tf.device(part.device or None):  # No other rows travel.
            found.append(part[(host - first) % num_hosts :: num_hosts])
    return tf.concat(found, 0)


def part_of(
    shards: Sequence[tf.Tensor],
    sizes: Sequence[int],
    part: int,
    *,
    by_mod: bool,
) -> tf.Tensor:
    """Returns a part of a table's rows; the way back from `shard_of`.

    Args:
      shards: the rows by host.
      sizes: the rows of each part.
      part: which part.
      by_mod: as of `shard_of`.
    """
    if not by_mod:
        return shards[part]
    num_hosts, first = len(shards), _first_rows(sizes)[part]
    places, rows = [], []
    for host, shard in enumerate(shards):
        start = (host - first) % num_hosts
        count = len(range(start, sizes[part], num_hosts))
        begin = (first + start) // num_hosts
        places.append(tf.range(start, start + count * num_hosts, num_hosts))
        with tf.device(shard.device or None):
            rows.append(shard[begin : begin + count])
    return tf.dynamic_stitch(places, rows)


def _first_rows(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]
