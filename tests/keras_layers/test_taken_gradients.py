"""A gradient of DistributedEmbedding moves rows once an optimizer applies it.

The kind: an update that runs where its gradient is taken. Looked at too: other
layers and lookups, whose gradients are slices by key and were right, and
TPUEmbedding, which has `apply_gradients`.
"""

from __future__ import annotations

import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import cpu_replicas
import deleted
import tfembed
from tfembed import errors
from tfembed.embedding.lookups import taken_updates
from tfembed.keras.layers import DistributedEmbedding

IDS = tf.constant([1, 2, 2])
ZEROS = keras.initializers.Zeros()


def _layer(rule=None, **options):
    table = tfembed.TableConfig(None, 2, ZEROS, name="t")
    return DistributedEmbedding(
        tfembed.FeatureConfig(table), rule or tfembed.SGD(1.0), **options
    )


def _rows(layer):
    table = layer.get_embedding_tables()["t"]
    rows, _ = table.lookup(tf.range(5, dtype=tf.int64))
    return rows.numpy()[:, 0].tolist()


def _gradients(layer, ids=IDS):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    return tape.gradient(loss, layer.trainable_variables)


def _optimizer(layer):
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(layer.trainable_variables)
    return optimizer


UNMOVED = [0, 0, 0, 0, 0]
MOVED = [0, -1, -2, 0, 0]


def _taken_by_a_tape(layer):
    return _gradients(layer)


def _returned_by_a_function(layer):
    return tf.function(_gradients)(layer)


def _around_a_function(layer):
    call = tf.function(lambda ids: layer(ids))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(IDS))
    return tape.gradient(loss, layer.trainable_variables)


def _recomputed(layer):
    with tf.GradientTape() as tape:
        call = tf.recompute_grad(lambda ids: layer(ids))
        loss = tf.reduce_sum(call(IDS))
    return tape.gradient(loss, layer.trainable_variables)


WAYS = [
    _taken_by_a_tape,
    _returned_by_a_function,
    _around_a_function,
    _recomputed,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_function", [False, True])
def test_a_gradient_moves_nothing_until_an_optimizer_applies_it(
    way, in_function
):
    layer = _layer()
    optimizer = _optimizer(layer)
    gradients = way(layer)

    assert _rows(layer) == UNMOVED

    def apply(gradients):
        optimizer.apply(gradients, layer.trainable_variables)

    (tf.function(apply) if in_function else apply)(gradients)
    assert _rows(layer) == MOVED
    assert int(optimizer.iterations) == 1


def test_a_step_in_a_function_moves_rows_without_python():
    layer = _layer()
    optimizer = _optimizer(layer)
    runs = []
    layer._shared.taken._hold = lambda update: runs.append(update) or 0

    @tf.function
    def step():
        _gradients(layer, tf.constant([4]))  # For example a saliency map.
        optimizer.apply(_gradients(layer), layer.trainable_variables)

    step()
    step()
    assert _rows(layer) == [0, -2, -4, 0, 0]
    # The gradient that no optimizer got waits, that of the step does not.
    assert len(runs) == 2


def test_gradients_of_inputs_move_nothing():
    layer = _layer()
    head = keras.layers.Dense(1)
    rows = tf.Variable(tf.ones([3, 2]))
    call = tf.function(lambda ids: head(layer(ids) * rows))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(IDS))
    tape.gradient(loss, rows)

    assert _rows(layer) == UNMOVED


def test_gradients_are_added_and_scaled():
    layer = _layer()
    optimizer = _optimizer(layer)
    both = zip(_gradients(layer), _gradients(layer, tf.constant([3])))
    mean = [(one + other) / 2 for one, other in both]
    clipped, norm = tf.clip_by_global_norm([*mean, tf.constant([3.0])], 1.5)
    optimizer.apply(clipped[:1], layer.trainable_variables)

    assert float(norm) == 3  # That of the other gradient.
    np.testing.assert_allclose(_rows(layer), [0, -0.25, -0.5, -0.25, 0])


def test_gradients_are_accumulated_in_variables_of_functions():
    layer = _layer()
    optimizer = _optimizer(layer)
    sums = [tf.Variable(tf.zeros(v.shape)) for v in layer.trainable_variables]

    @tf.function
    def take(ids):
        for total, gradient in zip(sums, _gradients(layer, ids), strict=True):
            total.assign_add(gradient)

    @tf.function
    def apply():
        optimizer.apply(sums, layer.trainable_variables)
        for total in sums:
            total.assign(tf.zeros_like(total))

    take(IDS)
    take(tf.constant([3, 2, 2]))
    assert _rows(layer) == UNMOVED
    apply()
    assert _rows(layer) == [0, -1, -4, -1, 0]
    take(IDS)
    apply()
    assert _rows(layer) == [0, -2, -6, -1, 0]


def test_summed_calls_of_a_step_move_a_row_once():
    layer = _layer(tfembed.Adagrad(1.0, initial_accumulator_value=0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS)) + tf.reduce_sum(layer(IDS))
    gradients = tape.gradient(loss, layer.trainable_variables)
    _optimizer(layer).apply(gradients, layer.trainable_variables)

    moved = [-2 / 4.1**0.5, -4 / 16.1**0.5]
    np.testing.assert_allclose(_rows(layer), [0, *moved, 0, 0], 1e-5)


def test_a_gradient_that_is_applied_at_times_moves_rows_then():
    layer = _layer(tfembed.Momentum(1.0, 0.9))
    optimizer = _optimizer(layer)

    @tf.function
    def step(is_applied):
        gradients = [
            tf.cond(is_applied, lambda g=g: g, lambda g=g: tf.zeros_like(g))
            for g in _gradients(layer)
        ]
        optimizer.apply(gradients, layer.trainable_variables)

    step(tf.constant(True))
    step(tf.constant(False))
    assert _rows(layer) == MOVED  # Momentum would move on by zeros.


class Stepping(keras.Model):
    """A model with a training step of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = keras.layers.Dense(
            1, kernel_initializer=keras.initializers.Constant(0.3)
        )

    def call(self, ids):
        return self.head(self.layer(ids))

    def train_step(self, data):
        ids, targets = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=targets, y_pred=self(ids))
        gradients = tape.gradient(loss, self.trainable_variables)
        tape_of_norms = [tf.norm(g) for g in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "norm": tf.add_n(tape_of_norms)}


class Plain(Stepping):
    train_step = keras.Model.train_step


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"run_eagerly": True},
        {"jit_compile": False, "steps_per_execution": 2},
        {"is_wrapped": True},
    ],
    ids=str,
)
def test_a_train_step_of_ones_own_trains_as_that_of_keras(options):
    def rows(model_class):
        keras.utils.set_random_seed(1)
        layer = _layer("adam")
        model = model_class(layer)
        given = dict(options)
        optimizer = keras.optimizers.Adam(0.1)
        if given.pop("is_wrapped", False):
            optimizer = tfembed.dynamic_embedding.DynamicEmbeddingOptimizer(
                optimizer
            )
        model.compile(optimizer, "mse", **given)
        ids = np.array([1, 2, 2, 3] * 4)
        model.fit(ids, np.ones([16, 1]), 4, epochs=2, verbose=0, shuffle=False)
        return _rows(layer)

    np.testing.assert_allclose(rows(Stepping), rows(Plain), 1e-5)


def test_a_scaled_loss_trains_by_the_gradient_without_the_scale():
    layer = _layer()
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), initial_scale=8.0
    )
    optimizer.build(layer.trainable_variables)
    layer.loss_scale_optimizer = optimizer
    layer._shared.taken._hold = pytest.fail  # No Python runs in the step.

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(layer(IDS)))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)

    step()
    assert _rows(layer) == MOVED


def test_a_function_of_a_loop_of_ones_own_trains_in_fit_too():
    layer = _layer()
    call = tf.function(lambda ids: tf.reduce_sum(layer(ids), 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(IDS))
    tape.gradient(loss, layer.trainable_variables)

    class Calling(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def call(self, ids):
            return call(ids)

    model = Calling()
    model.compile("sgd", "mse")
    model.train_on_batch(IDS, np.ones(3))

    np.testing.assert_allclose(_rows(layer), [0, 2 / 3, 4 / 3, 0, 0], 1e-5)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    "bend",
    [
        tf.sign,
        lambda g: g / tf.norm(g),
        lambda g: g + 1e-3,
        lambda g: g * np.nan,
    ],
)
def test_a_gradient_that_is_no_multiple_is_refused(bend, in_function):
    layer = _layer()
    optimizer = _optimizer(layer)

    def step():
        gradients = [bend(one) for one in _gradients(layer)]
        optimizer.apply(gradients, layer.trainable_variables)

    with pytest.raises(
        (errors.StateError, tf.errors.OpError), match="a sum or a multiple"
    ):
        (tf.function(step) if in_function else step)()
    assert _rows(layer) == UNMOVED


def test_a_gradient_that_its_function_applied_is_refused_outside():
    layer = _layer()
    optimizer = _optimizer(layer)

    @tf.function
    def step():
        gradients = _gradients(layer)
        optimizer.apply(gradients, layer.trainable_variables)
        return gradients

    gradients = step()
    _gradients(layer)  # Waits, and is not taken for that of the function.
    with pytest.raises(errors.StateError, match="applied before"):
        optimizer.apply(gradients, layer.trainable_variables)
    assert _rows(layer) == MOVED


def test_a_gradient_is_applied_once():
    layer = _layer()
    optimizer = _optimizer(layer)
    gradients = _gradients(layer)
    optimizer.apply(gradients, layer.trainable_variables)

    with pytest.raises(errors.StateError, match="applied before"):
        optimizer.apply(gradients, layer.trainable_variables)
    assert _rows(layer) == MOVED


def test_gradients_that_nobody_applies_are_let_go():
    layer = _layer()
    first = _gradients(layer)
    (update,) = layer._shared.taken._held.values()
    ids = weakref.ref(update)
    del update
    for _ in range(taken_updates._MOST_HELD):
        _gradients(layer)

    assert not deleted.holders(ids)
    with pytest.raises(errors.StateError, match="more than 64"):
        _optimizer(layer).apply(first, layer.trainable_variables)


def test_few_large_gradients_wait(monkeypatch):
    layer = _layer()
    size = (
        3 * (8 + 2 * 4) + 8
    )  # Of three ids and rows, and of the batch's size.
    monkeypatch.setattr(taken_updates, "_MOST_BYTES", 2 * size)
    for _ in range(3):
        _gradients(layer)

    held = layer._shared.taken._held.values()
    assert [one.bytes for one in held] == [size, size]


def test_arithmetic_with_the_weight_is_refused():
    layer = _layer()
    (weight,) = layer.trainable_variables
    (gradient,) = _gradients(layer)

    with pytest.raises(errors.UnsupportedError, match="give its gradient"):
        weight.assign_sub(0.1 * gradient)


def test_accumulation_by_the_optimizer_of_a_loop_is_refused():
    layer = _layer()
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer.build(layer.trainable_variables)

    with pytest.raises(errors.UnsupportedError, match="add the gradients up"):
        optimizer.apply(_gradients(layer), layer.trainable_variables)


def test_a_loop_over_replicas_is_told_that_gradients_move_rows():
    strategy = cpu_replicas.mirrored(2)
    with strategy.scope():
        layer = _layer()
        optimizer = _optimizer(layer)

    @tf.function
    def step():
        strategy.run(
            lambda: optimizer.apply(
                _gradients(layer), layer.trainable_variables
            )
        )

    with pytest.warns(UserWarning, match="move when a tape takes"):
        step()
    assert _rows(layer) == [0, -2, -4, 0, 0]


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_goes_with_its_loop(way):
    def train():
        layer = _layer()
        optimizer = _optimizer(layer)
        step = tf.function(
            lambda: optimizer.apply(way(layer), layer.trainable_variables)
        )
        step()
        step()
        assert _rows(layer) == [0, -2, -4, 0, 0]
        return weakref.ref(layer.get_embedding_tables()["t"])

    table = train()
    assert not deleted.holders(table)
