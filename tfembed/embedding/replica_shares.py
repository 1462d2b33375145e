"""Which replica gets which part of what is enqueued."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfembed import errors
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import THIS_REPLICA, Replicas

__all__ = ["ReplicaShare", "replica_shares"]


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaShare:
    """One replica's batch: per feature its ids, and its weights or None."""

    replica: int
    values: list[Any]
    weights: list[Any]


def replica_shares(
    plan: EmbeddingPlan,
    replicas: Replicas,
    features: Any,
    weights: Any,
    device: str | None,
) -> list[ReplicaShare]:
    """The batches of the replicas that a call of enqueue is for.

    Args:
      plan: of the features.
      replicas: of the strategy.
      features, weights, device: as for `TPUEmbedding.enqueue`.

    Raises:
      tfembed.errors.ArgumentError: a device without a replica, or packed
        features of something else.
      ValueError, TypeError: a structure that does not match.
    """
    if isinstance(replicas.split([features])[0][0], PackedFeatures):
        if replicas.current() == THIS_REPLICA:
            raise errors.ArgumentError(
                "Packed features are taken apart on the host: under a "
                "TPUStrategy, enqueue them outside of strategy.run."
            )
        return [
            ReplicaShare(
                replica, *unpacked(packed, plan.feature_config, weights)
            )
            for replica, (packed,) in _split(replicas, [features], device)
        ]
    values = plan.flatten(features, "features")
    weight_values = [None] * len(values)
    if weights is not None:
        weight_values = plan.flatten(weights, "weights")
    n = len(values)
    return [
        ReplicaShare(replica, share[:n], share[n:])
        for replica, share in _split(replicas, values + weight_values, device)
    ]


def _split(
    replicas: Replicas, values: list[Any], device: str | None
) -> list[tuple[int, list[Any]]]:
    if device is not None:
        return [(replicas.of_device(device), values)]
    if replicas.is_inside_run():
        return [(replicas.current_for("enqueue"), values)]
    return list(enumerate(replicas.split(values)))
