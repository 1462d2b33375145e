"""Weights stand where the ids stand that they belong to, or the lookup raises.

Two tensors that must have the same places are not paired by position alone: in
sparse, safe and ragged lookups, by variables and shadows, of one shard and of two,
and in calls that write keys with values; TPUEmbedding and its kin have tests of
their own in tests/embedding.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import dynamic_embedding as de
from tfembed.dynamic_embedding import ragged_embedding_ops

ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
PLACES = [[0, 0], [0, 1], [1, 0]]
REFUSED = (tf.errors.InvalidArgumentError, ValueError)


def _table(kind):
    shards = 2 if kind == "two shards" else 1
    table = de.Variable(dim=2, name="t", devices=["/CPU:0"] * shards)
    table.upsert(tf.constant([1, 2, 3], tf.int64), ROWS)
    return de.shadow_ops.ShadowVariable(table) if kind == "shadow" else table


KINDS = ["one shard", "two shards", "shadow"]
IDS = tf.SparseTensor(PLACES, tf.constant([1, 2, 3], tf.int64), [2, 2])
RAGGED_IDS = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)


def _sparse(places, weights, shape=(2, 2)):
    places = np.reshape(np.array(places, np.int64), [-1, len(shape)])
    return tf.SparseTensor(places, tf.constant(weights, tf.float32), shape)


def _ragged(rows, splits=tf.int64):
    return tf.ragged.constant(rows, dtype=tf.float32, row_splits_dtype=splits)


BAD = {
    "moved": _sparse([[0, 0], [1, 0], [1, 1]], [0.5, 1.0, 2.0]),
    "another order": _sparse([[0, 1], [0, 0], [1, 0]], [0.5, 1.0, 2.0]),
    "one": _sparse([[0, 0]], [0.5]),
    "fewer": _sparse(PLACES[:2], [0.5, 1.0]),
    "more": _sparse([*PLACES, [1, 1]], [0.5, 1.0, 2.0, 3.0]),
    "none": _sparse([], []),
    "another rank": _sparse([[*p, 0] for p in PLACES], [1.0] * 3, (2, 2, 1)),
}
BAD_RAGGED = {
    "moved": _ragged([[0.5], [1.0, 2.0]]),
    "one": _ragged([[0.5], []]),
    "fewer": _ragged([[0.5, 1.0], []]),
    "more": _ragged([[0.5, 1.0], [2.0, 3.0]]),
    "none": _ragged([[], []]),
    "more rows": _ragged([[0.5, 1.0], [2.0], []]),
    "fewer rows": _ragged([[0.5, 1.0, 2.0]]),
}


def _looks_up(function, **options):
    return lambda table, ids, weights, combiner: function(
        table, ids, weights, combiner=combiner, name="q", **options
    )


SPARSE = {
    "sparse": _looks_up(de.embedding_lookup_sparse),
    "max_norm": _looks_up(de.embedding_lookup_sparse, max_norm=99.0),
    "safe": _looks_up(de.safe_embedding_lookup_sparse),
    "safe with default": _looks_up(
        de.safe_embedding_lookup_sparse, default_id=3
    ),
}
RAGGED = {
    "ragged": _looks_up(ragged_embedding_ops.embedding_lookup_sparse),
    "ragged safe": _looks_up(
        ragged_embedding_ops.safe_embedding_lookup_sparse, default_id=3
    ),
}
LOOKUPS = {name: (f, IDS) for name, f in SPARSE.items()}
LOOKUPS |= {name: (f, RAGGED_IDS) for name, f in RAGGED.items()}
CASES = [(n, w) for n in SPARSE for w in BAD]
CASES += [(n, w) for n in RAGGED for w in BAD_RAGGED]


def _bad(lookup, case):
    return (BAD if lookup in SPARSE else BAD_RAGGED)[case]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("lookup", "case"), CASES)
def test_weights_at_other_places_are_refused(kind, lookup, case):
    function, ids = LOOKUPS[lookup]
    for combiner in ("sum", "mean"):
        with pytest.raises(REFUSED, match="weights|dimension|shape"):
            function(_table(kind), ids, _bad(lookup, case), combiner)


def _spec(value):
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([None] * value.shape.rank, value.dtype)
    return tf.RaggedTensorSpec([None, None], value.dtype)


@pytest.mark.parametrize("kind", ["one shard", "shadow"])
@pytest.mark.parametrize("lookup", ["sparse", "safe", "ragged", "ragged safe"])
def test_functions_raise_when_they_run_and_trace_once(kind, lookup):
    look_up, ids = LOOKUPS[lookup]
    table, traces = _table(kind), []

    @tf.function(input_signature=[_spec(ids), _spec(_bad(lookup, "moved"))])
    def function(ids, weights):
        traces.append(1)
        return look_up(table, ids, weights, "sum")

    good = ids.with_values(tf.constant([0.5, 1.0, 2.0]))
    expected = [0.5 * ROWS[0] + ROWS[1], 2 * ROWS[2]]
    np.testing.assert_allclose(function(ids, good), expected)
    for case in ("moved", "one", "none"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights"):
            function(ids, _bad(lookup, case))
    np.testing.assert_allclose(function(ids, good), expected)
    assert len(traces) == 1


@pytest.mark.parametrize("lookup", ["sparse", "safe"])
def test_graphs_of_tensorflow_1_raise_when_they_run(lookup):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = de.get_variable("t", dim=2, initializer=1.0)
        ids = tf.compat.v1.sparse_placeholder(tf.int64, [None, None])
        weights = tf.compat.v1.sparse_placeholder(tf.float32, [None, None])
        found = LOOKUPS[lookup][0](table, ids, weights, "sum")
        session.run(tf.compat.v1.global_variables_initializer())

        def run(places):
            value = tf.compat.v1.SparseTensorValue
            return session.run(
                found,
                {
                    ids: value(PLACES, [1, 2, 3], [2, 2]),
                    weights: value(places, [0.5, 1.0, 2.0], [2, 2]),
                },
            )

        np.testing.assert_allclose(run(PLACES), [[1.5, 1.5], [2.0, 2.0]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights"):
            run([[0, 0], [1, 0], [1, 1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_weights_at_the_same_places_may_be_other_tensors(kind, lookup):
    function, ids = LOOKUPS[lookup]
    values = [0.5, 1.0, 2.0]
    weights = (
        _sparse(PLACES, values, (2, 5))
        if lookup in SPARSE
        else _ragged([values[:2], values[2:]], tf.int32)
    )
    found = function(_table(kind), ids, weights, "sum")
    expected = [0.5 * ROWS[0] + ROWS[1], 2 * ROWS[2]]
    np.testing.assert_allclose(found, expected, 1e-6)


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_pruned_weights_stay_with_their_ids(lookup):
    function, ids = LOOKUPS[lookup]
    weights = ids.with_values(tf.constant([0.0, 1.0, 2.0]))
    with tf.GradientTape() as tape:
        table = _table("one shard")
        found = function(table, ids, weights, "mean")
        loss = tf.reduce_sum(found)
    np.testing.assert_allclose(found, ROWS[1:])
    gradient = tape.gradient(loss, table)
    sums = dict(
        zip(gradient.indices.numpy(), gradient.values.numpy(), strict=True)
    )
    np.testing.assert_allclose(sums[2], [1.0, 1.0])


def test_ids_of_three_dimensions_are_compared_as_they_are():
    places = [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    ids = tf.SparseTensor(places, tf.constant([1, 2, 3], tf.int64), [2, 2, 2])
    moved = _sparse([[0, 0, 1], [0, 1, 1], [1, 0, 0]], [1.0] * 3, (2, 2, 2))
    table = _table("one shard")
    for look_up in (SPARSE["sparse"], SPARSE["safe"]):
        look_up(table, ids, ids.with_values(tf.ones([3])), "sum")
        with pytest.raises(REFUSED, match="weights"):
            look_up(table, ids, moved, "sum")


KEYS = tf.constant([1, 2, 3], tf.int64)
WRITES = {
    "upsert": lambda t, k, v: t.upsert(k, v),
    "accum": lambda t, k, v: t.accum(k, v, v, tf.ones(tf.shape(k), tf.bool)),
    "old values": lambda t, k, v: t.accum(
        k, v[:1], v, tf.ones(tf.shape(k), tf.bool)
    ),
    "exists": lambda t, k, v: t.accum(
        KEYS[: tf.shape(v)[0]], v, v, tf.ones([1], tf.bool)
    ),
}


@pytest.mark.parametrize("kind", ["one shard", "two shards"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_rows_that_are_not_one_for_each_key_are_refused(kind, write, traced, n):
    table = _table(kind)

    def call(keys, values):
        WRITES[write](table, keys, values)
        return table.size()

    if traced:
        call = tf.function(
            call,
            input_signature=[
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([None, 2]),
            ],
        )
    keys = KEYS if write in ("upsert", "accum") else KEYS[:2]
    values = 10 * ROWS[:n] if write in ("upsert", "accum") else 10 * ROWS[:2]
    with pytest.raises(REFUSED):
        call(keys, values)
    np.testing.assert_allclose(table.lookup(KEYS), ROWS)
