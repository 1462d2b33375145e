"""A variable whose value is the rows of the last lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.gradient_source import GradientSource
from tfembed.dynamic_embedding.lookups.graph_rows import GraphRows
from tfembed.dynamic_embedding.lookups.refused_uses import RefusedUses
from tfembed.dynamic_embedding.lookups.watched_rows import check_max_norm
from tfembed.ops import private

__all__ = ["LookupBuffer", "buffer"]

_VALUE_KEY = "VARIABLE_VALUE"  # What savers call a variable's tensor.


class LookupBuffer(RefusedUses, GradientSource, tf.Variable):
    """Stands for rows of a table where a tf.Variable is asked for.

    It is a source of gradients, and `tf.Module.trainable_variables` lists it.
    Its value is a copy of rows, of any shape, and no part of a checkpoint; the
    table is. Base of `TrainableWrapper`.

    Args:
      params: the `Variable` that the rows come from.
      max_norm: what the rows' lengths are limited to, or None.
      name: of the lookup.
      trainable: whether it is a source of gradients, if `params` is trainable.
      graph_rows: in a graph of TensorFlow 1, what takes a buffer's place.

    Attributes:
      params: the `Variable`.
      max_norm: the limit.

    Raises:
      tfembed.errors.ArgumentError: a `max_norm` that is no number above 0.
      tfembed.errors.DtypeError: a `max_norm`, and rows that are no floats.
    """

    # Gradient tapes take it for its handle, and ask for its dtype.
    _should_act_as_resource_variable = True
    is_tensor_like = True

    @classmethod
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """Keeps TensorFlow from reading our arguments as tf.Variable's own."""

    def __init__(
        self,
        params: Any,
        max_norm: float | None,
        *,
        name: str,
        trainable: bool,
        graph_rows: GraphRows | None = None,
    ) -> None:
        check_max_norm(max_norm, params)
        self.params = params
        self.max_norm = max_norm
        self._name = name
        self._trainable = bool(trainable) and params.trainable
        self._buffer: Any = graph_rows
        if graph_rows is None:
            self._buffer = buffer(params.value_dtype, name, [params.dim])
        # As of TensorFlow's variables: whether a graph of TensorFlow 1 has it.
        self._in_graph_mode = graph_rows is not None
        self._track_trackable(params, "params")

    @property
    def name(self) -> str:
        """The lookup's name."""
        return self._name

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self._buffer.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """That of the lookup in a graph; else unknown, it is the last one's."""
        return self._buffer.shape

    @property
    def device(self) -> str:
        """Where the value is kept."""
        return self._buffer.device

    @property
    def key_dtype(self) -> tf.DType:
        """Dtype of the keys."""
        return self.params.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """Dtype of the rows in the table."""
        return self.params.value_dtype

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self.params.dim

    @property
    def trainable(self) -> bool:
        """Whether this and the variable are."""
        return self._trainable

    @property
    def handle(self) -> tf.Tensor:
        """The resource that gradients go to."""
        return self._buffer.handle

    @property
    def read_variable(self) -> tf.Variable | None:
        """What lookups read, so that their gradients go to it.

        None in a graph of TensorFlow 1, and for rows that are not float32.
        """
        is_read = not self._in_graph_mode and self.dtype == tf.float32
        return self._buffer if is_read else None

    @property
    def _handle(self) -> tf.Tensor:
        """`handle`, as TensorFlow's own variables call it inside."""
        return self.handle

    @property
    def op(self) -> tf.Operation:
        """The operation of the handle, in a graph of TensorFlow 1."""
        return self.handle.op

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """True: there is nothing to initialize."""
        return tf.constant(True, name=name)

    @property
    def initializer(self) -> tf.Operation | None:
        """An operation that does nothing; None in eager mode."""
        if not self._in_graph_mode:
            return None
        with self.handle.graph.as_default():
            return tf.no_op()

    def to_proto(self, export_scope: str | None = None) -> None:
        """None: a meta graph has the lookup's operations, not this object."""
        del export_scope

    def value(self) -> tf.Tensor:
        """The value, without a gradient."""
        return tf.stop_gradient(self._buffer.value())

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        value = self.value()
        if dtype is not None and dtype != value.dtype:
            raise errors.DtypeError(
                f"'{self.name}' has rows of {value.dtype.name}; got dtype "
                f"{dtype.name}. Cast them."
            )
        return tf.identity(value, name)

    def numpy(self) -> Any:
        """The value as an array; eager mode only."""
        return self._buffer.numpy()

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces the value; `update_op` writes it into the table."""
        return self._buffer.assign(value, *args, **kwargs)

    # Compared and hashed as an object: anchors of gradients are looked up.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} '{self.name}' of '{self.params.name}'>"

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        return {}

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":  # Functions may have captured them.
            children.update(self._buffers())
        return children

    def _buffers(self) -> dict[str, tf.Variable]:
        """The variables that lookups write, by name."""
        return {"rows": self._buffer}

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Tells a SavedModel that this is an object with a table, no variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1


def buffer(
    dtype: tf.DType, name: str, row_shape: Sequence[int] = ()
) -> tf.Variable:
    """A variable of any shape, empty at first, and in a SavedModel always.

    What it holds is of one process: a model that serves must not bring along
    whom it was looked up for last.
    """
    empty = tf.zeros([0, *row_shape], dtype)
    variable = private.unnamed_variable(
        name,
        initial_value=empty,
        trainable=False,
        shape=tf.TensorShape(None),
    )
    # No checkpoint saves it, so this is for SavedModels alone.
    variable._serialize_to_tensors = lambda: {_VALUE_KEY: tf.identity(empty)}
    return variable
