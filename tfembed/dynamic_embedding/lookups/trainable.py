"""The rows of one lookup, as something to differentiate by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.lookups.graph_rows import GraphRows
from tfembed.dynamic_embedding.lookups.lookup_buffer import LookupBuffer
from tfembed.dynamic_embedding.lookups.watched_rows import (
    check_max_norm,
    clip_rows,
    watch,
)
from tfembed.dynamic_embedding.variables import arguments
from tfembed.ops import private

__all__ = ["TrainableWrapper", "look_up"]


class TrainableWrapper(LookupBuffer):
    """What `return_trainable=True` gives: lookups of one name, to differentiate by.

    `tape.gradient(loss, wrapper)` gives the IndexedSlices of the lookups that
    returned it, by key; `tape.gradient(loss, variable)` those of all lookups.
    Give an optimizer one of the two. Eager mode and graphs of TensorFlow 1.

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
      ids: what is looked up.
      exists: bool, ids.shape, which of them were there; of `bp_v2` variables.

    Raises:
      tfembed.errors.UnsupportedError: (also NotImplementedError) inside of a
        tf.function, or of a branch or loop of a graph.
    """

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
        in_graph = private.in_session_graph()
        if not in_graph and not tf.executing_eagerly():
            raise errors.UnsupportedError(
                f"{type(self).__name__}s are made in eager mode only, and in "
                "graphs of TensorFlow 1 outside of their branches and loops. "
                "Inside a tf.function differentiate by the Variable itself, or "
                "look up through a ShadowVariable that was made outside."
            )
        if in_graph:
            ids = arguments.id_tensor(ids, params)
        graph_rows = GraphRows(params, ids, name) if in_graph else None
        super().__init__(
            params,
            max_norm,
            name=graph_rows.handle.name if graph_rows else name,
            trainable=trainable,
            graph_rows=graph_rows,
        )
        self.ids = ids
        self.exists: Any = None
        self._fetched: tf.Tensor | None = None
        self._element: tf.Tensor | None = None  # What sessions fetch.
        self._is_behind = False  # A step has moved the rows since.
        self._tracked_slots: list[TrainableWrapper] = []
        params.remember_trainable(self, name)
        if self.trainable and _is_listed(params):
            tf.compat.v1.add_to_collection(
                tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES, self
            )

    def prefetch_values(self, update: bool = False) -> tf.Tensor:
        """The rows of `ids`, without a gradient; looked up again if `update`."""
        return self.transform(self._fetch(self._keys(), update))

    def read_value(self, do_prefetch: bool = True) -> tf.Tensor:
        """The rows, ids.shape + [dim].

        Args:
          do_prefetch: whether to take them from the table, differentiable, and
            in eager mode keep them as the value; else the value as it is,
            without a gradient.
        """
        return self._read(self._keys()) if do_prefetch else self.value()

    def update_op(self, v0: Any = None) -> Any:
        """Writes the value into the table, and notes it by the restrict policy.

        Args:
          v0: of a `bp_v2` variable, the rows from before the value was changed:
            the difference is added, by `Variable.accum`.

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
            params.restrict_policy.apply_update(ids)
        if params.bp_v2:
            return params.accum(ids, v0, self.value(), self.exists)
        return params.upsert(ids, self.value())

    def value(self) -> tf.Tensor:
        """The value, without a gradient; in a graph what `read_value` reads."""
        if self._in_graph_mode:
            return self.read_value()
        self._catch_up()
        return super().value()

    def numpy(self) -> Any:
        """The value as an array; eager mode only."""
        self._catch_up()
        return super().numpy()

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces the value; `update_op` writes it into the table."""
        self._is_behind = False
        return super().assign(value, *args, **kwargs)

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

    def _as_graph_element(self) -> tf.Tensor:
        """What a session fetches for it, made once: runs add nothing to graphs."""
        if self._element is None:
            self._element = self.value()
        return self._element

    def size(self) -> tf.Tensor:
        """The number of keys in the table."""
        return self.params.size()

    def transform(self, result: tf.Tensor) -> tf.Tensor:
        """Scales rows [..., dim] that are longer than `max_norm` down to it."""
        return clip_rows(result, self.max_norm, self.params)

    def _keys(self) -> tf.Tensor:
        return arguments.id_tensor(self.ids, self.params)

    def _fetch(self, ids: tf.Tensor, update: bool = False) -> tf.Tensor:
        if not update and _is_of_here(self._fetched):
            return self._fetched
        rows, exists = self.params.table.lookup(ids)
        if self.params.bp_v2:
            self.exists = exists
        if tf.executing_eagerly() or private.in_session_graph():
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
        if return_trainable or _is_listed(params):
            wrapper = _wrapper_of(params, ids, name, max_norm)
            rows = wrapper.stand_for(ids, *params.table.lookup(ids))
            return (rows, wrapper) if return_trainable else rows
        params.note_lookup(name)
        rows, _ = params.table.lookup(ids)
        return clip_rows(watch(rows, ids, params), max_norm, params)


def _is_listed(params: Any) -> bool:
    """Whether its lookups belong to the trainable variables of a graph."""
    return (
        params.trainable
        and params.value_dtype.is_floating
        and private.in_session_graph()
    )


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
