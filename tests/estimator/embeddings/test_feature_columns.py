"""Feature columns read as tables and features."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings.feature_columns import (
    embedding_column,
    get_configs_from_feature_columns,
)

identity = tf.feature_column.categorical_column_with_identity
tpu = tf.compat.v1.tpu.experimental


def test_a_column_is_a_table_and_a_feature():
    def rate(step):
        return 0.1

    weighted = tf.feature_column.weighted_categorical_column(
        identity("d", 3), "d_weight"
    )
    column = tpu.embedding_column(
        weighted, 2, combiner="sqrtn", learning_rate_fn=rate
    )

    tables, features = get_configs_from_feature_columns([column])

    (table,) = tables
    assert table == "tbl_d_weighted_by_d_weight"
    assert tables[table].vocabulary_size == 3
    assert tables[table].dimension == 2
    assert tables[table].combiner == "sqrtn"
    assert tables[table].learning_rate_fn is rate
    assert features["d"].table_id == table
    assert features["d"].weight_key == "d_weight"


def test_shared_columns_are_one_table():
    sequence = tf.feature_column.sequence_categorical_column_with_identity(
        "g", 4
    )
    columns = tpu.shared_embedding_columns(
        [identity("h", 4), sequence], 5, max_sequence_lengths=[0, 2]
    )

    tables, features = get_configs_from_feature_columns(columns)

    assert list(tables) == ["tbl_g_h_shared_embedding"]
    assert features["g"].max_sequence_length == 2
    assert features["h"].max_sequence_length == 0


def test_a_feature_in_two_embeddings_is_refused():
    column = identity("x", 10)
    columns = [tpu.embedding_column(column, 2), tpu.embedding_column(column, 4)]

    with pytest.raises(
        ValueError,
        match="x is used with multiple embeddings and this is not supported.",
    ):
        get_configs_from_feature_columns(columns)


@pytest.mark.parametrize(
    "column",
    [
        tf.feature_column.embedding_column(identity("y", 10), 4),
        tf.feature_column.numeric_column("y"),
    ],
)
def test_a_column_that_is_no_tpu_embedding_is_refused(column):
    with pytest.raises(TypeError, match="Unsupported feature column"):
        get_configs_from_feature_columns([column])


def test_columns_without_a_vocabulary_share_a_table_by_its_name():
    columns = [embedding_column(key, 3, table_name="ids") for key in ("x", "y")]

    tables, features = get_configs_from_feature_columns(columns)

    assert list(tables) == ["ids"]
    assert {f.table_id for f in features.values()} == {"ids"}


def test_columns_that_describe_a_table_differently_are_refused():
    columns = [
        embedding_column("x", 3, table_name="ids"),
        embedding_column("y", 4, table_name="ids"),
    ]

    with pytest.raises(errors.ArgumentError, match="'ids' differently"):
        get_configs_from_feature_columns(columns)
