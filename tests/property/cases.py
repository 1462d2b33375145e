"""Random batches over a fixed pool of plans, so that few graphs are traced."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from oracle import Bag, Feature
from tfembed.ops.grouped import FeatureIds, FeaturePlan

VOCABULARY = 40


@dataclasses.dataclass(frozen=True)
class Slot:
    """One feature of a plan: what stays the same from batch to batch."""

    kind: str
    table: int = 0
    combiner: str = "mean"
    weighted: bool = False
    max_sequence_length: int = 0
    validate: bool = True

    def signature(self) -> tuple[tf.TensorSpec, ...]:
        """The type of `flat` of such a feature, whatever the batch."""
        rows = [None, 2] if self.kind == "sparse" else [None]
        return (
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec(rows, tf.int64),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.int64),
        )

    def plan(self) -> FeaturePlan:
        return FeaturePlan(
            self.table, self.combiner, self.max_sequence_length, self.validate
        )


# Per plan: the tables' widths and the features.
PLANS: tuple[tuple[tuple[int, ...], tuple[Slot, ...]], ...] = (
    ((3,), (Slot("dense"),)),
    ((8,), (Slot("ragged", combiner="sum", weighted=True),)),
    ((16,), (Slot("sparse", combiner="sqrtn", weighted=True),)),
    (
        (5, 64),
        (
            Slot("sparse", 0, "mean", weighted=True),
            Slot("ragged", 1, "sum"),
            Slot("dense", 1),
            Slot("sparse", 0, "sum", weighted=True),
        ),
    ),
    (
        (17,),
        (
            Slot("sparse", combiner="mean", validate=False),
            Slot("ragged", combiner="mean", weighted=True),
            Slot("ragged", combiner="sqrtn"),
        ),
    ),
    (
        (4, 1, 100),
        (
            Slot("sparse", 0, "sum", max_sequence_length=3),
            Slot("ragged", 1, "sum", max_sequence_length=2),
            Slot("ragged", 2, "sqrtn", weighted=True),
            Slot("dense", 2),
        ),
    ),
)


def draw_feature(rng: np.random.Generator, slot: Slot, batch: int) -> Feature:
    """Ids repeat often; bags may be empty; some weights are 0 or negative."""
    return feature_of(slot, [_draw_bag(rng, slot) for _ in range(batch)])


def feature_of(slot: Slot, bags: list[Bag]) -> Feature:
    return Feature(
        bags=bags,
        kind=slot.kind,
        combiner=slot.combiner,
        weighted=slot.weighted,
        max_sequence_length=slot.max_sequence_length,
        validate=slot.validate,
        table=slot.table,
    )


def _draw_bag(rng: np.random.Generator, slot: Slot) -> Bag:
    count = 1 if slot.kind == "dense" else int(rng.integers(0, 6))
    high = VOCABULARY if rng.random() < 0.5 else 5
    ids = rng.integers(0, high, count)
    prunes = slot.kind == "sparse" and slot.validate
    if prunes:
        ids = np.where(rng.random(count) < 0.1, -1 - ids, ids)
    weights = np.ones(count, np.float32)
    if slot.weighted:
        weights = rng.uniform(0.5, 1.5, count).astype(np.float32)
        lows = [0.0, -0.125] if prunes else [0.0]
        weights = np.where(
            rng.random(count) < 0.15, rng.choice(lows, count), weights
        )
    places = np.arange(count)
    if slot.kind == "sparse":
        places = np.sort(rng.choice(8, count, replace=False))
    return Bag(ids.tolist(), weights.tolist(), places.tolist())


def tensors(feature: Feature) -> FeatureIds:
    """The same feature as the ops take it."""
    ids = [i for bag in feature.bags for i in bag.ids]
    weights = [w for bag in feature.bags for w in bag.weights]
    lengths = [len(bag.ids) for bag in feature.bags]
    if feature.kind == "dense":
        rows = np.zeros(0)
    elif feature.kind == "ragged":
        rows = np.concatenate([[0], np.cumsum(lengths)])
    else:
        rows = np.asarray(
            [(b, p) for b, bag in enumerate(feature.bags) for p in bag.places]
        ).reshape(-1, 2)
    return FeatureIds(
        kind=feature.kind,
        ids=tf.constant(ids, tf.int64),
        rows=tf.constant(rows, tf.int64),
        weights=tf.constant(weights if feature.weighted else [], tf.float32),
        batch_size=tf.constant(len(feature.bags), tf.int64),
    )


def flat(features: list[FeatureIds]) -> list[tuple[tf.Tensor, ...]]:
    """Features as nests of tensors, which a tf.function takes."""
    return [(f.ids, f.rows, f.weights, f.batch_size) for f in features]


def features_of(plan: int, nests) -> list[FeatureIds]:
    """The inverse of `flat`."""
    slots = PLANS[plan][1]
    return [FeatureIds(s.kind, *n) for s, n in zip(slots, nests, strict=True)]


def signature(plan: int) -> list[tuple[tf.TensorSpec, ...]]:
    return [slot.signature() for slot in PLANS[plan][1]]


def gradient_signature(plan: int) -> list[tf.TensorSpec]:
    dims, slots = PLANS[plan]
    return [
        tf.TensorSpec(
            [None, s.max_sequence_length, dims[s.table]]
            if s.max_sequence_length
            else [None, dims[s.table]],
            tf.float32,
        )
        for s in slots
    ]


def draw_gradients(rng, features, dims) -> list[np.ndarray]:
    """One sign a column and table, so that sums do not cancel."""
    signs = [np.where(rng.random(d) < 0.5, -1, 1) for d in dims]
    out = []
    for f in features:
        shape = [len(f.bags), dims[f.table]]
        if f.max_sequence_length:
            shape.insert(1, f.max_sequence_length)
        out.append(
            (rng.uniform(0.2, 1.0, shape) * signs[f.table]).astype(np.float32)
        )
    return out


# (rule, parameters) pairs that the update tests draw from.
COMMON = {"clip_gradient_min": -0.5, "clip_gradient_max": 0.75}
DECAY = {"weight_decay": 0.25, "weight_decay_times_learning_rate": 1}
RULES: tuple[tuple[str, dict], ...] = (
    ("sgd", {}),
    ("sgd", {**COMMON, **DECAY}),
    ("sgd", {"clip_weight_min": -0.25, "clip_weight_max": 0.25}),
    ("adagrad", {"initial_accumulator_value": 0.1}),
    ("adagrad", {"initial_accumulator_value": 0.5, "epsilon": 1e-3, **DECAY}),
    (
        "adagrad_momentum",
        {
            "momentum": 0.9,
            "use_nesterov": 1,
            "exponent": 2,
            "beta2": 1,
            "epsilon": 1e-3,
        },
    ),
    (
        "adagrad_momentum",
        {
            "momentum": 0.5,
            "use_nesterov": 0,
            "exponent": 3,
            "beta2": 0.9,
            "epsilon": 1e-2,
        },
    ),
    (
        "adam",
        {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "sum_inside_sqrt": 1},
    ),
    (
        "adam",
        {
            "beta_1": 0.5,
            "beta_2": 0.9,
            "epsilon": 1e-3,
            "sum_inside_sqrt": 0,
            **COMMON,
        },
    ),
    (
        "ftrl",
        {
            "learning_rate_power": -0.5,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "beta": 0.0,
            "initial_accumulator_value": 0.1,
            "multiply_linear_by_learning_rate": 0,
        },
    ),
    (
        "ftrl",
        {
            "learning_rate_power": -0.5,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.1,
            "beta": 0.5,
            "initial_accumulator_value": 0.2,
            "multiply_linear_by_learning_rate": 1,
        },
    ),
    ("momentum", {"momentum": 0.5, "use_nesterov": 1, **DECAY}),
    ("rms_prop", {"rho": 0.75, "momentum": 0.5, "epsilon": 1e-3}),
    ("centered_rms_prop", {"rho": 0.75, "momentum": 0.0, "epsilon": 1e-2}),
    (
        "proximal_adagrad",
        {
            "initial_accumulator_value": 0.5,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.25,
            **COMMON,
        },
    ),
    ("adadelta", {"rho": 0.75, "epsilon": 1e-3}),
    ("lion", {"beta_1": 0.75, "beta_2": 0.5, **COMMON}),
    (
        "yogi",
        {
            "beta_1": 0.5,
            "beta_2": 0.75,
            "epsilon": 1e-3,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.25,
            "initial_accumulator_value": 0.125,
        },
    ),
)


def rule_text(rule: str, parameters: dict) -> str:
    return " ".join([rule, *(f"{k}={v!r}" for k, v in parameters.items())])
