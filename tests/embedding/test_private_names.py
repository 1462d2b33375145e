"""The private names of TensorFlow's TPUEmbedding, which layers and tests read."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from proof.paper_tpu import traced_on_paper
from tfembed import errors

THEIRS = tf.tpu.experimental.embedding

STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("/CPU:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]),
}


def _rate():
    return 0.1


def _other_rate():
    return 0.2


def _configs(kinds):
    """Features of five tables, of the classes that `kinds` has."""
    rules = {
        "sgd": kinds.SGD(
            0.3,
            clip_weight_max=2.0,
            weight_decay_factor=0.1,
            multiply_weight_decay_factor_by_learning_rate=True,
        ),
        "adagrad": kinds.Adagrad(_other_rate, clipvalue=(-1.0, 0.5)),
        "momentum": kinds.AdagradMomentum(
            _rate, momentum=0.8, use_nesterov=True, exponent=3.0, beta2=0.5
        ),
        "ftrl": kinds.FTRL(
            _other_rate, l1_regularization_strength=0.1, beta=0.2
        ),
        "adam": kinds.Adam(
            0.1,
            beta_1=0.5,
            lazy_adam=False,
            low_dimensional_packing_status=True,
        ),
    }
    tables = {
        name: kinds.TableConfig(
            1 + i,
            4 + i,
            optimizer=rule,
            combiner="sum",
            name=name,
            quantization_config=kinds.QuantizationConfig(4, -1.0, 1.0)
            if name == "ftrl"
            else None,
        )
        for i, (name, rule) in enumerate(rules.items())
    }
    return {
        "a": kinds.FeatureConfig(tables["adagrad"], name="named"),
        "b": [
            kinds.FeatureConfig(tables["sgd"], max_sequence_length=3),
            kinds.FeatureConfig(tables["momentum"], output_shape=[8, 2]),
        ],
        "c": kinds.FeatureConfig(tables["adagrad"]),
        "d": (
            kinds.FeatureConfig(tables["ftrl"]),
            kinds.FeatureConfig(tables["adam"]),
        ),
    }


def _their_proto(strategy, *, is_pipelined):
    """TensorFlow's own result for the configs, with a TPU that is only named."""
    theirs = THEIRS.TPUEmbedding(_configs(THEIRS), None, is_pipelined)
    theirs._get_and_update_output_shapes_from_input(None, 8)
    if not hasattr(strategy.extended, "num_hosts"):
        theirs._strategy = types.SimpleNamespace(
            num_replicas_in_sync=strategy.num_replicas_in_sync,
            extended=types.SimpleNamespace(num_hosts=1),
        )
        theirs._dynamic_learning_rates = [_other_rate, _rate]
    return theirs._create_config_proto()


def _our_proto(kinds, *, is_pipelined, engine="host"):
    # Not built: on paper no hardware would take the tables.
    ours = tfembed.TPUEmbedding(
        _configs(kinds),
        pipeline_execution_with_tensor_core=is_pipelined,
        engine=engine,
    )
    ours._shapes = ours._shapes.with_given(None, 8)
    assert ours._dynamic_learning_rates == [_other_rate, _rate]
    assert ours._pipeline_execution_with_tensor_core is is_pipelined
    return ours._create_config_proto()


@pytest.mark.parametrize("kinds", [tfembed, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("is_pipelined", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_config_proto_is_tensorflows(strategy, is_pipelined, kinds):
    strategy = STRATEGIES[strategy]()
    with strategy.scope():
        ours = _our_proto(kinds, is_pipelined=is_pipelined)
        theirs = _their_proto(strategy, is_pipelined=is_pipelined)
    assert ours == theirs
    assert ours.num_tensor_cores == strategy.num_replicas_in_sync
    assert [
        (one.name, one.table_id, list(one.input_shape))
        for one in ours.feature_descriptor
    ] == [
        ("named", 0, [8]),
        ("", 1, [8, 3]),
        ("", 2, [8, 2]),
        ("", 0, [8]),
        ("", 3, [8]),
        ("", 4, [8]),
    ]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("hosts", [1, 4])
def test_the_config_proto_of_a_tpu_is_tensorflows(hosts, cores):
    with traced_on_paper(
        hosts, embedding_engine=1, cores_per_replica=cores
    ) as (_, strategy):
        ours = _our_proto(tfembed, is_pipelined=False, engine="tpu")
        theirs = _their_proto(strategy, is_pipelined=False)
    assert ours == theirs
    assert ours.num_hosts == hosts
    assert ours.num_tensor_cores == 8 * hosts
    assert ours.spmd_sharding.num_cores_per_replica == (
        cores if cores > 1 else 0
    )
    # A table is never smaller than the number of hosts.
    assert ours.table_descriptor[1].vocabulary_size == hosts


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            tfembed.TableConfig(None, 4, name="grown"),
            "'grown'.*vocabulary_size",
        ),
        (
            tfembed.TableConfig(
                8, 4, optimizer=tfembed.optimizers.Momentum(), name="m"
            ),
            "'m'.*no Momentum",
        ),
        (
            tfembed.TableConfig(
                8, 4, optimizer=tfembed.optimizers.Lion(), name="l"
            ),
            "'l'.*no Lion",
        ),
    ],
)
def test_what_the_hardware_has_not_has_no_config_proto(table, message):
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD()
    )
    embedding.build(per_replica_batch_size=4)
    with pytest.raises(errors.UnsupportedError, match=message):
        embedding._create_config_proto()


def test_without_shapes_there_is_no_config_proto():
    table = tfembed.TableConfig(8, 4, name="t")
    embedding = tfembed.TPUEmbedding(
        {"one": tfembed.FeatureConfig(table)}, tfembed.SGD()
    )
    with pytest.raises(errors.StateError, match="one.*<unknown>.*batch_size"):
        embedding._create_config_proto()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_other_private_names(strategy):
    with STRATEGIES[strategy]().scope():
        table = tfembed.TableConfig(8, 4, optimizer=tfembed.Adagrad(_rate))
        config = {"one": tfembed.FeatureConfig(table, max_sequence_length=2)}
        embedding = tfembed.TPUEmbedding(config)
        assert embedding._feature_config is config
        assert embedding._table_config == [table]
        assert table.name == "table_0"
        assert embedding._dynamic_learning_rates == [_rate]
        assert embedding._verify_output_shapes_on_enqueue
        assert not embedding._built
        assert [one.rank for one in embedding._output_shapes] == [None]
        embedding.build(per_replica_batch_size=4)
    assert embedding._built
    assert embedding._output_shapes == [tf.TensorShape([4, 2])]
    variables = embedding._variables
    assert {name: set(of) for name, of in variables.items()} == {
        "table_0": {"parameters", "accumulators"}
    }
    parameters = variables["table_0"]["parameters"]
    assert parameters is embedding.embedding_tables[table]
    parameters.assign(tf.ones([8, 4]))
    # They are what is trained: neither call changes them.
    embedding._retrieve_variables()
    embedding._load_variables()
    np.testing.assert_array_equal(parameters, np.ones([8, 4]))


@pytest.mark.parametrize(
    "make",
    [
        lambda features, rule: tfembed.TPUEmbeddingForServing(features, rule),
        lambda features, rule: tfembed.TPUEmbeddingV0(features, rule),
    ],
    ids=["serving", "V0"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_private_names_of_taped_embeddings(strategy, make):
    with STRATEGIES[strategy]().scope():
        table = tfembed.TableConfig(8, 4, name="t")
        config = tfembed.FeatureConfig(table, output_shape=[4])
        embedding = make(config, tfembed.Adam())
        assert embedding._feature_config is config
        assert embedding._table_config == [table]
        assert embedding._output_shapes == [tf.TensorShape([4])]
        embedding.build()
    assert embedding._built
    assert {name: set(of) for name, of in embedding._variables.items()} == {
        "t": {"parameters", "momenta", "velocities"}
    }
    own = embedding._variables["t"]["parameters"]
    assert own is embedding.embedding_tables[table]


def test_a_copy_for_an_asynchronous_checkpoint_has_no_tables():
    table = tfembed.TableConfig(8, 4, name="t")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table),
        None,
        pipeline_execution_with_tensor_core=True,
    )
    # As TensorFlow calls it: the optimizer is a TableConfig.
    copy = embedding._create_copy_for_async_checkpoint(
        feature_config=embedding._feature_config,
        optimizer=embedding._table_config[0],
        pipeline_execution_with_tensor_core=(
            embedding._pipeline_execution_with_tensor_core
        ),
    )
    assert type(copy) is tfembed.TPUEmbedding
    assert copy is not embedding
    assert not copy._built
    assert copy._pipeline_execution_with_tensor_core
    assert table.optimizer is None


def test_an_asynchronous_checkpoint_of_static_tables(tmp_path):
    table = tfembed.TableConfig(8, 4, name="t")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(1.0)
    )
    checkpoint = tf.train.Checkpoint(embedding=embedding)
    options = tf.train.CheckpointOptions(
        experimental_enable_async_checkpoint=True
    )
    paths = []
    for value in (1.0, 2.0):
        embedding.embedding_tables[table].assign(tf.fill([8, 4], value))
        paths.append(checkpoint.save(str(tmp_path / "model"), options))
    checkpoint.sync()
    key = "embedding/t/.ATTRIBUTES/VARIABLE_VALUE"
    saved = [tf.train.load_checkpoint(path).get_tensor(key) for path in paths]
    assert [rows[3, 0] for rows in saved] == [1.0, 2.0]
