"""TPUEmbeddingForServing and serving_embedding_lookup, call by call.

test_spec_serving_checkpoints.py has the checkpoints.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import served
from tfembed import errors


def test_it_looks_up_what_tpu_embedding_trained(tmp_path):
    trained = served.trained()
    path = tf.train.Checkpoint(embedding=trained).save(tmp_path / "trained")
    serving = served.serving()
    tf.train.Checkpoint(embedding=serving).restore(path).expect_partial()
    trained.enqueue(served.INPUTS, training=False)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-6),
        serving(served.INPUTS),
        trained.dequeue(),
    )


def test_a_call_an_embedding_lookup_and_the_function_are_the_same():
    serving = served.serving()
    outputs = [
        serving(served.INPUTS),
        serving.embedding_lookup(served.INPUTS),
        tfembed.serving_embedding_lookup(
            served.INPUTS,
            None,
            serving.embedding_tables,
            serving._feature_config,
        ),
    ]
    for other in outputs[1:]:
        tf.nest.map_structure(np.testing.assert_array_equal, outputs[0], other)


def test_serving_on_a_tpu_is_exempt_and_other_strategies_serve():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        serving = served.serving()
    outputs = strategy.run(lambda: serving({"user": tf.constant([4])})["user"])
    one, other = strategy.experimental_local_results(outputs)
    np.testing.assert_array_equal(one, other)


def test_a_call_first_made_in_a_function_works():
    """TensorFlow's fails unless build() ran eagerly: a known bug."""
    serving = served.serving()
    outputs = tf.function(serving)(served.INPUTS)
    assert outputs["watched"].shape == [3, 2, 4]


def test_sparse_sequences_work_on_plain_tensors():
    """TensorFlow's calls read_value(), which they lack: a known bug."""
    table = tfembed.TableConfig(8, 4, name="video")
    rows = tf.reshape(tf.range(32.0), [8, 4])
    outputs = tfembed.serving_embedding_lookup(
        served.INPUTS["video"],
        None,
        {table: rows},
        tfembed.FeatureConfig(table, 2),
    )
    assert outputs[0, 0].numpy().tolist() == rows[7].numpy().tolist()


def test_dense_input_with_a_last_dimension_of_1_loses_it_as_on_a_tpu():
    """TensorFlow's gives [B, 1, dim]: a known bug."""
    assert served.serving()(served.INPUTS)["user"].shape == [3, 2]


def test_tables_are_trainable_and_slots_are_not():
    serving = served.serving(tfembed.Adagrad(0.1))
    variables = tf.nest.flatten(serving.variables)
    assert {v.name: v.trainable for v in variables} == {
        "user:0": True,
        "user/accumulators:0": False,
        "video:0": True,
        "video/accumulators:0": False,
    }


@pytest.mark.parametrize(
    "cls", [tfembed.TPUEmbeddingForServing, tfembed.TPUEmbeddingV0]
)
def test_variables_are_by_table_and_slot(cls):
    """TensorFlow 2.21 has them so."""
    embedding = cls(served.config(tfembed), tfembed.Adam(0.1))
    of_tables = embedding.variables
    slots = ["parameters", "momenta", "velocities"]
    assert {name: list(of) for name, of in of_tables.items()} == {
        "user": slots,
        "video": slots,
    }
    for config, table in embedding.embedding_tables.items():
        assert of_tables[config.name]["parameters"] is table


def test_variables_take_no_others():
    """The rows that were written would not be looked up."""
    variables = served.serving().variables
    with pytest.raises(TypeError, match="assignment"):
        variables["video"]["parameters"] = tf.Variable(tf.zeros([8, 4]))


@pytest.mark.parametrize("name", ["watched", "video"])
def test_gradients_of_sparse_and_ragged_input_are_indexed_slices(name):
    serving = served.serving()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(serving({name: served.INPUTS[name]})[name])
    tables = serving.embedding_tables
    video = next(tables[t] for t in tables if t.name == "video")
    assert isinstance(tape.gradient(loss, video), tf.IndexedSlices)


def test_tables_are_keyed_by_table_config():
    config = served.config(served.THEIRS)
    serving = tfembed.TPUEmbeddingForServing(config, None)
    assert set(serving.embedding_tables) == {
        config["video"].table,
        config["user"].table,
    }


def test_the_private_names_are_there():
    config = served.config(tfembed)
    serving = tfembed.TPUEmbeddingForServing(config, None)
    assert serving._feature_config is config
    assert [table.name for table in serving._table_config] == ["user", "video"]
    assert serving._output_shapes == [tf.TensorShape(None)] * 3
    assert not serving._built
    assert list(serving._variables["video"]) == ["parameters"]
    assert serving._built


def test_inputs_may_be_some_of_the_features():
    """As TensorFlow 2.21; 2.20's structure must match."""
    assert set(served.serving()({"user": served.INPUTS["user"]})) == {"user"}


def test_inputs_that_are_no_features_are_refused():
    with pytest.raises(errors.ArgumentError, match="'likes'"):
        served.serving()({"likes": tf.constant([1])})


def test_errors_come_in_tensorflows_order():
    """Weights of dense input, then their type, then of a sequence."""
    serving = served.serving()
    cases = [
        ("user", tf.constant([[1.0]] * 3), "input is dense"),
        ("watched", tf.constant([1.0]), "does not match type"),
        ("watched", tf.ragged.constant([[1.0] * 2, [], [1.0]]), "sequence"),
    ]
    for name, weights, text in cases:
        with pytest.raises(ValueError, match=text):
            serving({name: served.INPUTS[name]}, {name: weights})


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


def test_features_whose_paths_read_alike_have_their_own_configs():
    tables = [tfembed.TableConfig(4, dim, name=f"of_{dim}") for dim in (2, 3)]
    one, other = (tfembed.FeatureConfig(table) for table in tables)
    ids = tf.constant([1])
    outputs = tfembed.serving_embedding_lookup(
        {"a": {"b": ids}, "a/b": ids},
        None,
        {table: tf.zeros([4, table.dim]) for table in tables},
        {"a": {"b": one}, "a/b": other},
    )
    assert outputs["a"]["b"].shape == [1, 2]
    assert outputs["a/b"].shape == [1, 3]


@pytest.mark.parametrize(
    "structure",
    [lambda ids: [ids] * 3, lambda ids: {2: ids}, lambda ids: ids],
    ids=["longer", "dict", "leaf"],
)
def test_another_structure_than_the_features_is_refused(structure):
    table = tfembed.TableConfig(4, 2, name="t")
    feature = tfembed.FeatureConfig(table)
    with pytest.raises(errors.ArgumentError, match="not in feature_config"):
        tfembed.serving_embedding_lookup(
            structure(tf.constant([1])),
            None,
            {table: tf.zeros([4, 2])},
            [feature, feature],
        )
