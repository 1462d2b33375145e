"""The ops under exports and Savers: shards with its policies' notes, as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tables.sgd_tables import table_of
from tfembed import policies
from tfembed.ops import checkpoint, library
from tfembed.ops import table as table_ops

BLOOM = policies.BloomAdmission(2, capacity=100)


def take(table):
    found = table_ops.snapshot(
        table.handles, key_dtype=table.key_dtype, value_dtype=table.value_dtype
    )
    return table_ops.TableSnapshot(*(tensor.numpy() for tensor in found))


def test_a_snapshot_has_the_rows_of_an_export():
    table = table_of(key_dtype="int32", eviction=policies.LeastFrequent())
    keys = tf.range(10_000)
    table.upsert(keys, tf.random.normal([10_000, 2], seed=1))
    table.upsert(keys[:3], tf.ones([3, 2]))

    found, columns = take(table), table.export_columns()

    np.testing.assert_array_equal(found.keys, columns[0])
    np.testing.assert_array_equal(found.values, columns[1])
    assert found.slots.shape == (10_000, 0)
    assert found.kinds.tolist() == [b"writes", b""]
    np.testing.assert_array_equal(found.notes, np.where(found.keys < 3, 2, 1))


def test_a_table_without_policies_has_no_notes():
    table = table_of(1)
    table.upsert(tf.constant([1], tf.int64), tf.ones([1, 2]))

    found = take(table)

    assert found.kinds.tolist() == [b"", b""]
    assert [len(x) for x in (found.notes, found.waiting, found.counters)] == [
        0,
        0,
        0,
    ]


def test_notes_are_taken_for_rows_that_are_there_and_of_their_kind():
    table = table_of(eviction=policies.LeastFrequent())
    table.upsert(tf.constant([1, 2], tf.int64), tf.ones([2, 2]))
    keys = tf.constant([2, 3], tf.int64)

    def worth():
        return dict(zip(*(x.numpy() for x in table.worth()), strict=True))

    table_ops.import_notes(table.handle, keys, [5, 6], "steps_ago")
    assert worth() == {1: 1, 2: 1}
    table_ops.import_notes(table.handle, keys, [5, 6], "writes")
    assert worth() == {1: 1, 2: 5}
    table_ops.import_notes(table.handle, keys, [-1, 2**40], "writes")
    assert worth() == {1: 1, 2: 1}


def test_notes_of_another_length_than_the_keys_are_refused():
    table = table_of(eviction=policies.LeastFrequent())
    keys = tf.constant([2, 3], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one length"):
        table_ops.import_notes(table.handle, keys, [5], "writes")


@pytest.mark.parametrize("change", [None, "kind", "shape"])
def test_counters_are_taken_of_their_kind_and_shape(change):
    saved, table = table_of(admission=BLOOM), table_of(admission=BLOOM)
    saved.apply_gradients(tf.constant([1], tf.int64), tf.ones([1, 2]))
    counters, kind = take(saved).counters, take(saved).kinds[1]
    assert counters.any()

    table_ops.import_counters(
        table.handle,
        counters[1:] if change == "shape" else counters,
        b"bloom_1" if change == "kind" else kind,
    )

    expected = counters if change is None else np.zeros_like(counters)
    np.testing.assert_array_equal(take(table).counters, expected)


def test_a_checkpoint_gives_the_tensors_that_it_has(tmp_path):
    prefix = str(tmp_path / "ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["a"],
        shape_and_slices=[""],
        tensors=[tf.constant([[1, 2]])],
    )

    there, absent = checkpoint.read(
        tf.constant(prefix), tensors={"a": tf.int32, "b": tf.string}
    )

    assert there.numpy().tolist() == [[1, 2]]
    assert (absent.dtype, absent.shape) == (tf.string, [0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes float"):
        checkpoint.read(tf.constant(prefix), tensors={"a": tf.float32})


def test_what_is_no_bundle_has_no_tensors(tmp_path):
    (tensor,) = checkpoint.read(
        tf.constant(str(tmp_path / "none")), tensors={"a": tf.int32}
    )
    assert tensor.shape == [0]


def test_names_without_dtypes_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="tensor_names"):
        library.load().tfembed_checkpoint_read(
            tf.constant("x"), tensor_names=["a", "b"], dtypes=[tf.int32]
        )
