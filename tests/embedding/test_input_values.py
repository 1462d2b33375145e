"""Lists and NumPy arrays as ids, wherever an embedding takes ids."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors


def table(key_dtype="int64"):
    return tfembed.TableConfig(
        None if key_dtype == "string" else 8,
        1,
        "ones",
        combiner="sum",
        name="users",
        key_dtype=key_dtype,
    )


def by_enqueue(config, features, weights):
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.enqueue(features, weights)
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
    return activations


def by_v0(config, features, weights):
    return tfembed.TPUEmbeddingV0(config, None)(features, weights)


def by_serving(config, features, weights):
    return tfembed.TPUEmbeddingForServing(config, None)(features, weights)


LOOK_UPS = pytest.mark.parametrize("look_up", [by_enqueue, by_v0, by_serving])
RAGGED = [[1, 2], [], [3]]


@LOOK_UPS
@pytest.mark.parametrize(
    ("ids", "sums"),
    [
        ([1, 2, 3], [1, 1, 1]),
        ((1, 2, 3), [1, 1, 1]),
        (np.array([1, 2, 3], np.int32), [1, 1, 1]),
        (np.array([1, 2, 3], np.uint8), [1, 1, 1]),
        (pandas.Series([1, 2, 3]), [1, 1, 1]),
        (tf.constant([1, 2, 3], tf.int32), [1, 1, 1]),
        (RAGGED, [2, 0, 1]),
        ([np.array(one, np.int32) for one in RAGGED], [2, 0, 1]),
        (pandas.Series(RAGGED), [2, 0, 1]),
        ([[1, 1], [2, 2]], [2, 2]),
        (tf.Variable([1, 2, 3]), [1, 1, 1]),
    ],
)
def test_ids_of_python_and_numpy_are_looked_up(look_up, ids, sums):
    config = {"clicks": tfembed.FeatureConfig(table())}
    out = look_up(config, {"clicks": ids}, None)["clicks"]
    np.testing.assert_array_equal(tf.reshape(out, [-1]), sums)


@LOOK_UPS
@pytest.mark.parametrize(
    ("ids", "samples"),
    [
        (["a", "b"], 2),
        ([["a", "b"], []], 2),
        (np.array(["a", "b"]), 2),
        (np.array([b"a", b"b", b"c"], object), 3),
        (pandas.Series(["a"]), 1),
    ],
)
def test_strings_are_ids_of_tables_that_take_strings(look_up, ids, samples):
    config = tfembed.FeatureConfig(table("string"))
    assert look_up(config, ids, None).shape[0] == samples


@LOOK_UPS
@pytest.mark.parametrize("make_config", [lambda f: [f, f], lambda f: (f, f)])
def test_lists_of_features_are_no_lists_of_ids(look_up, make_config):
    config = make_config(tfembed.FeatureConfig(table()))
    first, second = look_up(config, type(config)([[1, 2], RAGGED[:2]]), None)
    np.testing.assert_array_equal(first[:, 0], [1, 1])
    np.testing.assert_array_equal(second[:, 0], [2, 0])


@LOOK_UPS
def test_weights_come_as_lists_too(look_up):
    config = {"clicks": tfembed.FeatureConfig(table())}
    weights = {"clicks": [[2, 0.5], [], [3]]}
    out = look_up(config, {"clicks": RAGGED}, weights)["clicks"]
    np.testing.assert_array_equal(out[:, 0], [2.5, 0, 3])


def test_a_list_without_ids_has_the_dtype_of_its_table():
    for key_dtype in ("int64", "string"):
        config = {"clicks": tfembed.FeatureConfig(table(key_dtype))}
        out = by_enqueue(config, {"clicks": [[], []]}, None)["clicks"]
        np.testing.assert_array_equal(out, [[0], [0]])


@LOOK_UPS
@pytest.mark.parametrize(
    "ids", [["a"], [1.5], [2**63], [2**65], [[1], 2], [[1], ["a"]], [[None]]]
)
def test_what_are_no_ids_is_refused_by_the_features_name(look_up, ids):
    config = {"clicks": tfembed.FeatureConfig(table())}
    with pytest.raises(errors.DtypeError, match="clicks"):
        look_up(config, {"clicks": ids}, None)


@LOOK_UPS
def test_another_structure_is_told_as_for_tensors(look_up):
    config = {"clicks": tfembed.FeatureConfig(table())}
    with pytest.raises(ValueError, match="likes"):
        look_up(config, {"likes": [1]}, None)


def test_repeated_eager_steps_take_lists_by_functions():
    config = {"clicks": tfembed.FeatureConfig(table())}
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    for _ in range(12):
        embedding.enqueue({"clicks": [1, 2]})
        embedding.apply_gradients(
            {"clicks": tf.ones_like(embedding.dequeue()["clicks"])}
        )
    rows = embedding.embedding_tables["users"].numpy()[:, 0]
    np.testing.assert_array_equal(rows[:4], [1, -11, -11, 1])


def test_arrays_are_packed():
    config = {"clicks": tfembed.FeatureConfig(table())}
    packed = tfembed.pack_features({"clicks": np.array([1, 2], np.int32)})
    out = by_enqueue(config, packed, None)["clicks"]
    np.testing.assert_array_equal(out, [[1], [1]])
