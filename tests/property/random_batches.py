"""Random features of random tables, and what comes in a step."""

from __future__ import annotations

import numpy as np

from oracle import Bag, Feature, well_posed
from property import cases, configurations
from property.configurations import RandomTable
from tfembed.config import FeatureConfig

BATCH = 4


def draw_slots(
    rng: np.random.Generator, tables: list[RandomTable]
) -> list[cases.Slot]:
    """One to four features, of every table at least one."""
    count = int(rng.integers(len(tables), 5))
    slots = []
    for i in range(count):
        table = i if i < len(tables) else int(rng.integers(len(tables)))
        kind = str(rng.choice(["dense", "ragged", "sparse"]))
        is_dense = kind == "dense"
        slots.append(
            cases.Slot(
                kind,
                table,
                tables[table].config.combiner,
                weighted=not is_dense and configurations.flag(rng),
                max_sequence_length=0
                if is_dense or rng.random() < 0.7
                else int(rng.integers(2, 4)),
                validate=configurations.flag(rng),
            )
        )
    return slots


def feature_configs(
    tables: list[RandomTable], slots: list[cases.Slot]
) -> list[FeatureConfig]:
    return [
        FeatureConfig(
            tables[slot.table].config,
            max_sequence_length=slot.max_sequence_length,
            validate_weights_and_indices=slot.validate,
        )
        for slot in slots
    ]


def draw_batch(
    rng: np.random.Generator,
    tables: list[RandomTable],
    slots: list[cases.Slot],
) -> tuple[list[Feature], list[np.ndarray]]:
    """Features and gradients of one step, away from ill-posed points."""
    dims = [table.config.dim for table in tables]
    while True:
        features = [_draw_feature(rng, tables, slot) for slot in slots]
        gradients = cases.draw_gradients(rng, features, dims)
        if all(
            well_posed(
                [f for f in features if f.table == t],
                [
                    g
                    for f, g in zip(features, gradients, strict=True)
                    if f.table == t
                ],
                table.is_static,
            )
            for t, table in enumerate(tables)
        ):
            return features, gradients


def _draw_feature(
    rng: np.random.Generator, tables: list[RandomTable], slot: cases.Slot
) -> Feature:
    takes_negative = not tables[slot.table].is_static or (
        slot.kind == "sparse" and slot.validate
    )
    return cases.feature_of(
        slot, [_draw_bag(rng, slot, takes_negative) for _ in range(BATCH)]
    )


def _draw_bag(
    rng: np.random.Generator, slot: cases.Slot, takes_negative: bool
) -> Bag:
    count = 1 if slot.kind == "dense" else int(rng.integers(0, 5))
    ids = rng.integers(
        0, configurations.VOCABULARY if rng.random() < 0.5 else 4, count
    )
    if takes_negative:
        ids = np.where(rng.random(count) < 0.1, -1 - ids, ids)
    weights = np.ones(count, np.float32)
    if slot.weighted:
        weights = rng.uniform(0.5, 1.5, count).astype(np.float32)
        odd = rng.choice(np.float32([0.0, -0.125]), count)
        weights = np.where(rng.random(count) < 0.2, odd, weights)
    places = np.arange(count)
    if slot.kind == "sparse":
        places = np.sort(rng.choice(8, count, replace=False))
    return Bag(ids.tolist(), weights.tolist(), places.tolist())
