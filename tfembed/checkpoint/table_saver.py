"""How TensorFlow's savers write and read hash tables and tables of strings.

A save streams each table into a bundle beside the variables' shards, which
TensorFlow then merges into one checkpoint. A restore reads and checks the
saved content of all tables, and only then replaces theirs. A `TableSource` is
a saved table whose rows or waiting keys Python distributes to shards. A table
of strings is saved as two tensors, `keys` [n] and `values` [n, dim], for any
number of shards.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.checkpoint import private
from tfembed.cluster.owners import by_device, host_device
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import table as table_ops
from tfembed.ops.private import orders_by_itself
from tfembed.tables import HashTable, StringTable
from tfembed.tables.partition import shard_of
from tfembed.tables.sharded_table import NumberShard
from tfembed.tables.string_table import StringShard

__all__ = [
    "Room",
    "TableSource",
    "leave_slots_out",
    "leave_state_out",
    "register",
    "save_strings",
    "tensor_prefix",
    "verify",
]

_SLOTS_LEFT_OUT = contextvars.ContextVar("slots left out", default=False)
_STATE_LEFT_OUT = contextvars.ContextVar("state left out", default=False)

_STATE = "rule_state"

# The rows of strings that are written at once: writing needs two copies of
# them.
_ROWS_AT_A_TIME = 1 << 16


@contextlib.contextmanager
def leave_slots_out() -> Iterator[None]:
    """Makes restores of hash tables load only rows; slots are initialized."""
    token = _SLOTS_LEFT_OUT.set(True)
    try:
        yield
    finally:
        _SLOTS_LEFT_OUT.reset(token)


@contextlib.contextmanager
def leave_state_out() -> Iterator[None]:
    """Makes restores leave what a rule has besides slots as it is."""
    token = _STATE_LEFT_OUT.set(True)
    try:
        yield
    finally:
        _STATE_LEFT_OUT.reset(token)


def register() -> None:
    """Registers the saver, and the classes that a SavedModel names."""
    # One saver for both types: a restore of either must know about the other.
    private.register_checkpoint_saver(
        "HashTable",
        predicate=lambda x: (
            isinstance(x, (HashTable, StringTable)) and x.saveable is None
        ),
        save_fn=_save,
        restore_fn=_restore,
    )
    private.register_serializable("HashTable", HashTable)
    private.register_serializable("TableShard", NumberShard)
    private.register_serializable("StringTable", StringTable)
    private.register_serializable("StringShard", StringShard)


def tensor_prefix(object_path: str) -> str:
    """Returns the prefix of a table's tensors in a checkpoint, before "/keys".

    Args:
      object_path: the attributes from the saved object to the table, for
        instance "model/user_table".
    """
    return f"{object_path}/.ATTRIBUTES"


def verify(path: str | os.PathLike[str]) -> None:
    """Reads all files of a checkpoint and compares their checksums.

    A restore checks all hash tables before it changes any. But TensorFlow
    checks a variable only when it restores it, after others, and its errors
    say less. `verify` checks everything first; it reads each file once, and
    needs a few megabytes of memory.

    Args:
      path: the argument of `tf.train.Checkpoint.restore`; any program's
        checkpoint.

    Raises:
      tfembed.errors.CheckpointError: (also ValueError) files are missing,
        damaged or cut off. The text names the file, and the tensor if known.

    Example:
      path = tf.train.latest_checkpoint("/tmp/run")
      tfembed.checkpoint.verify(path)
      checkpoint.restore(path)
    """
    try:
        checkpoint_ops.check(tf.constant(os.fspath(path)))
    except tf.errors.OpError as error:
        raise errors.CheckpointError(
            f"Checkpoint '{os.fspath(path)}' cannot be restored: {error.message}"
        ) from error


def _save(
    trackables: Mapping[str, HashTable | StringTable], file_prefix: tf.Tensor
) -> list[tf.Tensor]:
    hashed, strings = _by_kind(trackables)
    prefixes = []
    if hashed:
        prefixes += _save_hash_tables(hashed, file_prefix)
    if strings:
        prefix = tf.strings.join([file_prefix, "_strings"])
        prefixes.append(save_strings(strings, prefix))
    return prefixes


def _by_kind(
    trackables: Mapping[str, HashTable | StringTable],
) -> tuple[dict[str, HashTable], dict[str, StringTable]]:
    hashed, strings = {}, {}
    for path, table in trackables.items():
        if isinstance(table, HashTable):
            hashed[path] = table
        else:
            strings[path] = table
    return hashed, strings


def _save_hash_tables(
    trackables: Mapping[str, HashTable], file_prefix: tf.Tensor
) -> list[tf.Tensor]:
    tables = list(trackables.values())
    for table in tables:
        check_not_shared(table)
    # TensorFlow traces this function for the restore and save of a SavedModel,
    # and then calls it once more to write the export.
    exporting = private.exporting_saved_model()
    is_export = False
    for table in tables:
        is_export |= table.note_checkpoint(export_follows=exporting)
    # If an export failed after its trace, the next call is a checkpoint.
    is_export &= _is_of_saved_model(file_prefix)
    prefixes = _Owners(trackables).save(file_prefix, with_slots=not is_export)
    state = {} if is_export else _states(trackables)
    if state:
        prefix = tf.strings.join([file_prefix, "_state"])
        prefixes.append(_save_tensors(state, prefix))
    return prefixes


@dataclasses.dataclass(frozen=True)
class _Shards:
    """The shards of tables on one device.

    Attributes:
      device: the device.
      handles: the handles, table by table.
      counts: how many of them each table has.
      numbers: which shard of its table each is.
    """

    device: str
    handles: list[tf.Tensor]
    counts: list[int]
    numbers: list[int]


class _Owners:
    """The devices that hold tables, perhaps of several processes.

    Args:
      trackables: the tables by their paths.
    """

    def __init__(self, trackables: Mapping[str, HashTable]) -> None:
        self._tables = list(trackables.values())
        self._names = [tensor_prefix(path) for path in trackables]
        self._all_shards = [len(table.shards) for table in self._tables]
        held = [
            (t, number, handle)
            for t, table in enumerate(self._tables)
            for number, handle in enumerate(table.handles)
        ]
        self._owners = []
        for here in by_device([handle for *_, handle in held]):
            own = [held[i] for i in here]
            self._owners.append(
                _Shards(
                    own[0][2].device,
                    [handle for *_, handle in own],
                    [
                        sum(t == one for one, *_ in own)
                        for t in range(len(self._tables))
                    ],
                    [number for _, number, _ in own],
                )
            )
        self._is_here = len(self._owners) == 1 and (
            host_device(self._owners[0].device)[0] == "localhost"
        )

    def save(
        self, file_prefix: tf.Tensor, *, with_slots: bool
    ) -> list[tf.Tensor]:
        """Writes the tables at one moment; returns the prefixes of all parts.

        Raises:
          tf.errors.FailedPreconditionError: an owner does not see the folder.
        """
        if self._is_here:
            saved = self._save_part(file_prefix, 0, with_slots=with_slots)
            return [_after(saved, tf.identity, file_prefix)]
        token = uuid.uuid4().hex
        with tf.device("CPU:0"):
            marked = tf.raw_ops.WriteFile(
                filename=tf.strings.join([file_prefix, f".meeting-{token}"]),
                contents="",
            )

        def save() -> list[tf.Tensor]:
            return [
                _after(
                    self._save_part(
                        file_prefix,
                        number,
                        with_slots=with_slots,
                        owners=[owner.device for owner in self._owners],
                        owner=number,
                        token=token,
                    ),
                    tf.strings.join,
                    [file_prefix, f"_{number}"],
                )
                for number in range(len(self._owners))
            ]

        with tf.control_dependencies([] if marked is None else [marked]):
            return _at_the_same_time(save)

    def restore(
        self, prefix: tf.Tensor, sources: Sequence[TableSource]
    ) -> list[tf.Tensor]:
        """Replaces the tables; returns the layout of each in the checkpoint.

        Raises:
          tf.errors.FailedPreconditionError: an owner does not see the files.
          tf.errors.OpError: as `tfembed.ops.checkpoint.restore`.
        """

        def restore(*, only_check: bool) -> list[tf.Tensor]:
            return [
                self._restore_part(prefix, i, sources, only_check=only_check)
                for i in range(len(self._owners))
            ]

        try:
            if len(self._owners) == 1:
                return tf.unstack(restore(only_check=False)[0])
            checked = _at_the_same_time(lambda: restore(only_check=True))
        except tf.errors.NotFoundError as error:
            self._explain(prefix, error)
            raise
        with tf.control_dependencies(checked):
            layouts = _at_the_same_time(lambda: restore(only_check=False))
        by_table: dict[int, tf.Tensor] = {}
        for owner, found in zip(self._owners, layouts, strict=True):
            there = [t for t, count in enumerate(owner.counts) if count]
            by_table |= dict(zip(there, tf.unstack(found), strict=True))
        return [by_table[t] for t in range(len(self._tables))]

    def _save_part(
        self, prefix: tf.Tensor, number: int, **options: Any
    ) -> tf.Operation | None:
        owner = self._owners[number]
        with tf.device(owner.device):
            return checkpoint_ops.save(
                owner.handles,
                prefix,
                tensor_names=self._names,
                shard_counts=owner.counts,
                shard_numbers=owner.numbers,
                all_shards=self._all_shards,
                **options,
            )

    def _restore_part(
        self,
        prefix: tf.Tensor,
        number: int,
        sources: Sequence[TableSource],
        *,
        only_check: bool = False,
    ) -> tf.Tensor:
        owner = self._owners[number]
        there = [t for t, count in enumerate(owner.counts) if count]
        with tf.device(owner.device):
            return checkpoint_ops.restore(
                owner.handles,
                prefix,
                tensor_names=[self._names[t] for t in there],
                shard_counts=[owner.counts[t] for t in there],
                keep_seeds=[self._tables[t].seed_is_given for t in there],
                deal_rows=[self._tables[t].deals_by_remainder for t in there],
                load_slots=[sources[t].load_slots for t in there],
                shard_numbers=owner.numbers,
                all_shards=[self._all_shards[t] for t in there],
                only_check=only_check,
            )

    def _explain(self, prefix: tf.Tensor, error: tf.errors.OpError) -> None:
        """Raises another error if the files are seen here, but not there."""
        if self._is_here or not tf.executing_eagerly():
            return
        index = f"{prefix.numpy().decode()}.index"
        if tf.io.gfile.exists(index) and index in error.message:
            devices = ", ".join(owner.device for owner in self._owners)
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"'{index}' is not seen by all of {devices}. Processes that "
                "restore tables together need a shared file system. Nothing "
                f"was changed. {error.message}",
            ) from error


def _after(done: tf.Operation | None, make: Any, *args: Any) -> tf.Tensor:
    """Returns make(*args), made once an operation is done."""
    with tf.control_dependencies([] if done is None else [done]):
        return make(*args)


def _at_the_same_time(run: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
    """Runs ops of several devices, which wait for each other."""
    if tf.executing_eagerly():
        return list(tf.function(run, autograph=False, jit_compile=False)())
    return run()


def _states(trackables: Mapping[str, HashTable]) -> dict[str, tf.Tensor]:
    """Returns what rules have besides slots, by the names of tensors."""
    return {
        f"{tensor_prefix(path)}/{_STATE}/{name}": value
        for path, table in trackables.items()
        for name, value in table.rule_state.values().items()
    }


def _save_tensors(
    tensors: Mapping[str, tf.Tensor], prefix: tf.Tensor
) -> tf.Tensor:
    """Writes whole tensors, by their names, as a bundle; returns its prefix."""
    done = tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    with tf.control_dependencies([] if done is None else [done]):
        return tf.identity(prefix)


def _is_of_saved_model(file_prefix: tf.Tensor) -> bool:
    """Whether the prefix belongs to a SavedModel, which is only for serving."""
    if not hasattr(file_prefix, "numpy"):
        return False
    return "/variables/variables" in file_prefix.numpy().decode()


def _restore(
    trackables: Mapping[str, HashTable | StringTable], merged_prefix: tf.Tensor
) -> None:
    if not orders_by_itself():
        raise errors.UnsupportedError(
            f"{[table.name for table in trackables.values()]} cannot be "
            "restored by tf.train.Checkpoint in a graph of TensorFlow 1. "
            "Restore in eager mode, or hold the rows in `Variable`s."
        )
    hashed, strings = _by_kind(trackables)
    # Read and check everything before the first write.
    prefix = _checked_sizes(merged_prefix) if strings else None
    saved_strings = [
        _SavedStrings(table, prefix, path) for path, table in strings.items()
    ]
    if hashed:
        _restore_hash_tables(hashed, merged_prefix)
    for saved in saved_strings:
        saved.replace()


def _restore_hash_tables(
    trackables: Mapping[str, HashTable], merged_prefix: tf.Tensor
) -> None:
    # A SavedModel is for serving: its restore op skips the optimizers' slots.
    left_out = private.exporting_saved_model() or _SLOTS_LEFT_OUT.get()
    for table in trackables.values():
        check_not_shared(table)
    room = Room()
    sources = [
        TableSource(
            table=table,
            prefix=merged_prefix,
            tensor_name=tensor_prefix(path),
            load_slots=table.takes_slots and not left_out,
            room=room,
        )
        for path, table in trackables.items()
    ]
    for source in sources:
        source.read_ahead()
    states = _saved_states(sources, merged_prefix)
    layouts = _Owners(trackables).restore(merged_prefix, sources)
    if tf.executing_eagerly():
        texts = [layout.numpy() for layout in layouts]
        for source, layout in zip(sources, texts, strict=True):
            _adopt(source, layout.decode())
        for source, state, layout in zip(sources, states, texts, strict=True):
            if state is not None:
                source.table.rule_state.restore(
                    state, is_trained=b"\nrule " in layout
                )
    for source in sources:
        source.deal()


def _saved_states(
    sources: Sequence[TableSource], prefix: tf.Tensor
) -> list[dict[str, tf.Tensor] | None]:
    """Reads what rules have besides slots, by name; None where it stays."""
    takes_state = tf.executing_eagerly() and not _STATE_LEFT_OUT.get()
    if not (takes_state and any(source.load_slots for source in sources)):
        return [None] * len(sources)
    try:
        names, numbers = checkpoint_ops.check(prefix, checksums=False)
        dtypes = {
            name.decode(): number
            for name, number in zip(
                names.numpy(), numbers.numpy().tolist(), strict=True
            )
        }
        return [
            _saved_state(prefix, f"{source.tensor_name}/{_STATE}/", dtypes)
            if source.load_slots
            else None
            for source in sources
        ]
    except tf.errors.OpError as error:
        names = ", ".join(f"'{source.table.name}'" for source in sources)
        raise type(error)(
            None, None, f"{names} cannot be restored: {error.message}"
        ) from error


def _saved_state(
    prefix: tf.Tensor, begin: str, dtypes: Mapping[str, int]
) -> dict[str, tf.Tensor]:
    """Reads the tensors whose names have this beginning, which goes."""
    tensors = {
        name: tf.as_dtype(number)
        for name, number in dtypes.items()
        if name.startswith(begin)
    }
    for name, dtype in tensors.items():
        if not (dtype.is_floating or dtype.is_integer):
            raise tf.errors.DataLossError(
                None,
                None,
                f"'{name}' of checkpoint '{prefix.numpy().decode()}' must be "
                f"numbers of an update rule; it is {dtype.name}. Its files are "
                "damaged; restore another checkpoint.",
            )
    values = checkpoint_ops.read(prefix, tensors=tensors) if tensors else []
    return {
        name.removeprefix(begin): value
        for name, value in zip(tensors, values, strict=True)
    }


def _adopt(source: TableSource, layout: str) -> None:
    """Updates a table's Python attributes to the content of its shards."""
    table = source.table
    fields = [line.split(" ") for line in layout.splitlines()]
    seed = next(int(value) for name, value, *_ in fields if name == "seed")
    widths = {"slot": table.dim, "row_slot": 1}
    saved = {v: widths[name] for name, v, *_ in fields if name in widths}
    own = dict(zip(table.slot_names, table.slot_widths, strict=True))
    table.adopt(
        seed=table.seed if table.seed_is_given else _signed(seed),
        slots=(source.load_slots and saved) or own,
    )


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


_Read = Callable[[tf.Tensor], tuple[tf.Tensor, ...]]
_Write = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any]


class Room:
    """The memory for what a restore reads ahead, for all its tables together.

    Args:
      num_bytes: the maximum number of bytes.
    """

    def __init__(self, num_bytes: int = 4 << 20) -> None:
        self._free = num_bytes

    def take(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Reserves memory for more tensors; returns False if none is left."""
        self._free -= sum(_bytes_of(tensor) for tensor in tensors)
        return self._free >= 0


def _bytes_of(tensor: tf.Tensor) -> int:
    size = int(tf.size(tensor))
    if tensor.dtype != tf.string:
        return size * int(tensor.dtype.size)
    # TensorFlow needs 24 bytes for each string besides its content.
    return size * 24 + int(tf.reduce_sum(tf.strings.length(tensor)))


class _Chunks:
    """A saved table's keys and the tensors beside them, chunk by chunk.

    Args:
      read: (chunk number) -> keys, tensors beside them, number of chunks.
      room: the memory for chunks that are read ahead.
    """

    def __init__(self, read: _Read, room: Room) -> None:
        self._read = read
        self._room = room
        self._kept: list[tuple[tf.Tensor, ...]] | None = None
        self._stays: tf.Tensor | None = None
        self._begins: tf.Tensor | None = None

    def read_ahead(self, visit: Callable[..., Any]) -> None:
        """Visits all chunks, and keeps them for the next `for_each`.

        In functions and graphs, or without memory left, `for_each` reads them
        again.
        """
        kept: list[tuple[tf.Tensor, ...]] = []
        has_room = tf.executing_eagerly()

        def visit_and_keep(*chunk: tf.Tensor) -> None:
            nonlocal has_room
            visit(*chunk)
            has_room = has_room and self._room.take(chunk)
            if has_room:
                kept.append(chunk)
            else:
                kept.clear()

        self.for_each(visit_and_keep)
        self._kept = kept if has_room else None

    def keep_only(self, stays: tf.Tensor, begins: tf.Tensor) -> None:
        """Leaves rows out of `for_each`: see `tfembed.ops.checkpoint.choose`."""
        self._stays, self._begins = stays, begins

    def for_each(self, visit: Callable[..., Any]) -> None:
        """Calls visit(keys, tensors beside them) for each chunk."""
        if self._kept is not None:
            for number, chunk in enumerate(self._kept):
                visit(*self._staying(number, chunk))
            return

        # An empty table has a chunk 0, too.
        def body(chunk: tf.Tensor, num_chunks: tf.Tensor) -> list[tf.Tensor]:
            *content, num_chunks = self._read(chunk)
            visit(*self._staying(chunk, content))
            return [chunk + 1, num_chunks]

        first = tf.constant(0, tf.int64)
        tf.while_loop(
            lambda chunk, num_chunks: chunk < num_chunks,
            body,
            [first, first + 1],
            parallel_iterations=1,
        )

    def shards(self, shard_of: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Returns shard_of(keys) of all keys, int32 [n]."""

        def body(
            chunk: tf.Tensor, num_chunks: tf.Tensor, found: tf.TensorArray
        ) -> list[Any]:
            keys, _, num_chunks = self._read(chunk)
            return [
                chunk + 1,
                num_chunks,
                found.write(tf.cast(chunk, tf.int32), shard_of(keys)),
            ]

        first = tf.constant(0, tf.int64)
        *_, found = tf.while_loop(
            lambda chunk, num_chunks, found: chunk < num_chunks,
            body,
            [
                first,
                first + 1,
                tf.TensorArray(
                    tf.int32, size=0, dynamic_size=True, infer_shape=False
                ),
            ],
            parallel_iterations=1,
        )
        return tf.ensure_shape(found.concat(), [None])

    def _staying(
        self, number: Any, chunk: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        if self._stays is None or self._begins is None:
            return chunk
        stays = self._stays[self._begins[number] : self._begins[number + 1]]
        return [tf.boolean_mask(tensor, stays) for tensor in chunk]


class TableSource:
    """The rows of a saved table that Python code restores, not an op.

    Python restores rows that a partitioner or a hash of strings distributes to
    shards, and keys that wait for admission.

    Args:
      table: the table to restore.
      prefix: the prefix of the checkpoint, a string scalar.
      tensor_name: the prefix of the table's tensors in the checkpoint.
      load_slots: whether to load saved slots.
      room: the memory for reading ahead.
    """

    def __init__(
        self,
        *,
        table: HashTable,
        prefix: tf.Tensor,
        tensor_name: str,
        load_slots: bool,
        room: Room,
    ) -> None:
        self.table = table
        self.tensor_name = tensor_name
        self.load_slots = load_slots
        self._prefix = prefix
        self._like = table.handle  # A table with the layout of the rows.
        self._rows: _Chunks | None = None
        if not table.deals_by_remainder:
            self._rows = _Chunks(self._read_rows, room)
        # A table that serves trains nothing, so no keys wait in it.
        self._waiting: _Chunks | None = None
        if table.admission is not None and load_slots:
            self._waiting = _Chunks(self._read_waiting, room)

    def read_ahead(self) -> None:
        """Reads everything that `deal` will write, and tests the partition.

        Raises:
          tf.errors.OpError: files cannot be read, or do not fit the table.
          tf.errors.InvalidArgumentError: a key belongs to a shard that is
            missing, or a shard gets more rows than it may hold, and nothing
            says which of them stay.
        """
        if self._rows is not None:
            self._lay_out_slots()
            self._rows.read_ahead(self._partition)
            if self.table.max_size is not None:
                self._choose(self._rows)
        if self._waiting is not None:
            self._waiting.read_ahead(self._partition)

    def deal(self) -> None:
        """Adds all rows to the empty table; in eager mode all or none.

        Raises:
          tf.errors.ResourceExhaustedError: there is not enough memory.
        """
        try:
            if self._rows is not None:
                self._rows.for_each(self._to_shards(table_ops.import_rows))
            if self._waiting is not None:
                self._waiting.for_each(
                    self._to_shards(table_ops.import_waiting)
                )
        except tf.errors.OpError:
            self.table.clear()
            raise

    def _choose(self, rows: _Chunks) -> None:
        """Leaves out the rows that the bounded shards would evict."""
        table = self.table

        def shard(keys: tf.Tensor) -> tf.Tensor:
            if len(table.shards) == 1:
                return tf.zeros(tf.shape(keys), tf.int32)
            return shard_of(
                keys, len(table.shards), table.partitioner, table.name
            )

        shards, handles = rows.shards(shard), table.handles
        chosen = []
        for here in by_device(handles):
            places = [
                here.index(s) if s in here else -1 for s in range(len(handles))
            ]
            chosen.append(
                checkpoint_ops.choose(
                    [handles[s] for s in here],
                    self._prefix,
                    tf.gather(tf.constant(places), shards),
                    tensor_name=self.tensor_name,
                )
            )
        stays, begins = zip(*chosen, strict=True)
        rows.keep_only(tf.reduce_all(tf.stack(stays), 0), begins[0])

    def _lay_out_slots(self) -> None:
        """Makes a table with the checkpoint's slots, by which rows are read.

        The restored table gets the slots only when its rows are replaced.
        """
        is_known = self.table.slot_names or not self.load_slots
        if is_known or not tf.executing_eagerly():
            return
        shard = self.table.shards[0]
        options = dataclasses.replace(shard.options, init_size=0)
        # Keeps the handle alive.
        self._shard = NumberShard(options, shard.device)
        self._like = self._shard.resource_handle
        checkpoint_ops.restore(
            [self._like],
            self._prefix,
            tensor_names=[self.tensor_name],
            shard_counts=[1],
            keep_seeds=[True],
            deal_rows=[False],
            load_slots=[True],
        )

    def _partition(self, keys: tf.Tensor, beside: tf.Tensor) -> None:
        del beside
        self.table.partition(keys)

    def _read_rows(self, chunk: tf.Tensor) -> tuple[tf.Tensor, ...]:
        keys, *others = checkpoint_ops.read_chunk(
            self._like,
            self._prefix,
            chunk,
            tensor_name=self.tensor_name,
            load_slots=self.load_slots,
            has_string_keys=self.table.key_dtype == tf.string,
        )
        return self._cast(keys), *others

    def _read_waiting(self, chunk: tf.Tensor) -> tuple[tf.Tensor, ...]:
        keys, *others = checkpoint_ops.read_waiting(
            self._like,
            self._prefix,
            chunk,
            tensor_name=self.tensor_name,
            has_string_keys=self.table.key_dtype == tf.string,
        )
        return self._cast(keys), *others

    def _cast(self, keys: tf.Tensor) -> tf.Tensor:
        if keys.dtype == self.table.key_dtype:
            return keys
        # The file stores int32 as int64.
        return tf.cast(keys, self.table.key_dtype)

    def _to_shards(self, write: _Write) -> Callable[..., None]:
        """Returns a function that writes keys and columns to their shards."""

        def deal(keys: tf.Tensor, beside: tf.Tensor) -> None:
            parts = self.table.partition(keys)
            for handle, part_keys, part_beside in zip(
                self.table.handles,
                parts.split(keys),
                parts.split(beside),
                strict=True,
            ):
                write(handle, part_keys, part_beside)

        return deal


def check_not_shared(table: HashTable) -> None:
    """Refuses a table of which this process has the rows of one worker."""
    if table.workers is not None:
        count, worker = table.workers.count, table.workers.index
        raise errors.UnsupportedError(
            f"Table '{table.name}' is shared by {count} workers of a "
            "MultiWorkerMirroredStrategy, and a checkpoint of one of them would "
            "lack the others' rows. Save by `save_to_file_system(folder, "
            f"proc_size={count}, proc_rank={worker})` of the Variable on each "
            "worker, and load by `load_from_file_system_with_restore_function`, "
            "by any number of workers. Leave the Variable itself out of "
            "checkpoints with checkpoint=False."
        )


def _tensor_names(path: str) -> list[str]:
    return [f"{path}/.ATTRIBUTES/{tensor}" for tensor in ("keys", "values")]


def save_strings(
    trackables: Mapping[str, StringTable], file_prefix: tf.Tensor
) -> tf.Tensor:
    """Writes tables, by their paths, as one bundle; returns its prefix."""
    names = [name for path in trackables for name in _tensor_names(path)]
    tensors = [x for table in trackables.values() for x in table.export()]
    return _save_tensors(dict(zip(names, tensors, strict=True)), file_prefix)


def _checked_sizes(prefix: tf.Tensor) -> tf.Tensor:
    """Returns the prefix, after a check of its index against its files."""
    checked = checkpoint_ops.check(prefix, checksums=False)
    with tf.control_dependencies(checked):
        return tf.identity(prefix)


class _SavedStrings:
    """The rows of a table of strings, read from a checkpoint and checked.

    Args:
      table: the table to restore.
      prefix: the result of `_checked_sizes`.
      path: the path of the table in the checkpoint.

    Raises:
      tf.errors.OpError: the rows cannot be read, or do not fit the table.
    """

    def __init__(
        self, table: StringTable, prefix: tf.Tensor, path: str
    ) -> None:
        self._table = table
        try:
            keys, values = self._read(prefix, path)
        except tf.errors.OpError as error:
            raise type(error)(
                None,
                None,
                f"Table '{table.name}' cannot be restored: '{path}': "
                f"{error.message}",
            ) from error
        fits = checks.run_shape(
            values,
            tf.stack([tf.size(keys), table.dim]),
            f"The saved rows of table '{table.name}' do not fit its width "
            f"{table.dim}",
        )
        distinct = checkpoint_ops.check_distinct(keys, table_name=table.name)
        with tf.control_dependencies(
            fits if distinct is None else [*fits, distinct]
        ):
            self._keys = tf.reshape(keys, [-1])
            self._values = tf.reshape(values, [-1, table.dim])
        # A partitioner may return a shard that does not exist.
        table.partition(self._keys)

    def replace(self) -> None:
        """Replaces the rows of the table by these."""
        with tf.control_dependencies([self._keys, self._values]):
            self._table.clear()

        def write(begin: tf.Tensor) -> list[tf.Tensor]:
            end = begin + _ROWS_AT_A_TIME
            self._table.upsert(self._keys[begin:end], self._values[begin:end])
            return [end]

        tf.while_loop(
            lambda begin: begin < tf.size(self._keys),
            write,
            [tf.constant(0)],
            parallel_iterations=1,
        )

    @staticmethod
    def _read(prefix: tf.Tensor, path: str) -> list[tf.Tensor]:
        tensors: list[tf.Tensor] = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=_tensor_names(path),
            shape_and_slices=["", ""],
            dtypes=[tf.int64, tf.string],
        )
        return tensors
