"""The protocol by which TensorFlow differentiates with respect to a variable.

A tape watches a tf.Variable. `tf.custom_gradient`, and so `tf.recompute_grad`
and `keras.RematScope`, dereference `ref()`, convert the result to a tensor, and
record that the tensor's gradient is the one that the function returns. They
convert each gradient to a dense tensor, but the slices of a table have no dense
shape. So they get a `StandIn`, whose gradients become tensors that pack keys
and rows, and become slices again before they reach the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.ops import private
from tfembed.ops.keyed_shape import keyed_slices

__all__ = [
    "GradientSource",
    "StandIn",
    "TableSource",
    "WatchedTable",
    "no_slices",
    "refuse_operators",
]


@private.register_dispatchable
class GradientSource:
    """Base of the sources of gradients: tables, lookups and shadows.

    Attributes:
      name: the source's name in errors.
      dim: width of a row.
      key_dtype: the dtype of the keys.
      handle: the resource handle whose gradient tapes compute.
    """

    name: Any
    dim: Any
    key_dtype: Any
    handle: Any

    def ref(self) -> Any:
        """Returns a hashable reference, whose `deref()` is this object."""
        return _Reference(self)

    def stand_in(self) -> Any:
        """Returns what tf.custom_gradient takes for this source."""
        return StandIn(self)

    def zero_gradient(self) -> Any:
        """Returns the gradient of a tape with unconnected_gradients=ZERO."""
        return no_slices(self)


class TableSource(GradientSource):
    """A source that is not a tf.Variable; tapes watch its `WatchedTable`."""

    _watched: WatchedTable | None = None

    @property
    def watched(self) -> WatchedTable:
        """The tf.Variable that a tape watches, always the same."""
        if self._watched is None:
            self._watched = WatchedTable(self)
        return self._watched

    @property
    def _type_spec(self) -> _SourceSpec:
        """The spec by which `tape.watch` finds the parts of a source."""
        return _SourceSpec(self)

    @property
    def __composite_gradient__(self) -> Any:
        """The protocol by which tapes compute the source's gradient."""
        return _KeyedGradient()

    def no_tensor(self) -> errors.DtypeError:
        """Returns the error of a use as a tensor, which would have no rows."""
        return errors.DtypeError(
            f"The table '{self.name}' is no tensor: its rows are found by key. "
            "Look rows up, by `embedding_lookup` or `lookup`, and use these."
        )

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        raise self.no_tensor()


_OPERATORS = (
    *(
        "__neg__",
        "__pos__",
        "__abs__",
        "__invert__",
        "__round__",
        "__getitem__",
    ),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"),
    *("__truediv__", "__rtruediv__", "__floordiv__", "__rfloordiv__"),
    *(
        "__mod__",
        "__rmod__",
        "__pow__",
        "__rpow__",
        "__matmul__",
        "__rmatmul__",
    ),
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"),
    *("__int__", "__float__"),
)


def refuse_operators(
    kind: type, refusal: Callable[[Any], errors.DtypeError]
) -> None:
    """Makes all operators of a class raise, in place of computing no rows.

    An object still equals itself, so that lists find it.

    Args:
      kind: the class.
      refusal: returns the error for an object of the class.
    """

    def refusing(name: str) -> Callable[..., Any]:
        def operator(self: Any, *others: Any) -> Any:
            if name == "__eq__" and others[0] is self:
                return True
            raise refusal(self)

        return operator

    for name in _OPERATORS:
        setattr(kind, name, refusing(name))


# `tape.watch` takes tensors, tf.Variables and composite tensors. Registering
# the class as a composite tensor is enough, and has no other effect.
tf.__internal__.CompositeTensor.register(TableSource)


@private.register_dispatchable
class WatchedTable(tf.Variable):
    """Represents a table in `tape.watched_variables()`.

    Its gradient is the table's, and an optimizer that gets it trains the table.
    It has no value: a use as a tensor or an array raises DtypeError.

    Args:
      params: the table, or what stands for tables.
      shape: the shape of its gradient if that is dense; None: slices by key,
        its shape is that of zero rows.
    """

    _should_act_as_resource_variable = True
    _in_graph_mode = False
    is_tensor_like = True

    @classmethod
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """Bypasses TensorFlow's handling of tf.Variable's own arguments."""

    def __init__(self, params: Any, shape: Any = None) -> None:
        self.params = params
        self._shape = shape

    @property
    def name(self) -> str:
        """The table's name."""
        return str(self.params.name)

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self.params.value_dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of zero rows, [0, dim], or that of a dense gradient."""
        if self._shape is not None:
            return tf.TensorShape(self._shape)
        return tf.TensorShape([0, self.params.dim])

    @property
    def trainable(self) -> bool:
        """False, so that `tf.Module.trainable_variables` does not list it.

        Modules expand composite tensors, as tapes do, and would list the table
        beside their shadows, whose gradients are a part of the table's.
        """
        return False

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle that lookups pass their gradients to."""
        return self.params.handle

    _handle = handle

    def no_tensor(self) -> errors.DtypeError:
        """Returns the error of a use as a tensor, which would have no rows."""
        error: errors.DtypeError = self.params.no_tensor()
        return error

    def value(self) -> Any:
        """Raises DtypeError; TensorFlow's operators call it."""
        raise self.no_tensor()

    numpy = read_value = value

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        raise self.no_tensor()

    def ref(self) -> Any:
        """Returns a hashable reference; to `tf.custom_gradient` the table's."""
        return _Reference(self.params)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"<WatchedTable of {self.params!r}>"


class StandIn(tf.__internal__.CompositeTensor):
    """Represents a source in `tf.custom_gradient` and in its gradients.

    Its gradient is the source's gradient, and an optimizer that gets it trains
    the source.

    Args:
      source: a table, or a `TrainableWrapper` or shadow of one.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        # TensorFlow must not recognize it as a variable: it would differentiate
        # with respect to the handle, and get slices that are not packed.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.source, name)

    @property
    def __composite_gradient__(self) -> _SlicesGradient:
        return _SlicesGradient()

    @property
    def _type_spec(self) -> _SourceSpec:
        return _SourceSpec(self)

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        """Converts to zero rows, whose gradient goes to the source."""
        del dtype, name
        return ops.stand_in_rows(
            self.source, self.source.key_dtype, self.source.dim
        )

    def __repr__(self) -> str:
        return repr(self.source)


class _Reference(private.Reference):
    """A reference that dereferences to a stand-in in tf.custom_gradient."""

    __slots__ = ()

    def deref(self) -> Any:
        """Returns the object, or its stand-in to tf.custom_gradient."""
        source = self._wrapped
        if private.asked_by_custom_gradient():
            return source.stand_in()
        return source


class _SourceSpec(tf.TypeSpec):
    """The parts of a source that a tape watches."""

    __slots__ = ("_source",)

    def __init__(self, source: Any) -> None:
        self._source = source

    @property
    def value_type(self) -> type:
        """The source's class."""
        return type(self._source)

    @property
    def _component_specs(self) -> list[Any]:
        return [tf.TensorSpec([], tf.resource)]

    def most_specific_common_supertype(
        self, others: Sequence[Any]
    ) -> _SourceSpec | None:
        """Returns this spec if all specs are of the same source."""
        return self if all(self.is_subtype_of(one) for one in others) else None

    def is_subtype_of(self, other: Any) -> bool:
        """Says whether both specs are of the same source."""
        return isinstance(other, _SourceSpec) and other._source is self._source

    def _without_tensor_names(self) -> _SourceSpec:
        return self

    def _serialize(self) -> tuple[Any, ...]:
        return (id(self._source),)

    def _to_components(self, value: Any) -> list[Any]:
        # Modules and tf_keras' layers also expand their attributes, and would
        # list a table among their variables.
        if not isinstance(value, StandIn) and not private.asked_by_watch():
            return []
        source = value.source if isinstance(value, StandIn) else value
        return [getattr(source, "watched", source)]

    def _from_components(self, components: Sequence[Any]) -> Any:
        del components
        return self._source


class _KeyedGradient:
    """Implements TensorFlow's CompositeTensorGradient for a `TableSource`."""

    def get_gradient_components(self, value: Any) -> Any:
        """Returns the resource handle whose gradient the tape computes."""
        return value.handle

    def replace_gradient_components(
        self, value: Any, component_grads: Any
    ) -> Any:
        """Gives slices a shape that says why they have no dense form."""
        return keyed_slices(component_grads, value.dim)


class _SlicesGradient:
    """Implements TensorFlow's CompositeTensorGradient for a `StandIn`."""

    def get_gradient_components(self, value: StandIn) -> Any:
        """Returns the resource handle whose gradient the tape computes."""
        return value.source.handle

    def replace_gradient_components(
        self, value: StandIn, component_grads: Any
    ) -> Any:
        """Returns the gradient as slices that can be converted to a tensor."""
        found = component_grads
        if not isinstance(found, tf.IndexedSlices):
            return found
        return PackableSlices(found.values, found.indices, found.dense_shape)


class PackableSlices(tf.IndexedSlices):
    """The gradient of a table, convertible to a packed tensor and back."""

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        del dtype, name
        return ops.packed_slices(self)


def no_slices(source: Any) -> tf.IndexedSlices:
    """Returns a gradient of zeros: slices without rows."""
    return tf.IndexedSlices(
        tf.zeros([0, source.dim]),
        tf.zeros([0], source.key_dtype),
        tf.constant([0, source.dim], tf.int64),
    )


@tf.experimental.dispatch_for_api(
    tf.compat.v1.zeros_like, {"tensor": GradientSource}
)
def _zeros_like_source(
    tensor: Any, dtype: Any = None, name: Any = None, optimize: Any = True
) -> Any:
    """Returns the zeros of unconnected_gradients=ZERO to tapes."""
    del dtype, name, optimize
    return tensor.zero_gradient()


@tf.experimental.dispatch_for_api(tf.cast, {"x": WatchedTable})
def _cast_watched(x: Any, dtype: Any, name: Any = None) -> Any:
    """Returns what has the dtype already, as a cast of a tf.Variable does."""
    del name
    if tf.as_dtype(dtype) != x.dtype:
        raise x.no_tensor()
    return x
