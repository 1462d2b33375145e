"""Output shapes, from the configs to the activations.

tests/embedding/features/test_output_shapes.py has the rules one by one.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from tfembed import errors


def _embedding(**feature):
    table = tfembed.TableConfig(8, 2, name="users")
    return tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table, **feature), tfembed.SGD(1.0)
    )


def _ids(shape):
    """Ragged samples of 0, 1, 2, ... ids."""
    rows = [[1] * i for i in range(shape[0])]
    return tf.ragged.constant(rows, dtype=tf.int64, ragged_rank=1)


TABLE = [
    ({}, 4, [4]),
    ({}, [4, 7], [4]),
    ({}, [4], [4]),
    ({}, [4, 5, 6], [4, 5]),
    ({"max_sequence_length": 3}, 4, [4, 3]),
    ({"max_sequence_length": 3}, [4, None], [4, 3]),
    ({"max_sequence_length": 3}, [4, 1], [4]),
    ({"output_shape": [4, 2]}, [4, 9], [4, 2]),
    ({"output_shape": [4, 2], "max_sequence_length": 3}, [4, 2, 9], [4, 2]),
]


@pytest.mark.parametrize("as_batch_size", [False, True])
@pytest.mark.parametrize(("feature", "given", "expected"), TABLE)
def test_config_then_build(feature, given, expected, as_batch_size):
    embedding = _embedding(**feature)
    if isinstance(given, int):
        arguments = (None, given) if as_batch_size else (given,)
    elif as_batch_size:
        pytest.skip("a shape is no batch size")
    else:
        arguments = (tf.TensorShape(given),)
    embedding.build(*arguments)
    assert embedding._output_shapes[0].as_list() == expected


ERRORS = [
    ({"output_shape": [4]}, [5, 2], "Inconsistent shape"),
    ({"output_shape": [4, 2]}, [4, 3, 9], "Inconsistent shape"),
    ({"output_shape": [None]}, [4], "not fully defined"),
    ({}, [None, 3], "not fully defined"),
]


@pytest.mark.parametrize(("feature", "given", "text"), ERRORS)
def test_config_and_build_that_cannot_be(feature, given, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _embedding(**feature).build(tf.TensorShape(given))


def test_a_config_known_in_part_cannot_be_built_without_arguments_either():
    with pytest.raises(errors.ArgumentError, match="not fully defined"):
        _embedding(output_shape=[None, 2]).build()


@pytest.mark.parametrize(
    "shapes",
    [
        {"other": tf.TensorShape([4])},
        [],
        [tf.TensorShape([4])] * 2,
        {"clicks": [4]},
        tf.TensorShape([4]),
    ],
)
def test_build_wants_shapes_structured_as_the_features(shapes):
    table = tfembed.TableConfig(10, 2, name="users")
    features = {"clicks": tfembed.FeatureConfig(table)}
    embedding = tfembed.TPUEmbedding(features, tfembed.SGD(0.1))
    with pytest.raises((ValueError, TypeError), match="per_replica_input_shap"):
        embedding.build(shapes)
    embedding.build({"clicks": tf.TensorShape([4])})


def test_ragged_samples_that_do_not_divide_the_output_shape_are_refused():
    embedding = _embedding(output_shape=[3, 3])
    with pytest.raises(ValueError, match="should be the factor of the input"):
        embedding.enqueue(_ids([4]))


def test_nothing_known_before_the_first_enqueue_is_not_fully_defined():
    """With neither config nor build arguments, the first input settles it."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def look_up(ids):
        embedding.enqueue(ids)

    embedding = _embedding()
    embedding.build()
    with pytest.raises(errors.ArgumentError, match="not fully defined"):
        look_up(tf.constant([1], tf.int64))


SPARSE = tf.sparse.from_dense(tf.ones([4, 7], tf.int64))
DETECTED = [
    ({}, tf.zeros([4], tf.int64), [4]),
    ({}, tf.zeros([4, 1], tf.int64), [4]),
    ({}, tf.zeros([4, 5, 1], tf.int64), [4, 5]),
    ({}, SPARSE, [4]),
    ({}, tf.sparse.reshape(SPARSE, [2, 2, 7]), [2, 2]),
    ({}, tf.sparse.reshape(SPARSE, [2, 2, 1, 7]), [2, 2, 1]),
    ({}, _ids([4]), [4]),
    ({"max_sequence_length": 3}, SPARSE, [4, 3]),
    ({"max_sequence_length": 3}, _ids([4]), [4, 3]),
    # A rank above 2 is combined whatever the sequence length.
    ({"max_sequence_length": 3}, tf.sparse.reshape(SPARSE, [2, 2, 7]), [2, 2]),
    ({"output_shape": [4], "max_sequence_length": 3}, SPARSE, [4]),
    ({"output_shape": [2, 2]}, _ids([4]), [2, 2]),
    ({"output_shape": [4, 3]}, _ids([4]), [4, 3]),
]


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(("feature", "value", "expected"), DETECTED)
def test_an_input_settles_the_shape_of_the_activations(
    feature, value, expected, in_function
):
    embedding = _embedding(**feature)

    def step():
        embedding.enqueue(value)
        activations = embedding.dequeue()
        embedding.apply_gradients(tf.ones_like(activations))
        return activations

    activations = (tf.function(step) if in_function else step)()
    assert activations.shape == [*expected, 2]


def test_a_ragged_output_shape_that_is_no_factor_is_refused():
    with pytest.raises(errors.ArgumentError, match="multiple of it"):
        _embedding(output_shape=[4, 3]).enqueue(_ids([5]))


def test_later_batches_are_checked_against_the_size_that_was_given():
    embedding = _embedding()
    embedding.build(per_replica_batch_size=4)
    embedding.enqueue(_ids([4]))
    with pytest.raises(errors.ArgumentError, match="Inconsistent shape"):
        embedding.enqueue(_ids([5]))


@marks.REPLICAS
def test_all_replicas_must_have_the_first_replicas_shape():
    """TensorFlow looks at replica 0 alone."""
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        embedding = _embedding()
    values = strategy.experimental_distribute_values_from_function(
        lambda c: tf.zeros([4 + c.replica_id_in_sync_group], tf.int64)
    )
    with pytest.raises(errors.ArgumentError, match="Inconsistent shape"):
        embedding.enqueue(values)


ORDERS = [list, tuple, lambda shapes: [shapes[:1], (shapes[1],)]]


@pytest.mark.parametrize("listed", ORDERS)
def test_build_takes_shapes_one_by_one_for_any_structure(listed):
    """In the order of the flat features, in which the keys of dicts are sorted."""
    table = tfembed.TableConfig(8, 2, name="users")
    config = {
        "z": tfembed.FeatureConfig(table),
        "a": tfembed.FeatureConfig(table),
    }
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.build(listed([tf.TensorShape([4, 3]), tf.TensorShape([2, 3, 1])]))
    assert [s.as_list() for s in embedding._output_shapes] == [[4], [2, 3]]


def test_layers_on_top_may_set_the_output_shapes_before_build():
    embedding = _embedding()
    embedding._output_shapes = [[2, 4]]
    with pytest.raises(ValueError, match="Inconsistent shape"):
        embedding.build(tf.TensorShape([1, 1, 1]))
    embedding.build(tf.TensorShape([2, None, None]))
    assert embedding._output_shapes == [tf.TensorShape([2, 4])]


def test_build_settles_the_shapes_of_tables_that_were_read_before():
    embedding = _embedding()
    before = next(iter(embedding.embedding_tables.values()))
    embedding.build(per_replica_batch_size=2)
    (after,) = embedding.embedding_tables.values()
    assert after is before

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def look(ids):
        embedding.enqueue(ids, training=False)
        return embedding.dequeue()

    found = look(tf.constant([1, 2], tf.int64))
    np.testing.assert_array_equal(found, after.numpy()[[1, 2]])
    embedding.build(per_replica_batch_size=2)


def test_a_loop_in_a_function_says_how_it_would_see_the_size_of_batches():
    embedding = _embedding()

    @tf.function
    def run():
        for ids in tf.data.Dataset.range(5).batch(2):
            embedding.enqueue(ids)
            embedding.dequeue()

    with pytest.raises(errors.ArgumentError, match="drop_remainder=True"):
        run()
