"""Ids that a static table lacks, in lookups without a step."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed

RAGGED = tf.ragged.constant([[1, 9], [2]], dtype=tf.int64)
NEGATIVE = tf.ragged.constant([[1, -1], [2]], dtype=tf.int64)
OUTSIDE = {
    "dense": tf.constant([1, 9]),
    "below 0": tf.constant([1, -1]),
    "ragged": RAGGED,
    "ragged below 0": NEGATIVE,
    "sparse": RAGGED.to_sparse(),
    "small dtype": tf.constant([200], tf.uint8),
}


def _lookup(kind):
    table = tfembed.TableConfig(9, 2, name="users")
    return kind({"clicks": tfembed.FeatureConfig(table)}, None)


KINDS = pytest.mark.parametrize(
    "kind", [tfembed.TPUEmbeddingV0, tfembed.TPUEmbeddingForServing]
)


@KINDS
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("value", OUTSIDE)
def test_an_id_that_a_static_table_lacks_is_an_error_that_names_the_feature(
    value, in_function, kind
):
    embedding = _lookup(kind)
    call = tf.function(embedding) if in_function else embedding
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"clicks is outside of its table|'clicks': id (9|-1|200) is not",
    ):
        call({"clicks": OUTSIDE[value]})


@KINDS
@pytest.mark.parametrize("in_function", [False, True])
def test_no_ids_and_the_last_one_pass(in_function, kind):
    embedding = _lookup(kind)
    call = tf.function(embedding) if in_function else embedding
    assert call({"clicks": tf.zeros([0], tf.int64)})["clicks"].shape == [0, 2]
    empty = tf.ragged.constant([[], []], dtype=tf.int64)
    assert not call({"clicks": empty})["clicks"].numpy().any()
    assert call({"clicks": tf.constant([0, 8], tf.int32)})["clicks"].shape[0]


def test_a_function_looks_before_it_gathers_as_a_gpu_does_not():
    embedding = _lookup(tfembed.TPUEmbeddingForServing)
    graph = (
        tf.function(embedding)
        .get_concrete_function({"clicks": tf.TensorSpec([None], tf.int64)})
        .graph
    )
    (gather,) = (
        op for op in graph.get_operations() if op.type == "ResourceGather"
    )
    before = gather.inputs[1].op
    while not before.control_inputs:
        before = before.inputs[0].op
    (check,) = before.control_inputs
    assert "Assert" in check.name


def test_a_table_of_unknown_size_may_be_given_to_serving():
    table = tfembed.TableConfig(9, 2, name="users")
    feature = tfembed.FeatureConfig(table)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2]),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def serve(rows, ids):
        return tfembed.serving_embedding_lookup(
            ids, None, {table: rows}, feature
        )

    assert serve(tf.ones([3, 2]), [2]).numpy().tolist() == [[1, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside"):
        serve(tf.ones([3, 2]), [3])
