"""Sparse indices and row splits that are wrong: errors, in V0 and serving, and
wherever TensorFlow's ops look up. (The op of TPUEmbedding is tried by test_errors.)
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed


def _sparse(indices):
    ids = tf.range(1, len(indices) + 1, dtype=tf.int64)
    return tf.SparseTensor(indices, ids, [3, 3])


def _ragged(splits):
    ids = tf.constant([1, 2, 3], tf.int64)
    return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)


OUTSIDE = {
    "a sample below 0": _sparse([[-1, 0], [1, 2]]),
    "a sample behind the batch": _sparse([[0, 0], [5, 0]]),
    "a sample behind the batch, then others": _sparse([[0, 0], [9, 0], [1, 0]]),
    "a column below 0": _sparse([[0, 0], [1, -1]]),
    "a column behind the row": _sparse([[0, 0], [1, 3]]),
    "falling splits": _ragged([0, 2, 1, 3]),
    "splits that begin late": _ragged([1, 1, 2, 3]),
    "splits that end late": _ragged([0, 1, 2, 9]),
    "splits that are shifted": _ragged([2, 3, 4, 5]),
    "splits that fall below 0": _ragged([0, -2, -1, 1]),
}
LENGTHS = pytest.mark.parametrize("length", [0, 2])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def _total(valency, vectors):
    return tf.reduce_sum(vectors, 0)


@pytest.mark.parametrize(
    "kind", [tfembed.TPUEmbeddingV0, tfembed.TPUEmbeddingForServing]
)
@IN_FUNCTION
@LENGTHS
@pytest.mark.parametrize("value", OUTSIDE)
def test_v0_and_serving_refuse_them(value, length, in_function, kind):
    table = tfembed.TableConfig(9, 2, name="users")
    feature = tfembed.FeatureConfig(table, max_sequence_length=length)
    embedding = kind({"clicks": feature}, None)
    embedding.build()
    call = tf.function(embedding) if in_function else embedding
    with pytest.raises(tf.errors.InvalidArgumentError):
        call({"clicks": OUTSIDE[value]})


def test_v0_names_the_feature_and_what_is_outside():
    table = tfembed.TableConfig(9, 2, name="users")
    embedding = tfembed.TPUEmbeddingV0(
        {"clicks": tfembed.FeatureConfig(table)}, None
    )
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"clicks.*\[-1,0\] is outside of the batch of 3",
    ):
        embedding({"clicks": OUTSIDE["a sample below 0"]})


@pytest.mark.parametrize("kind", [_sparse, _ragged])
def test_v0_wants_a_weight_for_each_id(kind):
    table = tfembed.TableConfig(9, 2, name="users")
    embedding = tfembed.TPUEmbeddingV0(
        {"clicks": tfembed.FeatureConfig(table)}, None
    )
    if kind is _sparse:
        ids = _sparse([[0, 0], [1, 0]])
        weights = tf.SparseTensor([[0, 0]], [2.0], [3, 3])
    else:
        ids = _ragged([0, 1, 2, 3])
        weights = tf.RaggedTensor.from_row_splits([2.0], [0, 1, 1, 1])
    with pytest.raises(tf.errors.InvalidArgumentError):
        embedding({"clicks": ids}, {"clicks": weights})


@pytest.mark.parametrize(
    "option",
    [
        {"quantization_config": tfembed.QuantizationConfig(3, 0.0, 1.0)},
        {"combiner": tfembed.CustomCombiner(_total, 3)},
    ],
    ids=["quantized", "custom combiner"],
)
@IN_FUNCTION
@LENGTHS
@pytest.mark.parametrize("value", [*OUTSIDE, "indices out of order"])
def test_dequeue_refuses_them_where_tensorflows_ops_combine(
    value, length, in_function, option
):
    table = tfembed.TableConfig(9, 2, name="users", **option)
    feature = tfembed.FeatureConfig(table, max_sequence_length=length)
    embedding = tfembed.TPUEmbedding({"clicks": feature}, tfembed.SGD(0.1))
    ids = OUTSIDE.get(value, _sparse([[1, 0], [0, 2]]))

    def step():
        embedding.enqueue({"clicks": ids})
        return embedding.dequeue()

    with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
        (tf.function(step) if in_function else step)()
