"""Rows that other processes own: one packed message an owner and direction.

A worker asks for the distinct ids of all features (`request_rows`), owners read
the rows (`serve_rows`), the worker combines them (`combine_rows`), sums the
gradients by row (`sum_row_gradients`), and owners apply these (`train_rows`).
Messages are int8 vectors, which may travel by any means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import library, private
from tfembed.ops.grouped import (
    FeatureIds,
    FeaturePlan,
    feature_attrs,
    feature_inputs,
    handles,
)

__all__ = [
    "OwnedTables",
    "RowRequest",
    "combine_rows",
    "request_rows",
    "serve_rows",
    "sum_row_gradients",
    "train_rows",
]


@dataclasses.dataclass(frozen=True)
class OwnedTables:
    """The tables of a worker, and who owns their rows.

    Attributes:
      names: per table its name in errors.
      dims: per table the numbers of a row.
      owners: per table the owner of each of its shards, in [0, num_owners).
        Id i lies in shard floormod(i, shards), unless a request says otherwise.
      num_owners: the number of owners.
      num_rows: per table the rows of a fixed vocabulary, of which a shard has
        id i as row i // shards; -1 for other tables.
      repeats: per table whether each occurrence of an id is a row of its own,
        for rules that do not sum gradients.
    """

    names: tuple[str, ...]
    dims: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]
    num_owners: int
    num_rows: tuple[int, ...]
    repeats: tuple[bool, ...]

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of a worker's ops."""
        return {
            "T": len(self.dims),
            "num_shards": [len(shards) for shards in self.owners],
            "owners": [owner for shards in self.owners for owner in shards],
            "num_rows": list(self.num_rows),
        }

    def shards_of(self, owner: int) -> list[tuple[int, int]]:
        """Lists the (table, shard) of an owner in the order of requests."""
        return [
            (table, shard)
            for table, owners in enumerate(self.owners)
            for shard, one in enumerate(owners)
            if one == owner
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class RowRequest:
    """A batch's requests, and what the worker keeps for its answers.

    Attributes:
      messages: int8 [n], one for each owner.
      features: the batch, with the places of rows as ids.
      plans: one per feature.
      tables: the tables.
    """

    messages: list[tf.Tensor]
    features: list[FeatureIds]
    plans: Sequence[FeaturePlan]
    tables: OwnedTables

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the ops on what answers the request."""
        kinds = [feature.kind for feature in self.features]
        attrs = feature_attrs(self.tables.dims, kinds, self.plans)
        return {**attrs, **self.tables.attrs}


def request_rows(
    features: Sequence[FeatureIds],
    plans: Sequence[FeaturePlan],
    tables: OwnedTables,
    *,
    shards: Sequence[tf.Tensor | None] = (),
    wire_dtype: tf.DType = tf.float32,
    sender: str = "",
) -> RowRequest:
    """Packs the distinct ids of all features, one request for each owner.

    Args:
      features: the batch, as for `grouped_lookup`.
      plans: one per feature; each table has a feature.
      tables: the tables.
      shards: per feature None, or the shard of each of its ids, int32 [n], the
        same for equal ids. Strings of a table with several shards need them.
      wire_dtype: float32, bfloat16 or float16: the dtype in which rows and
        gradients travel, rounded to the nearest.
      sender: the name of this worker in errors, which then go to all owners in
        place of the requests, so that `serve_rows` raises them everywhere.

    Raises:
      tf.errors.InvalidArgumentError: without a `sender`: an id that cannot be
        in its table, rows or weights that do not fit the ids; the text names
        the feature.
    """
    given = list(shards) or [None] * len(features)
    none = tf.zeros([0], tf.int32)
    result = library.load().tfembed_request_rows(
        *feature_inputs(features),
        [none if one is None else one for one in given],
        P=tables.num_owners,
        repeats=list(tables.repeats),
        wire=wire_dtype,
        sender=sender,
        **feature_attrs(tables.dims, [f.kind for f in features], plans),
        **tables.attrs,
    )
    placed = [
        dataclasses.replace(feature, ids=places)
        for feature, places in zip(features, result.places, strict=True)
    ]
    return RowRequest(list(result.requests), placed, plans, tables)


def serve_rows(
    tables: Sequence[Any], dims: Sequence[int], messages: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Reads the rows that requests ask for, on the owner.

    Args:
      tables: this owner's tf.Variables or handles of tables, in the order of
        `OwnedTables.shards_of`.
      dims: per table the numbers of a row.
      messages: the requests of one or several workers.

    Returns:
      An answer for each message, int8 [n].

    Raises:
      tf.errors.InvalidArgumentError: a message that is damaged, or of another
        version or tables.
      The error that a worker sent in place of its request.
    """
    answers: list[tf.Tensor] = library.load().tfembed_serve_rows(
        handles(tables), messages, dims=list(dims)
    )
    return answers


def combine_rows(
    request: RowRequest, answers: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Combines the rows of all owners to activations, on the worker.

    Args:
      request: what `request_rows` returned.
      answers: the answer of each owner.

    Returns:
      Per feature float32 [B, dim] or [B, max_sequence_length, dim], without a
      gradient.
    """
    activations: list[tf.Tensor] = library.load().tfembed_combine_rows(
        request.messages,
        answers,
        *feature_inputs(request.features),
        **request.attrs,
    )
    return activations


def sum_row_gradients(
    request: RowRequest,
    gradients: Sequence[tf.Tensor],
    *,
    nonfinite: str = "skip",
    sender: str = "",
) -> list[tf.Tensor]:
    """Sums gradients of activations by row, on the worker.

    Args:
      request: what `request_rows` returned.
      gradients: per feature a tensor of its activations' shape.
      nonfinite: "refuse" refuses a sum with a NaN or an infinity; "skip" and
        "allow" leave it to `train_rows`.
      sender: as for `request_rows`.

    Returns:
      The message for each owner, int8 [n].

    Raises:
      tf.errors.InvalidArgumentError: with "refuse" and without a `sender`.
    """
    sums: list[tf.Tensor] = library.load().tfembed_sum_row_gradients(
        request.messages,
        *feature_inputs(request.features),
        gradients,
        table_names=list(request.tables.names),
        nonfinite=nonfinite,
        sender=sender,
        **request.attrs,
    )
    return sums


def train_rows(
    tables: Sequence[Any],
    slots: Sequence[Any],
    dims: Sequence[int],
    messages: Sequence[tf.Tensor],
    sums: Sequence[tf.Tensor],
    *,
    rules: Sequence[str],
    learning_rates: Sequence[Any],
    nonfinite: str = "skip",
    table_names: Sequence[str] = (),
    norm_limits: Sequence[float] = (),
    norm_groups: Sequence[int] = (),
) -> tf.Tensor:
    """Updates rows by the summed gradients of workers, on the owner.

    Args:
      tables, dims, messages: as for `serve_rows`.
      sums: what each worker's `sum_row_gradients` made for this owner. A row of
        several workers is updated once, by the sum in their order.
      slots, rules, learning_rates, nonfinite, table_names, norm_limits,
        norm_groups: as for `grouped_update`.

    Returns:
      int64 [tables]: the count of rows with a non-finite sum.

    Raises:
      tf.errors.InvalidArgumentError: as `serve_rows` and `grouped_update`.
      The error that a worker sent in place of its sums.
    """
    rates = [tf.cast(rate, tf.float32) for rate in learning_rates]
    return library.load().tfembed_train_rows(
        handles(tables),
        handles(slots),
        messages,
        sums,
        tf.stack(rates),
        dims=list(dims),
        rules="\n".join(rules),
        nonfinite=nonfinite,
        table_names=list(table_names),
        norm_limits=list(norm_limits),
        norm_groups=list(norm_groups),
    )


tf.no_gradient("Tfembed>CombineRows")
private.register_read_only("Tfembed>ServeRows")
