"""TPUEmbedding over tables of strings and of half rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

NAMES = [["a", "b"], ["long name of more than twenty bytes"], ["a"]]
RATE = 0.5


def embedding_of(**table):
    table = {
        "vocabulary_size": None,
        "dim": 2,
        "initializer": 1.0,
        "combiner": "sum",
        "name": "words",
        "key_dtype": tf.string,
        **table,
    }
    words = tfembed.TableConfig(**table)
    features = {
        "sparse": tfembed.FeatureConfig(words),
        "ragged": tfembed.FeatureConfig(words),
        "dense": tfembed.FeatureConfig(words),
        "places": tfembed.FeatureConfig(words, max_sequence_length=2),
    }
    return words, tfembed.TPUEmbedding(features, tfembed.SGD(RATE))


def batch():
    ragged = tf.ragged.constant(NAMES, dtype=tf.string)
    return {
        "sparse": ragged.to_sparse(),
        "ragged": ragged,
        "dense": tf.constant(["b", "", "c"]),
        "places": ragged.to_sparse(),
    }


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_a_step_trains_strings(in_function, dtype):
    words, embedding = embedding_of(dtype=dtype)

    def step(features):
        embedding.enqueue(features)
        activations = embedding.dequeue()
        gradients = tf.nest.map_structure(tf.ones_like, activations)
        embedding.apply_gradients(gradients)
        return activations

    run = tf.function(step) if in_function else step
    activations = run(batch())
    for activation in activations.values():
        assert activation.dtype == tf.float32
    np.testing.assert_array_equal(
        activations["sparse"], [[2, 2], [1, 1], [1, 1]]
    )
    np.testing.assert_array_equal(
        activations["places"][:, :, 0], [[1, 1], [1, 0], [1, 0]]
    )
    # How often each name comes, over all features.
    counts = {"a": 6, "b": 4, NAMES[1][0]: 3, "": 1, "c": 1}
    table = embedding.embedding_tables[words]
    rows, exists = table.lookup(list(counts))
    assert np.all(exists)
    expected = [[1 - RATE * n] * 2 for n in counts.values()]
    np.testing.assert_array_equal(tf.cast(rows, tf.float32), expected)
    assert int(table.size()) == len(counts)

    again = run(batch())
    np.testing.assert_array_equal(again["dense"][0], expected[1])


def test_serving_looks_strings_up():
    words, embedding = embedding_of(dtype=tf.bfloat16)
    table = embedding.embedding_tables[words]
    table.upsert(["a", "b"], tf.constant([[2, 2], [3, 3]], tf.bfloat16))
    features = {
        "sparse": tfembed.FeatureConfig(words),
        "dense": tfembed.FeatureConfig(words),
    }
    outputs = tfembed.serving_embedding_lookup(
        {name: batch()[name] for name in features},
        None,
        embedding.embedding_tables,
        features,
    )
    np.testing.assert_array_equal(outputs["sparse"], [[5, 5], [1, 1], [2, 2]])
    np.testing.assert_array_equal(outputs["dense"], [[3, 3], [1, 1], [1, 1]])


def test_a_checkpoint_brings_strings_back(tmp_path):
    words, embedding = embedding_of()
    embedding.embedding_tables[words].upsert(["a", ""], [[2, 2], [3, 3]])
    path = tf.train.Checkpoint(e=embedding).save(tmp_path / "c")
    words, other = embedding_of()
    other.build(3)
    tf.train.Checkpoint(e=other).restore(path)
    table = other.embedding_tables[words]
    np.testing.assert_array_equal(table.lookup(["a", ""])[0], [[2, 2], [3, 3]])


def test_small_updates_of_half_rows_are_kept_by_chance():
    moved = {}
    for stochastic in (False, True):
        words, embedding = embedding_of(
            dim=256, dtype=tf.bfloat16, stochastic_rounding=stochastic
        )
        for _ in range(20):
            embedding.enqueue(batch())
            activations = embedding.dequeue()
            embedding.apply_gradients(
                {name: a * 0 + 1e-4 for name, a in activations.items()}
            )
        rows, _ = embedding.embedding_tables[words].lookup(["c"])
        moved[stochastic] = 1 - tf.cast(rows, tf.float32).numpy().mean()
    assert moved[False] == 0
    # One step's chance is 2^8 * 5e-5 of a last place, 2^-8: 20 * 256 throws.
    assert abs(moved[True] - 20 * 5e-5) < 5 * np.sqrt(66) / 256 / 256


@pytest.mark.parametrize(
    ("key_dtype", "ids", "text"),
    [
        (tf.int64, tf.constant(["a"]), "must be integers.*key_dtype=tf.string"),
        (tf.string, tf.constant([1]), "must be strings.*'words'.*int32"),
        (tf.string, tf.constant([1.5]), "must be strings.*float32"),
    ],
)
def test_ids_of_another_dtype_than_the_table_are_refused(key_dtype, ids, text):
    words = tfembed.TableConfig(None, 2, name="words", key_dtype=key_dtype)
    features = {"w": tfembed.FeatureConfig(words)}
    embedding = tfembed.TPUEmbedding(features, tfembed.SGD(RATE))
    with pytest.raises(errors.DtypeError, match=text):
        embedding.enqueue({"w": ids})
    with pytest.raises(errors.DtypeError, match=text):
        tfembed.serving_embedding_lookup(
            {"w": ids}, None, embedding.embedding_tables, features
        )
