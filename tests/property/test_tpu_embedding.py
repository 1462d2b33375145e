"""Twenty steps of random embeddings beside the oracle, which runs on its own.

HYPOTHESIS_PROFILE=full tries 2,000 of them.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfembed
from embedding import steps
from embedding.marks import NEEDS_XLA
from oracle import Table, assert_close, lookup_feature
from property import configurations, random_batches
from tfembed.tables import HashTable

STEPS = 20
IS_FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"


@settings(max_examples=2000 if IS_FULL else 25)
@given(st.integers(0, 2**32 - 1))
def test_twenty_steps_of_a_random_embedding_equal_the_oracle(seed):
    _train_beside_the_oracle(seed, "host")


@NEEDS_XLA
@settings(max_examples=200 if IS_FULL else 4)
@given(st.integers(0, 2**32 - 1))
def test_twenty_steps_compiled_by_xla_equal_the_oracle(seed):
    _train_beside_the_oracle(seed, "xla")


def _train_beside_the_oracle(seed, engine):
    rng = np.random.default_rng(seed)
    tables = [
        configurations.draw_table(rng, f"table{t}", may_grow=engine == "host")
        for t in range(rng.integers(1, 3))
    ]
    slots = random_batches.draw_slots(rng, tables)
    embedding = tfembed.TPUEmbedding(
        random_batches.feature_configs(tables, slots), engine=engine
    )
    variables = list(embedding.embedding_tables.values())
    oracles = [
        _oracle(table, variable)
        for table, variable in zip(tables, variables, strict=True)
    ]
    for number in range(1, STEPS + 1):
        features, gradients = random_batches.draw_batch(rng, tables, slots)
        pairs = [steps.as_input(feature) for feature in features]
        embedding.enqueue(
            [value for value, _ in pairs], [weights for _, weights in pairs]
        )
        activations = embedding.dequeue()
        _check_activations(activations, features, tables, oracles, number)
        embedding.apply_gradients([tf.constant(g) for g in gradients])
        for t, (table, oracle) in enumerate(zip(tables, oracles, strict=True)):
            oracle.step(
                [f for f in features if f.table == t],
                [
                    g
                    for f, g in zip(features, gradients, strict=True)
                    if f.table == t
                ],
                table.rate(number),
            )
    for table, variable, oracle in zip(tables, variables, oracles, strict=True):
        _check_table(embedding, table, variable, oracle)


def _oracle(table, variable) -> Table:
    ids = configurations.IDS
    if table.is_static:
        ids = range(configurations.VOCABULARY)
        rows = variable.numpy()
    else:
        rows = np.full([len(ids), table.config.dim], configurations.FIRST)
    return Table(ids, rows, table.is_static, table.rule)


def _check_activations(activations, features, tables, oracles, number):
    for i, (feature, actual) in enumerate(
        zip(features, activations, strict=True)
    ):
        table, oracle = tables[feature.table], oracles[feature.table]
        expected = lookup_feature(
            feature,
            functools.partial(oracle.row, quantization=table.quantization),
            table.config.dim,
            fixed_vocabulary=table.is_static,
        )
        assert_close(actual, expected, f"step {number}, feature {i}")


def _check_table(embedding, table, variable, oracle):
    name = table.config.name
    if isinstance(variable, HashTable):
        keys, values = (part.numpy() for part in variable.export())
        slots = [part.numpy() for part in variable.export_slots()[1].values()]
        where = np.array([oracle.place[int(key)] for key in keys], int)
        assert set(where) == set(np.flatnonzero(oracle.present))
    else:
        known = embedding._variables[name]
        values = variable.numpy()
        slots = [known[s].numpy() for s in table.config.optimizer.slot_names]
        where = np.arange(len(values))
    text = table.config.optimizer.rule_text()
    parts = zip([values, *slots], [oracle.rows, *oracle.slots], strict=True)
    for number, (actual, expected) in enumerate(parts):
        expected = type(expected)(expected.value[where], expected.size[where])
        assert_close(actual, expected, f"{name}, {text}, part {number}")
