"""Tables in a TPU's embedding engine; the engine's ops are played on a CPU."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from proof.paper_tpu import traced_on_paper
from tfembed import errors, ops
from tfembed.estimator.embeddings import engine as engine_ops
from tfembed.estimator.embeddings import parameters as p
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.engine import EngineSystem
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig
from tfembed.estimator.embeddings.tpu_tables import EngineHook, TpuTables
from tfembed.estimator.run_config import RunConfig
from tfembed.estimator.runs.sessions import training_session
from tfembed.estimator.spec import EstimatorSpec

v1 = tf.compat.v1
SGD = p.StochasticGradientDescentParameters(1.0)
ROWS = np.arange(16, dtype=np.float32).reshape(8, 2)


def system_of(hosts=1, batch_size=3):
    return EngineSystem(
        ["/CPU:0"] * hosts, [("/CPU:0", 0)], batch_size=batch_size
    )


def spec_of(tables, parameters=SGD, features=None, **options):
    return EmbeddingConfigSpec(
        feature_to_config_dict=features
        or {f"of_{name}": FeatureConfig(name) for name in tables},
        table_to_config_dict=tables,
        optimization_parameters=parameters,
        **options,
    )


def initial_rows(shape, dtype=None, partition_info=None):
    first = partition_info.var_offset[0] if partition_info else 0
    return tf.constant(ROWS[first : first + shape[0]])


def table_of(num_rows=8, **options):
    return TableConfig(num_rows, 2, initial_rows, combiner="sum", **options)


class Engine:
    """Plays the engine of one core in a graph, by ops of the CPU."""

    def __init__(self, monkeypatch):
        self.held = {}
        self.batch = []
        self.sent = None
        for name in ("load", "retrieve", "enqueue", "receive", "send"):
            monkeypatch.setattr(engine_ops, name, getattr(self, name))

    def _variable(self, shape):
        return v1.get_variable(
            f"engine_{len(v1.local_variables())}",
            shape,
            initializer=v1.zeros_initializer(),
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            trainable=False,
            use_resource=True,
        )

    def load(self, place, rule, values):
        held = [self._variable(value.shape) for value in values]
        self.held[place.table, place.host] = held
        return tf.group(
            *[one.assign(value) for one, value in zip(held, values)]
        )

    def retrieve(self, place, rule):
        held = self.held[place.table, place.host]
        return [one.read_value() for one in held]

    def enqueue(self, features, combiners, core, *, is_training):
        self.batch = features
        return tf.no_op()

    def receive(self, proto):
        # What the tables get is looked up when the engine is loaded: here.
        self.received = [
            v1.placeholder(tf.float32, [*f.input_shape, 2])
            for f in proto.feature_descriptor
        ]
        return self.received

    def send(self, proto, gradients, rates):
        self.sent = (list(gradients), list(rates))
        return tf.no_op()


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_rows_and_slots_go_to_their_hosts_and_come_back(
    monkeypatch, hosts, strategy
):
    with tf.Graph().as_default():
        engine = Engine(monkeypatch)
        tables = TpuTables(
            spec_of(
                {"t": table_of()},
                p.AdamParameters(0.1),
                partition_strategy=strategy,
            ),
            "train",
            system_of(hosts),
        )
        tables.look_up([{"of_t": tf.constant([1, 2, 3])}])
        tables.make_variables()
        hook = tables.hook()
        saved = v1.global_variables()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.local_variables_initializer())
            hook.after_create_session(session, None)
            rows = [
                session.run(engine.held["t", host][0]) for host in range(hosts)
            ]
            # The engine trains.
            session.run(
                [
                    one.assign_add(tf.fill(one.shape, 100.0 * place))
                    for host in range(hosts)
                    for place, one in enumerate(engine.held["t", host])
                ]
            )
            session.run([one.assign(tf.zeros_like(one)) for one in saved])
            hook.retrieve(session)
            found = [
                np.concatenate(session.run(saved[i : i + hosts]))
                for i in range(0, len(saved), hosts)
            ]
    expected = (
        np.array_split(ROWS, hosts)
        if strategy == "div"
        else [ROWS[host::hosts] for host in range(hosts)]
    )
    for given, wanted in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(given, wanted)
    np.testing.assert_array_equal(found[0], ROWS)
    np.testing.assert_array_equal(found[1], np.full([8, 2], 100.0))
    np.testing.assert_array_equal(found[2], np.full([8, 2], 200.0))


def test_variables_have_the_names_that_tables_on_the_host_have(monkeypatch):
    tables = {
        "a": table_of(),
        "b": table_of(optimization_parameters=p.AdamParameters(0.1)),
        "c": table_of(optimization_parameters=p.FtrlParameters(0.1)),
    }

    def names(made):
        made.look_up([{f"of_{k}": tf.constant([1, 2, 3]) for k in tables}])
        made.make_variables()
        return sorted(
            variable._save_slice_info.full_name
            for variable in v1.global_variables()
        )

    Engine(monkeypatch)
    spec = spec_of(tables)
    with tf.Graph().as_default():
        on_tpu = names(TpuTables(spec, "train", system_of()))
    with tf.Graph().as_default():
        on_host = names(HostTables(spec, "train"))

    assert on_tpu == on_host
    assert {"a", "b/Adam/m", "b/Adam/v", "c/Ftrl", "c/Ftrl_1"} < set(on_tpu)


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_checkpoints_go_from_a_tpu_of_3_hosts_to_the_host_and_back(
    monkeypatch, tmp_path, strategy
):
    spec = spec_of(
        {"t": table_of()},
        p.AdagradParameters(0.1, 0.5),
        partition_strategy=strategy,
    )
    engine = Engine(monkeypatch)

    def tables_of_tpu():
        tables = TpuTables(spec, "train", system_of(3))
        tables.look_up([{"of_t": tf.constant([1, 2, 3])}])
        tables.make_variables()
        return tables.hook()

    with tf.Graph().as_default(), v1.Session() as session:
        hook = tables_of_tpu()
        session.run(v1.global_variables_initializer())
        session.run(v1.local_variables_initializer())
        hook.after_create_session(session, None)
        hook.retrieve(session)
        path = v1.train.Saver().save(session, str(tmp_path / "of_tpu"))
    with tf.Graph().as_default(), v1.Session() as session:
        tables = HostTables(spec, "train")
        tables.look_up([{"of_t": tf.constant([1, 2, 3])}])
        tables.make_variables()
        v1.train.Saver().restore(session, path)
        rows, slots = v1.global_variables()
        found = session.run([rows, slots])
        session.run(rows.assign_add(tf.ones_like(rows)))
        path = v1.train.Saver().save(session, str(tmp_path / "of_host"))
    with tf.Graph().as_default(), v1.Session() as session:
        hook = tables_of_tpu()
        v1.train.Saver().restore(session, path)
        session.run(v1.local_variables_initializer())
        hook.after_create_session(session, None)
        held = [session.run(engine.held["t", host][0]) for host in range(3)]

    np.testing.assert_array_equal(found[0], ROWS)
    np.testing.assert_array_equal(found[1], np.full([8, 2], 0.5))
    expected = ROWS + 1
    if strategy == "mod":
        expected = np.concatenate([expected[host::3] for host in range(3)])
    np.testing.assert_array_equal(np.concatenate(held), expected)


def test_the_gradients_that_are_sent_are_those_of_tables_on_the_host(
    monkeypatch,
):
    options = {"experimental_gradient_multiplier_fn": lambda step: step + 3}
    features = {
        "x": FeatureConfig("t"),
        "s": FeatureConfig("t", max_sequence_length=2),
        "unused": FeatureConfig("t"),
    }

    def ids():
        bags = {
            "x": tf.ragged.constant([[1, 2], [], [7]], tf.int64),
            "s": tf.ragged.constant([[3], [4, 5, 6], [1]], tf.int64),
        }
        sparse = {key: bag.to_sparse() for key, bag in bags.items()}
        return {**sparse, "unused": tf.constant([1, 2, 3])}

    def step(tables, batch):
        w = v1.get_variable("w", initializer=[[2.0], [3.0]])
        batch = tables.capture(batch)
        seen = tf.reduce_sum(batch["s"], 1)
        loss = tf.reduce_sum(tf.sin(tf.matmul(batch["x"] + seen * seen, w)))
        v1.train.AdamOptimizer(0.5).minimize(loss)
        return batch

    spec = spec_of({"t": table_of()}, SGD, features, **options)
    engine = Engine(monkeypatch)
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        tables = HostTables(spec, "train", batch_size=3)
        (batch,) = tables.look_up([ids()])
        step(tables, batch)
        gradients = [tables._scaled(one) for one in tables.gradients()]
        tables.make_variables()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.local_variables_initializer())
            expected, activations = session.run(
                [gradients, [batch[key] for key in tables.feature_keys]]
            )
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        tables = TpuTables(spec, "train", system_of())
        (batch,) = tables.look_up([ids()])
        assert len(batch) == 1  # The lengths of the sequences.
        tables.read_rates()
        step(tables, batch)
        tables.gradients()
        tables.make_variables()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.local_variables_initializer())
            found = session.run(
                engine.sent[0], dict(zip(engine.received, activations))
            )

    assert tables.feature_keys == ["s", "unused", "x"]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.any(found[0]) and np.any(found[2])


def test_rates_of_one_function_are_one_and_are_read_before_the_step(
    monkeypatch,
):
    def rate(step):
        return 0.5 + tf.cast(step, tf.float64)

    engine = Engine(monkeypatch)
    spec = spec_of(
        {
            "a": table_of(learning_rate_fn=rate),
            "b": table_of(learning_rate_fn=rate),
            "c": table_of(learning_rate=7.0),
            "d": table_of(),
        }
    )
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        tables = TpuTables(spec, "train", system_of())
        batch = {f"of_{k}": tf.constant([1, 2, 3]) for k in "abcd"}
        tables.look_up([batch])
        first = tables.read_rates()
        tables.capture({})
        with tf.control_dependencies(first):
            count = v1.assign_add(step, 1)
        tables.gradients()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.local_variables_initializer())
            zeros = {one: np.zeros(one.shape) for one in engine.received}
            found = [
                session.run([engine.sent[1], count], zeros)[0] for _ in "ab"
            ]

    assert found == [[0.5], [1.5]]
    described = [
        one.optimization_parameters.learning_rate
        for one in tables.proto.table_descriptor
    ]
    assert [one.WhichOneof("learning_rate") for one in described] == [
        "dynamic",
        "dynamic",
        "constant",
        "constant",
    ]
    assert [one.dynamic.tag for one in described[:2]] == [0, 0]
    assert [one.constant for one in described[2:]] == [7.0, 1.0]


@pytest.mark.parametrize("hosts", [1, 4])
def test_the_proto_is_that_of_a_tpu_embedding(hosts):
    rules = {
        "adagrad": p.AdagradParameters(0.1, 0.2, clip_weight_max=3.0),
        "adam": p.AdamParameters(0.1, 0.8, lazy_adam=False),
        "ftrl": p.FtrlParameters(0.1, beta=0.5, clip_gradient_max=2.0),
        "sgd": p.StochasticGradientDescentParameters(
            0.3, use_gradient_accumulation=False
        ),
    }
    spec = spec_of(
        {
            name: TableConfig(66, 8, optimization_parameters=rule)
            for name, rule in rules.items()
        },
        None,
        {
            **{name: FeatureConfig(name) for name in rules},
            "words": FeatureConfig("sgd", max_sequence_length=3),
        },
    )
    system = EngineSystem(
        ["/CPU:0"] * hosts, [("/CPU:0", 0)] * (8 * hosts), batch_size=4
    )
    ours = TpuTables(spec, "train", system).proto

    with traced_on_paper(hosts, embedding_engine=1):
        tables = {
            name: tfembed.TableConfig(66, 8, name=name, optimizer=rule.rule())
            for name, rule in rules.items()
        }
        features = [
            tfembed.FeatureConfig(tables[name], name=name) for name in rules
        ] + [
            tfembed.FeatureConfig(
                tables["sgd"], max_sequence_length=3, name="words"
            )
        ]
        embedding = tfembed.TPUEmbedding(features, None, engine="tpu")
        embedding.build(per_replica_batch_size=4)
        theirs = embedding._create_config_proto()

    assert ours == theirs


@pytest.mark.parametrize(
    ("parameters", "kind", "values"),
    [
        (p.MomentumParameters(0.1, 0.0), "momentum", {"momentum": 0.0}),
        (
            p.MomentumParameters(0.1, 0.5, use_nesterov=True),
            "momentum",
            {"momentum": 0.5, "use_nesterov": True},
        ),
        (
            p.RMSPropParameters(0.1, 0.5, 0.25, 2.0),
            "rms_prop",
            {"rho": 0.5, "momentum": 0.25, "epsilon": 2.0},
        ),
        (
            p.ProximalAdagradParameters(0.1, l1_regularization_strength=0.5),
            "proximal_adagrad",
            {"l1": 0.5, "l2": 0.0},
        ),
    ],
)
def test_rules_of_which_tensorflow_has_no_class_are_described(
    parameters, kind, values
):
    spec = spec_of(
        {"t": table_of(hot_id_replication=True)},
        parameters,
        partition_strategy="mod",
        pipeline_execution_with_tensor_core=True,
        profile_data_directory="/profiles",
    )
    proto = TpuTables(spec, "train", system_of()).proto

    (table,) = proto.table_descriptor
    found = table.optimization_parameters
    assert found.WhichOneof("parameters") == kind
    for name, value in values.items():
        assert getattr(getattr(found, kind), name) == value
    assert found.learning_rate.constant == np.float32(0.1)
    hot = found.hot_id_replication_configuration
    assert hot.status == hot.ENABLED
    assert proto.sharding_strategy == proto.MOD
    assert proto.pipeline_execution_with_tensor_core
    assert proto.profile_data_directory == "/profiles"


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_tables_that_are_not_trained_have_no_slots(mode):
    spec = spec_of({"t": table_of(learning_rate_fn=float)}, None)
    with tf.Graph().as_default():
        tables = TpuTables(spec, mode, system_of())
        tables.look_up([{"of_t": tf.constant([1, 2, 3])}])
        tables.make_variables()
        names = [variable.op.name for variable in v1.global_variables()]
    found = tables.proto.table_descriptor[0].optimization_parameters

    assert names == ["t/part_0"]
    assert tables.proto.mode == tables.proto.INFERENCE
    assert found.WhichOneof("parameters") == "stochastic_gradient_descent"
    assert found.learning_rate.constant == 1.0


def test_what_the_engine_cannot_hold_lies_on_the_host():
    spec = spec_of(
        {
            "held": table_of(optimization_parameters=SGD),
            "grown": TableConfig(None, 2, optimization_parameters=SGD),
            "tiny": table_of(2, optimization_parameters=SGD),
            "untrained": table_of(),
        },
        None,
    )
    tables = TpuTables(spec, "train", system_of(3))

    assert tables.feature_keys == ["of_held"]
    assert {
        name: reason.split(",")[0] for name, reason in tables.on_host.items()
    } == {
        "grown": "it has no vocabulary",
        "tiny": "it has fewer rows than the TPU has hosts",
        "untrained": "it has no optimization_parameters",
    }


def _run(tensors):
    with v1.Session() as session:
        return [one.tolist() for one in session.run(list(tensors))]


def test_ids_that_are_passed_over_are_left_out_before_the_engine():
    def taken(value, weights=None, **options):
        with tf.Graph().as_default():
            plan = ops.FeaturePlan(0, **{"combiner": "mean", **options})
            ids = ops.feature_ids(value(), weights and weights())
            return _run(engine_ops.engine_ids(ids, plan, 8))

    def sparse(values):
        return lambda: tf.SparseTensor(
            [[0, 0], [0, 1], [2, 0], [2, 2]], values, [3, 3]
        )

    assert taken(lambda: tf.constant([7, 0])) == [[], [7, 0], []]
    assert taken(lambda: tf.ragged.constant([[7], [], [1, 2]])) == [
        [0, 1, 1, 3],
        [7, 1, 2],
        [],
    ]
    assert taken(sparse([5, -1, 6, 7])) == [
        [[0, 0], [2, 0], [2, 2]],
        [5, 6, 7],
        [],
    ]
    weights = sparse([0.5, 1.0, 0.0, -1.0])
    assert taken(sparse([5, -1, 6, 7]), weights) == [[[0, 0]], [5], [0.5]]
    assert taken(sparse([5, -1, 6, 7]), weights, combiner="sum") == [
        [[0, 0], [2, 0], [2, 2]],
        [5, 6, 7],
        [0.5, 0.0, -1.0],
    ]
    assert taken(sparse([5, 4, 6, 7]), max_sequence_length=2) == [
        [[0, 0, 0], [0, 1, 0], [2, 0, 0]],
        [5, 4, 6],
        [],
    ]
    assert taken(
        lambda: tf.ragged.constant([[1, 2, 3], [4]]), max_sequence_length=2
    ) == [[[0, 0, 0], [0, 1, 0], [1, 0, 0]], [1, 2, 4], []]


@pytest.mark.parametrize("bad", [-1, 8])
def test_ids_that_are_no_rows_fail_on_the_host(bad):
    with tf.Graph().as_default():
        ids = ops.feature_ids(tf.constant([1, bad]))
        plan = ops.FeaturePlan(0, combiner="sum", name="x")
        found = engine_ops.engine_ids(ids, plan, 8)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"In x: ids must be in \[0, 8"
        ):
            _run(found)


def test_a_checkpoint_has_the_engines_rows_and_the_first_one_what_was_loaded(
    tmp_path,
):
    heard = []

    class Listener(v1.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            heard.append(float(session.run(rows)))

    with tf.Graph().as_default():
        rows = v1.get_variable("rows", initializer=1.0, use_resource=True)
        held = v1.get_variable(
            "held",
            initializer=0.0,
            use_resource=True,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
        )
        step = v1.train.get_or_create_global_step()
        hook = EngineHook(
            held.assign(rows.read_value(), read_value=False),
            rows.assign(held.read_value(), read_value=False),
        )
        train = tf.group(held.assign_add(10.0), v1.assign_add(step, 1))
        spec = EstimatorSpec(
            "train", loss=held, train_op=train, training_hooks=[hook]
        )
        config = RunConfig(
            model_dir=str(tmp_path),
            save_checkpoints_steps=2,
            session_config=v1.ConfigProto(),
        )
        with training_session(config, spec, [], [Listener()]) as session:
            for _ in range(3):
                session.run(train)

    saved = {
        int(path.rsplit("-", 1)[1]): float(tf.train.load_variable(path, "rows"))
        for path in tf.train.get_checkpoint_state(
            str(tmp_path)
        ).all_model_checkpoint_paths
    }
    assert saved == {0: 1.0, 2: 21.0, 3: 31.0}
    assert heard == list(saved.values())


def test_another_session_that_has_not_loaded_retrieves_nothing():
    class Session:
        def __init__(self):
            self.ran = []

        def run(self, op):
            self.ran.append(op)

    hook = EngineHook("load", "retrieve")
    first, second = Session(), Session()
    hook.retrieve(first)
    hook.after_create_session(first, None)
    hook.retrieve(first)
    hook.retrieve(second)

    assert first.ran == ["load", "retrieve"]
    assert second.ran == []


def test_no_checkpoint_is_saved_where_the_input_ends_inside_of_a_loop(tmp_path):
    with tf.Graph().as_default():
        rows = v1.get_variable("rows", initializer=1.0, use_resource=True)
        step = v1.train.get_or_create_global_step()
        hook = EngineHook(tf.no_op(), rows.assign(2.0, read_value=False))
        data = tf.data.Dataset.range(2)
        batch = v1.data.make_one_shot_iterator(data).get_next()
        train = tf.group(v1.assign_add(step, 1), batch)
        spec = EstimatorSpec(
            "train", loss=rows, train_op=train, training_hooks=[hook]
        )
        config = RunConfig(
            model_dir=str(tmp_path),
            save_checkpoints_steps=1,
            session_config=v1.ConfigProto(),
        )
        with (
            pytest.raises(errors.StateError, match=r"Dataset.repeat\(\)"),
            training_session(config, spec, [], []) as session,
            contextlib.suppress(tf.errors.OutOfRangeError),
        ):
            while True:
                session.run(train)

    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest.endswith("-2")
    assert tf.train.load_variable(latest, "rows") == 2.0


def test_a_feature_that_the_input_has_not_is_named():
    with tf.Graph().as_default():
        tables = TpuTables(spec_of({"t": table_of()}), "train", system_of())
        with pytest.raises(errors.ArgumentError, match="no feature 'of_t'"):
            tables.look_up([{"other": tf.constant([1])}])
        with pytest.raises(errors.ArgumentError, match="must be a dict"):
            tables.look_up([tf.constant([1])])
