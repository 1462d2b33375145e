"""One feature, "clicks", over a small table: what tests of bad input need."""

from __future__ import annotations

import tensorflow as tf

import tfembed


def _ones(shape, dtype):
    return tf.ones(shape, dtype)


def embedding_of_clicks(*, combiner="sum", vocabulary=4, **feature):
    arguments = {"initializer": _ones} if vocabulary else {"seed": 3}
    table = tfembed.TableConfig(
        vocabulary, 2, combiner=combiner, name="users", **arguments
    )
    return tfembed.TPUEmbedding(
        {"clicks": tfembed.FeatureConfig(table, **feature)}, tfembed.SGD(1.0)
    )


def rows_of(embedding):
    (table,) = embedding.embedding_tables.values()
    return table.numpy()
