"""The best items of a table, beside NumPy's sort of all scores.

The kind of fault: answers that depend on chunks, shards or the order of rows in
a table, and items that a user has seen among the best.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed.keras.layers import Embedding, TopK
from tfembed.keras.metrics import NDCGAtK, RecallAtK
from tfembed.tables.hash_table import HashTable


def order_of(ids):
    """Returns how ids of equal scores are sorted."""
    if ids.dtype.kind == "i":
        return np.argsort(ids)
    return np.argsort(tf.strings.to_hash_bucket_fast(ids, 2**63 - 1).numpy())


def oracle(ids, rows, queries, k, seen=None, similarity="dot"):
    order = order_of(ids)
    ids, rows = ids[order], rows[order].astype(np.float32)
    if similarity == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    rest = -1 if ids.dtype.kind == "i" else b""
    best_ids, best_scores = [], []
    for number, query in enumerate(queries):
        scores = rows @ query
        if seen is not None:
            scores[np.isin(ids, seen[number])] = -np.inf
        best = np.argsort(-scores, kind="stable")[:k]
        found = np.where(np.isneginf(scores[best]), rest, ids[best])
        gap = k - len(best)
        best_ids.append(list(found) + [rest] * gap)
        best_scores.append(list(scores[best]) + [-np.inf] * gap)
    return np.array(best_ids, ids.dtype), np.array(best_scores, np.float32)


def drawn(seed, count, is_string, dim=4):
    """Returns ids and rows of small whole numbers: many scores are equal."""
    random = np.random.default_rng(seed)
    ids = random.choice(10**6, count, replace=False) - 5 * 10**5
    if is_string:
        ids = np.char.add("i", ids.astype(str)).astype("S")
    return ids, random.integers(-2, 3, [count, dim]).astype(np.float32)


def table_of(ids, rows, shards=1, value_dtype=tf.float32):
    table = HashTable(
        rows.shape[1],
        name="items",
        key_dtype=tf.string if ids.dtype.kind == "S" else tf.int64,
        value_dtype=value_dtype,
        devices=["/CPU:0"] * shards,
    )
    table.upsert(tf.constant(ids), tf.cast(rows, value_dtype))
    return table


@pytest.mark.parametrize("is_string", [False, True])
@pytest.mark.parametrize(
    ("count", "shards", "dtype", "chunk"),
    [
        (40, 1, tf.float32, 17),
        (32, 3, tf.float16, 16),
        (30, 2, tf.bfloat16, 1000),
        (8, 2, tf.float64, 3),
    ],
)
def test_the_best_are_those_of_numpy(is_string, count, shards, dtype, chunk):
    ids, rows = drawn(count, count, is_string)
    random = np.random.default_rng(count)
    queries = random.integers(-2, 3, [5, 4]).astype(np.float32)
    seen = [
        random.choice(ids, n, replace=False)
        for n in (0, 1, 5, count - 1, count)
    ]
    lists = [list(row) for row in seen]
    table = table_of(ids, rows, shards, dtype)
    top = TopK(table, 6, chunk=chunk)
    kind = tf.string if is_string else tf.int64
    ragged = tf.ragged.constant(lists, dtype=kind, ragged_rank=1)
    dense = ragged.to_tensor("no item" if is_string else 10**9)
    expected = oracle(ids, rows, queries, 6, seen)
    for layer in (top, top.freeze()):
        for exclude in (ragged, dense):
            found = layer(queries, exclude=exclude)
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_array_equal(
            layer(queries)[0], oracle(ids, rows, queries, 6)[0]
        )


def test_cosine_divides_by_lengths():
    ids, rows = drawn(5, 30, False, dim=8)
    rows += 0.01 * np.random.default_rng(6).normal(size=rows.shape)
    queries = rows[:3] * 5
    found = TopK((ids, rows), 4, similarity="cosine", chunk=8)(queries)
    expected = oracle(ids, rows, queries, 4, similarity="cosine")
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


def test_the_layer_follows_its_table_and_a_frozen_one_does_not():
    table = table_of(np.array([1, 2]), np.array([[1.0], [2.0]], np.float32))
    top = TopK(table, 2)
    frozen = top.freeze()
    table.upsert([3], [[9.0]])
    assert top([[1.0]])[0].numpy().tolist() == [[3, 2]]
    assert frozen([[1.0]])[0].numpy().tolist() == [[2, 1]]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_saved_model_answers_as_the_layer_did(tmp_path, is_frozen):
    items = Embedding(2, key_dtype="string", name="items")
    items.table.upsert(["a", "b", "c"], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    top = TopK(items, 2)
    module = tf.Module()
    module.top = top.freeze() if is_frozen else top
    module.best = tf.function(
        lambda q, seen: dict(zip("is", module.top(q, seen), strict=True)),
        input_signature=[
            tf.TensorSpec([None, 2]),
            tf.TensorSpec([None, None], tf.string),
        ],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.best(tf.constant([[1.0, 0.5]]), tf.constant([["c"]]))
    assert found["i"].numpy().tolist() == [[b"a", b"b"]]


def test_fit_counts_hits_of_held_out_pairs():
    users = Embedding(2, key_dtype="int64", name="users")
    users.table.upsert([0, 1], [[1.0, 0.0], [0.0, 1.0]])
    top = TopK(([10, 11, 12], np.float32([[3, 0], [2, 1], [1, 2]])), 2)

    class Best(keras.Model):
        def __init__(self):
            super().__init__()
            self.users, self.top = users, top
            self.dense = keras.layers.Dense(1)

        def call(self, ids):
            rows = self.users(ids)
            best, _ = self.top(rows)
            return {"best": best, "score": self.dense(rows)}

    model = Best()
    model.compile(
        keras.optimizers.SGD(0.0),
        loss={"best": None, "score": "mse"},
        metrics={"best": [RecallAtK(2), NDCGAtK(2)]},
    )
    targets = {"best": tf.constant([11, 10]), "score": tf.zeros([2, 1])}
    data = tf.data.Dataset.from_tensors((tf.constant([0, 1]), targets))
    logs = model.fit(data, validation_data=data, verbose=0).history
    for part in ("best", "val_best"):
        assert logs[f"{part}_recall_at_2"] == pytest.approx([0.5])
        assert logs[f"{part}_ndcg_at_2"] == pytest.approx([0.5 / np.log2(3)])


def test_padding_hits_nothing():
    recall = RecallAtK(1)
    recall.update_state([-1], (tf.constant([[-1]], tf.int64), [[-np.inf]]))
    assert float(recall.result()) == 0


def test_bad_input_says_what_is_wrong():
    table = table_of(np.array([1]), np.ones([1, 2], np.float32))
    top = TopK(table, 1)
    arguments = tfembed.errors.ArgumentError
    with pytest.raises(tfembed.errors.UnsupportedError, match="no `index`"):
        TopK(table, 1, index="scann")
    with pytest.raises(arguments, match="`similarity` must be one of"):
        TopK(table, 1, similarity="l2")
    with pytest.raises(arguments, match="`k` is 3, and there are 1 items"):
        TopK(([1], [[1.0]]), 3)
    with pytest.raises(arguments, match="must differ"):
        TopK(([1, 1], [[1.0], [2.0]]), 1)
    with pytest.raises(arguments, match="get_embedding_tables"):
        TopK(object(), 1)
    with pytest.raises(tfembed.errors.StateError, match="no table yet"):
        TopK(Embedding(2), 1)
    with pytest.raises(arguments, match=r"the shape \[batch, 2\]"):
        top(tf.zeros([1, 3]))
    with pytest.raises(arguments, match="a row of ids per query"):
        top(tf.zeros([1, 2]), exclude=tf.zeros([2, 1], tf.int64))
    with pytest.raises(tfembed.errors.DtypeError, match="must be int64"):
        top(tf.zeros([1, 2]), exclude=[["a"]])
    with pytest.raises(tfembed.errors.DtypeError, match="must be floats"):
        top(tf.zeros([1, 2], tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be finite"):
        top([[np.nan, 0.0]])
    with pytest.raises(arguments, match="n at least 2"):
        RecallAtK(2).update_state([1], [[1]])
    table.upsert([7], [[np.inf, 0.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="these are not"):
        top(tf.zeros([1, 2]))
    table.clear()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="There are no rows"
    ):
        top(tf.zeros([1, 2]))
