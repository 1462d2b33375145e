"""Checkpoint keys of serving objects, and which object restores which checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed
from embedding import marks, served


@pytest.mark.parametrize("rule", served.SLOTS)
def test_the_checkpoint_keys_are_tensorflows(rule, tmp_path):
    serving = served.serving(getattr(tfembed, rule)(0.5))
    serving.build()
    path = tf.train.Checkpoint(embedding=serving).save(tmp_path / "ours")
    expected = {
        f"embedding/{table}{slot}/.ATTRIBUTES/VARIABLE_VALUE": list(shape)
        for table, shape in served.SHAPES.items()
        for slot in ("", *(f".S{name}" for name in served.SLOTS[rule]))
    }
    found = dict(tf.train.list_variables(path))
    del found["_CHECKPOINTABLE_OBJECT_GRAPH"]
    del found["save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    assert found == expected


def test_without_an_optimizer_only_the_tables_are_saved(tmp_path):
    serving = served.serving(None)
    serving.build()
    path = tf.train.Checkpoint(embedding=serving).save(tmp_path / "ours")
    keys = [k for k, _ in tf.train.list_variables(path) if "embedding" in k]
    assert keys == [
        "embedding/user/.ATTRIBUTES/VARIABLE_VALUE",
        "embedding/video/.ATTRIBUTES/VARIABLE_VALUE",
    ]


def test_unnamed_tables_are_table_0_and_table_1():
    serving = served.serving(named=False)
    assert list(serving.variables) == ["table_0", "table_1"]
    names = [v.name for v in tf.nest.flatten(serving.variables)]
    assert names == ["table_0:0", "table_1:0"]


# Who writes, who reads: each class of ours with each of TensorFlow's.
OURS = {
    "TPUEmbedding": tfembed.TPUEmbedding,
    "TPUEmbeddingForServing": tfembed.TPUEmbeddingForServing,
    "TPUEmbeddingV0": tfembed.TPUEmbeddingV0,
}
BOTH_WAYS = [
    (ours, theirs)
    for ours in OURS
    for theirs in ("TPUEmbedding", "TPUEmbeddingForServing")
]


def _one_of_ours(name, rule):
    return OURS[name](served.config(tfembed), getattr(tfembed, rule)(0.5))


def _one_of_theirs(name, rule):
    made = getattr(served.THEIRS, name)(
        served.config(served.THEIRS), getattr(served.THEIRS, rule)(0.5)
    )
    made.build()
    return made


@pytest.mark.parametrize("rule", served.SLOTS)
@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), BOTH_WAYS)
def test_a_checkpoint_of_tensorflows_restores_into_ours(
    ours, theirs, rule, is_built, tmp_path
):
    written = _one_of_theirs(theirs, rule)
    path = tf.train.Checkpoint(embedding=written).save(tmp_path / "theirs")
    read = _one_of_ours(ours, rule)
    if is_built:
        read.build()
    status = tf.train.Checkpoint(embedding=read).restore(path)
    read.build()
    status.assert_existing_objects_matched()
    served.assert_same_contents(read, written)


@pytest.mark.parametrize("rule", served.SLOTS)
@pytest.mark.parametrize(("ours", "theirs"), BOTH_WAYS)
def test_a_checkpoint_of_ours_restores_into_tensorflows(
    ours, theirs, rule, tmp_path
):
    written = _one_of_ours(ours, rule)
    written.build()
    path = tf.train.Checkpoint(embedding=written).save(tmp_path / "ours")
    read = _one_of_theirs(theirs, rule)
    status = tf.train.Checkpoint(embedding=read).restore(path)
    status.assert_existing_objects_matched().assert_consumed()
    served.assert_same_contents(read, written)


def test_without_an_optimizer_the_slots_stay_in_the_checkpoint(tmp_path):
    path = tf.train.Checkpoint(embedding=served.trained("Adam")).save(
        tmp_path / "a"
    )
    serving = served.serving(None)
    status = tf.train.Checkpoint(embedding=serving).restore(path)
    serving.build()
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError):
        status.assert_consumed()


@marks.GROWS
def test_a_table_without_a_vocabulary_moves_between_the_classes(tmp_path):
    def config():
        table = tfembed.TableConfig(None, 2, name="users", seed=5)
        return tfembed.FeatureConfig(table)

    trained = tfembed.TPUEmbedding(config(), tfembed.Adagrad(0.5))
    trained.enqueue(tf.constant([10**12, 3]))
    trained.apply_gradients(tf.ones_like(trained.dequeue()))
    path = tf.train.Checkpoint(embedding=trained).save(tmp_path / "trained")
    trained.enqueue(tf.constant([10**12, 3]), training=False)
    expected = trained.dequeue().numpy()
    for kind in (tfembed.TPUEmbeddingForServing, tfembed.TPUEmbeddingV0):
        read = kind(config(), None)
        read.build()
        tf.train.Checkpoint(embedding=read).restore(path).expect_partial()
        np.testing.assert_array_equal(read(tf.constant([10**12, 3])), expected)


@pytest.mark.slow
def test_a_checkpoint_of_ours_restores_where_there_is_only_tensorflow(
    tmp_path,
):
    trained = served.trained("Adam")
    path = tf.train.Checkpoint(embedding=trained).save(tmp_path / "trained")
    printed = fresh_process.output_of(
        """
        import sys
        import tensorflow as tf
        theirs = tf.tpu.experimental.embedding
        video = theirs.TableConfig(8, 4, name="video")
        user = theirs.TableConfig(16, 2, name="user")
        embedding = theirs.TPUEmbeddingForServing(
            [theirs.FeatureConfig(video), theirs.FeatureConfig(user)],
            theirs.Adam(0.5),
        )
        embedding.build()
        status = tf.train.Checkpoint(embedding=embedding).restore(sys.argv[1])
        status.assert_consumed()
        assert not any(m.startswith("tfembed") for m in sys.modules)
        for table in (video, user):
            for _, part in sorted(embedding._variables[table.name].items()):
                print(float(tf.reduce_sum(tf.abs(part))))
        """,
        path,
    )
    sums = [
        float(np.abs(variable.numpy()).sum())
        for table in ("video", "user")
        for _, variable in sorted(trained._variables[table].items())
    ]
    np.testing.assert_allclose(
        [float(line) for line in printed.split()], sums, 1e-5
    )


def test_a_saved_model_without_an_optimizer_has_the_tables_alone(tmp_path):
    serving = served.serving(None)

    class Model(tf.Module):
        def __init__(self):
            self.emb = serving

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def serve(self, user):
            return self.emb({"user": user})["user"]

    model = Model()
    tf.saved_model.save(model, str(tmp_path), {"serve": model.serve})
    keys = {
        k
        for k, _ in tf.train.list_variables(
            str(tmp_path / "variables" / "variables")
        )
    }
    assert keys == {
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "emb/user/.ATTRIBUTES/VARIABLE_VALUE",
        "emb/video/.ATTRIBUTES/VARIABLE_VALUE",
    }
    ids = tf.constant([3, 1], tf.int64)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve(ids), model.serve(ids))
