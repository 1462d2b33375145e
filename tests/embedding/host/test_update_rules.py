"""Each update rule moves a row as its formula says, in numbers.

One id, one number a row; the formulas stand as the specification writes them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

import tfembed

START = 0.5
GRADIENTS = (0.3, -0.2, 0.4)


def _trained(optimizer, gradients=GRADIENTS, *, start=START, touched=(0,)):
    """Rows 0 and 1, and by name the slots of row 0, after a step a gradient.

    A gradient that is a tuple is several occurrences of the id in one batch.
    """
    table = tfembed.TableConfig(
        2, 1, lambda shape, dtype: tf.fill(shape, start), name="users"
    )
    embedding = tfembed.TPUEmbedding(tfembed.FeatureConfig(table), optimizer)
    for i, gradient in enumerate(gradients):
        parts = gradient if isinstance(gradient, tuple) else (gradient,)
        embedding.enqueue(tf.fill([len(parts)], touched[i % len(touched)]))
        embedding.dequeue()
        embedding.apply_gradients(tf.constant(parts)[:, tf.newaxis])
    parts = {
        name: variable.numpy()[:, 0]
        for name, variable in embedding._variables["users"].items()
    }
    return parts.pop("parameters"), {k: v[0] for k, v in parts.items()}


def _near(actual, expected):
    np.testing.assert_allclose(actual, expected, 2e-5, 1e-7)


# Common to all.


def test_gradients_of_a_row_in_the_global_batch_are_summed_and_applied_once():
    rows, slots = _trained(tfembed.Adagrad(0.1), [(0.3, 0.4)])
    _near(slots["accumulators"], 0.1 + 0.7**2)
    _near(rows[0], START - 0.1 * 0.7 / math.sqrt(0.1 + 0.7**2))


def test_without_accumulation_a_gradient_is_applied_per_occurrence():
    rule = tfembed.Adagrad(0.1, use_gradient_accumulation=False)
    rows, slots = _trained(rule, [(0.3, 0.4)])
    _near(slots["accumulators"], 0.1 + 0.3**2 + 0.4**2)
    w = START - 0.1 * 0.3 / math.sqrt(0.1 + 0.3**2)
    _near(rows[0], w - 0.1 * 0.4 / math.sqrt(0.1 + 0.3**2 + 0.4**2))


@pytest.mark.parametrize(
    ("clipvalue", "clipped"),
    [(0.25, 0.25), ((None, 0.5), 0.5), ((0.9, None), 0.9), (None, 0.7)],
)
def test_the_summed_gradient_is_clipped_before_the_update(clipvalue, clipped):
    rows, _ = _trained(tfembed.SGD(1.0, clipvalue=clipvalue), [(0.3, 0.4)])
    _near(rows[0], START - clipped)


def test_weights_are_clipped_after_the_update():
    rule = tfembed.SGD(1.0, clip_weight_min=0.1, clip_weight_max=0.6)
    _near(_trained(rule, [0.45])[0][0], 0.1)
    _near(_trained(rule, [-0.3])[0][0], 0.6)


@pytest.mark.parametrize(("multiply", "factor"), [(None, 0.2), (True, 0.02)])
def test_weight_decay_is_decoupled_once_a_step_and_on_touched_rows_alone(
    multiply, factor
):
    rule = tfembed.SGD(
        0.1,
        weight_decay_factor=0.2,
        multiply_weight_decay_factor_by_learning_rate=multiply,
    )
    rows, _ = _trained(rule, [(0.3, 0.4)])
    _near(rows, [START - factor * START - 0.1 * 0.7, START])


def test_a_decay_of_0_is_none_whatever_its_flag():
    rule = tfembed.SGD(
        0.1,
        weight_decay_factor=0.0,
        multiply_weight_decay_factor_by_learning_rate=True,
    )
    _near(_trained(rule, [0.3])[0][0], START - 0.03)


def test_a_zero_gradient_on_a_looked_up_row_still_touches_it():
    _, slots = _trained(tfembed.Adam(0.1), [0.3, 0.0])
    _near(slots["momenta"], 0.9 * 0.1 * 0.3)
    _near(slots["velocities"], 0.999 * 0.001 * 0.3**2)


@pytest.mark.parametrize(
    ("rule", "slot"),
    [
        (tfembed.Adam(0.1), "velocities"),
        (tfembed.AdagradMomentum(0.1, beta2=0.999), "accumulators"),
        (tfembed.optimizers.RMSProp(0.1, rho=0.999), "ms"),
    ],
)
def test_a_mean_close_to_1_loses_no_digits_of_the_rest(rule, slot):
    # In float32, 1 - 0.999 is off by 1.3e-5 of itself.
    _, slots = _trained(rule, [20.0])
    np.testing.assert_allclose(slots[slot], 0.001 * 400, rtol=3e-7)


# Each rule.


def test_sgd_subtracts_the_rate_times_the_gradient():
    rows, slots = _trained(tfembed.SGD(0.1))
    assert not slots
    _near(rows, [START - 0.1 * sum(GRADIENTS), START])


def test_adagrad_has_no_epsilon():
    rows, slots = _trained(tfembed.Adagrad(0.1, initial_accumulator_value=0.01))
    w, a = START, 0.01
    for g in GRADIENTS:
        a += g * g
        w -= 0.1 * g / math.sqrt(a)
    _near([rows[0], slots["accumulators"]], [w, a])


@pytest.mark.parametrize("use_nesterov", [False, True])
@pytest.mark.parametrize("beta2", [1.0, 0.9])
@pytest.mark.parametrize("exponent", [2, 3])
def test_adagrad_momentum_keeps_momenta_of_scaled_gradients(
    exponent, beta2, use_nesterov
):
    rule = tfembed.AdagradMomentum(
        0.1,
        momentum=0.8,
        use_nesterov=use_nesterov,
        exponent=exponent,
        beta2=beta2,
        epsilon=0.01,
    )
    rows, slots = _trained(rule)
    w, a, m = START, 0.0, 0.0
    for g in GRADIENTS:
        a = a + g * g if beta2 == 1 else beta2 * a + (1 - beta2) * g * g
        s = g * (a + 0.01) ** (-1 / exponent)
        m = 0.8 * m + s
        w -= 0.1 * (0.8 * m + s if use_nesterov else m)
    _near([rows[0], slots["accumulators"], slots["momenta"]], [w, a, m])


@pytest.mark.parametrize("multiply", [False, True])
@pytest.mark.parametrize("power", [-0.5, -0.7])
def test_ftrl_in_both_forms_with_l1_l2_and_beta(power, multiply):
    lr, l1, l2, beta = 0.5, 0.01, 0.02, 0.3
    rule = tfembed.FTRL(
        lr,
        learning_rate_power=power,
        l1_regularization_strength=l1,
        l2_regularization_strength=l2,
        beta=beta,
        multiply_linear_by_learning_rate=multiply,
    )
    rows, slots = _trained(rule)
    w, a, linear = START, 0.1, 0.0
    p = -power
    for g in GRADIENTS:
        new = a + g * g
        delta = new**p - a**p
        if multiply:
            linear += lr * g - delta * w
            clamped = min(max(linear, -lr * l1), lr * l1)
            w = (clamped - linear) / (new**p + 2 * lr * l2 + beta)
        else:
            linear += g - delta * w / lr
            clamped = min(max(linear, -l1), l1)
            w = (clamped - linear) / ((new**p + beta) / lr + 2 * l2)
        a = new
    _near([rows[0], slots["accumulators"], slots["linears"]], [w, a, linear])


@pytest.mark.parametrize("start", [0.5, -3.0])
def test_ftrl_overwrites_the_initial_row_at_its_first_touch(start):
    rate, g = 0.5, 0.3
    rows, slots = _trained(
        tfembed.FTRL(rate, initial_accumulator_value=0.25), [g], start=start
    )
    # The row that was there counts through linears alone, as they started at 0.
    root = math.sqrt(0.25 + g * g)
    linear = g - (root - 0.5) * start / rate
    _near([slots["linears"], rows[0]], [linear, -linear * rate / root])
    _near(rows[1], start)


@pytest.mark.parametrize("gradients", [GRADIENTS, [0.3]])
def test_ftrls_beta_is_beta_over_two_rates_in_l2(gradients):
    rate, beta = 0.5, 0.3
    rows, slots = _trained(tfembed.FTRL(rate, beta=beta), gradients)
    others, other_slots = _trained(
        tfembed.FTRL(rate, l2_regularization_strength=beta / (2 * rate)),
        gradients,
    )
    _near(rows, others)
    _near(list(slots.values()), list(other_slots.values()))


def test_allow_zero_accumulator_is_ignored():
    rows, _ = _trained(tfembed.FTRL(0.5))
    others, _ = _trained(tfembed.FTRL(0.5, allow_zero_accumulator=True))
    assert rows.tolist() == others.tolist()
    for allowed in (False, True):
        with pytest.raises(ValueError, match="initial_accumulator_value"):
            tfembed.FTRL(
                initial_accumulator_value=0.0, allow_zero_accumulator=allowed
            )


@pytest.mark.parametrize("sum_inside_sqrt", [False, True])
def test_adam_has_no_bias_correction_and_both_forms_of_the_root(
    sum_inside_sqrt,
):
    rule = tfembed.Adam(
        0.1,
        beta_1=0.8,
        beta_2=0.9,
        epsilon=0.05,
        sum_inside_sqrt=sum_inside_sqrt,
    )
    rows, slots = _trained(rule)
    w, m, v = START, 0.0, 0.0
    for g in GRADIENTS:
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * g * g
        root = (
            math.sqrt(v + 0.05**2) if sum_inside_sqrt else math.sqrt(v) + 0.05
        )
        w -= 0.1 * m / root
    _near([rows[0], slots["momenta"], slots["velocities"]], [w, m, v])


@pytest.mark.parametrize("lazy", [False, True])
def test_lazy_adam_moves_looked_up_rows_alone_and_the_other_all(lazy):
    rule = tfembed.Adam(0.1, lazy_adam=lazy)
    rows, slots = _trained(rule, [0.3, 0.2], touched=(0, 1))
    once = 0.1 * 0.3
    _near(slots["momenta"], once if lazy else 0.9 * once)
    first = START - 0.1 * once / math.sqrt(0.001 * 0.3**2 + 1e-14)
    assert (abs(rows[0] - first) < 1e-5) == lazy


def test_a_callable_rate_is_the_users_bias_correction():
    steps = []

    def rate():
        t = len(steps) + 1
        steps.append(t)
        return 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)

    rows, _ = _trained(tfembed.Adam(rate))
    w, m, v = START, 0.0, 0.0
    for t, g in enumerate(GRADIENTS, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        lr = 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w -= lr * m / math.sqrt(v + 1e-14)
    assert steps == [1, 2, 3]
    _near(rows[0], w)


def test_low_dimensional_packing_is_a_layout_and_changes_no_number():
    packed = tfembed.Adagrad(0.1, low_dimensional_packing_status=True)
    np.testing.assert_array_equal(
        _trained(packed)[0], _trained(tfembed.Adagrad(0.1))[0]
    )


def test_a_row_id_initializer_fills_row_i_with_i_and_the_offset():
    table = tfembed.TableConfig(3, 2, tfembed.RowIdInitializer(5), name="users")
    embedding = tfembed.TPUEmbedding(tfembed.FeatureConfig(table), None)
    rows = embedding.embedding_tables[table].numpy()
    assert rows.tolist() == [[5, 5], [6, 6], [7, 7]]
