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
from tfembed.checkpoint import row_files
from tfembed.checkpoint.row_files import FileStem
from tfembed.dynamic_embedding.lookups.gradient_source import TableSource
from tfembed.dynamic_embedding.lookups.trainable import look_up
from tfembed.dynamic_embedding.tensorflow1.graph_saver import (
    add_to_savers,
    saveables,
)
from tfembed.dynamic_embedding.tensorflow1.graph_variables import note_variable
from tfembed.dynamic_embedding.variables import arguments, table_files
from tfembed.dynamic_embedding.variables.arguments import (
    EmbeddingWeights,
    default_partition_fn,
)
from tfembed.dynamic_embedding.variables.cuckoo_hash_table import (
    check_kv_creator,
)
from tfembed.dynamic_embedding.variables.restrict_policy import (
    RestrictPolicy,
    make_policy,
)
from tfembed.dynamic_embedding.variables.table_files import BUFFER_SIZE
from tfembed.dynamic_embedding.variables.variable_shard import VariableShard
from tfembed.ops import private
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.tables.arguments import table_dtypes
from tfembed.tables.key_access import KeyAccess
from tfembed.tables.sharded_table import not_in_savers
from tfembed.tables.shared_rows import shared_rows

__all__ = [
    "Variable",
    "load_de_variable_from_file_system",
]

# The most names of recent lookups that a variable remembers.
_MOST_NAMES = 1000

Partitioner = Callable[[tf.Tensor, int], tf.Tensor]


class Variable(
    tf.__internal__.tracking.Trackable,
    EmbeddingWeights,
    TableSource,
    KeyAccess,
):
    """A map from keys to rows of `dim` numbers.

    Reading a missing key returns its initial row and inserts nothing; `upsert`,
    `accum` and the optimizer insert rows. Rows are trained by differentiating
    lookups: `tape.gradient(loss, variable)` is the `tf.IndexedSlices` of all
    lookups on the tape, and `DynamicEmbeddingOptimizer` applies them, with
    repeated keys summed.

    The workers of a MultiWorkerMirroredStrategy share a variable that they all
    make in its scope: worker w has the rows of keys with floormod(key, workers)
    == w. All of them must call lookups, `upsert`, `remove` and `contains`, each
    with keys of its own. `size`, `export` and files are of this worker's rows.

    The constructor's signature is TensorFlow Recommenders Addons'.

    Args:
      key_dtype: tf.int64, tf.string, or tf.int32 with values of float32, int32,
        float64 or bfloat16.
      value_dtype: tf.float32, float16, bfloat16, int32, int8, int64 or float64;
        bool too for string keys, string for int64 keys (not trained).
      dim: numbers per row; 0 keeps keys alone.
      devices: a device or a list of them, one shard each (`["/CPU:0"] * 3` is
        three shards). Default: one shard on the CPU; in the scope of a
        ParameterServerStrategy, and in a graph with a replica_device_setter,
        one on each parameter server; in the scope of a
        MultiWorkerMirroredStrategy, a shard in each worker (below).
      partitioner: `partitioner(keys, shard_num)` returns the int32 shard of
        each key, in the keys' shape.
      shared_name: accepted for TFRA's sake; not used.
      name: the table's name, in messages and seeds.
      initializer: the rows of missing keys, see `initializers.row_initializer`.
      trainable: whether lookups are differentiable.
      checkpoint: whether `tf.train.Checkpoint` saves the rows.
      init_size: keys to make room for at once. 0: the environment's
        TF_HASHTABLE_INIT_SIZE, else none: an empty table takes no index.
      kv_creator: None or a `CuckooHashTableCreator`: host memory.
      restrict_policy: a class derived from `RestrictPolicy`; None: none.
      bp_v2: for asynchronous training, as in `DynamicEmbeddingOptimizer`.
      short_file_name: whether `get_variable` omits the variable scopes from the
        name, and `create_slots` the optimizer.
      admission: a policy of `tfembed.policies` that decides which new keys
        training inserts, or n for `CountAdmission(n)`; None: all. TFRA does not
        have it, nor the five below.
      eviction: a policy of `tfembed.policies` that ranks the rows for
        `table.evict` and `table.expire`; None: no policy.
      expiry: when rows expire by themselves, every so many steps; None: only
        when `table.expire` is called.
      max_size: the most keys, see `HashTable`; None: no bound.
      stochastic_rounding: whether trained rows of float16 or bfloat16 are
        rounded up or down at random, see `HashTable`, so that small updates are
        not lost.
      fan_in: the number of rows for initializers that scale by it, see
        `HashTable`.

    Raises:
      tfembed.errors.DtypeError: (also TypeError) other dtypes, or a
        `restrict_policy` that is not a class of policies.
      tfembed.errors.ArgumentError: (also ValueError) `dim`, `init_size`,
        `devices` or `initializer` that are not allowed.
      tfembed.errors.UnsupportedError: an option that is not in this release.
    """

    _optimizer: Any = None  # A weak reference, or None before the first step.
    name: str
    key_dtype: tf.DType
    value_dtype: tf.DType
    dim: int
    shard_num: int
    _table: Any  # A HashTable, or a StringTable if rows are strings.
    _rows: Any  # The table, or a SharedRows over it.
    _trainables: Any = None

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
        admission: AdmissionPolicy | int | None = None,
        eviction: EvictionPolicy | None = None,
        expiry: Expiry | None = None,
        max_size: int | None = None,
        stochastic_rounding: bool = False,
        fan_in: int | None = None,
    ) -> None:
        self.key_dtype, self.value_dtype = table_dtypes(key_dtype, value_dtype)
        check_kv_creator(kv_creator)
        arguments.check_partitioner(partitioner)
        self.dim = checks.integer(dim, "dim", least=0)
        self._has_own_devices = devices is not None
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
            fan_in=fan_in,
        )
        self._restrict_policy = make_policy(restrict_policy, self)
        if self.checkpoint and self._restrict_policy is not None:
            private.track(self, "restrict_policy", self._restrict_policy)

    def upsert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Writes the rows of `keys`; the last row of a repeated key wins.

        Lookups of other threads see all of these rows or none, in each shard;
        of more than 131,072 keys of a shard, each part of so many, in order.
        The same goes for `accum` and `remove`.

        Args:
          keys: keys of `key_dtype`, any shape.
          values: values of `value_dtype`, keys.shape + [dim].
          name: the name of the op.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.ArgumentError: another dtype.
          tf.errors.InvalidArgumentError: another shape. Nothing is changed.
        """
        with tf.name_scope(name or "upsert"):
            keys = arguments.key_tensor(keys, self)
            values = arguments.value_tensor(values, self)
            arguments.check_value_shape(keys, values, self.dim)
            return self._rows.upsert(keys, values)

    def accum(
        self,
        keys: Any,
        old_values: Any,
        new_values: Any,
        exists: Any,
        name: str | None = None,
    ) -> Any:
        """Adds `new_values - old_values` to rows, or inserts `new_values`.

        A present key with `exists` gets the difference; a missing key without
        it is inserted; other keys are not changed, since another writer came
        between. Each occurrence of a repeated key counts.

        Args:
          keys: keys of `key_dtype`, any shape.
          old_values, new_values: values of `value_dtype`, keys.shape + [dim].
          exists: bool, keys.shape, from `lookup(return_exists=True)`.
          name: the name of the op.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.DtypeError: booleans and strings, which cannot be
            added; `exists` that is not bool.
          Others as `upsert`.
        """
        with tf.name_scope(name or "accum"):
            arguments.check_addition(self)
            keys = arguments.key_tensor(keys, self)
            old = arguments.value_tensor(old_values, self)
            new = arguments.value_tensor(new_values, self)
            arguments.check_value_shape(keys, new, self.dim)
            checks.rows("old_values", keys, old, self.dim)
            return self._rows.accum(keys, new, exists, old)

    def lookup(
        self, keys: Any, return_exists: bool = False, name: str | None = None
    ) -> Any:
        """Returns the rows of `keys` without a gradient; inserts nothing.

        Batches that other threads upsert, accumulate or remove meanwhile are
        seen whole, shard by shard: `upsert` says how many keys of them.

        Args:
          keys: keys of `key_dtype`, any shape.
          return_exists: whether to return also which keys are present.
          name: the name of the op.

        Returns:
          Values of `value_dtype`, keys.shape + [dim]; a missing key has its
          initial row. With `return_exists` also bool, keys.shape.

        Raises:
          tfembed.errors.ArgumentError: keys of another dtype.
        """
        with tf.name_scope(name or "lookup"):
            keys = arguments.key_tensor(keys, self)
            values, exists = self._rows.lookup(keys)
            return (values, exists) if return_exists else values

    def embedding_lookup(
        self,
        ids: Any,
        name: str | None = None,
        max_norm: float | None = None,
        return_trainable: bool = False,
    ) -> Any:
        """Returns the rows of `ids`, differentiable, as `de.embedding_lookup`.

        Args:
          ids: keys of any shape.
          name: the name of the lookup.
          max_norm: rows longer than this (L2) are scaled to it.
          return_trainable: whether to return a `TrainableWrapper` too.

        Returns:
          Rows, ids.shape + [dim]; with `return_trainable` a pair.
        """
        return look_up(self, ids, name, max_norm, return_trainable)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes `keys`, of any shape; missing keys are ignored.

        Raises:
          tfembed.errors.DtypeError: keys of another dtype.
        """
        with tf.name_scope(name or "remove"):
            keys = arguments.key_tensor(keys, self, errors.DtypeError)
            return self._rows.remove(keys)

    def contains(self, keys: Any) -> tf.Tensor:
        """Says which of `keys`, of any shape, are there: bool, keys.shape.

        Raises:
          tfembed.errors.DtypeError: keys of another dtype.
        """
        return self._by_key.contains(keys)

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys."""
        with tf.name_scope(name or "clear"):
            return self._table.clear()

    def size(
        self, index: int | None = None, name: str | None = None
    ) -> tf.Tensor:
        """Returns the number of keys, int64 [], of shard `index` or of all.

        In a graph of TensorFlow 1 the op is made once and reused, unless `name`
        or tf.control_dependencies require a new one: programs may call this in
        each step, or when the graph is finalized.

        Raises:
          tfembed.errors.ArgumentError: `index` is not a shard.
        """
        if index is not None and not 0 <= index < self.shard_num:
            raise errors.ArgumentError(
                f"`index` must be a shard in [0, {self.shard_num}); got {index}."
            )
        is_shared = name is None and private.waits_for_nothing()
        if is_shared and index in self._sizes:
            return self._sizes[index]
        with tf.name_scope(name or "size"):
            size = self._table.size(index)
        if is_shared:
            self._sizes[index] = size
        return size

    @property
    def size_ops(self) -> list[tf.Tensor]:
        """Returns the number of keys of each shard, int64 []."""
        return [self.size(i) for i in range(self.shard_num)]

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys [n] and values [n, dim], shard after shard.

        All shards are copied at one moment if they are on one device and values
        are numbers; else each shard is copied at one moment.
        """
        with tf.name_scope(name or "export"):
            return self._table.export()

    def export_keys_and_scores(
        self, split_size: int = 1, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and the worth of their rows, in no particular order.

        Args:
          split_size: accepted for TFRA's sake.
          name: the name of the op.

        Returns:
          Keys [n] and scores float64 [n] by the variable's eviction policy: the
          lowest are evicted first.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) no eviction policy.
        """
        checks.integer(split_size, "split_size", least=1)
        if self._table.eviction is None:
            raise errors.DtypeError(
                f"'{self.name}' has no scores; make it with an `eviction` "
                "policy of tfembed.policies."
            )
        with tf.name_scope(name or "export_keys_and_scores"):
            return self._table.worth()

    def restrict(self, num_reserved: int, **kwargs: Any) -> Any:
        """Removes keys by the restrict policy; without a policy it only warns.

        Args:
          num_reserved: the number of keys to keep.
          **kwargs: the policy's arguments. Built-in policies take `trigger`: a
            variable of at most so many keys is not changed.

        Returns:
          The policy's result: the number of removed keys, int64 []. None
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

    def save_to_file_system(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        append_to_file: bool = False,
        buffer_size: int = BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Writes keys and rows to files, a pair a shard.

        The files are `<name>_mht_<i>of<n>_rank<r>_size<s>-keys` and `-values`,
        raw little-endian arrays that TensorFlow Recommenders Addons loads too;
        slots are not in them. All rows are copied at one moment. The old files
        stay intact until the new ones are complete: docs/formats/row_files.md.

        A pair has the rows of a shard; without a partitioner, of the shard in
        which TFRA looks for an int64 key: (key & 0x7fffffff) % shards.

        Args:
          dirpath: the folder, a path or a string scalar; created if missing.
          proc_size: the number of processes that save their rows of this
            variable into the folder.
          proc_rank: the index of this process.
          file_name_list: a name for each shard's pair, in place of the above.
          dirpath_env: an environment variable that, if set, overrides
            `dirpath`.
          append_to_file: whether to append to the rows in the files.
          buffer_size: rows to copy at a time; 2 MB at most in any case.
          name: the name of the op.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.ArgumentError: an argument that is not allowed.
          tfembed.errors.UnsupportedError: rows of strings.
          tf.errors.AlreadyExistsError: the files have the rows of a table of
            another name, or of another existing variable of this name whose
            rows were not loaded into this one.
          tf.errors.OpError: the files cannot be written, or cannot be read for
            an append. They are unchanged, unless the text says that the rows
            are saved, but may not be on the disk yet.
        """
        self._check_has_raw_form()
        stems: Sequence[Any] = file_name_list or []
        if file_name_list is None:
            stems = self._stems(proc_size, proc_rank)
        if len(stems) != self.shard_num:
            raise errors.ArgumentError(
                f"`file_name_list` must have a name for each of the "
                f"{self.shard_num} shards of '{self.name}'; got {list(stems)}."
            )
        return table_files.save(
            self.table,
            table_files.folder(dirpath, dirpath_env),
            stems,
            append=append_to_file,
            buffer_size=buffer_size,
            name=name,
            deal_by_low_bits=self._is_dealt_by_low_bits(),
        )

    def load_from_file_system(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        load_entire_dir: bool = False,
        buffer_size: int = BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Adds the rows of files; they replace the rows of present keys.

        Each row goes to its partitioner's shard, whichever file it is in. All
        files are checked before the first row is written; files of at most 4
        MB together are also read before that (unless their keys are strings
        that would take more than four times the files).

        Of more rows than fit into shards of bounded size, those stay that
        `SmallestNorm` would keep. Other policies judge by notes, which raw
        files lack: then a shard takes no more keys than it may hold.

        Args:
          dirpath, proc_size, proc_rank, dirpath_env, name: as for
            `save_to_file_system`.
          file_name_list: the names of pairs, any number.
          load_entire_dir: whether to load all pairs of this variable's name
            in the folder, from any number of shards and processes. In a graph
            the pairs are listed when the op is made.
          buffer_size: rows to read at a time; 2 MB at most in any case.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.ArgumentError: an argument that is not allowed.
          tfembed.errors.UnsupportedError: rows of strings.
          tf.errors.NotFoundError: a file is missing.
          tf.errors.InvalidArgumentError: files of other dtypes or width, or of
            more keys than a shard of bounded size takes.
          tf.errors.DataLossError: files that do not belong together, or are
            damaged.
        """
        self._check_has_raw_form()
        folder = table_files.folder(dirpath, dirpath_env)
        stems: Sequence[Any]
        if file_name_list is not None:
            stems = list(file_name_list)
        elif load_entire_dir:
            stems = row_files.find_stems(table_files.path(folder), self.name)
        else:
            stems = self._stems(proc_size, proc_rank)
        if not stems:
            raise errors.ArgumentError(
                "`file_name_list` must name at least one pair of files; got [] "
                f"for '{self.name}'."
            )
        return table_files.load(
            self.table,
            folder,
            stems,
            buffer_size=buffer_size,
            name=name,
            select=self._owned,
        )

    def load_from_file_system_with_restore_function(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        buffer_size: int = BUFFER_SIZE,
    ) -> Any:
        """Adds the rows of one save, from any number of shards and processes.

        If as many processes saved, each one loads its own files; else a key
        goes to process `partitioner(key, proc_size)`. In a graph the files are
        listed when the op is made.

        Args:
          dirpath, proc_size, proc_rank, buffer_size: as for
            `load_from_file_system`. The environment variable TFRA_SAVED_KV, if
            set, overrides `dirpath`.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          The errors of `load_from_file_system`; also
          tfembed.errors.CheckpointError: the folder has several saves.
        """
        self._check_has_raw_form()
        self._stems(proc_size, proc_rank)
        folder = table_files.folder(dirpath, "TFRA_SAVED_KV")
        path = table_files.path(folder)
        stems = row_files.save_set(row_files.find_stems(path, self.name), path)
        is_own = stems[0].size == proc_size
        if is_own:
            stems = [stem for stem in stems if stem.rank == proc_rank]

        def is_for_rank(keys: tf.Tensor) -> tf.Tensor:
            return tf.equal(self.partition_fn(keys, proc_size), proc_rank)

        select = self._owned
        if select is None and not is_own and proc_size > 1:
            select = is_for_rank
        return table_files.load(
            self.table, folder, stems, buffer_size=buffer_size, select=select
        )

    def get_slot_variables(self, optimizer: Any) -> Any:
        """Returns views of the slots that `optimizer` has in the rows.

        Args:
          optimizer: a `DynamicEmbeddingOptimizer`.

        Returns:
          A list of `SlotVariable` of this variable; empty before the
          optimizer's first step with it.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) an object without
            `apply_gradients`.
        """
        if not hasattr(optimizer, "apply_gradients"):
            raise errors.DtypeError(
                "`optimizer` must be a DynamicEmbeddingOptimizer; got "
                f"{type(optimizer).__name__}."
            )
        slots_of = getattr(optimizer, "slots_of", None)
        return slots_of(self) if slots_of else []

    @property
    def is_attached(self) -> bool:
        """Whether an optimizer was ever attached to the variable."""
        return self._optimizer is not None

    @property
    def optimizer_vars(self) -> list[Any]:
        """Views of the slots of the optimizer that trains the variable.

        The list is empty before the first step, and after the optimizer was
        deleted.
        """
        optimizer = self._optimizer and self._optimizer()
        return self.get_slot_variables(optimizer) if optimizer else []

    @property
    def _by_key(self) -> Any:
        return self._rows

    @property
    def dtype(self) -> tf.DType:
        """The rows' dtype."""
        return self.value_dtype

    @property
    def handle(self) -> tf.Tensor:
        """The resource handle that lookups pass their gradients to."""
        return self._table.handle

    @property
    def table(self) -> Any:
        """The table: a `HashTable`, or a `StringTable` for rows of strings.

        Among the workers of a MultiWorkerMirroredStrategy it has the rows that
        this worker owns.
        """
        return self._table

    @property
    def rows(self) -> Any:
        """The rows of all workers that share the variable; else `table`.

        Every worker must do what is done with them.
        """
        return self._rows

    @property
    def tables(self) -> tuple[VariableShard, ...]:
        """Views of the shards, with TFRA's methods of a table."""
        return tuple(VariableShard(self, i) for i in range(self.shard_num))

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """The policy that follows the use of keys, made from its class."""
        return self._restrict_policy

    def remember_optimizer(self, optimizer: Any) -> None:
        """Remembers the optimizer whose slots are in the rows."""
        self._optimizer = weakref.ref(optimizer)

    def remember_trainable(
        self, trainable: Any, name: str | None = None
    ) -> None:
        """Lets `get_trainable_by_name` find an existing wrapper or shadow.

        Args:
          trainable: the wrapper or shadow.
          name: the lookup's name; None: the wrapper's own.
        """
        # A single assignment, so that concurrent threads lose none.
        known = self.__dict__.setdefault(
            "_trainables", weakref.WeakValueDictionary()
        )
        # In a graph each lookup has one, also where several share a name.
        known[trainable.name] = trainable
        known[name or trainable.name] = trainable

    def note_lookup(self, name: str) -> None:
        """Lets `get_trainable_by_name` find the source of lookups of `name`."""
        if name not in self._lookup_names:
            if len(self._lookup_names) >= _MOST_NAMES:
                self._lookup_names = {}
            self._lookup_names[name] = None

    def note_step(self) -> None:
        """Marks values of wrappers and shadows as stale after an eager step."""
        for trainable in self._living():
            trainable.note_step()

    def get_trainable_by_name(self, name: str) -> Any:
        """Finds the source of gradients for the lookups called `name`.

        It is the wrapper or shadow of that name, while that exists. For lookups
        without `return_trainable`, in eager mode or in a traced tf.function, it
        is the variable itself, whose gradient is that of all lookups. It is
        None if there were no lookups of that name.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) `name` is not a string.
        """
        if not isinstance(name, str):
            raise errors.DtypeError(f"`name` must be a string; got {name!r}.")
        found = (self._trainables or {}).get(name)
        return self if found is None and name in self._lookup_names else found

    # TFRA's documentation calls it so.
    get_eager_trainable_by_name = get_trainable_by_name

    @property
    def trainable_store(self) -> dict[str, Any]:
        """The sources of gradients for all lookups so far, by name.

        They are the existing wrappers and shadows; after a lookup without
        `return_trainable` only the variable, under the first such name.
        """
        for name in self._lookup_names:
            return {name: self}
        return {trainable.name: trainable for trainable in self._living()}

    def __repr__(self) -> str:
        words = self._table.in_words()
        return f"<{type(self).__name__} '{self.name}': {words}>"

    def _set_up(self, **options: Any) -> None:
        # A HashTable's default partitioner is floormod, in C++ if possible.
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
        self._rows = self._table
        if not self._has_own_devices:
            self._rows = shared_rows(self._table) or self._table
        self.workers = self._table.workers
        note_variable(self)
        self.saveable = None  # The object that a Saver of tf.compat.v1 saves.
        if self.checkpoint:
            private.track(self, "table", self._table)
            self.saveable = add_to_savers(self._table)
        if self.saveable is not None:
            # For Savers that are given the variable itself, and for
            # tf.train.Checkpoint, which asks for a variable's name so.
            self._shared_name = self.name
            saved = functools.partial(saveables, self.saveable)
            self.__dict__["_gather_saveables_for_checkpoint"] = saved

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        # Of a graph: `saveables`, in its place.
        if self.checkpoint and private.asked_by_saver():
            raise not_in_savers(f"Variable '{self.name}'")
        return {}

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Marks this for a SavedModel as an object, not a variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1

    @property
    def _owned(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """Says which keys this worker has the rows of; None: all."""
        return None if self.workers is None else self._rows.owns

    def _check_has_raw_form(self) -> None:
        if self.value_dtype == tf.string:
            raise errors.UnsupportedError(
                f"'{self.name}' has rows of strings, which raw files do not "
                "hold; save it with tf.train.Checkpoint."
            )

    def _stems(self, proc_size: int, proc_rank: int) -> list[FileStem]:
        size = checks.integer(proc_size, "proc_size", least=1)
        rank = checks.integer(proc_rank, "proc_rank", least=0)
        if rank >= size:
            raise errors.ArgumentError(
                f"`proc_rank` must be in [0, {size}), since `proc_size` is "
                f"{size}; got {rank}."
            )
        n = self.shard_num
        return [FileStem(self.name, n, size, rank, i) for i in range(n)]

    def _is_dealt_by_low_bits(self) -> bool:
        """Says whether TFRA looks for some keys in other shards than tfembed.

        Where TensorFlow is built with CUDA, as its ordinary wheel for Linux is,
        TFRA's default partition of int64 keys is (key & 0x7fffffff) % shards.
        """
        return (
            self.table.partitioner is None
            and self.key_dtype == tf.int64
            and self.shard_num & (self.shard_num - 1) != 0
        )

    @functools.cached_property
    def _sizes(self) -> dict[int | None, tf.Tensor]:
        """Returns the graph's cached size ops, by shard; None: all shards."""
        return {}

    @functools.cached_property
    def _lookup_names(self) -> dict[str, None]:
        return {}

    def _living(self) -> list[Any]:
        """Returns existing wrappers and shadows, while threads may add some."""
        if self._trainables is None:
            return []
        found = [reference() for reference in self._trainables.valuerefs()]
        return [trainable for trainable in found if trainable is not None]


def _default_init_size() -> int:
    text = os.environ.get("TF_HASHTABLE_INIT_SIZE", "")
    return int(text) if text.isdigit() else 0


def load_de_variable_from_file_system(
    de_variable: Variable,
    dirpath: Any,
    proc_size: int = 1,
    proc_rank: int = 0,
    buffer_size: int = BUFFER_SIZE,
) -> Any:
    """Calls `de_variable.load_from_file_system_with_restore_function(...)`."""
    return de_variable.load_from_file_system_with_restore_function(
        dirpath, proc_size, proc_rank, buffer_size
    )
