"""Lookups of V0 by ops that XLA compiles for any device.

All shapes are static: ids without a row, such as padding, keep their positions.
The gradient of each table is one tf.IndexedSlices for all of its features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features.pooling import gathered_once
from tfembed.embedding.lookups.direct_lookup import check_input
from tfembed.embedding.lookups.fused_lookup import read_taped
from tfembed.embedding.xla.entries import (
    Entries,
    entries_of,
    pool,
    require_known_number,
)
from tfembed.ops import FeatureIds, FeaturePlan

__all__ = ["FindRows", "look_up_static", "rows_of_whole_tables"]

# A function from (TableConfig, int32 ids [n]) of each table to its rows [n,
# dim]. Negative ids give zeros without a gradient.
FindRows = Callable[[Sequence[tuple[Any, tf.Tensor]]], list[tf.Tensor]]


def look_up_static(
    features: Sequence[tuple[str, Any]],
    values: Sequence[Any],
    weights: Sequence[Any],
    find_rows: FindRows,
) -> list[tf.Tensor]:
    """Returns the activations of each feature, as TPUEmbeddingV0 defines them.

    XLA programs cannot raise: an id out of bounds gives zeros, and a negative
    id of sparse input is left out.

    Args:
      features: (path, FeatureConfig); the path is the feature's name in errors.
      values: per feature a Tensor, SparseTensor or RaggedTensor of ids.
      weights: per feature None or its weights.
      find_rows: called once, for all tables that have features.

    Raises:
      tfembed.errors.ArgumentError: an input that does not fit its feature, or
        whose static shape is not known.
      tfembed.errors.DtypeError: ids that are not integers.
    """
    read = [
        _read(value, weight, feature, path)
        for (path, feature), value, weight in zip(
            features, values, weights, strict=True
        )
    ]
    indices: dict[int, list[int]] = {}
    for i, one in enumerate(read):
        indices.setdefault(id(one.config), []).append(i)
    parts = [[read[i].entries.ids for i in here] for here in indices.values()]
    found = find_rows(
        [
            (read[here[0]].config, tf.concat(of_table, 0))
            for here, of_table in zip(indices.values(), parts, strict=True)
        ]
    )
    rows: dict[int, tf.Tensor] = {}
    for here, of_table, of_ids in zip(
        indices.values(), parts, found, strict=True
    ):
        split = tf.split(of_ids, [part.shape[0] for part in of_table], 0)
        rows.update(zip(here, split, strict=True))
    return [one.activations(rows[i]) for i, one in enumerate(read)]


def rows_of_whole_tables(tables: Mapping[Any, Any]) -> FindRows:
    """Makes a FindRows for variables [vocabulary_size, dim], by TableConfig."""

    def find_rows(
        wanted: Sequence[tuple[Any, tf.Tensor]],
    ) -> list[tf.Tensor]:
        return [_gather(tables[config], ids) for config, ids in wanted]

    return find_rows


def _gather(table: Any, ids: tf.Tensor) -> tf.Tensor:
    there = ids >= 0
    # Ids without a row read a row that is looked up anyway, so that an
    # optimizer of sparse gradients updates no other row. Without any id, row 0
    # gets a gradient of 0.
    stand_in = tf.maximum(tf.reduce_max(ids), 0)
    rows = gathered_once(table, *_distinct(tf.where(there, ids, stand_in)))
    return tf.where(there[:, tf.newaxis], rows, 0.0)


def _distinct(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns distinct ids [n], padded, and the index of each id in them.

    It replaces tf.unique, which XLA does not compile. The padding repeats the
    greatest id, with gradients of 0.
    """
    order = tf.argsort(ids, stable=True)
    ordered = tf.gather(ids, order)
    is_new = tf.concat([[False], tf.not_equal(ordered[1:], ordered[:-1])], 0)
    ranks = tf.cumsum(tf.cast(is_new[: tf.size(ids)], tf.int32))
    distinct = tf.math.unsorted_segment_max(ordered, ranks, tf.size(ids))
    positions = tf.scatter_nd(order[:, tf.newaxis], ranks, tf.shape(ids))
    return tf.where(distinct < 0, tf.reduce_max(ids), distinct), positions


@dataclasses.dataclass(frozen=True, eq=False)
class _Input:
    """A feature: entries, the TableConfig, and the batch's shape."""

    entries: Entries
    config: Any
    lead: tf.TensorShape

    def activations(self, rows: tf.Tensor) -> tf.Tensor:
        pooled = pool(rows, self.entries, self.config)
        return tf.reshape(pooled, self.lead.concatenate(self.config.dim))


def _read(value: Any, weights: Any, feature: Any, path: str) -> _Input:
    check_input(value, weights, feature, path)
    config = feature.table
    ids, length, lead = read_taped(value, weights, feature, path)
    require_known_number(
        ids, path, "Or look up outside of jit_compile=True and of TPUs' steps."
    )
    if not lead.is_fully_defined():
        raise errors.ArgumentError(
            f"The batch size of input {path} is not known when the function is "
            f"traced: its shape is {value.shape}, and XLA compiles for one size. "
            "Batch with drop_remainder=True, or give the function an "
            "input_signature."
        )
    batch = lead.num_elements() // max(length, 1)
    entries = entries_of(
        _with_padding_marked(ids, batch),
        FeaturePlan(
            table=0,
            combiner=config.combiner,
            max_sequence_length=length,
            validate=False,
            name=path,
        ),
        config.vocabulary_size,
        config.combiner,
    )
    return _Input(entries, config, lead)


def _with_padding_marked(ids: FeatureIds, batch: int) -> FeatureIds:
    """Marks sparse entries without an id, so that they are ignored."""
    rows = ids.rows
    if ids.kind == "sparse":
        rows = tf.where(ids.ids[:, tf.newaxis] >= 0, rows, -1)
    return dataclasses.replace(
        ids, rows=rows, batch_size=tf.constant(batch, tf.int64)
    )
