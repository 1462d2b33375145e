"""The protocol by which TensorFlow differentiates for a variable.

A tape wants a tf.Variable to watch. `tf.custom_gradient`, and with it
`tf.recompute_grad` and `keras.RematScope`, dereference `ref()`, make a tensor of
what they get, and record that the tensor's gradient is what the function gives.
On the way they make a dense tensor of each gradient, which the slices of a table
have no shape for. So they get a `StandIn`, whose gradients turn into tensors that
hold keys and rows, and back into slices before they reach the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.ops import private

__all__ = [
    "GradientSource",
    "StandIn",
    "TableSource",
    "WatchedTable",
    "no_slices",
]


@private.register_dispatchable
class GradientSource:
    """Base of what tapes differentiate for: tables, lookups and shadows.

    Attributes:
      name: its name in errors.
      dim: width of a row.
      key_dtype: the dtype of the keys.
      handle: the resource that gradients go to.
    """

    name: Any
    dim: Any
    key_dtype: Any
    handle: Any

    def ref(self) -> Any:
        """A hashable reference, whose `deref()` is this object."""
        return _Reference(self)

    def zero_gradient(self) -> Any:
        """The gradient that a tape gives with unconnected_gradients=ZERO."""
        return no_slices(self)


class TableSource(GradientSource):
    """A source that is no tf.Variable; tapes watch a `WatchedTable` for it."""

    _watched: WatchedTable | None = None

    @property
    def watched(self) -> WatchedTable:
        """The tf.Variable that a tape watches, always the same."""
        if self._watched is None:
            self._watched = WatchedTable(self)
        return self._watched

    @property
    def _type_spec(self) -> _SourceSpec:
        """The spec by which `tape.watch` takes a source apart."""
        return _SourceSpec(self)

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        raise errors.DtypeError(
            f"The table '{self.name}' is no tensor: its rows are found by key. "
            "Look rows up, by `embedding_lookup` or `lookup`, and use these."
        )


# `tape.watch` takes tensors, tf.Variables and composite tensors. To be one in
# name is enough, and brings nothing else along.
tf.__internal__.CompositeTensor.register(TableSource)


class WatchedTable(tf.Variable):
    """Stands for a table in `tape.watched_variables()`.

    Gradients for it are the table's, and an optimizer moves the table's rows.

    Args:
      params: the table.
    """

    _should_act_as_resource_variable = True
    _in_graph_mode = False
    is_tensor_like = True

    @classmethod
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """Keeps TensorFlow from reading our argument as tf.Variable's own."""

    def __init__(self, params: Any) -> None:
        self.params = params

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
        """The shape of no rows."""
        return tf.TensorShape([0, self.params.dim])

    @property
    def trainable(self) -> bool:
        """False: `tf.Module.trainable_variables` does not list tables by this.

        Modules expand what is composite, as tapes do, and would list the table
        beside the shadows that they have, whose gradients are a part of its own.
        """
        return False

    @property
    def handle(self) -> tf.Tensor:
        """The resource that gradients go to."""
        return self.params.handle

    _handle = handle

    def ref(self) -> Any:
        """A hashable reference; `tf.custom_gradient` gets the table's."""
        return _Reference(self.params)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"<WatchedTable of {self.params!r}>"


class StandIn(tf.__internal__.CompositeTensor):
    """Stands for a source in `tf.custom_gradient` and its gradients.

    A tape differentiates for it as for the source, and an optimizer takes it for
    the source.

    Args:
      source: a table, or what stands for lookups in one.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        # TensorFlow must not take it for a variable: it asks variables for their
        # handles, and would get slices from a tape that nobody packs.
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
        """No rows, whose gradient goes to the source."""
        del dtype, name
        return ops.stand_in_rows(
            self.source, self.source.key_dtype, self.source.dim
        )

    def __repr__(self) -> str:
        return repr(self.source)


class _Reference(private.Reference):
    """A variable's reference, which gives tf.custom_gradient a `StandIn`."""

    __slots__ = ()

    def deref(self) -> Any:
        """The object; to tf.custom_gradient what stands in for it."""
        source = self._wrapped
        return StandIn(source) if private.asked_by_custom_gradient() else source


class _SourceSpec(tf.TypeSpec):
    """Says what of a source a tape watches."""

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
        """Itself, where all are of the same source."""
        return self if all(self.is_subtype_of(one) for one in others) else None

    def is_subtype_of(self, other: Any) -> bool:
        """Whether both are of the same source."""
        return isinstance(other, _SourceSpec) and other._source is self._source

    def _without_tensor_names(self) -> _SourceSpec:
        return self

    def _serialize(self) -> tuple[Any, ...]:
        return (id(self._source),)

    def _to_components(self, value: Any) -> list[Any]:
        # Modules and tf_keras' layers take apart their attributes as well, and
        # would list a table among their variables.
        if not isinstance(value, StandIn) and not private.asked_by_watch():
            return []
        source = value.source if isinstance(value, StandIn) else value
        return [getattr(source, "watched", source)]

    def _from_components(self, components: Sequence[Any]) -> Any:
        del components
        return self._source


class _SlicesGradient:
    """How a tape differentiates for a `StandIn`: CompositeTensorGradient."""

    def get_gradient_components(self, value: StandIn) -> Any:
        """The resource that gradients go to."""
        return value.source.handle

    def replace_gradient_components(
        self, value: StandIn, component_grads: Any
    ) -> Any:
        """The gradient as slices that turn into a tensor where one is wanted."""
        found = component_grads
        if not isinstance(found, tf.IndexedSlices):
            return found
        return PackableSlices(found.values, found.indices, found.dense_shape)


class PackableSlices(tf.IndexedSlices):
    """The gradient of a table that may become a tensor and slices again."""

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        del dtype, name
        return ops.packed_slices(self)


def no_slices(source: Any) -> tf.IndexedSlices:
    """A gradient of zeros: slices of no row."""
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
    """Gives tapes the zeros of unconnected_gradients=ZERO."""
    del dtype, name, optimize
    return tensor.zero_gradient()
