"""A step that the workers of a MultiWorkerMirroredStrategy take together.

Each worker sums its gradients by key and gives them to the owners of the keys.
From then on it takes the step alone, with the rows that it owns: each moves
once, by the gradients of all workers in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.cluster.workers import Workers
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.foreign_optimizers.table_gradients import (
    GradientClipping,
    TableGradient,
    sum_by_key,
)
from tfembed.tables.shared_rows import sums_of_workers

__all__ = ["check_clipping", "not_of_workers", "to_owners"]


def not_of_workers(
    params: Variable, workers: Workers | None
) -> errors.StateError:
    """Makes the error for a table of other workers than those of the step.

    Args:
      params: the table.
      workers: the workers of the step; None: there are none.
    """
    if workers is None:
        return errors.StateError(
            f"Table '{params.name}' is shared by the workers of a "
            "MultiWorkerMirroredStrategy: train it by strategy.run of that "
            "strategy."
        )
    return errors.StateError(
        f"Table '{params.name}' is not shared by the {workers.count} workers of "
        "the strategy that runs this step: each would move rows of its own. "
        "Make it inside of the strategy's scope, without `devices`, and make "
        "one strategy."
    )


def check_clipping(clipping: GradientClipping | None) -> None:
    """Refuses limits of norms, which no worker alone knows."""
    if clipping and (clipping.clipnorm or clipping.global_clipnorm):
        raise errors.UnsupportedError(
            "`clipnorm` and `global_clipnorm` limit norms over the rows of all "
            "workers, which MultiWorkerMirroredStrategy does not have in this "
            "release. Use `clipvalue`, or leave them out."
        )


def to_owners(
    workers: Workers,
    gradients: Sequence[TableGradient],
    dense: Sequence[tuple[Any, Any]],
    nonfinite: str,
) -> list[TableGradient]:
    """Returns the gradients of all workers for the rows that this one owns.

    Args:
      workers: the workers, which all take the step.
      gradients: the gradients of this worker by key.
      dense: gradients of dense variables that must be finite too.
      nonfinite: "refuse": a gradient of any worker that is not finite fails the
        step on all of them, before anything is changed.
    """
    sums = sum_by_key(gradients)
    error = tf.constant("")
    if nonfinite == "refuse":
        error = _first(
            [
                *((one.values, f"table '{p.name}'") for one, p in sums),
                *((g, f"'{variable.name}'") for g, variable in dense),
            ]
        )
    found = sums_of_workers(workers, [one for one, _ in sums], error)
    return [(one, params) for one, (_, params) in zip(found, sums, strict=True)]


def _first(gradients: Sequence[tuple[Any, str]]) -> tf.Tensor:
    """Returns what to say of the first gradient that is not finite, or ""."""
    error = tf.constant("")
    for gradient, name in reversed(gradients):
        values = getattr(gradient, "values", gradient)
        error = tf.where(
            tf.reduce_all(tf.math.is_finite(values)),
            error,
            f"The gradient of {name} is not finite, and nonfinite='refuse'; "
            "nothing was changed.",
        )
    return error
