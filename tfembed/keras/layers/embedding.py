"""A Keras layer for one feature, which takes strings or any integers.

The table belongs to an inner `dynamic_embedding` layer: tapes sum the gradients
of all of its lookups, as for the weight of a Keras `Embedding`, so a step
updates a row once, however many layers look it up. (`DistributedEmbedding`
updates rows in the backward pass of each call: right for all features of a
model in one call, but not for a table that several layers share.) The inner
layer also handles files, checkpoints and exports.
"""

from __future__ import annotations

import dataclasses
import uuid
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import checks, errors, initializers
from tfembed.dynamic_embedding.keras import layer_config
from tfembed.dynamic_embedding.keras import layers as table_layers
from tfembed.dynamic_embedding.keras.float_ids import as_ids
from tfembed.dynamic_embedding.keras.private import (
    forget_shared_object,
    shared_objects,
)
from tfembed.dynamic_embedding.keras.table_counts import no_rows, table_count
from tfembed.keras import descriptions
from tfembed.keras.layers.table_rows import TableRows
from tfembed.keras.table_optimizers import table_optimizer
from tfembed.keras.table_training import TableTraining
from tfembed.ops.private import in_symbolic_scope
from tfembed.tables import arguments

__all__ = ["Embedding"]

_NO_TABLE = "no_table"

_OF_KERAS = {
    "embeddings_constraint": "would move all rows in each step; `max_norm` limits "
    "the rows that are looked up",
    "embeddings_regularizer": "would move all rows in each step; regularize the "
    "rows that the layer returns",
    "input_dim": "is a size, and the table grows with its ids; leave it out",
    "output_dim": "is called `dim` here",
    "weights": "are rows by number; put rows by key into `layer.table`",
}

_POLICIES = ("admission", "eviction", "expiry")


@keras.saving.register_keras_serializable(package="tfembed.keras")
class Embedding(TableRows, keras.layers.Layer):
    """Turns ids into rows: ids.shape -> ids.shape + [dim].

    It replaces `keras.layers.StringLookup` and `keras.layers.Embedding`. Ids
    are strings or any integers; no vocabulary must be counted first, and
    unknown ids share no bucket:

        model = keras.Sequential([
            keras.Input((), dtype="string"),
            tfembed.keras.layers.Embedding(32),
            keras.layers.Dense(1),
        ])
        model.compile(optimizer="adam", loss="mse")
        model.fit(names, targets)

    An id gets its row in the first training step that looks it up. Until then,
    and in evaluation and prediction, it reads its initial row.

    Rows are trained as weights of the model: by the optimizer of `compile`, or
    of a custom loop, with its rule, learning rate and clipping, and slots
    beside each row. A step does not change the rows and slots of other ids.

    Args:
      dim: floats per row; None with `table`.
      optimizer: the optimizer of the table alone: a name, an optimizer of
        Keras, or one of `tfembed.optimizers`. None: the optimizer that takes
        the step.
      embeddings_initializer: the initializer of new rows: a name or an
        initializer of Keras, or what `tfembed.initializers.row_initializer`
        takes.
      mask_zero: whether the id 0, or "" of strings, is padding: it has no row,
        reads zeros, and is masked for the layers that follow.
      key_dtype: "int64" or "string"; None: by the dtype of the first input.
      table: another `Embedding`, whose table this layer shares. A step then
        updates a row once, by the summed gradients of all lookups. The other
        layer has all options of the table.
      max_norm: longer rows (L2) are scaled down to it.
      admission, eviction, expiry, max_size: the policies that decide which ids
        get a row and which rows are removed, as in `tfembed.TableConfig`.
      fan_in: the number of rows by which VarianceScaling, Glorot, He and Lecun
        scale new rows, as Keras does by `input_dim`. None: `max_size`, else 1, of
        which a warning tells.
      value_dtype: the dtype of the rows: float32, float16 or bfloat16.
      stochastic_rounding: as in `tfembed.TableConfig`.
      **kwargs: arguments of keras.layers.Layer.

    Raises:
      tfembed.errors.ArgumentError: a value that is not allowed.
      tfembed.errors.UnsupportedError: an optimizer that cannot train tables.
    """

    embeddings = layer_config.NoMatrix()

    def __init__(
        self,
        dim: int | None = None,
        *sizes: Any,
        optimizer: Any = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        key_dtype: Any = None,
        table: Any = None,
        max_norm: float | None = None,
        admission: Any = None,
        eviction: Any = None,
        expiry: Any = None,
        max_size: int | None = None,
        fan_in: int | None = None,
        value_dtype: Any = "float32",
        stochastic_rounding: bool = False,
        **kwargs: Any,
    ) -> None:
        if sizes:
            raise errors.ArgumentError(
                "An Embedding takes one size, the width of its rows; got "
                f"{(dim, *sizes)}. Leave out `input_dim`, the first of "
                "keras.layers.Embedding: the table grows with its ids."
            )
        for name, reason in _OF_KERAS.items():
            if name in kwargs:
                raise errors.ArgumentError(
                    f"`{name}` of keras.layers.Embedding {reason}. Got "
                    f"{kwargs[name]!r}."
                )
        super().__init__(**kwargs)
        arguments.check_name(self.name)
        # On a GPU Keras would choose XLA; tables are on the host.
        self.supports_jit = False
        self.mask_zero = bool(mask_zero)
        options = _TableOptions(
            dim=dim,
            optimizer=optimizer,
            embeddings_initializer=embeddings_initializer,
            max_norm=max_norm,
            admission=admission,
            eviction=eviction,
            expiry=expiry,
            max_size=max_size,
            fan_in=fan_in,
            value_dtype=value_dtype,
            stochastic_rounding=stochastic_rounding,
        )
        if table is None:
            self._held = _HeldTable(
                options.checked(key_dtype, self.name), self.name
            )
        else:
            if not isinstance(table, (Embedding, _HeldTable)):
                raise errors.ArgumentError(
                    f"`table` of layer '{self.name}' must be another "
                    "tfembed.keras.layers.Embedding, whose table it looks up "
                    f"too; got {type(table).__name__}."
                )
            options.check_shares(self.name)
            self._held = table._held if isinstance(table, Embedding) else table
        self._is_sharer = table is not None
        # Keras saves the state that it finds here.
        self.optimizer = self._held.options.optimizer
        self._table_layer: Any = None
        # Builds the layer, so that a summary shows the table.
        self.built = type(self).build is Embedding.build
        if key_dtype is not None or self._held.layer is not None:
            self._make(key_dtype)

    def __repr__(self) -> str:
        words = f"ids -> {self._held.options.value_dtype} [{self.dim}], no input yet"
        if self.table is not None:
            words = self.table.table.in_words()
        return f"<{type(self).__name__} '{self.name}': {words}>"

    @property
    def dim(self) -> int:
        """Floats per row."""
        return self._held.options.dim

    @property
    def optimizer(self) -> Any:
        """The optimizer of the table alone, or None; it may be set.

        The rows stay when it is set. Slots of the same rule stay too, those of
        another begin anew, with a warning.
        """
        return self._held.optimizers.get(self)

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        converted = table_optimizer(optimizer)
        if converted is not optimizer:
            self.optimizer = converted  # Keras tracks objects, not their names.
            return
        is_other = self._held.take(optimizer)
        self._held.optimizers[self] = optimizer
        for layer in list(self._held.optimizers) if is_other else ():
            layer.optimizer = optimizer

    @property
    def table(self) -> Any:
        """The `tfembed.dynamic_embedding.Variable`.

        It is None before the first input if no `key_dtype` was given.
        """
        layer = self._table_layer
        return None if layer is None or layer.has_guessed_keys else layer.params

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as Keras does; the first input sets the key dtype."""
        table = self.table
        inputs = as_ids(
            inputs, None if table is None else table.key_dtype, self.name
        )
        self._see(inputs)
        if isinstance(inputs, keras.KerasTensor):
            forget_shared_object(self)
        return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Does nothing: the first input made the table."""

    def call(self, inputs: Any) -> Any:
        """Returns the rows of `inputs`, a tensor or a tf.RaggedTensor."""
        self._see(inputs)  # Wrappers, as TimeDistributed, call this alone.
        self._held.training.check_step()
        if not self.mask_zero:
            return self._table_layer(inputs)
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        positions = tf.where(tf.not_equal(inputs, padding_of(inputs.dtype)))
        rows = self._table_layer(tf.gather_nd(inputs, positions))
        shape = tf.concat([tf.shape(inputs), [self.dim]], 0)
        found = tf.scatter_nd(positions, rows, tf.cast(shape, tf.int64))
        return tf.ensure_shape(found, [*inputs.shape, self.dim])

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Says which ids are not padding.

        Returns None for ragged ids, and without `mask_zero`.
        """
        del mask
        if not self.mask_zero or isinstance(inputs, tf.RaggedTensor):
            return None
        return PaddingMask()(inputs)

    def compute_output_spec(
        self, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Returns the output's spec for functional models.

        Raises:
          tfembed.errors.UnsupportedError: (also NotImplementedError) floats, so
            that a Sequential model inside of another waits for ids too.
        """
        if not layer_config.is_below(
            type(self), "call", "compute_output_shape"
        ):
            self._key_dtype(inputs)
        return super().compute_output_spec(inputs, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns ids.shape + [dim]."""
        return (*input_shape, self.dim)

    def count_params(self) -> int:
        """Counts the rows' numbers; a summary shows rows and bytes."""
        if self.table is None:
            return no_rows(self.dim)
        return table_count([("", self.table)])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer.

        Raises:
          tfembed.errors.ArgumentError: functions among them that are not
            registered with Keras.
        """
        table = self.table
        config = {
            **super().get_config(),
            **self._held.options.config(),
            "mask_zero": self.mask_zero,
            "key_dtype": None if table is None else table.key_dtype.name,
        }
        if table is not None:
            config["table"] = self._held.key
            config["is_shared"] = self._is_sharer
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Makes a layer from the dict of `get_config`.

        Layers that shared a table share one again if a whole model is loaded.
        """
        arguments = dict(config)
        key = ("tfembed", arguments.pop("table", None))
        is_shared = arguments.pop("is_shared", False)
        options = _TableOptions.of_config(arguments)
        loaded = shared_objects()
        if loaded is not None and key in loaded:
            return cls(table=loaded[key], **arguments)
        if loaded is None and is_shared:
            layer_config.say_not_shared(arguments["name"])
        layer = cls(**vars(options), **arguments)
        if loaded is not None and key[1] is not None:
            loaded[key] = layer._held
        return layer

    def save_own_variables(self, store: Any) -> None:
        """Writes a mark of a layer that has no table yet."""
        if self.table is None:
            store[_NO_TABLE] = np.ones([1], np.int8)

    def load_own_variables(self, store: Any) -> None:
        """Makes the table that Keras reads next, without inputs so far."""
        if _NO_TABLE not in list(store.keys()):
            self._guess()

    def _key_dtype(self, inputs: Any) -> tf.DType:
        """Returns the key dtype for the dtype of ids.

        Raises:
          tfembed.errors.UnsupportedError: floats. It is a NotImplementedError,
            so that a Sequential model waits for ids before it builds.
        """
        dtype = tf.as_dtype(inputs.dtype)
        if dtype.is_integer:
            return tf.int64
        if dtype == tf.string:
            return dtype
        if tf.TensorShape(inputs.shape).num_elements() == 0:
            raise errors.UnsupportedError(
                f"Layer '{self.name}' does not know the dtype of its keys: its "
                "first input has no ids. Give the layer `key_dtype`, 'int64' or "
                "'string', or call it with ids first."
            )
        raise errors.UnsupportedError(
            f"Ids of layer '{self.name}' must be integers or strings; got "
            f"{dtype.name}. Begin the model, and each Sequential inside of it, "
            "with keras.Input(shape, dtype='int64'), or dtype='string'."
        )

    def _tables_by_name(self) -> dict[str, Any]:
        table = self.table
        if table is None:
            raise errors.StateError(
                f"Layer '{self.name}' has no table yet: it does not know the "
                "dtype of its ids. Call it with ids first, or give it "
                "`key_dtype`, 'int64' or 'string'."
            )
        return {table.name: table.table}

    def _is_stand_in(self, inputs: Any) -> bool:
        """Says whether Keras is building a loaded model with floats as ids."""
        return bool(
            not isinstance(inputs, keras.KerasTensor)
            and inputs.dtype.is_floating
            and in_symbolic_scope()
        )

    def _see(self, inputs: Any) -> None:
        """Makes the table, if these are the first ids."""
        if self._is_stand_in(inputs):
            self._guess()
        elif isinstance(inputs, keras.KerasTensor) or self.table is None:
            self._make(self._key_dtype(inputs))

    def _guess(self) -> None:
        """Makes a table before there are ids; they may change the key dtype."""
        if self._held.layer is None:
            self._make(tf.int64)
            self._table_layer.has_guessed_keys = True
        self._make(None)

    def _make(self, key_dtype: Any) -> None:
        """Makes or finds the table, if this layer has none yet."""
        if self._table_layer is None:
            self._table_layer = self._held.made(self, key_dtype)
        if key_dtype is not None and self._table_layer.has_guessed_keys:
            self._table_layer.take_keys(key_dtype)
        wanted = self._table_layer.params.key_dtype
        if key_dtype is not None and tf.as_dtype(key_dtype) != wanted:
            raise errors.DtypeError(
                f"Ids of layer '{self.name}' must be {wanted.name}, as the keys "
                f"of its table are; got {tf.as_dtype(key_dtype).name}."
            )


@dataclasses.dataclass(frozen=True)
class _TableOptions:
    """The options of a layer's table."""

    dim: Any = None
    optimizer: Any = None
    embeddings_initializer: Any = "uniform"
    max_norm: float | None = None
    admission: Any = None
    eviction: Any = None
    expiry: Any = None
    max_size: int | None = None
    fan_in: int | None = None
    value_dtype: Any = "float32"
    stochastic_rounding: bool = False

    def checked(self, key_dtype: Any, layer: str) -> _TableOptions:
        """Returns the options with objects in place of names.

        Args:
          key_dtype: the dtype of the keys; None: not known yet.
          layer: the name of the layer.

        Raises:
          tfembed.errors.ArgumentError: a value that is not allowed.
          tfembed.errors.DtypeError: dtypes that no such table has, or an object
            that is no policy of its kind.
        """
        initializer = self.embeddings_initializer
        if isinstance(initializer, str):
            initializer = initializers.by_name(initializer, keras.initializers)
        _, value_dtype = arguments.table_dtypes(
            "int64" if key_dtype is None else key_dtype, self.value_dtype
        )
        arguments.check_trained(value_dtype, layer)
        arguments.check_policies(
            admission=self.admission,
            eviction=self.eviction,
            expiry=self.expiry,
            max_size=self.max_size,
            table=layer,
        )
        return dataclasses.replace(
            self,
            dim=checks.integer(self.dim, "dim", least=1),
            fan_in=initializers.known_fan_in(self.fan_in),
            optimizer=table_optimizer(self.optimizer),
            embeddings_initializer=initializer,
            value_dtype=value_dtype.name,
        )

    def check_shares(self, layer: str) -> None:
        """Refuses options of a layer that shares the table of another."""
        given = [
            field.name
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        if given:
            raise errors.ArgumentError(
                f"Layer '{layer}' shares the table of another layer, whose "
                f"options are the table's; got {given} too. Leave them out."
            )

    def config(self) -> dict[str, Any]:
        """Returns the options as JSON, for `of_config`.

        Raises:
          tfembed.errors.ArgumentError: a function among them is not registered
            with Keras.
        """
        optimizer = self.optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer = keras.optimizers.serialize(optimizer)
        elif optimizer is not None:
            optimizer = {"described": descriptions.to_json(optimizer)}
        return {
            **vars(self),
            **{
                name: layer_config.policy_config(getattr(self, name))
                for name in _POLICIES
            },
            "optimizer": optimizer,
            "embeddings_initializer": layer_config.initializer_config(
                self.embeddings_initializer,
                self.dim,
                initializers.known_fan_in(self.fan_in, self.max_size),
            ),
        }

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> _TableOptions:
        """Takes the options of `config` out of a layer's config."""
        options = {
            field.name: config.pop(field.name)
            for field in dataclasses.fields(cls)
        }
        for name in _POLICIES:
            options[name] = layer_config.policy_of(options[name])
        options["embeddings_initializer"] = layer_config.initializer_of(
            options["embeddings_initializer"]
        )
        optimizer = options["optimizer"]
        if optimizer is not None and "described" in optimizer:
            options["optimizer"] = descriptions.from_json(
                optimizer["described"]
            )
        elif optimizer is not None:
            options["optimizer"] = keras.optimizers.deserialize(optimizer)
        return cls(**options)


class _HeldTable:
    """A table that may not be made yet; layers share a table by this object.

    Args:
      options: checked.
      name: the name of the layer that has the table.

    Attributes:
      options: as given.
      key: the table's name in saved models.
      layer: a layer of `dynamic_embedding`, or None.
      optimizers: the optimizer by each layer that shares the table, the same
        for all. Keras tracks only what a layer's attribute was not before.
    """

    def __init__(self, options: _TableOptions, name: str) -> None:
        self.options = options
        self.key = uuid.uuid4().hex
        self.layer: Any = None
        self.optimizers: weakref.WeakKeyDictionary[Embedding, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._name = name
        self.training: Any = None  # A TableTraining, once there is a table.

    def take(self, optimizer: Any) -> bool:
        """Takes another optimizer; returns whether it is another one."""
        if optimizer is self.options.optimizer:
            return False
        if self.training is not None:
            self.training.take(optimizer)
        self.options = dataclasses.replace(self.options, optimizer=optimizer)
        return True

    def made(self, holder: Embedding, key_dtype: Any) -> Any:
        """Returns the inner layer; the first call makes it."""
        if self.layer is None:
            options = self.options
            with tf.init_scope():
                layer = table_layers.Embedding(
                    options.dim,
                    key_dtype=tf.as_dtype(key_dtype),
                    value_dtype=tf.as_dtype(options.value_dtype),
                    initializer=options.embeddings_initializer,
                    name=self._name,
                    table_name=self._name,
                    max_norm=options.max_norm,
                    admission=options.admission,
                    eviction=options.eviction,
                    expiry=options.expiry,
                    max_size=options.max_size,
                    fan_in=options.fan_in,
                    stochastic_rounding=options.stochastic_rounding,
                    dtype=holder.dtype_policy,
                    trainable=holder.trainable,
                )
            self.training = TableTraining(layer, options.optimizer)
            layer.weight.mover = self.training
            layer.weight.table_attribute = "layer.table"
            self.layer = layer
        return self.layer


def padding_of(dtype: tf.DType) -> tf.Tensor:
    """Returns the padding id: 0, or "" for strings."""
    return tf.constant("" if dtype == tf.string else 0, dtype)


@keras.saving.register_keras_serializable(package="tfembed.keras")
class PaddingMask(keras.Operation):
    """Says which ids, integers or strings, are not padding."""

    def call(self, ids: Any) -> tf.Tensor:
        """Returns booleans of the ids' shape."""
        return tf.not_equal(ids, padding_of(ids.dtype))

    def compute_output_spec(self, ids: Any) -> Any:
        """Returns the spec: booleans of the ids' shape."""
        return keras.KerasTensor(ids.shape, "bool")
