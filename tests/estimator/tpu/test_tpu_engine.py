"""TPUEstimator's graphs for a TPU with an embedding engine, on paper."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata

from proof import engine_traces
from proof.paper_tpu import paper_metadata
from tfembed import errors
from tfembed.estimator import experimental, tpu
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.tpu_tables import TpuTables
from tfembed.estimator.tpu import tpu_graph

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("hosts", "mode"),
    [(1, "train"), (4, "train"), (4, "eval"), (1, "infer")],
)
def test_the_engines_ops_are_where_the_hardware_wants_them(hosts, mode):
    traced = engine_traces.trace_engine(hosts, mode)

    assert engine_traces.check_engine(traced)
    names = [type(hook).__name__ for hook in traced.hooks]
    assert names.index("SystemHook") < names.index("EngineHook")
    if mode == "train":
        _check_rate_comes_first(traced)
        with pytest.raises(AssertionError):
            engine_traces.check_engine(
                engine_traces.EngineGraph(
                    hosts, "eval", traced.graph, traced.hooks
                )
            )


@pytest.mark.parametrize("hosts", [1, 4])
def test_columns_alone_need_no_infeed_and_keep_their_names(hosts):
    categorical = v1.feature_column.categorical_column_with_identity("x", 9)
    column = v1.tpu.experimental.embedding_column(categorical, 2)
    spec = tpu.experimental.EmbeddingConfigSpec(
        [column], tpu.experimental.AdamParameters(0.1)
    )

    def input_fn(params):
        size = params["batch_size"]
        bag = tf.ones([size, 2], tf.int64)
        data = tf.data.Dataset.from_tensors({"x": bag}).repeat()
        return data.map(lambda one: {"x": tf.sparse.from_dense(one["x"])})

    def model_fn(features, mode, params):
        x = v1.feature_column.input_layer(features, [column])
        loss = tf.reduce_mean(x)
        train = v1.tpu.CrossShardOptimizer(
            v1.train.GradientDescentOptimizer(0.1)
        ).minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train)

    traced = engine_traces.trace_engine(
        hosts, "train", spec, model_fn, input_fn
    )

    assert traced.ops("InfeedEnqueueTuple") == []
    assert traced.ops("InfeedDequeueTuple") == []
    enqueued = traced.ops("EnqueueTPUEmbeddingArbitraryTensorBatch")
    taken = traced.ops("OutfeedDequeueTuple")
    assert [op.control_inputs for op in taken] == [[op] for op in enqueued]
    with traced.graph.as_default():
        saved = {
            variable._save_slice_info.full_name
            for variable in v1.global_variables()
            if variable._save_slice_info
        }
    name = "input_layer/x_embedding/embedding_weights"
    assert saved == {name, f"{name}/Adam/m", f"{name}/Adam/v"}


def _check_rate_comes_first(traced):
    """The step counts the global step behind the rate that it sends."""
    (sent,) = traced.ops("SendTPUEmbeddingGradients")
    rate = sent.inputs[-1].op
    counts = [
        op
        for op in traced.ops("AssignAddVariableOp")
        if "_tpu_replicate" in op.node_def.attr
    ]
    assert counts
    for op in counts:
        found, left = set(), [op]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += [t.op for t in one.inputs] + one.control_inputs
        assert rate in found
    # What is outfed follows the gradients: the loop's step ends behind them.
    (out,) = traced.ops("OutfeedEnqueueTuple")
    assert sent in out.control_inputs


def _estimator(monkeypatch, engine, **options):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.setattr(
        tpu_system_metadata,
        "_query_tpu_system_metadata",
        paper_metadata(1, embedding_engine=engine),
    )
    return tpu.TPUEstimator(
        lambda features, labels, mode, params: None,
        config=tpu.RunConfig(
            master="grpc://10.0.0.2:8470",
            tpu_config=tpu.TPUConfig(
                per_host_input_for_training=(
                    tpu.InputPipelineConfig.PER_HOST_V2
                ),
                **options,
            ),
        ),
        train_batch_size=16,
        embedding_config_spec=engine_traces.engine_spec(),
    )


@pytest.mark.parametrize(
    ("engine", "options", "kind", "said"),
    [
        (1, {}, TpuTables, "'words': 'it has no vocabulary'"),
        (0, {}, HostTables, "no embedding engine of version 1, but none"),
        (2, {}, HostTables, "no embedding engine of version 1, but 2"),
        (
            1,
            {"num_cores_per_replica": 2},
            HostTables,
            "a replica has several cores",
        ),
    ],
)
def test_the_hardware_says_where_tables_lie_and_the_log_why(
    monkeypatch, caplog, engine, options, kind, said
):
    estimator = _estimator(monkeypatch, engine, **options)
    with (
        tf.Graph().as_default(),
        caplog.at_level(logging.INFO, "tensorflow"),
    ):
        tables = estimator._steps._tables(
            estimator._steps._ctx.in_mode("train")
        )

    assert type(tables) is kind
    assert said in caplog.text


def test_each_session_sets_the_engine_up_for_its_tables(monkeypatch):
    ran = []

    class Session:
        def __init__(self, *arguments, **options):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def run(self, op):
            ran.append([one.type for one in op.graph.get_operations()])

    class Context:
        master, master_job = "grpc://paper", None

        class config:
            session_config = None

    proto = engine_traces.trace_engine(1, "infer")
    proto = proto.proto(proto.ops("RecvTPUEmbeddingActivations")[0])
    # Not `v1`: an import of tf_keras makes another module of that name.
    monkeypatch.setattr(tf.compat.v1, "Session", Session)
    monkeypatch.setattr(tpu_graph.SystemHook, "_initialized", set())
    for engine in (proto, proto, None):
        hook = tpu_graph.SystemHook(Context(), engine)
        hook.after_create_session(None, None)

    assert ran == 2 * [
        ["ConfigureDistributedTPU", "ConfigureTPUEmbedding", "Identity"]
    ]


def test_evaluation_in_memory_is_refused_beside_the_engine(monkeypatch):
    estimator = _estimator(monkeypatch, 1)
    traced = engine_traces.trace_engine(1, "eval")
    monkeypatch.setattr(
        estimator,
        "_evaluate_build_graph",
        lambda *arguments, **options: (None, None, None, traced.hooks),
    )
    hook = experimental.InMemoryEvaluatorHook(
        estimator, lambda params: None, steps=1
    )
    with pytest.raises(errors.UnsupportedError, match="train_and_evaluate"):
        hook.begin()
