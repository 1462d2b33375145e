"""TPUEmbedding raises TensorFlow's errors for bad calls.

Exempt, since removing them is the point: RuntimeError for enqueue, dequeue,
apply_gradients and embedding_tables off or on a TPU. Direct arguments, input
devices and nested graphs: test_tpu_plumbing.py. What only a TPUStrategy refuses:
test_tpu_engine.py and, with several cores per replica, test_tpu_cores.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding.clicks import embedding_of_clicks, rows_of
from proof.paper_tpu import traced_on_paper
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding


# Types: each of ours is TensorFlow's type too.


def test_errors_keep_tensorflows_types():
    assert issubclass(errors.ArgumentError, ValueError)
    assert issubclass(errors.StateError, RuntimeError)
    assert issubclass(errors.DtypeError, TypeError)
    assert issubclass(errors.UnsupportedError, NotImplementedError)


# The constructor.


@pytest.mark.parametrize(
    ("optimizer", "hint"),
    [
        (0.1, "embedding.$"),
        ("sgd", "tfembed.SGD"),
        (tf.keras.optimizers.SGD, "tfembed.SGD"),
        (tf.keras.optimizers.Ftrl(), "tfembed.FTRL"),
    ],
)
def test_ctor_an_optimizer_of_another_class(optimizer, hint):
    table = tfembed.TableConfig(4, 2)
    with pytest.raises(
        ValueError, match=f"is an unsupported optimizer class.*{hint}"
    ):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), optimizer)


def test_ctor_two_tables_of_one_name():
    tables = [tfembed.TableConfig(4, 2, name="users") for _ in range(2)]
    with pytest.raises(
        ValueError,
        match="must have a unique name. Multiple tables with name users found",
    ):
        tfembed.TPUEmbedding([tfembed.FeatureConfig(t) for t in tables], None)


# build.


@pytest.mark.parametrize(
    ("feature", "shapes", "text"),
    [
        ({"output_shape": [None]}, [4], "clicks has output shape set as"),
        ({"output_shape": [4]}, [5, 2], "Inconsistent shape founded.*clicks"),
        ({}, [], "Received input tensor of shape ...* Rank must be 1"),
    ],
)
def test_build_a_shape_that_cannot_be(feature, shapes, text):
    with pytest.raises(ValueError, match=text):
        embedding_of_clicks(**feature).build({"clicks": tf.TensorShape(shapes)})


# Calls in the wrong order.


@pytest.mark.parametrize("call", ["dequeue", "apply_gradients"])
def test_unbuilt_calls_are_runtime_errors(call):
    arguments = () if call == "dequeue" else ({"clicks": None},)
    with pytest.raises(
        RuntimeError,
        match=f"{call} called on unbuilt TPUEmbedding object. Please either "
        "call enqueue first or manually call the build method",
    ):
        getattr(embedding_of_clicks(), call)(*arguments)


def test_enqueue_unbuilt_where_shapes_are_not_checked():
    embedding = embedding_of_clicks()
    embedding._verify_output_shapes_on_enqueue = False
    with pytest.raises(
        ValueError, match="Configured not to check output shapes"
    ):
        embedding.enqueue({"clicks": tf.constant([1])})
    embedding.build(1)
    embedding.enqueue({"clicks": tf.constant([1])})


def test_apply_gradients_without_a_dequeue():
    embedding = embedding_of_clicks()
    embedding.enqueue({"clicks": tf.constant([1])})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="finds no dequeued batch"
    ):
        embedding.apply_gradients({"clicks": tf.ones([1, 2])})


def test_dequeue_without_an_enqueue_does_not_wait():
    embedding = embedding_of_clicks()
    embedding.enqueue({"clicks": tf.constant([1])}, training=False)
    embedding.dequeue()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="finds nothing enqueued"
    ):
        embedding.dequeue()


# apply_gradients.


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (3.0, "found non-tensor type: .*float.* at path clicks"),
        (np.ones([1, 2]), "found non-tensor type: .*ndarray.* at path clicks"),
        (
            tf.ones([1, 3]),
            r"Found gradient of shape \(1, 3\) at path clicks. Expected shape "
            r"\(1, 2\)",
        ),
        (tf.ones([2]), r"Found gradient of shape \(2,\) at path clicks"),
    ],
)
def test_a_gradient_of_another_type_or_shape(gradient, text):
    embedding = embedding_of_clicks()
    embedding.enqueue({"clicks": tf.constant([1])})
    embedding.dequeue()
    with pytest.raises(ValueError, match=text):
        embedding.apply_gradients({"clicks": gradient})
    assert rows_of(embedding).tolist() == [[1.0, 1.0]] * 4


STRUCTURES = [
    {"likes": tf.constant([1])},
    [tf.constant([1])],
    tf.constant([1]),
    {"clicks": [tf.constant([1])]},
]


@pytest.mark.parametrize("value", STRUCTURES)
@pytest.mark.parametrize("what", ["features", "weights", "gradients"])
def test_a_structure_that_does_not_match(what, value):
    embedding = embedding_of_clicks()
    embedding.enqueue({"clicks": tf.ragged.constant([[1]])})
    embedding.dequeue()
    calls = {
        "features": lambda: embedding.enqueue(value),
        "weights": lambda: embedding.enqueue(
            {"clicks": tf.ragged.constant([[1]])}, value
        ),
        "gradients": lambda: embedding.apply_gradients(value),
    }
    with pytest.raises((ValueError, TypeError), match=f"{what} must have"):
        calls[what]()


# enqueue.

RAGGED = tf.ragged.constant([[1], [2]])
SPARSE = RAGGED.to_sparse()
INPUTS = [
    (tf.constant([1]), tf.constant([1.0]), "Weight specified for dense input"),
    (RAGGED, RAGGED.to_sparse(), "Weight for clicks is type .*Sparse.*Ragged"),
    (SPARSE, RAGGED, "Weight for clicks is type .*Ragged.*Sparse"),
    (3, None, "Input clicks is of unknown type"),
    ("text", None, "Input clicks is of unknown type"),
    (object(), None, "Input clicks is of unknown type"),
    (tf.constant(1), None, "Only rank 1 and above dense"),
    (tf.constant([[1, 2]]), None, "should have last dimension as 1"),
    (
        tf.sparse.from_dense(tf.constant([1])),
        None,
        "Only rank 2 and above sparse",
    ),
    (tf.ragged.constant([[[1]]]), None, "Only rank 2 ragged tensor"),
]


@pytest.mark.parametrize(("value", "weights", "text"), INPUTS)
def test_enqueue_an_input_that_cannot_be(value, weights, text):
    weights = None if weights is None else {"clicks": weights}
    with pytest.raises(ValueError, match=text):
        embedding_of_clicks().enqueue({"clicks": value}, weights)


@pytest.mark.parametrize("dtype", [tf.float32, tf.string, tf.bool])
def test_enqueue_ids_that_are_not_integers(dtype):
    value = tf.zeros([1], dtype) if dtype != tf.string else tf.constant(["a"])
    with pytest.raises(TypeError, match="clicks"):
        embedding_of_clicks().enqueue({"clicks": value})


def test_enqueue_for_a_device_without_a_replica():
    with pytest.raises(ValueError, match="TPU:1 passed to enqueue"):
        embedding_of_clicks().enqueue(
            {"clicks": tf.constant([1])}, device="/device:TPU:1"
        )


def test_enqueue_for_a_device_that_is_no_tpu_under_a_tpu_strategy():
    with traced_on_paper(1, embedding_engine=1) as (_, strategy):
        del strategy
        embedding = embedding_of_clicks()
        with pytest.raises(ValueError, match="Non-TPU device /CPU:0 passed"):
            embedding.enqueue({"clicks": tf.constant([1])}, device="/CPU:0")


@pytest.mark.parametrize("device", [1, "banana"])
def test_enqueue_for_what_is_no_device(device):
    with pytest.raises(ValueError, match=f"`device` must be.*{device}"):
        embedding_of_clicks().enqueue(
            {"clicks": tf.constant([1])}, device=device
        )


def test_errors_name_a_feature_by_its_place():
    table = tfembed.TableConfig(4, 2, name="t")
    embedding = tfembed.TPUEmbedding(
        {"clicks": tfembed.FeatureConfig(table, name="other")},
        tfembed.SGD(1.0),
    )
    with pytest.raises(ValueError, match="for input clicks"):
        embedding.enqueue({"clicks": tf.zeros([2, 5], tf.int64)})


@pytest.mark.parametrize(
    ("gradients", "error", "text"),
    [
        ({"clicks": 3}, ValueError, "found non-tensor type: .*int.*clicks"),
        ({"clicks": tf.ones([1, 3])}, ValueError, "Expected shape"),
        (
            {"clicks": tf.zeros([1, 2], tf.complex64)},
            TypeError,
            "complex64.*cl",
        ),
        ([3], TypeError, "gradients must have"),
    ],
)
def test_a_wrong_gradient_is_told_before_anything_was_enqueued(
    gradients, error, text
):
    embedding = embedding_of_clicks()
    embedding.build(1)
    with pytest.raises(error, match=text):
        embedding.apply_gradients(gradients)


# Configs. Optimizers are in tests/optimizers, all configs in tests/config.


@pytest.mark.parametrize(
    "arguments",
    [
        {"vocabulary_size": np.int64(4)},
        {"vocabulary_size": 0},
        {"dim": 0},
        {"dim": 2.0},
        {"initializer": 1.0},
        {"combiner": "max"},
        {"combiner": 3},
        {"dtype": tf.float64},
    ],
)
def test_a_table_config_that_cannot_be(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        tfembed.TableConfig(**{"vocabulary_size": 4, "dim": 2, **arguments})


def test_a_table_config_without_a_vocabulary_is_exempt():
    assert tfembed.TableConfig(None, 2).vocabulary_size is None


def test_a_feature_config_is_checked_in_tensorflows_order():
    """Table, length, output shape, validation."""
    wrong = {
        "table": (3, "table"),
        "max_sequence_length": (-1, "max_sequence_length"),
        "output_shape": ("text", "."),
        "validate_weights_and_indices": (1, "validate_weights"),
    }
    right = {"table": tfembed.TableConfig(4, 2)}
    for i, name in enumerate(wrong):
        later = {n: value for n, (value, _) in list(wrong.items())[i:]}
        with pytest.raises((ValueError, TypeError), match=wrong[name][1]):
            tfembed.FeatureConfig(**{**right, **later})
