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


def test_a_check_returns_whole_tensors_by_name(tmp_path):
    path = str(tmp_path / "ckpt")
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=["whole", "sliced", "words"],
        shape_and_slices=["", "4 0,4", ""],
        tensors=[tf.constant([1, 2]), tf.ones([4]), tf.constant(["a"])],
    )

    names, dtypes = library.load().tfembed_checkpoint_check(path)

    found = zip(names.numpy(), dtypes.numpy(), strict=True)
    assert {name: tf.as_dtype(int(number)) for name, number in found} == {
        b"sliced": tf.float32,
        b"whole": tf.int32,
        b"words": tf.string,
    }


def test_a_chunk_that_is_no_scalar_is_refused(handle, prefix):
    with pytest.raises(tf.errors.InvalidArgumentError, match="chunk"):
        library.load().tfembed_table_read_chunk(
            handle, prefix, tf.constant([0, 1], tf.int64), tensor_name="a"
        )


@pytest.mark.parametrize(
    ("shards", "what"),
    [([0], r"\[2\]"), ([[0, 0]], "rank|must be"), ([0, 1], "in .0, 1.")],
)
def test_numbers_of_other_rows_or_shards_are_refused(
    handle, prefix, shards, what
):
    table.upsert(handle, [1, 2], tf.ones([2, 2]))
    checkpoint.save([handle], prefix, tensor_names=["a"], shard_counts=[1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=what):
        checkpoint.choose(
            [handle], prefix, tf.constant(shards), tensor_name="a"
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


def _with_slots(owner, row_wise):
    handle = table.create(64)
    table.set_slots(
        handle,
        owner=owner,
        names=["accumulators"],
        initial_values=[0.1],
        row_wise=row_wise,
    )
    return handle


@pytest.mark.parametrize("saved_row_wise", [[], [0]])
def test_chunks_of_slots_of_another_width_are_refused(saved_row_wise, tmp_path):
    prefix = str(tmp_path / "c")
    saved = _with_slots("one", saved_row_wise)
    table.upsert(saved, [1, 2], tf.ones([2, 64]))
    checkpoint.save([saved], prefix, tensor_names=["t"], shard_counts=[1])
    other = _with_slots("other", [] if saved_row_wise else [0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="floats a row"):
        checkpoint.read_chunk(
            other,
            prefix,
            tf.constant(0, tf.int64),
            tensor_name="t",
            load_slots=True,
        )


def _written(prefix, layout, **tensors):
    names = ["t/layout", *(f"t/{name}" for name in tensors)]
    shapes, values = zip(*tensors.values(), strict=True)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=["", *shapes],
        tensors=[tf.constant(layout), *values],
    )


def _restore(handle, prefix):
    checkpoint.restore(
        [handle],
        prefix,
        tensor_names=["t"],
        shard_counts=[1],
        keep_seeds=[True],
        deal_rows=[True],
        load_slots=[True],
    )


def test_a_checkpoint_of_more_rows_than_can_be_is_damaged(tmp_path):
    prefix = str(tmp_path / "h")
    keys = tf.constant([1, 2], tf.int64)
    layout = "tfembed.hash_table 1\ndim 4\nseed 1"
    _written(prefix, layout, keys=(f"{2**62} 0,2", keys))
    with pytest.raises(tf.errors.DataLossError):
        _restore(table.create(4), prefix)


def test_slots_that_a_table_cannot_have_leave_it_as_it_was(tmp_path):
    prefix = str(tmp_path / "s")
    keys = tf.constant([1, 2], tf.int64)
    values = tf.ones([2, 2], tf.int64)
    layout = (
        "tfembed.hash_table 2\ndim 2\nkeys int64\nvalues int64\nseed 1\n"
        "rule adagrad\nslot accumulators 0.1"
    )
    _written(
        prefix,
        layout,
        keys=("", keys),
        values=("", values),
        **{"slots/accumulators": ("", tf.ones([2, 2]))},
    )
    handle = table.create(2, value_dtype=tf.int64)
    table.upsert(handle, [7], tf.ones([1, 2], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="be trained"):
        _restore(handle, prefix)
    assert table.size(handle).numpy() == 1


@pytest.mark.parametrize(
    ("hashes", "splits", "first", "text"),
    [
        ([1, 2], [0, 1], 0, "`splits` must cut"),
        ([1, 2], [0, 3, 2], 0, "`splits` must cut"),
        ([1, 2], [0, 2], 1, "`splits` must cut"),
        ([1, 2], [0, 2], -1, "`splits` must cut"),
        ([1, 2], [], 0, "`splits` must cut"),
        ([1, 2], 2, 0, "`splits` must cut"),
        ([2, 1], [0, 2], 0, "region 0 must be sorted, distinct"),
        ([1, 1], [0, 2], 0, "region 0 must be sorted, distinct"),
    ],
)
def test_a_perfect_hash_refuses_hashes_that_are_not_of_its_regions(
    hashes, splits, first, text
):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        library.load().tfembed_perfect_hash(
            hashes,
            tf.constant(splits, tf.int64),
            first,
            regions=1,
            buckets=1,
            places=9,
        )


@pytest.mark.parametrize(
    "sizes", [(3, 1, 1), (2, 2**31, 1), (2, 1, 2**31), (2**62, 4, 4)]
)
def test_a_perfect_hash_refuses_sizes_of_which_products_do_not_fit(sizes):
    regions, buckets, places = sizes
    with pytest.raises(tf.errors.InvalidArgumentError, match="power of two"):
        library.load().tfembed_perfect_hash(
            [1], [0, 1], 0, regions=regions, buckets=buckets, places=places
        )
