"""The signature by which a served model takes updates: `tfembed_update`.

Its functions run in the server, by TensorFlow's ops. An update that is not
whole, or of another table, is an error, and all tables stay as they are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tfembed.export.perfect_hash import PILOT_FACTOR
from tfembed.export.sealed_table import HEAD_BYTES, LINE, Layout
from tfembed.export.stock_lookup import StockTable
from tfembed.export.words import as_words, mix, word

__all__ = ["UPDATE", "UPDATE_SPEC", "input_names", "update_function"]

# The name of the signature, and what each of its inputs is.
UPDATE = "tfembed_update"
UPDATE_SPEC = tf.TensorSpec([None], tf.uint8)


def input_names(tables: Iterable[str]) -> list[str]:
    """Returns the names of the signature's inputs, one for each table.

    That is the table's name where it is a name in Python too; else its other
    signs become underscores. Names that would come twice are numbered.
    """
    names: list[str] = []
    for table in tables:
        name = stem = re.sub(r"\W|^(?=\d)", "_", table, flags=re.ASCII) or "_"
        number = 2
        while name in names:
            name, number = f"{stem}_{number}", number + 1
        names.append(name)
    return names


def update_function(
    tables: Sequence[StockTable],
) -> Callable[..., list[tf.Tensor]]:
    """Returns what `tfembed_update` does with one uint8 vector a table.

    A vector without bytes leaves its table as it is. The function returns the
    number of keys of each update.
    """

    def update(*updates: tf.Tensor) -> list[tf.Tensor]:
        pairs = list(zip(tables, updates, strict=True))
        counts = [_checked(*pair) for pair in pairs]
        with tf.control_dependencies(counts):
            done = [_assign(*pair) for pair in pairs]
        with tf.control_dependencies(done):
            return [tf.identity(count) for count in counts]

    return update


def _assign(table: StockTable, update: tf.Tensor) -> tf.Tensor:
    def assigned() -> tf.Tensor:
        handle = table.changes_handle()
        # Exchanges the tensor: lookups go on with the one that they read.
        tf.raw_ops.AssignVariableOp(resource=handle, value=update)
        return tf.constant(True)

    return tf.cond(tf.size(update) > 0, assigned, lambda: tf.constant(False))


def _checked(table: StockTable, update: tf.Tensor) -> tf.Tensor:
    """Returns the number of keys of an update of this table, int64 scalar."""

    def checked() -> tf.Tensor:
        size = tf.size(update, tf.int64)
        whole = (size > HEAD_BYTES + LINE) & (size % LINE == 0)
        with tf.control_dependencies([_refuse_unless(whole, table, "cut off")]):
            octets = tf.identity(update)
        head = tf.bitcast(tf.reshape(octets[:HEAD_BYTES], [-1, 8]), tf.int64)
        layout = table.update_layout(octets)
        own = tf.constant(
            dataclasses.replace(table.layout, is_update=True).head()
        )

        def is_own(places: list[int]) -> tf.Tensor:
            return tf.reduce_all(
                tf.gather(head, places) == tf.gather(own, places)
            )

        checks = [
            (is_own([0, 1]), "no update that this model reads"),
            (is_own([13, 14]), "made for another table, or another export"),
            (
                is_own([3, 4, 5, 15]),
                "of another width, or form of rows or keys",
            ),
            (_is_laid_out(head, layout, size), "damaged: its head is wrong"),
            (_has_checksum(octets), "damaged: its checksum is wrong"),
        ]
        refusals: list[tf.Operation] = []
        for is_right, fault in checks:
            with tf.control_dependencies(refusals):
                refusals = [_refuse_unless(is_right, table, fault)]
        with tf.control_dependencies(refusals):
            return tf.identity(layout.num_rows)

    return tf.cond(
        tf.size(update) > 0, checked, lambda: tf.constant(0, tf.int64)
    )


def _refuse_unless(
    is_right: tf.Tensor, table: StockTable, fault: str
) -> tf.Operation:
    return tf.debugging.Assert(
        is_right,
        [
            f"The update of table '{table.name}' is {fault}. All tables serve "
            "what they served before."
        ],
    )


def _is_laid_out(head: tf.Tensor, layout: Layout, size: tf.Tensor) -> tf.Tensor:
    """Says whether sections lie where the counts in the head put them."""
    counts = head[6:9]  # Regions, buckets, places.
    is_small = tf.reduce_all((counts > 0) & (counts < 1 << 32))
    regions, most = layout.regions, tf.constant(1 << 32, tf.int64)
    ends = [
        tf.cast(end, tf.int64)
        for end in (
            layout.at_pilots, layout.at_keys, layout.at_rows, layout.num_bytes
        )
    ]  # fmt: skip
    return tf.reduce_all(
        [
            is_small,
            tf.bitwise.bitwise_and(regions, regions - 1) == 0,
            layout.buckets < most // tf.maximum(regions, 1),
            layout.places < most // tf.maximum(regions, 1),
            layout.num_rows >= 0,
            layout.num_rows <= layout.num_places,
            tf.reduce_all(head[9:13] == tf.stack(ends)),
            layout.num_bytes == size,
        ]
    )


def _has_checksum(update: tf.Tensor) -> tf.Tensor:
    """Says whether the last line has `sealed_table.checksum` of the others."""
    words = tf.bitcast(tf.reshape(update, [-1, 8]), tf.int64)
    num_words = tf.size(words) - LINE // 8
    numbers = as_words(tf.range(1, tf.cast(num_words, tf.int64) + 1))
    terms = mix(as_words(words[:num_words]) + numbers * word(PILOT_FACTOR))
    return tf.reduce_sum(tf.bitcast(terms, tf.int64)) == words[num_words]
