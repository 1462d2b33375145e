"""`ShadowVariable`: a lasting source of gradients for many lookups."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.trainable import (
    TrainableWrapper,
    buffer,
    check_max_norm,
    clip_rows,
    watch,
)
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.arguments import EmbeddingWeights
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.not_in_release import absent

__all__ = [
    "DistributedVariableWrapper",
    "HvdVariable",
    "ModelMode",
    "ShadowVariable",
    "TableShadow",
    "enable_inference_mode",
    "enable_train_mode",
    "get_model_mode",
]


class ModelMode:
    """The two modes of lookups; one mode holds for the whole process.

    In train mode a lookup through a `ShadowVariable` is differentiable and
    stores its ids and rows in the shadow. In inference mode it does neither, so
    that any number of threads may look up through one shadow. A tf.function
    keeps the mode in which it was traced. Other lookups are the same in both
    modes.

    Attributes:
      TRAIN: "train".
      INFERENCE: "inference".
      CURRENT_SETTING: the current mode.
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def enable_train_mode() -> None:
    """Sets train mode, which is the default."""
    ModelMode.CURRENT_SETTING = ModelMode.TRAIN


def enable_inference_mode() -> None:
    """Sets inference mode; call it before functions are traced."""
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE


def get_model_mode() -> str:
    """Returns the current mode, "train" or "inference"."""
    return ModelMode.CURRENT_SETTING


class ShadowVariable(TrainableWrapper, EmbeddingWeights):
    """A source of gradients for all lookups that are made through it.

    `tape.gradient(loss, shadow)` is the IndexedSlices by key of all these
    lookups; an optimizer that gets it updates the rows in the table. Its ids
    and its value are those of the last lookup in eager mode; lookups in a
    tf.function do not change them. (TensorFlow's graph optimizer assumes one
    shape for all tensors that a function assigns to a variable.) After an
    optimizer's step in eager mode the value has the updated rows. Make a shadow
    in eager mode; look up anywhere.

    Args:
      params: the `Variable`.
      name: the shadow's name.
      max_norm: the limit of the rows' L2 norm, or None.
      trainable: whether lookups are differentiable, if `params` is trainable.
      distribute_strategy: accepted for TFRA's sake.
      model_mode: accepted for TFRA's sake; see `ModelMode`.
      ids: a tf.Variable of unknown shape for the ids; None: a new one.
      exists: a bool tf.Variable for the ids that a `bp_v2` lookup found; None:
        a new one.

    Raises:
      tfembed.errors.UnsupportedError: (also NotImplementedError) inside of a
        tf.function or a graph.
      tfembed.errors.DtypeError: (also TypeError) `params` is not a `Variable`,
        or `ids` or `exists` is not a tf.Variable.
    """

    def __init__(
        self,
        params: Any,
        name: str = "ShadowVariable",
        max_norm: float | None = None,
        trainable: bool = True,
        distribute_strategy: Any = None,
        *,
        model_mode: str | None = None,
        ids: Any = None,
        exists: Any = None,
    ) -> None:
        del distribute_strategy
        if not tf.executing_eagerly():
            raise errors.UnsupportedError(
                f"{type(self).__name__}s are made in eager mode only, and look "
                "up anywhere. In a graph of TensorFlow 1 look up in the "
                "Variable itself."
            )
        _check_type("params", params, Variable)
        for argument, value in (("ids", ids), ("exists", exists)):
            if value is not None:
                _check_type(argument, value, tf.Variable)
        super().__init__(
            params,
            ids,
            max_norm,
            name=name,
            trainable=trainable,
            model_mode=model_mode,
        )
        if ids is None:
            self.ids = buffer(params.key_dtype, f"{name}-ids")
        self.exists = exists
        if exists is None:
            self.exists = buffer(tf.bool, f"{name}-exists")

    @property
    def as_keys(self) -> Any:
        """The function by which a layer converts ids to keys, or None."""
        return self.params.as_keys

    def embedding_lookup(
        self,
        ids: Any,
        name: str | None = None,
        max_norm: float | None = None,
        return_trainable: bool = False,
    ) -> Any:
        """Returns the rows of `ids`, ids.shape + [dim]; see `ModelMode`.

        Args:
          ids: keys of any shape.
          name: the name of the lookup.
          max_norm: another limit of the L2 norm, applied after the shadow's.
          return_trainable: whether to return a pair, also with the shadow.
        """
        check_max_norm(max_norm, self.params)
        ids = arguments.id_tensor(ids, self.params)
        with tf.name_scope(name or "shadow_embedding_lookup"):
            if ModelMode.CURRENT_SETTING == ModelMode.INFERENCE:
                rows = self.transform(self.params.lookup(ids))
            else:
                if tf.executing_eagerly():
                    self.ids.assign(ids)
                rows = self._read(ids)
            rows = clip_rows(rows, max_norm, self.params)
        return (rows, self) if return_trainable else rows

    def _fetch(self, ids: tf.Tensor, update: bool = False) -> tf.Tensor:
        del update  # A function's tensors must not be kept for the next call.
        rows, exists = self.params.rows.lookup(ids)
        if self.params.bp_v2 and tf.executing_eagerly():
            self.exists.assign(exists)
        return rows

    def _reset_ids(self, ids: Any) -> Any:
        """Sets other ids; the value stays until it is read."""
        self._catch_up()
        for slot in self._tracked_slots:
            slot._reset_ids(ids)
        return self.ids.assign(ids)

    def _buffers(self) -> dict[str, tf.Variable]:
        return {**super()._buffers(), "ids": self.ids, "exists": self.exists}


class TableShadow(ShadowVariable):
    """A shadow whose gradient is that of all lookups of its table.

    So lookups in calls of a Keras layer have a gradient with respect to the
    layer's shadow, as with respect to its weight.
    """

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle that all lookups pass their gradients to."""
        return self.params.handle

    @property
    def read_variable(self) -> None:
        """None, since gradients go to the table."""

    def _watch(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        if not self.trainable:
            return rows
        # Once, since both have the same handle.
        return watch(rows, ids, self.params)


def _check_type(argument: str, value: Any, expected: type) -> None:
    if not isinstance(value, expected):
        raise errors.DtypeError(
            f"`{argument}` of a ShadowVariable must be a "
            f"{expected.__module__.partition('.')[0]} {expected.__name__}; got "
            f"{type(value).__name__}."
        )


HvdVariable = absent("HvdVariable", __name__)
DistributedVariableWrapper = absent("DistributedVariableWrapper", __name__)
