"""A nested model of every kind of feature, its batches, and its oracle."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

import tfembed
from oracle import (
    Feature,
    Terms,
    apply_rule,
    assert_close,
    initial_slots,
    lookup_feature,
    summed_gradients,
)
from property import cases
from tfembed.config import FeatureConfig, TableConfig
from tfembed.tables import HashTable

BATCH = 4
DIMS = (3, 8)
COMBINERS = ("mean", "sqrtn")

# In the order of tf.nest.flatten of `configs`.
SLOTS = (
    cases.Slot("sparse", 0, "mean", weighted=True),
    cases.Slot("dense", 1, "sqrtn"),
    cases.Slot("ragged", 1, "sqrtn", max_sequence_length=2),
    cases.Slot("sparse", 1, "sqrtn", validate=False),
    cases.Slot("ragged", 0, "mean", weighted=True),
)


def configs(*, vocabulary: int | None, **arguments: Any) -> dict[str, Any]:
    """Two tables, five features, nested."""
    tables = [
        TableConfig(
            vocabulary, dim, combiner=combiner, name=f"table{i}", **arguments
        )
        for i, (dim, combiner) in enumerate(zip(DIMS, COMBINERS, strict=True))
    ]
    features = [
        FeatureConfig(
            tables[slot.table],
            max_sequence_length=slot.max_sequence_length,
            validate_weights_and_indices=slot.validate,
        )
        for slot in SLOTS
    ]
    return structure(features)


def structure(leaves: list[Any]) -> dict[str, Any]:
    one, two, three, four, five = leaves
    return {"a": one, "b": [two, (three, four)], "c": {"d": five}}


@dataclasses.dataclass
class Step:
    """One batch, its gradients, and both as the oracle takes them."""

    oracle_features: list[Feature]
    gradients: list[np.ndarray]

    def inputs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Features and weights for `enqueue`."""
        pairs = [as_input(feature) for feature in self.oracle_features]
        return (
            structure([value for value, _ in pairs]),
            structure([weights for _, weights in pairs]),
        )

    def structured_gradients(self) -> dict[str, Any]:
        return structure([tf.constant(g) for g in self.gradients])

    def of_table(self, table: int) -> tuple[list[Feature], list[np.ndarray]]:
        places = [i for i, s in enumerate(SLOTS) if s.table == table]
        return (
            [self.oracle_features[i] for i in places],
            [self.gradients[i] for i in places],
        )


def draw_step(rng: np.random.Generator, batch: int = BATCH) -> Step:
    """A batch whose summed gradients do not cancel."""
    while True:
        features = [cases.draw_feature(rng, slot, batch) for slot in SLOTS]
        step = Step(features, cases.draw_gradients(rng, features, DIMS))
        if all(
            terms.well_posed()
            for table in range(len(DIMS))
            for terms in _sums(step, table, fixed_vocabulary=True).values()
        ):
            return step


def _sums(
    step: Step, table: int, *, fixed_vocabulary: bool
) -> dict[int, Terms]:
    features, gradients = step.of_table(table)
    return summed_gradients(
        features, gradients, fixed_vocabulary=fixed_vocabulary
    )


def as_input(feature: Feature) -> tuple[Any, Any]:
    """A feature's ids, and its weights or None, as users give them."""
    parts = cases.tensors(feature)
    if feature.kind == "dense":
        return parts.ids, None
    if feature.kind == "ragged":

        def make(values: tf.Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_row_splits(values, parts.rows)
    else:

        def make(values: tf.Tensor) -> tf.SparseTensor:
            return tf.SparseTensor(parts.rows, values, [len(feature.bags), 8])

    weights = make(parts.weights) if feature.weighted else None
    return make(parts.ids), weights


@dataclasses.dataclass
class Tables:
    """The rows and slots that an embedding has at one moment."""

    rows: list[dict[int, np.ndarray]]
    slots: list[dict[int, list[np.ndarray]]]
    present: list[dict[int, bool]]

    @classmethod
    def of(cls, embedding: tfembed.TPUEmbedding, ids: range) -> Tables:
        rows, slots, present = [], [], []
        for config, table in embedding.embedding_tables.items():
            if isinstance(table, HashTable):
                one = _hash_rows(table, config.optimizer, ids)
            else:
                one = _static_rows(embedding, config, ids)
            rows.append(one[0])
            slots.append(one[1])
            present.append(one[2])
        return cls(rows, slots, present)


def _static_rows(embedding: Any, config: Any, ids: range) -> tuple[Any, Any]:
    variables = embedding._variables[config.name]
    slots = [variables[s].numpy() for s in config.optimizer.slot_names]
    parameters = variables["parameters"].numpy()
    known = [i for i in ids if 0 <= i < len(parameters)]
    return (
        {i: parameters[i] for i in known},
        {i: [slot[i] for slot in slots] for i in known},
        dict.fromkeys(known, True),
    )


def _hash_rows(table: HashTable, optimizer: Any, ids: range) -> tuple[Any, Any]:
    rows = table.lookup(list(ids))[0].numpy()
    keys, exported = table.export_slots()
    place = {int(k): i for i, k in enumerate(keys)}
    rule, parameters = rule_of(optimizer)
    first = initial_slots(rule, parameters, table.dim)
    slots = {
        i: [exported[s].numpy()[place[i]] for s in optimizer.slot_names]
        if i in place
        else first
        for i in ids
    }
    present = {i: i in place for i in ids}
    return dict(zip(ids, rows, strict=True)), slots, present


def rule_of(optimizer: Any) -> tuple[str, dict[str, float]]:
    """The name by which the oracle knows a description."""
    rule, *words = optimizer.rule_text().split()
    return rule, {k: float(v) for k, v in (word.split("=") for word in words)}


def check_activations(
    activations: Any, step: Step, tables: Tables, *, fixed_vocabulary: bool
) -> None:
    flat = tf.nest.flatten(activations)
    for i, (feature, actual) in enumerate(
        zip(step.oracle_features, flat, strict=True)
    ):
        expected = lookup_feature(
            feature,
            tables.rows[feature.table].__getitem__,
            DIMS[feature.table],
            fixed_vocabulary=fixed_vocabulary,
        )
        assert_close(actual, expected, f"activations of feature {i}")


def check_update(
    before: Tables,
    after: Tables,
    step: Step,
    optimizer: Any,
    learning_rate: float,
    *,
    fixed_vocabulary: bool,
) -> None:
    """Rows that were looked up moved by the rule; no other moved.

    A rule that moves all rows moves the others, if they are there, by 0.
    """
    rule, parameters = rule_of(optimizer)
    is_lazy = parameters.get("lazy_adam", parameters.get("lazy_lion", 1.0))
    for t in range(len(DIMS)):
        sums = _sums(step, t, fixed_vocabulary=fixed_vocabulary)
        for i in before.rows[t]:
            row, slots = after.rows[t][i], after.slots[t][i]
            is_there = fixed_vocabulary or before.present[t][i]
            if i not in sums and not is_lazy and is_there:
                sums[i] = Terms.of(np.zeros(DIMS[t]))
            if i not in sums:
                np.testing.assert_array_equal(row, before.rows[t][i])
                continue
            new_row, new_slots = apply_rule(
                rule,
                before.rows[t][i].astype(np.float64),
                [s.astype(np.float64) for s in before.slots[t][i]],
                sums[i].value,
                learning_rate,
                parameters,
            )
            assert_close(row, new_row, f"table {t}, row {i}")
            for s, expected in enumerate(new_slots):
                assert_close(
                    slots[s], expected, f"table {t}, slot {s}, row {i}"
                )
