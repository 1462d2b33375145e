"""`repr` describes tables, and what holds them, in a line."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed.units import as_bytes, as_count, as_number, as_share, counted

WORDS = tfembed.TableConfig(None, 4, name="words", key_dtype="string")
ITEMS = tfembed.TableConfig(100, 4, name="items")
FEATURES = {
    "word": tfembed.FeatureConfig(table=WORDS),
    "item": tfembed.FeatureConfig(table=ITEMS),
}


def _bytes(table):
    return as_bytes(table.memory().index_bytes + table.memory().row_bytes)


def test_a_table_tells_its_rows_bytes_and_rule():
    table = tfembed.HashTable(
        8,
        name="t",
        max_size=1000,
        eviction=tfembed.policies.LeastRecent(),
        devices=["/CPU:0"] * 2,
    )
    table.attach(tfembed.Adagrad(0.1))
    table.upsert(tf.range(100, dtype=tf.int64), tf.ones([100, 8]))

    assert repr(table) == (
        "<HashTable 't': int64 -> float32 [8], 100 rows of at most 1,000, "
        f"{_bytes(table)}, adagrad, 2 shards>"
    )


def test_in_a_function_and_a_graph_a_table_tells_what_it_was_made_with():
    table, words = tfembed.HashTable(8, name="t"), []
    tf.function(lambda: words.append(repr(table)))()
    with tf.Graph().as_default():
        words.append(repr(de.Variable(name="v", dim=4)))

    assert words == [
        "<HashTable 't': int64 -> float32 [8]>",
        "<Variable 'v': int64 -> float32 [4]>",
    ]


def test_a_variable_tells_its_rows():
    strings = de.Variable(name="s", dim=2, value_dtype=tf.string)
    strings.upsert(tf.constant([1], tf.int64), [["a", "b"]])
    numbers = de.Variable(name="v", dim=4)

    assert repr(strings) == "<Variable 's': int64 -> string [2], 1 rows>"
    assert repr(numbers) == (
        f"<Variable 'v': int64 -> float32 [4], 0 rows, {_bytes(numbers.table)}>"
    )


def _embedding():
    embedding = tfembed.TPUEmbedding(FEATURES, tfembed.SGD(0.1))
    return embedding, embedding.build, "TPUEmbedding: "


def _taped():
    embedding = tfembed.TPUEmbeddingV0(FEATURES, None)
    return embedding, lambda _: embedding.build(), "TPUEmbeddingV0: "


def _layer():
    layer = tfembed.keras.layers.DistributedEmbedding(
        FEATURES, tfembed.SGD(0.1), name="towers"
    )
    return layer, layer.embedding.build, "DistributedEmbedding 'towers': "


@pytest.mark.parametrize("make", [_embedding, _taped, _layer])
def test_an_embedding_tells_its_tables_before_and_after_they_are_made(make):
    embedding, build, begin = make()
    unmade = repr(embedding)
    build(4)
    made = repr(embedding)

    begin = f"<{begin}2 features, 2 tables: "
    assert unmade.startswith(begin)
    assert "'words' any ids -> [4]" in unmade
    assert unmade.endswith(", not made yet>")
    assert made.startswith(begin)
    assert "'items' float32 [100, 4], 1.6 kB" in made
    assert "'words' string -> float32 [4], 0 rows" in made
    assert made.endswith(">")


def test_a_line_names_four_tables_at_most():
    tables = [tfembed.TableConfig(9, 1, name=f"t{i}") for i in range(6)]
    features = [tfembed.FeatureConfig(table=table) for table in tables]

    assert repr(tfembed.TPUEmbedding(features)).endswith(
        "'t3' 9 -> [1]; 2 more, not made yet>"
    )


def test_a_layer_of_a_table_tells_of_the_table():
    layer = de.keras.layers.Embedding(4, name="users")

    assert repr(layer).startswith("<Embedding 'users': int64 -> float32 [4], 0")


def test_numbers_have_units():
    assert as_count(1204) == "1,204"
    assert as_bytes(12_345_678) == "12.3 MB"
    assert as_bytes(999) == "999 B"
    assert as_share(0.123) == "12.3 %"
    assert [as_number(x) for x in (0.12345, 1234.5)] == ["0.123", "1,234"]
    assert as_count(None) == as_bytes(None) == as_share(None) == ""
    assert [counted(n, "row") for n in (1, 2000)] == ["1 row", "2,000 rows"]
