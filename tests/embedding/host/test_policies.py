"""Tables without a vocabulary whose ids come and go by policies."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors, optimizers, policies

LEAST = policies.LeastFrequent()
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


def embedding_of(optimizer=None, **arguments):
    table = tfembed.TableConfig(
        None, 2, 0.0, combiner="sum", name="users", **arguments
    )
    feature = tfembed.FeatureConfig(table)
    embedding = tfembed.TPUEmbedding(feature, optimizer or optimizers.SGD(1.0))
    return embedding, embedding.embedding_tables[table]


def trainer(embedding, in_function=True):
    """Steps that take 1 from the row of each id."""

    def step(ids):
        embedding.enqueue(ids)
        activations = embedding.dequeue()
        embedding.apply_gradients(tf.ones_like(activations))

    signature = [tf.TensorSpec([4], tf.int64)]
    return tf.function(step, signature) if in_function else step


def rows_of(table):
    keys, values = (x.numpy() for x in table.export())
    return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def ids(*values):
    return tf.constant(values, tf.int64)


@IN_FUNCTION
def test_an_id_is_admitted_when_it_was_seen_often_enough(in_function):
    embedding, table = embedding_of(admission=policies.CountAdmission(2))
    step = trainer(embedding, in_function)

    step(ids(1, 2, 3, 3))
    assert rows_of(table) == {}
    step(ids(3, 4, 4, 4))

    assert rows_of(table) == {3: -1.0}
    assert table.stats().refused == 4


@IN_FUNCTION
def test_a_table_keeps_to_its_bound_and_keeps_the_batch(in_function):
    embedding, table = embedding_of(
        optimizer=optimizers.Adagrad(1.0),
        max_size=20,
        eviction=policies.LeastRecent(),
    )
    step = trainer(embedding, in_function)
    random = np.random.default_rng(2)
    for _ in range(30):
        batch = random.integers(0, 500, 4)
        step(tf.constant(batch))
        assert int(table.size()) <= 20
        assert rows_of(table).keys() >= set(batch.tolist())
    assert table.stats().evicted > 0
    keys, slots = table.export_slots()
    assert slots["accumulators"].shape == [keys.shape[0], 2]


def test_a_step_with_more_ids_than_fit_changes_nothing():
    embedding, table = embedding_of(max_size=3, eviction=LEAST)
    step = trainer(embedding)
    step(ids(1, 2, 3, 3))
    before = rows_of(table)

    with pytest.raises(tf.errors.InvalidArgumentError, match="distinct keys"):
        step(ids(4, 5, 6, 7))

    assert rows_of(table) == before


@pytest.mark.parametrize("replicas", [1, 2])
@IN_FUNCTION
def test_ids_expire_by_steps_under_any_strategy(replicas, in_function):
    devices = [f"/CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        embedding, table = embedding_of(
            eviction=LEAST, expiry=policies.Expiry(2, every=3)
        )

    def step(batch):
        strategy.run(trainer(embedding, in_function=False), [batch])

    step = tf.function(step) if in_function else step
    for batch in (ids(1, 2, 3, 4), ids(2, 3, 2, 3), ids(3, 3, 5, 5)):
        step(batch)

    assert rows_of(table).keys() == {2, 3}


def test_ids_are_evicted_on_demand_and_handed_out():
    embedding, table = embedding_of(eviction=LEAST)
    step = trainer(embedding)
    step(ids(1, 2, 3, 4))
    step(ids(2, 3, 3, 3))

    removed = table.evict(2, return_values=True)

    assert sorted(removed.keys.numpy()) == [1, 4]
    assert removed.values.numpy().tolist() == [[-1.0, -1.0]] * 2
    assert rows_of(table) == {2: -2.0, 3: -4.0}


def test_policies_come_back_with_a_checkpoint(tmp_path):
    options = {
        "admission": policies.CountAdmission(2),
        "eviction": LEAST,
        "expiry": policies.Expiry(1, every=5, at_checkpoints=True),
        "max_size": 3,
    }
    embedding, table = embedding_of(**options)
    step = trainer(embedding)
    for _ in range(2):
        step(ids(1, 2, 2, 1))
    path = tf.train.Checkpoint(e=embedding).save(tmp_path / "c")

    other, restored = embedding_of(**options)
    tf.train.Checkpoint(e=other).restore(path).assert_existing_objects_matched()

    assert rows_of(restored) == rows_of(table)
    assert restored.max_size == 3
    assert restored.admission == options["admission"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"admission": "3"}, TypeError, "`admission` must be of Admission"),
        ({"eviction": "lru"}, TypeError, "`eviction`"),
        ({"expiry": policies.Expiry(1, every=1)}, ValueError, "`expiry`"),
        ({"max_size": 5}, ValueError, "needs an `eviction` policy"),
        ({"max_size": 0, "eviction": LEAST}, ValueError, "`max_size`"),
        (
            {
                "max_size": 5,
                "eviction": LEAST,
                "admission": policies.BloomAdmission(2, 10),
            },
            NotImplementedError,
            "BloomAdmission",
        ),
        (
            {"vocabulary_size": 8, "eviction": LEAST, "max_size": 3},
            ValueError,
            "`eviction`, `max_size` of table 'users'.*vocabulary_size=8",
        ),
    ],
)
def test_what_is_not_allowed_is_refused_by_the_config(options, error, text):
    arguments = {"vocabulary_size": None, "dim": 2, "name": "users", **options}
    with pytest.raises(error, match=text) as caught:
        tfembed.TableConfig(**arguments)
    assert isinstance(caught.value, errors.TfembedError)
