"""Two tables of one name, or of none: each keeps its rows, or a save is refused.

Each name that reaches a file, a checkpoint key or a graph is given twice: names of
Variables, shards, statuses, slots that users make, CuckooHashTables, Keras layers,
Savers of graphs, checkpoints of objects, threads, functions, sessions, restarts.
"""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from dynamic_embedding.graph_programs import graph_and_session, start, v1
from tfembed import errors

REFUSED = tf.errors.AlreadyExistsError


def variable(key, **options):
    """A table, called as all that are given no name, with one row."""
    v = de.Variable(dim=2, **options)
    v.upsert([key], [[float(key)] * 2])
    return v


def keys_in(folder, **options):
    v = de.Variable(dim=2, **options)
    v.load_from_file_system(folder)
    return keys_of(v)


def keys_of(v):
    return sorted(v.export()[0].numpy().tolist())


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def cuckoo(key):
    table = de.CuckooHashTable(tf.int64, tf.float32, [0.0, 0.0])
    table.insert(tf.constant([key], tf.int64), tf.fill([1, 2], float(key)))
    return table


def noted(key):
    v = de.Variable(dim=2, restrict_policy=de.TimestampRestrictPolicy)
    v.restrict_policy.apply_update(tf.constant([key], tf.int64))
    return v


def own_slot(key):
    v = variable(key)
    v.slot = de.create_slots(v, 0.0, "m", "adam", False)
    v.slot.upsert([key], [[1.0, 1.0]])
    return v


# What has rows, and what of it is saved.
PAIRS = {
    "variables": (variable, lambda v: v),
    "shards": (
        lambda key: variable(key, devices=["/CPU:0"] * 2),
        lambda v: v.tables[1],
    ),
    "several shards": (
        lambda key: variable(key, devices=["/CPU:0"] * 2),
        lambda v: v,
    ),
    "strings as keys": (
        lambda key: de.Variable(key_dtype=tf.string, dim=2),
        lambda v: v,
    ),
    "tables": (cuckoo, lambda table: table),
    "statuses": (noted, lambda v: v.restrict_policy.status),
    "slots": (own_slot, lambda v: v.slot),
    "layers": (lambda key: de.keras.layers.Embedding(2), lambda x: x.params),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("append", [False, True])
def test_a_table_does_not_write_over_another_one_of_its_name(
    pair, append, tmp_path
):
    make, saved = PAIRS[pair]
    first, second = make(1), make(3)
    saved(first).save_to_file_system(tmp_path)
    before = contents(tmp_path)

    with pytest.raises(REFUSED, match="another table"):
        saved(second).save_to_file_system(tmp_path, append_to_file=append)

    assert contents(tmp_path) == before
    saved(second).save_to_file_system(tmp_path / "another folder")
    saved(first).save_to_file_system(tmp_path, append_to_file=append)


def test_names_that_make_one_file_s_name_are_told_apart(tmp_path):
    variable(1, name="a/b").save_to_file_system(tmp_path)
    before = contents(tmp_path)
    other = variable(2, name="a_b")
    with pytest.raises(REFUSED, match="a table named 'a/b'"):
        other.save_to_file_system(tmp_path)
    assert contents(tmp_path) == before
    assert keys_in(tmp_path, name="a/b") == [1]


def test_files_that_users_name_are_guarded_too(tmp_path):
    a, b = variable(1, name="a"), variable(2, name="b")
    a.save_to_file_system(tmp_path, file_name_list=["rows"])
    with pytest.raises(REFUSED, match="named 'a'"):
        b.save_to_file_system(tmp_path, file_name_list=["rows"])
    a.save_to_file_system(tmp_path, file_name_list=["rows"])


def test_a_table_saves_over_its_own_rows_by_any_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    a, b = variable(1), variable(2)
    for folder in (".", str(tmp_path), f"{tmp_path}/", "link", tmp_path):
        a.save_to_file_system(folder)
        with pytest.raises(REFUSED):
            b.save_to_file_system(folder)
    a.upsert([3], [[3.0, 3.0]])
    a.save_to_file_system(tmp_path, append_to_file=True)
    assert keys_in(tmp_path) == [1, 3]


def test_whoever_has_loaded_the_rows_may_write_them_again(tmp_path):
    a, b = variable(1), variable(2)
    a.save_to_file_system(tmp_path)
    b.load_from_file_system(tmp_path)
    a.save_to_file_system(tmp_path)
    b.load_from_file_system(tmp_path)
    b.save_to_file_system(tmp_path)
    assert keys_in(tmp_path) == [1, 2]
    with pytest.raises(REFUSED):
        a.save_to_file_system(tmp_path)


def test_a_table_that_is_gone_has_no_rights(tmp_path):
    a = variable(1)
    a.itself = [a]  # Nothing but a cycle keeps it.
    a.save_to_file_system(tmp_path)
    del a
    variable(2).save_to_file_system(tmp_path)
    assert keys_in(tmp_path) == [2]


def test_files_that_were_removed_are_nobody_s(tmp_path):
    a, b = variable(1), variable(2)
    a.save_to_file_system(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    b.save_to_file_system(tmp_path)
    with pytest.raises(REFUSED):
        a.save_to_file_system(tmp_path)
    assert keys_in(tmp_path) == [2]


def test_a_failed_save_takes_no_right(tmp_path):
    a, b = variable(1), variable(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="file's name"):
        a.save_to_file_system(tmp_path, file_name_list=["a/b"])
    b.save_to_file_system(tmp_path)
    assert keys_in(tmp_path) == [2]


def test_a_save_in_another_session_of_the_graph_is_the_same_table_s(tmp_path):
    with graph_and_session() as first:
        v = de.Variable(dim=2)
        save = v.save_to_file_system(str(tmp_path))
        first.run(v.upsert(tf.constant([1], tf.int64), [[1.0, 1.0]]))
        first.run(save)
        with v1.Session() as second:
            second.run(save)
        first.run(save)
    assert keys_in(tmp_path) == [1]


def test_a_program_that_is_started_again_saves_over_its_own_files(tmp_path):
    program = """
        import sys
        import tfembed.dynamic_embedding as de
        v, w = de.Variable(dim=2), de.Variable(dim=2)
        v.upsert([int(sys.argv[2])], [[1.0, 1.0]])
        v.save_to_file_system(sys.argv[1])
        try:
            w.save_to_file_system(sys.argv[1])
        except Exception as error:
            print(type(error).__name__)
    """
    for key in (1, 2):
        out = fresh_process.output_of(program, tmp_path, key)
        assert out == "AlreadyExistsError\n"
    assert keys_in(tmp_path) == [2]


def in_threads(count, work):
    """Runs work(0), work(1) and so on at once; returns their errors."""
    start, failed = threading.Barrier(count), []

    def run(i):
        start.wait()
        try:
            work(i)
        except tf.errors.OpError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


@pytest.mark.parametrize("appends", [False, True])
def test_saves_of_one_table_at_once_go_one_after_the_other(tmp_path, appends):
    v = de.Variable(dim=2)
    v.upsert(np.arange(100), np.ones([100, 2], np.float32))

    for i in range(10):
        folder = tmp_path / str(i)
        assert not in_threads(
            4,
            lambda _, f=folder: v.save_to_file_system(
                f, append_to_file=appends
            ),
        )
        assert keys_in(folder) == list(range(100))
        # Its keys, its rows and a manifest; nothing is left over.
        assert len(list(folder.iterdir())) == 3


def test_saves_that_name_their_files_in_any_order_do_not_wait_for_each_other(
    tmp_path,
):
    v = variable(1, devices=["/CPU:0", "/CPU:0"])
    names = ["a", "b"]

    for _ in range(10):
        assert not in_threads(
            4,
            lambda i: v.save_to_file_system(
                tmp_path, file_name_list=names[:: (-1) ** i]
            ),
        )


def test_one_of_two_that_save_at_once_is_refused(tmp_path):
    tables = [variable(1), variable(2)]
    refused = []

    def save(v):
        try:
            v.save_to_file_system(tmp_path)
        except REFUSED:
            refused.append(v)

    assert not in_threads(2, lambda i: save(tables[i]))
    (other,) = refused
    (kept,) = [v for v in tables if v is not other]
    assert keys_in(tmp_path) == keys_of(kept)


def test_one_of_two_in_a_function_or_a_session_s_run_is_refused(tmp_path):
    a, b = variable(1), variable(2)

    @tf.function
    def save():
        a.save_to_file_system(tmp_path / "f")
        b.save_to_file_system(tmp_path / "f")

    with pytest.raises(REFUSED):
        save()
    with graph_and_session() as session:
        both = [de.Variable(dim=2) for _ in range(2)]
        saves = [v.save_to_file_system(str(tmp_path / "g")) for v in both]
        with pytest.raises(REFUSED):
            session.run(saves)


def graph_tables(session, names=(None, None), **options):
    """Two tables of a graph, with the keys 1 and 2."""
    made = [
        de.Variable(dim=2, **({"name": n} if n else {}), **options)
        for n in names
    ]
    for i, v in enumerate(made):
        key = tf.constant([i + 1], tf.int64)
        is_text = v.value_dtype == tf.string
        value = tf.fill([1, 2], "x" if is_text else 1.0)
        session.run(v.upsert(key, value))
    return made


@pytest.mark.parametrize(
    "saver_of",
    [
        lambda vs: v1.train.Saver(vs),
        lambda vs: v1.train.Saver(),
        lambda vs: v1.train.Saver(sharded=True),
        lambda vs: v1.train.Saver([v.tables[0] for v in vs]),
        lambda vs: v1.train.Scaffold().finalize(),
    ],
)
@pytest.mark.parametrize(
    ("names", "options"),
    [
        ((None, None), {}),
        (("users", "users"), {"restrict_policy": de.FrequencyRestrictPolicy}),
        (("a/b", "a_b"), {}),
        ((None, None), {"value_dtype": tf.string}),
    ],
)
def test_a_saver_refuses_two_tables_of_one_name(saver_of, names, options):
    with graph_and_session() as session:
        tables = graph_tables(session, names, **options)
        with pytest.raises(errors.ArgumentError, match="two tables as"):
            saver_of(tables)


def test_savers_of_one_table_each_and_dicts_keep_both_apart(tmp_path):
    with graph_and_session() as session:
        tables = graph_tables(session)
        start(session)
        savers = [
            v1.train.Saver([tables[0]]),
            v1.train.Saver([tables[1]]),
            v1.train.Saver(dict(zip("xy", tables, strict=True))),
        ]
        paths = [
            saver.save(session, str(tmp_path / str(i)))
            for i, saver in enumerate(savers)
        ]
        for chosen in ((0, 1), (2,)):
            session.run([v.clear() for v in tables])
            for i in chosen:
                savers[i].restore(session, paths[i])
            found = session.run([v.export()[0] for v in tables])
            assert [keys.tolist() for keys in found] == [[1], [2]]


def test_savers_do_not_check_another_savers_table_of_the_name(tmp_path):
    with graph_and_session() as session:
        narrow, wide = (
            [de.Variable(dim=dim, name=name) for name in ("a", "b")]
            for dim in (2, 3)
        )
        pairs = [(narrow[0], wide[1]), (wide[0], narrow[1])]
        key = tf.constant([1], tf.int64)
        session.run([v.upsert(key, tf.ones([1, v.dim])) for v in narrow + wide])
        savers = [v1.train.Saver(list(pair)) for pair in pairs]
        savers.append(v1.train.Saver([narrow[0], wide[1]]))
        for i, saver in enumerate(savers):
            path = saver.save(session, str(tmp_path / str(i)))
            session.run([v.clear() for v in narrow + wide])
            saver.restore(session, path)
            restored = pairs[i % 2]
            for v in narrow + wide:
                assert session.run(v.size()) == (v in restored)
            session.run(
                [v.upsert(key, tf.ones([1, v.dim])) for v in narrow + wide]
            )


def test_a_table_that_is_given_twice_is_saved_once(tmp_path):
    with graph_and_session() as session:
        v, _ = graph_tables(session, ("u", "v"))
        saver = v1.train.Saver([v, v.tables[0]])
        path = saver.save(session, str(tmp_path / "x"))
        session.run(v.clear())
        saver.restore(session, path)
        assert session.run(v.export()[0]).tolist() == [1]


def test_checkpoints_of_objects_know_no_names(tmp_path):
    policy = {"restrict_policy": de.FrequencyRestrictPolicy}
    tables = [variable(i, **policy) for i in (1, 2)]
    for v in tables:
        v.restrict_policy.apply_update(v.export()[0])
    path = tf.train.Checkpoint(tables=tables).write(str(tmp_path / "x"))
    again = [de.Variable(dim=2, **policy) for _ in tables]
    checkpoint = tf.train.Checkpoint(tables=again)
    checkpoint.read(path).assert_consumed()
    assert [keys_of(v) for v in again] == [[1], [2]]
    assert [keys_of(v.restrict_policy.status) for v in again] == [[1], [2]]


@keras.saving.register_keras_serializable("tests")
class Twins(keras.Model):
    """Two layers of one name: that of all that were given none."""

    def __init__(self, **options):
        super().__init__(**options)
        self.one = de.keras.layers.Embedding(2)
        self.other = de.keras.layers.Embedding(2)

    def call(self, ids):
        return self.one(ids) + self.other(ids)


@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_keras_files_keep_layers_of_one_name_apart(file, tmp_path):
    model, again = Twins(), Twins()
    ids = np.array([[7]])
    for one in (model, again):
        one(ids)
    model.one.params.upsert([1], [[1.0, 1.0]])
    model.other.params.upsert([2], [[2.0, 2.0]])
    if file == "m.keras":
        model.save(tmp_path / file)
        again = keras.saving.load_model(tmp_path / file)
    else:
        model.save_weights(tmp_path / file)
        again.load_weights(tmp_path / file)
    assert keys_of(again.one.params) == [1]
    assert keys_of(again.other.params) == [2]
