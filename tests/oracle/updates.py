"""Update rules, one float64 row at a time.

Formulas: TensorFlow's TPU embedding optimizers (tf.tpu.experimental.embedding),
without bias correction in Adam and without epsilon in Adagrad.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.features import Feature, bags_of
from oracle.tolerance import Terms

# Per rule its slots' names and initial values (a parameter's name or a number).
_SLOTS: dict[str, dict[str, str | float]] = {
    "sgd": {},
    "adagrad": {"accumulators": "initial_accumulator_value"},
    "adagrad_momentum": {"accumulators": 0.0, "momenta": 0.0},
    "adam": {"momenta": 0.0, "velocities": 0.0},
    "ftrl": {"accumulators": "initial_accumulator_value", "linears": 0.0},
}


def slot_names(rule: str) -> list[str]:
    return list(_SLOTS[rule])


def initial_slots(rule: str, parameters: dict, dim: int) -> list[np.ndarray]:
    return [
        np.full(dim, parameters[s] if isinstance(s, str) else s, np.float64)
        for s in _SLOTS[rule].values()
    ]


def summed_gradients(
    features: Sequence[Feature],
    gradients: Sequence[np.ndarray],
    *,
    fixed_vocabulary: bool,
) -> dict[int, Terms]:
    """The gradient of each id that was looked up, over all features."""
    sums: dict[int, Terms] = {}
    for feature, gradient in zip(features, gradients):
        for at, pairs in bags_of(feature, fixed_vocabulary):
            for key, factor in pairs:
                term = Terms.of(gradient[at]) * factor
                sums[key] = sums[key] + term if key in sums else term
    return sums


def apply_rule(
    rule: str,
    w: np.ndarray,
    slots: list[np.ndarray],
    g: np.ndarray,
    lr: float,
    parameters: dict,
) -> tuple[Terms, list[Terms]]:
    """The row and its slots after one summed gradient."""
    p = parameters
    g = np.clip(
        g,
        p.get("clip_gradient_min", -np.inf),
        p.get("clip_gradient_max", np.inf),
    )
    decay = p.get("weight_decay", 0.0)
    if p.get("weight_decay_times_learning_rate"):
        decay *= lr
    start = Terms.of(w) + Terms.of(-decay * w)
    new_w, new_slots = _RULES[rule](start, slots, g, lr, p)
    clipped = np.clip(
        new_w.value,
        p.get("clip_weight_min", -np.inf),
        p.get("clip_weight_max", np.inf),
    )
    return Terms(clipped, new_w.size), new_slots


def _sgd(w, slots, g, lr, p):
    return w + Terms.of(-lr * g), []


def _adagrad(w, slots, g, lr, p):
    a = Terms.of(slots[0]) + Terms.of(g * g)
    return w + Terms.of(-lr * g / np.sqrt(a.value + p.get("epsilon", 0))), [a]


def _adagrad_momentum(w, slots, g, lr, p):
    a, m = slots
    b2 = p["beta2"]
    a = a + g * g if b2 == 1 else b2 * a + (1 - b2) * g * g
    s = g * (a + p["epsilon"]) ** (-1 / p["exponent"])
    new_m = Terms.of(p["momentum"] * m) + Terms.of(s)
    step = new_m
    if p["use_nesterov"]:
        step = new_m * p["momentum"] + Terms.of(s)
    return w + step * -lr, [Terms.of(a), new_m]


def _adam(w, slots, g, lr, p):
    m, v = slots
    b1, b2, eps = p["beta_1"], p["beta_2"], p["epsilon"]
    m = Terms.of(b1 * m) + Terms.of((1 - b1) * g)
    v = b2 * v + (1 - b2) * g * g
    root = np.sqrt(v + eps * eps) if p["sum_inside_sqrt"] else np.sqrt(v) + eps
    return w + m * (-lr / root), [m, Terms.of(v)]


def _ftrl(w, slots, g, lr, p):
    a, linear = slots
    power = -p["learning_rate_power"]
    l1, l2 = p["l1_regularization_strength"], p["l2_regularization_strength"]
    beta = p["beta"]
    new_a = a + g * g
    sigma = new_a**power - a**power
    # The difference of two powers is computed from the powers themselves.
    noise = new_a**power + a**power
    if p["multiply_linear_by_learning_rate"]:
        new_l = Terms.of(linear) + Terms.of(lr * g)
        new_l = new_l + Terms(-sigma * w.value, noise * w.size)
        bound = lr * l1
        divisor = new_a**power + 2 * lr * l2 + beta
    else:
        new_l = Terms.of(linear) + Terms.of(g)
        new_l = new_l + Terms(-sigma * w.value / lr, noise * w.size / lr)
        bound = l1
        divisor = (new_a**power + beta) / lr + 2 * l2
    value = (np.clip(new_l.value, -bound, bound) - new_l.value) / divisor
    return Terms(value, new_l.size / divisor), [Terms.of(new_a), new_l]


_RULES = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "adagrad_momentum": _adagrad_momentum,
    "adam": _adam,
    "ftrl": _ftrl,
}
