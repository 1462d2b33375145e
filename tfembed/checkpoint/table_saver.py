"""How TensorFlow's savers write and read hash tables and tables of strings.

A save streams each table into a bundle beside the variables' shards, which
TensorFlow then merges into one checkpoint. A restore reads and checks all that
was saved of all tables, and only then replaces their content.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint import private, string_saver
from tfembed.checkpoint.one_device import check_one_device
from tfembed.checkpoint.string_saver import SavedStrings
from tfembed.checkpoint.table_source import Room, TableSource
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops.private import orders_by_itself
from tfembed.tables import HashTable, StringTable
from tfembed.tables.sharded_table import NumberShard

__all__ = ["leave_slots_out", "register", "tensor_prefix"]

_SLOTS_LEFT_OUT = contextvars.ContextVar("slots left out", default=False)


@contextlib.contextmanager
def leave_slots_out() -> Iterator[None]:
    """Restores of hash tables load rows alone; their slots are initial ones."""
    token = _SLOTS_LEFT_OUT.set(True)
    try:
        yield
    finally:
        _SLOTS_LEFT_OUT.reset(token)


def register() -> None:
    """Registers the saver and the classes that a SavedModel names."""
    # One saver for both kinds: a restore of either must know of the other.
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


def tensor_prefix(object_path: str) -> str:
    """The name of a table's tensors in a checkpoint, before "/keys".

    Args:
      object_path: the attributes that lead from the saved object to the table,
        as in "model/user_table".
    """
    return f"{object_path}/.ATTRIBUTES"


def _save(
    trackables: Mapping[str, HashTable | StringTable], file_prefix: tf.Tensor
) -> list[tf.Tensor]:
    hashed, strings = _by_kind(trackables)
    prefixes = []
    if hashed:
        prefixes.append(_save_hash_tables(hashed, file_prefix))
    if strings:
        prefix = tf.strings.join([file_prefix, "_strings"])
        prefixes.append(string_saver.save(strings, prefix))
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
) -> tf.Tensor:
    tables = list(trackables.values())
    for table in tables:
        check_one_device(table.handles, table.name)
    # TensorFlow traces this for a SavedModel's own restore and save, and then
    # calls it once more, which writes the export.
    exporting = private.exporting_saved_model()
    is_export = False
    for table in tables:
        is_export |= table.note_checkpoint(export_follows=exporting)
    # Of an export that failed after its trace the next call is a checkpoint.
    is_export &= _is_of_saved_model(file_prefix)
    saved = checkpoint_ops.save(
        [handle for table in tables for handle in table.handles],
        file_prefix,
        tensor_names=[tensor_prefix(path) for path in trackables],
        shard_counts=[len(table.shards) for table in tables],
        with_slots=not is_export,
    )
    with tf.control_dependencies([] if saved is None else [saved]):
        return tf.identity(file_prefix)


def _is_of_saved_model(file_prefix: tf.Tensor) -> bool:
    """Returns True if the prefix is of a SavedModel's files, which only serve."""
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
    # All is read and checked before the first write.
    prefix = string_saver.check_sizes(merged_prefix) if strings else None
    saved_strings = [
        SavedStrings(table, prefix, path) for path, table in strings.items()
    ]
    if hashed:
        _restore_hash_tables(hashed, merged_prefix)
    for saved in saved_strings:
        saved.replace()


def _restore_hash_tables(
    trackables: Mapping[str, HashTable], merged_prefix: tf.Tensor
) -> None:
    # A SavedModel serves: its restore op leaves the optimizers' slots out.
    left_out = private.exporting_saved_model() or _SLOTS_LEFT_OUT.get()
    for table in trackables.values():
        check_one_device(table.handles, table.name)
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
    tables = [source.table for source in sources]
    layouts = checkpoint_ops.restore(
        [handle for table in tables for handle in table.handles],
        merged_prefix,
        tensor_names=[source.tensor_name for source in sources],
        shard_counts=[len(table.shards) for table in tables],
        keep_seeds=[table.seed_is_given for table in tables],
        deal_rows=[table.deals_by_remainder for table in tables],
        load_slots=[source.load_slots for source in sources],
    )
    if tf.executing_eagerly():
        for source, layout in zip(sources, layouts.numpy(), strict=True):
            _adopt(source, layout.decode())
    for source in sources:
        source.deal()


def _adopt(source: TableSource, layout: str) -> None:
    """Lets a table's Python side know what its shards have taken over."""
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
