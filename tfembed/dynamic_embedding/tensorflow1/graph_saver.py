"""Hash tables in graphs of TensorFlow 1, under its `Saver` and `Checkpoint`.

What a table's policies noted is in tensors beside its keys and values.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint import private
from tfembed.checkpoint.row_files import FileStem, norms
from tfembed.checks import run_shape
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import table as table_ops
from tfembed.tables import HashTable, hash_table

__all__ = ["TableSaveable", "add_to_savers", "export_with_notes", "saveables"]

# All saveables that were made in a graph.
_of_graph: weakref.WeakKeyDictionary[
    tf.Graph, list[weakref.ref[TableSaveable]]
] = weakref.WeakKeyDictionary()

_asked = itertools.count(1)

# A part of tensor names in a `tf.train.Checkpoint`, but in no Saver's.
_OF_CHECKPOINTS = ".ATTRIBUTES/"

# The collection of the tables that a graph's Savers restore. Its key is not a
# string, because a Saver tries to write collections with string keys into its
# meta graph.
_RESTORED = ("tfembed_restored_tables",)


class _Checked(NamedTuple):
    """A table's part of a checkpoint.

    Attributes:
      keys: keys [n].
      columns: values [n, dim], and the rows of each slot.
      noted: the notes of its policies.
      checks: operations that fail if these do not fit or cannot be read.
    """

    keys: tf.Tensor
    columns: list[tf.Tensor]
    noted: list[tf.Tensor]
    checks: list[tf.Operation]


def _checked_by(read: tf.Operation) -> Iterator[_Checked]:
    """Yields the content of all tables that a restore op reads.

    All of it must fit before any table changes. Other Savers of the graph may
    have other tables of these names; the tables of the Saver that made the op
    are those whose tensors it asked for just before.
    """
    if read.type != "RestoreV2":
        return
    known = [reference() for reference in _of_graph.get(read.graph, [])]
    by_stem = {
        saveable.stem: saveable
        for saveable in sorted(
            (one for one in known if one is not None),
            key=lambda saveable: saveable.last_asked,
        )
    }
    for saveable in by_stem.values():
        if (found := saveable.checked(read)) is not None:
            yield found


class TableSaveable(private.SaveableObject):
    """A table as tensors of one save, whatever its number of shards.

    The tensors are called `<name>_mht_1of1-keys` [n] and `-values` [n, dim], as
    TensorFlow Recommenders Addons calls those of a variable with one shard, and
    `-slots/<optimizer>/<slot>` [n, dim or 1], where the table has an optimizer
    when the Saver is made. A Saver that was made before has none of them: it
    saves rows, and restores them with slots as they start. For a table with
    policies a Saver has the tensors of `export_with_notes` too, which a restore
    takes where they are; for `tf.train.Checkpoint` a `_NotesSaveable` has them.

    A Saver writes tensors, so it takes a copy of the table in memory;
    `tf.train.Checkpoint` in eager mode does not. Rows of a table with
    `Expiry(at_checkpoints=True)` expire in each run of a save, in the table
    too.

    Args:
      table: it lives in the current graph.
      name: the prefix of the tensors' names; None: as above.
      exports: the exports of another saveable of the table, to share; None: new
        ones.

    Attributes:
      stem: the prefix of the tensors' names.
      last_asked: the number from `_asked` when a Saver last asked for the
        tensors.
    """

    def __init__(
        self,
        table: HashTable,
        name: str | None = None,
        exports: _Exports | None = None,
    ) -> None:
        # Does not call the base's constructor, which stores a list of specs:
        # slots are added later.
        self.op = table.handle
        # An op of the graph: meta graphs write collections by name.
        self.name = name or table.handle.op.name
        self._table = table
        self.stem = name or FileStem(table.name, num_shards=1).of_shard
        self._noted = _note_dtypes(table)
        # Name of the op that reads -> content.
        self._restored: dict[str, _Checked] = {}
        self.exports = _Exports(table) if exports is None else exports
        self.last_asked = 0
        _of_graph.setdefault(table.handle.graph, []).append(weakref.ref(self))

    @property
    def table(self) -> HashTable:
        """The table that is saved."""
        return self._table

    @property
    def specs(self) -> Sequence[Any]:
        """The tensors' specs, which a Saver reads when it is made."""
        self.last_asked = next(_asked)
        return self._specs()

    def _specs(self) -> _Specs:
        table = self._table
        dtypes = {"keys": table.key_dtype, "values": table.value_dtype}
        for slot in table.slot_names:
            owner = table.optimizer.rule_text().split()[0]
            dtypes[f"slots/{owner}/{slot}"] = tf.float32
        num_needed = len(dtypes)
        read: list[int] = []

        def content(i: int) -> tf.Tensor:
            read.append(i)
            return self.exports.tensor(i)

        # Checkpoints read the specs before they save, and also to restore.
        if _OF_CHECKPOINTS not in self.stem:
            dtypes |= self._noted
        specs = [
            _spec(self.exports, f"{self.stem}-{tensor}", dtype, content, i)
            for i, (tensor, dtype) in enumerate(dtypes.items())
        ]
        return _Specs(specs[:num_needed], specs[num_needed:], read)

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any
    ) -> tf.Operation:
        """Makes the op that replaces the content after all tables were checked.

        A Saver calls this when it is made, before it saves anything.

        Raises:
          tfembed.errors.ArgumentError: the Saver has another table whose
            tensors have these names.
        """
        del restored_shapes
        table = self._table
        read = restored_tensors[0].op
        self._check_alone(read.inputs[0])
        saved = self._checked(restored_tensors)
        checks = [check for one in _checked_by(read) for check in one.checks]
        with tf.control_dependencies([*saved.checks, *checks]):
            replaced = table.replace(saved.keys, saved.columns)
        with tf.control_dependencies([replaced]):
            return tf.group(
                replaced, *_restore_notes(table, saved.keys, saved.noted)
            )

    def checked(self, read: tf.Operation) -> _Checked | None:
        """Returns the table's content from `read`, a restore op, or None."""
        names = tf.get_static_value(read.inputs[1])
        outputs = dict(
            zip(map(tf.compat.as_str, names), read.outputs, strict=True)
        )
        if f"{self.stem}-keys" not in outputs:
            return None
        return self._checked([outputs[spec.name] for spec in self._specs()])

    def _checked(self, tensors: Sequence[tf.Tensor]) -> _Checked:
        read = tensors[0].op
        if read.name not in self._restored:
            self._restored[read.name] = self._check(*tensors)
        return self._restored[read.name]

    def _check(self, keys: tf.Tensor, *columns: tf.Tensor) -> _Checked:
        table = self._table
        noted = self._read_noted(keys.op)
        widths = [table.dim, *table.slot_widths[: len(columns) - 1]]
        checks = [
            check
            for column, width in zip(columns, widths, strict=True)
            for check in run_shape(
                column,
                tf.stack([tf.size(keys), width]),
                f"Saved rows of table '{table.name}' do not fit width {width}",
            )
        ]
        checks += _checks_of_notes(table, keys, noted)
        checks.append(
            checkpoint_ops.check_distinct(keys, table_name=table.name)
        )
        # A tensor that a graph restores has no static shape.
        keys = tf.reshape(keys, [-1])
        reshaped = [
            tf.reshape(column, [-1, width])
            for column, width in zip(columns, widths, strict=True)
        ]
        checks += [tensor.op for tensor in noted]
        checked = _Checked(keys, reshaped, noted, checks)
        return checked if table.max_size is None else _best(table, checked)

    def _check_alone(self, prefix: tf.Tensor) -> None:
        """Refuses a second table of the same name in the Saver of `prefix`."""
        graph = prefix.graph
        restored = graph.get_collection_ref(_RESTORED)
        if not restored:
            restored.append({})
        other = restored[0].setdefault((prefix.name, self.stem), self._table)
        if other is not self._table:
            raise errors.ArgumentError(
                f"A Saver cannot save two tables as '{self.stem}': "
                f"'{other.name}' and '{self._table.name}' ('/' counts as '_'). "
                "Give each Variable a `name` of its own, or give the Saver a "
                "dict of them by the names to save them under."
            )

    def _read_noted(self, restore: tf.Operation) -> list[tf.Tensor]:
        """Reads the policies' tensors of the file that `restore` reads."""
        if not self._noted:
            return []
        with tf.device(restore.device):
            return checkpoint_ops.read(
                restore.inputs[0],
                tensors={
                    f"{_notes_stem(self.stem)}-{name}": dtype
                    for name, dtype in self._noted.items()
                },
            )


class _NotesSaveable(private.SaveableObject):
    """Saves the notes of a table's policies in a `tf.train.Checkpoint`.

    The `TableSaveable` restores them, since a checkpoint may lack them.

    Args:
      exports: the exports of the table.
      name: the prefix of the tensors' names.
    """

    def __init__(self, exports: _Exports, name: str) -> None:
        # An op that another saveable has too would be saved twice.
        self.op = None
        self.name = name
        self._exports = exports

    @property
    def specs(self) -> Sequence[Any]:
        """The specs of the notes, which follow the table's columns."""
        first = 2 + len(self._exports.table.slot_names)
        dtypes = _note_dtypes(self._exports.table)
        return [
            _spec(
                self._exports,
                f"{self.name}-{tensor}",
                dtype,
                self._exports.tensor,
                first + i,
            )
            for i, (tensor, dtype) in enumerate(dtypes.items())
        ]

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any
    ) -> tf.Operation:
        """Does nothing: the `TableSaveable` restores the notes."""
        del restored_tensors, restored_shapes
        return tf.no_op()


class _Exports:
    """The tensors of a table to save, copied by one op at one moment.

    Attributes:
      table: the table.
    """

    def __init__(self, table: HashTable) -> None:
        self.table = table
        self._made: dict[tuple[str, ...], list[tf.Tensor]] = {}

    def tensor(self, i: int) -> tf.Tensor:
        """Returns the i-th tensor of `export_with_notes`, after expiry."""
        table = self.table
        if table.slot_names not in self._made:
            expiry = table.expiry
            expired = []
            if expiry is not None and expiry.at_checkpoints:
                expired.append(table.expire(expiry.limit).keys)
            with tf.control_dependencies(expired):
                self._made[table.slot_names] = export_with_notes(table)
        return self._made[table.slot_names][i]


def _spec(
    exports: _Exports,
    name: str,
    dtype: tf.DType,
    content: Callable[[int], tf.Tensor],
    i: int,
) -> Any:
    return private.SaveSpec(
        functools.partial(content, i),
        "",
        name,
        dtype=dtype,
        device=exports.table.shards[0].device,
    )


def _notes_stem(stem: str) -> str:
    """Returns the prefix of the names of the policies' tensors of a table."""
    if _OF_CHECKPOINTS not in stem:
        return stem
    folder, _, _ = stem.rpartition("/")
    return f"{folder}/policies"


class _Specs(list[Any]):
    """Specs of tensors that a save writes, and a restore reads only in part.

    TensorFlow's Savers have one list for both, and a restore fails if a tensor
    is missing. While a save iterates over the list it reads the content of each
    tensor; a restore does not. So an iteration that has read the content of the
    needed specs gets the others too.

    Args:
      needed: the specs of tensors that a checkpoint must have.
      others: the specs of tensors that it may have.
      read: a callback, called with each spec whose content is read.
    """

    def __init__(
        self, needed: Sequence[Any], others: Sequence[Any], read: list[int]
    ) -> None:
        super().__init__(needed)
        self._others = others
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        self._read.clear()
        yield from super().__iter__()
        if self._read:
            yield from self._others


class _NoSaveables(list[Any]):
    """An empty list, with the attribute that Savers read."""

    name = ""


def add_to_savers(table: HashTable) -> TableSaveable | None:
    """Makes the current graph's Savers save `table`; None in eager mode."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        saveable = table.saveable = TableSaveable(table)
        tf.compat.v1.add_to_collection(
            tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, saveable
        )
        return saveable


def saveables(saveable: TableSaveable) -> dict[str, Callable[..., Any]]:
    """Returns the saveable factories that TensorFlow asks a graph's object for.

    A Saver that is given the object calls the factory without arguments;
    `tf.train.Checkpoint` passes the tensors' name.
    """
    table, exports = saveable.table, saveable.exports

    # `kwargs` are for asynchronous saves.
    def make(name: str = "", **kwargs: Any) -> TableSaveable:
        return TableSaveable(table, name, exports) if name else saveable

    def make_notes(name: str = "", **kwargs: Any) -> Any:
        if _OF_CHECKPOINTS not in name:
            return _NoSaveables()  # A Saver's TableSaveable has them.
        return _NotesSaveable(exports, name)

    if not _note_dtypes(table):
        return {"table": make}
    return {"table": make, "policies": make_notes}


def _note_dtypes(table: HashTable) -> dict[str, tf.DType]:
    """Returns the dtypes of a table's notes by name; {} without a policy."""
    if table.admission is None and table.eviction is None:
        return {}
    return {
        "notes": tf.int64,
        "waiting/keys": table.key_dtype,
        "waiting/seen": tf.int32,
        "waiting/counters": tf.uint8,
        "policies": tf.string,
    }


def export_with_notes(table: HashTable) -> list[tf.Tensor]:
    """Returns `HashTable.export_columns`, then the tensors of `_note_dtypes`.

    All are copied at one moment, as described at `hash_table.take`.
    """
    if not _note_dtypes(table):
        return table.export_columns()
    columns, notes = hash_table.take(table, table.shards)
    return [*columns, *notes]


def _checks_of_notes(
    table: HashTable, keys: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Operation]:
    """Makes checks that fail if restored notes do not fit `keys` [n].

    A tensor that the checkpoint lacks has the shape [0] and passes.
    """
    if not tensors:
        return []
    notes, waiting, seen, *_ = tensors
    return [
        tf.debugging.assert_equal(
            tf.logical_or(
                tf.equal(tf.size(notes), 0),
                tf.equal(tf.size(notes), tf.size(keys)),
            ),
            True,
            f"The saved notes of table '{table.name}' are not one a row",
        ),
        tf.debugging.assert_equal(
            tf.size(waiting),
            tf.size(seen),
            f"The saved keys that wait for admission to table '{table.name}' "
            "are not as many as their counts",
        ),
        checkpoint_ops.check_distinct(waiting, table_name=table.name),
    ]


def _best(table: HashTable, saved: _Checked) -> _Checked:
    """Leaves out the rows that `evict` would remove of shards without room.

    A further check fails if there are such rows and no notes to judge by.
    """
    notes, _, _, _, kinds = saved.noted
    policy = table.eviction
    assert policy is not None  # A bounded table has one.
    worth, is_judged = norms(saved.columns[0]), tf.constant(True)
    if policy.notes:
        notes = tf.reshape(notes, [-1])
        kind = tf.concat([tf.reshape(kinds, [-1]), [""]], 0)[0]
        is_judged = tf.equal(kind, policy.saved_notes)
        is_judged &= tf.equal(tf.size(notes), tf.size(saved.keys))
        worth = -notes if policy.saved_notes == "steps_ago" else notes
    rows = tf.range(tf.size(saved.keys))
    parts = table.partition(saved.keys).split(rows)
    bounds = [shard.options.max_size for shard in table.shards]
    excess = [
        tf.maximum(tf.size(part) - bound, 0)
        for part, bound in zip(parts, bounds, strict=True)
    ]
    fits = tf.equal(tf.add_n(excess), 0)
    check = tf.debugging.Assert(
        fits | is_judged,
        [
            f"Table '{table.name}' cannot be restored: the checkpoint has more "
            "rows than it may hold, and no notes by which its policy "
            f"{policy!r} could choose. Nothing was changed. Give the table a "
            "larger `max_size`, or restore into one without it, and `evict`. "
            "Rows of the shards, and how many they may hold:",
            tf.stack([tf.size(part) for part in parts]),
            bounds,
        ],
    )

    def best() -> tf.Tensor:
        kept = [
            tf.gather(part, tf.argsort(tf.gather(worth, part), stable=True)[n:])
            for part, n in zip(parts, excess, strict=True)
        ]
        return tf.sort(tf.concat(kept, 0))

    is_cut = is_judged & ~fits
    kept = tf.cond(is_cut, best, lambda: rows)

    def cut(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cond(is_cut, lambda: tf.gather(tensor, kept), lambda: tensor)

    return _Checked(
        cut(saved.keys),
        [cut(column) for column in saved.columns],
        [cut(notes) if policy.notes else notes, *saved.noted[1:]],
        [*saved.checks, check],
    )


def _restore_notes(
    table: HashTable, keys: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Operation]:
    """Has `table`, which holds `keys` [n] and counts nothing, note all that.

    Counters go on in as many shards as they were saved from; notes and counters
    of another kind than the table's are left out.
    """
    if not tensors:
        return []
    notes, waiting, seen, counters, kinds = tensors
    notes, waiting, seen = (
        tf.reshape(tensor, [-1]) for tensor in (notes, waiting, seen)
    )
    # Where there are none, neither is what they would be of.
    notes_kind, counters_kind = tf.unstack(
        tf.concat([tf.reshape(kinds, [-1]), ["", ""]], 0)[:2], 2
    )
    noted = keys[: tf.size(notes)]
    parts = table.partition(noted)
    done = [
        table_ops.import_notes(*shard, notes_kind)
        for shard in zip(
            table.handles, parts.split(noted), parts.split(notes), strict=True
        )
    ]
    parts = table.partition(waiting)
    done += [
        table_ops.import_waiting(*shard)
        for shard in zip(
            table.handles, parts.split(waiting), parts.split(seen), strict=True
        )
    ]
    # With another number of shards none has the shape of the table's own.
    blocks = tf.shape(counters)[0] // len(table.handles)
    done += [
        table_ops.import_counters(
            handle, counters[i * blocks : (i + 1) * blocks], counters_kind
        )
        for i, handle in enumerate(table.handles)
    ]
    return done
