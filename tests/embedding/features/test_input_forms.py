"""Inputs of several types under one name."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from tfembed import errors
from tfembed.embedding.steps import eager_calls

RAGGED = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 2, 3])
INPUTS = {
    "ragged": RAGGED,
    "sparse": RAGGED.to_sparse(),
    "dense": tf.constant([[1], [3]], tf.int64),
}
# What each of them looks up where row i is [i].
FOUND = {"ragged": [3, 3], "sparse": [3, 3], "dense": [1, 3]}
DENSE, SPARSE = INPUTS["dense"], INPUTS["sparse"]


def embedding(**options):
    table = tfembed.TableConfig(
        5,
        1,
        name="t",
        combiner="sum",
        initializer=lambda shape, dtype: tf.reshape(
            tf.range(5, dtype=dtype), shape
        ),
    )
    feature = tfembed.FeatureConfig(table, name="f")
    return tfembed.TPUEmbedding([feature], tfembed.SGD(1.0), **options)


def table(made):
    return next(iter(made.embedding_tables.values())).numpy()[:, 0].tolist()


def values(activations):
    return activations[0].numpy()[:, 0].tolist()


def train(made, inputs):
    made.enqueue([inputs])
    activations = made.dequeue()
    made.apply_gradients([tf.ones_like(one) for one in activations])
    return activations


def evaluate(made, inputs):
    made.enqueue([inputs], training=False)
    return made.dequeue()


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("first", INPUTS)
@pytest.mark.parametrize("second", INPUTS)
def test_one_type_trains_and_another_one_evaluates(first, second, in_function):
    made = embedding()

    def learn(inputs):
        return train(made, inputs)

    def look(inputs):
        return evaluate(made, inputs)

    if in_function:
        learn, look = tf.function(learn), tf.function(look)
    rows = np.arange(5.0)
    for _ in range(3):
        assert values(look(INPUTS[second])) == _found(second, rows)
        assert values(learn(INPUTS[first])) == _found(first, rows)
        for ids in _ids(first):
            rows[ids] -= 1
        assert table(made) == rows.tolist()


def test_both_types_train_the_same_table():
    made = embedding()
    for inputs in (SPARSE, DENSE, SPARSE):
        train(made, inputs)
    # 1, 2, 3; then 1, 3; then 1, 2, 3.
    assert table(made) == [0, -2, 0, 0, 4]


def test_eager_batches_come_in_the_order_in_which_they_were_enqueued():
    made = embedding()
    order = ["ragged", "dense", "dense", "sparse", "ragged"]
    for name in order:
        made.enqueue([INPUTS[name]], training=False)
    assert [values(made.dequeue()) for _ in order] == [FOUND[n] for n in order]
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing enq"):
        made.dequeue()


def test_batches_come_in_order_inside_of_a_function():
    made = embedding()

    @tf.function
    def look():
        made.enqueue([SPARSE], training=False)
        made.enqueue([DENSE], training=False)
        return made.dequeue(), made.dequeue()

    assert [values(one) for one in look()] == [FOUND["sparse"], FOUND["dense"]]


def test_a_loop_takes_what_was_enqueued_around_it():
    made = embedding()
    evaluate(made, DENSE)

    @tf.function
    def look():
        made.enqueue([SPARSE], training=False)
        total = tf.zeros([2, 1])
        for _ in tf.range(1):
            total += made.dequeue()[0]
        return [total]

    assert values(look()) == FOUND["sparse"]


def test_batches_that_a_function_took_are_not_waited_for():
    made = embedding()

    look = tf.function(made.dequeue)

    made.enqueue([DENSE], training=False)
    assert values(look()) == FOUND["dense"]
    made.enqueue([SPARSE], training=False)
    assert values(made.dequeue()) == FOUND["sparse"]


def test_calls_of_which_the_batch_is_not_known_are_refused():
    made = embedding()
    evaluate(made, DENSE)
    made.enqueue([SPARSE])

    look = tf.function(made.dequeue)

    @tf.function
    def learn():
        made.apply_gradients([tf.ones([2, 1])])

    with pytest.raises(errors.StateError, match="Call enqueue in the same"):
        look()
    made.dequeue()
    with pytest.raises(errors.StateError, match="Call dequeue in the same"):
        learn()
    made.apply_gradients([tf.ones([2, 1])])
    assert table(made) == [0, 0, 1, 2, 4]


def test_a_gradient_that_is_refused_can_be_given_again():
    made = embedding()
    evaluate(made, DENSE)
    made.enqueue([SPARSE])
    made.dequeue()
    with pytest.raises(errors.ArgumentError):
        made.apply_gradients([tf.ones([3, 1])])
    made.apply_gradients([tf.ones([2, 1])])
    assert table(made) == [0, 0, 1, 2, 4]


def test_reset_steps_forgets_all_types():
    made = embedding()
    for inputs in (DENSE, SPARSE, DENSE):
        made.enqueue([inputs])
    made.reset_steps()
    made.enqueue([SPARSE], training=False)
    made.enqueue([DENSE], training=False)
    assert values(made.dequeue()) == FOUND["sparse"]
    assert values(made.dequeue()) == FOUND["dense"]


def test_names_have_types_of_their_own():
    made = embedding()
    made.enqueue([SPARSE], name="a", training=False)
    made.enqueue([DENSE], name="b", training=False)
    made.enqueue([DENSE], name="a", training=False)
    assert values(made.dequeue("b")) == FOUND["dense"]
    assert values(made.dequeue("a")) == FOUND["sparse"]
    assert values(made.dequeue("a")) == FOUND["dense"]


def test_eager_calls_that_became_functions_tell_the_types_apart(monkeypatch):
    monkeypatch.setattr(eager_calls, "_AS_THEY_ARE", 1)
    made = embedding()
    rows = np.arange(5.0)
    for i in range(12):
        name = ("sparse", "dense", "ragged")[i % 3]
        assert values(evaluate(made, DENSE)) == _found("dense", rows)
        assert values(train(made, INPUTS[name])) == _found(name, rows)
        for ids in _ids(name):
            rows[ids] -= 1
    assert table(made) == rows.tolist()
    made.enqueue([DENSE], training=False)
    made.enqueue([SPARSE], training=False)
    assert values(made.dequeue()) == _found("dense", rows)
    assert values(made.dequeue()) == _found("sparse", rows)


def test_two_replicas_may_have_two_types_in_turn():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        made = embedding()

    @tf.function
    def step(inputs, training):
        def replica():
            made.enqueue([inputs], training=training)
            activations = made.dequeue()
            if training:
                made.apply_gradients([tf.ones_like(activations[0])])
            return activations[0]

        return strategy.run(replica)

    for inputs in (SPARSE, DENSE):
        step(inputs, True)
        step(DENSE, False)
    assert table(made) == [0, -3, 0, -1, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_execution_with_tensor_core": True},
        pytest.param({"engine": "xla"}, marks=NEEDS_XLA),
    ],
)
def test_what_keeps_to_one_type_refuses_another_unless_its_name_is_another(
    options,
):
    made = embedding(**options)
    evaluate(made, SPARSE)
    text = "is a RaggedTensor.*was enqueued as a SparseTensor"
    with pytest.raises(errors.ArgumentError, match=text):
        made.enqueue([RAGGED])
    made.enqueue([RAGGED], name="evaluation")
    assert values(made.dequeue("evaluation")) == FOUND["ragged"]


def _ids(name):
    return [1, 3] if name == "dense" else [1, 2, 3]


def _found(name, rows):
    if name == "dense":
        return [rows[1], rows[3]]
    return [rows[1] + rows[2], rows[3]]


def test_each_type_has_room_for_as_many_batches_and_they_stay_in_order():
    made = embedding(max_enqueued=1, enqueue_timeout=0.0)
    order = ["ragged", "dense", "sparse"]
    for name in order:
        made.enqueue([INPUTS[name]], training=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_enqueued"):
        made.enqueue([DENSE], training=False)
    assert [values(made.dequeue()) for _ in order] == [FOUND[n] for n in order]


def test_a_batch_that_a_function_took_does_not_stand_for_a_later_one():
    made = embedding()

    look = tf.function(made.dequeue)

    made.enqueue([DENSE], training=False)
    assert values(look()) == FOUND["dense"]
    made.enqueue([SPARSE], training=False)
    made.enqueue([DENSE], training=False)
    assert values(made.dequeue()) == FOUND["sparse"]
    assert values(made.dequeue()) == FOUND["dense"]


def test_batches_that_functions_enqueued_have_no_known_place():
    made = embedding()

    @tf.function
    def put(inputs):
        made.enqueue([inputs], training=False)

    put(DENSE)
    put(SPARSE)
    with pytest.raises(errors.StateError, match="Call enqueue in the same"):
        made.dequeue()


def test_a_dequeue_that_is_refused_leaves_batches_in_their_order():
    made = embedding()
    for inputs in (DENSE, DENSE, SPARSE):
        made.enqueue([inputs])
    first = made.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError, match="apply_grad"):
        made.dequeue()
    made.apply_gradients([tf.ones_like(one) for one in first])
    assert table(made) == [0, 0, 2, 2, 4]
    assert values(made.dequeue()) == [0, 2]
    made.apply_gradients([tf.zeros_like(one) for one in first])
    assert values(made.dequeue()) == [2, 2]


def test_a_batch_of_another_type_does_not_take_the_gradients_of_one():
    made = embedding()
    made.enqueue([DENSE])
    made.enqueue([SPARSE])
    first = made.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError, match="apply_grad"):
        made.dequeue()
    made.apply_gradients([tf.ones_like(one) for one in first])
    assert table(made) == [0, 0, 2, 2, 4]
    assert values(made.dequeue()) == [2, 2]
