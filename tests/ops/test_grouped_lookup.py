"""Grouped lookups against the float64 oracle, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from oracle import assert_close, lookup_feature
from tests.ops import batches
from tfembed.errors import ArgumentError, DtypeError
from tfembed.ops import FeatureIds, FeaturePlan, feature_ids, grouped_lookup
from tfembed.ops import table as table_ops

STATIC = pytest.mark.parametrize("static", [True, False])
MODES = pytest.mark.parametrize("run", [lambda f: f, tf.function])
Refused = tf.errors.InvalidArgumentError


def look_up(tables, features):
    return grouped_lookup(
        tables,
        batches.DIMS,
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
    )


def expect(actual, features, static):
    for a, f in zip(actual, features, strict=True):
        weights = batches.rows(f.table)
        expected = lookup_feature(
            f,
            lambda i, weights=weights: weights[i],
            batches.DIMS[f.table],
            fixed_vocabulary=static,
        )
        assert_close(a, expected)


@MODES
@STATIC
def test_all_kinds_over_two_tables_agree_with_the_oracle(static, run):
    features = batches.features()
    tables = batches.make_tables(static)
    expect(run(lambda: look_up(tables, features))(), features, static)


def test_variables_and_tables_mix_and_may_occur_twice():
    features = batches.features()
    variable = batches.make_tables(True)[0]
    handle = batches.make_tables(False)[1]
    plans = [batches.plan(f) for f in features]
    # The same two tables again, as entries 2 and 3.
    plans = [
        FeaturePlan(
            p.table + 2 * (f % 2), p.combiner, p.max_sequence_length, p.validate
        )
        for f, p in enumerate(plans)
    ]
    found = grouped_lookup(
        [variable, handle] * 2,
        batches.DIMS * 2,
        [batches.tensors(f) for f in features],
        plans,
    )
    expect(found, features, True)


@STATIC
@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_no_samples_give_no_activations(static, kind):
    features = [batches.feature(kind, [], table=1)]
    (found,) = look_up(batches.make_tables(static), features)
    assert found.shape == [0, 16]


@STATIC
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("length", [0, 2])
def test_samples_without_ids_are_zeros(static, kind, length):
    features = [
        batches.feature(kind, [[], []], table=0, max_sequence_length=length)
    ]
    (found,) = look_up(batches.make_tables(static), features)
    assert not found.numpy().any()
    assert found.shape == ([2, 2, 3] if length else [2, 3])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@STATIC
def test_validated_sparse_ids_are_pruned_as_safe_lookups_do(static, combiner):
    ids = [[1, -2, 3], [4], [-1]]
    if not static:
        ids = [[abs(i) for i in of_bag] for of_bag in ids]
    weights = [[1.0, 2.0, -0.5], [0.0], [1.0]]
    features = [
        batches.feature("sparse", ids, weights, combiner=combiner, table=0),
        batches.feature("sparse", ids, combiner=combiner, table=1),
    ]
    expect(look_up(batches.make_tables(static), features), features, static)


def test_weights_are_kept_without_validation_and_in_ragged_input():
    ids, weights = [[1, 2, 3], [4]], [[1.0, 2.0, -0.5], [0.0]]
    features = [
        batches.feature("sparse", ids, weights, validate=False),
        batches.feature("ragged", ids, weights),
    ]
    expect(look_up(batches.make_tables(True), features), features, True)


def test_keys_below_zero_are_keys_of_a_hash_table():
    handle = table_ops.create(1)
    table_ops.upsert(handle, [-5], [[2.0]])
    value = tf.sparse.from_dense(tf.constant([[-5]]))
    (found,) = grouped_lookup(
        [handle], [1], [feature_ids(value)], [FeaturePlan(0, "sum")]
    )
    assert found.numpy().tolist() == [[2.0]]


def test_missing_keys_read_their_initial_row():
    handle = table_ops.create(8, initializer="normal", initializer_args=[0, 1])
    expected, _ = table_ops.lookup(handle, [7, 9], dim=8)
    (found,) = grouped_lookup(
        [handle],
        [8],
        [feature_ids(tf.constant([7, 9]))],
        [FeaturePlan(0, "sum")],
    )
    np.testing.assert_array_equal(found, expected)
    assert table_ops.size(handle).numpy() == 0


@MODES
@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(
    ("kind", "bad"),
    [("dense", 12), ("dense", -1), ("ragged", -1), ("ragged", 1 << 40),
     ("sparse", 12)],
)  # fmt: skip
def test_an_id_that_is_not_in_its_table_is_named(kind, bad, validate, run):
    variable = tf.Variable(tf.zeros([12, 3]))
    ids = batches.feature(kind, [[3], [bad]])
    plan = FeaturePlan(0, "mean", 0, validate, "movie")
    with pytest.raises(Refused, match=rf"feature 'movie': id {bad} is not in "
                       r"\[0, 12\)"):  # fmt: skip
        run(
            lambda: grouped_lookup(
                [variable], [3], [batches.tensors(ids)], [plan]
            )
        )()


def test_an_id_below_zero_is_named_without_validation():
    features = [batches.feature("sparse", [[-1]], validate=False)]
    with pytest.raises(Refused, match="feature 0: id -1 is not in"):
        look_up(batches.make_tables(True), features)


def one(kind, ids, rows=(), weights=(), batch=0, length=0, **table):
    """A lookup of one feature as given, right or wrong."""
    feature = FeatureIds(
        kind,
        tf.constant(ids, tf.int64),
        tf.constant(rows, tf.int64),
        tf.constant(weights, tf.float32),
        tf.constant(batch, tf.int64),
    )
    source = table.get("source", tf.Variable(tf.zeros([9, 2])))
    return grouped_lookup(
        [source],
        [table.get("dim", 2)],
        [feature],
        [FeaturePlan(table.get("table", 0), "mean", length, name="f")],
    )


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (("ragged", [1, 2], [1, 2], (), 1), "start at 0; got 1"),
        (("ragged", [], [], (), -1), "batch size -1"),
        (("ragged", [1, 2], [0, 2, 1, 2], (), 3), "decrease; got 2 and then 1"),
        (("ragged", [1, 2], [0, 1], (), 1), "number of ids, 2; got 1"),
        (("ragged", [1, 2], [0, 3], (), 1), "number of ids, 2; got 3"),
        (("ragged", [1, 2], [0, 2], (), 2), "batch size 2 is not that"),
        (("ragged", [1], [[0, 1]], (), 1), "rows a vector"),
        (("dense", [1, 2], (), (), 3), "batch size 3 is not that"),
        (("dense", [[1]], (), (), 1), "must be vectors"),
        (("dense", [1], (), [1.0], 1), "no weights"),
        (("dense", [1], [1], (), 1), "no rows"),
        (("dense", [1], (), (), 1, 4), "sparse or ragged ids"),
        (("ragged", [1], [0, 1], (), 1, -1), "must not be negative"),
        (("ragged", [1, 2], [0, 2], [1.0], 1), "2 ids, or none; got 1"),
        (("ragged", [1], [0, 1], [[1.0]], 1), "must be vectors"),
        (("sparse", [1, 2], [[1, 0], [0, 0]], (), 2), "in order; got .0,0."),
        (("sparse", [1, 2], [[0, 1], [0, 0]], (), 2, 3), "in order"),
        (("sparse", [1, 2], [[0, 1], [0, 1]], (), 2, 3), "in order"),
        (("sparse", [1], [[2, 0]], (), 2), "outside of the batch of 2"),
        (("sparse", [1], [[-1, 0]], (), 2), "outside of the batch"),
        (("sparse", [1], [[0, -1]], (), 2), "outside of the batch"),
        (("sparse", [1], [[0, 0, 0]], (), 2), "a pair for each id"),
        (("sparse", [1, 2], [[0, 0]], (), 2), "a pair for each id"),
        (("sparse", [], np.zeros([0, 2]), (), -1), "batch size -1 cannot be"),
    ],
)
def test_a_feature_that_does_not_fit_is_refused_by_name(feature, text):
    with pytest.raises(Refused, match=f"feature 'f'.*{text}"):
        one(*feature)


def test_batches_too_large_for_any_memory_are_refused():
    for batch in (1 << 45, (1 << 63) - 1):
        with pytest.raises(
            (tf.errors.ResourceExhaustedError, Refused), match=r"\d{5}"
        ):
            one("sparse", [], np.zeros([0, 2]), (), batch, 4)


def test_a_table_that_does_not_fit_is_refused():
    ids = ("dense", [1], (), (), 1)
    with pytest.raises(
        Refused, match=r"table 0 must be float \[vocabulary,3\]"
    ):
        one(*ids, dim=3)
    with pytest.raises(Refused, match="table 0 must be float"):
        one(*ids, source=tf.Variable(tf.zeros([9, 2], tf.float16)))
    with pytest.raises(Refused, match="table 0 must be float"):
        one(*ids, source=tf.Variable(tf.zeros([9])))
    with pytest.raises(Refused, match="'t', have dim 5; got dim 2"):
        one(*ids, source=table_ops.create(5, name="t"))
    with pytest.raises(Refused, match="must be positive; got 0"):
        one(*ids, source=tf.Variable(tf.zeros([9, 0])), dim=0)
    with pytest.raises(Refused, match=r"table must be in \[0, 1\); got 1"):
        one(*ids, table=1)
    with pytest.raises(Refused, match=r"must be handles of tf\.Variables"):
        one(*ids, source=tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int64, value_dtype=tf.float32))  # fmt: skip


def test_a_variable_without_a_value_is_refused():
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.float32, shape=[9, 2], shared_name="never_assigned"
    )
    with pytest.raises(
        (tf.errors.NotFoundError, tf.errors.FailedPreconditionError)
    ):
        one("dense", [1], (), (), 1, source=handle)


def test_feature_ids_take_what_models_have():
    dense = feature_ids(tf.constant([[1], [2]], tf.int32))
    assert dense.ids.numpy().tolist() == [1, 2]
    ragged = feature_ids(
        tf.ragged.constant([[1], []], row_splits_dtype=tf.int32)
    )
    assert ragged.rows.numpy().tolist() == [0, 1, 1]
    assert ragged.rows.dtype == tf.int64
    sparse = tf.sparse.from_dense([[0, 4], [0, 0]])
    weights = tf.sparse.from_dense([[0, 0.5], [0, 0]])
    found = feature_ids(sparse, weights)
    assert found.weights.numpy().tolist() == [0.5]
    assert found.batch_size.numpy() == 2


@pytest.mark.parametrize(
    ("value", "weights", "error", "text"),
    [
        (tf.constant(1), None, ArgumentError, "rank 1 or 2; got rank 0"),
        (tf.zeros([2, 2], tf.int64), None, ArgumentError, r"\[B, 1\]"),
        (tf.constant([1.5]), None, DtypeError, "user.*got float32"),
        (tf.constant([True]), None, DtypeError, "got bool"),
        (tf.constant([1]), tf.constant([1.0]), ArgumentError, "is dense"),
        (
            tf.ragged.constant([[[1]]]), None, ArgumentError, "rank 2; got rank 3",
        ),
        (
            tf.sparse.from_dense([[[1]]]), None, ArgumentError, "got rank 3",
        ),
        (
            tf.ragged.constant([[1]]), [[1.0]], ArgumentError, "a RaggedTensor",
        ),
        (
            tf.ragged.constant([[1]]), tf.ragged.constant([[1]]), DtypeError,
            "must be floats; got int32",
        ),
    ],
)  # fmt: skip
def test_feature_ids_refuse_the_rest_by_name(value, weights, error, text):
    with pytest.raises(error, match=text):
        feature_ids(value, weights, name="user")


def test_samples_without_number_are_refused():
    """Their activations may be promised, their row splits are not."""
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"\d{5}"):
        one("sparse", [1], [[0, 0]], (), 1 << 37, 1)
