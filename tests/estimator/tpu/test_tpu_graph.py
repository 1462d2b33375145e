"""Programs of TPUs that are on paper: their graphs are looked at."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata

from proof.paper_tpu import paper_metadata
from tests.estimator.tpu import replica_model
from tfembed import errors
from tfembed.estimator import ModeKeys, tpu
from tfembed.estimator.replicas import order_input_before_writes
from tfembed.estimator.tpu import tpu_graph

v1 = tf.compat.v1
CORES = 8


@pytest.fixture(params=[1, 4])
def hosts(request, monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.setattr(
        tpu_system_metadata,
        "_query_tpu_system_metadata",
        paper_metadata(request.param),
    )
    return request.param


def _estimator(hosts, model=replica_model.model_fn, **options):
    pipeline = tpu.InputPipelineConfig.PER_HOST_V2
    config = tpu.RunConfig(
        master="grpc://10.0.0.2:8470",
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=4,
            per_host_input_for_training=pipeline,
            **options,
        ),
    )
    size = 2 * hosts * CORES
    return tpu.TPUEstimator(
        model,
        config=config,
        train_batch_size=size,
        eval_batch_size=size,
        predict_batch_size=size,
    )


def _built(estimator, mode):
    """The graph of a mode, and its spec."""
    with tf.Graph().as_default() as graph:
        estimator._create_and_assert_global_step(graph)
        if mode == ModeKeys.EVAL:
            spec = estimator._call_model_fn_eval(replica_model.train_fn)[0]
        else:
            batches = estimator._steps.take_input(
                replica_model.train_fn, mode
            ).features
            spec = estimator._steps.call_model_fn(
                batches, None, mode, estimator.config
            )
    return graph, spec


def _by_type(graph):
    kinds = {}
    for op in graph.get_operations():
        kinds.setdefault(op.type, []).append(op)
    return kinds


def _is_on_tpu(op):
    return "_tpu_replicate" in op.node_def.attr


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL])
def test_a_loop_on_the_tpu_is_fed_by_each_replicas_host(hosts, mode):
    graph, spec = _built(_estimator(hosts), mode)
    kinds = _by_type(graph)

    (metadata,) = kinds["TPUReplicateMetadata"]
    assert metadata.get_attr("num_replicas") == hosts * CORES
    for kind in ("InfeedDequeueTuple", "OutfeedEnqueueTuple", "MatMul"):
        assert all(map(_is_on_tpu, kinds[kind])), kind
    wanted = [
        (f"/job:tpu_worker/task:{host}/device:CPU:0", core)
        for host in range(hosts)
        for core in range(CORES)
    ]
    for kind in ("InfeedEnqueueTuple", "OutfeedDequeueTuple"):
        found = [
            (op.device, op.get_attr("device_ordinal")) for op in kinds[kind]
        ]
        assert found == wanted, kind
    (fed,) = kinds["InfeedDequeueTuple"]
    sent = kinds["InfeedEnqueueTuple"][0]
    assert fed.get_attr("dtypes") == sent.get_attr("dtypes")
    assert fed.get_attr("shapes") == sent.get_attr("shapes")
    assert not any(
        tensor.dtype == tf.string
        for op in graph.get_operations()
        if _is_on_tpu(op)
        for tensor in op.outputs
    )
    hooks = (*spec.training_hooks, *spec.evaluation_hooks)
    assert [
        type(hook).__name__
        for hook in hooks
        if isinstance(hook, (tpu_graph.ProgramHook, tpu_graph.SystemHook))
    ] == ["SystemHook", "ProgramHook"]
    assert type(hooks[-1]).__name__ == "LoopHook"


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL])
def test_the_last_step_of_a_loop_waits_for_the_programs_end(mode, monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.setattr(
        tpu_system_metadata, "_query_tpu_system_metadata", paper_metadata(1)
    )
    estimator = _estimator(1)
    with tf.Graph().as_default() as graph:
        estimator._create_and_assert_global_step(graph)
        if mode == ModeKeys.EVAL:
            spec, last, *_ = estimator._call_model_fn_eval(
                replica_model.train_fn
            )
        else:
            batches = estimator._steps.take_input(
                replica_model.train_fn, mode
            ).features
            spec = estimator._steps.call_model_fn(
                batches, None, mode, estimator.config
            )
            last = spec.train_op
            order_input_before_writes([last, spec.loss])  # As train does.
    kinds = _by_type(graph)
    (waits,) = kinds["QueueDequeueV2"]
    (tells,) = kinds["QueueEnqueueV2"]
    loop = (spec.training_hooks or spec.evaluation_hooks)[-1]

    assert waits in _needed_by([last])
    assert set(kinds["OutfeedDequeueTuple"]) <= _needed_by([waits])
    assert set(kinds["Exit"]) <= _needed_by([tells])
    # The other steps of a loop do not.
    assert waits not in _needed_by(getattr(op, "op", op) for op in loop._ops)
    # Variables are looked at behind the end.
    for check in kinds.get("CheckNumerics", ()):
        assert waits in _needed_by([check])


def test_training_on_the_tpu_sums_over_replicas_in_the_loop(hosts):
    graph, spec = _built(_estimator(hosts), ModeKeys.TRAIN)
    kinds = _by_type(graph)

    assert len(kinds["CrossReplicaSum"]) == 2
    for kind in ("CrossReplicaSum", "ResourceApplyGradientDescent"):
        for op in kinds[kind]:
            assert _is_on_tpu(op)
            assert op._get_control_flow_context().GetWhileContext()
    assert spec.loss.shape == []


def test_prediction_on_the_tpu_takes_inputs_and_returns_outputs(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.setattr(
        tpu_system_metadata, "_query_tpu_system_metadata", paper_metadata(1)
    )
    graph, spec = _built(_estimator(1), ModeKeys.PREDICT)
    kinds = _by_type(graph)

    assert not any("feed" in kind for kind in kinds)
    assert len(kinds["TPUReplicatedOutput"]) == 1
    assert all(map(_is_on_tpu, kinds["MatMul"]))
    assert set(spec.predictions) == {"y"}


def test_a_replica_of_several_cores_has_those_of_its_assignment(hosts):
    estimator = _estimator(hosts, num_cores_per_replica=2)
    graph, _ = _built(estimator, ModeKeys.TRAIN)
    kinds = _by_type(graph)

    (metadata,) = kinds["TPUReplicateMetadata"]
    assert metadata.get_attr("num_replicas") == hosts * CORES // 2
    assert metadata.get_attr("num_cores_per_replica") == 2
    assert len(metadata.get_attr("device_assignment")) == 4 * hosts * CORES
    ordinals = [
        op.get_attr("device_ordinal") for op in kinds["InfeedEnqueueTuple"]
    ]
    assert len(ordinals) == hosts * CORES // 2


def test_a_model_that_sums_nothing_is_refused(hosts):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean((replica_model.linear(features) - labels) ** 2)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(
            loss, v1.train.get_global_step()
        )
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train)

    with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
        _built(_estimator(hosts, model_fn), ModeKeys.TRAIN)


def test_outputs_without_a_static_shape_are_refused(hosts):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean((replica_model.linear(features) - labels) ** 2)
        found = tf.boolean_mask(labels, labels > 0)
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=replica_model.minimize(loss, params),
            host_call=(lambda found: tf.no_op(), [found]),
        )

    with pytest.raises(errors.ArgumentError, match=r"ensure_shape"):
        _built(_estimator(hosts, model_fn), ModeKeys.TRAIN)


def test_partitioned_features_are_refused_on_a_tpu(hosts):
    estimator = _estimator(
        hosts,
        num_cores_per_replica=2,
        input_partition_dims=[{"x": [2, 1]}, None],
    )

    with pytest.raises(errors.UnsupportedError, match="input_partition_dims"):
        _built(estimator, ModeKeys.TRAIN)


class _Session:
    """Runs functions in the place of ops."""

    def __init__(self):
        self.closed = False

    def run(self, fetch):
        return fetch()

    def close(self):
        self.closed = True


class _Context:
    def __init__(self):
        self.session = _Session()


def test_a_program_runs_beside_the_steps_and_compiles_once():
    ran = []
    hook = tpu_graph.ProgramHook(
        lambda: ran.append("compiled") or b"", lambda: ran.append("program")
    )
    context = _Context()
    hook.after_create_session(context.session, tf.train.Coordinator())
    for _ in range(2):
        hook.before_run(context)
        hook.after_run(context, None)

    assert ran == ["compiled", "program", "program"]
    assert not context.session.closed


def test_a_programs_error_is_the_one_that_is_raised():
    def fails():
        raise tf.errors.InternalError(None, None, "the chip")

    hook = tpu_graph.ProgramHook(lambda: b"", fails)
    context, coord = _Context(), tf.train.Coordinator()
    hook.after_create_session(context.session, coord)
    hook.before_run(context)
    hook.after_run(context, None)

    assert context.session.closed
    with pytest.raises(tf.errors.InternalError, match="the chip"):
        coord.raise_requested_exception()


def test_what_does_not_compile_is_told_with_the_compilers_words():
    from tensorflow.core.protobuf.tpu import compilation_result_pb2

    result = compilation_result_pb2.CompilationResultProto(
        status_error_message="no room in HBM"
    )
    hook = tpu_graph.ProgramHook(result.SerializeToString, lambda: None)
    hook.after_create_session(None, tf.train.Coordinator())

    with pytest.raises(errors.StateError, match="no room in HBM"):
        hook.before_run(_Context())


def test_the_graphs_of_a_tpu_give_the_inputs_their_replicas(hosts):
    graph, _ = _built(_estimator(hosts), ModeKeys.TRAIN)
    sent = _by_type(graph)["InfeedEnqueueTuple"]

    sources = [tuple(tensor.name for tensor in op.inputs) for op in sent]
    assert len(set(sources)) == hosts * CORES
    assert all(
        [tensor.shape[0] for tensor in op.inputs] == [2, 2] for op in sent
    )
    assert np.unique([len(op.inputs) for op in sent]) == [2]


def _needed_by(ops):
    """The ops without which these do not run."""
    found, left = set(), list(ops)
    while left:
        op = left.pop()
        if op in found:
            continue
        found.add(op)
        left += [tensor.op for tensor in op.inputs] + op.control_inputs
    return found


def test_what_layers_of_keras_assign_is_part_of_each_step(hosts):
    def model_fn(features, labels, mode, params):
        layer = keras.layers.BatchNormalization(name="norm")
        x = layer(features["x"], training=True)
        x = keras.layers.Dropout(0.5, seed=1)(x, training=True)
        loss = tf.reduce_mean((keras.layers.Dense(1)(x) - labels) ** 2)
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=replica_model.minimize(loss, params)
        )

    graph, _ = _built(_estimator(hosts, model_fn), ModeKeys.TRAIN)
    kinds = _by_type(graph)

    names = ("norm/moving_mean", "norm/moving_variance", "seed_generator_state")
    assigned = {
        name: [
            op
            for op in kinds["AssignVariableOp"]
            if _is_on_tpu(op)
            and any(
                name in each.name
                for each in _needed_by([op.inputs[0].op])
                if each.type == "VarHandleOp"
            )
        ]
        for name in names
    }
    assert all(assigned.values())
    in_step = _needed_by(kinds["NextIteration"])
    assert all(op in in_step for ops in assigned.values() for op in ops)
    assert _is_on_tpu(kinds["XlaReplicaId"][0])  # Masks of each replica.
