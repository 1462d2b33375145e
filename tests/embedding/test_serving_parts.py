"""Lookups for serving of a part of the features, under every TensorFlow.

A structure may hold fewer features than feature_config: dicts, lists, tuples,
namedtuples, nested ones, weights, and TPUEmbeddingForServing.
Training takes all features, as TensorFlow's does.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

IDS = tf.constant([1, 3])
BAGS = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 3, 2], [2, 2])
WEIGHTS = BAGS.with_values(tf.constant([1.0, 3.0, 0.5]))
Pair = collections.namedtuple("Pair", ["first", "second"])

TABLES = [tfembed.TableConfig(4, 2, name=f"table_{i}") for i in range(3)]
FEATURES = [tfembed.FeatureConfig(table) for table in TABLES]
ROWS = {
    table: tf.reshape(tf.range(8.0), [4, 2]) + 100.0 * i
    for i, table in enumerate(TABLES)
}
A, B, C = FEATURES


def _rows(i):
    return np.array([[2, 3], [6, 7]]) + 100 * i


# Configs, what is asked of them, and the features that it is.
PARTS = {
    "a dict": ({"a": A, "b": B, "c": C}, {"b": IDS}, [1]),
    "a tuple": ((A, B, C), (IDS,), [0]),
    "a list": ([A, B, C], [IDS, IDS], [0, 1]),
    "a tuple of a list": ([A, B], (IDS, IDS), [0, 1]),
    "later ones of a tuple": ((A, B, C), {2: IDS, 1: IDS}, [1, 2]),
    "a field of a namedtuple": (Pair(A, B), {"second": IDS}, [1]),
    "a dict in a dict": (
        {"x": {"a": A, "b": B}, "y": C},
        {"x": {"b": IDS}},
        [1],
    ),
    "a dict in a tuple": (({"a": A, "b": B}, C), ({"b": IDS},), [1]),
    "a tuple in a dict": ({"x": (A, B), "y": C}, {"x": (IDS,)}, [0]),
    "a path": ({"x": {"a": A, "b": B}}, {"x/b": IDS}, [1]),
    "one of alike paths": ({"a": {"b": A}, "a/b": B}, {"a": {"b": IDS}}, [0]),
    "nothing": ({"a": A}, {}, []),
}


def _function(configs):
    return lambda inputs: tfembed.serving_embedding_lookup(
        inputs, None, ROWS, configs
    )


def _object(configs):
    serving = tfembed.TPUEmbeddingForServing(configs, None)
    for table, variable in serving.embedding_tables.items():
        variable.assign(ROWS[table])
    return serving


@pytest.mark.parametrize("look_up", [_function, _object])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("traced", [False, True])
def test_a_part_of_the_features_is_looked_up(part, look_up, traced):
    configs, inputs, places = PARTS[part]
    call = look_up(configs)

    outputs = tf.function(lambda: call(inputs))() if traced else call(inputs)

    tf.nest.assert_same_structure(outputs, inputs)
    found = tf.nest.flatten(outputs)
    assert len(found) == len(places)
    for one, place in zip(found, places, strict=True):
        np.testing.assert_array_equal(one, _rows(place))


@pytest.mark.parametrize("inputs", [(BAGS,), {"b": BAGS}, {"x": {"b": BAGS}}])
def test_the_part_has_its_own_weights(inputs):
    configs = {"0": A, "b": B, "x": {"b": B}}
    weights = tf.nest.map_structure(lambda _: WEIGHTS, inputs)
    (found,) = tf.nest.flatten(
        tfembed.serving_embedding_lookup(inputs, weights, ROWS, configs)
    )
    place = 0 if isinstance(inputs, tuple) else 1
    mean = np.array([[1 * 2 + 3 * 6, 1 * 3 + 3 * 7], [4 * 4, 5 * 4]]) / 4
    np.testing.assert_allclose(found, mean + 100 * place)


def test_some_of_the_part_may_have_no_weights():
    outputs = tfembed.serving_embedding_lookup(
        {"a": BAGS, "c": IDS},
        {"a": WEIGHTS, "c": None},
        ROWS,
        {"a": A, "b": B, "c": C},
    )
    np.testing.assert_array_equal(outputs["c"], _rows(2))
    np.testing.assert_allclose(outputs["a"][0], [5, 6])


def test_weights_are_of_the_part_that_is_asked_for():
    with pytest.raises((ValueError, TypeError)):
        tfembed.serving_embedding_lookup(
            {"a": BAGS}, {"a": WEIGHTS, "b": None}, ROWS, {"a": A, "b": B}
        )


@pytest.mark.parametrize(
    ("configs", "inputs", "named"),
    [
        ({"a": A}, {"a": IDS, "z": IDS}, r"\['z'\]"),
        ((A, B), (IDS, IDS, IDS), r"\['2'\]"),
        ({"x": {"a": A}}, {"x": {"z": IDS}}, r"\['x/z'\]"),
        ({"x": {"a": A}}, {"x": IDS}, r"\['x'\]"),
        ({"a": A}, IDS, r"\[''\]"),
        (A, {"a": IDS}, r"\['a'\]"),
    ],
)
@pytest.mark.parametrize("look_up", [_function, _object])
def test_an_input_that_is_no_feature_is_named(look_up, configs, inputs, named):
    with pytest.raises(errors.ArgumentError, match=named):
        look_up(configs)(inputs)


def test_an_input_that_is_none_is_refused_by_name():
    with pytest.raises(errors.ArgumentError, match="Input b is type .*None"):
        _function({"a": A, "b": B})({"a": IDS, "b": None})


def test_only_the_tables_of_the_part_need_be_there():
    found = tfembed.serving_embedding_lookup(
        {"a": IDS}, None, {TABLES[0]: ROWS[TABLES[0]]}, {"a": A, "b": B}
    )
    np.testing.assert_array_equal(found["a"], _rows(0))


def test_training_takes_all_features():
    embedding = tfembed.TPUEmbedding({"a": A, "b": B}, tfembed.SGD(0.1))
    with pytest.raises((ValueError, TypeError), match="b"):
        embedding.enqueue({"a": IDS})


def test_a_saved_function_serves_a_part_of_a_tuple(tmp_path):
    serving = tfembed.TPUEmbeddingForServing((A, B), None)
    serving.embedding_tables[TABLES[1]].assign(ROWS[TABLES[1]])
    module = tf.Module()
    module.serving = serving
    module.serve = tf.function(
        lambda ids: serving({1: ids})[1],
        input_signature=[tf.TensorSpec([None], tf.int32)],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve(IDS), _rows(1))
