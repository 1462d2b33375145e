"""The ops refuse lists and shapes that no wrapper sends."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed.ops import checkpoint, library, table

RESTORE = {
    "tensor_names": ["a"],
    "shard_counts": [1],
    "keep_seeds": [False],
    "deal_rows": [True],
    "load_slots": [True],
}


@pytest.fixture(name="handle")
def make_handle():
    return table.create(2, name="t")


@pytest.fixture(name="prefix")
def make_prefix(tmp_path):
    return tf.constant(str(tmp_path / "ckpt"))


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["a"], [2]),
        (["a"], [0]),
        (["a"], [-1]),
        (["a"], []),
        (["a", "b"], [1]),
        (["a", "b"], [2, -1]),
        ([], []),
    ],
)
def test_save_refuses_counts_that_are_not_those_of_the_handles(
    handle, prefix, names, counts
):
    with pytest.raises(tf.errors.InvalidArgumentError, match="shard_counts"):
        library.load().tfembed_table_save(
            [handle], prefix, tensor_names=names, shard_counts=counts
        )


@pytest.mark.parametrize("name", ["keep_seeds", "deal_rows", "load_slots"])
@pytest.mark.parametrize("flags", [[], [True, False]])
def test_restore_refuses_another_number_of_flags(handle, prefix, name, flags):
    with pytest.raises(tf.errors.InvalidArgumentError, match=name):
        library.load().tfembed_table_restore(
            [handle], prefix, **{**RESTORE, name: flags}
        )


def test_a_prefix_that_is_no_scalar_is_refused(handle):
    ops, pair = library.load(), tf.constant(["a", "b"])
    save = {"tensor_names": ["a"], "shard_counts": [1]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="prefix"):
        ops.tfembed_table_save([handle], pair, **save)
    with pytest.raises(tf.errors.InvalidArgumentError, match="prefix"):
        ops.tfembed_table_restore([handle], pair, **RESTORE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="prefix"):
        ops.tfembed_checkpoint_check(pair)


def test_a_chunk_that_is_no_scalar_is_refused(handle, prefix):
    with pytest.raises(tf.errors.InvalidArgumentError, match="chunk"):
        library.load().tfembed_table_read_chunk(
            handle, prefix, tf.constant([0, 1], tf.int64), tensor_name="a"
        )


def test_shards_that_count_differently_are_refused(handle, prefix):
    other = table.create(
        2, name="t", admission="bloom seen=2 capacity=100 error_rate=0.01"
    )
    for handles in ([handle, other], [other, handle]):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="same admission"
        ):
            checkpoint.save(
                handles, prefix, tensor_names=["a"], shard_counts=[2]
            )
    checkpoint.save([other], prefix, tensor_names=["a"], shard_counts=[1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="same admission"):
        checkpoint.restore(
            [other, handle], prefix, **{**RESTORE, "shard_counts": [2]}
        )
