"""Output shapes: FeatureConfig, then build, then the first input."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.config import FeatureConfig, TableConfig
from tfembed.embedding.features.output_shapes import (
    OutputShapes,
    detected_input_shape,
)

TABLE = TableConfig(8, 4, name="users")

# FeatureConfig, input shape or batch size, output shape. TensorFlow's rules.
RULES = [
    ({}, 4, [4]),
    ({"max_sequence_length": 3}, 4, [4, 3]),
    ({"max_sequence_length": 3}, [4, None], [4, 3]),
    ({"max_sequence_length": 3}, [4, 1], [4]),
    ({}, [4, 7], [4]),
    ({}, [4], [4]),
    ({}, [4, 5, 6], [4, 5]),
    ({"output_shape": [4, 2]}, [4, 9], [4, 2]),
    ({"output_shape": [4, 2], "max_sequence_length": 3}, [4, 2, 9], [4, 2]),
    ({"output_shape": [4]}, 4, [4]),
    ({"output_shape": [4, 2]}, 4, [4, 2]),
]

CONTRADICTIONS = [
    ({"output_shape": [4]}, [5, 2], "Inconsistent shape.*clicks"),
    ({"output_shape": [4, 2]}, [4, 3, 9], "Inconsistent shape.*clicks"),
    ({"output_shape": [4]}, [4, 5, 6], "Inconsistent shape.*clicks"),
    ({"output_shape": [None]}, [4, 2], "clicks.*not fully defined"),
    ({"output_shape": [None]}, 4, "clicks.*not fully defined"),
    ({}, [None, 2], "clicks.*not fully defined"),
    ({}, [], "Rank must be 1 and above"),
    ({}, None, "Rank must be 1 and above"),
]


def _shapes(arguments: dict) -> OutputShapes:
    feature = FeatureConfig(TABLE, **arguments)
    return OutputShapes.configured([feature], ["clicks"])


def _with(shapes: OutputShapes, given) -> OutputShapes:
    if isinstance(given, int):
        return shapes.with_batch_size(given)
    return shapes.with_inputs([tf.TensorShape(given)])


@pytest.mark.parametrize(("arguments", "given", "expected"), RULES)
def test_an_output_shape_follows_from_config_and_input(
    arguments, given, expected
):
    known = _with(_shapes(arguments), given)
    assert known.shapes[0].as_list() == expected


@pytest.mark.parametrize(("arguments", "given", "text"), CONTRADICTIONS)
def test_a_shape_that_cannot_be_is_refused(arguments, given, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _with(_shapes(arguments), given)


def test_later_inputs_are_checked_against_the_first():
    known = _with(_shapes({}), [4, 7])
    assert _with(known, [4, 9]).shapes[0].as_list() == [4]
    with pytest.raises(errors.ArgumentError, match="Inconsistent shape"):
        _with(known, [5, 7])


def test_a_batch_of_another_size_does_not_change_what_is_known():
    known = _with(_shapes({}), [4, 7])
    with pytest.raises(errors.ArgumentError):
        _with(known, [5, 7])
    assert known.shapes[0].as_list() == [4]


INPUTS = [
    ({}, tf.zeros([4], tf.int64), [4]),
    ({}, tf.zeros([4, 1], tf.int64), [4, 1]),
    ({}, tf.sparse.from_dense(tf.eye(4, 7, dtype=tf.int64)), [4, 7]),
    (
        {"max_sequence_length": 3},
        tf.sparse.from_dense(tf.eye(4, 7, dtype=tf.int64)),
        [4, 3, 7],
    ),
    # One column is still a sequence where the input itself is seen.
    (
        {"max_sequence_length": 3},
        tf.sparse.from_dense(tf.ones([4, 1], tf.int64)),
        [4, 3, 1],
    ),
    (
        {"max_sequence_length": 3, "output_shape": [4]},
        tf.sparse.from_dense(tf.eye(4, 7, dtype=tf.int64)),
        [4, 7],
    ),
    (
        {"max_sequence_length": 3},
        tf.ragged.constant([[1], [], [2, 3], []], dtype=tf.int64),
        [4, 3, None],
    ),
]


@pytest.mark.parametrize(("arguments", "value", "expected"), INPUTS)
def test_an_input_shows_its_shape(arguments, value, expected):
    feature = FeatureConfig(TABLE, **arguments)
    shape = detected_input_shape(feature, value, "clicks")
    assert shape.as_list() == expected


BAD_INPUTS = [
    (tf.constant(3, tf.int64), "Only rank 1 and above dense.*clicks"),
    (tf.zeros([4, 2], tf.int64), "last dimension as 1.*clicks"),
    (
        tf.sparse.from_dense(tf.ones([4], tf.int64)),
        "Only rank 2 and above sparse.*clicks",
    ),
    (
        tf.ragged.constant([[[1]], []], dtype=tf.int64),
        "Only rank 2 ragged.*clicks",
    ),
    ([1, 2], "clicks is of unknown type.*list"),
]


@pytest.mark.parametrize(("value", "text"), BAD_INPUTS)
def test_an_input_of_a_wrong_rank_or_type_is_refused(value, text):
    with pytest.raises(errors.ArgumentError, match=text):
        detected_input_shape(FeatureConfig(TABLE), value, "clicks")
