"""Which replica gets which part of what is enqueued."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfembed import errors
from tfembed.embedding.core_shares import split_over_cores
from tfembed.embedding.features.packed_features import PackedFeatures, unpacked
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import THIS_REPLICA, Replicas

__all__ = ["ReplicaShare", "replica_shares"]


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaShare:
    """The batch of a replica, or of one of its cores where it has several.

    Attributes:
      replica: its number.
      values: per feature its ids.
      weights: per feature they, or None.
      device: where it goes; None inside of a TPUStrategy's run.
    """

    replica: int
    values: list[Any]
    weights: list[Any]
    device: str | None = None


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
      tfembed.errors.ArgumentError: a device without a replica, packed features
        of something else, or what cannot be split over a replica's cores.
      ValueError, TypeError: a structure that does not match.
    """
    if isinstance(replicas.split([features])[0][0], PackedFeatures):
        if replicas.current() == THIS_REPLICA:
            raise errors.ArgumentError(
                "Packed features are taken apart on the host: under a "
                "TPUStrategy, enqueue them outside of strategy.run."
            )
        shares = [
            ReplicaShare(
                replica, *unpacked(packed, plan.feature_config, weights), name
            )
            for replica, name, (packed,) in _split(replicas, [features], device)
        ]
    else:
        values = plan.flatten(features, "features")
        weight_values = [None] * len(values)
        if weights is not None:
            weight_values = plan.flatten(weights, "weights")
        n = len(values)
        shares = [
            ReplicaShare(replica, share[:n], share[n:], name)
            for replica, name, share in _split(
                replicas, values + weight_values, device
            )
        ]
    if replicas.cores == 1 or device is not None:
        return shares
    return _of_cores(plan, replicas, shares)


def _of_cores(
    plan: EmbeddingPlan, replicas: Replicas, shares: Sequence[ReplicaShare]
) -> list[ReplicaShare]:
    """A share for each core of the replicas."""
    if replicas.current() == THIS_REPLICA:
        raise errors.UnsupportedError(
            f"A replica of this TPUStrategy has {replicas.cores} cores: enqueue "
            "outside of strategy.run, where its batch is split over them."
        )
    return [
        ReplicaShare(share.replica, values, weights, core)
        for share in shares
        for values, weights, core in zip(
            split_over_cores(share.values, plan.paths, replicas.cores),
            split_over_cores(share.weights, plan.paths, replicas.cores),
            replicas.devices[share.replica],
            strict=True,
        )
    ]


def _split(
    replicas: Replicas, values: Sequence[Any], device: str | None
) -> list[tuple[int, str | None, list[Any]]]:
    """Replicas, their devices and what they get."""
    if device is not None:
        return [(*replicas.of_device(device), list(values))]
    if replicas.is_inside_run():
        return [(replicas.current_for("enqueue"), None, list(values))]
    return [
        (replica, names[0], share)
        for replica, (names, share) in enumerate(
            zip(replicas.devices, replicas.split(values), strict=True)
        )
    ]
