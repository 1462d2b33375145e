"""Rows of tables that others own: looked up and trained by one request each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.cluster.owners import by_device
from tfembed.cluster.wires import PlacedWire
from tfembed.ops import request as request_ops
from tfembed.ops.grouped import FeatureIds, FeaturePlan

__all__ = ["ExchangedTable", "RowExchange"]


@dataclasses.dataclass(frozen=True, eq=False)
class ExchangedTable:
    """A table whose shards have owners.

    Attributes:
      name: the table's name in errors.
      dim: the numbers of a row.
      handles: the resource handle of each shard.
      repeats: whether each occurrence of an id is trained by itself.
    """

    name: str
    dim: int
    handles: Sequence[tf.Tensor]
    repeats: bool = False


class RowExchange:
    """Looks up rows of tables, and trains them, over the tables' owners.

    A worker sends each owner one message a step with the distinct ids of all
    features, gets one back with their rows, and sends one with the summed
    gradients of these.

    Args:
      tables: the tables, each of which has a feature in every batch. The device
        of a shard's handle is its owner.
      wire_dtype: float32, bfloat16 or float16, in which rows and gradients
        travel.
    """

    def __init__(
        self,
        tables: Sequence[ExchangedTable],
        *,
        wire_dtype: tf.DType = tf.float32,
    ) -> None:
        shards = [
            (t, handle)
            for t, table in enumerate(tables)
            for handle in table.handles
        ]
        owners = by_device([handle for _, handle in shards])
        self._wire = PlacedWire([shards[own[0]][1].device for own in owners])
        self._wire_dtype = wire_dtype
        of_shard = {i: owner for owner, own in enumerate(owners) for i in own}
        self._tables = request_ops.OwnedTables(
            names=tuple(table.name for table in tables),
            dims=tuple(table.dim for table in tables),
            owners=tuple(
                tuple(
                    of_shard[i]
                    for i, (other, _) in enumerate(shards)
                    if other == t
                )
                for t in range(len(tables))
            ),
            num_owners=len(owners),
            num_rows=(-1,) * len(tables),
            repeats=tuple(table.repeats for table in tables),
        )
        self._shards = [
            [(t, tables[t].handles[s]) for t, s in self._tables.shards_of(o)]
            for o in range(len(owners))
        ]

    def request(
        self,
        features: Sequence[FeatureIds],
        plans: Sequence[FeaturePlan],
        shards: Sequence[tf.Tensor | None] = (),
    ) -> request_ops.RowRequest:
        """Packs the distinct ids of a batch; see `ops.request.request_rows`."""
        return request_ops.request_rows(
            features,
            plans,
            self._tables,
            shards=shards,
            wire_dtype=self._wire_dtype,
        )

    def look_up(self, asked: request_ops.RowRequest) -> list[tf.Tensor]:
        """Returns the activations of each feature, float32, no gradient."""
        answers = self._wire.ask(asked.messages, self._serve)
        return request_ops.combine_rows(asked, answers)

    def train(
        self,
        asked: request_ops.RowRequest,
        gradients: Sequence[tf.Tensor],
        *,
        rules: Sequence[str],
        learning_rates: Sequence[Any],
        nonfinite: str,
    ) -> tf.Tensor:
        """Updates each row once, by the sum of its gradients.

        Args:
          asked: the request of the batch.
          gradients: per feature the gradient of its activations.
          rules: per table the text of its update rule.
          learning_rates: per table a float or a scalar tensor.
          nonfinite: "skip", "refuse" or "allow". A refused gradient leaves the
            rows of all owners as they were.

        Returns:
          int64 []: the count of rows with a sum that is not finite.
        """
        sums = request_ops.sum_row_gradients(
            asked, gradients, nonfinite=nonfinite
        )

        def train(
            owner: int, messages: list[tf.Tensor], sums: list[tf.Tensor]
        ) -> tf.Tensor:
            shards = self._shards[owner]
            return tf.reduce_sum(
                request_ops.train_rows(
                    [handle for _, handle in shards],
                    [],
                    self._dims(owner),
                    messages,
                    sums,
                    rules=[rules[t] for t, _ in shards],
                    learning_rates=[learning_rates[t] for t, _ in shards],
                    nonfinite=nonfinite,
                )
            )

        counts = self._wire.tell(asked.messages, sums, train)
        return counts[0] if len(counts) == 1 else tf.add_n(counts)

    def _serve(self, owner: int, messages: list[tf.Tensor]) -> list[tf.Tensor]:
        handles = [handle for _, handle in self._shards[owner]]
        return request_ops.serve_rows(handles, self._dims(owner), messages)

    def _dims(self, owner: int) -> list[int]:
        return [self._tables.dims[t] for t, _ in self._shards[owner]]
