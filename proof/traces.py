"""Traces training and evaluation under a TPUStrategy, and looks at the ops.

    python -m proof.traces FOLDER

Runs where TensorFlow is; no TPU is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2

import tfembed
from proof import engine_traces
from proof.paper_tpu import traced_on_paper
from proof.programs import programs
from proof.results import Result, write
from proof.steps import Step
from proof.v0_traces import check_v0, trace_v0
from tfembed.embedding.engines.choice import missing

__all__ = ["ENGINES", "main", "trace", "trace_exchange"]

ENGINES = ("host", "tpu", "xla")
HOSTS = (1, 4)
CORES = 8
BATCH = 4


@dataclasses.dataclass(frozen=True)
class _Op:
    """An op of a traced program.

    Attributes:
      node: it.
      in_step: whether it is part of the replicated computation.
      on_host: whether it is compiled outside of it.
    """

    node: Any
    in_step: bool
    on_host: bool


def _features(engine: str) -> dict[str, Any]:
    fixed = None if engine == "host" else 64
    tables = [
        tfembed.TableConfig(fixed, 8, name="user"),
        tfembed.TableConfig(2 if fixed else None, 8, name="item"),
    ]
    return {
        "user": tfembed.FeatureConfig(tables[0]),
        "item": tfembed.FeatureConfig(tables[1]),
    }


def trace(engine: str, hosts: int, *, training: bool) -> list[_Op]:
    """The ops of a loop of steps, a step's model among them."""
    with traced_on_paper(
        hosts, CORES, embedding_engine=1 if engine == "tpu" else 0
    ) as (graph, strategy):
        embedding = tfembed.TPUEmbedding(
            _features(engine), tfembed.Adagrad(0.1), engine=engine
        )
        embedding.build(per_replica_batch_size=BATCH)
        weights = tf.compat.v1.get_variable("weights", [8, 1])

        def step(features: Any) -> tf.Tensor:
            embedding.enqueue(features, training=training)
            activations = embedding.dequeue()
            with tf.GradientTape() as tape:
                tape.watch(activations)
                total = activations["user"] * activations["item"]
                loss = tf.reduce_sum(tf.matmul(total, weights))
            if training:
                embedding.apply_gradients(tape.gradient(loss, activations))
            return loss

        ids = tf.constant(list(range(BATCH)))
        strategy.run(step, args=({"user": ids, "item": ids},))
        return list(_ops(graph))


def trace_exchange(hosts: int, *, training: bool) -> list[_Op]:
    """The ops of a step that calls the package's exchange by itself."""
    program = next(
        one
        for one in programs()
        if one.name == ("step, Adagrad" if training else "forward")
    )
    with traced_on_paper(hosts, CORES) as (graph, strategy):
        step = Step(program, hosts * CORES)
        inputs = [tf.zeros(spec.shape, spec.dtype) for spec in step.specs()]
        strategy.run(step.run, args=inputs)
        return list(_ops(graph))


def _ops(graph: tf.Graph) -> Iterator[_Op]:
    """All ops, those of branches and loops with what holds for their call."""
    functions = {name: graph._get_function(name) for name in graph._functions}
    place = {}
    for op in graph.get_operations():
        attributes = op.node_def.attr
        in_step = "_tpu_replicate" in attributes
        on_host = "_xla_outside_compilation" in attributes
        for attribute in attributes.values():
            if attribute.HasField("func"):
                place[attribute.func.name] = (in_step, on_host)
        yield _Op(op.node_def, in_step, on_host)
    for name, function in functions.items():
        for node in function.cached_definition.node_def:
            yield _Op(node, *place.get(name, (False, False)))


def _check_host(ops: list[_Op], training: bool, hosts: int) -> str:
    del hosts
    lookups = [one for one in ops if one.node.op == "Tfembed>GroupedLookup"]
    updates = [one for one in ops if one.node.op == "Tfembed>GroupedUpdate"]
    assert lookups, "nothing is looked up"
    assert bool(updates) == training, f"{len(updates)} updates"
    for one in lookups + updates:
        assert one.in_step and one.on_host, f"{one.node.name} is not on a host"
        assert one.node.device.endswith("/task:0/device:CPU:0") or (
            one.node.op == "Tfembed>GroupedUpdate"
        ), one.node.device
    return f"{len(lookups)} lookup, {len(updates)} update, outside of the step"


def _check_tpu(ops: list[_Op], training: bool, hosts: int) -> str:
    by_type = {one.node.op: one for one in ops}
    receive = by_type["RecvTPUEmbeddingActivations"]
    enqueue = by_type["EnqueueTPUEmbeddingArbitraryTensorBatch"]
    assert receive.in_step and not receive.on_host
    assert enqueue.in_step and enqueue.on_host
    assert ("SendTPUEmbeddingGradients" in by_type) == training
    proto = tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration()
    proto.ParseFromString(receive.node.attr["config"].s)
    sizes = [one.vocabulary_size for one in proto.table_descriptor]
    assert sorted(sizes) == [max(2, hosts), 64], sizes
    assert proto.num_hosts == hosts
    assert proto.num_tensor_cores == CORES * hosts
    assert proto.sharding_strategy == proto.DIV_DEFAULT
    assert [list(f.input_shape) for f in proto.feature_descriptor] == [
        [BATCH],
        [BATCH],
    ]
    return f"{len(sizes)} tables, {proto.num_tensor_cores} cores in the proto"


def _check_xla(ops: list[_Op], training: bool, hosts: int) -> str:
    ours = [one for one in ops if one.node.op.startswith("Tfembed>Exchange")]
    updates = [one for one in ours if one.node.op == "Tfembed>ExchangeUpdate"]
    assert len(ours) > len(updates), "nothing is looked up"
    assert bool(updates) == training, f"{len(updates)} updates"
    for one in ours:
        assert one.in_step and not one.on_host, f"{one.node.name} is outside"
        replicas = one.node.attr["replicas"].i
        assert replicas == CORES * hosts, f"{replicas} replicas"
    return f"{len(ours)} exchanges of {CORES * hosts} replicas in the step"


_CHECKS = {
    "host": _check_host,
    "tpu": _check_tpu,
    "xla": _check_xla,
    "exchange": _check_xla,
}


def main() -> None:
    """Traces all, and writes a result for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help="the same")
    arguments = parser.parse_args()
    results = []
    for engine in (*ENGINES, "exchange", "V0"):
        absent = missing(engine if engine in ENGINES else "xla")
        if absent:
            columns = {"found": f"left out: {absent}"}
            results.append(Result(engine, True, columns))
            continue
        for hosts in HOSTS:
            for training in (True, False):
                results.append(_result(engine, hosts, training))
    results += [
        _engine_result(hosts, mode)
        for hosts in HOSTS
        for mode in engine_traces.MODES
        if hosts == 1 or mode != "infer"  # A TPU of one host predicts.
    ]
    write(results, arguments.folder / "traces.json")


def _result(engine: str, hosts: int, training: bool) -> Result:
    def traced() -> str:
        if engine == "V0":
            replicas = hosts * CORES
            operations = trace_v0(replicas, training=training)
            return check_v0(operations, training, replicas)
        ops = (
            trace_exchange(hosts, training=training)
            if engine == "exchange"
            else trace(engine, hosts, training=training)
        )
        return _CHECKS[engine](ops, training, hosts)

    name = f"{engine}, {'training' if training else 'evaluation'}"
    return _result_of(name, hosts, traced)


def _engine_result(hosts: int, mode: str) -> Result:
    return _result_of(
        f"estimator's tables in the engine, {mode}",
        hosts,
        lambda: engine_traces.check_engine(
            engine_traces.trace_engine(hosts, mode)
        ),
    )


def _result_of(name: str, hosts: int, traced: Callable[[], str]) -> Result:
    start = time.monotonic()
    found, error = "", ""
    try:
        found = traced()
    except Exception as raised:
        error = str(raised).strip().splitlines()[-1] if str(raised) else ""
        error = f"{type(raised).__name__}: {error}"
    return Result(
        name,
        not error,
        {
            "hosts": hosts,
            "replicas": hosts * CORES,
            "found": found,
            "seconds": round(time.monotonic() - start, 1),
            "error": error,
        },
    )


if __name__ == "__main__":
    main()
