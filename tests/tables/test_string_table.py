"""Tables whose rows are strings."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers, policies
from tfembed.tables import HashTable, StringTable


def table_of(shards=1, dim=2, **options):
    options = {"name": "t", "initializer": ["x", "y"], **options}
    return StringTable(dim, devices=["/CPU:0"] * shards, **options)


def test_missing_keys_read_the_initializer():
    assert table_of().lookup([[5]])[0].numpy().tolist() == [[[b"x", b"y"]]]
    for initializer, row in (
        (None, [b"", b""]),
        ("a", [b"a"] * 2),
        (b"\xff\0", [b"\xff\0"] * 2),
        (tf.constant(["p", "q"]), [b"p", b"q"]),
    ):
        table = table_of(initializer=initializer)
        assert table.lookup([5])[0].numpy().tolist() == [row]


@pytest.mark.parametrize("initializer", [3, [1.0, 2.0], ["a"] * 3, [["a"] * 2]])
def test_another_initializer_is_refused(initializer):
    with pytest.raises(errors.ArgumentError, match="'t'.*a string or 2"):
        table_of(initializer=initializer)


def test_a_row_like_that_of_missing_keys_is_there():
    table = table_of()
    table.upsert([1], [["x", "y"]])
    assert table.contains([1, 2]).numpy().tolist() == [True, False]


@pytest.mark.parametrize("shards", [1, 2])
def test_methods_work_in_functions_and_data_maps(shards):
    table = table_of(shards)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(keys):
        table.upsert(keys, tf.fill([tf.size(keys), 2], "v"))
        table.remove(keys[:1])
        return table.lookup(keys)[0], table.size()

    rows, size = step(tf.constant([4, 5, 6], tf.int64))
    assert rows.numpy().tolist() == [[b"x", b"y"], [b"v", b"v"], [b"v", b"v"]]
    assert int(size) == 2
    data = tf.data.Dataset.range(4, 6).map(lambda key: table.lookup(key)[0])
    assert [row.numpy().tolist() for row in data] == [
        [b"x", b"y"],
        [b"v", b"v"],
    ]


@pytest.mark.parametrize("values", [[["a", "b"]], [["a"], ["b"]], ["a", "b"]])
@pytest.mark.parametrize("traced", [False, True])
def test_values_of_another_shape_are_refused(values, traced):
    table = table_of(2)
    upsert = table.upsert
    if traced:
        upsert = tf.function(
            table.upsert,
            input_signature=[
                tf.TensorSpec(None, tf.int64),
                tf.TensorSpec(None, tf.string),
            ],
        )
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        upsert(tf.constant([1, 2], tf.int64), tf.constant(values))
    assert int(table.size()) == 0


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 1)])
def test_a_checkpoint_restores_into_any_number_of_shards(
    before, after, tmp_path
):
    keys = np.arange(50)
    values = [[f"{k}", "z" * k] for k in keys]
    saved = table_of(before)
    saved.upsert(keys, values)
    path = tf.train.Checkpoint(holder=tf.Module(), table=saved).save(
        tmp_path / "c"
    )
    restored = table_of(after)
    restored.upsert([1000], [["no", "no"]])
    tf.train.Checkpoint(table=restored).restore(path).expect_partial()
    assert int(restored.size()) == 50
    assert restored.lookup(keys)[0].numpy().tolist() == [
        [a.encode(), b.encode()] for a, b in values
    ]


def test_a_checkpoint_of_another_width_changes_nothing(tmp_path):
    saved = table_of()
    saved.upsert([1], [["a", "b"]])
    path = tf.train.Checkpoint(table=saved).save(tmp_path / "c")
    other = table_of(dim=1, initializer="x")
    other.upsert([2], [["kept"]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="width 1"):
        tf.train.Checkpoint(table=other).restore(path)
    assert other.lookup([2])[0].numpy().tolist() == [[b"kept"]]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_saved_model_serves_strings(shards, tmp_path):
    module = tf.Module()
    module.table = table_of(shards)
    module.table.upsert([1, 2], [["a", "b"], ["c", "d"]])
    module.serve = tf.function(
        lambda keys: module.table.lookup(keys)[0],
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path))
    served = tf.saved_model.load(str(tmp_path)).serve
    rows = served(tf.constant([2, 9], tf.int64))
    assert rows.numpy().tolist() == [[b"c", b"d"], [b"x", b"y"]]


def test_a_graphs_saver_keeps_the_strings_of_a_variable(tmp_path):
    path = str(tmp_path / "c")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = de.Variable(tf.int64, tf.string, 1, initializer="d")
        write, read = v.upsert([1], [["a"]]), v.lookup([1, 2])
        saver, clear = tf.compat.v1.train.Saver(), v.clear()
        session.run(write)
        saver.save(session, path)
        session.run(clear)
        assert session.run(read).tolist() == [[b"d"], [b"d"]]
        saver.restore(session, path)
        assert session.run(read).tolist() == [[b"a"], [b"d"]]


def test_what_strings_cannot_do_is_refused():
    v = de.Variable(tf.int64, tf.string, 2)
    rows = de.embedding_lookup(v, [1], name="x")
    assert rows.numpy().tolist() == [[b"", b""]]
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))
    with pytest.raises(errors.UnsupportedError, match="no optimizers"):
        gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1], tf.int64))
        optimizer.apply_gradients([(gradient, v)])
    with pytest.raises(errors.UnsupportedError, match="no eviction"):
        v.table.evict(1)
    with pytest.raises(errors.UnsupportedError, match="raw files"):
        v.save_to_file_system("/nowhere")
    with pytest.raises(errors.UnsupportedError, match="raw files"):
        v.load_from_file_system("/nowhere")
    with pytest.raises(errors.DtypeError, match="cannot be accumulated"):
        v.accum([1], [["a", "b"]], [["c", "d"]], [True])
    with pytest.raises(errors.DtypeError, match="string cannot be combined"):
        ids = tf.sparse.from_dense(tf.constant([[1]], tf.int64))
        de.embedding_lookup_sparse(v, ids, None, combiner="sum")
    with pytest.raises(errors.UnsupportedError, match="restrict policies"):
        policy = de.TimestampRestrictPolicy
        de.Variable(tf.int64, tf.string, restrict_policy=policy)
    with pytest.raises(errors.UnsupportedError, match="take no `eviction`"):
        de.Variable(tf.int64, tf.string, eviction=policies.LeastRecent())
    with pytest.raises(errors.DtypeError, match="StringTable"):
        HashTable(2, value_dtype=tf.string, name="t")
    with pytest.raises(errors.UnsupportedError, match="no optimizers"):
        v.table.attach(optimizers.SGD(0.1))
