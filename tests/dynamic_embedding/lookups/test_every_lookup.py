"""Every lookup of the module beside NumPy: dense, sparse, safe, ragged, unique."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de

SHARDS = pytest.mark.parametrize("shards", [1, 2])
LOOK_UPS = pytest.mark.parametrize(
    "look_up", [de.embedding_lookup, de.embedding_lookup_unique]
)


def variable(dim=2, shards=1, initializer=0.0):
    return de.Variable(
        dim=dim, devices=["/CPU:0"] * shards, initializer=initializer
    )


def keys(*values):
    return tf.constant(values, tf.int64)


@LOOK_UPS
def test_row_61_a_lookup_needs_a_name_in_eager_mode(look_up):
    with pytest.raises(ValueError, match="must have a `name`"):
        look_up(variable(), [1])


def test_row_62_update_op_writes_the_scaled_rows_of_a_lookup():
    v = variable(1, shards=2, initializer=2.0)
    rows, trainable = de.embedding_lookup(
        v, range(5), name="x", max_norm=1.0, return_trainable=True
    )
    trainable.update_op()

    np.testing.assert_array_equal(rows, np.ones([5, 1]))
    assert [int(v.size()), int(v.size(0)), int(v.size(1))] == [5, 3, 2]
    assert int(trainable.size()) == 5
    np.testing.assert_array_equal(v.lookup(range(5)), np.ones([5, 1]))


@SHARDS
@LOOK_UPS
def test_row_63_long_rows_are_scaled_to_max_norm(shards, look_up):
    v = variable(shards=shards)
    rows = np.array([[2, 4], [3, 1], [0.3, 0.4]], np.float32)
    v.upsert([1, 2, 3], rows)
    found = look_up(v, [1, 2, 3], name="x", max_norm=2.0)
    norms = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 2)
    np.testing.assert_allclose(found, 2 * rows / norms, rtol=1e-6)


@LOOK_UPS
@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), "1", True])
def test_max_norm_must_be_above_0(look_up, max_norm):
    with pytest.raises(ValueError, match="`max_norm` must be a number above 0"):
        look_up(variable(), [1], name="x", max_norm=max_norm)
    with pytest.raises(ValueError, match="`max_norm` must be a number above 0"):
        de.shadow_ops.ShadowVariable(variable(), max_norm=max_norm)


def test_row_64_a_unique_lookup_honours_max_norm():
    v = variable()
    v.upsert([7], [[3.0, 4.0]])
    found = de.embedding_lookup_unique(v, [7, 7], name="x", max_norm=1.0)
    np.testing.assert_allclose(found, [[0.6, 0.8]] * 2, rtol=1e-6)


@SHARDS
def test_row_65_a_unique_lookup_takes_ids_of_any_shape(shards):
    v, rows = variable(3, shards), np.random.default_rng(0).normal(size=(9, 3))
    rows = rows.astype(np.float32)
    v.upsert(range(9), rows)
    ids = np.random.default_rng(1).integers(0, 9, [2, 3, 4])
    found = de.embedding_lookup_unique(v, ids, name="x")
    np.testing.assert_array_equal(found, rows[ids])


SAFE_INDICES = [[0, 0], [0, 1], [2, 0]]
SAFE = pytest.mark.parametrize(
    ("combiner", "plain", "weighted"),
    [
        ("sum", [3, 0, 3, 0], [0, 0, 1.5, 0]),
        ("mean", [1.5, 0, 3, 0], [1, 0, 3, 0]),
        ("sqrtn", [3 / np.sqrt(2), 0, 3, 0], [1, 0, 3, 0]),
    ],
)


def safe(shards, combiner, *, weights=None, default_id=None):
    """The first column of a lookup in rows k -> [k, k]; columns are equal."""
    v = variable(shards=shards)
    v.upsert([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    ids = tf.SparseTensor(SAFE_INDICES, keys(1, 2, 3), [4, 2])
    if weights is not None:
        weights = tf.SparseTensor(SAFE_INDICES, weights, [4, 2])
    out = de.safe_embedding_lookup_sparse(
        v, ids, weights, combiner=combiner, default_id=default_id
    ).numpy()
    np.testing.assert_array_equal(out[:, 0], out[:, 1])
    return out[:, 0].tolist()


@SHARDS
@SAFE
def test_row_66_a_safe_lookup_gives_zeros_for_an_empty_bag(
    shards, combiner, plain, weighted
):
    del weighted
    assert safe(shards, combiner) == pytest.approx(plain)


@SHARDS
@SAFE
def test_row_67_a_safe_lookup_gives_an_empty_bag_the_default_ids_row(
    shards, combiner, plain, weighted
):
    del weighted
    filled = [3 if x == 0 else x for x in plain]
    assert safe(shards, combiner, default_id=3) == pytest.approx(filled)


@SHARDS
@SAFE
def test_row_68_a_safe_lookup_prunes_weights_unless_it_sums(
    shards, combiner, plain, weighted
):
    del plain
    weights = [2.0, -1.0, 0.5]
    assert safe(shards, combiner, weights=weights) == pytest.approx(weighted)


@SHARDS
@pytest.mark.parametrize("shape", [[4, 2], [2, 2, 2]])
def test_row_69_a_negative_id_is_an_id_and_the_last_dimension_goes(
    shards, shape
):
    v = variable(1, shards, initializer=9.0)
    v.upsert([-100, 1, 2], [[5.0], [1.0], [2.0]])
    ids = tf.SparseTensor([[0, 0], [0, 1], [3, 1]], keys(1, -100, 2), [4, 2])
    ids = tf.sparse.reshape(ids, shape)
    out = de.safe_embedding_lookup_sparse(v, ids, combiner="sum")
    expected = np.reshape([6, 0, 0, 2], shape[:-1])
    np.testing.assert_array_equal(out[..., 0], expected)


@pytest.mark.parametrize("ragged", [False, True])
def test_row_70_ids_and_weights_of_another_dtype_are_refused(ragged):
    v = variable()
    ops = de.ragged_embedding_ops if ragged else de
    make = tf.ragged.constant if ragged else tf.sparse.from_dense
    ids = (
        make(np.array([[1]], np.int64)) if not ragged else make([[1]], tf.int64)
    )
    with pytest.raises(TypeError, match="must be int64; got uint64"):
        ops.embedding_lookup_sparse(v, tf.cast(ids, tf.uint64), None)
    with pytest.raises(TypeError, match="must be int64; got uint64"):
        ops.safe_embedding_lookup_sparse(v, tf.cast(ids, tf.uint64))
    with pytest.raises(TypeError, match="must be float32; got float64"):
        ops.safe_embedding_lookup_sparse(v, ids, tf.cast(ids, tf.float64))
    with pytest.raises(TypeError, match="must be int64"):
        de.embedding_lookup(v, tf.constant([1.0]), name="x")


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_narrower_ids_are_looked_up_where_tfra_refuses_them(ragged, safe):
    v = variable(initializer=0.0)
    v.upsert([1], [[2.0] * v.dim])
    ops = de.ragged_embedding_ops if ragged else de
    ids = tf.ragged.constant([[1, 1], [1]], tf.int32)
    ids = ids if ragged else ids.to_sparse()
    if safe:
        out = ops.safe_embedding_lookup_sparse(v, ids, None, "sum")
    else:
        out = ops.embedding_lookup_sparse(v, ids, None, combiner="sum")
    np.testing.assert_array_equal(out[:, 0], [4.0, 2.0])


def test_row_71_a_shadow_reads_stale_or_fresh_rows():
    v = variable(initializer=0.5)
    v.upsert([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    shadow = de.shadow_ops.ShadowVariable(v)
    assert shadow.read_value().numpy().tolist() == []

    shadow._reset_ids(keys(2, 3, 4))
    assert shadow.read_value(do_prefetch=False).numpy().tolist() == []
    fresh = [[2, 2], [3, 3], [0.5, 0.5]]
    assert shadow.read_value(do_prefetch=True).numpy().tolist() == fresh

    shadow._reset_ids(keys(3))
    assert shadow.read_value(do_prefetch=False).numpy().tolist() == fresh
    assert shadow.read_value(do_prefetch=True).numpy().tolist() == [[3, 3]]


@SHARDS
@pytest.mark.parametrize("with_unique", [True, False])
def test_row_72_ragged_ids_have_ragged_rows(shards, with_unique):
    v = variable(shards=shards, initializer=0.5)
    v.upsert([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    shadow = de.shadow_ops.ShadowVariable(v)
    ids = tf.ragged.constant([[2, 3], [4, 5, 1]], dtype=tf.int64)

    rows = de.shadow_ops.embedding_lookup_unique(shadow, ids, 2, with_unique)

    assert rows.to_list() == [
        [[2, 2], [3, 3]],
        [[0.5, 0.5], [0.5, 0.5], [1, 1]],
    ]


@SHARDS
def test_row_87_a_function_keeps_the_order_of_the_program(shards):
    v = variable(1, shards, initializer=-1.0)

    @tf.function
    def step():
        v.upsert([1, 2], [[1.0], [2.0]])
        rows, size = v.lookup([1]), v.size()
        v.remove(keys(1))
        return rows, size, v.lookup([1]), v.size()

    rows, size, rows_after, size_after = step()
    assert (float(rows[0, 0]), int(size)) == (1, 2)
    assert (float(rows_after[0, 0]), int(size_after)) == (-1, 1)


@pytest.mark.parametrize("nested", [False, True])
def test_row_89_a_lookup_under_xla_is_refused_when_it_is_traced(nested):
    v = variable()

    def look_up(ids):
        return de.embedding_lookup(v, ids)

    inner = tf.function(look_up) if nested else look_up
    compiled = tf.function(lambda ids: inner(ids) * 2, jit_compile=True)
    with pytest.raises(NotImplementedError, match="Leave jit_compile out"):
        compiled(keys(1))
    with pytest.raises(NotImplementedError, match="look the rows up outside"):
        compiled.get_concrete_function(keys(1))

    # The way out: rows are looked up outside, and the rest is compiled.
    twice = tf.function(lambda rows: rows * 2, jit_compile=True)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(twice(de.embedding_lookup(v, ids)))
        return tape.gradient(loss, v)

    assert step(keys(1)).values.numpy().tolist() == [[2, 2]]


def test_row_90_a_trainable_is_found_by_its_name():
    v = variable()
    _, trainable = de.embedding_lookup(
        v, [1], name="mine", return_trainable=True
    )
    for find in (v.get_trainable_by_name, v.get_eager_trainable_by_name):
        assert find("mine") is trainable
        assert find("x") is None
        with pytest.raises(TypeError, match="must be a string"):
            find(1)
