"""Traces TPUEmbeddingV0's loops whose tables are spread over the replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

import tfembed
from proof.paper_tpu import eager_on_paper

__all__ = ["check_v0", "operations", "trace_v0"]

BATCH = 4
WIDTHS = (8, 8, 4)
ROWS = 64


def trace_v0(
    replicas: int, *, training: bool, optimizer: Any = None
) -> list[tf.Operation]:
    """The operations of a loop of steps.

    Args:
      replicas: of the TPUStrategy.
      training: whether the step trains, or evaluates.
      optimizer: makes one; None: Keras' Adagrad.
    """
    strategy = eager_on_paper(replicas)
    with strategy.scope():
        tables = [
            tfembed.TableConfig(ROWS, width, name=f"table_{i}")
            for i, width in enumerate(WIDTHS)
        ]
        embedding = tfembed.TPUEmbeddingV0(
            [tfembed.FeatureConfig(table) for table in [*tables, tables[0]]],
            None,
            engine="xla",
        )
        weights = tf.Variable(tf.ones([WIDTHS[0], 1]), name="weights")
        made = (optimizer or keras.optimizers.Adagrad)()
        embedding.build_optimizer(made, [weights])
    variables = [*embedding.trainable_variables, weights]

    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            one, two, narrow, again = embedding([ids] * 4)
            loss = tf.reduce_sum(tf.matmul(one * two + again, weights))
            loss += tf.reduce_sum(narrow)
        if training:
            gradients = tape.gradient(loss, variables)
            embedding.apply_optimizer(
                made, zip(gradients, variables, strict=True)
            )
        return loss

    @tf.function
    def loop(steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            strategy.run(step, args=(tf.range(BATCH),))

    graph = loop.get_concrete_function(tf.constant(2)).graph
    return list(operations(graph))


def operations(graph: Any) -> Iterator[tf.Operation]:
    """All operations of a function, its loops' and branches' among them."""
    yield from graph.get_operations()
    for name in graph._functions:
        inner = getattr(graph._get_function(name), "graph", None)
        if inner is not None:
            yield from inner.get_operations()


def check_v0(
    operations: list[tf.Operation], training: bool, replicas: int
) -> str:
    """What the step has, in words.

    Raises:
      AssertionError: it is not what it should be.
    """
    ours = [one for one in operations if "Exchange" in one.type]
    kinds = [one.type.removeprefix("Tfembed>Exchange") for one in ours]
    widths = len(set(WIDTHS))
    assert kinds.count("Lookup") == widths, f"{kinds}"
    assert kinds.count("Update") == training * widths, f"{kinds}"
    for one in ours:
        attributes = one.node_def.attr
        assert "_tpu_replicate" in attributes, f"{one.name} is outside"
        assert "_xla_outside_compilation" not in attributes, f"{one.name}"
        assert attributes["replicas"].i == replicas
    sums = [
        one.inputs[0].shape
        for one in operations
        if one.type == "CrossReplicaSum" and one.inputs[0].dtype == tf.float32
    ]
    # The dense weights' gradient, which has to be summed, and no table's.
    assert bool(sums) == training, f"{sums}"
    for shape in sums:
        assert shape.num_elements() == WIDTHS[0], f"a sum of {shape}"
    return f"{len(ours)} exchanges of {replicas} replicas in the step"
