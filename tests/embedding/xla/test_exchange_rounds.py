"""An embedding knows the most rounds that its exchanges took.

The exchange itself runs in the TPU proof; here its stand-in counts as it does.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from proof.paper_tpu import traced_on_paper
from tfembed.embedding.engines.engine import EngineOptions
from tfembed.embedding.plan import make_plan
from tfembed.embedding.steps.step_queue import QueueBound
from tfembed.embedding.xla import engine as xla_engine
from tfembed.embedding.xla.engine import XlaShardedEngine
from tfembed.embedding.xla.entries import entries_of
from tfembed.embedding.xla.program import XlaSteps
from tfembed.embedding.xla.stack import StackVariables, stacks_of
from tfembed.ops import FeaturePlan, exchange, feature_ids

REPLICAS, ROWS, BUFFER = 2, 16, 4


def _rounds(ids, shared):
    """How often the fullest buffer is filled by the distinct ids of an owner."""
    is_there = tf.reduce_max(
        tf.one_hot(ids, REPLICAS * ROWS, dtype=tf.int32), 0
    )
    of_owners = tf.reduce_sum(tf.reshape(is_there, [ROWS, REPLICAS]), 0)
    return tf.maximum(-(-tf.reduce_max(of_owners) // shared.buffer), 1)


def _look_up(shard, ids, shared):
    rows = tf.zeros([ids.shape[0], shard.shape[1]])
    return exchange.Found(rows, _rounds(ids, shared))


def _update(values, slots, ids, gradients, rate, shared, **how):
    del gradients, rate
    counts = tf.zeros([len(how["table_rows"])], tf.int32)
    return exchange.Updated(values, slots, _rounds(ids, shared), counts)


@pytest.fixture
def steps(monkeypatch):
    """A lookup and an update of one of two stacks; the rounds that they keep."""
    monkeypatch.setattr(exchange, "lookup", _look_up)
    monkeypatch.setattr(exchange, "update", _update)
    tables = [
        tfembed.TableConfig(2 * ROWS, dim, name=f"dim{dim}") for dim in (4, 8)
    ]
    plan = make_plan([tfembed.FeatureConfig(t) for t in tables], tfembed.SGD())
    stacks = [
        StackVariables(stack, tf.Variable(tf.zeros(stack.shapes()[0])), ())
        for stack in stacks_of(plan, REPLICAS, buffer=BUFFER)
    ]
    rounds = tf.Variable([0, 0])
    counts = tf.Variable(tf.zeros([2], tf.int64))
    made = XlaSteps(plan, stacks, counts, "skip", rounds)

    def entries(ids):
        how = FeaturePlan(0, "mean", name="ids")
        return [entries_of(feature_ids(tf.constant(ids)), how, 32, "mean")]

    return (
        lambda ids: made.look_up(entries(ids)),
        lambda ids: made.update(
            entries(ids), [tf.ones([len(ids), 4])], tf.constant([0.1, 0.1])
        ),
        rounds,
    )


EVEN = list(range(8))  # Four ids of each owner.
SKEWED = list(range(0, 18, 2))  # Nine of the first.


@pytest.mark.parametrize("call", [0, 1], ids=["lookup", "update"])
@pytest.mark.parametrize(
    "in_function", [False, True], ids=["eager", "function"]
)
def test_the_most_rounds_of_a_stack_are_kept(steps, call, in_function):
    step, rounds = steps[call], steps[2]

    def run(ids):
        (tf.function(lambda: step(ids)) if in_function else lambda: step(ids))()
        return rounds.numpy().tolist()

    assert run(EVEN) == [1, 0]
    assert run([2] * 8) == [1, 0]
    assert run(SKEWED) == [3, 0]
    assert run(EVEN) == [3, 0]


def test_they_are_read_by_the_tables_that_share_an_exchange(monkeypatch):
    monkeypatch.setattr(xla_engine, "check_xla_replicas", lambda: None)
    sizes = {"a": 4, "b": 8, "c": 4}
    plan = make_plan(
        [
            tfembed.FeatureConfig(tfembed.TableConfig(8, dim, name=name))
            for name, dim in sizes.items()
        ],
        tfembed.SGD(),
    )
    options = EngineOptions("skip", QueueBound(4, 1.0), is_pipelined=False)
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        engine = XlaShardedEngine(tf.Module(), plan, options)
    assert engine.exchange_rounds() == {("a", "c"): 0, ("b",): 0}
    strategy.run(lambda: engine._rounds.assign([3, 1]))
    assert engine.exchange_rounds() == {("a", "c"): 3, ("b",): 1}


@NEEDS_XLA
def test_without_an_exchange_there_are_no_rounds():
    table = tfembed.TableConfig(8, 4, name="users")
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table), tfembed.SGD(), engine="xla"
    )
    assert embedding.exchange_rounds() == {}
    embedding.enqueue(tf.constant([1, 2]))
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    assert embedding.exchange_rounds() == {}


@NEEDS_XLA
def test_a_tpus_step_keeps_them_where_it_runs():
    tables = [tfembed.TableConfig(8, dim, name=f"dim{dim}") for dim in (4, 8)]
    with traced_on_paper(1, cores_per_host=2) as (graph, strategy):
        embedding = tfembed.TPUEmbedding(
            [tfembed.FeatureConfig(table) for table in tables],
            tfembed.SGD(),
            engine="xla",
        )
        embedding.build(per_replica_batch_size=2)
        rounds = embedding._engine._engines[0][1]._rounds

        def step():
            embedding.enqueue([tf.constant([1, 2])] * 2)
            activations = embedding.dequeue()
            embedding.apply_gradients([tf.ones_like(a) for a in activations])

        strategy.run(step)

    assert rounds.shape == [2]
    maxima = [op for op in graph.get_operations() if op.type == "Maximum"]
    kept = [
        op
        for op in graph.get_operations()
        if op.type == "AssignVariableOp"
        and op.inputs[1].dtype == tf.int32
        and "_tpu_replicate" in op.node_def.attr
    ]
    # Of the lookup and of the update.
    assert len(kept) == 2
    assert {op.inputs[1].op for op in kept} <= set(maxima)
    assert not any("rounds" in key for key in _saved_keys(embedding))


def _saved_keys(embedding):
    return list(embedding._trackable_children())
