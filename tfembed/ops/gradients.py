"""Gradients with respect to tables.

A tape computes gradients with respect to resource handles. `GroupedLookup`
takes the handles themselves; rows of other lookups pass through
`trainable_rows`, which takes the handle that gets their gradient.

tf.custom_gradient converts each gradient to a dense tensor, but slices by key
have no dense shape. `packed_slices` packs them into one dense tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops import library, private
from tfembed.ops.ids import as_keys, id_dtypes
from tfembed.ops.keyed_shape import keyed_shape

_SECOND_ORDER = (
    "tfembed's lookups have no second-order gradients: what `tape.gradient` "
    "gave for a table cannot be differentiated again. Take the gradient of the "
    "rows that were looked up (`tape.watch(rows)`); that can be."
)
_FORWARD = (
    "tfembed's lookups have no derivative in forward mode, which "
    "tf.autodiff.ForwardAccumulator asks for. Use tf.GradientTape; or watch the "
    "rows: look them up first, and give these to the accumulator as primals."
)
_LOOPED = (
    "Lookups inside of a loop (tf.while_loop, a `for` over tensors, tf.map_fn, "
    "tf.scan, tf.vectorized_map, the cell of an RNN) have no gradient. Look all "
    "ids up before the loop, in one call, and take rows of the result inside; "
    "or give keras.layers.RNN unroll=True."
)
_VECTORIZED = (
    "A table has no jacobian: TensorFlow makes it of dense gradients. Look rows "
    "up, and take the jacobian of these: `tape.jacobian(target, rows)`."
)
_BRANCHED = (
    "Lookups inside of a branch of tf.cond or tf.switch_case have no gradient for "
    "a tape that is around it where their keys are strings, or the control flow "
    "is that of TensorFlow 1. Open the tape inside of the branch, or look all "
    "ids up before it, in one call."
)

_SHADOW_BRANCHED = (
    "A shadow is looked up in one branch of a tf.cond or tf.switch_case and not in "
    "the others: TensorFlow cannot make the zeros of these, and the tape is around "
    "them. Look ids up in each of them (`ids[:0]` where there are none), or open "
    "the tape inside of the branch, or look all ids up before it."
)

_PART_BITS = 16  # The bits of a key per float32: exact, and never a NaN.
_MARK = 29533.0  # Another number means that the gradient was changed.


def trainable_rows(
    anchor: Any, keys: tf.Tensor, rows: tf.Tensor, *, is_apart: bool = False
) -> tf.Tensor:
    """Returns `rows` unchanged, with a gradient for `anchor`.

    Args:
      anchor: a resource handle, or an object with `handle` and `trainable`,
        hashable and weakly referenceable. Tapes watch such an object by
        themselves, and `tape.gradient` and `optimizer.apply_gradients` take it
        as a source.
        If it has a float32 `read_variable` with the same handle, that is read,
        so that freezing converts it to a constant.
      keys: int64, int32 or string [...].
      rows: float32 [..., dim], the rows of `keys`.
      is_apart: whether another process, or another device, has the table. Then a
        token of it takes the place of the handle: an op that took that would run
        there, and the rows would go there and back.

    Returns:
      `rows`. Its gradient with respect to `anchor` is
      tf.IndexedSlices(values=[n, dim], indices=keys, flattened): repeated keys
      stay repeated, and several calls in one step are concatenated. `rows` that
      passed through this function before pass the same gradient to that anchor.
    """
    if hasattr(anchor, "trainable"):
        private.table_accessed(anchor)
    handle = getattr(anchor, "handle", anchor)
    check_forward_mode([handle])
    module = library.load()
    if getattr(keys, "dtype", None) != tf.int64:
        keys = as_keys(keys, "keys")
    source = getattr(anchor, "read_variable", None)
    if source is not None:
        return module.tfembed_trainable_rows_of(source.read_value(), keys, rows)
    if is_apart:
        token = module.tfembed_table_token(handle)
        return module.tfembed_trainable_rows_of(token, keys, rows)
    return module.tfembed_trainable_rows(handle, keys, rows)


def check_forward_mode(handles: Sequence[tf.Tensor]) -> None:
    """Raises UnsupportedError if a ForwardAccumulator watches a table.

    TensorFlow computes forward-mode derivatives by differentiating gradients,
    and fails on slices with unclear errors.
    """
    if private.have_tangents(handles):
        raise errors.UnsupportedError(_FORWARD)


def stand_in_rows(anchor: Any, key_dtype: tf.DType, dim: int) -> tf.Tensor:
    """Makes a tensor without elements, whose gradient is for `anchor`.

    The gradient is slices by key, or their `packed_slices`.

    Args:
      anchor: an object that acts as a variable, as for `trainable_rows`.
      key_dtype: the dtype of its keys.
      dim: width of its rows.
    """
    # No lookup has keys of this shape; the gradient recognizes them.
    keys = tf.zeros(
        [0, 0, dim], tf.string if key_dtype == tf.string else tf.int64
    )
    # The gradient takes its static shape, so both are unknown.
    rows = tf.compat.v1.placeholder_with_default(
        tf.zeros([0, 0, dim, 1]), tf.TensorShape(None)
    )
    return trainable_rows(anchor, keys, rows)


def record_access(anchor: Any) -> None:
    """Records the use of `anchor` for tapes and the function being traced.

    So a saved function keeps `anchor` even if no gradient goes to it.

    Args:
      anchor: an object that acts as a variable, as for `trainable_rows`.
    """
    private.table_accessed(anchor)


def tape_records() -> bool:
    """Says whether a tape may differentiate the ops that are made now.

    A function that is traced without an open tape can be differentiated later,
    by a tape around its calls.
    """
    return private.tape_records()


def packed_slices(slices: tf.IndexedSlices) -> tf.Tensor:
    """Packs slices into one float32 tensor [n, ...]: a mark, rows and keys."""
    keys = tf.reshape(slices.indices, [-1])
    if keys.dtype == tf.string:
        parts = _letters(keys)
    else:
        whole = tf.bitcast(tf.cast(keys, tf.int64), tf.uint16)
        parts = tf.cast(whole, tf.float32)
    mark = tf.fill([tf.size(keys), 1], _MARK)
    rows = tf.cast(slices.values, tf.float32)
    return tf.concat([mark, rows, parts], 1)


def unpacked_slices(
    packed: Any, key_dtype: tf.DType, dim: int
) -> tf.IndexedSlices:
    """Unpacks the slices of `packed_slices`; returns slices unchanged.

    Raises:
      tf.errors.InvalidArgumentError: when it runs: the tensor was changed.
    """
    if isinstance(packed, tf.IndexedSlices):
        return packed
    number = tf.shape(packed)[0]
    checks = [
        tf.debugging.assert_equal(
            packed[:, :1],
            _MARK,
            "A table's gradient was changed as a tensor, inside of "
            "tf.custom_gradient. Change its `values`, and return "
            "tf.IndexedSlices(values, indices).",
        )
    ]
    with tf.control_dependencies([one for one in checks if one is not None]):
        rows = tf.reshape(packed[:, 1 : dim + 1], [number, dim])
        parts = packed[:, dim + 1 :]
    if key_dtype == tf.string:
        return tf.IndexedSlices(rows, _words(parts))
    parts = tf.reshape(parts, [number, 64 // _PART_BITS])
    keys = tf.bitcast(tf.cast(parts, tf.uint16), tf.int64)
    return tf.IndexedSlices(rows, keys)


def _letters(keys: tf.Tensor) -> tf.Tensor:
    """Converts strings [n] to float32 [n, 1 + longest]: lengths, bytes."""
    lengths = tf.strings.length(keys)
    longest = tf.reduce_max(tf.concat([lengths, [1]], 0))
    letters = tf.io.decode_raw(keys, tf.uint8, fixed_length=longest)
    parts = tf.concat([lengths[:, None], tf.cast(letters, tf.int32)], 1)
    return tf.cast(parts, tf.float32)


def _words(parts: tf.Tensor) -> tf.Tensor:
    """Converts the numbers of `_letters` back to strings."""
    parts = tf.cast(parts, tf.int32)
    alphabet = tf.constant([bytes([i]) for i in range(256)])
    words = tf.strings.reduce_join(tf.gather(alphabet, parts[:, 1:]), 1)
    lengths = tf.reduce_sum(parts[:, :1], 1)
    return tf.strings.substr(words, tf.zeros_like(lengths), lengths)


def with_finite_rows(sums: tf.Tensor) -> tf.Tensor:
    """Replaces rows of `sums` [n, dim] that have a NaN or an infinity by zeros.

    The norm by which other rows are scaled leaves these rows out, whether they
    are skipped, refused or applied.
    """
    is_finite = tf.reduce_all(tf.math.is_finite(sums), axis=-1, keepdims=True)
    return tf.where(is_finite, sums, tf.zeros_like(sums))


def refuse_nonfinite(sums: tf.Tensor, table: str) -> list[tf.Operation]:
    """Refuses sums [n, dim] of a table's gradients with a NaN or an infinity.

    Returns:
      The operations that whatever changes rows must wait for.

    Raises:
      tf.errors.InvalidArgumentError: at once in eager mode, else when the
        operations run.
    """
    check = tf.debugging.assert_equal(
        tf.reduce_all(tf.math.is_finite(sums)),
        True,
        f"The summed gradient of a key of table '{table}' is not finite, and "
        "nonfinite='refuse'; nothing was changed",
    )
    return [] if check is None else [check]


def shrink_factor(gradients: Sequence[tf.Tensor], limit: float) -> tf.Tensor:
    """Returns limit / norm if the norm of all gradients is above it, else 1.

    Args:
      gradients: at least one gradient, of any shapes.
      limit: the largest Euclidean norm.
    """
    norm = tf.linalg.global_norm(
        [tf.cast(gradient, tf.float32) for gradient in gradients]
    )
    return tf.where(norm > limit, limit / norm, tf.ones_like(norm))


@tf.RegisterGradient("Tfembed>TrainableRows")
@tf.RegisterGradient("Tfembed>TrainableRowsOf")
def _trainable_rows_gradient(op: Any, gradient: tf.Tensor) -> list[Any]:
    # An op that an eager tape recorded is not an operation of a graph.
    is_of_graph = isinstance(op, tf.Operation)
    if is_of_graph and _is_looped(op):
        raise errors.UnsupportedError(_LOOPED)
    if private.is_vectorized():
        raise errors.UnsupportedError(_VECTORIZED)
    if is_of_graph:
        _check_branch(op, [op.inputs[0]], [op.inputs[1]])
        _check_calls(op, _check_called_rows)
    is_token = op.inputs[0].shape.rank == 0
    if op.type.endswith("RowsOf") and not is_token:
        _check_shadow()
        _check_calls(op, _check_shadow)
    shape = op.inputs[1].shape
    if shape.rank == 3 and shape.as_list()[:2] == [0, 0]:  # `stand_in_rows`.
        slices = unpacked_slices(gradient, op.inputs[1].dtype, shape[2])
        return [slices, None, None]
    keys = tf.reshape(op.inputs[1], [-1])
    dim = tf.shape(gradient)[-1]
    values = tf.reshape(gradient, tf.stack([tf.size(keys), dim]))
    values = tf.ensure_shape(values, [None, gradient.shape[-1]])
    values = tf.raw_ops.PreventGradient(input=values, message=_SECOND_ORDER)
    # A variable that represents a lookup need not have its shape.
    anchor = op.inputs[0]
    shape = None
    if not _has_vocabulary(anchor):
        shape = _dense_shape(op, anchor, values)
    return [tf.IndexedSlices(values, keys, shape), None, gradient]


@tf.RegisterGradient("Tfembed>TableToken")
def _table_token_gradient(
    op: Any, gradient: tf.IndexedSlices
) -> tf.IndexedSlices:
    values, keys = gradient.values, gradient.indices
    shape = _dense_shape(op, op.inputs[0], values)
    return tf.IndexedSlices(values, keys, shape)


# Rows have gradients only by `trainable_rows`.
tf.no_gradient("Tfembed>TableLookup")
# It is read-only for its anchor, so that lookups need not wait for one another.
private.register_read_only("Tfembed>TrainableRows")
private.register_read_only("Tfembed>TableToken")


@tf.RegisterGradient("Tfembed>GroupedLookup")
def _grouped_lookup_gradient(op: Any, *gradients: tf.Tensor) -> list[Any]:
    attrs = (
        "dims",
        "kinds",
        "table_ids",
        "combiners",
        "max_sequence_lengths",
        "validate",
        "feature_names",
    )
    num_tables, num_features = op.get_attr("T"), op.get_attr("F")
    inputs = list(op.inputs)
    tables, rest = inputs[:num_tables], inputs[num_tables:]
    ids, rows, weights = (
        rest[i * num_features : (i + 1) * num_features] for i in range(3)
    )
    if not all(_has_vocabulary(t) for t in tables):
        if _is_looped(op):
            raise errors.UnsupportedError(_LOOPED)
        if private.is_vectorized():
            raise errors.UnsupportedError(_VECTORIZED)
        _check_calls(op, _check_called_rows)
    _check_branch(op, tables, ids)
    table_ids = op.get_attr("table_ids")
    result = library.load().tfembed_grouped_lookup_gradient(
        [
            t if _has_vocabulary(t) else private.outside_function(t)
            for t in tables
        ],
        ids,
        rows,
        weights,
        *rest[-2:],  # batch_sizes, columns
        gradients,
        Tdistinct=id_dtypes(num_tables, table_ids, ids),
        **{name: op.get_attr(name) for name in attrs},
    )
    slices = [
        tf.IndexedSlices(sums, ids, _dense_shape(op, table, sums))
        for table, ids, sums in zip(
            tables, result.distinct_ids, result.sums, strict=True
        )
    ]
    return slices + [None] * (len(inputs) - num_tables)


def _is_looped(op: Any) -> bool:
    """Says whether a loop repeats `op`.

    TensorFlow accumulates the gradients of a loop's iterations in a tensor of
    the variable's shape, which a table without a fixed vocabulary does not
    have.
    """
    # An op that an eager tape recorded is not an operation of a graph.
    return isinstance(op, tf.Operation) and (
        private.is_in_loop(op) or private.control_flow_left(op.graph) == "loop"
    )


def _leaves_branch(op: Any) -> bool:
    return (
        isinstance(op, tf.Operation)
        and private.control_flow_left(op.graph) == "branch"
    )


def _leaves_function(op: Any) -> bool:
    return isinstance(op, tf.Operation) and private.gradients_are_apart(
        op.graph
    )


def _check_branch(
    op: Any, tables: Sequence[tf.Tensor], ids: Sequence[tf.Tensor]
) -> None:
    """Refuses a gradient that TensorFlow cannot return from a branch.

    Branches require integer indices of slices; branches of TensorFlow 1 also
    read the shape of the handle's resource.
    """
    has_strings = any(tensor.dtype == tf.string for tensor in ids)
    is_old = isinstance(op, tf.Operation) and private.leaves_old_branch(op)
    if (has_strings and _leaves_branch(op)) or (
        is_old and not all(_has_vocabulary(table) for table in tables)
    ):
        raise errors.UnsupportedError(_BRANCHED)
    if has_strings:
        _check_calls(op, _check_called_strings)


def _check_calls(op: Any, check: Callable[[], None]) -> None:
    """Adds a check to the calls of a gradient that is a separate function.

    TensorFlow makes the gradient of a function once, and reuses it when a
    branch or loop calls that function.
    """
    if _leaves_function(op):
        private.at_each_call(check)


def _check_called_rows() -> None:
    if private.differentiated_around() == "loop":
        raise errors.UnsupportedError(_LOOPED)
    if private.is_vectorized():
        raise errors.UnsupportedError(_VECTORIZED)


def _check_called_strings() -> None:
    if private.differentiated_around() == "branch":
        raise errors.UnsupportedError(_BRANCHED)


def _check_shadow() -> None:
    if private.is_in_some_branches():
        raise errors.UnsupportedError(_SHADOW_BRANCHED)


def _has_vocabulary(table: tf.Tensor) -> bool:
    """Says whether a table has a vocabulary, by the shape of its handle."""
    shape = private.handle_shape(table)
    return shape.is_fully_defined() and shape[0] > 0


def _dense_shape(op: Any, table: tf.Tensor, values: tf.Tensor) -> Any:
    """Returns the dense shape of the slices of `table`: that of a variable.

    TensorFlow's own gathers set it too: if a tape is around a tf.cond, the
    gradients of both branches must have one structure, zeros included. So
    slices of hash tables have a tensor there if they leave a branch or a
    function, which a branch may call, and only then. All others have a
    `KeyedShape`, which says why they cannot become dense.
    """
    shape = private.handle_shape(table)
    if not shape.is_fully_defined():
        return keyed_shape(values.shape[-1])
    size = shape.as_list()
    if size[0] == 0:
        if not (_leaves_branch(op) or _leaves_function(op)):
            return keyed_shape(size[1])
        size[0] = -1  # Not 0: a dense tensor would lose rows without an error.
    fits = max(size) <= tf.int32.max
    return tf.constant(size, tf.int32 if fits else tf.int64)


@tf.RegisterGradient("Tfembed>GroupedLookupGradient")
def _no_second_order(op: Any, *gradients: tf.Tensor) -> list[Any]:
    raise LookupError(_SECOND_ORDER)
