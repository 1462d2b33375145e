"""The tpu engine: what TensorFlow's embedding ops are told, and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2
from tensorflow.python.tpu.ops import tpu_ops

import tfembed
from proof.paper_tpu import traced_on_paper
from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.tpu.engine import TpuTable

THEIRS = tf.tpu.experimental.embedding


def _rate():
    return tf.constant(0.1)


def _features():
    small = tfembed.TableConfig(
        2, 4, name="small", optimizer=tfembed.Adagrad(_rate)
    )
    large = tfembed.TableConfig(64, 8, name="large")
    return {
        "bag": tfembed.FeatureConfig(small),
        "last": tfembed.FeatureConfig(large, max_sequence_length=3),
    }


def _inputs():
    sparse = tf.SparseTensor(
        tf.constant([[0, 0], [1, 0]], tf.int64),
        tf.constant([1, 2], tf.int64),
        [4, 3],
    )
    return {"bag": tf.constant([1, 0, 1, 1]), "last": sparse}


def _traced(graph, strategy, **options):
    embedding = tfembed.TPUEmbedding(_features(), tfembed.Adam(0.1), **options)
    embedding.build(per_replica_batch_size=4)

    def step(features):
        embedding.enqueue(features)
        activations = embedding.dequeue()
        embedding.apply_gradients(
            tf.nest.map_structure(tf.ones_like, activations)
        )
        return tf.reduce_sum(activations["last"])

    strategy.run(step, args=(_inputs(),))
    return embedding, {op.type: op for op in graph.get_operations()}


@pytest.mark.parametrize("hosts", [1, 4])
def test_the_embedding_ops_are_told_what_the_configs_say(hosts):
    with traced_on_paper(hosts, embedding_engine=1) as (graph, strategy):
        embedding, ops = _traced(graph, strategy)

    proto = tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration()
    receive = ops["RecvTPUEmbeddingActivations"]
    proto.ParseFromString(receive.node_def.attr["config"].s)
    lines = embedding.describe().splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["tpu", "tpu"]
    assert [one.name for one in proto.table_descriptor] == ["small", "large"]
    # A table is never smaller than the number of hosts.
    assert [one.vocabulary_size for one in proto.table_descriptor] == [
        max(2, hosts),
        64,
    ]
    rate = proto.table_descriptor[0].optimization_parameters.learning_rate
    assert rate.WhichOneof("learning_rate") == "dynamic"
    assert proto.num_hosts == hosts
    assert proto.num_tensor_cores == 8 * hosts
    assert (
        proto.sharding_strategy
        == tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration.DIV_DEFAULT
    )
    shapes = [list(one.input_shape) for one in proto.feature_descriptor]
    assert shapes == [[4], [4, 3]]
    enqueue = ops["EnqueueTPUEmbeddingArbitraryTensorBatch"].node_def
    assert "_xla_outside_compilation" in enqueue.attr
    send = ops["SendTPUEmbeddingGradients"]
    assert "_tpu_replicate" in send.node_def.attr
    assert len(send.get_attr("config")) > 0
    assert send.node_def.attr["NN"].i == 1  # The one learning rate that moves.


def test_the_shards_of_a_table_lie_on_the_hosts_one_after_another():
    with traced_on_paper(4, embedding_engine=1) as (graph, strategy):
        embedding, _ = _traced(graph, strategy)
        variables = embedding._variables

    rows = [v.shape[0] for v in variables["large"]["parameters"].variables]
    assert rows == [16] * 4
    assert [v.shape[0] for v in variables["small"]["parameters"].variables] == [
        1,
        1,
    ]
    assert set(variables["large"]) == {"parameters", "momenta", "velocities"}


def test_a_save_retrieves_and_a_restore_loads():
    with traced_on_paper(1, embedding_engine=1) as (graph, strategy):
        embedding, _ = _traced(graph, strategy)
        embedding._retrieve_variables()
        embedding._load_variables()
        functions = [graph._get_function(name) for name in graph._functions]
    ops = {
        node.op
        for function in functions
        for node in function.cached_definition.node_def
    }
    assert {
        "LoadTPUEmbeddingADAMParameters",
        "RetrieveTPUEmbeddingADAMParameters",
        "RetrieveTPUEmbeddingAdagradParameters",
    } <= ops


def test_an_input_that_is_computed_is_refused():
    with traced_on_paper(1, embedding_engine=1) as (_, strategy):
        embedding = tfembed.TPUEmbedding(_features(), tfembed.Adam(0.1))

        def step(features):
            features["bag"] = features["bag"] + 1
            embedding.enqueue(features)

        with pytest.raises(ValueError, match="_tpu_input_identity"):
            strategy.run(step, args=(_inputs(),))


def test_an_input_on_a_tpu_is_refused():
    with traced_on_paper(1, embedding_engine=1) as (_, strategy):
        embedding = tfembed.TPUEmbedding(_features(), tfembed.Adam(0.1))
        embedding.build(per_replica_batch_size=4)
        inputs = _inputs()
        with tf.device("/job:worker/task:0/device:TPU:0"):
            inputs["bag"] = tf.identity(inputs["bag"])
        device = strategy.extended.worker_devices[0]
        with pytest.raises(ValueError, match="on a TPU input device"):
            embedding.enqueue(inputs, device=device)


def test_a_rule_that_the_hardware_has_not_is_refused_or_goes_elsewhere():
    rule = tfembed.optimizers.Lion()
    with traced_on_paper(1, embedding_engine=1):
        with pytest.raises(errors.ArgumentError, match=r"'large'.*no Lion"):
            tfembed.TPUEmbedding(_features(), rule, engine="tpu")
        choice = tfembed.TPUEmbedding(_features(), rule).describe()
    assert "no Lion" in choice


def test_hardware_without_an_embedding_engine_is_refused():
    with (
        traced_on_paper(1),
        pytest.raises(errors.ArgumentError, match="'unsupported'"),
    ):
        tfembed.TPUEmbedding(_features(), tfembed.Adam(), engine="tpu")


def test_without_a_tpu_strategy_the_engine_is_refused():
    with pytest.raises(errors.ArgumentError, match="TPUStrategy"):
        tfembed.TPUEmbedding(_features(), tfembed.Adam(), engine="tpu")


def test_a_shape_that_is_not_known_is_refused():
    with traced_on_paper(1, embedding_engine=1):
        embedding = tfembed.TPUEmbedding(_features(), tfembed.Adam(0.1))
        with pytest.raises(errors.StateError, match="per_replica_batch_size"):
            _ = embedding.embedding_tables


def test_grown_and_fixed_tables_of_one_object_live_apart():
    features = _features()
    features["new"] = tfembed.FeatureConfig(
        tfembed.TableConfig(None, 4, name="grown")
    )
    with traced_on_paper(1, embedding_engine=1) as (graph, strategy):
        embedding = tfembed.TPUEmbedding(features, tfembed.Adam(0.1))

        def step(inputs):
            embedding.enqueue(inputs)
            activations = embedding.dequeue()
            assert activations["new"].shape == [4, 4]
            assert activations["last"].shape == [4, 3, 8]
            embedding.apply_gradients(
                tf.nest.map_structure(tf.ones_like, activations)
            )
            return tf.reduce_sum(activations["new"])

        inputs = {**_inputs(), "new": tf.constant([1, 2, 3, 4], tf.int64)}
        strategy.run(step, args=(inputs,))
        types = {op.type for op in graph.get_operations()}
    assert {"Tfembed>GroupedLookup", "RecvTPUEmbeddingActivations"} <= types


class _Sharded:
    """A stand-in for a table of an embedding engine: a shard per host."""

    def __init__(self, *values):
        self.variables = [tf.Variable(value) for value in values]
        rows = sum(len(value) for value in values)
        self.shape = tf.TensorShape([rows, values[0].shape[1]])


def _owner(sharded, loads):
    owner = private.Folder()
    private.track(owner, "users", TpuTable(sharded, lambda: loads.append(1)))
    return owner


def test_checkpoints_go_between_the_hardware_and_the_host(tmp_path):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    loads: list[int] = []
    sharded = _Sharded(rows[:3], rows[3:])
    path = tf.train.Checkpoint(embedding=_owner(sharded, loads)).save(
        str(tmp_path / "tpu")
    )
    table = tfembed.TableConfig(5, 2, name="users")
    host = tfembed.TPUEmbedding(tfembed.FeatureConfig(table), None)
    tf.train.Checkpoint(embedding=host).restore(path).expect_partial()
    np.testing.assert_array_equal(host.embedding_tables[table], rows)
    assert loads == []

    host.embedding_tables[table].assign(rows + 100)
    path = tf.train.Checkpoint(embedding=host).save(str(tmp_path / "host"))
    tf.train.Checkpoint(embedding=_owner(sharded, loads)).restore(path)
    found = np.concatenate([one.numpy() for one in sharded.variables])
    np.testing.assert_array_equal(found, rows + 100)
    assert loads == [1]


def test_a_checkpoint_of_another_shape_is_refused_before_a_change(tmp_path):
    rows = np.ones((4, 2), np.float32)
    path = tf.train.Checkpoint(embedding=_owner(_Sharded(rows), [])).save(
        str(tmp_path / "tpu")
    )
    loads: list[int] = []
    other = _Sharded(np.zeros((5, 2), np.float32))
    with pytest.raises(errors.CheckpointError, match=r"\(4, 2\).*\(5, 2\)"):
        tf.train.Checkpoint(embedding=_owner(other, loads)).restore(path)
    np.testing.assert_array_equal(other.variables[0], np.zeros((5, 2)))
    assert loads == []


def test_hardware_that_is_set_up_for_another_object_is_refused(monkeypatch):
    with traced_on_paper(1, embedding_engine=1):
        monkeypatch.setattr(
            tpu_ops, "is_tpu_embedding_initialized", lambda: True
        )
        embedding = tfembed.TPUEmbedding(_features(), tfembed.Adam(0.1))
        with pytest.raises(RuntimeError, match="already initialized"):
            embedding.build(per_replica_batch_size=4)
    assert not embedding._built


@pytest.mark.parametrize("kinds", [tfembed, THEIRS])
def test_ctor_a_table_without_an_optimizer_under_a_tpu_strategy(kinds):
    with (
        traced_on_paper(1, embedding_engine=1),
        pytest.raises(
            ValueError, match="NoneType.*is an unsupported optimizer"
        ),
    ):
        kinds.TPUEmbedding(kinds.FeatureConfig(kinds.TableConfig(4, 2)), None)


@pytest.mark.parametrize("kinds", [tfembed, THEIRS])
def test_build_on_a_tpu_a_slot_function_without_callable_initial_values(kinds):
    def slots_of(table, names, initializers):
        del initializers
        return {name: tf.Variable(tf.zeros([8, 4])) for name in names}

    rule = kinds.Adagrad(0.1, slot_variable_creation_fn=slots_of)
    with traced_on_paper(1, embedding_engine=1):
        embedding = kinds.TPUEmbedding(
            kinds.FeatureConfig(kinds.TableConfig(8, 4)), rule
        )
        with pytest.raises(ValueError, match="Unable to extract initializer"):
            embedding.build(per_replica_batch_size=4)
