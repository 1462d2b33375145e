"""The rows of one lookup, as something to differentiate by."""

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
from tfembed.tables.sharded_table import not_in_savers

__all__ = [
    "LISTENERS",
    "TrainableWrapper",
    "buffer",
    "check_max_norm",
    "clip_rows",
    "look_up",
    "note_lookup",
    "trainable_wrapper_filter",
    "watch",
]


# Each is called with the table of every lookup that may be trained.
LISTENERS: list[Callable[[Any], None]] = []


def note_lookup(table: Any) -> None:
    """Tells who listens that a `Variable`, or a tf.Variable, is looked up."""
    for listener in LISTENERS:
        listener(table)


def watch(
    rows: tf.Tensor, ids: tf.Tensor, params: Any, wrapper: Any = None
) -> tf.Tensor:
    """`rows`, whose gradient goes to the trainable ones of two anchors, by key.

    Gradients arrive in float32, whatever the floats of the rows. Rows of
    integers have none. Keys that are strings stay strings up to the update.

    Args:
      rows: ids.shape + [dim], what `ids` looked up.
      ids: keys of any shape.
      params: the `Variable`.
      wrapper: what stands for this lookup or for a part of all lookups.
    """
    if wrapper is None or wrapper.trainable:
        note_lookup(params)
    anchors = [
        a
        for a in (params, wrapper)
        if a is not None and a.trainable and not _is_of_replicas(a)
    ]
    if tf.executing_eagerly() and not tape_records():
        # A third of the time of an eager lookup of a few keys. What recomputes
        # it later, under a tape, asks now which variables it uses.
        for anchor in anchors:
            record_access(anchor)
        return rows
    dtype = rows.dtype
    if not anchors or not dtype.is_floating:
        return rows
    # The op takes float32; a float64 would lose digits there.
    wide = dtype == tf.float64
    watched = tf.zeros_like(rows) if wide else rows
    watched = tf.cast(watched, tf.float32)
    for anchor in anchors:
        watched = trainable_rows(anchor, ids, watched)
    watched = tf.cast(watched, dtype)
    return rows + watched if wide else watched


def _is_of_replicas(anchor: Any) -> bool:
    """Whether each replica has its own handle, and this runs on none of them.

    So it is where Keras builds a model under a strategy, and nothing is trained.
    """
    return (
        isinstance(anchor, TrainableWrapper)
        and tf.distribute.in_cross_replica_context()
        and isinstance(anchor._buffer, tf.distribute.DistributedValues)
    )


def check_max_norm(max_norm: Any, params: Any) -> None:
    """Raises where `max_norm` is not allowed for rows of `params`.

    Raises:
      tfembed.errors.DtypeError: rows that are no floats.
      tfembed.errors.ArgumentError: no number above 0; tensors pass.
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
    """Scales rows [..., dim] that are longer than `max_norm` down to it.

    Raises:
      as `check_max_norm`.
    """
    if max_norm is None:
        return rows
    check_max_norm(max_norm, params)
    return tf.clip_by_norm(rows, max_norm, axes=[-1])


_VALUE_KEY = "VARIABLE_VALUE"  # What savers call a variable's tensor.


def buffer(
    dtype: tf.DType, name: str, row_shape: Sequence[int] = ()
) -> tf.Variable:
    """A variable of any shape, empty at first, and in a SavedModel always.

    Its rows are of one process: a model that serves must not bring along whom
    it was looked up for last.
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


class TrainableWrapper(GradientSource, tf.Variable):
    """Lookups of one name, to differentiate by: see `return_trainable`.

    `tape.gradient(loss, wrapper)` gives the IndexedSlices of the lookups that
    returned it, by key; `tape.gradient(loss, variable)` those of all lookups.
    Give an optimizer one of the two. `tf.Module.trainable_variables` lists it.
    Eager mode and graphs of TensorFlow 1.

    Its value is a copy of rows, of any shape, and no part of a checkpoint; the
    table is. Code that takes it for a dense variable is refused: each property
    that raises is the first that such code asks for, and the error says what to
    do instead.

    In eager mode a variable's lookups of one name return one wrapper, while it
    lives, whose ids and value are those of the last. After an optimizer's step
    the value is what the step made of these rows.

    In a graph each lookup has a wrapper of its own, which
    `tf.compat.v1.trainable_variables()` lists: `tf.gradients(loss, wrapper)` is
    the gradient of that lookup. Its value is what the lookup reads, and it is
    called after its handle.

    Args:
      params: the `Variable`.
      ids: keys of any shape.
      max_norm: what the rows' lengths are limited to, or None.
      name: the lookup's name.
      trainable: whether its rows carry gradients, if `params` is trainable.
      model_mode: accepted for TFRA's sake; see `ModelMode`.

    Attributes:
      params: the `Variable` that the rows come from.
      max_norm: the limit.
      ids: what is looked up.
      exists: bool, ids.shape, which of them were there; of `bp_v2` variables.

    Raises:
      tfembed.errors.UnsupportedError: (also NotImplementedError) inside of a
        tf.function, or of a branch or loop of a graph.
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
        # TensorFlow's variables say by it whether a graph of TensorFlow 1 has them.
        self._in_graph_mode = rows_of_graph is not None
        self._buffer: Any = rows_of_graph
        if rows_of_graph is None:
            self.ids, self._name = ids, name
            self._buffer = buffer(params.value_dtype, name, [params.dim])
        else:
            self.ids, self._name = rows_of_graph.ids, rows_of_graph.handle.name
        self.exists: Any = None
        self._fetched: tf.Tensor | None = None
        self._element: tf.Tensor | None = None  # What sessions fetch.
        self._is_behind = False  # A step has moved the rows since.
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
        """The lookup's shape in a graph; else unknown, as lookups differ."""
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
        """Whether this and the variable are."""
        return self._trainable

    @property
    def handle(self) -> tf.Tensor:
        """The resource that gradients go to."""
        return self._buffer.handle

    @property
    def read_variable(self) -> tf.Variable | None:
        """The variable that lookups read, so that their gradients go to it.

        None in a graph of TensorFlow 1, and for rows that are not float32.
        """
        is_read = not self._in_graph_mode and self.dtype == tf.float32
        return self._buffer if is_read else None

    def read_value(self, do_prefetch: bool = True) -> tf.Tensor:
        """The rows, ids.shape + [dim].

        Args:
          do_prefetch: whether to take them from the table, differentiable, and
            in eager mode keep them as the value; else the value as it is,
            without a gradient.
        """
        return self._read(self._keys()) if do_prefetch else self.value()

    def prefetch_values(self, update: bool = False) -> tf.Tensor:
        """The rows of `ids`, without a gradient; looked up again if `update`."""
        return self.transform(self._fetch(self._keys(), update))

    def value(self) -> tf.Tensor:
        """The value, without a gradient; in a graph what `read_value` reads."""
        if self._in_graph_mode:
            return self.read_value()
        self._catch_up()
        return tf.stop_gradient(self._buffer.value())

    def numpy(self) -> Any:
        """The value as an array; eager mode only."""
        self._catch_up()
        return self._buffer.numpy()

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces the value; `update_op` writes it into the table."""
        self._is_behind = False
        return self._buffer.assign(value, *args, **kwargs)

    def update_op(self, v0: Any = None) -> Any:
        """Writes the value into the table, and notes it by the restrict policy.

        Args:
          v0: for a `bp_v2` variable, the rows from before the value was
            changed: the difference is added, by `Variable.accum`.

        Raises:
          tfembed.errors.ArgumentError: a `bp_v2` variable and no `v0`.
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
        """The number of keys in the table."""
        return self.params.size()

    def transform(self, result: tf.Tensor) -> tf.Tensor:
        """Scales rows [..., dim] that are longer than `max_norm` down to it."""
        return clip_rows(result, self.max_norm, self.params)

    def stand_for(
        self, ids: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor
    ) -> tf.Tensor:
        """`rows`, which `ids` looked up, with a gradient; the lookup's last step.

        Args:
          ids: keys of any shape.
          rows: ids.shape + [dim], as they are in the table.
          exists: bool, ids.shape.
        """
        self.ids, self._fetched = ids, rows
        if self.params.bp_v2:
            self.exists = exists
        rows = self._keep(rows, ids)
        if self._in_graph_mode:
            self._element = rows
        return rows

    def note_step(self) -> None:
        """Notes that an optimizer has moved rows of the table in eager mode."""
        self._fetched = None
        self._is_behind = True

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

    @property
    def op(self) -> tf.Operation:
        """The operation of the handle, in a graph of TensorFlow 1."""
        return self.handle.op

    def to_proto(self, export_scope: str | None = None) -> None:
        """None: a meta graph has the lookup's operations, not this object."""
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

    # Compared and hashed as an object: anchors of gradients are looked up.
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
        """Not there: raises UnsupportedError."""
        raise errors.UnsupportedError(
            f"'{self.name}' has no initial value: it stands for rows of the "
            f"table '{self.params.name}', other ones for other ids. What copies "
            "or averages variables (tf.train.ExponentialMovingAverage) takes "
            "dense ones; list these."
        )

    @property
    def sparse_read(self) -> Any:
        """Not there: rows are read by key, with `embedding_lookup`."""
        raise AttributeError(f"'{self.name}' has no sparse_read.")

    @property
    def gather_nd(self) -> Any:
        """Not there: rows are read by key, with `embedding_lookup`."""
        raise AttributeError(f"'{self.name}' has no gather_nd.")

    @property
    def constraint(self) -> Any:
        """Refuses tf_keras' optimizers without slots, which ask for it."""
        raise errors.UnsupportedError(self._not_alone("Keras' optimizers"))

    @property
    def _unique_id(self) -> str:
        """Refuses tf_keras' other optimizers, which ask for it."""
        raise AttributeError(self._not_alone("Keras' optimizers"))

    def _ref(self) -> Any:
        """Refuses TensorFlow's own optimizers, which ask for it in graphs."""
        raise errors.UnsupportedError(
            self._not_alone("tf.compat.v1.train optimizers")
        )

    @property
    def _save_slice_info(self) -> Any:
        """Refuses Savers that are given the wrapper, which ask for it."""
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
        """`handle`, as TensorFlow's own variables call it inside."""
        return self.handle

    def _as_graph_element(self) -> tf.Tensor:
        """The tensor that a session fetches, made once for all runs."""
        if self._element is None:
            self._element = self.value()
        return self._element

    def _keys(self) -> tf.Tensor:
        return arguments.id_tensor(self.ids, self.params)

    def _fetch(self, ids: tf.Tensor, update: bool = False) -> tf.Tensor:
        if not update and _is_of_here(self._fetched):
            return self._fetched
        rows, exists = self.params.table.lookup(ids)
        if self.params.bp_v2:
            self.exists = exists
        if keeps_tensors():
            self._fetched = rows
        return rows

    def _read(self, ids: tf.Tensor) -> tf.Tensor:
        return self._keep(self._fetch(ids), ids)

    def _keep(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """`rows` with a gradient and scaled; in eager mode they become the value."""
        rows = self.transform(self._watch(rows, ids))
        if tf.executing_eagerly():
            self.assign(rows)
        return rows

    def _watch(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        if self._in_graph_mode:  # Its handle hands gradients on to the table's.
            return watch(rows, ids, self)
        return watch(rows, ids, self.params, self)

    def _catch_up(self) -> None:
        """Reads the rows again if a step has moved them."""
        if self._is_behind and tf.executing_eagerly():
            rows, _ = self.params.table.lookup(self._keys())
            self.assign(self.transform(rows))

    def _reset_ids(self, ids: Any) -> None:
        """Lets the wrapper, and the slots it tracks, stand for other ids."""
        self._catch_up()
        self.ids = ids
        self._fetched = None
        for slot in self._tracked_slots:
            slot._reset_ids(ids)

    def _track_optimizer_slots(self, slots: Sequence[TrainableWrapper]) -> None:
        """Lets `slots` follow the wrapper's ids.

        Raises:
          tfembed.errors.DtypeError: a slot that is no `TrainableWrapper`.
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


def _is_of_here(rows: tf.Tensor | None) -> bool:
    """Whether rows that were kept belong to where ops are made now."""
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
    """`embedding_lookup` in a `Variable`."""
    name = name or "embedding_lookup"
    with tf.name_scope(name):
        check_max_norm(max_norm, params)
        ids = arguments.id_tensor(ids, params)
        if return_trainable or has_variables(params):
            wrapper = _wrapper_of(params, ids, name, max_norm)
            rows = wrapper.stand_for(ids, *params.table.lookup(ids))
            return (rows, wrapper) if return_trainable else rows
        params.note_lookup(name)
        rows, _ = params.table.lookup(ids)
        return clip_rows(watch(rows, ids, params), max_norm, params)


def _wrapper_of(
    params: Any, ids: tf.Tensor, name: str, max_norm: float | None
) -> TrainableWrapper:
    """The wrapper that a lookup returns: that of its name, or a new one."""
    found = params.get_trainable_by_name(name)
    # A shadow of that name is the user's own.
    if type(found) is not TrainableWrapper or not tf.executing_eagerly():
        return TrainableWrapper(params, ids, max_norm, name=name)
    found.max_norm = max_norm
    return found


def trainable_wrapper_filter(
    iterable_object_in: Iterable[Any],
    test_unaggregated_function: Callable[[Any], bool] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Parts dense variables from those of tables.

    Args:
      iterable_object_in: variables.
      test_unaggregated_function: says of a variable whether it is a table's.
        None: a `Variable`, `TrainableWrapper` or `ShadowVariable` is.

    Returns:
      The dense ones and the tables', each in the order given.
    """
    is_table = test_unaggregated_function or _is_of_a_table
    parts: tuple[list[Any], list[Any]] = ([], [])
    for item in iterable_object_in:
        parts[bool(is_table(item))].append(item)
    return tuple(parts[0]), tuple(parts[1])


def _is_of_a_table(variable: Any) -> bool:
    return isinstance(variable, (TrainableWrapper, EmbeddingWeights))
