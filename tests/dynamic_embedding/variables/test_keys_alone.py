"""Variables of width 0, which keep keys and no numbers (specification 2.7)."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import graph_and_session, v1
from tfembed import errors, optimizers, policies

DTYPES = pytest.mark.parametrize(
    ("keys", "values"),
    [
        (tf.int64, tf.float32),
        (tf.int64, tf.bfloat16),
        (tf.int64, tf.string),
        (tf.int32, tf.float64),
        (tf.string, tf.int8),
    ],
    ids=lambda dtype: dtype.name,
)
SHARDS = pytest.mark.parametrize("shards", [1, 3])


def variable(keys=tf.int64, values=tf.float32, shards=1, **options):
    return de.Variable(
        keys,
        values,
        dim=0,
        devices=["/CPU:0"] * shards,
        name="seen",
        **options,
    )


def keys_of(dtype, count=10):
    keys = np.arange(count)
    if dtype == tf.string:
        return tf.constant(keys.astype(str))
    return tf.constant(keys, dtype)


def filled(keys=tf.int64, values=tf.float32, shards=1, **options):
    v = variable(keys, values, shards, **options)
    v.upsert(keys_of(keys), tf.zeros([10, 0], values))
    return v


def exported(v):
    keys, rows = v.export()
    assert rows.shape == [keys.shape[0], 0]
    assert rows.dtype == v.value_dtype
    return sorted(keys.numpy().tolist())


@DTYPES
@SHARDS
@pytest.mark.parametrize("in_function", [False, True])
def test_keys_are_added_found_and_removed(keys, values, shards, in_function):
    v = variable(keys, values, shards)
    run = tf.function if in_function else lambda function: function
    those = keys_of(keys)

    @run
    def change(some):
        v.upsert(some, tf.zeros([tf.size(some), 0], values))
        v.remove(some[:2])
        return v.lookup(tf.reshape(those, [2, 5]), return_exists=True)

    rows, exists = change(those[:8])

    assert rows.shape == [2, 5, 0]
    assert rows.dtype == values
    np.testing.assert_array_equal(
        exists, [[False, False, True, True, True], [True] * 3 + [False] * 2]
    )
    assert v.size() == 6
    assert exported(v) == sorted(those[2:8].numpy().tolist())
    v.clear()
    assert exported(v) == []


@DTYPES
@SHARDS
def test_checkpoints_keep_the_keys(tmp_path, keys, values, shards):
    saved, v = filled(keys, values, shards), variable(keys, values, 2)
    path = tf.train.Checkpoint(v=saved).save(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(v=v).restore(path).assert_consumed()
    assert exported(v) == exported(saved)


@pytest.mark.parametrize("shards", [1, 2])
def test_large_checkpoints_have_several_chunks(tmp_path, shards):
    saved, v = variable(shards=shards), variable()
    keys = tf.range(3_000_000, dtype=tf.int64)
    saved.upsert(keys, tf.zeros([3_000_000, 0]))
    path = tf.train.Checkpoint(v=saved).save(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(v=v).restore(path).assert_consumed()
    assert v.size() == 3_000_000
    assert bool(tf.reduce_all(v.lookup(keys, return_exists=True)[1]))


def test_a_checkpoint_of_another_width_is_refused(tmp_path):
    path = tf.train.Checkpoint(v=filled()).save(str(tmp_path / "ckpt"))
    other = de.Variable(dim=2, name="other")
    other.upsert(tf.constant([5], tf.int64), tf.ones([1, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="have width 0"):
        tf.train.Checkpoint(v=other).restore(path)
    assert other.size() == 1


@SHARDS
def test_raw_files_keep_the_keys(tmp_path, shards):
    saved, v = filled(shards=shards), variable(shards=shards)
    saved.save_to_file_system(str(tmp_path))
    v.load_from_file_system(str(tmp_path))
    assert exported(v) == exported(saved)
    wider = de.Variable(
        dim=2, name="seen", devices=["/CPU:0"] * shards, initializer=1.0
    )
    with pytest.raises((tf.errors.OpError, errors.ArgumentError)):
        wider.load_from_file_system(str(tmp_path))
    assert wider.size() == 0


def test_savers_of_a_graph_keep_the_keys(tmp_path):
    with graph_and_session() as session:
        v = variable()
        add = v.upsert(keys_of(tf.int64), tf.zeros([10, 0]))
        saver = v1.train.Saver()
        session.run(add)
        path = saver.save(session, str(tmp_path / "ckpt"))
        session.run(v.clear())
        saver.restore(session, path)
        assert session.run(v.size()) == 10
        assert session.run(v.export()[1]).shape == (10, 0)


def test_a_saved_model_finds_the_keys(tmp_path):
    class Filter(tf.Module):
        def __init__(self):
            self.seen = filled()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, keys):
            return self.seen.lookup(keys, return_exists=True)[1]

    tf.saved_model.save(Filter(), str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    found = loaded(tf.constant([3, 11], tf.int64))
    assert found.numpy().tolist() == [True, False]


def test_policies_judge_keys_without_rows():
    v = variable(max_size=4, eviction=policies.LeastFrequent())
    for _ in range(3):
        v.upsert(tf.constant([1, 2], tf.int64), tf.zeros([2, 0]))
    v.upsert(tf.range(10, 12, dtype=tf.int64), tf.zeros([2, 0]))
    v.upsert(tf.range(20, 22, dtype=tf.int64), tf.zeros([2, 0]))
    assert exported(v) == [1, 2, 20, 21]
    kept = filled(restrict_policy=de.FrequencyRestrictPolicy)
    kept.restrict_policy.apply_update(tf.constant([3, 4, 3], tf.int64))
    kept.restrict(2)
    assert exported(kept) == [3, 4]


def test_lookups_give_rows_without_columns():
    v = filled()
    ids = tf.constant([[1, 2], [3, 77]], tf.int64)
    assert de.embedding_lookup(v, ids, name="a").shape == [2, 2, 0]
    sparse = tf.sparse.from_dense(ids)
    found = de.safe_embedding_lookup_sparse(v, sparse, name="b")
    assert found.shape == [2, 0]


def test_other_shapes_are_refused():
    v = filled()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2,0\]"):
        v.upsert(tf.constant([1, 2], tf.int64), tf.ones([2, 1]))
    with pytest.raises(errors.ArgumentError, match="dim"):
        de.Variable(dim=-1, name="negative")
    assert v.size() == 10


def test_there_is_nothing_to_train():
    v = filled()
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1))
    with pytest.raises(errors.UnsupportedError, match="dim 0"):
        optimizer.minimize(
            lambda: tf.reduce_sum(
                de.embedding_lookup(v, keys_of(tf.int64), name="t")
            ),
            [v],
        )


@pytest.mark.parametrize(
    "initializer",
    [None, 3.0, [], np.zeros(0, np.float32), "glorot_uniform", tf.ones([0])],
    ids=["none", "number", "list", "array", "name", "tensor"],
)
def test_any_initializer_fits(initializer):
    v = variable(initializer=initializer)
    assert v.lookup(tf.constant([1], tf.int64)).shape == [1, 0]


def test_nothing_is_added_to_rows_without_columns():
    v = filled()
    keys, none = tf.constant([1, 50], tf.int64), tf.zeros([2, 0])
    v.accum(keys, none, none, tf.constant([True, False]))
    assert v.size() == 11


def test_a_partitioner_deals_keys_of_a_checkpoint(tmp_path):
    path = tf.train.Checkpoint(v=filled()).save(str(tmp_path / "ckpt"))
    v = variable(
        shards=2,
        partitioner=lambda keys, n: tf.cast(keys < 3, tf.int32),
    )
    tf.train.Checkpoint(v=v).restore(path).assert_consumed()
    assert [int(v.size(i)) for i in range(2)] == [7, 3]
