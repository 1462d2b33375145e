"""What the policies of variables are told of a training step."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["note_updates"]


def note_updates(
    gradients: Iterable[tuple[tf.IndexedSlices, Variable]],
) -> None:
    """Tells each variable's policies, once, which keys a step has updated.

    Args:
      gradients: by key; a variable may come several times.
    """
    keys: dict[int, list[tf.Tensor]] = {}
    updated: dict[int, Variable] = {}
    for slices, params in gradients:
        updated[id(params)] = params
        parts = keys.setdefault(id(params), [])
        parts.append(tf.reshape(slices.indices, [-1]))
    for params_id, params in updated.items():
        if params.restrict_policy is not None:
            params.restrict_policy.apply_update(tf.concat(keys[params_id], 0))
        params.table.note_training_step()
