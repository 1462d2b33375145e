"""Dry runs of policies, against tables that are trained for real."""

from __future__ import annotations

import collections
import json
import pathlib
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

import tfembed
from inspection import frames
from tfembed import errors, policies

ROOT = pathlib.Path(__file__).resolve().parents[2]
ML_100K = ROOT.parent / "shared/data/ml-100k/ml-100k.inter"
DIM = 16
BATCH = 4096
BOUND = 20_000

CHOICES = {
    "all": {},
    "seen 3 times": {"admission": policies.CountAdmission(3)},
    "seen 3 times or so": {"admission": policies.BloomAdmission(3, 200_000)},
    "frequent": {"max_size": BOUND, "eviction": policies.LeastFrequent()},
    "recent": {"max_size": BOUND, "eviction": policies.LeastRecent()},
    "seen twice, recent": {
        "admission": policies.CountAdmission(2),
        "eviction": policies.LeastRecent(),
        "expiry": policies.Expiry(12, every=3),
    },
}


def _zipf_ids():
    return np.random.default_rng(0).zipf(1.1, 40 * BATCH) % 1_000_000


def _movie_ids():
    """Users crossed with a hundred groups of films, in the order of time."""
    if not ML_100K.exists():
        pytest.skip("MovieLens 100k is not here: ../shared/data/ml-100k")
    users, films, _, times = np.loadtxt(ML_100K, int, skiprows=1).T
    return (users * 100 + films % 100)[np.argsort(times, kind="stable")]


def _train(ids, options):
    """The health of a table of a TPUEmbedding that is trained on `ids`."""
    config = tfembed.TableConfig(None, DIM, name="t", **options)
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table=config), tfembed.Adagrad(0.1)
    )

    @tf.function
    def step(batch):
        embedding.enqueue(batch)
        activations = embedding.dequeue()
        embedding.apply_gradients(tf.ones_like(activations))

    embedding.build(per_replica_batch_size=BATCH)
    for i in range(0, len(ids), BATCH):
        step(tf.constant(ids[i : i + BATCH], tf.int64))
    return tfembed.health(embedding)["t"]


@pytest.mark.slow
@pytest.mark.parametrize("ids", [_zipf_ids, _movie_ids])
def test_a_dry_run_is_near_what_then_happens(ids):
    ids = ids()
    ids = ids[: len(ids) // BATCH * BATCH]
    simulation = tfembed.simulate(
        ids, CHOICES, dim=DIM, optimizer=tfembed.Adagrad(0.1), batch_size=BATCH
    )
    for name, options in CHOICES.items():
        real, dry = _train(ids, options), simulation[name]

        assert dry.hit_rate == pytest.approx(real.hit_rate, abs=0.01), name
        assert dry.bytes == pytest.approx(real.total_bytes, rel=0.02), name
        assert dry.rows == pytest.approx(real.rows, rel=0.02), name
        assert dry.refused == pytest.approx(real.counts["refused"], rel=0.02)


def test_a_table_tells_what_its_bound_would_keep():
    ids = _zipf_ids()
    table = tfembed.HashTable(DIM, name="t", eviction=policies.LeastFrequent())
    table.attach(tfembed.Adagrad(0.1))
    batches = [np.unique(ids[i : i + BATCH]) for i in range(0, len(ids), BATCH)]
    for batch in batches:
        table.apply_gradients(batch, tf.zeros([len(batch), DIM]))
    dry = tfembed.simulate(
        table,
        {
            "bound": {"max_size": 2000},
            "seen 4 times": {"admission": policies.CountAdmission(4)},
            "limit": {"expiry": policies.Expiry(4, every=100)},
        },
    )
    touches = table.worth()[1].numpy()
    assert dry["seen 4 times"].rows == dry["limit"].rows == (touches >= 4).sum()

    before = tfembed.health(table)
    table.evict(2000)
    for batch in batches:
        table.lookup(batch)
    real = tfembed.health(table).since(before)["t"]
    fresh = tfembed.HashTable(DIM, name="t", eviction=policies.LeastFrequent())
    fresh.attach(tfembed.Adagrad(0.1))
    fresh.upsert(*table.export())

    assert dry["bound"].rows == real.rows == 2000
    assert dry["bound"].hit_rate == pytest.approx(real.hit_rate, abs=0.01)
    assert dry["bound"].bytes == pytest.approx(
        tfembed.health(fresh)["t"].total_bytes, rel=0.02
    )


@pytest.mark.parametrize(
    ("eviction", "choices"),
    [
        (
            policies.LeastFrequent(),
            {
                "bound": {"max_size": 50},
                "seen twice": {"admission": policies.CountAdmission(2)},
            },
        ),
        (
            policies.LeastRecent(),
            {
                "bound": {"max_size": 50},
                "expiry": {"expiry": policies.Expiry(2, every=1)},
                "norm": {"max_size": 50, "eviction": policies.SmallestNorm()},
            },
        ),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_checkpoint_tells_what_its_table_tells(tmp_path, eviction, choices):
    table = tfembed.HashTable(
        DIM, name="t", eviction=eviction, key_dtype="string"
    )
    table.attach(tfembed.RowWiseAdagrad(0.1))
    for step in range(1, 5):
        ids = tf.strings.as_string(tf.range(100 // step))
        table.apply_gradients(ids, tf.ones([100 // step, DIM]))
    other = tfembed.HashTable(DIM, name="u")
    both = tf.train.Checkpoint(users=table, films=other)
    path = both.save(tmp_path / "c")

    with pytest.raises(errors.MissingTableError, match="Name one by `table`"):
        tfembed.simulate(path, choices)
    with pytest.raises(errors.ArgumentError, match="Name one by `table`"):
        tfembed.simulate(both, choices)
    saved = tfembed.simulate(path, choices, table="users")
    assert saved == tfembed.simulate(both, choices, table="t")
    assert 0 < saved["bound"].rows < saved.ids == 100


def test_a_saved_table_has_notes_of_its_own_policy_alone(tmp_path):
    table = tfembed.HashTable(1, name="t")
    table.upsert(tf.constant([1], tf.int64), [[1.0]])
    path = tf.train.Checkpoint(t=table).save(tmp_path / "c")

    with pytest.raises(errors.ArgumentError, match="no notes for LeastRecent"):
        tfembed.simulate(path, {"recent": {"eviction": policies.LeastRecent()}})


IDS = [1, 2, 3, 1, 1, 2]
SERIES = pd.Series(IDS, index=[9, 8, 7, 6, 5, 4])

# The kind: what is iterated without being asked for its form, and so takes an
# id for a step, or a column's name for an id. No other function of tfembed
# takes steps; those that take ids read columns as arrays, but for `preprocess`
# and `pack_features` (tests/keras_layers/test_packed_inputs.py).
FLAT = {
    "list": IDS,
    "tuple": tuple(IDS),
    "strings": ["a", "b", "c", "a", "a", "b"],
    "deque": collections.deque(IDS),
    "iterator": IDS,
    "array": np.array(IDS, np.uint8),
    "array of objects": np.array(list("abcaab"), object),
    "tensor": tf.constant(IDS),
    "tensors": [tf.constant(one) for one in IDS],
    "series": SERIES,
    "series of strings": SERIES.astype(str),
    "nullable series": SERIES.astype("Int64"),
    "categories": SERIES.astype("category"),
    "index": pd.Index(IDS),
    "arrow": pa.array(IDS),
    "arrow chunks": pa.chunked_array([IDS[:2], IDS[2:]]),
    "dataset": tf.data.Dataset.from_tensor_slices(IDS),
}
STEPS = {
    "array": np.array([IDS[:3], IDS[3:]], np.int32),
    "lists": [IDS[:3], IDS[3:]],
    "ragged tensor": tf.ragged.constant([IDS[:3], IDS[3:]]),
    "ragged tensors": [
        tf.ragged.constant([[1], [2, 3]]),
        tf.ragged.constant([[1, 1], [2]]),
    ],
    "dataset": tf.data.Dataset.from_tensor_slices(IDS).batch(3),
    "series": [SERIES[:3], SERIES[3:]],
    "series of lists": pd.Series([IDS[:3], IDS[3:]]),
    "arrow": pa.array([IDS[:3], IDS[3:]]),
}


@pytest.mark.parametrize("form", FLAT)
def test_a_flat_sequence_of_ids_is_one_log(form):
    log = iter(IDS) if form == "iterator" else FLAT[form]
    dry = tfembed.simulate(log, {"all": {}}, batch_size=3)

    assert (dry.ids, dry.steps, dry["all"].rows) == (6, 2, 3)
    assert dry["all"].hit_rate == 0.5
    assert dry["all"].curve == ((3, 3, 0.0), (6, 3, 1.0))


@pytest.mark.parametrize("form", STEPS)
def test_a_log_may_have_the_ids_of_each_step(form):
    dry = tfembed.simulate(STEPS[form], {"all": {}}, batch_size=2)

    assert (dry.ids, dry.steps, dry["all"].rows) == (6, 2, 3)
    assert dry["all"].curve == ((3, 3, 0.0), (6, 3, 1.0))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (pd.DataFrame({"id": IDS, "age": IDS}), r"frame of \['id', 'age'\]"),
        (pa.table({"id": IDS}), r"frame of \['id'\]"),
        ([pd.DataFrame({"id": IDS})], r"Give one column, as `frame\['id'\]`"),
        ([{"id": IDS}], r"dict of \['id'\]"),
        ([(np.array(IDS), np.ones(6, int))], "tuple of 2 arrays"),
        (
            tf.data.Dataset.from_tensor_slices((IDS, IDS)).batch(3),
            "Give one column",
        ),
        (np.array(IDS)[:, np.newaxis], r"`ids\[:, 0\]`; with batch_size=1"),
        (np.array(3), r"the shape \[n\]"),
        ([1, [2, 3]], "1 of the 2 items of the log are single ids"),
        ([1, None], "1 of the 2 items of .* and the others are not, as None"),
        ([[1], [2]], r"has one id, as \[1\]: .* with batch_size=1 each"),
        (pd.Series([[1], [2]]), r"has one id, as \[1\]: Give a column"),
        ([[1, None]], r"none is missing; got \[1, None\]"),
        (SERIES.where(SERIES > 1), "missing numbers is one of floats"),
    ],
    ids=str,
)
def test_a_log_whose_steps_or_ids_cannot_be_told_is_refused(log, words):
    with pytest.raises((errors.ArgumentError, errors.DtypeError), match=words):
        tfembed.simulate(log, {"all": {}})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_sizes": 3}, "may have .*; got .'max_sizes'."),
        (None, "A choice is a dict .*; got None for 'choice'"),
        (
            {"max_size": 3, "eviction": policies.SmallestNorm()},
            "Simulate it from a table",
        ),
        ({"eviction": policies.LeastRecent("seconds")}, "counts seconds"),
        (
            {
                "eviction": policies.LeastRecent(),
                "expiry": policies.Expiry(3, at_checkpoints=True),
            },
            "Give its Expiry `every`",
        ),
        (
            {"max_size": 0, "eviction": policies.LeastRecent()},
            "got 0 for table 'choice'",
        ),
    ],
)
def test_a_choice_that_a_log_cannot_tell_of_is_refused(options, words):
    with pytest.raises(errors.ArgumentError, match=words):
        tfembed.simulate([1, 2, 3], {"choice": options})


def test_a_table_without_counts_cannot_tell_of_admissions():
    table = tfembed.HashTable(1, name="t")
    table.upsert(tf.constant([1], tf.int64), [[1.0]])

    with pytest.raises(errors.ArgumentError, match="how often its keys"):
        tfembed.simulate(table)
    bound = tfembed.simulate(table, {"bound": {"max_size": 1}})
    assert bound["bound"].rows == 1
    assert bound["bound"].hit_rate is None


def test_an_empty_log_and_no_choice_are_refused():
    with pytest.raises(errors.ArgumentError, match="no ids"):
        tfembed.simulate(np.array([], np.int64))
    with pytest.raises(errors.ArgumentError, match="must be a dict"):
        tfembed.simulate([1], {})


def test_a_dry_run_is_a_table_a_plot_and_a_dict(tmp_path):
    dry = tfembed.simulate([1, 2, 1, 3], {"<all>": {}}, batch_size=2)
    dry.save_html(tmp_path / "plot.html")

    assert str(dry).splitlines()[0] == (
        "4 ids in 2 steps; rows of float32 [16]"
    )
    assert str(dry).splitlines()[2].startswith("<all>      3")
    page = (tmp_path / "plot.html").read_text()
    assert page.count("<svg") == 2
    assert page.count("<polyline") == 2
    assert "<all>" not in page
    assert json.loads(json.dumps(dry.to_dict()))["<all>"]["rows"] == 3


def test_the_legend_of_a_plot_has_room_for_its_names():
    name = "admission after three times, then the most frequent"
    dry = tfembed.simulate([1, 2, 1], {name: {}, "": {}, "a/b é": {}})

    plot = dry._repr_html_()
    assert frames.wide_elements(plot) == [
        ("table", True),
        ("svg", True),
        ("svg", True),
    ]

    (width,) = set(re.findall(r'<svg [^>]*width="(\d+)"', plot))
    (begin,) = set(re.findall(rf'<text x="(\d+)" y="\d+">{name}<', plot))
    assert int(begin) + 8 * len(name) <= int(width)


@pytest.mark.parametrize("log", [[[1], [], [1, 2]], [["a"], [], ["a", "b"]]])
def test_steps_without_ids_are_no_floats(log):
    dry_run = tfembed.simulate(log, {"all": {}}, dim=2)

    assert "3 ids in 2 steps" in str(dry_run)


def test_a_log_without_ids_is_said_to_have_none():
    with pytest.raises(errors.ArgumentError, match="no ids"):
        tfembed.simulate([], {"all": {}}, dim=2)
