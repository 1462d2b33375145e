"""TPUEmbeddingV0(engine="xla") under a TPUStrategy: rows spread over replicas."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from embedding.xla import spread_tables
from proof import v0_traces
from proof.paper_tpu import eager_on_paper
from tfembed import errors

pytestmark = NEEDS_XLA


@pytest.mark.parametrize("name", spread_tables.OPTIMIZERS)
def test_a_step_of_any_optimizer_sums_rows_by_the_exchange_alone(name):
    operations = v0_traces.trace_v0(
        spread_tables.REPLICAS,
        training=True,
        optimizer=spread_tables.OPTIMIZERS[name],
    )

    assert v0_traces.check_v0(operations, True, spread_tables.REPLICAS)


@pytest.mark.parametrize("replicas", [2, 8])
def test_evaluation_only_looks_up(replicas):
    operations = v0_traces.trace_v0(replicas, training=False)

    assert v0_traces.check_v0(operations, False, replicas)


def test_a_step_of_tf_keras_is_traced():
    tf_keras = pytest.importorskip("tf_keras")
    operations = v0_traces.trace_v0(
        spread_tables.REPLICAS,
        training=True,
        optimizer=tf_keras.optimizers.Adagrad,
    )

    assert v0_traces.check_v0(operations, True, spread_tables.REPLICAS)


def test_gradients_are_slices_of_this_replicas_ids():
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    found = []

    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(x) for x in spread_tables.look_up(embedding)]
            )
        found.extend(tape.gradient(loss, embedding.trainable_variables))

    spread_tables.trace(strategy, step)

    for slices, table, ids in zip(
        found, embedding.trainable_variables, (3, 6, 6), strict=True
    ):
        assert isinstance(slices, tf.IndexedSlices)
        assert tf.get_static_value(slices.dense_shape).tolist() == table.shape
        assert slices.indices.shape == [ids]
        assert slices.values.shape == [ids, table.shape[1]]


def test_lookups_in_a_nested_function_have_gradients():
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    found = []

    @tf.function
    def model():
        return tf.reduce_sum(spread_tables.look_up(embedding)[0])

    def step():
        with tf.GradientTape() as tape:
            loss = model() + model()
        (users, items, narrow) = tape.gradient(
            loss, embedding.trainable_variables
        )
        found.append(users)
        # What does not reach the loss has no gradient, or one of zeros.
        assert items is None or isinstance(items, tf.IndexedSlices)
        assert narrow is None or isinstance(narrow, tf.IndexedSlices)

    spread_tables.trace(strategy, step)

    assert found[0].values.shape[1] == 8


@pytest.mark.parametrize(
    "name",
    [
        *("keras sgd", "keras adagrad", "v1 adagrad", "v1 momentum"),
        *("legacy adagrad", "legacy adam"),
    ],
)
@pytest.mark.parametrize("is_built", [False, True])
def test_an_optimizer_alone_is_refused(name, is_built):
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    with strategy.scope():
        optimizer = spread_tables.OPTIMIZERS[name]()
        if is_built and hasattr(optimizer, "build"):
            optimizer.build([tf.Variable(1.0)])

    def step():
        variables = embedding.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(x) for x in spread_tables.look_up(embedding)]
            )
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    with pytest.raises(
        errors.UnsupportedError, match=r"embedding\.apply_optimizer"
    ):
        spread_tables.trace(strategy, step)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: keras.optimizers.SGD(clipnorm=1.0), "clipnorm"),
        (lambda: keras.optimizers.SGD(global_clipnorm=1.0), "global_clipnorm"),
        (lambda: keras.optimizers.SGD(clipvalue=1.0), "clipvalue"),
        (lambda: keras.optimizers.SGD(use_ema=True), "use_ema"),
        (keras.optimizers.Lamb, "norms"),
        (
            lambda: tfembed.dynamic_embedding.DynamicEmbeddingOptimizer(
                keras.optimizers.Adagrad()
            ),
            "that it was made of",
        ),
        (keras.optimizers.Adafactor, "rows and columns"),
    ],
)
def test_what_is_not_row_by_row_is_refused(make, text):
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    with strategy.scope():
        optimizer = make()

    with pytest.raises(errors.UnsupportedError, match=text):
        embedding.build_optimizer(optimizer)


def test_calls_outside_of_the_step_say_where_they_belong():
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    (table, *_) = embedding.trainable_variables
    gradient = tf.IndexedSlices(tf.ones([1, 8]), tf.constant([1]))
    with strategy.scope():
        optimizer = keras.optimizers.SGD()

    with pytest.raises(errors.StateError, match="inside of strategy.run"):
        spread_tables.look_up(embedding)
    with pytest.raises(errors.StateError, match="inside of strategy.run"):
        embedding.apply_optimizer(optimizer, [(gradient, table)])


def test_gradients_that_cannot_be_applied_are_refused():
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding, other = (
        spread_tables.embedding(strategy),
        spread_tables.embedding(strategy),
    )
    (table, *_) = embedding.trainable_variables
    slices = tf.IndexedSlices(tf.ones([1, 8]), tf.constant([1]))
    with strategy.scope():
        optimizer = keras.optimizers.SGD()
    cases = {
        "tf.IndexedSlices by id": [(tf.ones([10, 8]), table)],
        "comes twice": [(slices, table)] * 2,
        "another object": [(slices, other.trainable_variables[0])],
        "No variable has a gradient": [(None, table)],
    }
    for text, pairs in cases.items():
        with pytest.raises(errors.ArgumentError, match=text):
            spread_tables.trace(
                strategy,
                lambda pairs=pairs: embedding.apply_optimizer(optimizer, pairs),
            )
    with pytest.raises(errors.ArgumentError, match=r"tfembed\.optimizers"):
        embedding.apply_optimizer(tfembed.SGD(0.1), [(slices, table)])


def test_engines_are_described_and_one_replica_needs_no_exchange():
    strategy = eager_on_paper(spread_tables.REPLICAS)
    assert (
        "spread over the replicas"
        in spread_tables.embedding(strategy).describe()
    )
    replicated = spread_tables.embedding(strategy, engine="auto")
    assert "users   replicated  a TPUStrategy" in replicated.describe()
    assert isinstance(replicated.trainable_variables[0], tf.Variable)
    assert replicated.exchange_rounds() == {}
    alone = spread_tables.embedding(eager_on_paper(1))
    assert isinstance(alone.trainable_variables[0], tf.Variable)
    assert spread_tables.embedding(strategy).exchange_rounds() == {
        ("users", "items"): 0,
        ("narrow",): 0,
    }


@pytest.mark.parametrize("engine", ["host", "xla"])
@pytest.mark.parametrize(
    "name", ["keras adagrad", "v1 momentum", "legacy adagrad"]
)
def test_elsewhere_a_step_is_the_optimizers_own(engine, name):
    moved = []
    for by_embedding in (True, False):
        config = tfembed.FeatureConfig(
            tfembed.TableConfig(5, 2, tf.ones_initializer(), name="users")
        )
        embedding = tfembed.TPUEmbeddingV0(config, None, engine=engine)
        optimizer, weight = (
            spread_tables.OPTIMIZERS[name](),
            tf.Variable([2.0, 3.0]),
        )
        variables = [*embedding.trainable_variables, weight]
        if by_embedding:
            embedding.build_optimizer(optimizer, [weight])
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding(tf.constant([1, 3])) * weight)
            gradients = tape.gradient(loss, variables)
            pairs = zip(gradients, variables, strict=True)
            if by_embedding:
                embedding.apply_optimizer(optimizer, pairs)
            else:
                optimizer.apply_gradients(pairs)
        moved.append([variable.numpy() for variable in variables])
    for one, other in zip(*moved, strict=True):
        np.testing.assert_array_equal(one, other)
    touched = (moved[0][0] != 1).any(1)
    assert touched.tolist() == [False, True, False, True, False]


def test_slots_that_others_make_cannot_be_spread():
    optimizer = tfembed.Adagrad(
        0.1, slot_variable_creation_fn=lambda table, names, starts: {}
    )
    with pytest.raises(errors.UnsupportedError, match="users.*slot_variable"):
        spread_tables.embedding(
            eager_on_paper(spread_tables.REPLICAS), optimizer
        )
