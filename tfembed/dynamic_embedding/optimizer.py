"""The optimizer of variables that grow with their keys.

TFRA changes TensorFlow for it, by functions that do nothing here.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.tensorflow1.v1_optimizer import V1TableOptimizer
from tfembed.dynamic_embedding.tensorflow1.v2_optimizer import (
    base_for,
    v2_table_optimizer,
)
from tfembed.dynamic_embedding.training.optimizer import (
    TableOptimizer,
    TableTrainer,
)

__all__ = [
    "DynamicEmbeddingOptimizer",
    "patch_on_tf",
    "patch_on_tf_save_restore",
]


def DynamicEmbeddingOptimizer(
    opt: Any,
    bp_v2: bool = False,
    synchronous: bool = False,
    *,
    nonfinite: str = "skip",
) -> Any:
    """Applies an optimizer to `Variable`s, and to dense variables beside them.

    Over an optimizer of Keras 3 or tf_keras, the result is such an optimizer
    too, so that the library's `Model.compile` takes it.

    In one step the gradients of a key are summed over all its occurrences and
    all lookups, then applied once. Only rows and slots of these keys change;
    missing keys are inserted. All tables are checked before any is changed.

    If tfembed has the update rule (SGD, Adagrad, Adam, Ftrl) the update is
    fused: rows and slots are updated in place, atomically per key. Any other
    optimizer whose update is row by row (RMSprop, AdamW, Lion, SGD with
    momentum, ...) runs its own update on the rows and slots of the step.

    In a graph of TensorFlow 1 `opt` is an optimizer of `tf.compat.v1.train`, of
    `tf_keras.optimizers.legacy` or of `tfembed.optimizers`, made in that graph;
    `minimize` and `apply_gradients` return the operation that a session runs
    for a step.

    Example:
      optimizer = DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(1e-3))
      with tf.GradientTape() as tape:
          rows = embedding_lookup(users, ids, name="users")
          loss = tf.reduce_mean(dense(rows) ** 2)
      variables = [users, *dense.trainable_variables]
      optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    Args:
      opt: an optimizer of Keras 3, of tf_keras (also its `legacy` optimizers of
        class `OptimizerV2`, and TensorFlow's copies of them), of
        `tf.compat.v1.train` or of `tfembed.optimizers`. It updates the dense
        variables; an optimizer of `tfembed.optimizers` takes none. Its options
        apply (clipping over the sums of distinct keys, weight decay on the rows
        of the step, loss scale, schedules).
      bp_v2: for asynchronous training. If set, updates that are not fused add
        their changes to the current rows and slots instead of overwriting them,
        so that concurrent steps add up. Fused updates always add up.
      synchronous: False.
      nonfinite: the treatment of a key whose summed gradient is not finite:
        "skip" it, "refuse" the step (InvalidArgumentError before anything is
        changed, dense variables included), or "allow" it.

    Returns:
      A `TableOptimizer`; for a Keras 3 optimizer a `KerasTableOptimizer`, for
      one of tf_keras a `V2TableOptimizer`, for one of tf.compat.v1 a
      `V1TableOptimizer`, with its methods. All have `minimize`,
      `apply_gradients` and `nonfinite_rows`, an int64 variable that counts the
      keys with a gradient that was not finite (0 with "allow", which does not
      check). Other attributes, such as `beta_1`, are those of `opt`.

    Raises:
      tfembed.errors.UnsupportedError: `synchronous`, or an optimizer or option
        that cannot train tables; the text says why.
      tfembed.errors.ArgumentError: an unknown `nonfinite`, or an `opt` that is
        a DynamicEmbeddingOptimizer.
    """
    engine = getattr(opt, "engine", opt)
    if isinstance(engine, TableTrainer):
        raise errors.ArgumentError(
            f"`opt` is a DynamicEmbeddingOptimizer already: {opt!r}. Use it as it "
            "is."
        )
    is_v1 = isinstance(opt, tf.compat.v1.train.Optimizer)
    kind = V1TableOptimizer if is_v1 else TableOptimizer
    optimizer = kind(opt, bp_v2, synchronous, nonfinite=nonfinite)
    base = base_for(opt)
    if base is not None:
        return v2_table_optimizer(optimizer, base)
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(opt, keras.optimizers.Optimizer):
        return optimizer
    # Imported here, since the other optimizers work without Keras 3.
    from tfembed.dynamic_embedding.keras.optimizer import KerasTableOptimizer

    return KerasTableOptimizer(optimizer)


def patch_on_tf() -> None:
    """Does nothing: optimizers and variables work without patches."""


def patch_on_tf_save_restore() -> None:
    """Does nothing: `tf.train.Checkpoint` and SavedModels save the tables."""
