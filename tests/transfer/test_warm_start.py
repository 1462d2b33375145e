"""Tables begin with rows of other tables, files and programs."""

from __future__ import annotations

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed import errors, optimizers, warm_start
from tfembed.embedding.xla.sharded_table import ShardedTable
from tfembed.saved.saved_tables import open_saved
from tfembed.transfer.warm_start import SLOT_MEANINGS

KEYS = np.array([3, -7, 2**62])
ROWS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def table(dim=2, rule=None, name="t", **options):
    made = tfembed.HashTable(dim, name=name, **{"initializer": -1.0, **options})
    if rule is not None:
        made.attach(rule)
    return made


def filled(rule=None, **options):
    made = table(rule=rule, name="old", **options)
    made.upsert(KEYS, ROWS)
    return made


def trained(rule, **options):
    made = filled(rule, **options)
    made.apply_gradients(KEYS, np.float32([[1, 2], [3, 4], [5, 6]]))
    return made


def saved(made, folder):
    return tf.train.Checkpoint(users=made).save(str(folder / "ckpt"))


def raw_files(made, folder):
    variable = de.Variable(dim=2, name="users")
    variable.upsert(*made.export())
    variable.save_to_file_system(str(folder))
    return str(folder)


def parquet(made, folder, frame=None):
    path = folder / "rows.parquet"
    frame = made.to_pandas() if frame is None else frame
    frame.columns = [str(c) for c in frame.columns]
    frame.reset_index().to_parquet(path)
    return path


def lists_in_parquet(made, folder):
    frame = pandas.DataFrame({"key": KEYS, "rows": ROWS.tolist()})
    frame.to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


def npz(made, folder):
    np.savez(folder / "rows.npz", keys=KEYS, rows=ROWS)
    return folder / "rows.npz"


def saver_files(made, folder):
    """A checkpoint of TFRA's, by tf.compat.v1.train.Saver."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        keys = tf.compat.v1.get_variable(
            "users_mht_1of1-keys", initializer=tf.constant(KEYS)
        )
        rows = tf.compat.v1.get_variable(
            "users_mht_1of1-values", initializer=tf.constant(ROWS)
        )
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver([keys, rows])
        return saver.save(session, str(folder / "model"))


def saver_files_of_shards(made, folder, shards=(0, 1, 2)):
    """The same of a variable of three shards, the last of them empty."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = []
        for i in shards:
            own = slice(2 * i, 2 * i + 2)
            stem = f"scope/users_mht_{i + 1}of3"
            tensors += [
                tf.compat.v1.get_variable(
                    f"{stem}-keys", initializer=tf.constant(KEYS[own])
                ),
                tf.compat.v1.get_variable(
                    f"{stem}-values", initializer=tf.constant(ROWS[own])
                ),
            ]
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(tensors)
        return saver.save(session, str(folder / "model"))


SOURCES = {
    "checkpoint": saved,
    "TFRA's raw files": raw_files,
    "TFRA's checkpoint": saver_files,
    "TFRA's checkpoint of shards": saver_files_of_shards,
    "parquet": parquet,
    "lists in parquet": lists_in_parquet,
    "npz": npz,
    "arrays": lambda made, folder: (KEYS, ROWS),
    "tensors": lambda made, folder: (tf.constant(KEYS), tf.constant(ROWS)),
    "dict": lambda made, folder: dict(zip(KEYS.tolist(), ROWS, strict=True)),
    "frame": lambda made, folder: made.to_pandas(),
    "table": lambda made, folder: made,
}


def test_shards_of_a_saver_are_one_table(tmp_path):
    """Kind: the parts of a table that a file shows as tables.

    Looked for in: Savers' checkpoints (here), raw files, warm starts of graphs,
    Keras' files, exports of inspection, which read the same tables.
    """
    path = saver_files_of_shards(None, tmp_path)

    (found,) = open_saved(path).values()

    assert (found.name, found.num_rows) == ("scope/users", 3)
    assert found.shard_sizes == (2, 1, 0)
    assert [row.row.tolist() for row in found.find(KEYS.tolist())] == (
        ROWS.tolist()
    )
    assert open_saved(path).variables == []
    found.check()


def test_a_missing_shard_of_a_saver_is_named(tmp_path):
    path = saver_files_of_shards(None, tmp_path, shards=[0, 2])

    with pytest.raises(
        errors.CheckpointError,
        match=r"2 of the 3 shards.*'scope/users_mht_2of3'",
    ):
        warm_start(table(2), path)


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_rows_come_from_every_kind_of_source(make, tmp_path):
    new = table(3)
    new.upsert([9], [[9.0, 9.0, 9.0]])
    report = warm_start(new, make(filled(), tmp_path), pad="initial")
    np.testing.assert_array_equal(
        new[KEYS], np.concatenate([ROWS, [[-1]] * 3], 1)
    )
    np.testing.assert_array_equal(new[9], [9, 9, 9])
    assert (report.rows, report.padded_columns) == (3, 1)


def test_a_variable_begins_with_the_rows_of_another():
    old, new = de.Variable(dim=2, name="a"), de.Variable(dim=2, name="b")
    old.upsert(KEYS, ROWS)
    warm_start(new, old)
    np.testing.assert_array_equal(new[KEYS], ROWS)


def test_wider_rows_are_padded_by_a_number():
    new = table(4)
    warm_start(new, (KEYS, ROWS), pad=0.5)
    np.testing.assert_array_equal(new[3], [1, 2, 0.5, 0.5])


def test_wider_rows_are_padded_by_what_a_key_would_begin_as():
    new = table(4, initializer="uniform", seed=3)
    drawn = new[KEYS].numpy()
    warm_start(new, (KEYS, ROWS), pad="initial")
    np.testing.assert_array_equal(new[KEYS][:, 2:], drawn[:, 2:])
    np.testing.assert_array_equal(new[KEYS][:, :2], ROWS)


@pytest.mark.parametrize("key_dtype", ["int64", "int32", "string"])
@pytest.mark.parametrize("value_dtype", ["float32", "bfloat16", "float64"])
def test_keys_and_numbers_of_other_dtypes_are_converted(key_dtype, value_dtype):
    new = table(key_dtype=key_dtype, value_dtype=value_dtype)
    warm_start(new, (KEYS[:2], ROWS[:2]))
    keys = ["3", "-7"] if key_dtype == "string" else [3, -7]
    np.testing.assert_array_equal(tf.cast(new[keys], tf.float32), ROWS[:2])


def test_text_that_is_a_number_becomes_a_key_of_integers():
    new = table()
    warm_start(new, (["3", "-7"], ROWS[:2]))
    np.testing.assert_array_equal(new[[3, -7]], ROWS[:2])


def test_a_function_says_which_keys_other_keys_become():
    new = table()
    warm_start(
        new,
        (["a", "bb"], ROWS[:2]),
        convert_keys=lambda keys: [len(one) for one in keys],
    )
    np.testing.assert_array_equal(new[[1, 2]], ROWS[:2])


def test_a_checkpoint_of_several_tables_is_read_by_name(tmp_path):
    path = tf.train.Checkpoint(users=filled(), items=table(name="items")).save(
        str(tmp_path / "ckpt")
    )
    new = table()
    with pytest.raises(
        errors.ArgumentError, match=r"\['items', 'old'\]; choose one by `name`"
    ):
        warm_start(new, path)
    for name in ("old", "users"):  # The table's name, what the checkpoint says.
        warm_start(new, path, name=name)
        np.testing.assert_array_equal(new[KEYS], ROWS)
        new.clear()


def test_slots_of_the_same_rule_are_kept_and_padded(tmp_path):
    old = trained(tfembed.Adagrad(0.5))
    new = table(3, tfembed.Adagrad(0.5))
    report = warm_start(new, saved(old, tmp_path), pad=0.0)
    assert report.slots_kept == {"accumulators": "accumulators"}
    assert report.slots_new == report.slots_dropped == ()
    for one, width in ((old, 2), (new, 3)):
        one.apply_gradients(KEYS, np.ones([3, width], np.float32))
    np.testing.assert_array_equal(new[KEYS][:, :2], old[KEYS])
    np.testing.assert_allclose(  # The new column is one of a new row.
        new[KEYS][:, 2], -0.5 / np.sqrt(0.1 + 1.0), rtol=1e-6
    )


def test_slots_of_another_rule_are_kept_where_they_mean_the_same():
    old = trained(tfembed.Adam(0.5))
    new = table(rule=tfembed.Yogi(0.5))
    report = warm_start(new, old)
    assert report.slots_kept == {"v": "velocities", "m": "momenta"}
    of_old, of_new = (one.export_slots() for one in (old, new))
    np.testing.assert_array_equal(of_new[0], of_old[0])
    np.testing.assert_array_equal(of_new[1]["v"], of_old[1]["velocities"])
    np.testing.assert_array_equal(of_new[1]["m"], of_old[1]["momenta"])


@pytest.mark.parametrize(
    ("old", "new", "kept", "begun", "dropped"),
    [
        ("Adagrad", "FTRL", ["accumulators"], ("linears",), ()),
        ("Adagrad", "RowWiseAdagrad", [], ("accumulators",), ("accumulators",)),
        ("Adagrad", "Adadelta", [], ("accumulators", "updates"), None),
        ("Momentum", "Lion", [], ("momenta",), ("momenta",)),
        ("RMSProp", "CenteredRMSProp", ["ms", "mom"], ("mg",), ()),
        ("Adagrad", "SGD", [], (), ("accumulators",)),
        ("SGD", "Adagrad", [], ("accumulators",), ()),
    ],
)
def test_what_became_of_slots_is_reported(old, new, kept, begun, dropped):
    source = trained(getattr(optimizers, old)(0.5))
    made = table(rule=getattr(optimizers, new)(0.5))
    report = warm_start(made, source)
    assert list(report.slots_kept) == kept
    assert report.slots_new == begun
    assert dropped is None or report.slots_dropped == dropped
    np.testing.assert_array_equal(made[KEYS], source[KEYS])
    fresh = table(rule=made.optimizer)
    fresh.upsert(KEYS, source[KEYS])
    of_made, of_fresh = made.export_slots()[1], fresh.export_slots()[1]
    for slot in begun:
        np.testing.assert_array_equal(of_made[slot], of_fresh[slot])


def test_slots_are_left_out_where_that_is_asked_for():
    report = warm_start(
        table(rule=tfembed.Adagrad(0.5)),
        trained(tfembed.Adagrad(0.5)),
        slots=False,
    )
    assert report.slots_kept == {}
    assert report.slots_dropped == ("accumulators",)


def test_each_meaning_is_of_a_slot_that_there_is():
    rules = {
        one.rule_name: one
        for one in vars(optimizers).values()
        if isinstance(one, type) and hasattr(one, "rule_name")
    }
    for rule, slot in SLOT_MEANINGS:
        made = rules[rule](0.5)
        assert slot in made.slot_names
        assert slot not in made.row_wise_slots


def lookup_and_embedding(words, **options):
    lookup = keras.layers.StringLookup(vocabulary=words, **options)
    embedding = keras.layers.Embedding(lookup.vocabulary_size(), 2)
    embedding.build()
    return lookup, embedding


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, ("[UNK]",)),
        ({"num_oov_indices": 0}, ()),
        (
            {"mask_token": "", "num_oov_indices": 2},
            ("", "[UNK]", "[UNK]"),
        ),
    ],
)
def test_keras_lookup_and_embedding_become_a_table_of_strings(
    options, left_out
):
    words = ["ann", "bob", "eve"]
    lookup, embedding = lookup_and_embedding(words, **options)
    new = table(key_dtype="string")
    report = warm_start(new, (lookup, embedding))
    np.testing.assert_array_equal(new[words], embedding(lookup(words)))
    assert report.left_out == left_out
    assert len(new) == 3


def test_keras_embedding_alone_has_its_row_numbers_as_keys():
    _, embedding = lookup_and_embedding(["ann"])
    new = table()
    warm_start(new, embedding)
    np.testing.assert_array_equal(new[[0, 1]], embedding(np.array([0, 1])))


def test_an_integer_lookup_gives_integers():
    lookup = keras.layers.IntegerLookup(vocabulary=[40, 50])
    embedding = keras.layers.Embedding(3, 2)
    embedding.build()
    new = table()
    warm_start(new, (lookup, embedding))
    np.testing.assert_array_equal(new[[40, 50]], embedding(np.array([1, 2])))


def test_a_keras_model_file_gives_its_tables(tmp_path):
    layer = de.keras.layers.Embedding(2, name="users")
    model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
    layer.params.upsert(KEYS, ROWS)
    model.save(tmp_path / "model.keras")
    new = table()
    warm_start(new, tmp_path / "model.keras")
    np.testing.assert_array_equal(new[KEYS], ROWS)


def frame_with_text():
    return pandas.DataFrame({"a": ["x"], "b": [1.0]}, index=[1])


@pytest.mark.parametrize(
    ("options", "source", "error", "match"),
    [
        (
            {},
            (KEYS, ROWS[:, :1]),
            "ArgumentError",
            "`pad` must be.*last 1 col",
        ),
        ({"pad": "zeros"}, (KEYS, ROWS[:, :1]), "ArgumentError", "'zeros'"),
        ({}, (KEYS, np.ones([3, 3])), "ArgumentError", "width 3.*has 2"),
        ({}, (KEYS, ROWS[:2]), "ArgumentError", "one for each of its 3 keys"),
        ({}, (KEYS, [["a", "b"]] * 3), "DtypeError", "must be numbers"),
        ({}, ([1.5], ROWS[:1]), "DtypeError", "must be integers or strings"),
        ({}, (["3", "x"], ROWS[:2]), "DtypeError", "b'x'.*`convert_keys`"),
        ({}, 3, "ArgumentError", "must be a path"),
        ({}, "nowhere/ckpt", "CheckpointError", "nowhere/ckpt"),
        ({}, "nowhere.npz", "CheckpointError", "nowhere.npz"),
        ({}, "nowhere.parquet", "CheckpointError", "nowhere.parquet"),
        ({}, frame_with_text(), "ArgumentError", r"\['a'\] too"),
        (
            {"convert_keys": lambda keys: keys[:1]},
            (KEYS, ROWS),
            "ArgumentError",
            "a key for each",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_a_row_changes(
    options, source, error, match
):
    new = table()
    new.upsert([3], [[8.0, 8.0]])
    with pytest.raises(getattr(errors, error), match=match):
        warm_start(new, source, **options)
    assert len(new) == 1
    np.testing.assert_array_equal(new[3], [8, 8])


def test_keys_that_the_table_cannot_hold_are_refused_before_a_row_changes():
    new = table(key_dtype="int32")
    with pytest.raises(errors.DtypeError, match="int32"):
        warm_start(new, (KEYS, ROWS))
    assert len(new) == 0


def test_more_rows_than_a_table_may_hold_are_refused():
    new = table(max_size=2, eviction=tfembed.policies.SmallestNorm())
    with pytest.raises(errors.ArgumentError, match="3 rows.*max_size=2"):
        warm_start(new, (KEYS, ROWS))
    assert len(new) == 0


def test_a_damaged_file_is_refused_before_a_row_changes(tmp_path):
    path = saved(filled(), tmp_path)
    data = next(
        one
        for one in tmp_path.glob("*.data-*")
        if ROWS.tobytes() in one.read_bytes()
    )
    content = bytearray(data.read_bytes())
    at = content.find(ROWS.tobytes())
    content[at] ^= 1
    data.write_bytes(content)
    new = table()
    with pytest.raises(errors.CheckpointError):
        warm_start(new, path)
    assert len(new) == 0


def test_a_layer_without_weights_is_told():
    lookup = keras.layers.StringLookup(vocabulary=["a"])
    with pytest.raises(errors.StateError, match="Build it"):
        warm_start(
            table(key_dtype="string"), (lookup, keras.layers.Embedding(2, 2))
        )


def embedding_of(rule, rows=6, dim=2):
    users = tfembed.TableConfig(rows, dim, "ones", name="users")
    made = tfembed.TPUEmbedding(
        {"user": tfembed.FeatureConfig(users, output_shape=[2])}, rule
    )
    made.build()
    return made


def trained_embedding(rule):
    made = embedding_of(rule)
    made.enqueue({"user": np.array([1, 3])})
    made.dequeue()
    made.apply_gradients({"user": tf.constant([[1.0, 2.0], [3.0, 4.0]])})
    return made


def embedding_checkpoint(folder):
    """The path of a checkpoint of a table with a vocabulary, and its rows."""
    old = embedding_of(optimizers.SGD(0.1), rows=3)
    old.embedding_tables["users"].assign(ROWS)
    return tf.train.Checkpoint(old=old).save(str(folder / "ckpt"))


def keras_embedding():
    layer = keras.layers.Embedding(3, 2)
    layer.build()
    layer.set_weights([ROWS])
    return layer


OF_VOCABULARY = {
    "arrays": lambda folder: ([0, 1, 2], ROWS),
    "text": lambda folder: (["0", "1", "2"], ROWS),
    "Keras Embedding": lambda folder: keras_embedding(),
    "variable": lambda folder: tf.Variable(ROWS),
    "checkpoint": embedding_checkpoint,
}


@pytest.mark.parametrize("make", OF_VOCABULARY.values(), ids=OF_VOCABULARY)
def test_a_table_with_a_vocabulary_begins_with_rows_by_number(make, tmp_path):
    embedding = embedding_of(optimizers.Adagrad(0.1), dim=3)
    table = embedding.embedding_tables["users"]
    report = warm_start(table, make(tmp_path), pad=0.5)
    np.testing.assert_array_equal(table[:3, :2], ROWS)
    np.testing.assert_array_equal(table[:3, 2], [0.5] * 3)
    np.testing.assert_array_equal(table[3:], np.ones([3, 3]))
    assert (report.rows, report.slots_new) == (3, ("accumulators",))


def test_slots_go_into_a_table_with_a_vocabulary_and_out_of_it():
    old = trained_embedding(optimizers.Adagrad(0.1))
    between, new = (
        table(rule=optimizers.FTRL(0.1)),
        embedding_of(optimizers.Adagrad(0.1)),
    )
    into_keys = warm_start(between, old.embedding_tables["users"])
    into_rows = warm_start(new.embedding_tables["users"], between)
    assert into_keys.slots_kept == {"accumulators": "accumulators"}
    assert into_rows.slots_kept == {"accumulators": "accumulators"}
    (before, _, _), (after, _, _) = (
        one.made_tables()["users"] for one in (old, new)
    )
    np.testing.assert_array_equal(after.parameters, before.parameters)
    np.testing.assert_array_equal(
        after.slots["accumulators"], before.slots["accumulators"]
    )


def test_rows_that_are_spread_over_replicas_are_written_by_number():
    stack = [tf.Variable(tf.zeros([7, 2])) for _ in range(3)]
    table = ShardedTable(stack, 2, (12, 2), "films")
    warm_start(table, ([11, 4, 5], ROWS))
    np.testing.assert_array_equal(table.numpy()[[11, 4, 5]], ROWS)
    assert np.count_nonzero(table.numpy()) == ROWS.size


def test_of_a_row_that_comes_twice_the_last_one_stays():
    table = tf.Variable(tf.zeros([4, 2]))
    warm_start(table, ([1, 3, 1], ROWS))
    np.testing.assert_array_equal(table[1], ROWS[2])


def test_keys_beyond_a_vocabulary_are_refused_before_a_row_changes():
    table = embedding_of(optimizers.SGD(0.1)).embedding_tables["users"]
    with pytest.raises(errors.ArgumentError, match="'users'.*0 to 5; got 6"):
        warm_start(table, ([0, 6, -1], ROWS))
    np.testing.assert_array_equal(table, np.ones([6, 2]))


@pytest.mark.parametrize(
    "target", [tf.zeros([4, 2]), keras.layers.Embedding(4, 2), tf.Variable(1.0)]
)
def test_what_is_no_table_is_refused(target):
    with pytest.raises(errors.UnsupportedError, match="`table` must be"):
        warm_start(target, (KEYS, ROWS))


def test_in_a_function_it_is_refused():
    new = table()
    run = tf.function(lambda: warm_start(new, (KEYS, ROWS)), autograph=False)
    with pytest.raises(errors.UnsupportedError, match="eager"):
        run()


@pytest.mark.parametrize(
    "layer",
    [
        lambda: tfembed.keras.layers.Embedding(2, key_dtype="int64"),
        lambda: de.keras.layers.Embedding(2),
    ],
)
def test_layers_are_taken_for_their_tables(layer):
    one, other = layer(), layer()

    warm_start(one, filled())
    warm_start(other, one)

    np.testing.assert_array_equal(other(KEYS), ROWS)


SORTED_AS_TEXT = ["0", "1", "10", "2", "3", "4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize("kind", ["frame", "parquet"])
def test_columns_that_are_numbered_go_by_their_numbers(kind, tmp_path):
    frame = pandas.DataFrame(
        [[int(name) for name in SORTED_AS_TEXT]], [5], SORTED_AS_TEXT
    )
    source = frame
    if kind == "parquet":
        source = str(tmp_path / "rows.parquet")
        frame.rename_axis("key").to_parquet(source)
    new = table(dim=11)
    warm_start(new, source)
    np.testing.assert_array_equal(new[5], range(11))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (([3, 4, 3], ROWS), {}),
        ((["7", "07", "8"], ROWS), {}),
        ((KEYS, ROWS), {"convert_keys": lambda keys: keys % 2}),
    ],
)
def test_rows_that_others_replaced_are_counted(source, options):
    new = table()
    report = warm_start(new, source, **options)
    assert (report.rows, report.repeated) == (3, 3 - len(new))
    assert len(new) == 2


def lookup(*words):
    return keras.layers.StringLookup(vocabulary=list(words) or None)


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        (
            lambda: (keras.layers.Hashing(3), keras_embedding()),
            errors.ArgumentError,
            "must be .StringLookup or IntegerLookup, Embedding.; got .Hashing",
        ),
        (
            lambda: (keras_embedding(), lookup("a", "b")),
            errors.ArgumentError,
            "got .Embedding, StringLookup",
        ),
        (
            lambda: (lookup(), keras_embedding()),
            errors.StateError,
            "no vocabulary yet",
        ),
        (
            lambda: {"keys": [1, 2], "rows": [[1, 2], [3]]},
            errors.ArgumentError,
            "rows of the dict must be .*differ in length",
        ),
        (
            lambda: tfembed.keras.layers.Embedding(2, name="films"),
            errors.StateError,
            "'films' has no table before .*`key_dtype`",
        ),
    ],
)
def test_sources_that_are_not_ready_say_what_is_missing(source, error, text):
    with pytest.raises(error, match=text):
        warm_start(table(key_dtype="string"), source())


def test_a_layer_is_not_filled_before_it_knows_its_keys():
    layer = tfembed.keras.layers.Embedding(2, name="films")
    with pytest.raises(errors.StateError, match="'films'.*`key_dtype`"):
        warm_start(layer, (KEYS, ROWS))


def test_one_of_several_tables_is_asked_for():
    with pytest.raises(errors.UnsupportedError, match="`embedding_tables`"):
        warm_start(embedding_of(optimizers.SGD(0.1)), (KEYS, ROWS))


def test_arrays_of_objects_are_named_with_the_way_out(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez(path, keys=np.array(["a", "b"], object), rows=np.ones([2, 2]))

    with pytest.raises(
        tfembed.errors.CheckpointError,
        match=r"rows\.npz' has arrays of Python objects.*Save keys as",
    ):
        warm_start(
            tfembed.dynamic_embedding.Variable(
                dim=2, key_dtype=tf.string, name="of_objects"
            ),
            path,
        )
