"""Section 3 of the specification: serving and the checkpoint format."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding
SHAPES = {"video": (8, 4), "user": (16, 2)}
SLOTS = {
    "SGD": (),
    "Adagrad": ("accumulators",),
    "AdagradMomentum": ("accumulators", "momenta"),
    "FTRL": ("accumulators", "linears"),
    "Adam": ("momenta", "velocities"),
}
INPUTS = {
    "watched": tf.ragged.constant([[1, 3], [], [2]], dtype=tf.int64),
    "video": tf.SparseTensor(
        [[0, 0], [2, 1]], tf.constant([7, 1], tf.int64), [3, 2]
    ),
    "user": tf.constant([[4], [5], [4]]),
}


def _config(configs, *, named=True):
    tables = {
        name: configs.TableConfig(*shape, name=name if named else None)
        for name, shape in SHAPES.items()
    }
    return {
        "watched": configs.FeatureConfig(tables["video"], 2),
        "video": configs.FeatureConfig(tables["video"]),
        "user": configs.FeatureConfig(tables["user"]),
    }


def _serving(optimizer=None, configs=tfembed, **arguments):
    return tfembed.TPUEmbeddingForServing(
        _config(configs, **arguments), optimizer
    )


def _trained(rule="Adagrad"):
    embedding = tfembed.TPUEmbedding(
        _config(tfembed), getattr(tfembed, rule)(0.5)
    )
    embedding.enqueue(INPUTS)
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
    return embedding


def _contents(embedding):
    return {
        f"{table}/{name}": variable.numpy()
        for table, variables in embedding._variables.items()
        for name, variable in variables.items()
    }


def _assert_same_contents(one, other):
    one, other = _contents(one), _contents(other)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def test_it_looks_up_what_tpu_embedding_trained(tmp_path):
    trained = _trained()
    path = tf.train.Checkpoint(embedding=trained).save(tmp_path / "trained")
    serving = _serving()
    tf.train.Checkpoint(embedding=serving).restore(path).expect_partial()
    trained.enqueue(INPUTS, training=False)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-6),
        serving(INPUTS),
        trained.dequeue(),
    )


def test_a_call_an_embedding_lookup_and_the_function_are_the_same():
    serving = _serving()
    outputs = [
        serving(INPUTS),
        serving.embedding_lookup(INPUTS),
        tfembed.serving_embedding_lookup(
            INPUTS, None, serving.embedding_tables, serving._plan.feature_config
        ),
    ]
    for other in outputs[1:]:
        tf.nest.map_structure(np.testing.assert_array_equal, outputs[0], other)


def test_serving_on_a_tpu_is_exempt_and_other_strategies_serve():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        serving = _serving()
    outputs = strategy.run(lambda: serving({"user": tf.constant([4])})["user"])
    one, other = strategy.experimental_local_results(outputs)
    np.testing.assert_array_equal(one, other)


def test_sparse_core_stacked_checkpoints_are_not_in_this_release():
    with pytest.raises(NotImplementedError, match="SparseCore"):
        tfembed.TPUEmbeddingForServing(_config(tfembed), None, {"a": 1})


def test_a_call_first_made_in_a_function_works():
    """TensorFlow's fails unless build() ran eagerly: a known bug."""
    serving = _serving()
    outputs = tf.function(serving)(INPUTS)
    assert outputs["watched"].shape == [3, 2, 4]


def test_sparse_sequences_work_on_plain_tensors():
    """TensorFlow's calls read_value(), which they lack: a known bug."""
    table = tfembed.TableConfig(8, 4, name="video")
    rows = tf.reshape(tf.range(32.0), [8, 4])
    outputs = tfembed.serving_embedding_lookup(
        INPUTS["video"], None, {table: rows}, tfembed.FeatureConfig(table, 2)
    )
    assert outputs[0, 0].numpy().tolist() == rows[7].numpy().tolist()


def test_dense_input_with_a_last_dimension_of_1_loses_it_as_on_a_tpu():
    """TensorFlow's gives [B, 1, dim]: a known bug."""
    assert _serving()(INPUTS)["user"].shape == [3, 2]


def test_tables_are_trainable_and_slots_are_not():
    serving = _serving(tfembed.Adagrad(0.1))
    assert [v.trainable for v in serving.variables] == [True, False] * 2
    assert [v.name for v in serving.variables] == [
        "user:0",
        "user/accumulators:0",
        "video:0",
        "video/accumulators:0",
    ]


@pytest.mark.parametrize("name", ["watched", "video"])
def test_gradients_of_sparse_and_ragged_input_are_indexed_slices(name):
    serving = _serving()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(serving({name: INPUTS[name]})[name])
    tables = serving.embedding_tables
    video = next(tables[t] for t in tables if t.name == "video")
    assert isinstance(tape.gradient(loss, video), tf.IndexedSlices)


def test_tables_are_keyed_by_table_config():
    config = _config(THEIRS)
    serving = tfembed.TPUEmbeddingForServing(config, None)
    assert set(serving.embedding_tables) == {
        config["video"].table,
        config["user"].table,
    }


def test_inputs_may_be_some_of_the_features():
    """As TensorFlow 2.21; 2.20's structure must match."""
    assert set(_serving()({"user": INPUTS["user"]})) == {"user"}


def test_inputs_that_are_no_features_are_refused():
    with pytest.raises(errors.ArgumentError, match="'likes'"):
        _serving()({"likes": tf.constant([1])})


def test_errors_come_in_tensorflows_order():
    """Weights of dense input, then their type, then of a sequence."""
    serving = _serving()
    cases = [
        ("user", tf.constant([[1.0]] * 3), "input is dense"),
        ("watched", tf.constant([1.0]), "does not match type"),
        ("watched", tf.ragged.constant([[1.0] * 2, [], [1.0]]), "sequence"),
    ]
    for name, weights, text in cases:
        with pytest.raises(ValueError, match=text):
            serving({name: INPUTS[name]}, {name: weights})


def test_a_sparse_input_above_rank_2_is_always_validated():
    table = tfembed.TableConfig(4, 2, name="video")
    rows = tf.reshape(tf.range(8.0), [4, 2])
    flat = tf.SparseTensor([[0, 0], [0, 1]], [-1, 1], [1, 2])
    feature = tfembed.FeatureConfig(table, validate_weights_and_indices=False)
    output = tfembed.serving_embedding_lookup(
        tf.sparse.reshape(flat, [1, 1, 2]), None, {table: rows}, feature
    )
    assert output.numpy().tolist() == [[[2.0, 3.0]]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        tfembed.serving_embedding_lookup(flat, None, {table: rows}, feature)


@pytest.mark.parametrize("rule", SLOTS)
def test_the_checkpoint_keys_are_tensorflows(rule, tmp_path):
    serving = _serving(getattr(tfembed, rule)(0.5))
    serving.build()
    path = tf.train.Checkpoint(embedding=serving).save(tmp_path / "ours")
    expected = {
        f"embedding/{table}{slot}/.ATTRIBUTES/VARIABLE_VALUE": list(shape)
        for table, shape in SHAPES.items()
        for slot in ("", *(f".S{name}" for name in SLOTS[rule]))
    }
    found = dict(tf.train.list_variables(path))
    del found["_CHECKPOINTABLE_OBJECT_GRAPH"]
    del found["save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    assert found == expected


def test_without_an_optimizer_only_the_tables_are_saved(tmp_path):
    serving = _serving(None)
    serving.build()
    path = tf.train.Checkpoint(embedding=serving).save(tmp_path / "ours")
    keys = [k for k, _ in tf.train.list_variables(path) if "embedding" in k]
    assert keys == [
        "embedding/user/.ATTRIBUTES/VARIABLE_VALUE",
        "embedding/video/.ATTRIBUTES/VARIABLE_VALUE",
    ]


def test_unnamed_tables_are_table_0_and_table_1():
    serving = _serving(named=False)
    assert [v.name for v in serving.variables] == ["table_0:0", "table_1:0"]


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
    return OURS[name](_config(tfembed), getattr(tfembed, rule)(0.5))


def _one_of_theirs(name, rule):
    made = getattr(THEIRS, name)(_config(THEIRS), getattr(THEIRS, rule)(0.5))
    made.build()
    return made


@pytest.mark.parametrize("rule", SLOTS)
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
    _assert_same_contents(read, written)


@pytest.mark.parametrize("rule", SLOTS)
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
    _assert_same_contents(read, written)


def test_without_an_optimizer_the_slots_stay_in_the_checkpoint(tmp_path):
    path = tf.train.Checkpoint(embedding=_trained("Adam")).save(tmp_path / "a")
    serving = _serving(None)
    status = tf.train.Checkpoint(embedding=serving).restore(path)
    serving.build()
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError):
        status.assert_consumed()


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
    trained = _trained("Adam")
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
    serving = _serving(None)

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
