"""The weight that represents a table in a Keras model's list of weights."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.keras import kept_rows
from tfembed.dynamic_embedding.keras.private import (
    model_stepping,
    models_running,
    running_step,
    showing_weights,
    writing_legacy_h5,
)
from tfembed.dynamic_embedding.lookups.gradient_source import (
    TableSource,
    WatchedTable,
    refuse_operators,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.ops import private
from tfembed.ops import table as table_ops
from tfembed.ops.keyed_shape import keyed_slices
from tfembed.ops.private import outermost_trace
from tfembed.tables import HashTable
from tfembed.tables.sharded_table import not_in_savers

__all__ = [
    "ScaledSlices",
    "SourceWeight",
    "TableVariable",
    "rows_in_words",
    "some_rows",
]


class SourceWeight(keras.Variable, TableSource):
    """A Keras weight that TensorFlow can differentiate with respect to.

    A tape cannot watch Keras' own weights, nor make zeros for their gradients:
    programs pass their `value` instead.
    """

    @property
    def dtype(self) -> str:
        """The weight's dtype, as Keras names it."""
        return _Dtype(super().dtype)

    @property
    def name(self) -> str:
        """The weight's name; for TensorBoard that of the tables' rows."""
        if not showing_weights():
            return str(super().name)
        return f"{self.shown_name}/rows"

    @property
    def path(self) -> str:
        """The weight's path; for TensorBoard of newer Keras its name."""
        return self.name if showing_weights() else str(super().path)

    @property
    def value(self) -> Any:
        """The weight's variable; for TensorBoard some rows of the tables."""
        return self.shown_rows() if showing_weights() else super().value

    def _as_watched(self, shape: Any = None) -> WatchedTable:
        """Makes what tapes and optimizers take in place of the weight.

        Args:
          shape: as for `WatchedTable`.
        """
        watched = WatchedTable(self, shape)
        watched.__dict__.update(
            overwrite_with_gradient=True,
            assign=self.assign,
            path=self._path,
            _unique_id=getattr(self._value, "_unique_id", self._path),
        )
        return watched

    @property
    def shown_name(self) -> str:
        """The tables' name in TensorBoard."""
        raise NotImplementedError  # Each kind of weight has its own.

    def shown_rows(self) -> tf.Tensor:
        """Returns some rows, or their numbers, for TensorBoard."""
        raise NotImplementedError  # Each kind of weight has its own.

    def words(self) -> str:
        """Says which rows the weight stands for, and where these are."""
        raise NotImplementedError  # Each kind of weight has its own.

    def no_tensor(self) -> errors.DtypeError:
        """Returns the error of a use as a tensor, which would have no rows."""
        return errors.DtypeError(
            f"The weight '{self._path}' is no tensor; it stands for "
            f"{self.words()}. Compute with the rows that a batch looks up: "
            "regularize what the layer returns, for example by its "
            "`activity_regularizer`."
        )

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        if showing_weights():
            return tf.convert_to_tensor(self.shown_rows(), dtype, name=name)
        raise self.no_tensor()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raises DtypeError; warns while a legacy ".h5" file is written."""
        if not writing_legacy_h5():
            raise self.no_tensor()
        warnings.warn(
            f"The rows behind the weight '{self.path}' are not in this file: "
            "the legacy form of whole models, a name that ends in '.h5', has "
            "the arrays of Keras' weights alone. Save to a name that ends in "
            "'.keras', or weights to one that ends in '.weights.h5'.",
            stacklevel=2,
        )
        return np.zeros(self.shape, dtype or str(self.dtype))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}: {self.words()}>"

    def _gather_saveables_for_checkpoint(self) -> Any:
        """Refuses Savers of eager mode, which would leave the rows out."""
        if tf.executing_eagerly() and private.asked_by_saver():
            raise not_in_savers(f"the tables behind the weight '{self.path}'")
        # A SavedModel stores a weight as a variable, which must have a value
        # when it is loaded, or as an object without a value.
        if not private.acts_as_variable(self):
            return {}
        of_replicas = self._value._gather_saveables_for_checkpoint()
        return of_replicas or {"VARIABLE_VALUE": self._value}

    def _export_to_saved_model_graph(
        self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any
    ) -> Any:
        """Exports the weight's variable; no copy takes the weight's own place.

        Keras puts a variable there, which the restore op of the graph, as
        TensorFlow Serving runs it, would look for in files that have none.
        """
        resources = self._value._export_to_saved_model_graph(
            object_map, tensor_map, options, **kwargs
        )
        if private.acts_as_variable(self):
            object_map[self] = tf.Variable(object_map[self._value])
        return resources

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        self._value._write_object_proto(proto, options)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        self._value._copy_trackable_to_cpu(object_map)
        object_map[self] = tf.Variable(object_map[self._value])

    @property
    def _shared_name(self) -> str:
        return str(self._value._shared_name)


refuse_operators(SourceWeight, SourceWeight.no_tensor)


class _Dtype(str):
    """The name of a dtype, with the attributes that tapes read of a dtype."""

    @property
    def is_floating(self) -> bool:
        """Whether the dtype is a float dtype."""
        return bool(tf.as_dtype(str(self)).is_floating)

    @property
    def _type_enum(self) -> int:
        return int(tf.as_dtype(str(self)).as_datatype_enum)


class ScaledSlices(tf.IndexedSlices):
    """A gradient that a LossScaleOptimizer can check for finiteness.

    The check makes a dense tensor with a row for each index up to the largest.
    So the indices of these slices are 0, 1, 2, ...

    Attributes:
      keys: the keys of the rows.
    """

    def __init__(self, slices: tf.IndexedSlices) -> None:
        count = tf.shape(slices.values, tf.int64)[0]
        super().__init__(
            slices.values, tf.range(count), tf.shape(slices.values, tf.int64)
        )
        self.keys = slices.indices


class _WeightGradient:
    """Implements TensorFlow's CompositeTensorGradient for a weight."""

    def get_gradient_components(self, value: Any) -> Any:
        """Returns the resource handle whose gradient the tape computes."""
        return value.handle

    def replace_gradient_components(
        self, value: Any, component_grads: Any
    ) -> Any:
        """Converts the gradient for the check of the step's optimizer.

        Other gradients get a shape that says why they have no dense form.
        """
        optimizer = getattr(model_stepping(), "optimizer", None)
        is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if is_scaled and isinstance(component_grads, tf.IndexedSlices):
            return ScaledSlices(component_grads)
        return keyed_slices(component_grads, value.dim)


class TableVariable(SourceWeight):
    """A weight of shape [0, dim] that represents a table of any size.

    Keras' trainer asks a tape for the gradients of a model's trainable weights
    and gives both to the optimizer. This weight has the table's resource
    handle, so its gradient is the `tf.IndexedSlices` by key of all lookups of
    the step; `DynamicEmbeddingOptimizer` replaces the weight by its table. The
    rows are in `params`; the layer saves them.

    Args:
      params: the table.
      trainable: whether the layer is trainable.
      name: the name of the weight.
      is_implied: whether the weight is a `BareTable`'s: a layer looks the table
        up, but did not make it. Optimizers ignore such a weight if the table is
        given too.

    Attributes:
      mover: the function that updates the rows by the gradient from a plain
        Keras optimizer; None: such an optimizer is refused.
      table_attribute: how a program reaches the table, for messages.
    """

    # The protocol by which tapes compute the weight's gradient.
    __composite_gradient__ = _WeightGradient()

    def __init__(
        self,
        params: Variable,
        *,
        trainable: bool,
        name: str,
        is_implied: bool = False,
        table_attribute: str = "layer.params",
    ) -> None:
        self._params = params
        self.table_attribute = table_attribute
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced: weakref.WeakSet[Any] = weakref.WeakSet()
        # Weak references: the last optimizer, and the function it was traced in.
        self._trained_by: Any = lambda: None
        self._traced_in: Any = lambda: None
        self.is_implied = is_implied
        self.mover: Callable[[tf.IndexedSlices], None] | None = None
        super().__init__(
            initializer="zeros",
            shape=(0, params.dim),
            dtype="float32",
            trainable=trainable,
            name=name,
        )
        # Keras' optimizers make no slots for such weights, but `assign` the
        # gradient to them. So an optimizer that cannot train tables calls
        # `assign`.
        self.overwrite_with_gradient = True
        self._watched_weight = self._as_watched()

    @property
    def _should_act_as_resource_variable(self) -> bool:
        """Raises AttributeError: the attribute would make tapes watch `handle`.

        Tapes must treat a weight as a composite tensor, so that its gradient
        can be `ScaledSlices`.
        """
        raise AttributeError("no resource variable")

    @property
    def params(self) -> Variable:
        """The table."""
        return self._params

    def stand_for(self, params: Variable) -> None:
        """Replaces the table by another one of the same width."""
        self._params = params

    def by_key(
        self, gradient: tf.IndexedSlices, scaler: Any
    ) -> tf.IndexedSlices:
        """Returns the gradient by key, without the running step's loss scale.

        Keras divides only the gradients of other weights by that scale.

        Args:
          gradient: the gradient of the weight.
          scaler: the LossScaleOptimizer of the step, or None.

        Raises:
          tfembed.errors.UnsupportedError: the step's LossScaleOptimizer got the
            gradient in another form than the tape of a model's step gave.
        """
        if isinstance(gradient, ScaledSlices):
            values = gradient.values
            if scaler is not None:
                values /= tf.cast(scaler.dynamic_scale, values.dtype)
            return tf.IndexedSlices(values, gradient.keys)
        if scaler is not None:
            raise self._not_scaled()
        return gradient

    def train_by(
        self,
        optimizer: Any,
        engine: Any,
        step: Any = None,
        *,
        is_own: bool = False,
    ) -> None:
        """Has an optimizer train the table, in a step that the optimizer takes.

        The optimizer replaces the one that trained the table before: the rows
        stay, and slots of another rule begin anew, with a warning. Models whose
        steps were traced for the rule before trace them again. An optimizer
        that was replaced may come back only in a model that has it from
        `compile`, since a loop that takes two optimizers in turn would lose the
        slots in each step.

        Args:
          optimizer: an optimizer of Keras.
          engine: the `TableTrainer` that applies the optimizer's rule to
            tables.
          step: the `running_step`, if it is known.
          is_own: whether it is the optimizer of the table alone, and not the
            one that takes the step.

        Raises:
          tfembed.errors.ArgumentError: another rule trains the table in the
            function that is being traced, or the optimizer was replaced.
          tfembed.errors.UnsupportedError: a LossScaleOptimizer takes the step,
            and no model does.
        """
        _, scaler, model = step or running_step()
        scaled = keras.optimizers.LossScaleOptimizer.apply
        if model is None and scaler is not None and any(models_running(scaled)):
            raise self._not_scaled()
        trace = outermost_trace()
        is_second = trace is not None and trace is self._traced_in()
        may_come_back = is_own or _is_of(optimizer, model)
        is_back = not may_come_back and optimizer in self._replaced
        before = self._params.table.optimizer
        engine.attach([self._params], replaces=not (is_second or is_back))
        if before is not None and self._params.table.optimizer is not before:
            if (last := self._trained_by()) is not None:
                self._replaced.add(last)
            self.trace_again(model)
        if model is not None:
            self._models.add(model)
        self._trained_by = (lambda: None) if is_own else weakref.ref(optimizer)
        self._traced_in = (
            (lambda: None) if trace is None else weakref.ref(trace)
        )

    def trace_again(self, current: Any = None) -> None:
        """Has models trace their steps again, which have a rule from before.

        Args:
          current: the model whose step is being traced now, if any.
        """
        for model in [one for one in self._models if one is not current]:
            model.make_train_function(force=True)
        self._models.clear()

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle that lookups pass their gradients to."""
        return self._params.handle

    @property
    def watched(self) -> WatchedTable:
        """The table's `WatchedTable`, which a tape watches for this weight."""
        return self._params.watched

    @property
    def value(self) -> Any:
        """Has the table's gradient; for TensorBoard some rows of the table."""
        return self.shown_rows() if showing_weights() else self._watched_weight

    @property
    def shown_name(self) -> str:
        """The table's name in TensorBoard: its own name or its layer's."""
        return self._params.name.removesuffix("-parameter")

    def shown_rows(self) -> tf.Tensor:
        """Returns some rows, float32 [n, dim]."""
        return some_rows(self._params.table)

    @property
    def key_dtype(self) -> tf.DType:
        """Dtype of the table's keys."""
        return self._params.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """The weight's dtype, float32 for all dtypes of rows."""
        return tf.float32

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self._params.dim

    def words(self) -> str:
        """Says which rows the weight stands for, and where these are."""
        return (
            f"{rows_in_words(self._params)} of '{self.shown_name}', by key: "
            f"`{self.table_attribute}.export()`"
        )

    def numpy(self) -> kept_rows.KeptValue:
        """Returns a value of shape [0, dim] that keeps the rows, for `assign`.

        For a table with `checkpoint=False` the value has no rows.
        """
        is_saved = self._params.checkpoint
        return kept_rows.KeptValue(
            self.words(),
            (0, self.dim),
            "float32",
            kept_rows.KeptRows(self._tables) if is_saved else None,
        )

    def assign(self, value: Any) -> Any:
        """Restores the rows of a value that `numpy` of such a weight returned.

        A value without rows leaves the table unchanged and warns, since a
        program that sets a model's weights may expect to set the rows too.

        Raises:
          tfembed.errors.CheckpointError: rows of a table of another kind.
          tfembed.errors.UnsupportedError: a gradient, from an optimizer that
            cannot train tables. A weight that `is_implied` only warns.
        """
        if value is self._watched_weight:  # As `get_state_tree` gives it.
            return self
        if isinstance(value, tf.IndexedSlices) and self.mover is not None:
            self.mover(value)
            return self
        if isinstance(value, tf.IndexedSlices) and self.is_implied:
            warnings.warn(self._not_alone(), stacklevel=2)
            return self
        if isinstance(value, tf.IndexedSlices):
            raise errors.UnsupportedError(self._not_alone())
        return super().assign(kept_rows.assign_rows(value, self._tables))

    @property
    def _tables(self) -> kept_rows.WeightTables:
        params = self._params
        rule = params.table.optimizer
        layout = kept_rows.TableLayout(
            dim=params.dim,
            keys=params.key_dtype.name,
            rule=rule and rule.rule_text().split()[0],
        )
        return kept_rows.WeightTables(
            name=f"'{params.name}'",
            whole=params,
            rows=params,
            layouts={"params": layout},
        )

    @property
    def _unique_id(self) -> str:
        """Raises AttributeError to tf_keras' optimizers, which read it."""
        raise AttributeError(self._not_alone())

    def _not_scaled(self) -> errors.UnsupportedError:
        return errors.UnsupportedError(
            f"A LossScaleOptimizer trains table '{self._params.name}' in a model's "
            "`train_step`, by the gradients that the tape gives there. Clip them by "
            "`clipnorm`, `global_clipnorm` or `clipvalue` of the optimizer. In a "
            "loop of your own give the optimizer a `loss_scale_factor`, in place "
            "of the LossScaleOptimizer."
        )

    def _not_alone(self) -> str:
        return (
            f"A Keras optimizer alone cannot train the table "
            f"'{self._params.name}'. Wrap it: compile(optimizer="
            "tfembed.dynamic_embedding.DynamicEmbeddingOptimizer(...))."
        )


def _is_of(optimizer: Any, model: Any) -> bool:
    """Says whether a model's optimizer is `optimizer` or has it inside."""
    given = getattr(model, "optimizer", None)
    while given is not None and given is not optimizer:
        given = getattr(given, "inner_optimizer", None)
    return given is not None


def rows_in_words(table: Any) -> str:
    """Returns the number of a table's rows, "50 rows", or "rows" in a graph.

    Args:
      table: a table with `size`, or a variable of all rows.
    """
    size = getattr(table, "size", None)
    with tf.init_scope():
        if size is not None and not tf.executing_eagerly():
            return "rows"
        count = int(table.shape[0] if size is None else size())
    return f"{count:,} row" + ("" if count == 1 else "s")


_MOST_ROWS = 10_000


def some_rows(table: Any) -> tf.Tensor:
    """Returns a sample of about 10,000 rows, or all if fewer, float32 [n, dim].

    The sample is pseudo-random for a HashTable, and evenly spaced for a
    variable. These lookups do not count as hits.

    Args:
      table: a HashTable, or a variable of all rows; no rows of strings are
        returned.
    """
    if isinstance(table, HashTable):
        keys = [
            table_ops.survey(handle, most, key_dtype=table.key_dtype).keys
            for handle, most in zip(table.handles, _shares(table), strict=True)
        ]
        return table.lookup_trained(tf.concat(keys, 0))[:, : table.dim]
    if hasattr(table, "handles"):
        return tf.zeros([0, table.dim])
    rows = int(table.shape[0])
    chosen = np.linspace(0, rows, min(rows, _MOST_ROWS), endpoint=False)
    places = tf.constant(chosen.astype(np.int64))
    gather = getattr(table, "gather", None)
    found = tf.gather(table, places) if gather is None else gather(places)
    return tf.cast(found, tf.float32)


def _shares(table: HashTable) -> list[int]:
    """Returns the rows to sample of each shard, in proportion to its size."""
    sizes = [int(table.size(shard)) for shard in range(len(table.shards))]
    if sum(sizes) <= _MOST_ROWS:
        return [table_ops.ALL_ROWS] * len(sizes)
    return [math.ceil(_MOST_ROWS * size / sum(sizes)) for size in sizes]
