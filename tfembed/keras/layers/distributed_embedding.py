"""A Keras layer for all embedding features of a model."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import embedding, errors, ops, optimizers
from tfembed.dynamic_embedding.keras import kept_rows
from tfembed.dynamic_embedding.keras.layer_config import (
    NoMatrix,
    is_below,
    say_not_shared,
)
from tfembed.dynamic_embedding.keras.private import (
    asked_for_variable,
    forget_shared_object,
    model_stepping,
    optimizer_stepping,
    shared_objects,
)
from tfembed.dynamic_embedding.keras.table_counts import table_count
from tfembed.dynamic_embedding.keras.table_layer import say_why_not_compiled
from tfembed.dynamic_embedding.keras.table_variable import (
    SourceWeight,
    rows_in_words,
    some_rows,
)
from tfembed.embedding.features.input_values import (
    TENSORS,
    as_ids,
    as_weights,
    with_tensors,
)
from tfembed.embedding.features.inputs import weights_in_bags
from tfembed.embedding.lookups.taken_updates import SLOTS, TakenUpdates
from tfembed.embedding.replicas import is_tpu
from tfembed.keras import descriptions, packed_inputs
from tfembed.keras.keras_rs import as_features, say_unused
from tfembed.keras.layers.table_rows import TableRows
from tfembed.keras.model_optimizer import ModelOptimizer
from tfembed.keras.table_files import TableFiles
from tfembed.keras.table_optimizers import described, keras_optimizer_of
from tfembed.ops.private import is_recomputed, track, weight_accessed

__all__ = ["DistributedEmbedding", "LayerTables", "output_specs", "with_tuples"]


class LayerTables(tf.__internal__.tracking.AutoTrackable):
    """Tracks an embedding's tables for files, always under the same name.

    Functions capture it as a variable, because Keras' export saves only the
    variables that a function uses. Tapes do not watch it.

    Args:
      name: the name of the layer, for errors.
      tables: the owner of the tables.
      variable: a variable of the layer, whose handle represents all tables.
    """

    # The attributes by which TensorFlow recognizes a variable.
    _should_act_as_resource_variable = True
    trainable = False

    def __init__(
        self, name: str, tables: embedding.TPUEmbedding, variable: Any
    ) -> None:
        super().__init__()
        self.name = name
        self.embedding = tables
        self._variable = variable

    @property
    def handle(self) -> tf.Tensor:
        """The variable's handle; under a strategy, the running replica's."""
        return self._variable.handle

    def built(self) -> LayerTables:
        """Makes all tables, for a save or restore; returns this object."""
        self.embedding.build()
        return self

    def record_access(self) -> None:
        """Records the use of the tables in the function that is traced."""
        ops.record_access(self.built())

    def reading(self, keys: Any) -> Any:
        """Returns a context for a restore; missing schedules start at 0.

        A warning names the tables of these.
        """
        rates = self.embedding.table_rates
        if rates.are_hidden:
            return contextlib.nullcontext()
        missing = rates.missing(keys)
        if missing:
            warnings.warn(
                f"The file of layer '{self.name}' has no counts of steps for "
                f"the schedules of tables {missing}, which were trained at a "
                "constant rate or by an earlier release. The schedules begin "
                "anew, at step 0.",
                stacklevel=2,
            )
        rates.begin(missing)
        return rates.hidden(missing)

    def weight_tables(self) -> kept_rows.WeightTables:
        """Returns the tables, for `get_weights` and `set_weights`."""
        names = [c.name for c in self.embedding.embedding_tables]
        alone = tf.__internal__.tracking.AutoTrackable()
        alone.embedding = tf.__internal__.tracking.AutoTrackable()
        for config, table in self.embedding.embedding_tables.items():
            setattr(alone.embedding, config.name, table)
        return kept_rows.WeightTables(
            name=f"tables {names} of layer '{self.name}'",
            whole=self.built(),
            rows=alone,
            layouts={
                config.name: _layout(config)
                for config in self.embedding.embedding_tables
            },
            restoring=self.embedding.table_rates.hidden,
        )

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the tables; for a SavedModel also the variable.

        Functions of a SavedModel capture the variable. A checkpoint has it as
        the layer's weight, and TensorFlow restores no variable that is there
        twice.
        """
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":
            children.pop("_variable", None)
        return children

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Marks this for a SavedModel as an object, not a variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1


def _layout(config: Any) -> kept_rows.TableLayout:
    rule = config.optimizer
    if rule is not None:
        rule = optimizers.from_tensorflow(rule).rule_text().split()[0]
    is_fixed = config.vocabulary_size is not None
    keys = config.vocabulary_size if is_fixed else config.key_dtype.name
    return kept_rows.TableLayout(config.dim, keys, rule)


def output_specs(feature_config: Any, inputs: Any, dtype: str) -> Any:
    """Returns the outputs' shapes and dtypes, one KerasTensor per feature.

    Args:
      feature_config: a structure of FeatureConfigs.
      inputs: KerasTensors, structured as `feature_config`.
      dtype: the dtype of the activations.

    Raises:
      ValueError, TypeError: another structure.
      tfembed.errors.ArgumentError: an input without batch dimension.
    """
    tf.nest.assert_same_structure(feature_config, inputs)
    specs = [
        keras.KerasTensor(_shape(feature, value), dtype)
        for feature, value in zip(
            tf.nest.flatten(feature_config),
            tf.nest.flatten(inputs),
            strict=True,
        )
    ]
    return tf.nest.pack_sequence_as(feature_config, specs)


def _shape(feature: Any, value: Any) -> tuple[Any, ...]:
    shape = tuple(value.shape)
    if not shape:
        raise errors.ArgumentError(
            "An input must have a batch dimension; got a scalar. Use "
            "keras.Input(shape=(), dtype='int64') for one id a sample."
        )
    lead = shape[:1] if len(shape) <= 2 else shape[:-1]
    if len(shape) == 2 and feature.max_sequence_length:
        lead = (*lead, feature.max_sequence_length)
    return (*lead, feature.table.dim)


def with_tuples(inputs: Any, feature_config: Any) -> Any:
    """Converts lists in `inputs` to tuples if `feature_config` has tuples.

    Keras saves tuples in a layer's arguments as lists. Other differences of the
    structures are left for the caller's checks.
    """
    if isinstance(inputs, dict) and isinstance(feature_config, dict):
        return {
            key: with_tuples(value, feature_config.get(key))
            for key, value in inputs.items()
        }
    kinds = (list, tuple)
    if type(inputs) not in kinds or type(feature_config) not in kinds:
        return inputs
    if len(inputs) != len(feature_config):
        return inputs
    items = [
        with_tuples(value, feature)
        for value, feature in zip(inputs, feature_config, strict=True)
    ]
    is_list = type(inputs) is list and type(feature_config) is list
    return items if is_list else tuple(items)


# Arguments of keras-rs' layer for the layout of tables on a TPU.
_OF_KERAS_RS = ("table_stacking", "update_stats")

_ADAM = "adam"  # keras-rs' default optimizer of a table.


class _TrapWeight(SourceWeight):
    """A layer's only weight; an optimizer that gets its gradient updates tables.

    Keras' optimizers `assign` the gradient to such a weight.

    Attributes:
      tables: the tables to update.
      taken: the updates of which a gradient is made; None: it moves the rows.
    """

    tables: LayerTables
    taken: TakenUpdates | None

    @property
    def overwrite_with_gradient(self) -> bool:
        """True where an optimizer assigns the gradient, and has no slots.

        It is False while one makes moving averages, which SwapEMAWeights
        expects of all weights.
        """
        optimizer = optimizer_stepping()
        return optimizer is None or bool(optimizer.built)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._watched_weight = self._as_watched(self.shape)

    @property
    def variable(self) -> Any:
        """The tf.Variable of the weight's zeros."""
        return self._value

    @property
    def handle(self) -> tf.Tensor:
        """The variable's handle; under a strategy, the running replica's."""
        return self._value.handle

    @property
    def watched(self) -> Any:
        """The `WatchedTable` that a tape watches for this weight."""
        return self._watched_weight

    @property
    def value(self) -> Any:
        """Has the weight's gradient; for TensorBoard some rows of the tables.

        Moving averages are made of the variable itself.
        """
        if asked_for_variable():
            return self._value
        value = super().value
        return self._watched_weight if value is self._value else value

    @property
    def value_dtype(self) -> tf.DType:
        """The dtype of the weight's gradient."""
        return tf.as_dtype(str(self.dtype))

    def read(self) -> tf.Tensor:
        """Returns the weight's zeros, whose gradient updates the tables."""
        value = super().value
        if value is self:  # In a `stateless_call`.
            value = self._value
        if isinstance(value, tf.distribute.DistributedValues) or (
            value is not self._value
        ):
            return tf.convert_to_tensor(value)
        # Not of the variable: tapes and functions would list that.
        weight_accessed(self)
        return tf.raw_ops.ReadVariableOp(
            resource=value.handle, dtype=value.dtype
        )

    def stand_in(self) -> Any:
        """Returns the weight's variable, whose gradient is dense."""
        return self._value

    @property
    def shown_name(self) -> str:
        """The tables' name in TensorBoard: that of the layer."""
        return self.tables.name

    def shown_rows(self) -> tf.Tensor:
        """Returns the numbers in some rows of all tables, float32 [n]."""
        tables = self.tables.built().embedding.embedding_tables.values()
        numbers = [tf.reshape(some_rows(table), [-1]) for table in tables]
        return tf.concat(numbers, 0)

    def zero_gradient(self) -> tf.Tensor:
        """Returns the gradient of a tape with unconnected_gradients=ZERO."""
        return tf.zeros(self.shape, self.value_dtype)

    def words(self) -> str:
        """Says which rows the weight stands for, and where these are."""
        tables = self.tables.built().embedding.embedding_tables
        counts = [
            f"{rows_in_words(table)} of '{config.name}'"
            for config, table in tables.items()
        ]
        return f"{', '.join(counts)}: `layer.get_embedding_tables()`"

    def no_tensor(self) -> errors.DtypeError:
        """Returns the error of a use as a tensor, which would have no rows."""
        return errors.DtypeError(
            f"{super().no_tensor()} A variable for sums of its gradients is "
            "`tf.Variable(tf.zeros(weight.shape))`."
        )

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        if optimizer_stepping() is None:
            return super().__tf_tensor__(dtype, name)
        # Its moving average, which is one of no rows: `ModelOptimizer` warns.
        return tf.convert_to_tensor(self._value, dtype=dtype, name=name)

    def numpy(self) -> kept_rows.KeptValue:
        """Returns a value of the weight's shape that keeps the tables' rows."""
        tables = self.tables.weight_tables()
        return kept_rows.KeptValue(
            self.words(),
            self.shape,
            str(self.dtype),
            kept_rows.KeptRows(tables),
        )

    def assign(self, value: Any) -> Any:
        """Restores the rows of a value that `numpy` of such a weight returned.

        A tensor is a gradient, from an optimizer: it updates the tables. Another
        value without rows leaves the tables unchanged and warns.

        Raises:
          tfembed.errors.CheckpointError: rows of tables of another kind.
          tfembed.errors.StateError: a gradient that was applied before.
        """
        if value is self._watched_weight:
            return self  # As `get_state_tree` gives it.
        if isinstance(value, tf.Variable):  # In which gradients were summed.
            value = value.read_value()
        if isinstance(value, tf.Tensor):
            self._apply(value)
            return self
        return super().assign(
            kept_rows.assign_rows(value, self.tables.weight_tables())
        )

    def _apply(self, gradient: tf.Tensor) -> None:
        if self.taken is None:
            return  # The rows have moved.
        optimizer = optimizer_stepping()
        if getattr(optimizer, "gradient_accumulation_steps", None):
            if model_stepping() is None:
                raise self._not_accumulated(optimizer)
            return  # As `_moves_at_once` says.
        self.taken.apply(gradient)

    def assign_add(self, value: Any) -> Any:
        """Raises UnsupportedError: an optimizer applies gradients."""
        raise self._no_arithmetic()

    def assign_sub(self, value: Any) -> Any:
        """Raises UnsupportedError: an optimizer applies gradients."""
        raise self._no_arithmetic()

    def _no_arithmetic(self) -> errors.UnsupportedError:
        return errors.UnsupportedError(
            f"The weight '{self.path}' stands for tables, which have optimizers "
            "of their own: give its gradient to the `apply` of a Keras "
            "optimizer, with those of other weights."
        )

    def _not_accumulated(self, optimizer: Any) -> errors.UnsupportedError:
        return errors.UnsupportedError(
            f"{type(optimizer).__name__}(gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}) keeps the largest "
            f"gradients of weights such as '{self.path}', in a loop of your own. "
            "Leave the option out and add the gradients up: the sum has all "
            "updates of the tables."
        )


@keras.saving.register_keras_serializable(package="tfembed")
class DistributedEmbedding(TableRows, keras.layers.Layer):
    """Looks up all features of a model, and trains their tables by itself.

    It has the arguments of keras-rs' layer of that name, which needs a TPU:

        layer = tfembed.keras.layers.DistributedEmbedding(
            {"user": tfembed.FeatureConfig(users),
             "watched": tfembed.FeatureConfig(items, max_sequence_length=20)},
            optimizer=tfembed.Adagrad(0.1),
        )
        activations = layer(inputs)

    The tables are those of `embedding`, a `tfembed.TPUEmbedding`: with a fixed
    vocabulary or growing with their ids, under the default strategy, OneDevice
    and Mirrored. They are not Keras weights: they are updated when a Keras
    optimizer applies the gradient of the layer's only weight, as `Model.fit`
    does, by the optimizer given here. The model's optimizer trains the other
    weights. A gradient that is not applied moves nothing. Gradients of several
    calls or steps may be added up and scaled: the tables' updates are too. The
    last 64 of them, of 1 GiB together, wait for an optimizer, with their ids
    and the gradients of their activations. (In a loop of your own under Mirrored, rows
    move when the gradient is taken: a warning says so.) A layer that is not
    trainable, or that is called with training=False, only looks up.

    Batches may have any size, so may the last one of an epoch. Tables are saved
    with the model's weights, slots included, and in checkpoints as
    `<layer>/embedding/...`.

    The layer may be called with some of the features of a dict, for example
    those of a user tower, in another model. Then it looks up and trains only
    these. In `fit` each call is an update: if several calls of a step look up
    one table, its rows are updated several times.

    If the loss is scaled, as under a float16 policy, the layer divides the
    tables' gradients by the scale, in a model's `train_step` by that of the
    model's optimizer. In a custom loop set `loss_scale_optimizer` to the
    optimizer, or to False if the loss is not scaled.

    Args:
      feature_configs: a FeatureConfig or a structure of them, without output
        shapes, of tfembed, keras-rs or `tfembed.keras.layers`; or another
        DistributedEmbedding, whose tables this layer shares.
      optimizer: the optimizer of tables that have none: of
        `tfembed.optimizers`; or Keras' SGD, Adagrad, Adam or Ftrl, or its name,
        whose updates it computes. None for tables that are never trained.
      nonfinite: as for `tfembed.TPUEmbedding`.
      **kwargs: arguments of keras.layers.Layer; and `table_stacking`,
        `update_stats` of keras-rs, which have no effect here.

    Raises:
      The errors of `tfembed.TPUEmbedding`.
    """

    embeddings = NoMatrix()
    _shared: _Shared
    _trap: _TrapWeight
    _tables: LayerTables
    table_files: TableFiles

    def __init__(
        self,
        feature_configs: Any,
        optimizer: Any = _ADAM,
        *,
        nonfinite: str = "skip",
        **kwargs: Any,
    ) -> None:
        say_unused({n: kwargs.pop(n) for n in _OF_KERAS_RS if n in kwargs})
        # The ids' weights are not cast, whatever the dtype policy.
        super().__init__(autocast=False, **kwargs)
        # On a GPU Keras would choose XLA; tables are on the host.
        self.supports_jit = False
        first = _sharer(feature_configs, optimizer)
        self._is_sharer = first is not None
        if first is not None:
            self._shared = first._shared
        else:
            rule = described(optimizer)
            tables = embedding.TPUEmbedding(
                as_features(feature_configs), rule, nonfinite=nonfinite
            )
            self._shared = _Shared(
                tables,
                rule,
                nonfinite,
                ModelOptimizer(self.name, tables.table_rates),
                _taken_updates(self.name),
            )
        self.embedding = self._shared.embedding
        # Keras saves the state that it finds here.
        self.optimizers = _keras_optimizers(self.embedding)
        for i, one in enumerate(self.optimizers):
            track(self, f"optimizer_{i}", one)  # For tf.train.Checkpoint.
        self.loss_scale_optimizer: Any = None
        if first is not None:
            # One weight for all tables, so that optimizers restore their slots.
            self._trap, self._tables = first._trap, first._tables
            self.table_files = first.table_files
        else:
            with keras.name_scope(self.name):
                self._trap = _TrapWeight(
                    initializer="zeros",
                    shape=(SLOTS,),
                    dtype="float32",
                    trainable=self.trainable,
                    autocast=False,
                    name="trap",
                )
            self._tables = LayerTables(
                self.name, self.embedding, self._trap.variable
            )
            self._trap.tables = self._tables
            self._trap.taken = self._shared.taken
            self.table_files = TableFiles(self._tables)
        self.built = True

    def __repr__(self) -> str:
        words = repr(self.embedding).partition(": ")[2]
        return f"<{type(self).__name__} '{self.name}': {words}"

    def __dir__(self) -> list[str]:
        # Hidden from Keras' saving of layers: the optimizer belongs to the
        # model, and would be saved here instead.
        return [n for n in super().__dir__() if n != "loss_scale_optimizer"]

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as Keras does; a packed batch becomes a dict.

        Keras takes only tensors and arrays: ids in lists become tensors here.
        """
        if isinstance(inputs, embedding.PackedFeatures):
            inputs = packed_inputs.as_inputs(inputs)
        if _has_plain_ids(inputs):
            features = self.embedding.feature_config
            inputs = with_tensors(features, self._structured(inputs), as_ids)
            if _has_plain_ids(inputs):
                known = (
                    list(features) if isinstance(features, dict) else features
                )
                given = list(inputs) if isinstance(inputs, dict) else inputs
                raise errors.ArgumentError(
                    f"Inputs of layer '{self.name}' must have the structure of its "
                    f"features, or of a part of a dict: {known}; got {given}."
                )
        if _are_symbolic(inputs):
            forget_shared_object(self)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Any, weights: Any = None, training: Any = None
    ) -> Any:
        """Returns the activations, in the layer's compute dtype.

        Args:
          inputs: integer ids, structured as the features, or as some of them,
            or with lists for their tuples: Tensors [B]; [B, n] whose ids are
            combined, or a sequence (of one id, too); [B, ..., n] whose last
            dimension is combined; SparseTensors; RaggedTensors of rank 2; or
            what `preprocess` returns.
          weights: None, or a structure like `inputs` of None and float tensors
            of the type and shape of the ids.
          training: whether the weight has a gradient. None: True in a function,
            or if a tape is open during this call.

        Returns:
          Structured as the inputs: [B, dim], or [B, max_sequence_length, dim],
          or [B, ..., dim] for ids of rank 3 or above.

        Raises:
          tfembed.errors.DtypeError: ids of another dtype. Dense floats that
            come while a function is traced are refused when it runs, by an
            InvalidArgumentError: Keras traces a model that it loads with
            floats.
        """
        self.table_files.check_loaded()
        self._tables.record_access()
        if training is None:
            # A tape may be around what is traced now, and what recomputes the
            # call pauses the tapes. An update is made with a gradient alone, so
            # none goes with an exported function.
            training = (
                not tf.executing_eagerly()
                or ops.tape_records()
                or is_recomputed()
            )
        is_trained = self.trainable and training
        if is_trained:
            self._shared.model_optimizer.note_call()
        say_why_not_compiled(self)
        lookup = dataclasses.replace(
            self.embedding.trained_lookup(), after_update=self._count_step
        )
        if is_trained and not _moves_at_once(model_stepping()):
            if self._shared.taken is None:
                self._shared.model_optimizer.say_moved_by_gradient()
            elif tf.executing_eagerly() or tf.inside_function():
                lookup = dataclasses.replace(lookup, taken=self._shared.taken)
        part, indices = self._part(inputs)
        if len(indices) < len(lookup.plan.features):
            lookup = lookup.subset(indices, part)
        activations = lookup.look_up(
            self._ids(inputs, lookup.plan),
            with_tuples(weights, part),
            trap=self._trap.read() if is_trained else None,
            scale=self._loss_scale,
        )
        return tf.nest.map_structure(
            lambda a: tf.cast(a, self.compute_dtype), activations
        )

    def preprocess(
        self, inputs: Any, weights: Any = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """Packs all features into a few tensors, as `tfembed.pack_features`.

        Use it in `Dataset.map`. A model takes the result as its input, and
        passes it to the layer.

        Args:
          inputs, weights: as for `call`, but for the symbolic inputs of a
            model.
          training: accepted for keras-rs' sake.

        Raises:
          tfembed.errors.UnsupportedError: symbolic inputs.
        """
        del training
        if _are_symbolic(inputs):
            raise errors.UnsupportedError(
                f"`preprocess` of layer '{self.name}' packs batches of ids, and "
                "got symbolic inputs of a model, as keras.Input makes them. Call "
                "the layer on them: `layer(inputs)` takes ids as they are. To "
                "feed packed batches, map `preprocess` over the data and give "
                "the model a keras.Input for each item of its `element_spec`."
            )
        features = self.embedding.feature_config
        inputs = with_tensors(features, self._structured(inputs), as_ids)
        if weights is not None:
            weights = with_tensors(
                features, self._structured(weights), as_weights
            )
            inputs, weights = weights_in_bags(inputs, weights, features)
        return packed_inputs.as_inputs(embedding.pack_features(inputs, weights))

    def get_embedding_tables(self) -> dict[str, Any]:
        """Returns the tables by name.

        A table is a tf.Variable [vocabulary_size, dim], or without a vocabulary
        a HashTable.
        """
        tables = self.embedding.embedding_tables
        return {config.name: table for config, table in tables.items()}

    def _tables_by_name(self) -> dict[str, Any]:
        return self.get_embedding_tables()

    def compute_output_spec(
        self, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Returns the outputs' specs for functional models.

        The `call` of a user's subclass is traced instead, since its input need
        not be ids and its output need not be activations.

        Raises:
          The errors of `output_specs`.
        """
        if is_below(type(self), "call", "compute_output_spec"):
            return keras.Operation.compute_output_spec(
                self, inputs, *args, **kwargs
            )
        inputs = self._structured(inputs)
        if packed_inputs.is_packed(inputs):
            inputs = packed_inputs.input_shapes(
                inputs, self.embedding.feature_config
            )
        part, _ = self._part(inputs)
        return output_specs(part, inputs, self.compute_dtype)

    def count_params(self) -> int:
        """Counts the rows' numbers; a summary shows rows and bytes."""
        return table_count(self.get_embedding_tables().items())

    def compute_output_shape(self, input_shapes: Any) -> Any:
        """Returns the shapes of the activations, structured as the features."""
        inputs = keras.tree.map_shape_structure(
            lambda shape: keras.KerasTensor(shape, "int64"), input_shapes
        )
        return keras.tree.map_structure(
            lambda spec: spec.shape, self.compute_output_spec(inputs)
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the layer's arguments.

        Raises:
          tfembed.errors.ArgumentError: a function among them is not registered
            with Keras.
        """
        shared = self._shared
        arguments = (self.embedding.feature_config, shared.optimizer)
        return {
            **super().get_config(),
            "described": descriptions.to_json(arguments),
            "nonfinite": shared.nonfinite,
            "tables": shared.key,
            "is_shared": self._is_sharer,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """Makes a layer from the dict of `get_config`.

        When a whole model is loaded and a layer is part of several inner
        models, Keras makes a layer for each of these. The layers share the
        tables.
        """
        arguments = dict(config)
        described_arguments = arguments.pop("described")
        key = ("tfembed", arguments.pop("tables"))
        is_shared = arguments.pop("is_shared", False)
        loaded = shared_objects()
        if loaded is None and is_shared:
            say_not_shared(arguments["name"])
        if loaded is not None and key in loaded:
            del arguments["nonfinite"]
            return cls(loaded[key], **arguments)
        layer = cls(*descriptions.from_json(described_arguments), **arguments)
        if loaded is not None:
            loaded[key] = layer
        return layer

    def save_own_variables(self, store: Any) -> None:
        """Writes nothing: `TableFiles` has the tables."""

    def load_own_variables(self, store: Any) -> None:
        """Reads nothing: `TableFiles` has the tables."""

    def _structured(self, inputs: Any) -> Any:
        return with_tuples(inputs, self.embedding.feature_config)

    def _part(self, inputs: Any) -> tuple[Any, list[int]]:
        """Returns the structure of a call's features, and their indices."""
        features = self.embedding.feature_config
        if packed_inputs.is_packed(inputs):
            inputs = features
        flat = tf.nest.flatten(features)
        numbered = tf.nest.pack_sequence_as(features, range(len(flat)))
        indices = tf.nest.flatten(_part_of(inputs, numbered))
        return _part_of(inputs, features), indices

    def _count_step(self, tables: set[str]) -> None:
        """Counts an update of some tables, for Keras optimizers."""
        counted = [
            one
            for one in self.optimizers
            if any(
                keras_optimizer_of(config.optimizer) is one
                for config in self.embedding.embedding_tables
                if config.name in tables
            )
        ]
        for one in counted:
            one.iterations.assign_add(1)

    def _ids(self, inputs: Any, plan: Any) -> Any:
        """Converts the inputs of `call` to the inputs of a lookup."""
        if packed_inputs.is_packed(inputs):
            return packed_inputs.from_inputs(inputs, plan.feature_config)
        values = plan.flatten_inputs(self._structured(inputs), "features")
        ids = map(packed_inputs.ids_for, values, plan.paths, plan.features)
        return plan.pack(list(ids))

    def _loss_scale(self) -> Any:
        optimizer = self.loss_scale_optimizer
        if optimizer is None:
            optimizer = getattr(model_stepping(), "optimizer", None)
        if optimizer is None and self.compute_dtype == "float16":
            raise errors.StateError(
                f"Layer '{self.name}' computes in float16 and does not know the "
                "loss scale. Set its `loss_scale_optimizer` to the optimizer that "
                "scales the loss, a LossScaleOptimizer, or to False where the loss "
                "is not scaled."
            )
        if not optimizer:
            return 1.0
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return getattr(optimizer, "loss_scale_factor", None) or 1.0
        if not optimizer.built:
            return optimizer.initial_scale
        return tf.convert_to_tensor(optimizer.dynamic_scale)


@dataclasses.dataclass(frozen=True, eq=False)
class _Shared:
    """The tables of one or several layers, and their training.

    Attributes:
      embedding: the tables.
      optimizer: the optimizer of tables that have none.
      nonfinite: as given.
      model_optimizer: finds the optimizer of the model that calls the layers.
      taken: the updates that wait for an optimizer; None: none does.
      key: the tables' name in saved models.
    """

    embedding: embedding.TPUEmbedding
    optimizer: Any
    nonfinite: str
    model_optimizer: ModelOptimizer
    taken: TakenUpdates | None
    key: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.embedding.follow_learning_rate(self.model_optimizer.learning_rate)


def _taken_updates(layer: str) -> TakenUpdates | None:
    """Returns what keeps updates; None under a strategy with several replicas.

    Their gradients are brought together in the backward pass.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1 or is_tpu(strategy):
        return None
    return TakenUpdates(layer)


def _moves_at_once(model: Any) -> bool:
    """Says whether a gradient that is taken in a model's step moves rows.

    Keras' own step applies all gradients that it takes.
    """
    return model is not None and (
        type(model).train_step is keras.Model.train_step
        or bool(getattr(model.optimizer, "gradient_accumulation_steps", None))
    )


def _sharer(
    feature_configs: Any, optimizer: Any
) -> DistributedEmbedding | None:
    """Returns the layer whose tables to share, if a layer was given."""
    if not isinstance(feature_configs, DistributedEmbedding):
        return None
    if optimizer is not _ADAM:
        raise errors.ArgumentError(
            "`optimizer` must be left out where a layer is given, whose tables "
            f"have optimizers; got {optimizer!r}."
        )
    return feature_configs


def _keras_optimizers(tables: embedding.TPUEmbedding) -> list[Any]:
    """Returns the distinct Keras optimizers of tables."""
    features = tf.nest.flatten(tables.feature_config)
    found = [keras_optimizer_of(one.table.optimizer) for one in features]
    return list({id(one): one for one in found if one is not None}.values())


def _are_symbolic(inputs: Any) -> bool:
    """Says whether `inputs` have symbolic inputs of a functional model."""
    return any(
        isinstance(one, keras.KerasTensor) for one in tf.nest.flatten(inputs)
    )


def _has_plain_ids(inputs: Any) -> bool:
    """Says whether `inputs` have scalars, or arrays or columns of objects."""
    return any(
        isinstance(one, (int, str, bytes, np.generic))
        or (
            hasattr(one, "__array__")
            and not isinstance(one, TENSORS)
            and getattr(one, "dtype", None) == np.dtype(object)
        )
        for one in tf.nest.flatten(inputs)
    )


def _part_of(inputs: Any, structure: Any) -> Any:
    """Returns the part of a structure whose keys are in `inputs`.

    Dicts may omit keys, at any depth. Lists and tuples may not omit items,
    since items have no names.

    Args:
      inputs: structured as the features, or as a part of them.
      structure: the structure of all features.

    Returns:
      The part; all of `structure` if `inputs` has other keys, so that the
      caller's comparison raises an error that names them.
    """
    if not isinstance(inputs, dict) or not isinstance(structure, dict):
        return structure
    if not inputs or any(key not in structure for key in inputs):
        return structure
    return {
        key: _part_of(inputs[key], one)
        for key, one in structure.items()
        if key in inputs
    }
