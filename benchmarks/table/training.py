"""A training step of a dynamic table: lookup, gradient, Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.table import workload

STEPS = 8
_OUTPUT_GRADIENT = 1e-3


def make(
    contender: str, table: Any, width: int, keys: int
) -> tuple[Callable[[Any], Any], list[Any]]:
    """A step and the batches of ids that it takes.

    Args:
      contender: "tfembed" or "TFRA".
      table: of width `width`; the first `keys` of `workload.keys` are in use.
      width: of a row.
      keys: that are drawn, uniformly.
    """
    tf = table.tf
    ids = workload.batches(workload.keys(keys), STEPS)
    steps = {"tfembed": _tfembed, "TFRA": _tfra}
    return steps[contender](tf, table.variable), [tf.constant(b) for b in ids]


def _tfembed(tf: Any, variable: Any) -> Callable[[Any], Any]:
    from tfembed import dynamic_embedding as de

    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(0.01))

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(variable, ids, name="rows")
            loss = tf.reduce_sum(rows) * _OUTPUT_GRADIENT
        gradient = tape.gradient(loss, variable)
        optimizer.apply_gradients([(gradient, variable)])
        return loss

    return lambda ids: step(ids).numpy()


def _tfra(tf: Any, variable: Any) -> Callable[[Any], Any]:
    import tensorflow_recommenders_addons as tfra
    import tf_keras

    de = tfra.dynamic_embedding
    shadow = de.shadow_ops.ShadowVariable(variable, name="shadow")
    optimizer = de.DynamicEmbeddingOptimizer(
        tf_keras.optimizers.legacy.Adam(0.01)
    )

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            distinct, places = tf.unique(ids)
            found = de.shadow_ops.embedding_lookup(shadow, distinct)
            loss = tf.reduce_sum(tf.gather(found, places)) * _OUTPUT_GRADIENT
        gradient = tape.gradient(loss, shadow)
        optimizer.apply_gradients([(gradient, shadow)])
        return loss

    return lambda ids: step(ids).numpy()
