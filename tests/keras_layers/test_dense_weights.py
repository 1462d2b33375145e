"""Weights of dense ids, which a layer takes as those of other ids."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding


def _layer(combiner="sum", length=0):
    table = tfembed.TableConfig(8, 2, combiner=combiner, name="items")
    feature = tfembed.FeatureConfig(table, max_sequence_length=length)
    return DistributedEmbedding({"item": feature}, tfembed.SGD(1.0))


def _rows(layer):
    return layer.get_embedding_tables()["items"].numpy()


BAGS = np.array([[1, 2], [3, 3]])
BAG_WEIGHTS = np.array([[0.5, 2.0], [1.0, 3.0]], np.float32)
DIVISORS = {
    "sum": np.ones([2, 1]),
    "mean": BAG_WEIGHTS.sum(1, keepdims=True),
    "sqrtn": np.sqrt((BAG_WEIGHTS**2).sum(1, keepdims=True)),
}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("combiner", DIVISORS)
def test_a_bag_is_combined_by_its_weights(combiner, is_packed):
    layer = _layer(combiner)
    given = {"item": BAGS}, {"item": BAG_WEIGHTS}
    inputs = (layer.preprocess(*given, training=True),) if is_packed else given
    weighted = (_rows(layer)[BAGS] * BAG_WEIGHTS[..., None]).sum(1)
    np.testing.assert_allclose(
        layer(*inputs)["item"], weighted / DIVISORS[combiner], 1e-5
    )


@pytest.mark.parametrize("shape", [[2], [2, 1]])
@pytest.mark.parametrize(("combiner", "factor"), [("sum", 3.0), ("mean", 1.0)])
def test_one_id_of_a_sample_has_a_weight(combiner, factor, shape):
    layer = _layer(combiner)
    ids = {"item": tf.reshape(tf.constant([4, 5]), shape)}
    found = layer(ids, {"item": tf.fill(shape, 3.0)})["item"]
    np.testing.assert_allclose(found, factor * _rows(layer)[[4, 5]], 1e-6)


def test_a_weighted_sequence_is_that_of_ragged_ids():
    layer = _layer(length=3)
    found = layer({"item": BAGS}, {"item": BAG_WEIGHTS})["item"]
    ragged = tf.RaggedTensor.from_tensor(BAGS)
    weights = tf.RaggedTensor.from_tensor(BAG_WEIGHTS)
    expected = layer({"item": ragged}, {"item": weights})["item"]
    assert found.shape == (2, 3, 2)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("is_packed", [False, True])
def test_sequences_of_one_id_have_the_shape_of_longer_ones(is_packed):
    layer = _layer(length=3)
    inputs = keras.Input((None,), dtype="int64", name="item")
    outputs = layer({"item": inputs})["item"]
    model = keras.Model({"item": inputs}, keras.layers.Flatten()(outputs))
    assert model.output_shape == (None, 6)
    for ids in (np.array([[1, 2]]), np.array([[5]])):
        found = model.predict({"item": ids}, verbose=0)
        expected = _rows(layer)[ids[0]].ravel()
        np.testing.assert_array_equal(found[0, : expected.size], expected)
        assert not found[0, expected.size :].any()
        given = {"item": ids}
        again = layer(layer.preprocess(given) if is_packed else given)["item"]
        np.testing.assert_array_equal(again.numpy().ravel(), found[0])
        assert layer.compute_output_shape({"item": ids.shape}) == {
            "item": (1, 3, 2)
        }


def test_a_functional_model_takes_ids_and_their_weights():
    layer = _layer()
    ids = {"item": keras.Input((2,), dtype="int64")}
    weights = {"item": keras.Input((2,), dtype="float32")}
    model = keras.Model((ids, weights), layer(ids, weights))
    model.compile("sgd", "mse")
    before = _rows(layer).copy()
    data = tf.data.Dataset.from_tensors(
        (({"item": BAGS}, {"item": BAG_WEIGHTS}), {"item": np.ones([2, 2])})
    )
    model.fit(data, verbose=0)
    moved = np.abs(_rows(layer) - before).max(1) > 0
    assert np.flatnonzero(moved).tolist() == [1, 2, 3]


WRONG = [
    (0, BAGS, np.ones([2, 3], np.float32), "item has shape .*one weight"),
    (0, BAGS, tf.ragged.constant([[1.0], [1.0]]), "item is type RaggedTensor"),
    (3, np.array([1, 2]), np.ones([2], np.float32), "item, a sequence feature"),
    (0, BAGS, np.array([["a", "b"]] * 2), "weights of input item must be"),
]


@pytest.mark.parametrize(("length", "ids", "weights", "text"), WRONG)
def test_weights_that_do_not_fit_are_refused(length, ids, weights, text):
    with pytest.raises((errors.ArgumentError, errors.DtypeError), match=text):
        _layer(length=length)({"item": ids}, {"item": weights})


def test_the_output_shapes_are_known_from_the_input_shapes():
    assert _layer().compute_output_shape({"item": (None, 5)}) == {
        "item": (None, 2)
    }
    assert _layer(length=3).compute_output_shape({"item": (4, 5)}) == {
        "item": (4, 3, 2)
    }


def test_float_ids_are_told_what_a_keras_input_needs():
    with pytest.raises(errors.DtypeError, match=r"keras.Input\(dtype='int64'"):
        _layer()({"item": tf.constant([1.0])})
