"""Tables of all dtypes in checkpoints and SavedModels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.checkpoint
from tfembed import tables

PAIRS = [
    ("int64", "float16"),
    ("int64", "int8"),
    ("int64", "float64"),
    ("int32", "bfloat16"),
    ("string", "float32"),
    ("string", "bool"),
]


def make(pair, shards=1, **options):
    return tables.HashTable(
        3,
        key_dtype=pair[0],
        value_dtype=pair[1],
        name="t",
        devices=["/CPU:0"] * shards,
        **options,
    )


def keys_of(pair, n):
    if pair[0] == "string":
        return tf.constant([f"{'long ' * (i % 9)}{i}" for i in range(n)])
    return tf.range(n, dtype=pair[0])


def fill(table, pair, n=200):
    keys = keys_of(pair, n)
    rows = tf.cast(tf.reshape(tf.range(3 * n) % 5, [n, 3]), pair[1])
    table.upsert(keys, rows)
    return keys, rows


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_table_moves_between_shard_counts(tmp_path, pair, shards):
    saved = make(pair, 2)
    keys, rows = fill(saved, pair)
    path = tf.train.Checkpoint(t=saved).save(str(tmp_path / "c"))

    table = make(pair, shards)
    fill(table, pair, 7)
    tf.train.Checkpoint(t=table).restore(path)

    assert table.size().numpy() == 200
    values, exists = table.lookup(keys)
    np.testing.assert_array_equal(values, rows)
    assert exists.numpy().all()


@pytest.mark.parametrize("pair", [("int32", "int32"), ("string", "int8")])
def test_a_partitioner_deals_restored_keys(tmp_path, pair):
    def last_digit(keys, num_shards):
        if keys.dtype == tf.string:
            return tf.strings.length(keys) % num_shards
        return keys % num_shards

    saved = make(pair)
    keys, rows = fill(saved, pair)
    path = tf.train.Checkpoint(t=saved).save(str(tmp_path / "c"))
    table = make(pair, 2, partitioner=last_digit)
    tf.train.Checkpoint(t=table).restore(path)
    np.testing.assert_array_equal(table.lookup(keys)[0], rows)


def test_no_keys_are_saved_and_restored(tmp_path):
    pair = ("string", "float16")
    path = tf.train.Checkpoint(t=make(pair)).save(str(tmp_path / "c"))
    table = make(pair, 2)
    fill(table, pair)
    tf.train.Checkpoint(t=table).restore(path)
    assert table.size().numpy() == 0


@pytest.mark.parametrize(
    ("saved", "into"),
    [
        (("int64", "float32"), ("int32", "float32")),
        (("int64", "float32"), ("int64", "float16")),
        (("string", "float32"), ("int64", "float32")),
    ],
)
def test_other_dtypes_are_refused_and_nothing_is_changed(tmp_path, saved, into):
    table = make(saved)
    fill(table, saved)
    path = tf.train.Checkpoint(t=table).save(str(tmp_path / "c"))
    other = make(into)
    fill(other, into, 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match="same dtypes"):
        tf.train.Checkpoint(t=other).restore(path)
    assert other.size().numpy() == 7


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_saved_model_holds_a_table(tmp_path, pair, shards):
    module = tf.Module()
    module.table = make(pair, shards)
    keys, rows = fill(module.table, pair, 20)
    module.look = tf.function(
        lambda keys: module.table.lookup(keys)[0],
        input_signature=[tf.TensorSpec([None], pair[0])],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.look(keys), rows)


def test_the_prefix_of_the_tensors_is_that_of_all_tables(tmp_path):
    pair = ("string", "int8")
    table = make(pair)
    fill(table, pair)
    path = tf.train.Checkpoint(t=table).save(str(tmp_path / "c"))
    prefix = tfembed.checkpoint.tensor_prefix("t")
    saved = dict(tf.train.list_variables(path))
    assert saved[f"{prefix}/keys"] == [200]
    reader = tf.train.load_checkpoint(path)
    assert reader.get_variable_to_dtype_map()[f"{prefix}/keys"] == tf.string
    layout = reader.get_tensor(f"{prefix}/layout").decode()
    assert layout.startswith("tfembed.hash_table 1\ndim 3\nkeys string\n")
