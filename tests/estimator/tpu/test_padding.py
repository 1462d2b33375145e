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


def batches_of(inputs):
    """Runs all batches of an InputsWithStoppingSignals."""
    found = []
    with tf.compat.v1.Session() as session:
        start = inputs.dataset_initializer()
        features, labels = inputs.features_and_labels()
        fetches = {"features": features, "signals": inputs.signals()}
        if labels is not None:
            fetches["labels"] = labels
        session.run(start)
        while True:
            try:
                found.append(session.run(fetches))
            except tf.errors.OutOfRangeError:
                return found


def test_a_last_batch_is_filled_with_zeros_and_says_so():
    with tf.Graph().as_default():
        found = batches_of(
            padding.InputsWithStoppingSignals(
                dataset(3, labels=True), 2, add_padding=True
            )
        )

    assert len(found) == 3
    assert found[1]["features"]["x"].tolist() == [3, 0]
    assert found[1]["labels"].tolist() == [6, 0]
    assert found[1]["signals"]["padding_mask"].tolist() == [0, 1]
    assert [f["signals"]["stopping"].all() for f in found] == [0, 0, 1]


@pytest.mark.parametrize("rows, steps", [(4, 2), (5, 2), (7, 3), (2, 2)])
def test_steps_of_two_batches_end_with_a_step_that_stops(rows, steps):
    with tf.Graph().as_default():
        found = batches_of(
            padding.InputsWithStoppingSignals(dataset(rows), 2, True, 2)
        )
    stops = [bool(f["signals"]["stopping"][0, 0]) for f in found]
    first_of_steps = stops[::2]

    stop = first_of_steps.index(True)
    assert len(stops) >= 2 * (stop + 1)
    real = [
        x
        for f in found[: 2 * stop]
        for x, p in zip(f["features"]["x"], f["signals"]["padding_mask"])
        if not p
    ]
    assert real == DATA[:rows].tolist()


def test_results_are_sliced_back_to_the_rows_of_data():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = padding.InputsWithStoppingSignals(dataset(3), 2, True)
        start = inputs.dataset_initializer()
        features, _ = inputs.features_and_labels()
        results = padding.PaddingSignals.slice_tensor_or_dict(
            {"y": features["x"] * 10}, inputs.signals()
        )
        session.run(start)
        assert session.run(results)["y"].tolist() == [10, 20]
        assert session.run(results)["y"].tolist() == [30]
        assert len(session.run(results)["y"]) == 2


def test_strings_are_padded_too():
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices({"s": [b"a", b"b", b"c"]})
        found = batches_of(
            padding.InputsWithStoppingSignals(data.batch(2), 2, True)
        )
    assert found[1]["features"]["s"].tolist() == [b"c", b""]


def test_a_batch_larger_than_the_batch_size_is_refused():
    with (
        tf.Graph().as_default(),
        pytest.raises(
            tf.errors.InvalidArgumentError, match="should not be greater"
        ),
    ):
        batches_of(
            padding.InputsWithStoppingSignals(dataset(4), 1, add_padding=True)
        )


def test_signals_are_of_the_batch_that_was_taken():
    with tf.Graph().as_default():
        inputs = padding.InputsWithStoppingSignals(dataset(4), 2, True)
        with pytest.raises(errors.StateError, match="features_and_labels"):
            inputs.signals()


def test_features_without_a_dense_tensor_cannot_be_padded():
    with tf.Graph().as_default(), pytest.raises(errors.ArgumentError):
        padding.PaddingSignals.pad_features_and_labels({}, None, 4)


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
        mask, padded, labels = padding.PaddingSignals.pad_features_and_labels(
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
