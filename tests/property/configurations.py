"""Random tables, and optimizers with all parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from oracle import Rule
from tfembed import optimizers
from tfembed.config import QuantizationConfig, TableConfig

VOCABULARY = 24
IDS = range(-VOCABULARY, VOCABULARY)
FIRST = 0.25  # In the rows of tables without a vocabulary.


class DecliningRate:
    """A learning rate that is another one in each step."""

    def __init__(self, first: float):
        self.first = first
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return self.at(self.calls)

    def at(self, step: int) -> float:
        return self.first / (1 + 0.25 * step)


@dataclasses.dataclass
class RandomTable:
    """A table and the rule by which the oracle knows it."""

    config: TableConfig
    rule: Rule
    quantization: tuple[int, float, float] | None

    def rate(self, step: int) -> float:
        rate = self.config.optimizer.learning_rate
        return float(np.float32(rate.at(step) if callable(rate) else rate))

    @property
    def is_static(self) -> bool:
        return self.config.vocabulary_size is not None


def draw_table(
    rng: np.random.Generator, name: str, *, may_grow: bool = True
) -> RandomTable:
    is_static = bool(rng.random() < 0.6) or not may_grow
    quantization = (int(rng.integers(2, 9)), -1.0, 0.75)
    if rng.random() < 0.7:
        quantization = None
    optimizer = draw_optimizer(rng)
    dim = int(rng.choice([1, 3, 8, 17]))
    values = rng.normal(size=(VOCABULARY, dim)).astype(np.float32)
    config = TableConfig(
        VOCABULARY if is_static else None,
        dim,
        (lambda shape, dtype: tf.constant(values, dtype))
        if is_static
        else tf.constant_initializer(FIRST),
        optimizer,
        str(rng.choice(["sum", "mean", "sqrtn"])),
        name,
        quantization and QuantizationConfig(*quantization),
    )
    return RandomTable(config, rule_of(optimizer), quantization)


def rule_of(optimizer: optimizers.Optimizer) -> Rule:
    """A description for the oracle: numbers as the rules hold them."""
    name, *words = optimizer.rule_text().split()
    pairs = (word.split("=") for word in words)
    parameters = {k: float(np.float32(float(v))) for k, v in pairs}
    return Rule(
        name,
        parameters,
        accumulate=bool(parameters["accumulate"]),
        moves_all_rows=not all(
            parameters.get(lazy, 1.0) for lazy in ("lazy_adam", "lazy_lion")
        ),
    )


def draw_optimizer(rng: np.random.Generator) -> optimizers.Optimizer:
    rate: Any = float(rng.uniform(0.01, 0.5))
    if rng.random() < 0.3:
        rate = DecliningRate(rate)
    cls, own = OWN[rng.integers(len(OWN))]
    chosen = own(rng)
    is_lazy = chosen.get("lazy_adam", chosen.get("lazy_lion", True))
    return cls(rate, **chosen, **_common(rng, is_lazy))


def _common(rng: np.random.Generator, is_lazy: bool) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if is_lazy and rng.random() < 0.15:
        chosen["use_gradient_accumulation"] = False
    elif rng.random() < 0.3:
        chosen["clipvalue"] = [0.5, (-0.25, 0.75), (None, 0.5), (-0.5, None)][
            rng.integers(4)
        ]
    if rng.random() < 0.2:
        chosen["clip_weight_min"] = -0.5
    if rng.random() < 0.2:
        chosen["clip_weight_max"] = 0.5
    if rng.random() < 0.3:
        chosen["weight_decay_factor"] = 0.125
        chosen["multiply_weight_decay_factor_by_learning_rate"] = bool(
            rng.random() < 0.5
        )
    return chosen


def flag(rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


def _one(rng: np.random.Generator, *values: float) -> float:
    return float(rng.choice(values))


OWN: list[tuple[type, Any]] = [
    (optimizers.SGD, lambda r: {}),
    (
        optimizers.Adagrad,
        lambda r: {"initial_accumulator_value": _one(r, 0.1, 1.0)},
    ),
    (
        optimizers.AdagradMomentum,
        lambda r: {
            "momentum": _one(r, 0.0, 0.75),
            "use_nesterov": flag(r),
            "exponent": _one(r, 2, 3),
            "beta2": _one(r, 1.0, 0.75),
            "epsilon": _one(r, 1e-3, 0.1),
        },
    ),
    (
        optimizers.FTRL,
        lambda r: {
            "learning_rate_power": _one(r, -0.5, -0.75, 0.0),
            "l1_regularization_strength": _one(r, 0.0, 0.125),
            "l2_regularization_strength": _one(r, 0.0, 0.25),
            "beta": _one(r, 0.0, 0.5),
            "initial_accumulator_value": _one(r, 0.1, 1.0),
            "multiply_linear_by_learning_rate": flag(r),
        },
    ),
    (
        optimizers.Adam,
        lambda r: {
            "beta_1": _one(r, 0.5, 0.9),
            "beta_2": _one(r, 0.75, 0.999),
            "epsilon": _one(r, 1e-7, 1e-2),
            "lazy_adam": flag(r),
            "sum_inside_sqrt": flag(r),
        },
    ),
    (
        optimizers.Momentum,
        lambda r: {"momentum": _one(r, 0.5, 0.75), "use_nesterov": flag(r)},
    ),
    (
        optimizers.RMSProp,
        lambda r: {
            "rho": _one(r, 0.5, 0.9),
            "momentum": _one(r, 0.0, 0.5),
            "epsilon": _one(r, 1e-10, 1e-2),
        },
    ),
    (
        optimizers.CenteredRMSProp,
        lambda r: {
            "rho": _one(r, 0.5, 0.9),
            "momentum": _one(r, 0.0, 0.5),
            "epsilon": _one(r, 1e-2, 0.25),
        },
    ),
    (
        optimizers.ProximalAdagrad,
        lambda r: {
            "initial_accumulator_value": _one(r, 0.1, 1.0),
            "l1_regularization_strength": _one(r, 0.0, 0.125),
            "l2_regularization_strength": _one(r, 0.0, 0.25),
        },
    ),
    (
        optimizers.Adadelta,
        lambda r: {"rho": _one(r, 0.5, 0.95), "epsilon": _one(r, 1e-7, 1e-2)},
    ),
    (
        optimizers.Lion,
        lambda r: {
            "beta_1": _one(r, 0.5, 0.9),
            "beta_2": _one(r, 0.75, 0.99),
            "lazy_lion": flag(r),
        },
    ),
    (
        optimizers.Yogi,
        lambda r: {
            "beta_1": _one(r, 0.5, 0.9),
            "beta_2": _one(r, 0.75, 0.999),
            "epsilon": _one(r, 1e-3, 0.1),
            "l1_regularization_strength": _one(r, 0.0, 0.125),
            "l2_regularization_strength": _one(r, 0.0, 0.25),
        },
    ),
    (
        optimizers.RowWiseAdagrad,
        lambda r: {
            "initial_accumulator_value": _one(r, 0.0, 0.5),
            "epsilon": _one(r, 1e-8, 1e-2),
        },
    ),
]
