"""Padding of last batches, and signals that the input has ended."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.tpu import padding

DATA = np.arange(1, 8, dtype=np.float32)


def dataset(rows, *, labels=False, drop_remainder=False):
    data = tf.data.Dataset.from_tensor_slices(
        ({"x": DATA[:rows]}, DATA[:rows] * 2)
    )
    if not labels:
        data = data.map(lambda x, y: x)
    return data.batch(2, drop_remainder=drop_remainder)


def batches_of(data):
    """All batches of a dataset."""
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    batch, found = iterator.get_next(), []
    with tf.compat.v1.Session() as session:
        session.run(iterator.initializer)
        while True:
            try:
                found.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return found


def test_a_last_batch_is_filled_with_zeros_and_says_so():
    with tf.Graph().as_default():
        found = batches_of(padding.stopping_dataset(dataset(3, labels=True), 2))

    assert len(found) == 3
    assert found[1]["features"]["x"].tolist() == [3, 0]
    assert found[1]["labels"].tolist() == [6, 0]
    assert found[1]["mask"].tolist() == [0, 1]
    assert [f["stopping"] for f in found] == [0, 0, 1]


@pytest.mark.parametrize("rows, steps", [(4, 2), (5, 2), (7, 3), (2, 2)])
def test_steps_of_two_batches_end_with_a_step_that_stops(rows, steps):
    with tf.Graph().as_default():
        found = batches_of(padding.stopping_dataset(dataset(rows), 2, 2))
    stops = [bool(f["stopping"]) for f in found]
    first_of_steps = stops[::2]

    stop = first_of_steps.index(True)
    assert len(stops) >= 2 * (stop + 1)
    real = [
        x
        for f in found[: 2 * stop]
        for x, p in zip(f["features"]["x"], f["mask"])
        if not p
    ]
    assert real == DATA[:rows].tolist()


def test_strings_are_padded_too():
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices({"s": [b"a", b"b", b"c"]})
        found = batches_of(padding.stopping_dataset(data.batch(2), 2))
    assert found[1]["features"]["s"].tolist() == [b"c", b""]


def test_a_batch_larger_than_the_batch_size_is_refused():
    with (
        tf.Graph().as_default(),
        pytest.raises(
            tf.errors.InvalidArgumentError, match="should not be greater"
        ),
    ):
        batches_of(padding.stopping_dataset(dataset(4), 1))


def test_features_without_a_dense_tensor_cannot_be_padded():
    with tf.Graph().as_default(), pytest.raises(errors.ArgumentError):
        padding.padded({}, None, 4)


def test_padding_of_evaluations_repeats_rows():
    found = list(padding.pad_dataset(dataset(5, labels=True), 2, 1))

    assert [batch["mask"].numpy().tolist() for batch in found] == [
        [0, 0],
        [0, 0],
        [0, 1],
    ]
    assert found[2]["features"]["x"].numpy().tolist() == [5, 5]
    assert found[2]["labels"].numpy().tolist() == [10, 10]


def test_batches_of_a_static_size_stay_as_they_are():
    found = list(padding.pad_dataset(dataset(5, drop_remainder=True), 2, 1))

    assert [sorted(batch) for batch in found] == [["features"]] * 2


def test_a_step_of_several_batches_is_filled_by_batches_of_padding():
    data = dataset(6, drop_remainder=True)
    found = list(padding.pad_dataset(data, 2, 2))

    assert [int(batch["mask"].numpy().sum()) for batch in found] == [0, 0, 0, 2]


def test_features_give_their_padding_to_who_asks_for_it():
    features = padding.FeaturesWithPadding({"x": 1}, lambda: "mask")

    assert features["is_padding"] == "mask"
    assert features.get("is_padding") == "mask"
    assert "is_padding" in features
    assert features.copy()["is_padding"] == "mask"
    assert list(features) == ["x"]
    assert features.get("y", 5) == 5
    with pytest.raises(KeyError):
        features["y"]


def test_a_feature_of_that_name_is_the_users():
    features = padding.FeaturesWithPadding({"is_padding": 7}, lambda: "mask")
    assert features["is_padding"] == 7


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_rows_of_sparse_and_ragged_features_are_padded(kind, repeat):
    bags = [[1], [], [2, 3]]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.ragged.constant(bags, dtype=tf.int64)
        feature = given if kind == "ragged" else given.to_sparse()
        mask, padded, labels = padding.padded(
            {"ids": feature}, feature, 8, repeat=repeat
        )
        found = [
            session.run(
                value
                if kind == "ragged"
                else tf.RaggedTensor.from_sparse(value)
            ).to_list()
            for value in (padded["ids"], labels)
        ]
        mask = session.run(mask)

    more = [*bags, *bags[:2]] if repeat else [[]] * 5
    assert padded["ids"].shape[0] == 8
    assert mask.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert found == [[*bags, *more]] * 2
