"""TPUEmbedding's methods have TensorFlow's signatures and results."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import counting, marks
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding


# __init__


@marks.REPLICAS
def test_the_strategy_in_scope_is_the_embeddings():
    strategy = counting.mirrored()
    embedding = counting.embedding(strategy)
    embedding.enqueue({"clicks": tf.constant([1])})
    strategy.run(lambda: counting.count(embedding))
    assert counting.moved(embedding) == [0, 2, 0, 0]


def test_a_single_feature_config_is_a_structure():
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(counting.table()), tfembed.SGD(1.0)
    )
    embedding.enqueue(tf.constant([1, 2]))
    assert embedding.dequeue().shape == [2, 2]


def test_features_may_be_any_structure_of_tf_nest():
    features = [tfembed.FeatureConfig(counting.table()) for _ in range(1)]
    config = {"b": (features[0], [features[0]]), "a": features[0]}
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.enqueue(tf.nest.map_structure(lambda _: tf.constant([1]), config))
    tf.nest.assert_same_structure(config, embedding.dequeue())


def test_tables_are_deduplicated_by_identity_in_order_of_first_occurrence():
    """The flat structure, in which the keys of dicts are sorted."""
    tables = [counting.table(name) for name in ("zebra", "ant", "bee")]
    config = {
        "z": tfembed.FeatureConfig(tables[2]),
        "a": [
            tfembed.FeatureConfig(tables[0]),
            tfembed.FeatureConfig(tables[1]),
        ],
        "m": tfembed.FeatureConfig(tables[0]),
    }
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    assert embedding._table_config == tables
    assert list(embedding.embedding_tables) == tables


@pytest.mark.parametrize("configs", [tfembed, THEIRS], ids=["ours", "theirs"])
def test_the_table_config_gets_the_global_optimizer_and_a_name(configs):
    own = configs.SGD(0.5)
    tables = [
        configs.TableConfig(4, 2),
        configs.TableConfig(4, 2, name="named", optimizer=own),
        configs.TableConfig(4, 2),
    ]
    default = configs.SGD(1.0)
    tfembed.TPUEmbedding([configs.FeatureConfig(t) for t in tables], default)
    assert [t.name for t in tables] == ["table_0", "named", "table_2"]
    assert [t.optimizer for t in tables] == [default, own, default]


def test_callable_learning_rates_are_deduplicated_in_table_order():
    def one():
        return 1.0

    def two():
        return 0.5

    tables = [
        counting.table(name, optimizer=tfembed.SGD(rate))
        for name, rate in (("a", two), ("b", one), ("c", two), ("d", 0.1))
    ]
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(t) for t in tables], None
    )
    assert embedding._dynamic_learning_rates == [two, one]
    counting.train(embedding, [tf.constant([1])] * 4)
    moved = [-t.numpy()[1, 0] for t in embedding.embedding_tables.values()]
    np.testing.assert_allclose(moved, [0.5, 1.0, 0.5, 0.1])


# build


def test_build_is_idempotent():
    embedding = counting.embedding()
    embedding.build(per_replica_batch_size=3)
    (table,) = embedding.embedding_tables.values()
    embedding.build(per_replica_batch_size=5)
    assert next(iter(embedding.embedding_tables.values())) is table
    assert embedding._output_shapes == [tf.TensorShape([3])]


@pytest.mark.parametrize("size", [3, np.int64(3)])
def test_build_takes_an_int_as_shapes_for_the_batch_size_and_warns(
    caplog, size
):
    embedding = counting.embedding()
    with caplog.at_level(logging.WARNING, logger="tfembed"):
        embedding.build(size)
    assert "per_replica_input_shapes=3" in caplog.text
    assert embedding._output_shapes == [tf.TensorShape([3])]


def test_a_table_without_a_name_warns_and_says_what_it_will_be_called(caplog):
    with caplog.at_level(logging.WARNING, logger="tfembed"):
        table = tfembed.TableConfig(4, 2)
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), None)
    assert caplog.text.count("without a name is named by its position") == 1
    assert table.name == "table_0"


def test_a_warning_sets_no_handler_that_repeats_tensorflows_lines(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])

    tfembed.TableConfig(4, 2)

    # TensorFlow's logger has one of its own, and hands lines on to the root's.
    assert logging.root.handlers == []


def test_enqueue_builds_inside_of_a_function():
    embedding = counting.embedding()

    @tf.function
    def step():
        return counting.train(embedding, {"clicks": tf.constant([1])})

    assert not embedding._built
    step()
    step()
    assert embedding._built
    assert counting.moved(embedding) == [0, 2, 0, 0]


@pytest.mark.parametrize("training", [0, np.bool_(False), tf.constant(False)])
def test_what_is_false_means_no_training(training):
    embedding = counting.embedding(pipeline_execution_with_tensor_core=True)
    counting.train(embedding, {"clicks": tf.constant([1])})
    embedding.enqueue({"clicks": tf.constant([1])}, training=training)
    # Which applies the update that waits.
    assert embedding.dequeue()["clicks"].numpy().tolist() == [[-1.0, -1.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="training=False"):
        embedding.apply_gradients({"clicks": tf.ones([1, 2])})


# dequeue


def test_dequeue_has_the_structure_of_the_features_and_output_shape_and_dim():
    table = counting.table()
    config = {
        "one": tfembed.FeatureConfig(table),
        "more": [tfembed.FeatureConfig(table, max_sequence_length=3)],
    }
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    ragged = tf.ragged.constant([[1], [2, 2]], dtype=tf.int64)
    embedding.enqueue({"one": ragged, "more": [ragged]})
    shapes = tf.nest.map_structure(
        lambda a: a.shape.as_list(), tf.function(embedding.dequeue)()
    )
    assert shapes == {"one": [2, 2], "more": [[2, 3, 2]]}


# apply_gradients


def test_a_gradient_of_none_is_zero_and_warns(caplog):
    embedding = counting.embedding()
    embedding.enqueue({"clicks": tf.constant([1])})
    embedding.dequeue()
    with caplog.at_level(logging.WARNING, logger="tfembed"):
        embedding.apply_gradients({"clicks": None})
    assert "may not be correct behavior for certain optimizers like Adam" in (
        caplog.text
    )
    assert counting.moved(embedding) == [0] * 4


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_gradients_are_cast_to_float32(dtype):
    embedding = counting.embedding()
    embedding.enqueue({"clicks": tf.constant([1])})
    embedding.dequeue()
    embedding.apply_gradients({"clicks": tf.ones([1, 2], dtype)})
    assert counting.moved(embedding) == [0, 1, 0, 0]


def test_callable_rates_are_evaluated_when_gradients_are_applied():
    rate = tf.Variable(1.0)
    embedding = tfembed.TPUEmbedding(
        {"clicks": tfembed.FeatureConfig(counting.table())},
        tfembed.SGD(lambda: rate.read_value()),
    )
    embedding.enqueue({"clicks": tf.constant([1])})
    rate.assign(0.25)
    counting.count(embedding)
    assert counting.moved(embedding) == [0, 0.25, 0, 0]


# embedding_tables


def test_embedding_tables_builds_and_is_keyed_by_table_config():
    table = counting.table()
    embedding = tfembed.TPUEmbedding(tfembed.FeatureConfig(table), None)
    variable = embedding.embedding_tables[table]
    assert embedding._built
    assert (variable.shape, variable.dtype) == ([4, 2], tf.float32)


# What tests and layers read under private names.


def test_the_private_names_are_there():
    table = counting.table()
    feature = tfembed.FeatureConfig(table)
    embedding = tfembed.TPUEmbedding(feature, tfembed.Adagrad(1.0))
    assert not embedding._built
    assert embedding._feature_config is feature
    assert embedding._table_config == [table]
    assert embedding._output_shapes == [tf.TensorShape(None)]
    assert embedding._dynamic_learning_rates == []
    assert list(embedding._variables["users"]) == ["parameters", "accumulators"]
    assert embedding._load_variables() is None
    assert embedding._retrieve_variables() is None
    assert embedding._verify_output_shapes_on_enqueue


# Further cases of the issue.


def test_two_embeddings_in_one_program_do_not_meet():
    one, two = counting.embedding(), counting.embedding()
    one.enqueue({"clicks": tf.constant([1])})
    two.enqueue({"clicks": tf.constant([2])})
    counting.count(two)
    counting.count(one)
    assert (counting.moved(one), counting.moved(two)) == (
        [0, 1, 0, 0],
        [0, 0, 1, 0],
    )


def test_another_strategy_than_its_own_is_refused_by_every_call():
    embedding = counting.embedding()
    embedding.enqueue({"clicks": tf.constant([1])})
    strategy = counting.mirrored()
    calls = [
        lambda: embedding.enqueue({"clicks": tf.constant([1])}),
        embedding.dequeue,
        lambda: embedding.apply_gradients({"clicks": None}),
    ]
    for call in calls:
        with pytest.raises(
            errors.StateError, match="Mirrored.*made under the default strategy"
        ):
            strategy.run(call)
    counting.count(embedding)
    assert counting.moved(embedding) == [0, 1, 0, 0]


@marks.REPLICAS
def test_another_strategy_of_its_own_class_is_told_apart():
    with counting.mirrored().scope():
        embedding = counting.embedding()
    with (
        counting.mirrored().scope(),
        pytest.raises(errors.StateError, match="another MirroredStrategy, but"),
    ):
        embedding.enqueue({"clicks": tf.constant([1])})


def test_a_program_that_enqueues_too_far_ahead_is_told():
    embedding = counting.embedding(max_enqueued=2, enqueue_timeout=0.01)
    for _ in range(2):
        embedding.enqueue({"clicks": tf.constant([1])})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="2 batches.*max_enqueued"
    ):
        embedding.enqueue({"clicks": tf.constant([1])})
    counting.count(embedding)
    assert counting.moved(embedding) == [0, 1, 0, 0]
