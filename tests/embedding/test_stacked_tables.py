"""Checkpoints of TPUs with SparseCores, read by TPUEmbeddingForServing.

TensorFlow's own class, which reads them on a CPU, is the other judge.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors

CORES = 4
# Rows, width, rotation; the second and third share a stack.
TABLES = {"user": (13, 3, 0), "video": (8, 5, 1), "word": (22, 5, 3)}
STACKS = {"stack_0": ("user",), "video_word": ("video", "word")}
FEATURES = {"user": [1, 12], "video": [7, 0], "word": [21, 5]}


def rows_of(table):
    rows, width, _ = TABLES[table]
    return np.random.default_rng(rows).normal(size=(rows, width)).astype("f4")


def padded(n, multiple):
    return -(-n // multiple) * multiple


def layouts_and_stacks(stacks):
    """TensorFlow's text of the layouts, and each stack row by row."""
    from tensorflow.core.tpu.kernels import sparse_core_layout_pb2

    layouts = sparse_core_layout_pb2.SparseCoreTableLayouts()
    tensors = {}
    for stack, tables in stacks.items():
        height = {t: padded(TABLES[t][0], 8 * CORES) for t in tables}
        width = padded(TABLES[tables[0]][1], 8)
        of_core = sum(height.values()) // CORES
        tensor = np.full([CORES, of_core, width], np.nan, np.float32)
        offset = 0
        for table in tables:
            rows, dim, rotation = TABLES[table]
            layouts.tables.add(
                table_name=table,
                stacked_table_name=stack,
                num_sparse_cores=CORES,
                num_partitions=CORES,
                total_rows_per_sparse_core_shard=of_core,
                unsharded_shape=[rows, dim],
                unsharded_padded_shape=[height[table], width],
                sparse_core_shard_row_offset=offset,
                sparse_core_shard_rotation=rotation,
            )
            for i, row in enumerate(rows_of(table)):
                core = (i % CORES + rotation) % CORES
                tensor[core, offset + i // CORES, :dim] = row
            offset += height[table] // CORES
        tensors[stack] = tensor.reshape(-1, width)
    return layouts.SerializeToString(), tensors


class Written(tf.__internal__.tracking.AutoTrackable):
    """Saves one tensor under the name that it is tracked by."""

    def __init__(self, value):
        self.value = value

    def _serialize_to_tensors(self):
        return {"VARIABLE_VALUE": tf.constant(self.value)}

    def _restore_from_tensors(self, restored):
        raise AssertionError("only saved")


def saved(directory, stacks=None, **changed):
    """A checkpoint as a TPU's embedding writes it."""
    text, tensors = layouts_and_stacks(stacks or STACKS)
    embedding = tf.__internal__.tracking.AutoTrackable()
    written = {"_sparse_core_table_layouts": text, **tensors, **changed}
    for name, value in written.items():
        embedding._track_trackable(Written(value), name)
    return tf.train.Checkpoint(embedding=embedding).save(str(directory / "tpu"))


def serving(module=tfembed, shapes=None, optimizer=None):
    if module is not tfembed:
        module = tf.tpu.experimental.embedding
    shapes = shapes or {t: TABLES[t][:2] for t in TABLES}
    features = {
        name: module.FeatureConfig(module.TableConfig(*shape, name=name))
        for name, shape in shapes.items()
    }
    return module.TPUEmbeddingForServing(features, optimizer)


def restore(embedding, path):
    return tf.train.Checkpoint(embedding=embedding).restore(path)


def tables_of(embedding):
    return {c.name: t.numpy() for c, t in embedding.embedding_tables.items()}


@pytest.mark.parametrize(
    "stacks",
    [
        STACKS,
        # A stack of one table has the table's name.
        {"user": ("user",), "video": ("video",), "word": ("word",)},
    ],
    ids=["stacked", "alone"],
)
@pytest.mark.parametrize("module", [tfembed, tf], ids=["ours", "TensorFlow's"])
def test_all_tables_are_restored(tmp_path, module, stacks):
    path = saved(tmp_path, stacks)
    embedding = serving(module)

    restore(embedding, path)

    for name, table in tables_of(embedding).items():
        np.testing.assert_array_equal(table, rows_of(name))


@pytest.mark.parametrize("in_function", [False, True])
def test_lookups_find_their_rows(tmp_path, in_function):
    embedding = serving()
    restore(embedding, saved(tmp_path))
    ids = {name: tf.constant(value) for name, value in FEATURES.items()}

    found = (tf.function(embedding) if in_function else embedding)(ids)

    for name, rows in found.items():
        np.testing.assert_array_equal(rows, rows_of(name)[FEATURES[name]])


def test_a_table_that_was_not_stacked_is_restored_beside_them(tmp_path):
    path = saved(
        tmp_path, {"video_word": ("video", "word")}, user=rows_of("user")
    )
    embedding = serving()

    restore(embedding, path)

    np.testing.assert_array_equal(tables_of(embedding)["user"], rows_of("user"))
    np.testing.assert_array_equal(tables_of(embedding)["word"], rows_of("word"))


def test_tables_that_nobody_configured_are_passed_over(tmp_path):
    embedding = serving(shapes={"word": TABLES["word"][:2]})
    restore(embedding, saved(tmp_path))
    np.testing.assert_array_equal(tables_of(embedding)["word"], rows_of("word"))


def test_what_is_saved_then_has_the_tables_one_by_one(tmp_path):
    embedding = serving(optimizer=tfembed.Adagrad(0.1))
    restore(embedding, saved(tmp_path))
    embedding.build()

    path = tf.train.Checkpoint(embedding=embedding).save(str(tmp_path / "ours"))

    keys = [k for k, _ in tf.train.list_variables(path) if "embedding/" in k]
    assert keys == [
        f"embedding/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in TABLES
    ]
    again = serving()
    restore(again, path).assert_existing_objects_matched()
    for name, table in tables_of(again).items():
        np.testing.assert_array_equal(table, rows_of(name))


def test_a_saved_model_has_them(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.embedding = serving()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def words(self, ids):
            zeros = tf.zeros_like(ids)
            features = {"user": zeros, "video": zeros, "word": ids}
            return self.embedding(features)["word"]

    model = Model()
    restore(model.embedding, saved(tmp_path))
    tf.saved_model.save(model, str(tmp_path / "model"))

    loaded = tf.saved_model.load(str(tmp_path / "model"))

    found = loaded.words(tf.constant([21, 3], tf.int64))
    np.testing.assert_array_equal(found, rows_of("word")[[21, 3]])


def test_a_restore_after_the_first_lookup_says_what_to_do(tmp_path):
    embedding = serving()
    embedding.build()
    before = tables_of(embedding)

    with pytest.raises(errors.CheckpointError, match="before the first lookup"):
        restore(embedding, saved(tmp_path))

    for name, table in tables_of(embedding).items():
        np.testing.assert_array_equal(table, before[name])


@pytest.mark.parametrize("stacks", [STACKS, {t: (t,) for t in TABLES}])
def test_so_does_a_second_restore(tmp_path, stacks):
    path = saved(tmp_path, stacks)
    embedding = serving()
    restore(embedding, path)
    embedding.build()
    for table in embedding.embedding_tables.values():
        table.assign(tf.zeros_like(table))

    with pytest.raises(errors.CheckpointError, match="before the first lookup"):
        restore(embedding, path)

    for table in tables_of(embedding).values():
        np.testing.assert_array_equal(table, 0)


def test_a_table_of_another_shape_is_named(tmp_path):
    embedding = serving(shapes={"word": (21, 5)})
    restore(embedding, saved(tmp_path))
    with pytest.raises(
        errors.CheckpointError, match=r"'word'.*\(22, 5\).*\(21, 5\)"
    ):
        embedding.build()


@pytest.mark.parametrize(
    "stack", [np.zeros([70, 8], "f4"), np.zeros([80, 8], "f4")]
)
def test_a_stack_that_its_layout_does_not_fit_is_named(tmp_path, stack):
    embedding = serving()
    restore(embedding, saved(tmp_path, video_word=stack[:, :4]))
    with pytest.raises(errors.CheckpointError, match="'video_word'"):
        embedding.build()


def test_the_restore_info_is_a_dict_or_none():
    feature = tfembed.FeatureConfig(tfembed.TableConfig(4, 2, name="t"))
    tfembed.TPUEmbeddingForServing(feature, None, {"num_tpu_devices": 4})
    with pytest.raises(errors.ArgumentError, match="must be None or a dict"):
        tfembed.TPUEmbeddingForServing(feature, None, 4)
