"""`TrainableWrapper`: the rows of a lookup as a source of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.lookups.gradient_source import GradientSource
from tfembed.dynamic_embedding.tensorflow1.graph_variables import (
    graph_rows,
    has_variables,
    keeps_tensors,
    note_lookup_variable,
)
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.arguments import EmbeddingWeights
from tfembed.ops import private, record_access, tape_records, trainable_rows
from tfembed.ops.model_calls import note_lookup
from tfembed.tables.sharded_table import not_in_savers

__all__ = [
    "TrainableWrapper",
    "buffer",
    "check_max_norm",
    "clip_rows",
    "look_up",
    "trainable_wrapper_filter",
    "watch",
]


def watch(
    rows: tf.Tensor, ids: tf.Tensor, params: Any, wrapper: Any = None
) -> tf.Tensor:
    """Returns `rows` with a gradient for `params` and `wrapper`, by key.

    Only those of the two that are trainable get the gradient. It is float32 for
    all float dtypes of rows; rows of integers have none. Keys that are strings
    stay strings up to the update.

    Args:
      rows: ids.shape + [dim], the looked-up rows.
      ids: keys of any shape.
      params: the `Variable`.
      wrapper: the `TrainableWrapper` or `ShadowVariable` of the lookup.
    """
    if wrapper is None or wrapper.trainable:
        note_lookup(params)
    anchors = [
        a
        for a in (params, wrapper)
        if a is not None and a.trainable and not _is_of_replicas(a)
    ]
    if tf.executing_eagerly() and not tape_records():
        # Fast path: the ops below take a third of an eager lookup of few keys.
        # But functions that recompute later under a tape record variables now.
        for anchor in anchors:
            record_access(anchor)
        return rows
    dtype = rows.dtype
    if not anchors or not dtype.is_floating:
        return rows
    # The op takes float32, which would lose digits of float64.
    wide = dtype == tf.float64
    watched = tf.zeros_like(rows) if wide else rows
    watched = tf.cast(watched, tf.float32)
    is_apart = getattr(params, "params", params).table.home is None
    for anchor in anchors:
        watched = trainable_rows(anchor, ids, watched, is_apart=is_apart)
    watched = tf.cast(watched, dtype)
    return rows + watched if wide else watched


def _is_of_replicas(anchor: Any) -> bool:
    """Says whether each replica has a handle and this runs on no replica.

    So it is when Keras builds a model under a strategy; nothing is trained
    then.
    """
    return (
        isinstance(anchor, TrainableWrapper)
        and tf.distribute.in_cross_replica_context()
        and isinstance(anchor._buffer, tf.distribute.DistributedValues)
    )


def check_max_norm(max_norm: Any, params: Any) -> None:
    """Checks that `max_norm` is allowed for rows of `params`.

    Raises:
      tfembed.errors.DtypeError: rows that are not floats.
      tfembed.errors.ArgumentError: not a number above 0; tensors pass.
    """
    if max_norm is None:
        return
    if not params.value_dtype.is_floating:
        raise errors.DtypeError(
            f"`max_norm` limits rows of floats; got {max_norm!r} for "
            f"'{params.name}', whose rows are {params.value_dtype.name}. Leave "
            "it None."
        )
    if tf.is_tensor(max_norm):
        return
    number = checks.number(max_norm)
    if number is None or not number > 0:
        raise errors.ArgumentError(
            f"`max_norm` must be a number above 0, or None; got {max_norm!r}."
        )


def clip_rows(
    rows: tf.Tensor, max_norm: float | None, params: Any
) -> tf.Tensor:
    """Scales rows [..., dim] with a larger L2 norm down to `max_norm`.

    Raises:
      The errors of `check_max_norm`.
    """
    if max_norm is None:
        return rows
    check_max_norm(max_norm, params)
    return tf.clip_by_norm(rows, max_norm, axes=[-1])


_VALUE_KEY = "VARIABLE_VALUE"  # The name of a variable's tensor in savers.


def buffer(
    dtype: tf.DType, name: str, row_shape: Sequence[int] = ()
) -> tf.Variable:
    """Makes a variable of unknown shape, initially empty, and empty when saved.

    A SavedModel must not contain the rows of the last lookup, which belong to
    this process.
    """
    empty = tf.zeros([0, *row_shape], dtype)
    variable = private.unnamed_variable(
        name, initial_value=empty, trainable=False, shape=tf.TensorShape(None)
    )
    # No checkpoint saves it, so this runs for SavedModels only.
    variable._serialize_to_tensors = lambda: {_VALUE_KEY: tf.identity(empty)}
    return variable


class TrainableWrapper(GradientSource, tf.Variable):
    """The source of gradients of lookups with one name: see `return_trainable`.

    `tape.gradient(loss, wrapper)` is the IndexedSlices by key of the lookups
    that returned it; `tape.gradient(loss, variable)` is that of all lookups.
    Give an optimizer one of the two. `tf.Module.trainable_variables` lists the
    wrapper. It works in eager mode and in graphs of TensorFlow 1.

    Its value is a copy of rows, of any shape. Checkpoints save the table, not
    this copy. Code that treats the wrapper as a dense variable is refused: each
    property that raises is the first one that such code reads, and the error
    says what to do instead.

    In eager mode a variable's lookups of one name return the same wrapper, as
    long as that is referenced; its ids and value are those of the last lookup.
    After an optimizer's step the value has the updated rows.

    In a graph each lookup has a new wrapper, which
    `tf.compat.v1.trainable_variables()` lists: `tf.gradients(loss, wrapper)` is
    the gradient of that lookup. Its value is the rows that the lookup reads,
    and its name is that of its handle.

    Args:
      params: the `Variable`.
      ids: keys of any shape.
      max_norm: the limit of the rows' L2 norm, or None.
      name: the lookup's name.
      trainable: whether its rows have gradients, if `params` is trainable.
      model_mode: accepted for TFRA's sake; see `ModelMode`.

    Attributes:
      params: the `Variable` that has the rows.
      max_norm: the limit.
      ids: the looked-up ids.
      exists: bool, ids.shape: whether the table held each id; only for `bp_v2`
        variables.

    Raises:
      tfembed.errors.UnsupportedError: (also NotImplementedError) inside of a
        tf.function, or of a branch or loop of a graph.
      tfembed.errors.ArgumentError: a `max_norm` that is not a number above 0.
      tfembed.errors.DtypeError: a `max_norm` for rows that are not floats.
    """

    # Gradient tapes use its handle and read its dtype.
    _should_act_as_resource_variable = True
    is_tensor_like = True

    @classmethod
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """Bypasses TensorFlow's handling of tf.Variable's own arguments."""

    def __init__(
        self,
        params: Any,
        ids: Any,
        max_norm: float | None = None,
        *,
        name: str = "TrainableWrapper",
        trainable: bool = True,
        model_mode: str | None = None,
    ) -> None:
        del model_mode
        rows_of_graph = graph_rows(params, ids, name)
        if rows_of_graph is None and not tf.executing_eagerly():
            raise errors.UnsupportedError(
                f"{type(self).__name__}s are made in eager mode only, and in "
                "graphs of TensorFlow 1 outside of their branches and loops. "
                "Inside a tf.function differentiate by the Variable itself, or "
                "look up through a ShadowVariable that was made outside."
            )
        check_max_norm(max_norm, params)
        self.params = params
        self.max_norm = max_norm
        self._trainable = bool(trainable) and params.trainable
        # As in TensorFlow's variables: True in a graph of TensorFlow 1.
        self._in_graph_mode = rows_of_graph is not None
        self._buffer: Any = rows_of_graph
        if rows_of_graph is None:
            self.ids, self._name = ids, name
            self._buffer = buffer(params.value_dtype, name, [params.dim])
        else:
            self.ids, self._name = rows_of_graph.ids, rows_of_graph.handle.name
        self.exists: Any = None
        self._fetched: tf.Tensor | None = None
        # The tensor that sessions fetch.
        self._element: tf.Tensor | None = None
        self._is_behind = False  # True after a step updated the rows.
        self._tracked_slots: list[TrainableWrapper] = []
        private.track(self, "params", params)
        params.remember_trainable(self, name)
        note_lookup_variable(self)

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
        """The lookup's shape in a graph; unknown in eager mode."""
        return self._buffer.shape

    @property
    def device(self) -> str:
        """The device of the value."""
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
        """Whether this wrapper and the variable are trainable."""
        return self._trainable

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle that lookups pass their gradients to."""
        return self._buffer.handle

    @property
    def read_variable(self) -> tf.Variable | None:
        """The variable that lookups read, so that their gradients go to it.

        None in a graph of TensorFlow 1, and for rows that are not float32.
        """
        is_read = not self._in_graph_mode and self.dtype == tf.float32
        return self._buffer if is_read else None

    def read_value(self, do_prefetch: bool = True) -> tf.Tensor:
        """Returns the rows, ids.shape + [dim].

        Args:
          do_prefetch: whether to look the rows up in the table, differentiable,
            and in eager mode store them as the value; if False, the stored
            value is returned, without a gradient.
        """
        return self._read(self._keys()) if do_prefetch else self.value()

    def prefetch_values(self, update: bool = False) -> tf.Tensor:
        """Returns the rows of `ids`, no gradient; `update` looks up again."""
        return self.transform(self._fetch(self._keys(), update))

    def value(self) -> tf.Tensor:
        """Returns the value, no gradient; in a graph that of `read_value`."""
        if self._in_graph_mode:
            return self.read_value()
        self._catch_up()
        return tf.stop_gradient(self._buffer.value())

    def numpy(self) -> Any:
        """Returns the value as an array; eager mode only."""
        self._catch_up()
        return self._buffer.numpy()

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces the value; `update_op` writes it into the table."""
        self._is_behind = False
        return self._buffer.assign(value, *args, **kwargs)

    def update_op(self, v0: Any = None) -> Any:
        """Writes the value into the table; the restrict policy notes the keys.

        Args:
          v0: for a `bp_v2` variable, the rows before the value was changed;
            `Variable.accum` adds the difference.

        Raises:
          tfembed.errors.ArgumentError: a `bp_v2` variable without `v0`.
        """
        params, ids = self.params, self._keys()
        if params.bp_v2 and v0 is None:
            raise errors.ArgumentError(
                f"`update_op` of '{self.name}' needs `v0`, the rows from before "
                "the change, since its variable has bp_v2=True; got None."
            )
        if params.restrict_policy is not None:
            private.converted(params.restrict_policy.apply_update)(ids)
        if params.bp_v2:
            return params.accum(ids, v0, self.value(), self.exists)
        return params.upsert(ids, self.value())

    def size(self) -> tf.Tensor:
        """Returns the number of keys in the table."""
        return self.params.size()

    def transform(self, result: tf.Tensor) -> tf.Tensor:
        """Scales rows [..., dim] with a larger L2 norm down to `max_norm`."""
        return clip_rows(result, self.max_norm, self.params)

    def stand_for(
        self, ids: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor | None
    ) -> tf.Tensor:
        """Sets ids and value and returns `rows` with a gradient; ends a lookup.

        Args:
          ids: keys of any shape.
          rows: ids.shape + [dim], as the table has them.
          exists: bool, ids.shape; None unless the variable is `bp_v2`.
        """
        self.ids, self._fetched = ids, rows
        if self.params.bp_v2:
            self.exists = exists
        rows = self._keep(rows, ids)
        if self._in_graph_mode:
            self._element = rows
        return rows

    def note_step(self) -> None:
        """Marks the value as stale after an optimizer's step in eager mode."""
        self._fetched = None
        self._is_behind = True

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """Returns True: there is nothing to initialize."""
        return tf.constant(True, name=name)

    @property
    def initializer(self) -> tf.Operation | None:
        """An operation that does nothing; None in eager mode."""
        if not self._in_graph_mode:
            return None
        with self.handle.graph.as_default():
            return tf.no_op()

    @property
    def op(self) -> tf.Operation:
        """The operation of the handle, in a graph of TensorFlow 1."""
        return self.handle.op

    def to_proto(self, export_scope: str | None = None) -> None:
        """Returns None: a meta graph has only the lookup's operations."""
        del export_scope

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

    # Compared and hashed by identity, since sources of gradients are dict keys.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} '{self.name}' of '{self.params.name}'>"

    @property
    def initial_value(self) -> Any:
        """Raises UnsupportedError: there is no initial value."""
        raise errors.UnsupportedError(
            f"'{self.name}' has no initial value: it stands for rows of the "
            f"table '{self.params.name}', other ones for other ids. What copies "
            "or averages variables (tf.train.ExponentialMovingAverage) takes "
            "dense ones; list these."
        )

    @property
    def sparse_read(self) -> Any:
        """Raises AttributeError: read rows by key, with `embedding_lookup`."""
        raise AttributeError(f"'{self.name}' has no sparse_read.")

    @property
    def gather_nd(self) -> Any:
        """Raises AttributeError: read rows by key, with `embedding_lookup`."""
        raise AttributeError(f"'{self.name}' has no gather_nd.")

    @property
    def constraint(self) -> Any:
        """Refuses tf_keras' optimizers without slots, which read it."""
        raise errors.UnsupportedError(self._not_alone("Keras' optimizers"))

    @property
    def _unique_id(self) -> str:
        """Refuses tf_keras' other optimizers, which read it."""
        raise AttributeError(self._not_alone("Keras' optimizers"))

    def _ref(self) -> Any:
        """Refuses TensorFlow's own optimizers, which call it in graphs."""
        raise errors.UnsupportedError(
            self._not_alone("tf.compat.v1.train optimizers")
        )

    @property
    def _save_slice_info(self) -> Any:
        """Refuses Savers that are given the wrapper, which read it."""
        if not self._in_graph_mode:
            raise not_in_savers(
                f"'{self.name}', which stands for rows of the table "
                f"'{self.params.name}'"
            )
        raise errors.UnsupportedError(
            f"'{self.name}' stands for rows of the table '{self.params.name}'; "
            "they are saved with the table. Give a Saver the Variable itself, or "
            "no `var_list`."
        )

    def _not_alone(self, optimizers: str) -> str:
        return (
            f"'{self.name}' stands for rows of the table '{self.params.name}', "
            f"which {optimizers} do not train by themselves. Wrap the optimizer "
            "in a DynamicEmbeddingOptimizer, or give it the dense variables "
            "alone, as `var_list`."
        )

    @property
    def _handle(self) -> tf.Tensor:
        """The `handle`, under the private name in TensorFlow's variables."""
        return self.handle

    def _as_graph_element(self) -> tf.Tensor:
        """Returns the tensor that a session fetches, made once for all runs."""
        if self._element is None:
            self._element = self.value()
        return self._element

    def _keys(self) -> tf.Tensor:
        return arguments.id_tensor(self.ids, self.params)

    def _fetch(self, ids: tf.Tensor, update: bool = False) -> tf.Tensor:
        if not update and _is_of_here(self._fetched):
            return self._fetched
        rows, exists = _rows_of(self.params, ids)
        if self.params.bp_v2:
            self.exists = exists
        if keeps_tensors():
            self._fetched = rows
        return rows

    def _read(self, ids: tf.Tensor) -> tf.Tensor:
        return self._keep(self._fetch(ids), ids)

    def _keep(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Scales `rows`, adds their gradient; stores them in eager mode."""
        rows = self.transform(self._watch(rows, ids))
        if tf.executing_eagerly():
            self.assign(rows)
        return rows

    def _watch(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        # Its handle passes gradients on to the table's.
        if self._in_graph_mode:
            return watch(rows, ids, self)
        return watch(rows, ids, self.params, self)

    def _catch_up(self) -> None:
        """Reads the rows again if a step has updated them."""
        if self._is_behind and tf.executing_eagerly():
            rows = self.params.rows.read_rows(self._keys())
            self.assign(self.transform(rows))

    def _reset_ids(self, ids: Any) -> None:
        """Sets other ids for the wrapper and the slots that it tracks."""
        self._catch_up()
        self.ids = ids
        self._fetched = None
        for slot in self._tracked_slots:
            slot._reset_ids(ids)

    def _track_optimizer_slots(self, slots: Sequence[TrainableWrapper]) -> None:
        """Makes `slots` follow the wrapper's ids.

        Raises:
          tfembed.errors.DtypeError: a slot that is not a `TrainableWrapper`.
        """
        for slot in slots:
            if not isinstance(slot, TrainableWrapper):
                raise errors.DtypeError(
                    "Slots must be TrainableWrappers; got "
                    f"{type(slot).__name__}."
                )
        known = set(self._tracked_slots)
        self._tracked_slots += [slot for slot in slots if slot not in known]

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        return {}

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        # Functions may have captured the buffers.
        if save_type == "savedmodel":
            children.update(self._buffers())
        return children

    def _buffers(self) -> dict[str, tf.Variable]:
        """Returns the variables that lookups write, by name."""
        return {"rows": self._buffer}

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Marks this for a SavedModel as an object, not a variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1


def _is_of_here(rows: tf.Tensor | None) -> bool:
    """Says whether stored rows belong to the current graph or eager mode."""
    if rows is None or tf.executing_eagerly():
        return rows is not None and not tf.is_symbolic_tensor(rows)
    graph = tf.compat.v1.get_default_graph()
    return tf.is_symbolic_tensor(rows) and rows.graph is graph


def look_up(
    params: Any,
    ids: Any,
    name: str | None,
    max_norm: float | None,
    return_trainable: bool,
) -> Any:
    """Looks up in a `Variable`, for `embedding_lookup`."""
    name = name or "embedding_lookup"
    with tf.name_scope(name):
        check_max_norm(max_norm, params)
        ids = arguments.id_tensor(ids, params)
        is_in_graph = not private.orders_by_itself()
        if return_trainable or (is_in_graph and has_variables(params)):
            wrapper = _wrapper_of(params, ids, name, max_norm)
            rows = wrapper.stand_for(ids, *_rows_of(params, ids))
            return (rows, wrapper) if return_trainable else rows
        params.note_lookup(name)
        rows = params.rows.read_rows(ids)
        return clip_rows(watch(rows, ids, params), max_norm, params)


def _rows_of(params: Any, ids: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Returns rows and, for a `bp_v2` variable, which ids the table has."""
    if params.bp_v2:
        found: tuple[tf.Tensor, tf.Tensor] = params.rows.lookup(ids)
        return found
    return params.rows.read_rows(ids), None


def _wrapper_of(
    params: Any, ids: tf.Tensor, name: str, max_norm: float | None
) -> TrainableWrapper:
    """Returns the wrapper of a lookup: that of its name, or a new one."""
    found = params.get_trainable_by_name(name)
    # A shadow of that name is the user's.
    if type(found) is not TrainableWrapper or not tf.executing_eagerly():
        return TrainableWrapper(params, ids, max_norm, name=name)
    found.max_norm = max_norm
    return found


def trainable_wrapper_filter(
    iterable_object_in: Iterable[Any],
    test_unaggregated_function: Callable[[Any], bool] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Splits variables into dense variables and those of tables.

    Args:
      iterable_object_in: variables.
      test_unaggregated_function: a predicate that is true for a table's
        variable. None: true for `Variable`, `TrainableWrapper` and
        `ShadowVariable`.

    Returns:
      The dense variables and the tables' variables, each in the given order.
    """
    is_table = test_unaggregated_function or _is_of_a_table
    parts: tuple[list[Any], list[Any]] = ([], [])
    for item in iterable_object_in:
        parts[bool(is_table(item))].append(item)
    return tuple(parts[0]), tuple(parts[1])


def _is_of_a_table(variable: Any) -> bool:
    return isinstance(variable, (TrainableWrapper, EmbeddingWeights))
