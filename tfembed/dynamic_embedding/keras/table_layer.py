"""The base of all Keras layers over a table: config, files and lookup."""

from __future__ import annotations

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfembed import checks, errors, ops
from tfembed.dynamic_embedding.keras import layer_config, row_files
from tfembed.dynamic_embedding.keras.float_ids import LayerKeys, as_ids
from tfembed.dynamic_embedding.keras.layer_config import is_below
from tfembed.dynamic_embedding.keras.private import (
    asked_for_jit,
    model_stepping,
)
from tfembed.dynamic_embedding.keras.table_counts import table_count
from tfembed.dynamic_embedding.keras.table_variable import TableVariable
from tfembed.dynamic_embedding.lookups.lookup import (
    embedding_lookup,
    embedding_lookup_unique,
)
from tfembed.dynamic_embedding.lookups.shadow_variable import TableShadow
from tfembed.dynamic_embedding.lookups.trainable import check_max_norm
from tfembed.dynamic_embedding.variables.arguments import (
    default_partition_fn,
    device_list,
)
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.initializers import known_fan_in
from tfembed.tables.arguments import at_hand

__all__ = ["LayerOptions", "TableLayer", "say_why_not_compiled"]


_POLICIES = ("admission", "eviction", "expiry")

# Option -> its least value.
_INTEGERS = {"fan_in": 1, "init_capacity": 0, "max_size": 1}


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Options of a layer's table: `Variable`'s, and `max_norm` for lookups.

    `table_name` is the table's name; None: `<name of the layer>-parameter`, as
    in TFRA.
    """

    admission: Any = None
    bp_v2: bool = False
    checkpoint: bool = True
    eviction: Any = None
    expiry: Any = None
    fan_in: int | None = None
    init_capacity: int = 0
    kv_creator: Any = None
    max_norm: float | None = None
    max_size: int | None = None
    partitioner: Any = None
    restrict_policy: Any = None
    stochastic_rounding: bool = False
    table_name: str | None = None

    @classmethod
    def take_from(cls, kwargs: dict[str, Any]) -> LayerOptions:
        """Takes the options out of a layer's keyword arguments.

        Raises:
          tfembed.errors.UnsupportedError: a `distribute_strategy`, or a Keras
            that does not run on TensorFlow.
        """
        if keras.backend.backend() != "tensorflow":
            raise errors.UnsupportedError(
                "tfembed's layers need Keras on TensorFlow; it runs on "
                f"'{keras.backend.backend()}'. Set KERAS_BACKEND=tensorflow."
            )
        if kwargs.pop("distribute_strategy", None) is not None:
            raise errors.UnsupportedError(
                "`distribute_strategy` is not in this release; leave it None. "
                "tfembed.TPUEmbedding trains under strategies."
            )
        kwargs.pop("keep_distribution", None)  # Always True.
        names = [field.name for field in dataclasses.fields(cls)]
        options = {name: kwargs.pop(name) for name in names if name in kwargs}
        for name, least in _INTEGERS.items():
            if options.get(name) is not None:
                options[name] = checks.integer(options[name], name, least=least)
        if options.get("max_norm") is not None:
            # A Python float, for JSON; `check_max_norm` refuses other values.
            options["max_norm"] = checks.scalar(options["max_norm"])
        for name in ("partitioner", "restrict_policy"):
            options[name] = layer_config.object_of(options.get(name), name)
        if options["partitioner"] is default_partition_fn:
            options["partitioner"] = None  # So that it need not be registered.
        for name in _POLICIES:
            options[name] = layer_config.policy_of(options.get(name))
        return cls(**options)

    def known_fan_in(self) -> int | None:
        """Returns the number of rows for initializers; None: not known."""
        return known_fan_in(self.fan_in, self.max_size, self.init_capacity)

    def config(self) -> dict[str, Any]:
        """Returns the options as JSON, for `take_from`.

        `kv_creator` is left out: its only value is the default.

        Raises:
          tfembed.errors.ArgumentError: a function or class is not registered.
        """
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self)
        }
        for name in ("partitioner", "restrict_policy"):
            fields[name] = layer_config.name_of(fields[name], name)
        for name in _POLICIES:
            fields[name] = layer_config.policy_config(fields[name])
        if self.table_name is None:
            del fields["table_name"]
        return {**fields, "kv_creator": None}


_ROWS_IN_ASSETS = "rows_in_assets"

_NO_ROWS = "no_rows"


class TableLayer(keras.layers.Layer):
    """A table, lookups in it, and the hooks by which Keras saves it.

    For Keras the table is one weight of shape [0, size] (`TableVariable`).
    `Embedding` documents the arguments.
    """

    embeddings = layer_config.NoMatrix()

    def __init__(
        self,
        embedding_size: int,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: Any = "sum",
        initializer: Any = None,
        devices: str | Sequence[str] | None = None,
        name: str = "DynamicEmbeddingLayer",
        with_unique: bool = True,
        short_file_name: bool = False,
        **kwargs: Any,
    ) -> None:
        checks.integer(embedding_size, "embedding_size", least=1)
        options = LayerOptions.take_from(kwargs)
        if tf.as_dtype(value_dtype) != tf.float32:
            kwargs.setdefault("dtype", tf.as_dtype(value_dtype).name)
        super().__init__(name=name, **kwargs)
        # On a GPU Keras would choose XLA; tables are on the host.
        self.supports_jit = False
        self.combiner = layer_config.combiner_of(combiner)
        self.with_unique = bool(with_unique)
        self._options = options
        self._initializer = layer_config.initializer_of(initializer)
        self._devices = devices
        self._awaits_assets = False
        self.has_guessed_keys = False
        self._make_table(
            key_dtype, value_dtype, embedding_size, short_file_name
        )
        check_max_norm(options.max_norm, self.params)
        with keras.name_scope(self.name):
            self._weight = TableVariable(
                self.params, trainable=self.trainable, name="rows"
            )
        # Builds the layer, so that a summary shows the table.
        self.built = type(self).build is keras.layers.Layer.build

    def _make_table(
        self,
        key_dtype: Any,
        value_dtype: Any,
        size: int,
        short_file_name: bool,
    ) -> None:
        options = self._options
        self.params = Variable(
            key_dtype,
            value_dtype,
            size,
            self._devices,
            options.partitioner or default_partition_fn,
            name=options.table_name or f"{self.name}-parameter",
            initializer=(
                keras.initializers.RandomNormal()
                if self._initializer is None
                else self._initializer
            ),
            checkpoint=options.checkpoint,
            init_size=options.init_capacity,
            kv_creator=options.kv_creator,
            restrict_policy=options.restrict_policy,
            bp_v2=options.bp_v2,
            short_file_name=short_file_name,
            admission=options.admission,
            eviction=options.eviction,
            expiry=options.expiry,
            max_size=options.max_size,
            stochastic_rounding=options.stochastic_rounding,
            fan_in=options.fan_in,
        )
        self._keys = LayerKeys(self.name, self.params.key_dtype)
        self.params.as_keys = self._keys

    def take_keys(self, key_dtype: Any) -> None:
        """Corrects a guessed key dtype; makes a new table if it was wrong.

        Call it only if `has_guessed_keys` is set: then the table has no rows.
        """
        self.has_guessed_keys = False
        old = self.params
        if tf.as_dtype(key_dtype) == old.key_dtype:
            return
        with tf.init_scope():
            self._make_table(
                key_dtype,
                old.value_dtype,
                old.dim,
                old.short_file_name,
            )
        self._weight.stand_for(self.params)

    def __repr__(self) -> str:
        words = self.params.table.in_words()
        return f"<{type(self).__name__} '{self.name}': {words}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as Keras does, and accepts lists of ids too."""
        if args:
            args = (
                as_ids(args[0], self.params.key_dtype, self.name),
                *args[1:],
            )
        return super().__call__(*args, **kwargs)

    @property
    def embedding_size(self) -> int:
        """Floats per row."""
        return self.params.dim

    @property
    def max_norm(self) -> float | None:
        """The limit of the rows' L2 norm, or None."""
        return self._options.max_norm

    def count_params(self) -> int:
        """Counts the rows' numbers; a summary shows rows and bytes."""
        return table_count([("", self.params.table)])

    @functools.cached_property
    def shadow(self) -> TableShadow:
        """The source to differentiate with respect to in a custom loop.

        Its gradient is that of calls of the layer and of lookups through the
        shadow. Only lookups through the shadow set its ids and value.
        """
        with tf.init_scope():  # The first access may be in a trace.
            return TableShadow(
                self.params, f"{self.name}-shadow", max_norm=self.max_norm
            )

    @property
    def keep_distribution(self) -> bool:
        """True: a loaded layer has the devices that the saved one was given."""
        return True

    @property
    def optimizer_vars(self) -> list[Any]:
        """Views of the table's slots: `Variable.optimizer_vars`."""
        return self.params.optimizer_vars

    @property
    def weight(self) -> TableVariable:
        """The weight that Keras sees in the table's place."""
        return self._weight

    def look_up(self, ids: Any) -> Any:
        """Returns the rows of `ids`, ids.shape + [size], in the compute dtype.

        The `call` of a user's subclass gets its inputs unchanged. It computes
        ids from them and looks these up by this method, by `super().call` or by
        the `shadow`.

        Args:
          ids: a tensor of any shape, or a tf.RaggedTensor.

        Raises:
          tfembed.errors.DtypeError: ids that cannot be keys of the table.
          tfembed.errors.StateError: a file was loaded in part, without rows.
          tfembed.errors.UnsupportedError: a symbolic input of tf_keras.
        """
        if self._awaits_assets:
            raise errors.StateError(
                f"The rows of layer '{self.name}' are not loaded: "
                "`load_weights` leaves the assets of a '.keras' file alone. Use "
                "`keras.saving.load_model`, or save with `save_weights`."
            )
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self.look_up(ids.flat_values))
        if type(ids).__module__.partition(".")[0] == "tf_keras":
            raise errors.UnsupportedError(
                f"Layer '{self.name}' is one of Keras 3; got a symbolic input of "
                "tf_keras, whose model would not train the table. Derive the "
                "model from tf_keras.Model and call the layer in its `call`, or "
                "build it of keras.Input."
            )
        say_why_not_compiled(self)
        ids = self._keys(ids)
        fetch = (
            embedding_lookup_unique if self.with_unique else embedding_lookup
        )
        rows = fetch(self.params, ids, name=self.name, max_norm=self.max_norm)
        # A model's export finds the table among the objects that its function
        # uses.
        ops.record_access(self.params)
        rows = rows if self.trainable else tf.stop_gradient(rows)
        return tf.cast(rows, self.compute_dtype)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output's spec for functional models; checks the dtype.

        The `call` of a user's subclass is traced instead, since its input need
        not be ids and its output need not be rows.
        """
        if is_below(type(self), "call", "compute_output_shape"):
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        for ids in args[:1]:
            self._keys.check(tf.as_dtype(ids.dtype))
        return super().compute_output_spec(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the layer's arguments.

        Raises:
          tfembed.errors.ArgumentError: a function or class among the arguments
            is not registered with Keras.
        """
        params = self.params
        is_function = callable(self.combiner)
        return {
            **super().get_config(),
            **self._options.config(),
            "embedding_size": params.dim,
            "key_dtype": params.key_dtype.name,
            "value_dtype": params.value_dtype.name,
            "combiner": layer_config.name_of(self.combiner, "combiner")
            if is_function
            else self.combiner,
            "initializer": layer_config.initializer_config(
                self._initializer, params.dim, self._options.known_fan_in()
            ),
            "devices": (
                None if self._devices is None else list(params.devices)
            ),
            "with_unique": self.with_unique,
            "short_file_name": params.short_file_name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer; its shards lie on the CPU if their devices are gone."""
        devices = config.get("devices")
        if devices is not None:
            config = {**config, "devices": at_hand(device_list(devices))}
        return super().from_config(config)

    # Keras calls the first two hooks for all files; they write and read arrays.
    # For files that have assets, it calls the other two after them.

    def save_own_variables(self, store: Any) -> None:
        """Writes the rows, or only a mark if assets follow.

        With `checkpoint=False` it warns that the file has no rows.
        """
        if not self.params.checkpoint:
            self._warn("are not saved: this file has none of them")
            store[_NO_ROWS] = np.ones([1], np.int8)
        elif row_files.assets_follow(store):
            store[_ROWS_IN_ASSETS] = np.ones([1], np.int8)
        else:
            row_files.write_store(self.params, store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the arrays that `save_own_variables` wrote.

        With `checkpoint=False` it warns that rows stay as they are.

        Raises:
          tfembed.errors.CheckpointError: the file has no arrays or no rows.
        """
        if not self.params.checkpoint:
            self._warn("are not loaded, and stay as they are")
            return
        if _NO_ROWS in store.keys():  # noqa: SIM118 - Keras' store is no dict
            raise errors.CheckpointError(
                f"The file holds no rows for '{self.params.name}': it was saved "
                "by a layer with checkpoint=False. Load it into such a layer."
            )
        self._awaits_assets = _ROWS_IN_ASSETS in store.keys()  # noqa: SIM118
        if not self._awaits_assets:
            with row_files.stored_assets(store) as folder:
                self._read(folder)

    def save_assets(self, folder: str) -> None:
        """Writes the rows into `folder`."""
        if self.params.checkpoint:
            row_files.write_assets(self.params, folder)

    def load_assets(self, folder: str | None) -> None:
        """Reads the rows that `save_assets` wrote.

        Raises:
          tfembed.errors.CheckpointError: the folder has no rows.
        """
        if self.params.checkpoint:
            self._read(folder)
            self._awaits_assets = False

    def _read(self, folder: str | None) -> None:
        if self.has_guessed_keys:
            saved = row_files.saved_key_dtype(folder)
            if saved is not None:
                self.take_keys(saved)
        row_files.read_assets(self.params, folder)

    def _warn(self, what_rows_do: str) -> None:
        warnings.warn(
            f"The rows of layer '{self.name}', which has checkpoint=False, "
            f"{what_rows_do}.",
            stacklevel=3,
        )


_NOT_COMPILED: weakref.WeakSet[Any] = weakref.WeakSet()


def say_why_not_compiled(layer: Any) -> None:
    """Warns in the first step of a model with `jit_compile=True`.

    Args:
      layer: the layer that is being called.
    """
    if tf.executing_eagerly():
        return
    model = model_stepping()
    if model is None or model in _NOT_COMPILED or not asked_for_jit(model):
        return
    _NOT_COMPILED.add(model)
    warnings.warn(
        f"Steps of model '{model.name}' are not compiled by XLA, in spite of "
        f"jit_compile=True: layer '{layer.name}' has its tables in host memory, "
        "where XLA compiles nothing, and Keras compiles whole steps or none. "
        "To have dense layers compiled, put them into a layer of your own whose "
        "`call` has the decorator @tf.function(jit_compile=True).",
        stacklevel=2,
    )
