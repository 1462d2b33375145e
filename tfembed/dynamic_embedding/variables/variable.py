"""The variable of `dynamic_embedding`: a table that grows with its keys."""

from __future__ import annotations

import functools
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors, tables
from tfembed.checkpoint.graph_saver import add_to_savers, saveables
from tfembed.dynamic_embedding.files.variable_files import VariableFiles
from tfembed.dynamic_embedding.lookups.variable_lookups import VariableLookups
from tfembed.dynamic_embedding.restrict.restrict_policy import (
    RestrictPolicy,
    make_policy,
)
from tfembed.dynamic_embedding.variables import arguments
from tfembed.dynamic_embedding.variables.graph_variables import note_variable
from tfembed.dynamic_embedding.variables.kv_creator import check_kv_creator
from tfembed.dynamic_embedding.variables.partition import default_partition_fn
from tfembed.dynamic_embedding.variables.variable_shard import VariableShard
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.tables.dtypes import table_dtypes

__all__ = ["Variable"]

_DEFAULT_INIT_SIZE = 8192

Partitioner = Callable[[tf.Tensor, int], tf.Tensor]


class Variable(VariableFiles, VariableLookups):
    """A map from keys to rows of `dim` numbers.

    Reading a missing key gives its initial row and inserts nothing; the row is
    inserted by `upsert`, `accum` or the optimizer. Rows are trained by
    differentiating a lookup: `tape.gradient(loss, variable)` gives the
    `tf.IndexedSlices` of all lookups since the tape began, and
    `DynamicEmbeddingOptimizer` applies them, repeated keys summed.

    The constructor's signature is TensorFlow Recommenders Addons'.

    Args:
      key_dtype: tf.int64, tf.string, or tf.int32 with values of float32, int32,
        float64 or bfloat16.
      value_dtype: tf.float32, float16, bfloat16, int32, int8, int64 or float64;
        bool too for string keys, string for int64 keys (not trained).
      dim: numbers per row; 0 keeps keys alone.
      devices: a device or a list of them, one shard each (`["/CPU:0"] * 3` is
        three shards). Default: one shard on the CPU.
      partitioner: `partitioner(keys, shard_num)` gives the int32 shard of each
        key, in the keys' shape.
      shared_name: accepted for TFRA's sake; tables are found by object.
      name: the table's name, in messages and seeds.
      initializer: what missing keys read, see `initializers.row_initializer`.
      trainable: whether lookups carry gradients.
      checkpoint: whether `tf.train.Checkpoint` saves the rows.
      init_size: keys to make room for at once. 0: the environment's
        TF_HASHTABLE_INIT_SIZE, else 8192.
      kv_creator: None or a `CuckooHashTableCreator`: host memory.
      restrict_policy: a class derived from `RestrictPolicy`; None: none.
      bp_v2: for asynchronous training, as of `DynamicEmbeddingOptimizer`.
      short_file_name: whether `get_variable` leaves the variable scopes out of
        the name, and `create_slots` the optimizer.
      admission: which new keys training inserts, of `tfembed.policies`; None:
        all. Not TFRA's, as the four below.
      eviction: what judges the rows for `table.evict` and `table.expire`, of
        `tfembed.policies`; None: nothing is noted of them.
      expiry: when rows expire by themselves, every so many steps; None: when
        `table.expire` is called.
      max_size: keys that are never exceeded, see `HashTable`; None: no bound.
      stochastic_rounding: whether trained rows of float16 or bfloat16 are
        rounded up or down by chance, see `HashTable`, so that small updates are
        not lost.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) other dtypes, or a
        `restrict_policy` that is no class of policies.
      tfembed.errors.ArgumentError: (also ValueError) `dim`, `init_size`,
        `devices` or `initializer` that are not allowed.
      tfembed.errors.UnsupportedError: what later releases bring.
    """

    def __init__(
        self,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        dim: int = 1,
        devices: str | Sequence[str] | None = None,
        partitioner: Partitioner = default_partition_fn,
        shared_name: str | None = None,
        name: str = "DynamicEmbedding_Variable",
        initializer: Any = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: Any = None,
        restrict_policy: Any = None,
        bp_v2: bool = False,
        short_file_name: bool = False,
        *,
        admission: AdmissionPolicy | None = None,
        eviction: EvictionPolicy | None = None,
        expiry: Expiry | None = None,
        max_size: int | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        self.key_dtype, self.value_dtype = table_dtypes(key_dtype, value_dtype)
        check_kv_creator(kv_creator)
        arguments.check_partitioner(partitioner)
        self.dim = checks.integer(dim, "dim", least=0)
        self.devices = arguments.device_list(devices)
        self.shard_num = len(self.devices)
        self.partition_fn = partitioner
        self.name = name
        self.shared_name = shared_name
        self.initializer = initializer
        self.trainable = bool(trainable)
        self.checkpoint = bool(checkpoint)
        self.init_size = checks.integer(init_size, "init_size", least=0)
        self.kv_creator = kv_creator
        self.bp_v2 = bool(bp_v2)
        self.short_file_name = bool(short_file_name)
        self._set_up(
            admission=admission,
            eviction=eviction,
            expiry=expiry,
            max_size=max_size,
            stochastic_rounding=stochastic_rounding,
        )
        self._restrict_policy = make_policy(restrict_policy, self)
        if self.checkpoint and self._restrict_policy is not None:
            self._track_trackable(self._restrict_policy, "restrict_policy")

    def _set_up(self, **options: Any) -> None:
        # A HashTable deals by remainder by itself, in C++ where it can.
        is_default = self.partition_fn is default_partition_fn
        common = {
            "name": self.name,
            "initializer": self.initializer,
            "devices": self.devices,
            "partitioner": None if is_default else self.partition_fn,
        }
        with tf.init_scope():
            if self.value_dtype == tf.string:
                arguments.check_no_options(options, self.name)
                self._table = tables.StringTable(self.dim, **common)
            else:
                self._table = tables.HashTable(
                    self.dim,
                    key_dtype=self.key_dtype,
                    value_dtype=self.value_dtype,
                    init_size=self.init_size or _default_init_size(),
                    **common,
                    **options,
                )
        note_variable(self)
        self.saveable = None  # What a Saver of tf.compat.v1 saves.
        if self.checkpoint:
            self._track_trackable(self._table, "table")
            self.saveable = add_to_savers(self._table)
        if self.saveable is not None:
            # For Savers that are given the variable itself, and for
            # tf.train.Checkpoint, which asks for a variable's name so.
            self._shared_name = self.name
            self._gather_saveables_for_checkpoint = functools.partial(
                saveables, self.saveable
            )

    _optimizer: Any = None  # A weak reference, once there is one.

    # Gradient tapes treat the variable as they treat tf.Variables: lookups hand
    # their gradients to its handle.
    _should_act_as_resource_variable = True

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Tells a SavedModel that this is an object with a table, no variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} '{self.name}' of {self.key_dtype.name} -> "
            f"{self.value_dtype.name} [{self.dim}], {self.shard_num} shard(s)>"
        )

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self.value_dtype

    @property
    def handle(self) -> tf.Tensor:
        """The resource that gradients of lookups go to."""
        return self._table.handle

    @property
    def table(self) -> Any:
        """The rows: a `HashTable`; where they are strings, a `StringTable`."""
        return self._table

    @property
    def tables(self) -> tuple[VariableShard, ...]:
        """Views of the shards, with TFRA's methods of a table."""
        return tuple(VariableShard(self, i) for i in range(self.shard_num))

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """What follows the use of keys; made from the argument of that name."""
        return self._restrict_policy

    def restrict(self, num_reserved: int, **kwargs: Any) -> Any:
        """Has the restrict policy remove keys; without one it only warns.

        Args:
          num_reserved: how many keys to keep.
          **kwargs: the policy's. The built-in ones take `trigger`: leave a
            variable of at most that many keys alone.

        Returns:
          What the policy returns: how many keys were removed, int64 []. None
          without a policy.
        """
        if self._restrict_policy is None:
            warnings.warn(
                f"'{self.name}' has no restrict policy; restrict({num_reserved})"
                " leaves it as it is.",
                stacklevel=2,
            )
            return None
        return self._restrict_policy.apply_restriction(num_reserved, **kwargs)

    def remember_optimizer(self, optimizer: Any) -> None:
        """Notes whose slots lie beside the rows; for the optimizer."""
        self._optimizer = weakref.ref(optimizer)

    @property
    def is_attached(self) -> bool:
        """Whether an optimizer has trained the variable, or has been asked to."""
        return self._optimizer is not None

    @property
    def optimizer_vars(self) -> list[Any]:
        """`get_slot_variables` of the optimizer that trains the variable.

        Empty before one does, and when it is gone.
        """
        optimizer = self._optimizer and self._optimizer()
        return self.get_slot_variables(optimizer) if optimizer else []

    def get_slot_variables(self, optimizer: Any) -> Any:
        """Views of the slots that `optimizer` keeps beside the rows.

        Args:
          optimizer: a `DynamicEmbeddingOptimizer`.

        Returns:
          A list of `SlotVariable`, of this variable alone; empty before the
          first step that moves it, and for an optimizer that never does.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) `optimizer` is none.
        """
        if not hasattr(optimizer, "apply_gradients"):
            raise errors.DtypeError(
                "`optimizer` must be a DynamicEmbeddingOptimizer; got "
                f"{type(optimizer).__name__}."
            )
        slots_of = getattr(optimizer, "slots_of", None)
        return slots_of(self) if slots_of else []


def _default_init_size() -> int:
    text = os.environ.get("TF_HASHTABLE_INIT_SIZE", "")
    return int(text) if text.isdigit() and int(text) else _DEFAULT_INIT_SIZE
