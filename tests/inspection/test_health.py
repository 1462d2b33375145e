"""`tfembed.health` tells of tables what is known of them."""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from inspection import frames
from tfembed import dynamic_embedding as de
from tfembed import errors, policies
from tfembed.embedding.xla.sharded_table import ShardedTable

ROWS = 3000


def _filled(**options):
    """A table of keys 0 to ROWS - 1; row k is (k, 0), keys below 100 trained."""
    table = tfembed.HashTable(2, name="users", **options)
    table.attach(tfembed.Adagrad(0.0))
    keys = tf.range(ROWS, dtype=tf.int64)
    numbers = tf.cast(keys, tf.float32)
    table.upsert(keys, tf.stack([numbers, tf.zeros_like(numbers)], 1))
    table.apply_gradients(keys[:100], tf.ones([100, 2]))
    table.lookup(tf.range(ROWS, 2 * ROWS, dtype=tf.int64))
    table.lookup(keys)
    return table


@pytest.mark.parametrize("shards", [1, 3])
def test_a_table_that_is_looked_at_whole_is_told_exactly(shards):
    table = _filled(devices=["/CPU:0"] * shards)
    found = tfembed.health(table)["users"]

    norms = np.arange(ROWS)
    stats = table.stats()
    assert found.rows == found.looked_at == ROWS
    assert found.shards == shards
    assert found.hit_rate == 0.5
    assert found.counts["misses"] == ROWS
    assert found.never_trained == pytest.approx(1 - 100 / ROWS)
    assert found.norms["median"] == pytest.approx(np.median(norms))
    assert found.norms["p95"] == pytest.approx(np.quantile(norms, 0.95))
    assert found.norms["max"] == ROWS - 1
    assert found.hottest[0] == (ROWS - 1, ROWS - 1)
    assert found.hottest_by == "norm"
    assert found.mean_probe == stats.mean_probe
    assert found.longest_probe == stats.longest_probe
    assert found.total_bytes == (
        stats.index_bytes + stats.row_bytes + stats.policy_bytes
    )


def test_a_sample_is_near_the_whole():
    table = tfembed.HashTable(1, name="many")
    keys = tf.range(100_000, dtype=tf.int64)
    table.upsert(keys, tf.cast(keys, tf.float32)[:, None])
    found = tfembed.health(table, sample=10_000)["many"]

    assert found.rows == 100_000
    assert 10_000 <= found.looked_at < 20_000
    # Six standard deviations of the median of so many uniform numbers.
    assert found.norms["median"] == pytest.approx(50_000, abs=3_000)
    assert found.norms["p95"] == pytest.approx(95_000, abs=1_500)


def test_the_keys_that_were_touched_most_are_the_hottest_of_all_rows():
    table = tfembed.HashTable(
        1,
        name="t",
        eviction=policies.LeastFrequent(),
        devices=["/CPU:0"] * 2,
    )
    table.upsert(tf.range(50_000, dtype=tf.int64), tf.zeros([50_000, 1]))
    for hot in ([7, 8, 9], [7, 8], [7]):
        table.upsert(tf.constant(hot, tf.int64), tf.zeros([len(hot), 1]))
    found = tfembed.health(table, sample=64, hottest=3)["t"]

    assert found.looked_at < 25_000
    assert found.hottest == ((7, 4), (8, 3), (9, 2))
    assert found.touches["median"] == 1


def test_ages_and_what_expires_next_are_told():
    table = tfembed.HashTable(
        1,
        name="t",
        eviction=policies.LeastRecent(),
        expiry=policies.Expiry(limit=8, every=1000),
    )
    for key in range(10):
        table.upsert(tf.constant([key], tf.int64), tf.zeros([1, 1]))
    found = tfembed.health(table)["t"]

    assert found.age_unit == "steps"
    assert (found.ages["min"], found.ages["max"]) == (0, 9)
    assert found.expiring == pytest.approx(0.2)


def test_keys_that_wait_and_were_refused_are_counted():
    table = tfembed.HashTable(1, name="t", admission=policies.CountAdmission(3))
    table.attach(tfembed.SGD(0.1))
    table.apply_gradients(tf.range(5, dtype=tf.int64), tf.ones([5, 1]))
    health = tfembed.health(table)
    found = health["t"]

    assert (found.waiting, found.counts["refused"], found.rows) == (5, 5, 0)
    assert health.findings() == [
        "t: the admission policy refused all keys of training so far."
    ]


def test_rows_of_a_fixed_vocabulary_are_told_by_their_slots():
    config = tfembed.TableConfig(
        vocabulary_size=500,
        dim=4,
        name="items",
        initializer=tf.ones_initializer(),
    )
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table=config), tfembed.Adagrad(0.1)
    )
    embedding.enqueue(tf.range(50))
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.ones_like(activations))
    found = tfembed.health(embedding)["items"]

    assert (found.kind, found.rows, found.looked_at) == ("variable", 500, 500)
    assert found.never_trained == pytest.approx(0.9)
    assert found.norms["max"] == pytest.approx(2)
    assert found.bytes == {"values": 8000, "slots": 8000}


def test_rows_with_a_nan_and_rows_of_zeros_are_pointed_out():
    nan = tfembed.HashTable(1, name="nan")
    nan.upsert(tf.range(2, dtype=tf.int64), [[1.0], [float("nan")]])
    zeros = tfembed.HashTable(1, name="zeros")
    zeros.upsert(tf.range(2, dtype=tf.int64), tf.zeros([2, 1]))

    assert tfembed.health([nan, zeros]).findings() == [
        "nan: 1 of the 2 rows looked at have a NaN.",
        "zeros: all rows looked at are zero: initial rows of zeros, and no "
        "gradient came.",
    ]


def test_since_gives_the_counts_of_the_time_between():
    table = _filled()
    before = tfembed.health(table)
    table.upsert(tf.constant([ROWS], tf.int64), tf.zeros([1, 2]))
    table.lookup(tf.constant([1, 2, 3, -1], tf.int64))
    found = tfembed.health(table).since(before)["users"]

    assert found.grown == 1
    assert found.hit_rate == 0.75
    assert (found.counts["hits"], found.counts["misses"]) == (3, 1)


def _keras_layer():
    config = tfembed.TableConfig(None, 4, name="users", key_dtype="string")
    layer = tfembed.keras.layers.DistributedEmbedding(
        {"user": tfembed.FeatureConfig(table=config)}, tfembed.SGD(0.1)
    )
    inputs = {"user": keras.Input((), dtype="string", name="user")}
    layer({"user": tf.constant(["ada"])})
    return keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)["user"]))


def _tfra_layer():
    layer = de.keras.layers.Embedding(4, name="users")
    return keras.Sequential([keras.Input((2,), dtype="int64"), layer])


def _bare_variable():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = de.Variable(dim=4, name="users", checkpoint=False)

    return Model()


def _module():
    module = tf.Module()
    module.tables = {"a": [de.Variable(dim=4, name="users")]}
    return module


def _taped():
    config = tfembed.TableConfig(None, 4, name="users")
    features = tfembed.FeatureConfig(table=config)
    embedding = tfembed.TPUEmbeddingV0(features, None)
    embedding.build()
    return embedding


@pytest.mark.parametrize(
    "make",
    [
        _keras_layer,
        _tfra_layer,
        _bare_variable,
        _module,
        _taped,
        lambda: de.Variable(dim=4, name="users"),
        lambda: [{"a": de.Variable(dim=4, name="users")}],
        lambda: tf.train.Checkpoint(x=de.Variable(dim=4, name="users")),
    ],
    ids=lambda make: getattr(make, "__name__", "").strip("_<>"),
)
def test_tables_are_found_in_what_holds_them(make):
    (found,) = tfembed.health(make())

    assert found.name.startswith("users")
    assert found.width == 4


@pytest.mark.parametrize(
    ("eviction", "by"),
    [
        (policies.LeastFrequent(), "touches"),
        (policies.LeastRecent(), "steps since touched"),
        (policies.LeastRecent("seconds"), "seconds since touched"),
        (None, "norm"),
    ],
)
def test_a_checkpoint_is_told_as_the_table_that_was_saved(
    eviction, by, tmp_path
):
    table = _filled(eviction=eviction)
    path = tf.train.Checkpoint(table=table).save(tmp_path / "ckpt")
    live = tfembed.health(table, hottest=1)["users"]
    (saved,) = tfembed.health(path, hottest=1)

    assert (saved.kind, saved.hottest_by) == ("saved table", by)
    assert (saved.rows, saved.width, saved.optimizer) == (ROWS, 2, "adagrad")
    assert saved.never_trained == pytest.approx(live.never_trained)
    assert saved.norms == pytest.approx(live.norms)
    assert saved.touches == live.touches
    # Seconds go on between the two.
    assert saved.ages == pytest.approx(live.ages, abs=3)
    assert saved.bytes["values"] == saved.bytes["slots"] == ROWS * 2 * 4
    assert saved.hit_rate is None
    if by in ("touches", "norm"):
        assert [h[1] for h in saved.hottest] == [h[1] for h in live.hottest]


def test_a_fixed_vocabulary_in_a_checkpoint_is_told(tmp_path):
    config = tfembed.TableConfig(vocabulary_size=500, dim=4, name="items")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table=config), tfembed.Adagrad(0.1)
    )
    embedding.build(per_replica_batch_size=4)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(embedding=embedding), tmp_path, max_to_keep=1
    )
    with pytest.raises(errors.CheckpointError, match="no checkpoint yet"):
        tfembed.health(manager)
    manager.save()
    live = tfembed.health(embedding, sample=50)["items"]
    (saved,) = tfembed.health(manager, sample=50)

    assert (saved.rows, saved.looked_at) == (500, 50)
    assert saved.norms == pytest.approx(live.norms)
    assert saved.bytes["values"] == live.bytes["values"]


def test_an_estimator_stands_for_its_latest_checkpoint(tmp_path):
    estimator = tfembed.estimator.Estimator(
        lambda features: None, model_dir=tmp_path
    )

    with pytest.raises(errors.CheckpointError, match="no checkpoint yet"):
        tfembed.health(estimator)
    table = tfembed.HashTable(2, name="users")
    tf.train.Checkpoint(table=table).save(tmp_path / "model.ckpt")
    assert [t.width for t in tfembed.health(estimator)] == [2]


def test_a_file_without_tables_is_refused(tmp_path):
    path = tf.train.Checkpoint(x=tf.Variable(1.0)).save(tmp_path / "ckpt")

    with pytest.raises(errors.CheckpointError, match="There is no table in"):
        tfembed.health(path)
    with pytest.raises(errors.CheckpointError):
        tfembed.health(tmp_path / "nothing")


@pytest.mark.parametrize("source", [3, None, keras.Sequential([])])
def test_an_object_without_tables_is_refused_with_what_is_taken(source):
    with pytest.raises(errors.ArgumentError, match="a Keras layer or model"):
        tfembed.health(source)


def test_tables_that_come_with_the_first_step_are_listed():
    users = tfembed.TableConfig(None, 4, name="users", key_dtype="string")
    films = tfembed.TableConfig(100, 2, name="films")
    layer = tfembed.keras.layers.DistributedEmbedding(
        {
            "user": tfembed.FeatureConfig(users),
            "film": tfembed.FeatureConfig(films),
        }
    )
    inputs = {
        "user": keras.Input((), dtype="string", name="user"),
        "film": keras.Input((), dtype="int64", name="film"),
    }
    rows = layer(inputs)
    model = keras.Model(inputs, keras.layers.Concatenate()(list(rows.values())))

    health = tfembed.health(model)

    assert [(t.name, t.rows, t.width) for t in health] == [
        ("films", 0, 2),
        ("users", 0, 4),
    ]
    assert "Not made yet: films, users." in str(health)
    json.dumps(health.to_dict())
    model({"user": tf.constant(["a"]), "film": tf.constant([1])})
    assert tfembed.health(model)["films"].rows == 100
    assert "Not made yet" not in str(tfembed.health(model))


def test_health_in_a_function_is_refused_with_the_way_out():
    table = tfembed.HashTable(1, name="t")

    with pytest.raises(errors.UnsupportedError, match="in eager mode"):
        tf.function(lambda: tfembed.health(table))()


def test_a_key_is_one_short_line_of_the_text():
    keys = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    keys.upsert(
        tf.constant(["", "a\nb\x1b[1m", "x" * 300]), [[3.0], [2.0], [1.0]]
    )
    health = tfembed.health(keys)

    last = str(health).splitlines()[-1]
    assert last == (
        f"Hottest keys of t, by norm: '' (3), a\\nb\\x1b[1m (2), {'x' * 57}... (1)"
    )
    assert health["t"].hottest[2] == ("x" * 300, 1.0)


def test_the_answer_is_text_html_and_json():
    keys = tfembed.HashTable(1, name="<b>", key_dtype=tf.string)
    # Neither is shown as the other.
    texts = tf.constant(["<i>", b"\xff", rb"\xff"])
    keys.upsert(texts, [[1.0], [2.0], [3.0]])
    health = tfembed.health(keys)

    lines = str(health).splitlines()
    assert lines[0].startswith("1 table, 3 rows, ")
    assert lines[2].startswith("<b>    string -> float32 [1]")
    hottest = "\\xff (3), b'\\xff' (2), <i> (1)"
    assert f"Hottest keys of <b>, by norm: {hottest}" in lines
    page = health._repr_html_()
    assert frames.wide_elements(page) == [("table", True)] * 3
    assert '<th style="' in page
    assert not re.search("<th [^>]*nowrap", page)  # A header may break.
    assert "&lt;b&gt;" in page
    assert "<i>" not in page
    assert "<b>, by" not in page
    told = json.loads(json.dumps(health.to_dict()))["<b>"]
    assert told["hottest"] == [["\\xff", 3], ["b'\\xff'", 2], ["<i>", 1]]
    assert told["total_bytes"] == sum(told["bytes"].values())


def test_a_table_of_that_name_must_be_there():
    health = tfembed.health(tfembed.HashTable(1, name="users"))

    with pytest.raises(errors.ArgumentError, match="no table 'items' among"):
        health["items"]


def test_rows_that_are_spread_over_replicas_are_gathered_by_number():
    rows = tf.reshape(tf.range(24, dtype=tf.float32), [12, 2])
    # Row r of the table is row r // 3 of replica r % 3, from the stack's 2 on.
    stack = [
        tf.Variable(tf.pad(rows[i::3], [[2, 1], [0, 0]])) for i in range(3)
    ]
    table = ShardedTable(stack, 2, (12, 2), "films")
    wanted = np.array([0, 11, 5, 4, 5, 1])

    np.testing.assert_array_equal(table.gather(wanted), rows.numpy()[wanted])
