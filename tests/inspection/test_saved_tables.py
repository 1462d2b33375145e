"""Tables of all kinds of files are read as they were saved."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from inspection import saved_files
from tfembed import errors
from tfembed.inspection import command
from tfembed.saved.saved_tables import (
    RowDtypes,
    checkpoints_of,
    open_saved,
)

ROOT = pathlib.Path(tfembed.__file__).parent.parent


def test_a_table_of_a_checkpoint_has_the_rows_that_were_saved(tmp_path):
    table = saved_files.users()
    prefix = saved_files.save(tmp_path / "ckpt", users=table)

    saved = open_saved(prefix)["model/users"]

    saved_files.assert_same(saved, saved_files.content_of(table))
    assert (saved.key_dtype, saved.dtype, saved.width) == (
        "int64",
        "float32",
        4,
    )
    assert (saved.rule, saved.seed) == ("adagrad", 7)
    assert saved.slot_initial_values["accumulators"] == pytest.approx(0.1)
    assert saved.num_bytes == {"keys": 8000, "rows": 16000, "slots": 16000}


def test_tables_of_many_slices_are_read_slice_by_slice(tmp_path):
    table = tfembed.HashTable(32, name="t")
    table.attach(tfembed.Adagrad(0.1))
    keys = np.arange(150_000)
    table.upsert(keys, np.repeat(keys[:, None], 32, 1).astype(np.float32))
    prefix = saved_files.save(tmp_path / "ckpt", t=table)

    saved = open_saved(prefix)["t"]
    chunks = list(saved.chunks())

    assert len(chunks) > 1
    for chunk in chunks:
        np.testing.assert_array_equal(chunk.rows[:, 31], chunk.keys)
    assert sorted(np.concatenate([c.keys for c in chunks])) == list(keys)
    found = saved.find([149_999, -1, 0, 77_777])
    assert [row and row.row[0] for row in found] == [149_999, None, 0, 77_777]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.half, tf.int8])
def test_string_keys_of_any_length_find_their_rows(tmp_path, dtype):
    table = saved_files.names(dtype)
    prefix = saved_files.save(tmp_path / "ckpt", names=table)

    saved = open_saved(prefix)["names"]

    saved_files.assert_same(saved, saved_files.content_of(table))
    assert saved.dtype == dtype.name
    found = saved.find([b"x" * 300, b"nobody", b"b\0c"])
    assert [row and row.row.tolist() for row in found] == [
        [6, 7],
        None,
        [10, 11],
    ]


@pytest.mark.parametrize(
    "keys, values",
    [("int32", "float32"), ("int64", "int64"), ("int64", "float64")],
)
def test_other_dtypes_are_read_too(tmp_path, keys, values):
    table = tfembed.HashTable(
        3,
        name="t",
        key_dtype=tf.as_dtype(keys),
        value_dtype=tf.as_dtype(values),
    )
    table.upsert(
        tf.constant([5, -7], keys), tf.constant([[1, 2, 3], [4, 5, 6]], values)
    )

    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    assert (saved.key_dtype, saved.dtype) == (keys, values)
    assert saved.find([-7])[0].row.tolist() == [4, 5, 6]


def test_rows_of_strings_are_bytes(tmp_path):
    table = tfembed.tables.StringTable(2, name="t")
    rows = tf.constant([["a", "b" * 200], ["", "d"]])
    table.upsert(tf.constant([1, 2], tf.int64), rows)

    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    assert saved.dtype == "string"
    assert saved.find([1])[0].row.tolist() == [b"a", b"b" * 200]


def test_an_empty_table_has_no_chunks(tmp_path):
    table = tfembed.HashTable(4, name="t")
    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    assert (saved.num_rows, list(saved.chunks())) == (0, [])
    assert saved.find([1]) == [None]


def test_counters_are_what_the_eviction_policy_noted(tmp_path):
    table = saved_files.users(10, eviction=tfembed.policies.LeastFrequent())
    key = int(table.export()[0][3])
    table.upsert([key], np.ones([1, 4], np.float32))

    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    assert saved.counters == "writes"
    assert saved.find([key])[0].counter == 2
    assert sum(int(c.counters.sum()) for c in saved.chunks()) == 11


def test_keys_that_wait_for_admission_are_counted(tmp_path):
    table = tfembed.HashTable(
        4, name="t", admission=tfembed.policies.CountAdmission(3)
    )
    table.attach(tfembed.SGD(0.1))
    table.apply_gradients(tf.constant([1, 2], tf.int64), tf.ones([2, 4]))

    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))
    (waiting,) = [t for t in saved.values() if t.num_waiting]

    assert (waiting.num_rows, waiting.num_waiting) == (0, 2)
    assert waiting.policies["admission"] == "by a count of keys"


def test_a_table_with_a_vocabulary_has_the_ids_from_0_on(tmp_path):
    config = tfembed.TableConfig(10, 4, name="static")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(config), tfembed.Adam(0.1)
    )
    embedding.build()
    prefix = saved_files.save(tmp_path / "ckpt", embedding=embedding)
    (variable,) = embedding.embedding_tables.values()

    saved = open_saved(prefix)["static"]
    (chunk,) = saved.chunks()

    assert saved.has_vocabulary
    assert saved.slot_names == ("momenta", "velocities")
    np.testing.assert_array_equal(chunk.keys, np.arange(10))
    np.testing.assert_array_equal(chunk.rows, variable.numpy())
    assert saved.find([10, 9])[0] is None


def test_any_variable_of_rank_2_is_a_table_where_it_is_named(tmp_path):
    prefix = saved_files.save(tmp_path / "c", w=tf.Variable([[1.0, 2], [3, 4]]))

    saved = open_saved(prefix)

    assert list(saved) == []
    assert saved["model/w"].find([1])[0].row.tolist() == [3, 4]
    assert [v.name for v in saved.variables] == ["model/w"]


def test_a_dtype_that_numpy_lacks_is_refused_where_it_is_read(tmp_path):
    rows = tf.cast(tf.ones([3, 2]), tf.qint8)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt"),
        tensor_names=["w"],
        shape_and_slices=[""],
        tensors=[rows],
    )
    saved = open_saved(tmp_path / "ckpt")

    saved.check()
    for read in (lambda: saved["w"].find([0]), lambda: [*saved["w"].chunks()]):
        with pytest.raises(tfembed.errors.UnsupportedError, match="qint8"):
            read()


def test_the_last_part_of_a_name_is_enough_where_it_is_the_only_one(tmp_path):
    a, b = tf.Module(), tf.Module()
    a.t, b.t = saved_files.users(3), saved_files.users(5)
    saved = open_saved(saved_files.save(tmp_path / "ckpt", a=a, b=b))

    assert saved["b/t"].num_rows == 5
    with pytest.raises(tfembed.errors.MissingTableError, match="several"):
        saved["t"]
    with pytest.raises(tfembed.errors.MissingTableError, match="'model/a/t'"):
        saved["c"]


def test_a_saved_model_has_the_rows_of_its_tables(tmp_path):
    module = tf.Module()
    module.users = saved_files.users(50)
    tf.saved_model.save(module, str(tmp_path / "model"))

    saved = open_saved(tmp_path / "model")

    assert saved.kind == "SavedModel"
    rows = saved_files.content_of(module.users).rows
    saved_files.assert_same(saved["users"], saved_files.Content(rows, {}))


def test_shards_of_raw_files_make_one_table(tmp_path):
    variable = tfembed.dynamic_embedding.Variable(
        dim=3, name="scope/v", devices=["/CPU:0"] * 2
    )
    keys = np.arange(31)
    variable.upsert(keys, np.repeat(keys[:, None], 3, 1).astype(np.float32))
    variable.save_to_file_system(str(tmp_path))

    saved = open_saved(tmp_path)["scope/v"]

    assert saved.shard_sizes == (16, 15)
    assert saved.find([30, 31])[0].row.tolist() == [30, 30, 30]
    assert len(open_saved(next(tmp_path.glob("*-keys")))) == 1


def test_files_without_a_manifest_are_of_the_dtypes_that_are_given(tmp_path):
    np.arange(4).tofile(tmp_path / "t-keys")
    np.arange(8, dtype=np.float16).tofile(tmp_path / "t-values")

    saved = open_saved(tmp_path / "t", dtypes=RowDtypes(rows="float16"))

    assert (saved["t"].width, saved.has_checksums) == (2, False)
    assert saved["t"].find([3])[0].row.tolist() == [6, 7]


def test_raw_files_of_string_keys_are_read(tmp_path):
    table = tfembed.dynamic_embedding.Variable(
        tf.string, dim=2, name="v", devices=["/CPU:0"]
    )
    table.upsert(tf.constant(["a", "x" * 300]), [[1.0, 2], [3, 4]])
    table.save_to_file_system(str(tmp_path))

    saved = open_saved(tmp_path)["v"]

    assert saved.find([b"x" * 300])[0].row.tolist() == [3, 4]


def _distributed() -> keras.Model:
    features = {
        "a": tfembed.FeatureConfig(tfembed.TableConfig(10, 4, name="static")),
        "b": tfembed.FeatureConfig(
            tfembed.TableConfig(
                None,
                4,
                name="grow",
                admission=tfembed.policies.CountAdmission(2),
            )
        ),
    }
    layer = tfembed.keras.layers.DistributedEmbedding(
        features, tfembed.Adagrad(0.1)
    )
    inputs = {n: keras.Input((), dtype="int64", name=n) for n in features}
    outputs = layer(inputs)
    model = keras.Model(inputs, keras.layers.add([outputs["a"], outputs["b"]]))
    layer.get_embedding_tables()["grow"].upsert(
        np.arange(20), np.ones([20, 4], np.float32)
    )
    return model


def _dynamic() -> keras.Model:
    layer = tfembed.dynamic_embedding.keras.layers.Embedding(4)
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    layer.params.upsert(np.arange(20), np.ones([20, 4], np.float32))
    return model


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
@pytest.mark.parametrize(
    "make, name", [(_distributed, "grow"), (_dynamic, "embedding")]
)
def test_a_file_of_keras_has_the_tables_of_its_layers(
    tmp_path, make, name, suffix
):
    path = tmp_path / f"model{suffix}"
    model = make()
    model.save(path) if suffix == ".keras" else model.save_weights(path)

    saved = open_saved(path)

    assert saved[name].num_rows == 20
    assert saved[name].find([19])[0].row.tolist() == [1, 1, 1, 1]
    saved.check()
    if (name, suffix) == ("grow", ".keras"):
        policy = "CountAdmission(seen=2)"
        assert saved[name].policies == {"admission": policy}
        assert saved["static"].num_rows == 10


def test_tables_of_a_saver_of_tensorflow_1_are_found(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tfembed.dynamic_embedding.get_variable(
            "v", dim=2, eviction=tfembed.policies.LeastRecent()
        )
        write = variable.upsert(tf.range(3, dtype=tf.int64), tf.ones([3, 2]))
        saver = tf.compat.v1.train.Saver()
        session.run(write)
        saver.save(session, str(tmp_path / "model"), global_step=7)

    saved = open_saved(tmp_path)

    assert (saved.step, saved.number) == (None, 7)
    assert (saved["v"].num_rows, saved["v"].counters) == (3, "steps_ago")


def test_a_folder_of_checkpoints_means_the_latest(tmp_path):
    checkpoint = tf.train.Checkpoint(t=saved_files.users(3))
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), 3)
    paths = [manager.save() for _ in range(3)]

    assert open_saved(tmp_path).path == paths[-1]
    assert checkpoints_of(tmp_path) == paths
    (tmp_path / "checkpoint").unlink()
    assert open_saved(tmp_path).path == paths[-1]


@pytest.mark.parametrize(
    "state, named",
    [
        (b"", "is damaged, or cut short"),
        (b'model_checkpoint_path: "ckpt', "is damaged, or cut short"),
        (
            b'model_checkpoint_path: "ckpt-9"\n',
            "names '.*ckpt-9', which is not there",
        ),
        *(
            (
                b'model_checkpoint_path: "%s"\n' % text,
                "is damaged, or cut short",
            )
            for text in (
                rb"\x",
                rb"\N",
                rb"\400",
                rb"\U99999999",
                rb"\000",
                b"\xff",
            )
        ),
    ],
)
def test_a_state_file_that_names_no_checkpoint_of_the_folder_is_named(
    tmp_path, state, named
):
    checkpoint = tf.train.Checkpoint(t=saved_files.users(3))
    path = tf.train.CheckpointManager(checkpoint, str(tmp_path), 3).save()
    (tmp_path / "checkpoint").write_bytes(state)

    with pytest.raises(
        tfembed.errors.CheckpointError,
        match=rf"latest checkpoint, {named}. Name .*\['{path}'\]",
    ):
        open_saved(tmp_path)


@pytest.mark.parametrize(
    "name", ["modèle", "模型 7", "a'b\\c", 'a"b', "\U0001f600"]
)
def test_a_state_file_is_read_as_tensorflow_reads_it(tmp_path, name):
    checkpoint = tf.train.Checkpoint(t=saved_files.users(3))
    manager = tf.train.CheckpointManager(
        checkpoint, str(tmp_path), 3, checkpoint_name=name
    )
    paths = [manager.save() for _ in range(2)]

    assert open_saved(tmp_path).path == paths[-1]
    # Not that which is newest: the one that the file names.
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[0])
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert open_saved(tmp_path).path == state.model_checkpoint_path
    assert open_saved(tmp_path).path == paths[0]


@pytest.mark.parametrize("pieces", [2, 3])
def test_a_variable_that_was_cut_by_columns_is_read(tmp_path, capsys, pieces):
    """Each cut of a partitioned variable is tried: by rows, columns, depth."""
    numbers = np.arange(60, dtype=np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for axis, shape in enumerate([(12, 5), (5, 12), (1, 5, 12)]):
            tf.compat.v1.get_variable(
                f"w{axis}",
                initializer=tf.constant(numbers.reshape(shape)),
                partitioner=tf.compat.v1.fixed_size_partitioner(pieces, axis),
            )
        tf.compat.v1.get_variable(
            "s",
            initializer=tf.constant([["a", "b" * 9, ""]] * 4),
            partitioner=tf.compat.v1.fixed_size_partitioner(pieces, 1),
        )
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "m"))

    saved = open_saved(prefix)

    saved.check()
    assert {(one.name, one.num_bytes) for one in saved.variables} >= {
        ("w0", 240),
        ("w1", 240),
        ("w2", 240),
    }
    rows = saved["w1"].find([3, 0])
    np.testing.assert_array_equal(rows[0].row, numbers[36:48])
    np.testing.assert_array_equal(rows[1].row, numbers[:12])
    (chunk,) = saved["w1"].chunks()
    np.testing.assert_array_equal(chunk.rows, numbers.reshape(5, 12))
    (chunk,) = saved["s"].chunks()
    assert chunk.rows.tolist() == [[b"a", b"b" * 9, b""]] * 4
    for arguments in ([], ["--verify"], ["--table", "w1", "--key", "3"]):
        assert command.main(["inspect", prefix, *arguments]) == 0
    assert "w2" not in capsys.readouterr().err
    content = bytearray(
        pathlib.Path(f"{prefix}.data-00000-of-00001").read_bytes()
    )
    content[-1] ^= 1
    pathlib.Path(f"{prefix}.data-00000-of-00001").write_bytes(content)
    with pytest.raises(errors.CheckpointError, match="checksum"):
        open_saved(prefix).check()


def test_a_folder_with_one_file_of_keras_means_that_file(tmp_path):
    layer = tfembed.keras.layers.Embedding(2, key_dtype="int64", name="users")
    model = keras.Sequential([keras.Input([], dtype="int64"), layer])
    layer.table.upsert([3, 4], [[1.0, 2.0], [3.0, 4.0]])
    model.save_weights(tmp_path / "latest.weights.h5")

    assert [t.num_rows for t in open_saved(tmp_path).values()] == [2]

    model.save(tmp_path / "best.keras")
    files = r"\['best.keras', 'latest.weights.h5'\]"
    with pytest.raises(errors.CheckpointError, match=files):
        open_saved(tmp_path)


def test_an_expiry_is_said_with_the_steps_of_training(tmp_path):
    table = tfembed.HashTable(
        1,
        name="t",
        eviction=tfembed.policies.LeastRecent(),
        expiry=tfembed.policies.Expiry(9, every=100),
    )
    table.attach(tfembed.SGD(0.1))
    table.apply_gradients([1], [[1.0]])
    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    assert saved.policies["expiry"] == "by training steps, 1 so far"


def test_reading_a_file_imports_no_tensorflow(tmp_path):
    prefix = saved_files.save(tmp_path / "ckpt", t=saved_files.users(3))
    program = f"""
import sys, types
package = types.ModuleType("tfembed")
package.__path__ = [{str(ROOT / "tfembed")!r}]
sys.modules["tfembed"] = package
from tfembed.saved.saved_tables import open_saved
print(open_saved({prefix!r})["t"].num_rows, "tensorflow" in sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == ["3", "False"]
