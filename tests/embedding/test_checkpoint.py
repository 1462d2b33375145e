"""Static tables have TensorFlow's checkpoint keys, and go both ways."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

import tfembed
from embedding import marks, served
from tfembed import optimizers

THEIRS = tf.tpu.experimental.embedding
SHAPES = {"video": (8, 4), "user": (16, 2)}
OPTIMIZERS = {
    "SGD": (),
    "Adagrad": ("accumulators",),
    "AdagradMomentum": ("accumulators", "momenta"),
    "Adam": ("momenta", "velocities"),
    "FTRL": ("accumulators", "linears"),
}


def _features(configs, seed):
    def rows(shape, dtype):
        return tf.random.stateless_normal(shape, [seed, seed], dtype=dtype)

    return [
        configs.FeatureConfig(configs.TableConfig(*shape, rows, name=name))
        for name, shape in SHAPES.items()
    ]


def _ours(rule, seed=1):
    return tfembed.TPUEmbedding(
        _features(tfembed, seed), getattr(optimizers, rule)(0.5)
    )


def _theirs(rule, seed=2):
    embedding = THEIRS.TPUEmbedding(
        _features(THEIRS, seed), getattr(THEIRS, rule)(0.5)
    )
    embedding.build()
    return embedding


def _train(embedding):
    embedding.enqueue([tf.constant([1, 3]), tf.constant([5, 5])])
    activations = embedding.dequeue()
    embedding.apply_gradients([tf.ones_like(a) for a in activations])


def _assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def _keys(path):
    return dict(tf.train.list_variables(path))


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_the_keys_are_tensorflows(rule, tmp_path):
    embedding = _ours(rule)
    _train(embedding)
    path = tf.train.Checkpoint(embedding=embedding).save(tmp_path / "ours")
    expected = {
        f"embedding/{table}{slot}/.ATTRIBUTES/VARIABLE_VALUE": list(shape)
        for table, shape in SHAPES.items()
        for slot in ("", *(f".S{name}" for name in OPTIMIZERS[rule]))
    }
    found = _keys(path)
    extra = {
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "save_counter/.ATTRIBUTES/VARIABLE_VALUE",
    }
    assert {k: v for k, v in found.items() if k not in extra} == expected
    theirs = tf.train.Checkpoint(embedding=_theirs(rule)).save(tmp_path / "t")
    assert _keys(theirs) == found


@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize("restore_first", [True, False])
def test_ours_restores_theirs(rule, restore_first, tmp_path):
    theirs = _theirs(rule)
    path = tf.train.Checkpoint(embedding=theirs).save(tmp_path / "theirs")
    ours = _ours(rule)
    if not restore_first:
        _train(ours)
    status = tf.train.Checkpoint(embedding=ours).restore(path)
    ours.build()
    status.assert_existing_objects_matched()
    _assert_equal(served.contents(ours), served.contents(theirs))


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_theirs_restores_ours(rule, tmp_path):
    ours = _ours(rule)
    _train(ours)
    path = tf.train.Checkpoint(embedding=ours).save(tmp_path / "ours")
    theirs = _theirs(rule)
    status = tf.train.Checkpoint(embedding=theirs).restore(path)
    status.assert_existing_objects_matched().assert_consumed()
    _assert_equal(served.contents(theirs), served.contents(ours))


def _saver(path):
    """The checkpoint's own description of how `embedding` was written."""
    reader = tf.train.load_checkpoint(path)
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
    (node,) = [
        child.node_id
        for child in graph.nodes[0].children
        if child.local_name == "embedding"
    ]
    return graph.nodes[node].registered_saver.name


@pytest.mark.parametrize("make", [_ours, _theirs])
def test_the_node_carries_tensorflows_callback(make, tmp_path):
    path = tf.train.Checkpoint(embedding=make("Adagrad")).write(tmp_path / "ck")
    assert _saver(path) == "tf.TPUEmbeddingCallback"


def test_the_node_of_a_serving_embedding_carries_none(tmp_path):
    serving = tfembed.TPUEmbeddingForServing(_features(tfembed, 1), None)
    serving.build()
    path = tf.train.Checkpoint(embedding=serving).write(tmp_path / "ck")
    assert _saver(path) == ""


@pytest.mark.parametrize("make", [_ours, _theirs])
@pytest.mark.parametrize("written_by", [_ours, _theirs])
def test_a_restore_loads_what_hardware_has_of_the_variables(
    written_by, make, tmp_path
):
    written, embedding = written_by("Adam", 1), make("Adam", 2)
    written.build()
    embedding.build()
    path = tf.train.Checkpoint(embedding=written).write(tmp_path / "ck")
    seen = []

    def load():
        seen.append(served.contents(embedding))

    with mock.patch.object(embedding, "_load_variables", load):
        tf.train.Checkpoint(embedding=embedding).restore(path)
    (contents,) = seen
    for name, values in served.contents(written).items():
        np.testing.assert_array_equal(contents[name], values)


def test_a_restore_before_build_draws_no_initial_rows(tmp_path):
    drawn = []

    def rows(shape, dtype):
        drawn.append(shape)
        return tf.zeros(shape, dtype)

    def make():
        table = tfembed.TableConfig(4, 2, rows, name="video")
        return tfembed.TPUEmbedding(tfembed.FeatureConfig(table))

    first = make()
    first.build()
    path = tf.train.Checkpoint(embedding=first).save(tmp_path / "ours")
    again = make()
    tf.train.Checkpoint(embedding=again).restore(path)
    again.build()
    assert len(drawn) == 1


@pytest.mark.parametrize("replicas", [1, 2])
@marks.GROWS
def test_training_goes_on_where_it_was_saved(replicas, tmp_path):
    """Static and hash tables, saved by one strategy, restored in another."""

    def make(count):
        tables = [
            tfembed.TableConfig(size, 4, name=name)
            for name, size in (("static", 8), ("growing", None))
        ]
        strategy = tf.distribute.MirroredStrategy(
            [f"/CPU:{i}" for i in range(count)]
        )
        with strategy.scope():
            return strategy, tfembed.TPUEmbedding(
                [tfembed.FeatureConfig(t) for t in tables], tfembed.Adam(0.5)
            )

    def train(strategy, embedding, n):
        def step():
            embedding.enqueue([tf.constant([1]), tf.constant([10**12])])
            activations = embedding.dequeue()
            ones = [tf.ones_like(a) for a in activations]
            embedding.apply_gradients(ones)

        traced = tf.function(lambda: strategy.run(step))
        for _ in range(n):
            traced()

    def read(embedding):
        static, growing = embedding.embedding_tables.values()
        return static.numpy(), growing.lookup(tf.constant([10**12], tf.int64))[
            0
        ]

    whole = make(2)
    checkpoint = tf.train.Checkpoint(embedding=whole[1])
    train(*whole, 2)
    path = checkpoint.save(tmp_path / "half")
    again = make(replicas)
    tf.train.Checkpoint(embedding=again[1]).restore(path)
    for before, after in zip(read(whole[1]), read(again[1]), strict=True):
        np.testing.assert_array_equal(before, after)
    if replicas == 2:
        train(*whole, 2)
        train(*again, 2)
        for before, after in zip(read(whole[1]), read(again[1]), strict=True):
            np.testing.assert_array_equal(before, after)


def test_a_saved_model_has_the_tables_and_serves(tmp_path):
    embedding = _ours("Adagrad")
    _train(embedding)
    features = [
        tfembed.FeatureConfig(table) for table in embedding.embedding_tables
    ]

    class Model(tf.Module):
        def __init__(self):
            self.embedding = embedding

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
        def serve(self, video, user):
            return tfembed.serving_embedding_lookup(
                [video, user], None, embedding.embedding_tables, features
            )

    model = Model()
    tf.saved_model.save(model, str(tmp_path), {"serve": model.serve})
    ids = tf.constant([1, 3], tf.int64)
    loaded = tf.saved_model.load(str(tmp_path))
    for one, other in zip(
        model.serve(ids, ids), loaded.serve(ids, ids), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    ops = {
        node.op
        for node in loaded.serve.concrete_functions[0].graph.as_graph_def().node
    }
    assert not any(op.startswith("Tfembed") for op in ops)
