"""The formulas of the update rules, in float64.

Sources: TensorFlow's TPU embedding optimizers (tf.tpu.experimental.embedding),
without bias correction in Adam and without epsilon in Adagrad; for the others
TensorFlow's own training ops (ApplyMomentum, ApplyRMSProp, ...) and the papers.

A rule takes a row and its slots as Terms and returns them moved. A size says
how much rounding an element may have seen: that of its own terms, and that of
what went into them, times how strongly the result depends on it.
"""

from __future__ import annotations

import numpy as np

from oracle.tolerance import RELATIVE, Terms

# How close to its jump a sign may be tried, and the size where it is closer.
_JUMP = 1e-3
_UNKNOWN = 1e6


def _sgd(w, slots, g, lr, p):
    return w + g * -lr, []


def _adagrad(w, slots, g, lr, p):
    a = slots[0] + g.squared()
    return w + g * (-lr / np.sqrt(a.value + p.get("epsilon", 0))), [a]


def _adagrad_momentum(w, slots, g, lr, p):
    a, m = slots
    b2 = p["beta2"]
    a = a + g.squared() if b2 == 1 else a * b2 + g.squared() * (1 - b2)
    s = g * (a.value + p["epsilon"]) ** (-1 / p["exponent"])
    m = m * p["momentum"] + s
    step = m * p["momentum"] + s if p["use_nesterov"] else m
    return w + step * -lr, [a, m]


def _adam(w, slots, g, lr, p):
    m, v = slots
    b1, b2, eps = p["beta_1"], p["beta_2"], p["epsilon"]
    m = m * b1 + g * (1 - b1)
    v = v * b2 + g.squared() * (1 - b2)
    if p["sum_inside_sqrt"]:
        root = np.sqrt(v.value + eps * eps)
    else:
        root = np.sqrt(v.value) + eps
    return w + m * (-lr / root), [m, v]


def _ftrl(w, slots, g, lr, p):
    a, linear = slots
    power = -p["learning_rate_power"]
    l1, l2 = p["l1_regularization_strength"], p["l2_regularization_strength"]
    new_a = a + g.squared()
    new_power, old_power = new_a.value**power, a.value**power
    sigma = new_power - old_power
    # A difference of powers is computed from the powers themselves.
    noise = new_power + old_power
    by = 1.0 if p["multiply_linear_by_learning_rate"] else 1 / lr
    pull = Terms(
        -sigma * by * w.value,
        by * (noise * np.abs(w.value) + sigma * w.size),
    )
    if p["multiply_linear_by_learning_rate"]:
        linear = linear + g * lr + pull
        bound = lr * l1
        divisor = new_power + 2 * lr * l2 + p["beta"]
    else:
        linear = linear + g + pull
        bound = l1
        divisor = (new_power + p["beta"]) / lr + 2 * l2
    value = np.clip(linear.value, -bound, bound) - linear.value
    return Terms(value, linear.size) * (1 / divisor), [new_a, linear]


def _momentum(w, slots, g, lr, p):
    m = slots[0] * p["momentum"] + g
    step = g + m * p["momentum"] if p["use_nesterov"] else m
    return w + step * -lr, [m]


def _rms_prop(w, slots, g, lr, p):
    s, m = slots
    s = s * p["rho"] + g.squared() * (1 - p["rho"])
    m = m * p["momentum"] + g * (lr / np.sqrt(s.value + p["epsilon"]))
    return w + m * -1, [s, m]


def _centered_rms_prop(w, slots, g, lr, p):
    s, m, a = slots
    s = s * p["rho"] + g.squared() * (1 - p["rho"])
    a = a * p["rho"] + g * (1 - p["rho"])
    variance = np.maximum(s.value - a.value**2, 0) + p["epsilon"]
    step = g * (lr / np.sqrt(variance))
    # The variance is a difference.
    noise = (s.size + 2 * np.abs(a.value) * a.size) / variance
    m = m * p["momentum"] + Terms(
        step.value, step.size + np.abs(step.value) * noise
    )
    return w + m * -1, [s, m, a]


def _proximal(w, step, rate, p):
    x = w + step * -1
    bound = rate * p["l1_regularization_strength"]
    shrunk = np.sign(x.value) * np.maximum(np.abs(x.value) - bound, 0)
    divisor = 1 + rate * p["l2_regularization_strength"]
    return Terms(shrunk, x.size + bound) * (1 / divisor)


def _proximal_adagrad(w, slots, g, lr, p):
    a = slots[0] + g.squared()
    rate = lr / np.sqrt(a.value)
    return _proximal(w, g * rate, rate, p), [a]


def _adadelta(w, slots, g, lr, p):
    a, u = slots
    rho, eps = p["rho"], p["epsilon"]
    a = a * rho + g.squared() * (1 - rho)
    d = g * np.sqrt((u.value + eps) / (a.value + eps))
    return w + d * -lr, [a, u * rho + d.squared() * (1 - rho)]


def _lion(w, slots, g, lr, p):
    m = slots[0]
    mixed = m * p["beta_1"] + g * (1 - p["beta_1"])
    step = lr * np.sign(mixed.value)
    unclear = _near_zero(mixed)
    w = Terms(w.value - step, w.size + np.abs(step) + _UNKNOWN * unclear)
    return w, [m * p["beta_2"] + g * (1 - p["beta_2"])]


def _yogi(w, slots, g, lr, p):
    v, m = slots
    square = g.squared()
    m = m * p["beta_1"] + g * (1 - p["beta_1"])
    gap = v + square * -1
    unclear = _near_zero(gap) | (v.size >= _UNKNOWN)
    v = v + square * (-(1 - p["beta_2"]) * np.sign(gap.value))
    v = Terms(v.value, v.size + _UNKNOWN * unclear)
    rate = lr / (np.sqrt(v.value) + p["epsilon"])
    w = _proximal(w, m * rate, rate, p)
    return Terms(w.value, w.size + _UNKNOWN * unclear), [v, m]


def _row_wise_adagrad(w, slots, g, lr, p):
    square = g.squared()
    width = g.value.shape[-1]
    a = slots[0] + Terms(
        square.value.mean(-1, keepdims=True),
        square.size.sum(-1, keepdims=True) / width,
    )
    return w + g * (-lr / (np.sqrt(a.value) + p["epsilon"])), [a]


def _near_zero(x: Terms) -> np.ndarray:
    return (np.abs(x.value) <= _JUMP * x.size) & (x.size > 0)


assert _UNKNOWN * RELATIVE > 1  # More than any row of a test moves.

RULES = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "adagrad_momentum": _adagrad_momentum,
    "adam": _adam,
    "ftrl": _ftrl,
    "momentum": _momentum,
    "rms_prop": _rms_prop,
    "centered_rms_prop": _centered_rms_prop,
    "proximal_adagrad": _proximal_adagrad,
    "adadelta": _adadelta,
    "lion": _lion,
    "yogi": _yogi,
    "row_wise_adagrad": _row_wise_adagrad,
}
