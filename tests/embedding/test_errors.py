"""Every wrong call ends in an error that names the thing, before a change."""

from __future__ import annotations

import copy
import pickle

import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding


def _embedding(**feature):
    table = tfembed.TableConfig(8, 2, name="users")
    config = {"clicks": tfembed.FeatureConfig(table, **feature)}
    return tfembed.TPUEmbedding(config, tfembed.SGD(0.1))


def _dense(*ids):
    return {"clicks": tf.constant(ids, tf.int64)}


def _ragged(rows):
    return {"clicks": tf.ragged.constant(rows, dtype=tf.int64)}


def _sparse(rows):
    return {"clicks": _ragged(rows)["clicks"].to_sparse()}


def test_an_unknown_optimizer_is_refused():
    table = tfembed.TableConfig(8, 2, name="users")
    with pytest.raises(errors.ArgumentError, match="unsupported optimizer"):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), "sgd")
    assert table.optimizer is None


def test_a_name_used_twice_is_refused_and_nothing_is_written():
    tables = [tfembed.TableConfig(8, 2, name=n) for n in ("users", None)]
    tables.append(tfembed.TableConfig(8, 2, name="users"))
    with pytest.raises(errors.ArgumentError, match="with name users found"):
        tfembed.TPUEmbedding([tfembed.FeatureConfig(t) for t in tables])
    assert tables[1].name is None


def test_names_and_optimizers_are_filled_in():
    tables = [tfembed.TableConfig(8, 2), tfembed.TableConfig(8, 2)]
    sgd = tfembed.SGD(0.1)
    tfembed.TPUEmbedding([tfembed.FeatureConfig(t) for t in tables], sgd)
    assert [t.name for t in tables] == ["table_0", "table_1"]
    assert [t.optimizer for t in tables] == [sgd, sgd]


@pytest.mark.parametrize("config", [[], {"clicks": 3}, "clicks"])
def test_a_structure_without_feature_configs_is_refused(config):
    with pytest.raises(errors.ArgumentError, match="feature_config"):
        tfembed.TPUEmbedding(config)


@pytest.mark.skipif(
    not hasattr(THEIRS, "CustomCombiner"), reason="no dtype before 2.17"
)
def test_what_tensorflows_tables_ask_for_and_we_lack_is_named():
    table = THEIRS.TableConfig(8, 2, name="users", dtype=tf.int32)
    with pytest.raises(errors.UnsupportedError, match="'users'"):
        tfembed.TPUEmbedding(THEIRS.FeatureConfig(table))


WRONG_INPUTS = [
    (
        {"likes": tf.constant([1])},
        ValueError,
        r"features must have .*Missing: \['clicks'\]. Not .*: \['likes'\]",
    ),
    (
        {"clicks": tf.constant([1]), "label": tf.constant([1])},
        ValueError,
        r"of feature_config. Not among the features: \['label'\]",
    ),
    ([tf.constant([1])], (ValueError, TypeError), "features must have"),
    (
        {"clicks": [tf.constant([1]), tf.constant([2])]},
        (ValueError, TypeError),
        r"features must have .*Not among the features: \['clicks/0', 'clicks/1'",
    ),
    ({"clicks": 3}, errors.ArgumentError, "clicks is of unknown type.*int"),
    ({"clicks": tf.constant(["a"])}, errors.DtypeError, "clicks.*string"),
    ({"clicks": tf.constant([1.5])}, errors.DtypeError, "clicks.*float32"),
    ({"clicks": tf.constant(1)}, errors.ArgumentError, "Only rank 1.*clicks"),
    (
        {"clicks": tf.constant([[1, 2]])},
        errors.ArgumentError,
        "last dimension as 1.*clicks",
    ),
]


@pytest.mark.parametrize(("features", "error", "text"), WRONG_INPUTS)
def test_a_wrong_input_is_refused_and_nothing_is_enqueued(
    features, error, text
):
    embedding = _embedding()
    with pytest.raises(error, match=text):
        embedding.enqueue(features)
    assert not embedding._built


WRONG_WEIGHTS = [
    (_dense(1), _dense(1), errors.ArgumentError, "dense input clicks"),
    (
        _sparse([[1]]),
        {"clicks": tf.ragged.constant([[1.0]])},
        errors.ArgumentError,
        "clicks.*RaggedTensor.*SparseTensor",
    ),
    (
        _ragged([[1]]),
        {"clicks": tf.constant([[1.0]])},
        errors.ArgumentError,
        "clicks.*Tensor.*RaggedTensor",
    ),
    (
        _ragged([[1]]),
        {"clicks": tf.ragged.constant([["a"]])},
        errors.DtypeError,
        "weights of input clicks.*string",
    ),
    (_ragged([[1]]), [None], (ValueError, TypeError), "weights must have"),
]


@pytest.mark.parametrize(
    ("features", "weights", "error", "text"), WRONG_WEIGHTS
)
def test_wrong_weights_are_refused(features, weights, error, text):
    with pytest.raises(error, match=text):
        _embedding().enqueue(features, weights)


def test_another_batch_size_than_was_given_is_refused_and_the_first_goes_on():
    embedding = _embedding()
    embedding.build(per_replica_batch_size=2)
    embedding.enqueue(_dense(1, 2))
    with pytest.raises(errors.ArgumentError, match="Inconsistent.*clicks"):
        embedding.enqueue(_dense(1, 2, 3))
    assert embedding.dequeue()["clicks"].shape == [2, 2]


def test_an_unknown_batch_size_must_be_given_to_build_and_is_then_checked():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def look_up(ids):
        embedding.enqueue({"clicks": ids}, training=False)
        return embedding.dequeue()

    embedding = _embedding()
    with pytest.raises(errors.ArgumentError, match="not fully defined"):
        look_up(tf.constant([1, 2], tf.int64))
    embedding.build(per_replica_batch_size=2)
    assert look_up(tf.constant([1, 2], tf.int64))["clicks"].shape == [2, 2]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="clicks must have 2 samples"
    ):
        look_up(tf.constant([1, 2, 3], tf.int64))


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"clicks": tf.TensorShape([4, None, 2])}, "clicks.*not fully defined"),
        ({"clicks": tf.TensorShape([])}, "Rank must be 1"),
    ],
)
def test_build_refuses_shapes_that_cannot_be(shapes, text):
    embedding = _embedding()
    with pytest.raises(errors.ArgumentError, match=text):
        embedding.build(shapes)
    assert not embedding._built


@pytest.mark.parametrize("given", [{"clicks": tf.TensorShape([2, None])}, 2])
def test_build_settles_the_shapes(given):
    embedding = _embedding(max_sequence_length=3)
    embedding.build(given)
    embedding.enqueue(_ragged([[1], [2, 3]]))
    assert embedding.dequeue()["clicks"].shape == [2, 3, 2]
    with pytest.raises(errors.ArgumentError, match="Inconsistent.*clicks"):
        embedding.enqueue(_ragged([[1], [2, 3], []]))


@pytest.mark.parametrize("call", ["dequeue", "apply_gradients"])
def test_calls_before_build_say_what_to_do(call):
    arguments = [] if call == "dequeue" else [{"clicks": None}]
    embedding = _embedding()
    with pytest.raises(errors.StateError, match=f"{call} called on unbuilt"):
        getattr(embedding, call)(*arguments)
    embedding.build()
    with pytest.raises(errors.StateError, match="Nothing was enqueued"):
        getattr(embedding, call)(*arguments)


OUT_OF_RANGE = [
    (_dense(1, 8), "8"),
    (_dense(-1, 1), "-1"),
    (_ragged([[8]]), "8"),
]


@pytest.mark.parametrize(("features", "text"), OUT_OF_RANGE)
@pytest.mark.parametrize("in_function", [False, True])
def test_an_id_outside_of_a_static_table_is_named(features, text, in_function):
    embedding = _embedding()
    embedding.enqueue(features)
    look_up = (
        tf.function(embedding.dequeue) if in_function else embedding.dequeue
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"clicks.*{text}"):
        look_up()
    # The bad batch is gone: the next one is looked up.
    embedding.enqueue(tf.nest.map_structure(tf.zeros_like, features))
    assert look_up()["clicks"].shape[1:] == [2]


@pytest.mark.parametrize("copy", [copy.deepcopy, pickle.dumps])
def test_an_embedding_cannot_be_copied(copy):
    with pytest.raises(errors.StateError, match=r"tf\.train\.Checkpoint"):
        copy(_embedding())
