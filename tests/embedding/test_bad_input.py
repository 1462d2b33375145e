"""Bad input that only the op can see.

An error names the feature, and nothing is changed.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from embedding.clicks import embedding_of_clicks, rows_of
from tfembed import errors

I64 = tf.int64


def _sparse(indices, values, shape):
    return tf.SparseTensor(
        tf.constant(indices, I64), tf.constant(values), tf.constant(shape, I64)
    )


def _ragged(values, splits):
    return tf.RaggedTensor.from_row_splits(
        tf.constant(values), tf.constant(splits, I64), validate=False
    )


BAD_WHEN_RUN = {
    "sparse indices out of order": _sparse([[1, 0], [0, 0]], [1, 2], [2, 2]),
    "a sparse column out of bounds": _sparse([[0, 0], [1, 2]], [1, 2], [2, 2]),
    "a sparse row out of bounds": _sparse([[0, 0], [2, 0]], [1, 2], [2, 2]),
    "a sparse row below 0": _sparse([[-1, 0], [0, 0]], [1, 2], [2, 2]),
    "ragged splits that fall": _ragged([1, 2], [0, 2, 1]),
    "ragged splits below 0": _ragged([1, 2], [0, -1, 2]),
    "ragged splits that do not begin at 0": _ragged([1, 2], [1, 1, 2]),
    "ragged splits beyond the ids": _ragged([1, 2], [0, 1, 9]),
    "ragged splits that leave ids out": _ragged([1, 2], [0, 1, 1]),
    "an id at the vocabulary": tf.constant([1, 4]),
    "an id far beyond the vocabulary": tf.constant([1, 2**40]),
    "a dense id below 0": tf.constant([-1, 1]),
    "a ragged id below 0": _ragged([-1, 2], [0, 1, 2]),
}


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("case", BAD_WHEN_RUN)
def test_bad_input_ends_in_an_error_that_names_the_feature(case, in_function):
    embedding = embedding_of_clicks()
    embedding.enqueue({"clicks": BAD_WHEN_RUN[case]})
    look_up = (
        tf.function(embedding.dequeue) if in_function else embedding.dequeue
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
        look_up()
    good = tf.nest.map_structure(
        tf.zeros_like, BAD_WHEN_RUN["an id at the vocabulary"]
    )
    embedding.enqueue({"clicks": good}, name="good")
    embedding.dequeue("good")
    embedding.apply_gradients({"clicks": tf.ones([2, 2])}, "good")
    assert rows_of(embedding)[:, 0].tolist() == [-1, 1, 1, 1]


@pytest.mark.parametrize("validate", [False, True])
def test_a_sparse_id_below_0_is_pruned_or_an_error(validate):
    embedding = embedding_of_clicks(validate_weights_and_indices=validate)
    embedding.enqueue({"clicks": _sparse([[0, 0], [0, 1]], [-1, 1], [1, 2])})
    if not validate:
        with pytest.raises(tf.errors.InvalidArgumentError, match="clicks.*-1"):
            embedding.dequeue()
        return
    assert embedding.dequeue()["clicks"].numpy().tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("validate", [False, True])
def test_a_sparse_id_beyond_the_table_is_always_an_error(validate):
    embedding = embedding_of_clicks(validate_weights_and_indices=validate)
    embedding.enqueue({"clicks": _sparse([[0, 0], [0, 1]], [4, 1], [1, 2])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="clicks.*4"):
        embedding.dequeue()


@marks.GROWS
def test_a_table_without_a_vocabulary_takes_any_id():
    embedding = embedding_of_clicks(vocabulary=None)
    embedding.enqueue({"clicks": tf.constant([-1, 2**62])})
    activations = embedding.dequeue()["clicks"].numpy()
    assert np.isfinite(activations).all()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_a_weight_of_nan_spoils_its_sample_or_is_pruned_and_no_row_is_lost(
    combiner, kind
):
    """Pruned are weights that are not above 0: where zeros are, too."""
    ids = tf.ragged.constant([[1, 2], [3]])
    weights = ids.with_values([np.nan, 1.0, 1.0])
    if kind == "sparse":
        ids, weights = ids.to_sparse(), weights.to_sparse()
    embedding = embedding_of_clicks(combiner=combiner)
    embedding.enqueue({"clicks": ids}, {"clicks": weights})
    activations = embedding.dequeue()["clicks"].numpy()
    is_pruned = kind == "sparse" and combiner != "sum"
    assert np.isnan(activations[0]).all() == (not is_pruned)
    assert activations[1].tolist() == [1.0, 1.0]
    embedding.apply_gradients({"clicks": tf.ones([2, 2])})
    assert np.isfinite(rows_of(embedding)).all()
    assert rows_of(embedding)[3].tolist() == [0.0, 0.0]


def test_weights_of_another_number_than_the_ids():
    ids = tf.ragged.constant([[1, 2], [3]])
    weights = tf.ragged.constant([[1.0], [1.0]])
    embedding = embedding_of_clicks()
    embedding.enqueue({"clicks": ids}, {"clicks": weights})
    with pytest.raises(tf.errors.InvalidArgumentError, match="clicks"):
        embedding.dequeue()


# Above rank 2 all dimensions but the last are one to the engine.


def _of_rank_3(**options):
    table = tfembed.TableConfig(
        4, 2, tf.ones_initializer(), combiner="sum", name="users"
    )
    return tfembed.TPUEmbedding(
        {"clicks": tfembed.FeatureConfig(table, name="clicks")},
        tfembed.SGD(1.0),
        **options,
    )


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    "index",
    [[0, 2, 0], [0, -1, 0], [1, -1, 2], [0, 0, 3], [1, 0, -1], [2, 0, 0]],
)
def test_an_index_outside_of_any_dimension_is_no_other_samples(
    index, in_function, packs
):
    embedding = _of_rank_3()
    embedding.build({"clicks": tf.TensorShape([2, 2, 3])})

    def look_up(indices):
        ids = tf.SparseTensor(indices, tf.constant([1], tf.int64), [2, 2, 3])
        features = {"clicks": ids}
        embedding.enqueue(
            tfembed.pack_features(features) if packs else features
        )
        return embedding.dequeue()["clicks"]

    call = tf.function(look_up) if in_function else look_up
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="(?s)clicks.*the batch"
    ):
        call(tf.constant([index], tf.int64))


@pytest.mark.parametrize("packs", [False, True])
def test_a_batch_of_rank_3_may_have_no_ids_at_all(packs):
    embedding = _of_rank_3()
    empty = tf.ragged.constant(
        [[[], []], [[], []]], ragged_rank=2, dtype=tf.int64
    ).to_sparse()
    assert empty.dense_shape.numpy().tolist() == [2, 2, 0]
    features = {"clicks": empty}
    embedding.enqueue(tfembed.pack_features(features) if packs else features)
    activations = embedding.dequeue()
    assert activations["clicks"].numpy().tolist() == [[[0, 0], [0, 0]]] * 2
    embedding.apply_gradients(activations)
    (table,) = embedding.embedding_tables.values()
    assert table.numpy().tolist() == [[1, 1]] * 4


@pytest.mark.parametrize(
    "ids", [tf.zeros([0], tf.int64), tf.zeros([0, 1], tf.int64)]
)
def test_a_batch_without_samples_gives_nothing_or_is_refused(
    ids, default_engine
):
    embedding = _of_rank_3()
    if default_engine == "xla":
        with pytest.raises(
            errors.UnsupportedError, match="clicks has no sample"
        ):
            embedding.enqueue({"clicks": ids})
        return
    embedding.enqueue({"clicks": ids})
    assert embedding.dequeue()["clicks"].shape == [0, 2]
    embedding.apply_gradients({"clicks": tf.zeros([0, 2])})
