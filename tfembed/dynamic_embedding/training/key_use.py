"""What the policies of variables are told of a training step."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfembed.dynamic_embedding.variables.variable import Variable

__all__ = ["forget_evicted", "note_updates"]

TableGradients = Iterable[tuple[tf.IndexedSlices, Variable]]


def forget_evicted(gradients: TableGradients) -> None:
    """Before a step: its keys that were evicted lose what was noted of them.

    Args:
      gradients: by key; a variable may come several times.
    """
    for params, keys in _keys_by_variable(gradients):
        params.table.forget_evicted(keys)


def note_updates(gradients: TableGradients) -> None:
    """After a step: tells each variable's policies, once, which keys it updated.

    Keys that were not admitted are left out.

    Args:
      gradients: by key; a variable may come several times.
    """
    for params, keys in _keys_by_variable(gradients):
        if params.restrict_policy is not None:
            if params.table.admission is not None:
                keys = tf.boolean_mask(keys, params.table.contains(keys))
            params.restrict_policy.apply_update(keys)
        params.table.note_training_step()


def _keys_by_variable(
    gradients: TableGradients,
) -> list[tuple[Variable, tf.Tensor]]:
    """Each variable once, with the keys [n] of all its gradients."""
    variables: dict[int, Variable] = {}
    parts: dict[int, list[tf.Tensor]] = {}
    for slices, params in gradients:
        variables[id(params)] = params
        # int32 keys travel as int64.
        keys = tf.cast(tf.reshape(slices.indices, [-1]), params.key_dtype)
        parts.setdefault(id(params), []).append(keys)
    return [
        (params, tf.concat(parts[params_id], 0))
        for params_id, params in variables.items()
    ]
