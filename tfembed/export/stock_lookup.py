"""Lookups in sealed tables by TensorFlow's ops alone.

A table is one uint8 variable (`tfembed/export/sealed_table.py`). TensorFlow
copies a slice of it unless the slice begins at a multiple of 64 bytes and has
a multiple of 64 bytes; so all slices do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.export.initial_rows import InitialRows
from tfembed.export.perfect_hash import PILOT_FACTOR, SPREAD_FACTOR
from tfembed.export.sealed_table import HEAD_BYTES, Layout
from tfembed.export.words import as_words, mix, shift, word, xor

__all__ = [
    "Feature",
    "StockTable",
    "fingerprints",
    "fingerprints_of",
    "grouped_lookup",
]

# `to_hash_bucket_*` gives numbers below this.
_MOST_BUCKETS = 2**63 - 1


def fingerprints(strings: tf.Tensor, secret: tuple[int, int]) -> tf.Tensor:
    """Returns two hashes of each string, int64 [n, 2]; the first is keyed."""
    keyed = tf.strings.to_hash_bucket_strong(
        strings, _MOST_BUCKETS, key=list(secret)
    )
    plain = tf.strings.to_hash_bucket_fast(strings, _MOST_BUCKETS)
    return tf.stack([keyed, plain], axis=1)


def fingerprints_of(strings: Any, secret: tuple[int, int]) -> Any:
    """Returns the fingerprints of an array of bytes as an array."""
    with tf.device("/CPU:0"):
        given = tf.constant(strings, tf.string, shape=[len(strings)])
        return fingerprints(given, secret).numpy()


@dataclasses.dataclass(frozen=True)
class StockTable:
    """A table as a served graph looks it up.

    Attributes:
      name: the table's name.
      tensor: the name of its variable in the checkpoint.
      changes: the name of the variable with the last update, in the program
        that serves; "" of a table that is not live.
      key_dtype: the dtype of the keys: int64, int32 or string.
      value_dtype: the dtype of the rows.
      layout: where the sections of its bytes lie; constants of the graph.
      missing: the rows of keys that are not there.
    """

    name: str
    tensor: str
    key_dtype: tf.DType
    value_dtype: tf.DType
    layout: Layout
    missing: InitialRows
    changes: str = ""

    def lookup(
        self, handle: tf.Tensor, keys: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Does what `Tfembed>TableLookup` does.

        Args:
          handle: the uint8 variable.
          keys: the keys, of any shape.

        Returns:
          The rows [..., dim], and which keys are in the table [...].
        """
        sealed = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.uint8)
        flat = tf.reshape(keys, [-1])
        wanted = self._wanted(flat)
        at, exists = self._find(sealed, wanted, self.layout)
        rows = self._rows(sealed, at, self.layout)
        if self.changes:
            rows, exists = self._newer(wanted, rows, exists)
        lost = tf.where(tf.logical_not(exists))

        def filled() -> tf.Tensor:
            initial = self.missing.of(tf.gather_nd(flat, lost))
            return tf.tensor_scatter_nd_update(rows, lost, initial)

        rows = tf.cond(tf.size(lost) > 0, filled, lambda: rows)
        dim = self.layout.rows.dim
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))
        rows.set_shape(keys.shape.concatenate(dim))
        return rows, tf.reshape(exists, tf.shape(keys))

    def changes_handle(self) -> tf.Tensor:
        """Returns the variable with the last update, which may have no value.

        Graphs find it by its name, so that no function needs it as an
        argument.
        """
        return tf.raw_ops.VarHandleOp(
            dtype=tf.uint8, shape=[None], shared_name=self.changes
        )

    def update_layout(self, update: tf.Tensor) -> Layout:
        """Returns where the sections of an update lie: scalars of the graph."""
        head = tf.bitcast(tf.reshape(update[:HEAD_BYTES], [-1, 8]), tf.int64)
        num_rows, regions, buckets, places = (head[i] for i in (2, 6, 7, 8))
        return dataclasses.replace(
            self.layout,
            num_rows=num_rows,
            regions=regions,
            buckets=buckets,
            places=places,
            notes=b"",
            is_update=True,
        )

    def _newer(
        self, wanted: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns rows and `exists` as the last update has them."""
        handle = self.changes_handle()

        def updated() -> list[tf.Tensor]:
            # Read once, so that a lookup sees an update whole or not at all.
            update = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.uint8)
            layout = self.update_layout(update)
            at, found = self._find(update, wanted, layout)
            hits = tf.where(found)
            at = tf.gather_nd(at, hits)
            gone = _section(
                update, layout.at_checks, layout.num_places, tf.uint8
            )
            return [
                tf.tensor_scatter_nd_update(
                    rows, hits, self._rows(update, at, layout)
                ),
                tf.tensor_scatter_nd_update(
                    exists, hits, tf.gather(gone, at) == 0
                ),
            ]

        has_update = tf.raw_ops.VarIsInitializedOp(resource=handle)
        newer: list[tf.Tensor] = tf.cond(
            has_update, updated, lambda: [rows, exists]
        )
        return newer

    def _wanted(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns keys [n] as int64 [n, key_words]."""
        if self.key_dtype == tf.string:
            return fingerprints(keys, self.layout.secret)
        return tf.cast(keys, tf.int64)[:, None]

    def _find(
        self, sealed: tf.Tensor, wanted: tf.Tensor, layout: Layout
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the place of each key [n], and which places have it [n]."""
        at = _places(sealed, mix(as_words(wanted[:, 0])), layout)
        stored = _section(
            sealed,
            layout.at_keys,
            8 * layout.key_words * layout.num_places,
            tf.int64,
        )
        if layout.key_words == 2:
            stored = tf.reshape(stored, [-1, 2])
            return at, tf.reduce_all(tf.gather(stored, at) == wanted, axis=1)
        return at, tf.gather(stored, at) == wanted[:, 0]

    def _rows(
        self, sealed: tf.Tensor, at: tf.Tensor, layout: Layout
    ) -> tf.Tensor:
        """Returns the rows [n, dim] of places."""
        form = layout.rows
        if not form.dim:
            return tf.zeros([tf.size(at), 0], self.value_dtype)
        rows = _section(
            sealed,
            layout.at_rows,
            layout.row_section_bytes,
            tf.uint8 if form.has_steps else tf.as_dtype(form.dtype),
        )
        rows = tf.gather(tf.reshape(rows, [-1, form.row_elements]), at)
        return form.decode(rows)


def _places(sealed: tf.Tensor, hashes: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Returns the place of each hash: `PerfectHash.places_of`."""
    buckets = layout.regions * layout.buckets
    pilots = _section(sealed, layout.at_pilots, 2 * buckets, tf.uint16)
    top = shift(hashes, 32)
    bucket = tf.cast(shift(top * word(buckets), 32), tf.int64)
    pilot = tf.cast(tf.gather(pilots, bucket), tf.uint64)
    spread = xor(hashes, pilot * word(PILOT_FACTOR)) * word(SPREAD_FACTOR)
    at = shift(spread, 32)
    # A graph learns the regions of an update from its bytes.
    is_known = isinstance(layout.regions, int)
    if not is_known or layout.regions > 1:
        bits = (
            word(layout.regions.bit_length() - 1)
            if is_known
            else tf.cast(
                tf.raw_ops.PopulationCount(x=layout.regions - 1), tf.uint64
            )
        )
        right = tf.bitwise.right_shift
        region = tf.bitwise.bitwise_and(
            top, word(1 << 32) - right(word(1 << 32), bits)
        )
        at = tf.bitwise.bitwise_or(region, right(at, bits))
    return tf.cast(shift(at * word(layout.num_places), 32), tf.int64)


def _section(
    sealed: tf.Tensor, at: int, num_bytes: int, dtype: tf.DType
) -> tf.Tensor:
    """Returns a view of a section, its last line with it, as one vector."""
    part = tf.slice(sealed, [at], [-(-num_bytes // 64) * 64])
    if dtype == tf.bool:
        return part != 0
    if dtype.size > 1:
        part = tf.reshape(part, [-1, dtype.size])
    return tf.bitcast(part, dtype)


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a `Tfembed>GroupedLookup`.

    Attributes:
      table: the number of the feature's table.
      kind: "dense", "ragged" or "sparse".
      combiner: "sum", "mean" or "sqrtn".
      validate: whether sparse ids whose weights are not positive are dropped.
      length: the number of places of a sequence; 0: rows are combined.
    """

    table: int
    kind: str
    combiner: str
    validate: bool
    length: int


def grouped_lookup(
    tables: Sequence[StockTable],
    features: Sequence[Feature],
    arguments: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Does what `Tfembed>GroupedLookup` does, with its inputs in their order.

    Returns:
      The activations of each feature, [batch, dim], or [batch, length, dim]
      of a sequence.
    """
    t, f = len(tables), len(features)
    handles, rest = arguments[:t], arguments[t:]
    ids, rows, weights = rest[:f], rest[f : 2 * f], rest[2 * f : 3 * f]
    batch_sizes = rest[3 * f]
    activations = []
    for i, feature in enumerate(features):
        table = tables[feature.table]
        found, _ = table.lookup(handles[feature.table], ids[i])
        found = tf.cast(found, tf.float32)
        if feature.kind != "dense":
            if feature.kind == "ragged":
                bags = tf.ragged.row_splits_to_segment_ids(rows[i])
                begins = tf.gather(rows[i], bags)
                places = tf.range(tf.size(bags, tf.int64)) - begins
            else:
                bags, places = rows[i][:, 0], rows[i][:, 1]
            count, length = batch_sizes[i], feature.length
            if length:  # Each place is a bag; sums leave out bags below 0.
                bags = tf.where(places < length, bags * length + places, -1)
                count *= length
            found = _combined(found, weights[i], bags, count, feature)
            inner = (
                [length, table.layout.rows.dim]
                if length
                else [table.layout.rows.dim]
            )
            found = tf.reshape(found, tf.stack([batch_sizes[i], *inner]))
        activations.append(found)
    return activations


def _combined(
    rows: tf.Tensor,
    weights: tf.Tensor,
    bags: tf.Tensor,
    count: tf.Tensor,
    feature: Feature,
) -> tf.Tensor:
    """Sums the rows of each bag, in their order, and scales the sums.

    As the core does: a sum times one over its divisor, all float32.
    """
    weights = tf.cond(
        tf.size(weights) > 0,
        lambda: weights,
        lambda: tf.ones([tf.size(bags)]),
    )
    if (
        feature.validate
        and feature.kind == "sparse"
        and feature.combiner != "sum"
    ):
        kept = weights > 0
        rows, weights, bags = (
            tf.boolean_mask(one, kept) for one in (rows, weights, bags)
        )
    total = tf.math.unsorted_segment_sum(rows * weights[:, None], bags, count)
    if feature.combiner == "sum" or feature.length:
        return total
    if feature.combiner == "mean":
        divisor = tf.math.unsorted_segment_sum(weights, bags, count)
    else:
        squares = tf.math.unsorted_segment_sum(weights * weights, bags, count)
        divisor = tf.sqrt(squares)
    scales = tf.math.reciprocal_no_nan(divisor)[:, None]
    return tf.where(scales == 0, np.float32(0), total * scales)
