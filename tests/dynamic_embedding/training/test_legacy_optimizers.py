"""Legacy optimizers of tf_keras on tables beside the same on dense variables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.optimizer_makers import legacy
from dynamic_embedding.plain_sgd import wrapped
from tfembed.foreign_optimizers.rules import FusedRule

tf_keras = pytest.importorskip("tf_keras")
L = legacy()
KEYS, DIM = tf.constant([7, -1, 10**12], tf.int64), 2


def is_fused(optimizer):
    return isinstance(wrapped(optimizer).engine._rule, FusedRule)


def gradients(steps=6):
    random = np.random.default_rng(3)
    return random.normal(size=(steps, 2, 3, DIM)).astype(np.float32)


def halves(gradient):
    """By key, each key twice."""
    twice = tf.concat([gradient / 2, gradient / 2], 0)
    return tf.IndexedSlices(twice, tf.concat([KEYS, KEYS], 0))


def check_beside_dense_variables(make, change=lambda optimizer, step: None):
    """Trains a table and a variable, and two variables by the same optimizer."""
    table = de.Variable(dim=DIM, initializer=1.0, devices=["/CPU:0"] * 2)
    rows, other, beside = (tf.Variable(tf.ones([3, DIM])) for _ in range(3))
    optimizer, reference = wrapped(make()), make()
    for step, (gradient, second) in enumerate(gradients()):
        change(optimizer, step)
        change(reference, step)
        optimizer.apply_gradients([(halves(gradient), table), (second, beside)])
        reference.apply_gradients([(gradient, rows), (second, other)])
    np.testing.assert_allclose(table.lookup(KEYS), rows, 1e-5, 1e-6)
    np.testing.assert_allclose(beside, other, 1e-6, 1e-7)
    assert int(optimizer.iterations) == int(reference.iterations) == 6


def schedule():
    return tf_keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


@pytest.mark.parametrize("make", [L.SGD, L.RMSprop, L.Nadam])
@pytest.mark.parametrize(
    "options",
    [
        {"decay": 0.5},
        {"learning_rate": lambda: tf.constant(0.2)},
        {"clipvalue": 0.5},
        {"clipnorm": 0.7},
        {"global_clipnorm": 0.7},
        {"clipvalue": 0.5, "clipnorm": 0.7},
        {"clipvalue": 0.5, "global_clipnorm": 0.7},
    ],
    ids=lambda options: "+".join(options),
)
def test_options_count_as_for_dense_variables(make, options):
    if make is L.Nadam and "decay" in options:
        options = {"schedule_decay": 0.5}
    check_beside_dense_variables(lambda: make(**options))


@pytest.mark.parametrize("make", [L.SGD, L.Adam, L.RMSprop])
def test_schedules_count_steps_as_for_dense_variables(make):
    check_beside_dense_variables(lambda: make(schedule()))
    check_beside_dense_variables(lambda: make(schedule(), decay=0.3))


@pytest.mark.parametrize("make", [L.SGD, L.Adam, L.Adamax])
@pytest.mark.parametrize("name", ["lr", "learning_rate", "clipnorm"])
def test_what_is_set_between_steps_counts_from_then_on(make, name):
    check_beside_dense_variables(
        make, lambda optimizer, step: setattr(optimizer, name, 0.1 / (1 + step))
    )


def test_numbers_that_functions_or_variables_give_are_read_in_each_step():
    beta = tf.Variable(0.5)

    def change(optimizer, step):
        del optimizer
        beta.assign(0.5 + 0.05 * step)

    for options in ({"beta_1": lambda: beta * 0.9}, {"beta_2": beta}):
        check_beside_dense_variables(lambda o=options: L.Adam(0.1, **o), change)


@pytest.mark.parametrize("in_function", [False, True])
def test_what_an_optimizer_keeps_moves_once_a_step_whatever_moves(in_function):
    table = de.Variable(dim=DIM, initializer=1.0)
    rows, beside = (tf.Variable(tf.ones([3, DIM])) for _ in range(2))
    optimizer, reference = wrapped(L.Nadam(0.1)), L.Nadam(0.1)

    def both(gradient):
        optimizer.apply_gradients(
            [(halves(gradient), table), (gradient, beside)]
        )

    def alone(gradient):
        optimizer.apply_gradients([(halves(gradient), table)])

    if in_function:
        both, alone = tf.function(both), tf.function(alone)
    for step, (gradient, _) in enumerate(gradients()):
        (alone if step % 3 == 1 else both)(tf.constant(gradient))
        reference.apply_gradients([(gradient, rows)])
    np.testing.assert_allclose(table.lookup(KEYS), rows, 1e-6)


@pytest.mark.parametrize(
    ("make", "fused"),
    [
        (L.SGD, True),
        (lambda: L.SGD(momentum=0.1), False),
        (L.Adagrad, True),
        (lambda: L.Adagrad(epsilon=1e-3), False),
        (lambda: L.Adagrad(initial_accumulator_value=0.0), False),
        (L.Adam, True),
        (lambda: L.Adam(amsgrad=True), False),
        (L.Ftrl, True),
        (lambda: L.Ftrl(initial_accumulator_value=0.0), False),
        (lambda: type("Adam", (L.Adam,), {})(), False),
    ],
)
def test_formulas_that_tables_have_are_fused(make, fused):
    assert is_fused(make()) == fused


@pytest.mark.parametrize("beta", [0.8, 1 / 3])
def test_an_optimizer_that_has_made_steps_is_wrapped_as_a_new_one_is(beta):
    used = L.Adam(0.1, beta)
    used.apply_gradients([(tf.ones([1]), tf.Variable([1.0]))])
    again = L.Adam.from_config(used.get_config())
    first, *others = (wrapped(o) for o in (used, again, L.Adam(0.2, beta)))
    table = de.Variable(dim=DIM)
    for optimizer in (first, *others):  # One rule, or the table refuses it.
        optimizer.apply_gradients([(halves(tf.ones([3, DIM])), table)])
    assert int(first.iterations) == 2


def test_an_optimizer_of_a_user_runs_its_own_update():
    class Halving(L.SGD):
        def _resource_apply_dense(self, grad, var, apply_state=None):
            return super()._resource_apply_dense(grad / 2, var, apply_state)

    check_beside_dense_variables(lambda: Halving(0.5))


def test_tensorflows_own_copy_is_known_too():
    copies = pytest.importorskip(
        "tensorflow.python.keras.optimizer_v2",
        reason="this TensorFlow has no copy of Keras 2",
    )
    del copies
    from tensorflow.python.keras.optimizer_v2 import adam, nadam

    assert is_fused(adam.Adam())
    check_beside_dense_variables(lambda: adam.Adam(0.1))
    check_beside_dense_variables(lambda: nadam.Nadam(0.1))


def test_slots_are_found_by_name():
    table, dense = de.Variable(dim=DIM), tf.Variable(tf.zeros([3, DIM]))
    optimizer = wrapped(L.Adam(0.1))
    assert optimizer.get_slot(table, "m") is None
    gradient = tf.ones([3, DIM])
    optimizer.apply_gradients([(halves(gradient), table), (gradient, dense)])
    for name in ("m", "v"):
        np.testing.assert_allclose(
            optimizer.get_slot(table, name).params.lookup(KEYS),
            optimizer.get_slot(dense, name),
            rtol=1e-4,
        )
    assert len(optimizer.variables()) == 3


@pytest.mark.parametrize("make", [L.Adam, L.Nadam, L.RMSprop])
def test_a_checkpoint_has_slots_steps_and_numbers(make, tmp_path):
    def build(rate):
        table = de.Variable(dim=DIM, name="t")
        dense = tf.Variable(tf.ones([3, DIM]))
        optimizer = wrapped(make(rate))
        objects = {"table": table, "dense": dense, "optimizer": optimizer}
        return objects, tf.train.Checkpoint(**objects)

    def step(table, dense, optimizer, gradient):
        optimizer.apply_gradients(
            [(halves(gradient), table), (gradient, dense)]
        )

    saved, checkpoint = build(0.1)
    for gradient, _ in gradients():
        step(**saved, gradient=gradient)
    path = checkpoint.save(tmp_path / "c")
    step(**saved, gradient=gradient)

    restored, checkpoint = build(0.7)  # The rate is in the checkpoint.
    checkpoint.restore(path)
    step(**restored, gradient=gradient)

    np.testing.assert_array_equal(
        restored["table"].lookup(KEYS), saved["table"].lookup(KEYS)
    )
    np.testing.assert_array_equal(restored["dense"], saved["dense"])
    assert int(restored["optimizer"].iterations) == 7


class OwnStep(L.SGD):
    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)


class WholeNorm(L.SGD):
    def _resource_apply_dense(self, grad, var, apply_state=None):
        return super()._resource_apply_dense(
            grad / tf.norm(grad), var, apply_state
        )


class RowSlots(L.SGD):
    def _create_slots(self, var_list):
        for var in var_list:
            self.add_slot(var, "norms", shape=[var.shape[0]])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: L.SGD(gradient_transformers=[list]), "gradient_transformers"),
        (lambda: L.SGD(gradient_aggregator=list), "gradient_aggregator"),
        (
            lambda: tf_keras.mixed_precision.LossScaleOptimizer(L.SGD()),
            "wraps another one",
        ),
        (lambda: OwnStep(), "its own `apply_gradients`"),
        (lambda: WholeNorm(), "depends on other rows"),
        (lambda: RowSlots(), "does not have the variable's shape"),
    ],
)
def test_what_tables_would_not_see_is_refused(make, text):
    with pytest.raises(NotImplementedError, match=text):
        wrapped(make())


def test_a_step_that_is_refused_counts_nothing():
    table = de.Variable(dim=DIM)
    optimizer = wrapped(L.Nadam(0.1), nonfinite="refuse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        optimizer.apply_gradients([(halves(tf.fill([3, DIM], np.nan)), table)])
    assert int(table.size()) == int(optimizer.iterations) == 0
