"""TableMonitor in `fit`: the progress bar, TensorBoard's files, warnings."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed import errors
from tfembed.keras.callbacks import TableMonitor
from tfembed.monitoring.table_monitor import write_projector

IDS = np.array([b"ada", b"bob", b"ada", b"eve"])


def _distributed():
    config = tfembed.TableConfig(
        None,
        4,
        name="users",
        key_dtype="string",
        eviction=tfembed.policies.LeastFrequent(),
    )
    layer = tfembed.keras.layers.DistributedEmbedding(
        {"user": tfembed.FeatureConfig(table=config)}, tfembed.Adagrad(0.1)
    )
    inputs = {"user": keras.Input((), dtype="string", name="user")}
    outputs = keras.layers.Dense(1)(layer(inputs)["user"])
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model, {"user": tf.constant(IDS)}


def _tfra():
    layer = de.keras.layers.SquashedEmbedding(4, name="users")
    model = keras.Sequential(
        [keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)]
    )
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, "mse")
    return model, tf.constant([[1], [2], [1], [5]], tf.int64)


def _events(folder):
    """By tag of a summary, its values by step."""
    found = {}
    for path in sorted(folder.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, {})[event.step] = array
    return found


@pytest.mark.parametrize("make", [_distributed, _tfra])
def test_fit_tells_rows_and_hits_of_each_epoch(make, tmp_path):
    model, ids = make()
    monitor = TableMonitor(tmp_path)
    history = model.fit(
        ids,
        np.ones([4, 1]),
        batch_size=2,
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[monitor],
    )
    history = history.history

    assert history["table_rows"] == [3, 3]
    # The first epoch meets "ada" again, the second one knows all ids.
    assert history["table_hit_rate"] == [0.25, 1.0]
    assert history["table_bytes"][0] > 0
    (table,) = monitor.health
    assert (table.grown, table.rows, table.hit_rate) == (0, 3, 1.0)
    events = _events(tmp_path / "tables")
    tag = table.name
    assert events[f"{tag}/rows"] == {2: 3.0, 4: 3.0}
    assert events[f"{tag}/hit_rate"] == {2: 0.25, 4: 1.0}
    assert events[f"{tag}/never_trained"][4] == 0
    assert events[f"{tag}/norms"][4][:, 2].sum() == 3


def test_every_so_many_batches_is_a_look(tmp_path):
    model, ids = _distributed()
    model.fit(
        ids,
        np.ones([4, 1]),
        batch_size=1,
        verbose=0,
        shuffle=False,
        callbacks=[TableMonitor(tmp_path, every=2)],
    )
    events = _events(tmp_path / "tables")

    assert events["users/rows"] == {2: 2.0, 4: 3.0}
    assert events["users/inserted"] == {2: 2.0, 4: 1.0}
    assert events["users/touches"][4][:, 2].sum() == 3


# A call of several steps counts as so many, the last one of an epoch as those
# that it made. Looked at too: hooks of estimators under iterations_per_loop
# (InMemoryEvaluatorHook counted loops), host_call, early stopping, input state,
# progress lines, schedules of tables.


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (8, [8, 18]),
        (1, [4, 8, 10, 14, 18, 20]),
        (6, [8, 14, 18]),
        (5, [8, 10, 18, 20]),
    ],
)
def test_steps_of_one_call_are_counted_each(tmp_path, every, steps, is_known):
    model, ids = _distributed()
    model.compile("sgd", "mse", steps_per_execution=4)
    data = tf.data.Dataset.from_tensors((ids, np.ones([4, 1]))).repeat(10)
    if not is_known:
        data = data.filter(lambda x, y: True)

    model.fit(
        data,
        epochs=2,
        verbose=0,
        callbacks=[TableMonitor(tmp_path, every=every)],
    )

    found = _events(tmp_path / "tables")["users/rows"]
    assert sorted(found) == steps


def test_the_projector_has_rows_with_their_keys(tmp_path):
    model, ids = _distributed()
    model.fit(
        ids,
        np.ones([4, 1]),
        batch_size=1,
        verbose=0,
        callbacks=[TableMonitor(tmp_path, projector_rows=2)],
    )
    folder = tmp_path / "tables"
    keys = (folder / "users_keys.tsv").read_text().splitlines()
    rows = np.loadtxt(folder / "users.tsv", ndmin=2)
    table = model.layers[1].get_embedding_tables()["users"]

    assert keys[0] == "ada"  # Touched most.
    np.testing.assert_allclose(
        rows, table.lookup(tf.constant(keys))[0], rtol=1e-5
    )
    assert (
        'metadata_path: "users_keys.tsv"'
        in (folder / "projector_config.pbtxt").read_text()
    )


def test_labels_of_the_projector_are_a_line_each(tmp_path):
    tables = []
    for _ in range(2):
        table = tfembed.HashTable(2, name="a/b", key_dtype=tf.string)
        table.upsert(tf.constant(["", "x\ty\nz"]), tf.ones([2, 2]))
        tables.append(table)
    strings = de.Variable(name="s", dim=2, value_dtype=tf.string)

    assert write_projector([*tables, strings], tmp_path) == ["0_a_b", "1_a_b"]
    labels = (tmp_path / "0_a_b_keys.tsv").read_text().split("\n")
    assert sorted(labels) == ["", "(empty)", "x y z"]


@pytest.mark.parametrize("verbose", [0, 1])
def test_what_looks_wrong_is_said_once_on_a_line_of_its_own(capfd, verbose):
    model, ids = _tfra()
    table = tfembed.HashTable(1, name="zeros")
    table.upsert(tf.constant([1], tf.int64), [[0.0]])
    monitor = TableMonitor(source=[table], every=1, verbose=verbose)

    model.fit(ids, np.ones([4, 1]), epochs=2, batch_size=1, callbacks=[monitor])

    out, err = capfd.readouterr()
    said = [x for x in (out + err).split("\n") if "TableMonitor" in x]
    assert said == verbose * [
        "TableMonitor: zeros: all rows looked at are zero: initial rows of "
        "zeros, and no gradient came."
    ]


def test_a_model_without_tables_trains_undisturbed():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(
        np.ones([2, 1]), np.ones([2, 1]), verbose=0, callbacks=[TableMonitor()]
    )

    assert set(history.history) == {"loss"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": 0}, "`every` must be .* at least 1"),
        ({"projector_rows": 5}, "needs a `log_dir`"),
        ({"sample": 0}, "`sample` must be .* at least 1"),
        ({"verbose": 2}, "`verbose` must be 0, .* or 1"),
    ],
)
def test_arguments_are_checked_when_it_is_made(arguments, words):
    with pytest.raises(errors.ArgumentError, match=words):
        TableMonitor(**arguments)


def test_a_loop_writes_summaries(tmp_path):
    table = tfembed.HashTable(1, name="users")
    table.upsert(tf.constant([3], tf.int64), [[2.0]])
    with tf.summary.create_file_writer(str(tmp_path)).as_default() as writer:
        tfembed.health(table).write_summaries(7, prefix="t/")
        writer.flush()
    events = _events(tmp_path)

    assert events["t/users/rows"] == {7: 1.0}
    assert events["t/users/norm_median"] == {7: 2.0}
    assert "t/users/hit_rate" not in events
