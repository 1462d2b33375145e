"""What TensorFlow asks of a variable in order to differentiate for it.

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

from tfembed import errors
from tfembed.ops import private

__all__ = [
    "GradientSource",
    "StandIn",
    "TableSource",
    "WatchedTable",
    "no_slices",
]

_PART_BITS = 16  # Of a key, in one float32: exact, and never a NaN.
_MARK = 29533.0  # Another number says that a gradient was changed.


@private.register_dispatchable
class GradientSource:
    """Base of what tapes differentiate for: tables, lookups and shadows.

    Attributes:
      name: what errors call it.
      dim: width of a row.
      key_dtype: of the keys.
      handle: the resource that gradients go to.
    """

    name: Any
    dim: Any
    key_dtype: Any
    handle: Any

    def ref(self) -> Any:
        """A hashable reference, whose `deref()` is this object."""
        return _Reference(self)


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
        """What `tape.watch` takes a source apart by."""
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
        """That of no rows."""
        return tf.TensorShape([0, self.params.dim])

    @property
    def trainable(self) -> bool:
        """Whether the table is."""
        return bool(self.params.trainable)

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
    """What `tf.custom_gradient` gets for a source, and hands to gradients.

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
        return _packable(self.source)

    def __repr__(self) -> str:
        return f"<StandIn of {self.source!r}>"


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

    def _serialize(self) -> tuple[Any, ...]:
        return (id(self._source),)

    def _to_components(self, value: Any) -> list[Any]:
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
        return _packed(self)


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
) -> tf.IndexedSlices:
    """What a tape gives with unconnected_gradients=ZERO."""
    del dtype, name, optimize
    return no_slices(tensor)


def _packable(source: Any) -> tf.Tensor:
    """A tensor of no rows, float32; slices go to `source` by its gradient."""

    @tf.custom_gradient
    def stand_in(handle: tf.Tensor) -> Any:
        # Of no known shape: its gradient would be given that.
        rows = tf.compat.v1.placeholder_with_default(
            tf.zeros([0, 0]), [None, None]
        )
        return rows, lambda packed: _unpacked(packed, source)

    private.variable_accessed(source)  # As by any read: tapes watch it.
    return stand_in(source.handle)


def _packed(slices: tf.IndexedSlices) -> tf.Tensor:
    """Slices as one float32 tensor [n, ...]: a mark, the rows, the keys."""
    keys = tf.reshape(slices.indices, [-1])
    if keys.dtype == tf.string:
        parts = _letters(keys)
    else:
        whole = tf.bitcast(tf.cast(keys, tf.int64), tf.uint16)
        parts = tf.cast(whole, tf.float32)
    mark = tf.fill([tf.size(keys), 1], _MARK)
    rows = tf.cast(slices.values, tf.float32)
    return tf.concat([mark, rows, parts], 1)


def _unpacked(packed: Any, source: Any) -> Any:
    """The slices that `_packed` had; what are slices, as they are."""
    if packed is None or isinstance(packed, tf.IndexedSlices):
        return packed
    number, dim = tf.shape(packed)[0], source.dim
    checks = [
        tf.debugging.assert_equal(
            packed[:, :1],
            _MARK,
            f"The gradient of '{source.name}' was changed as a tensor, inside "
            "of tf.custom_gradient. Change its `values`, and return "
            "tf.IndexedSlices(values, indices).",
        )
    ]
    with tf.control_dependencies([one for one in checks if one is not None]):
        rows = tf.reshape(packed[:, 1 : dim + 1], [number, dim])
        parts = packed[:, dim + 1 :]
    if source.key_dtype == tf.string:
        return tf.IndexedSlices(rows, _words(parts))
    parts = tf.reshape(parts, [number, 64 // _PART_BITS])
    keys = tf.bitcast(tf.cast(parts, tf.uint16), tf.int64)
    return tf.IndexedSlices(rows, keys)


def _letters(keys: tf.Tensor) -> tf.Tensor:
    """Strings [n] as float32 [n, 1 + the longest's length]: lengths, bytes."""
    lengths = tf.strings.length(keys)
    longest = tf.reduce_max(tf.concat([lengths, [1]], 0))
    letters = tf.io.decode_raw(keys, tf.uint8, fixed_length=longest)
    parts = tf.concat([lengths[:, None], tf.cast(letters, tf.int32)], 1)
    return tf.cast(parts, tf.float32)


def _words(parts: tf.Tensor) -> tf.Tensor:
    """The strings that `_letters` took apart."""
    parts = tf.cast(parts, tf.int32)
    alphabet = tf.constant([bytes([i]) for i in range(256)])
    words = tf.strings.reduce_join(tf.gather(alphabet, parts[:, 1:]), 1)
    lengths = tf.reduce_sum(parts[:, :1], 1)
    return tf.strings.substr(words, tf.zeros_like(lengths), lengths)
