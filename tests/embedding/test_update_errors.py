"""Every wrong update ends in an error that names the thing, before a change."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from tfembed import errors


def test_a_learning_rate_that_asks_for_more_than_a_step_is_refused():
    table = tfembed.TableConfig(10, 4, name="users")

    with pytest.raises(errors.ArgumentError, match="'users'.*asks for more"):
        tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(lambda step, epoch: 0.1)
        )


@pytest.mark.parametrize("rate", [[0.1], "x", None])
def test_a_function_that_gives_no_learning_rate_is_told_by_its_table(rate):
    table = tfembed.TableConfig(8, 2, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(lambda: rate)
    )
    embedding.enqueue(tf.constant([1]))
    embedding.dequeue()
    before = embedding.embedding_tables[table].numpy()
    with pytest.raises(errors.ArgumentError, match="'users' must be one numb"):
        embedding.apply_gradients(tf.ones([1, 2]))
    assert (embedding.embedding_tables[table].numpy() == before).all()


WRONG_GRADIENTS = [
    ({"clicks": 3.0}, errors.ArgumentError, "non-tensor type.*float.*clicks"),
    (
        {"clicks": tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))},
        errors.ArgumentError,
        "non-tensor type.*IndexedSlices.*clicks",
    ),
    (
        {"clicks": tf.ones([2, 3])},
        errors.ArgumentError,
        r"shape \(2, 3\) at path clicks. Expected shape \(2, 2\)",
    ),
    (tf.ones([2, 2]), (ValueError, TypeError), "gradients must have"),
]


@pytest.mark.parametrize(("gradients", "error", "text"), WRONG_GRADIENTS)
def test_a_wrong_gradient_is_refused_and_may_be_given_again(
    gradients, error, text
):
    table = tfembed.TableConfig(8, 2, name="users")
    embedding = tfembed.TPUEmbedding(
        {"clicks": tfembed.FeatureConfig(table)}, tfembed.SGD(0.1)
    )
    embedding.enqueue({"clicks": tf.constant([1, 2])})
    embedding.dequeue()
    with pytest.raises(error, match=text):
        embedding.apply_gradients(gradients)
    embedding.apply_gradients({"clicks": tf.ones([2, 2])})


def test_a_table_without_an_optimizer_cannot_be_trained():
    table = tfembed.TableConfig(8, 2, name="users")
    embedding = tfembed.TPUEmbedding(tfembed.FeatureConfig(table))
    embedding.enqueue(tf.constant([1]))
    embedding.dequeue()
    with pytest.raises(errors.StateError, match="'users' has no optimizer"):
        embedding.apply_gradients(tf.ones([1, 2]))


@marks.REFUSES
@pytest.mark.parametrize(
    ("table", "gradient", "text"),
    [
        ({}, float("nan"), "id 1 of table 'users' has a NaN"),
        ({"vocabulary_size": None}, float("nan"), "of table 'users' has a NaN"),
        (
            {
                "vocabulary_size": None,
                "max_size": 1,
                "eviction": tfembed.policies.LeastRecent(),
            },
            1.0,
            "In table 'users': .* 2 distinct keys",
        ),
    ],
)
def test_an_update_that_is_refused_names_its_table(table, gradient, text):
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(
            tfembed.TableConfig(
                **{"vocabulary_size": 8, "dim": 2, "name": "users", **table}
            )
        ),
        tfembed.SGD(0.1),
        nonfinite="refuse",
    )
    embedding.enqueue(tf.constant([1, 2]))
    embedding.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        embedding.apply_gradients(tf.fill([2, 2], gradient))


def test_an_unknown_way_with_nonfinite_gradients_is_refused():
    table = tfembed.TableConfig(8, 2, name="users")
    with pytest.raises(errors.ArgumentError, match="'ignore'"):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), nonfinite="ignore")
