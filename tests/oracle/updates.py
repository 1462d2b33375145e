"""Updates, one float64 row at a time: sums, clipping, decay, and the rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.features import Feature, bags_of
from oracle.rules import RULES
from oracle.tolerance import Terms, as_terms

# Per rule its slots' names and initial values (a parameter's name or a number).
_SLOTS: dict[str, dict[str, str | float]] = {
    "sgd": {},
    "adagrad": {"accumulators": "initial_accumulator_value"},
    "adagrad_momentum": {"accumulators": 0.0, "momenta": 0.0},
    "adam": {"momenta": 0.0, "velocities": 0.0},
    "ftrl": {"accumulators": "initial_accumulator_value", "linears": 0.0},
    "momentum": {"momenta": 0.0},
    "rms_prop": {"ms": 0.0, "mom": 0.0},
    "centered_rms_prop": {"ms": 0.0, "mom": 0.0, "mg": 0.0},
    "proximal_adagrad": {"accumulators": "initial_accumulator_value"},
    "adadelta": {"accumulators": 0.0, "updates": 0.0},
    "lion": {"momenta": 0.0},
    "yogi": {"v": "initial_accumulator_value", "m": 0.0},
    "row_wise_adagrad": {"accumulators": "initial_accumulator_value"},
}
# The rules whose slots are one number a row.
_ROW_WISE = {"row_wise_adagrad"}


def slot_names(rule: str) -> list[str]:
    return list(_SLOTS[rule])


def initial_slots(rule: str, parameters: dict, dim: int) -> list[np.ndarray]:
    width = 1 if rule in _ROW_WISE else dim
    return [
        np.full(width, parameters[s] if isinstance(s, str) else s, np.float64)
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
    w: np.ndarray | Terms,
    slots: Sequence[np.ndarray | Terms],
    g: np.ndarray | Terms,
    lr: float,
    parameters: dict,
) -> tuple[Terms, list[Terms]]:
    """The row and its slots after one summed gradient.

    What goes in may be Terms, so that errors add up over many steps. A rule is
    not tried where it jumps: there, the sizes become huge.
    """
    p = parameters
    w, g = as_terms(w), as_terms(g)
    slots = [as_terms(slot) for slot in slots]
    g = g.clipped(
        p.get("clip_gradient_min", -np.inf), p.get("clip_gradient_max", np.inf)
    )
    decay = p.get("weight_decay", 0.0)
    if p.get("weight_decay_times_learning_rate"):
        decay *= lr
    start = w + w * -decay
    new_w, new_slots = RULES[rule](start, slots, g, lr, p)
    new_w = new_w.clipped(
        p.get("clip_weight_min", -np.inf), p.get("clip_weight_max", np.inf)
    )
    return new_w, new_slots
