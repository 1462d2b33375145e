"""Steps of several replicas: what they add up to is applied once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.training.key_sums import TableGradient

__all__ = ["check_replicas", "once"]


def check_replicas(counter: tf.Variable, *, are_summed: bool) -> None:
    """Refuses a step that replicas cannot take together.

    Args:
      counter: a variable that was made with the optimizer.
      are_summed: whether the caller says that each has the sum of all.

    Raises:
      tfembed.errors.UnsupportedError: several replicas of another strategy than
        tf.distribute.MirroredStrategy, or with summed gradients.
      tfembed.errors.StateError: the step is not inside of strategy.run, or the
        optimizer was not made inside of strategy.scope.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return
    if not isinstance(strategy, tf.distribute.MirroredStrategy):
        raise errors.UnsupportedError(
            "DynamicEmbeddingOptimizer does not run under "
            f"{type(strategy).__name__} in this release; use the default "
            "strategy, OneDeviceStrategy or MirroredStrategy."
        )
    if are_summed:
        raise errors.UnsupportedError(
            "DynamicEmbeddingOptimizer sums the gradients of replicas itself: "
            "give each replica's own, without `skip_gradients_aggregation` and "
            "`experimental_aggregate_gradients=False`."
        )
    if not isinstance(counter, tf.distribute.DistributedValues):
        raise errors.StateError(
            "DynamicEmbeddingOptimizer was made outside of the strategy that "
            "runs its step. Make it, and the dense variables that it moves, "
            "inside of strategy.scope()."
        )
    if tf.distribute.get_replica_context() is None:
        raise errors.StateError(
            "A step of DynamicEmbeddingOptimizer must be called inside of "
            f"strategy.run: the strategy has {strategy.num_replicas_in_sync} "
            "replicas, each with gradients of its own."
        )


def once(
    update: Callable[[list[TableGradient]], Any],
    gradients: Sequence[TableGradient],
) -> Any:
    """Calls `update` once, with the gradients of all replicas.

    Every replica must call it, outside of conditionals and loops of its own.

    Args:
      update: gets each table as often as there are replicas; what it returns is
        returned to all of them.
      gradients: of this replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return update(list(gradients))
    variables = [params for _, params in gradients]

    def merged(strategy: Any, *parts: Any) -> Any:
        of_replicas = [_of_each(strategy, x) for x in parts]
        return update(
            [
                (tf.IndexedSlices(values, keys), params)
                for keys_of, values_of, params in zip(
                    of_replicas[::2], of_replicas[1::2], variables, strict=True
                )
                for keys, values in zip(keys_of, values_of, strict=True)
            ]
        )

    tensors = [x for g, _ in gradients for x in (g.indices, g.values)]
    return context.merge_call(merged, args=tensors)


def _of_each(strategy: Any, part: Any) -> tuple[Any, ...]:
    """What each replica gave; a tensor that all share arrives as one."""
    found = strategy.experimental_local_results(part)
    if isinstance(part, tf.distribute.DistributedValues):
        return found
    return found * strategy.num_replicas_in_sync
