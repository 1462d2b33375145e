"""The xla engine inside of a TPU's step, traced."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from proof.paper_tpu import traced_on_paper
from tfembed import errors

pytestmark = NEEDS_XLA


def _features():
    tables = [
        tfembed.TableConfig(64, 8, name="one"),
        tfembed.TableConfig(30, 8, name="two", combiner="sum"),
        tfembed.TableConfig(30, 4, name="narrow"),
    ]
    return [tfembed.FeatureConfig(table) for table in [*tables, tables[0]]]


def _inputs():
    ragged = tf.RaggedTensor.from_row_splits(
        tf.zeros([9], tf.int64), [0, 2, 2, 5], validate=False
    )
    return [tf.constant([1, 0, 1]), ragged, tf.constant([1, 2, 3])]


def _step(embedding, training=True):
    def step():
        one, ragged, narrow = _inputs()
        embedding.enqueue([one, ragged, narrow, one], training=training)
        activations = embedding.dequeue()
        if training:
            embedding.apply_gradients([tf.ones_like(x) for x in activations])
        return activations

    return step


def _exchanges(graph):
    """The calls of all functions, too."""
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    return [node for node in nodes if node.op.startswith("Tfembed>Exchange")]


@pytest.mark.parametrize("hosts", [1, 4])
def test_a_stack_of_tables_takes_one_lookup_and_one_update(hosts):
    with traced_on_paper(hosts, cores_per_host=2) as (graph, strategy):
        embedding = tfembed.TPUEmbedding(
            _features(), tfembed.Adagrad(0.1), engine="xla"
        )
        embedding.build([tf.TensorShape([3])] * 4)
        strategy.run(_step(embedding))

    found = _exchanges(graph)
    # One width of two tables, one of one.
    assert sorted(node.op for node in found) == [
        "Tfembed>ExchangeLookup",
        "Tfembed>ExchangeLookup",
        "Tfembed>ExchangeUpdate",
        "Tfembed>ExchangeUpdate",
    ]
    assert {node.attr["replicas"].i for node in found} == {2 * hosts}


def test_evaluation_has_no_update():
    with traced_on_paper(1, cores_per_host=2) as (graph, strategy):
        embedding = tfembed.TPUEmbedding(
            _features(), tfembed.Adagrad(0.1), engine="xla"
        )
        embedding.build([tf.TensorShape([3])] * 4)
        strategy.run(_step(embedding, training=False))

    assert {node.op for node in _exchanges(graph)} == {"Tfembed>ExchangeLookup"}


def test_enqueue_outside_of_the_step_says_where_it_belongs():
    with traced_on_paper(1, cores_per_host=2):
        embedding = tfembed.TPUEmbedding(
            _features(), tfembed.SGD(0.1), engine="xla"
        )
        embedding.build([tf.TensorShape([3])] * 4)
        one, ragged, narrow = _inputs()
        with pytest.raises(errors.StateError, match="inside of strategy.run"):
            embedding.enqueue([one, ragged, narrow, one])
