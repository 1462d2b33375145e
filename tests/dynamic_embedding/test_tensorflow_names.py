"""`de.math` and `de.data_flow`: TensorFlow's ops by TFRA's names and order."""

from __future__ import annotations

import tensorflow as tf

import tfembed.dynamic_embedding as de


def test_sparse_segment_sum_sums_rows():
    data = tf.constant([[1.0], [2.0], [4.0]])
    summed = de.math.sparse_segment_sum(data, [0, 2, 1], [0, 0, 2])
    assert summed.numpy().tolist() == [[5], [0], [2]]
    summed = de.math.sparse_segment_sum(
        data, [0, 2], [0, 0], name="sum", num_segments=2
    )
    assert summed.numpy().tolist() == [[5], [0]]


def test_sparse_fill_empty_rows_fills():
    sparse = tf.SparseTensor([[1, 0]], [5], [3, 2])
    filled, empty = de.math.sparse_fill_empty_rows(sparse, 9)
    assert tf.sparse.to_dense(filled).numpy()[:, 0].tolist() == [9, 5, 9]
    assert empty.numpy().tolist() == [True, False, True]


def test_sparse_reshape_reshapes():
    sparse = tf.SparseTensor([[1, 0]], [5], [3, 2])
    reshaped = de.math.sparse_reshape(sparse, [2, 3])
    assert reshaped.indices.numpy().tolist() == [[0, 2]]


def test_what_was_partitioned_is_stitched_together():
    data = tf.constant([[1.0], [2.0], [3.0]])
    parts = de.data_flow.dynamic_partition(data, [1, 0, 1], 2)
    places = de.data_flow.dynamic_partition(tf.range(3), [1, 0, 1], 2)
    assert [part.numpy().tolist() for part in parts] == [[[2]], [[1], [3]]]
    for use_fast in (True, False):
        whole = de.data_flow.dynamic_stitch(places, parts, use_fast)
        assert whole.numpy().tolist() == data.numpy().tolist()
