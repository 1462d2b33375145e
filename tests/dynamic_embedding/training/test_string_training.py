"""Training of tables whose keys are strings, through every kind of lookup."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers, policies, tables

K = tf.keras.optimizers
LONG = "a much longer key than twenty bytes, of which there is one"
NAMES = ["a", "b", "", LONG, "ü", "a\0"]
OPTIMIZERS = {
    "fused": lambda: K.Adagrad(0.5),
    "not fused": lambda: K.SGD(0.5, momentum=0.9),
}


@pytest.fixture(params=[1, 3], ids=["1 shard", "3 shards"])
def shards(request):
    return request.param


def variable(shards=1, **options):
    options = {"dim": 2, "initializer": 1.0, "name": "s", **options}
    return de.Variable(tf.string, devices=["/CPU:0"] * shards, **options)


def twin(**options):
    """The same table with the names' places as keys."""
    options = {"dim": 2, "initializer": 1.0, "name": "n", **options}
    return de.Variable(tf.int64, **options)


def places(names):
    return tf.constant([NAMES.index(name) for name in names], tf.int64)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("bp_v2", [False, True])
def test_string_keys_train_as_integer_keys_do(shards, make, bp_v2):
    v, n = variable(shards, bp_v2=bp_v2), twin(bp_v2=bp_v2)
    batches = [["a", "b", "a"], ["", LONG, "ü", "b"], ["a\0", "a", LONG]]
    for params, keys in ((v, tf.constant), (n, places)):
        optimizer = de.DynamicEmbeddingOptimizer(make(), bp_v2=bp_v2)
        for names in batches * 2:
            with tf.GradientTape() as tape:
                rows = de.embedding_lookup(params, keys(names), name="x")
                others = de.embedding_lookup_unique(
                    params, keys(names[:2]), name="y"
                )
                factors = tf.range(1.0, 1.0 + len(names))[:, tf.newaxis]
                loss = tf.reduce_sum(rows**2 * factors)
                loss += tf.reduce_sum(others)
            optimizer.apply_gradients([(tape.gradient(loss, params), params)])
    assert int(v.size()) == int(n.size()) == len(NAMES)
    np.testing.assert_allclose(
        v.lookup(NAMES), n.lookup(places(NAMES)), rtol=1e-6
    )


def test_gradients_are_slices_by_string_of_all_lookups(shards):
    v = variable(shards)
    with tf.GradientTape() as tape:
        one = de.embedding_lookup(v, tf.constant([["a", "b"]]), name="x")
        two = de.embedding_lookup(v, tf.constant("a"), name="y")
        loss = tf.reduce_sum(one) + 3 * tf.reduce_sum(two)
    gradient = tape.gradient(loss, v)
    sums = {}
    for key, row in zip(
        gradient.indices.numpy(), gradient.values.numpy(), strict=True
    ):
        sums[key] = sums.get(key, 0) + row
    assert {key: row.tolist() for key, row in sums.items()} == {
        b"a": [4, 4],
        b"b": [1, 1],
    }


def sparse(names):
    return tf.ragged.constant(names, dtype=tf.string).to_sparse()


LOOKUPS = {
    "sparse": lambda v, ids: de.embedding_lookup_sparse(v, sparse(ids), None),
    "safe": lambda v, ids: de.safe_embedding_lookup_sparse(
        v, sparse(ids), default_id="b"
    ),
    "ragged": lambda v, ids: de.ragged_embedding_ops.embedding_lookup_sparse(
        v, tf.ragged.constant(ids, dtype=tf.string), None
    ),
    "sparse, clipped": lambda v, ids: de.embedding_lookup_sparse(
        v, sparse(ids), None, max_norm=100.0
    ),
}


@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=list(LOOKUPS))
@pytest.mark.parametrize("in_function", [False, True])
def test_bags_of_strings_are_trained(shards, look_up, in_function):
    v = variable(shards)
    optimizer = de.DynamicEmbeddingOptimizer(K.SGD(1.0))
    ids = [["a", "b"], [LONG], ["a", "a"]]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(v, ids))
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    (tf.function(step) if in_function else step)()
    np.testing.assert_allclose(
        v.lookup(["a", "b", LONG, "c"]),
        [[-0.5] * 2, [0.5] * 2, [0.0] * 2, [1.0] * 2],
        atol=1e-6,
    )
    assert int(v.size()) == 3


def test_a_shadow_trains_strings_in_a_function(shards):
    v = variable(shards)
    shadow = de.shadow_ops.ShadowVariable(v)
    optimizer = de.DynamicEmbeddingOptimizer(K.SGD(1.0))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def step(ids):
        with tf.GradientTape() as tape:
            rows = de.shadow_ops.embedding_lookup(shadow, ids)
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])

    step(tf.constant(["a", "b", "a"]))
    step(tf.constant([LONG]))
    np.testing.assert_array_equal(
        v.lookup(["a", "b", LONG]), [[-1, -1], [0, 0], [0, 0]]
    )


def test_a_trainable_wrapper_trains_the_strings_of_its_lookup(shards):
    v = variable(shards)
    optimizer = de.DynamicEmbeddingOptimizer(K.SGD(1.0))
    with tf.GradientTape() as tape:
        rows, wrapper = de.embedding_lookup(
            v, tf.constant(["a", "b"]), name="x", return_trainable=True
        )
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, wrapper), wrapper)])
    np.testing.assert_array_equal(v.lookup(["a", "b"]), np.zeros([2, 2]))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_rows_of_halves_by_string_are_trained(dtype, make):
    variables = [
        variable(),
        variable(value_dtype=dtype, stochastic_rounding=True),
    ]
    for v in variables:
        optimizer = de.DynamicEmbeddingOptimizer(make())
        for _ in range(3):
            with tf.GradientTape() as tape:
                ids = sparse([["a"], ["b"]])
                rows = de.embedding_lookup_sparse(v, ids, None)
                assert rows.dtype == v.value_dtype
                loss = tf.reduce_sum(tf.cast(rows, tf.float32) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, v), v)])
    wide, narrow = (
        tf.cast(v.lookup(["a", "b"]), tf.float32) for v in variables
    )
    np.testing.assert_allclose(narrow, wide, atol=0.02)


def test_restrict_policies_follow_strings():
    v = variable(restrict_policy=de.FrequencyRestrictPolicy)
    optimizer = de.DynamicEmbeddingOptimizer(K.SGD(1.0))
    for names in (["a", "b"], ["a", LONG], ["a", LONG]):
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(v, tf.constant(names), name="x")
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])
    v.restrict(2)
    assert sorted(v.export()[0].numpy()) == [b"a", LONG.encode()]


def fused(**options):
    options = {"name": "t", "initializer": 1.0, **options}
    table = tables.HashTable(2, key_dtype=tf.string, **options)
    table.attach(optimizers.SGD(1.0))
    return table


def test_admitted_strings_alone_get_rows():
    table = fused(admission=policies.CountAdmission(2))
    table.apply_gradients(["a", "b"], np.ones([2, 2]))
    assert int(table.size()) == 0
    table.apply_gradients(["b", "c", "b"], np.ones([3, 2]))
    assert table.keys().numpy().tolist() == [b"b"]
    np.testing.assert_array_equal(table.lookup(["b"])[0], [[-1, -1]])


def test_a_refused_step_names_the_string_and_changes_nothing():
    table = fused()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"id 'n\\x00n'"):
        table.apply_gradients(
            ["a", "n\0n"], [[1.0, 1.0], [np.nan, 1.0]], nonfinite="refuse"
        )
    assert int(table.size()) == 0


def test_a_bounded_table_of_strings_keeps_its_bound():
    table = fused(eviction=policies.LeastRecent(), max_size=100)
    for batch in range(30):
        names = [f"{batch} {i}" for i in range(50)]
        table.apply_gradients(names, np.ones([50, 2]))
        np.testing.assert_array_equal(table.lookup(names)[0], np.zeros([50, 2]))
    assert int(table.size()) == 100


def test_strings_of_refused_steps_are_forgotten_in_time():
    table = fused()
    before = table.stats().index_bytes
    for batch in range(20):
        names = [f"{'x' * 100} {batch} {i}" for i in range(1000)]
        table.apply_gradients(names, np.full([1000, 2], np.nan))
    assert int(table.size()) == 0
    assert table.stats().index_bytes - before < 10_000 * 170


def test_threads_that_train_and_remove_lose_no_string():
    """Strings are forgotten all the time while others are on their way."""
    table = fused()
    stop = threading.Event()
    failures = []

    def remover():
        while not stop.is_set():
            table.remove([f"gone {i}" for i in range(200)])

    def trainer(thread):
        try:
            for _ in range(60):
                kept = [f"kept {thread} {i}" for i in range(100)]
                gone = [f"gone {i}" for i in range(200)]
                table.apply_gradients(kept + gone, np.ones([300, 2]))
        except Exception as error:
            failures.append(error)

    trainers = [threading.Thread(target=trainer, args=[i]) for i in range(3)]
    removing = threading.Thread(target=remover)
    for thread in (*trainers, removing):
        thread.start()
    for thread in trainers:
        thread.join()
    stop.set()
    removing.join()
    assert not failures
    for thread in range(3):
        rows, exists = table.lookup([f"kept {thread} {i}" for i in range(100)])
        assert np.all(exists)
        np.testing.assert_array_equal(rows, np.full([100, 2], -59.0))
    keys = table.keys().numpy()
    assert len(set(keys)) == len(keys)
    assert b"" not in keys


def test_strings_and_integers_are_not_mixed():
    v = variable()
    with pytest.raises(errors.DtypeError, match="must be string"):
        de.embedding_lookup(v, tf.constant([1], tf.int64), name="x")
    table = fused()
    with pytest.raises(errors.DtypeError, match="must be string"):
        table.apply_gradients(tf.constant([1], tf.int64), np.ones([1, 2]))
