"""TPUEmbeddingV0(engine="xla"): compiled lookups with the host's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import v0_batches
from tfembed import errors

INPUTS = {
    "dense": v0_batches.dense,
    "ragged": v0_batches.ragged,
    "sparse": v0_batches.sparse,
    "sparse of rank 3": lambda *parts: v0_batches.sparse(
        *parts, shape=(1, 3, 4)
    ),
}
CASES = [
    ("dense", "sum", False, {}),
    *[
        (kind, combiner, weighted, {})
        for kind in ("ragged", "sparse")
        for combiner in ("sum", "mean", "sqrtn")
        for weighted in (False, True)
    ],
    ("sparse of rank 3", "mean", True, {}),
    ("ragged", "mean", False, {"max_sequence_length": 2}),
    ("sparse", "mean", False, {"max_sequence_length": 3}),
    ("ragged", "mean", True, {"output_shape": [3, 2]}),
    ("sparse", "sum", True, {"output_shape": [3, 4]}),
    (
        "sparse",
        "sum",
        False,
        {"output_shape": [3, 4], "max_sequence_length": 2},
    ),
    ("sparse", "mean", True, {"output_shape": [3, 1]}),
]


def _loss_and_gradient(embedding, kind, weighted, ids, weights, padding):
    features, of_ids = INPUTS[kind](ids, weights, padding)
    if weighted:
        of_ids = {"clicks": of_ids}
    with tf.GradientTape() as tape:
        found = embedding({"clicks": features}, of_ids if weighted else None)
        loss = tf.reduce_sum(tf.sin(found["clicks"]))
    gradient = tape.gradient(loss, v0_batches.table(embedding))
    assert isinstance(gradient, tf.IndexedSlices)
    return found["clicks"], gradient.values, gradient.indices


@pytest.mark.parametrize(("kind", "combiner", "weighted", "feature"), CASES)
def test_compiled_values_and_gradients_are_the_hosts(
    kind, combiner, weighted, feature
):
    host = v0_batches.embedding("host", combiner, feature)
    xla = v0_batches.embedding("xla", combiner, feature)
    parts = tf.constant(v0_batches.IDS), tf.constant(v0_batches.WEIGHTS)
    expected, values, ids = _loss_and_gradient(host, kind, weighted, *parts, 0)

    @tf.function(jit_compile=True)
    def compiled(ids, weights):
        return _loss_and_gradient(xla, kind, weighted, ids, weights, 2)

    found, compiled_values, compiled_ids = compiled(*parts)

    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    # No other row is touched.
    assert set(compiled_ids.numpy()) == set(ids.numpy())
    dense = [
        tf.math.unsorted_segment_sum(v, i, 9)
        for v, i in ((compiled_values, compiled_ids), (values, ids))
    ]
    np.testing.assert_allclose(*dense, 1e-5, 1e-6)


def test_features_of_one_table_give_one_gradient_with_each_id_once():
    table = tfembed.TableConfig(9, 3, name="users")
    features = [tfembed.FeatureConfig(table) for _ in range(2)]
    embedding = tfembed.TPUEmbeddingV0(features, None, engine="xla")

    @tf.function(jit_compile=True)
    def slices(one, two):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(x) for x in embedding([one, two])])
        gradient = tape.gradient(loss, v0_batches.table(embedding))
        return gradient.indices, gradient.values[:, 0]

    ids, values = slices(tf.constant([2, 1]), tf.constant([2]))

    # XLA's sizes are static: the last entry is one too many, and is 0.
    assert ids.numpy().tolist() == [1, 2, 2]
    assert values.numpy().tolist() == [1, 2, 0]


def test_ids_without_a_row_give_zeros_and_no_gradient():
    embedding = v0_batches.embedding("xla", "sum")

    @tf.function(jit_compile=True)
    def step(ids):
        with tf.GradientTape() as tape:
            rows = embedding({"clicks": ids})["clicks"]
        slices = tape.gradient(rows, v0_batches.table(embedding))
        return rows, slices.values, slices.indices

    rows, values, indices = step(tf.constant([9, 4, -1]))

    assert rows.numpy().tolist() == [
        [0.0] * 3,
        v0_batches.ROWS[4].tolist(),
        [0.0] * 3,
    ]
    assert values.numpy()[:, 0].tolist() == [1.0, 0.0, 0.0]
    assert indices.numpy().tolist() == [4, 4, 4]
    with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
        embedding({"clicks": tf.constant([9])})


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_number_of_ids_that_is_not_known_names_the_feature(kind):
    embedding = v0_batches.embedding("xla")
    features, _ = INPUTS[kind](
        tf.constant(v0_batches.IDS), tf.constant(v0_batches.WEIGHTS), 0
    )

    with pytest.raises(errors.ArgumentError, match="ids of input clicks"):
        tf.function(embedding, jit_compile=True)({"clicks": features})
    assert embedding({"clicks": features})["clicks"].shape == [3, 3]


def test_a_batch_size_that_is_not_known_names_the_feature():
    embedding = v0_batches.embedding("xla")

    @tf.function(jit_compile=True)
    def look_up(ids, shape):
        return embedding(
            {
                "clicks": tf.SparseTensor(
                    tf.constant(v0_batches.PLACES, tf.int64), ids, shape
                )
            }
        )

    with pytest.raises(
        errors.ArgumentError, match="batch size of input clicks"
    ):
        look_up(tf.constant(v0_batches.IDS), tf.constant([3, 4], tf.int64))


@pytest.mark.parametrize("engine", ["auto", "host"])
@pytest.mark.parametrize(
    ("kind", "feature", "text"),
    [
        ("ragged", {"max_sequence_length": 2}, "clicks as sequences"),
        ("ragged", {"output_shape": [3, 2]}, "clicks as sequences"),
        ("sparse of rank 3", {}, "clicks of another rank than 2"),
    ],
)
def test_what_tensorflows_ops_do_not_compile_names_the_feature_and_a_way_out(
    kind, feature, text, engine
):
    parts = tf.constant(v0_batches.IDS), tf.constant(v0_batches.WEIGHTS)
    features, _ = INPUTS[kind](*parts, 0)
    host = v0_batches.embedding(engine, "mean", feature)

    with pytest.raises(errors.UnsupportedError, match=text) as caught:
        tf.function(host, jit_compile=True)({"clicks": features})
    assert 'engine="replicated"' in str(caught.value)
    assert host({"clicks": features})["clicks"].dtype == tf.float32
