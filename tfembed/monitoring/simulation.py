"""Dry runs: the rows that policies keep of a log or a table, and their cost."""

from __future__ import annotations

import dataclasses
import html
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks, errors, optimizers
from tfembed.monitoring.found_tables import require_tables
from tfembed.monitoring.health import saved_path
from tfembed.ops import table as table_ops
from tfembed.policies import (
    CountAdmission,
    EvictionPolicy,
    LeastFrequent,
    LeastRecent,
    SmallestNorm,
)
from tfembed.printing.line_plot import Line, line_plot
from tfembed.printing.text_tables import TextTable, scrolled
from tfembed.saved.saved_table import SavedTable
from tfembed.saved.saved_tables import open_saved
from tfembed.saved.written_file import written_file
from tfembed.tables import HashTable
from tfembed.units import as_bytes, as_count, as_share, counted

__all__ = ["Outcome", "Simulation", "simulate"]

# The table arguments that a choice may set.
OPTIONS = ("admission", "eviction", "expiry", "max_size", "init_size")
# The eviction policy by what `SavedTable.counters` says of a table's notes.
_POLICIES: dict[str, EvictionPolicy] = {
    policy.saved_notes: policy
    for policy in (
        SmallestNorm(),
        LeastFrequent(),
        LeastRecent("steps"),
        LeastRecent("seconds"),
    )
}
_POINTS = 50  # The number of points of a curve.
_WORD = 4  # The bytes of a word.
_COLUMN = (
    "Give a column of ids as `ids[:, 0]`; with batch_size=1 each is a step."
)

_DEFAULT_CHOICES: dict[str, dict[str, Any]] = {
    "all": {},
    "seen twice": {"admission": CountAdmission(2)},
    "seen 3 times": {"admission": CountAdmission(3)},
    "seen 5 times": {"admission": CountAdmission(5)},
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One choice of policies, and its effect.

    Attributes:
      name: the name of the choice.
      rows: the number of rows at the end.
      peak_rows: the largest number of rows among the points of `curve`.
      bytes: the bytes at the end for rows of the requested width, with slots,
        counters, index and policies.
      hit_rate: the share of ids that had a row when they were looked up,
        before the step that trained them. For a table: see `simulate`.
      last_hit_rate: the same for the last tenth of the log.
      refused: the ids of training steps that were not admitted, once each
        step.
      waiting: the number of ids that wait for admission at the end.
      evicted: the number of evicted rows.
      curve: points (ids seen, rows, share of hits since the last point).
    """

    name: str
    rows: int
    peak_rows: int
    bytes: int
    hit_rate: float | None
    last_hit_rate: float | None = None
    refused: int | None = None
    waiting: int | None = None
    evicted: int | None = None
    curve: tuple[tuple[int, int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The outcomes of all choices; `str` and notebooks show them.

    Attributes:
      outcomes: the outcomes of the choices, in their order.
      ids: the number of ids of the log, or of rows of the table.
      steps: the number of steps of the log; None for a table.
      row: a description of a row.
    """

    outcomes: tuple[Outcome, ...]
    ids: int
    steps: int | None
    row: str

    def __getitem__(self, name: str) -> Outcome:
        """Returns the outcome of the choice of this name.

        Raises:
          tfembed.errors.ArgumentError: no choice has this name.
        """
        for outcome in self.outcomes:
            if outcome.name == name:
                return outcome
        names = [outcome.name for outcome in self.outcomes]
        raise errors.ArgumentError(
            f"There is no choice {name!r} among {names}."
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns all numbers of each choice, in types that JSON has."""
        return {one.name: dataclasses.asdict(one) for one in self.outcomes}

    def __str__(self) -> str:
        """Returns the outcomes as a table of text."""
        return str(self._table())

    def _repr_html_(self) -> str:
        """Returns a table and a plot, for notebooks."""
        return self._table().to_html() + self._plot()

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the table and the plot as an HTML page, whole or not at all.

        Raises:
          tfembed.errors.ArgumentError: the page cannot be written there.
        """
        page = (
            '<!DOCTYPE html><html><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><title>'
            f"{html.escape(self._title())}</title><style>body{{font-family:"
            "sans-serif;margin:2em}td,th{padding:0.2em 0.8em}</style></head>"
            f"<body>{self._repr_html_()}</body></html>"
        )
        with written_file(path) as written:
            written.write_text(page, encoding="utf-8")

    def _title(self) -> str:
        source = f"{self.ids:,} rows of a table"
        if self.steps is not None:
            source = f"{self.ids:,} ids in {counted(self.steps, 'step')}"
        return f"{source}; {self.row}"

    def _table(self) -> TextTable:
        def line(one: Outcome) -> tuple[str, ...]:
            return (
                one.name,
                f"{one.rows:,}",
                as_count(one.peak_rows if one.peak_rows > one.rows else None),
                as_bytes(one.bytes),
                as_share(one.hit_rate),
                as_share(one.last_hit_rate),
                as_count(one.refused or None),
                as_count(one.waiting or None),
                as_count(one.evicted or None),
            )

        return TextTable(
            self._title(),
            (
                "policy",
                "rows",
                "at most",
                "bytes",
                "hit rate",
                "last tenth",
                "refused",
                "waiting",
                "evicted",
            ),
            [line(one) for one in self.outcomes],
        )

    def _plot(self) -> str:
        if self.steps is None:
            return ""
        rows = [
            Line(one.name, [(seen, kept) for seen, kept, _ in one.curve])
            for one in self.outcomes
        ]
        hits = [
            Line(one.name, [(seen, 100 * hit) for seen, _, hit in one.curve])
            for one in self.outcomes
        ]
        return scrolled(line_plot("rows by ids seen", rows)) + scrolled(
            line_plot("% of hits by ids seen", hits)
        )


@dataclasses.dataclass(frozen=True)
class _Row:
    """The width, dtype and slots of the rows to cost."""

    dim: int
    dtype: tf.DType
    slot_words: int = 0
    rule: str = ""  # The name of the slots' update rule.

    @classmethod
    def of(cls, dim: int, dtype: tf.DType, optimizer: Any) -> _Row:
        row_wise = getattr(optimizer, "row_wise_slots", ())
        names = getattr(optimizer, "slot_names", ())
        slots = sum(1 if name in row_wise else dim for name in names)
        rule = "" if optimizer is None else optimizer.rule_text().split()[0]
        return cls(dim, dtype, slots, rule)

    def words(self, notes: bool) -> int:
        """Returns the 4-byte words of a row in memory: `row_layout.h`."""
        value = max(1, math.ceil(self.dim * self.dtype.size / _WORD))
        return value + self.slot_words + int(notes)

    def in_words(self) -> str:
        rule = f" with {self.rule}" if self.rule else ""
        return f"rows of {self.dtype.name} [{self.dim}]{rule}"


@dataclasses.dataclass(frozen=True)
class _Judged:
    """A table's keys, and the worth of their rows.

    Attributes:
      name, key_dtype, row: the name, key dtype and row of the table.
      keys: the keys, [n].
      policy: the eviction policy; SmallestNorm for a table without one.
      has_admission: whether it has an admission policy.
      worth: returns the worth [n] of the keys by a given eviction policy.
    """

    name: str
    key_dtype: tf.DType
    row: _Row
    keys: Any
    policy: Any
    has_admission: bool
    worth: Callable[[Any], Any]


def simulate(
    source: Any,
    choices: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    dim: int = 16,
    optimizer: Any = None,
    dtype: Any = "float32",
    batch_size: int = 4096,
    table: str | None = None,
) -> Simulation:
    """Tells which rows policies would keep, their hit rate and their memory.

    A log of ids runs through a real table for each choice, with rows of one
    number: each batch is looked up, then trained. So rows, hits, refused and
    evicted ids are those of a table with one shard that is trained on the log.
    Bytes are computed for rows of the requested width.

    For a table, the choices decide which of its rows would stay now: the rows
    within an expiry's limit; the best `max_size` rows, as `evict` picks them;
    the rows touched as often as an admission asks. Bytes are those of a new
    table with these rows. The hit rate is their share of all touches, which a
    table with `LeastFrequent` has counted: it is the share that lookups of
    each batch's distinct ids would find if the same ids came again. A
    checkpoint, a SavedModel or a `.keras` file gives the same result as the
    table that was saved, without a model.

    Args:
      source: a log: ids in any flat sequence (a list, an array or tensor [n], a
        column of pandas or Arrow, an iterator); or the ids of each step, in an
        array [steps, batch], a tf.data.Dataset or an iterable of batches. Or a
        HashTable, a dynamic_embedding.Variable, or an object with one table; or
        a path that `tfembed inspect` takes, or an object with a
        `latest_checkpoint`.
      choices: by name, the arguments of a table: "admission", "eviction",
        "expiry", "max_size", "init_size". None: four choices, all ids, and
        those seen 2, 3 and 5 times.
      dim: the width of the rows. For a table: its own.
      optimizer: the optimizer whose slots the rows have; None: no slots. For a
        table: its own.
      dtype: the dtype of the rows. For a table: its own.
      batch_size: the number of ids of a step, for a log without batches.
      table: the name of the table, where the source has several.

    Raises:
      tfembed.errors.CheckpointError: the file is missing or damaged.
      tfembed.errors.MissingTableError: the source has no table of this name,
        or a file has several tables and `table` is None.
      tfembed.errors.ArgumentError: a choice has other arguments, or a log
        cannot simulate it: SmallestNorm depends on trained rows, seconds on the
        time of training, and a log has no checkpoints to expire at. Or an
        object has several tables, or the table lacks the counters.
      tfembed.errors.UnsupportedError: the call is in a tf.function or a graph.

    Example:
      print(tfembed.simulate(ids, {
          "all": {},
          "seen 3 times": {"admission": tfembed.policies.CountAdmission(3)},
      }, dim=32, optimizer=tfembed.Adagrad(0.1)))
    """
    chosen = _check_choices(_DEFAULT_CHOICES if choices is None else choices)
    if not tf.executing_eagerly():
        raise errors.UnsupportedError(
            "`simulate` gives Python numbers; call it in eager mode, outside of "
            "tf.function."
        )
    if _is_log(source):
        for name, options in chosen.items():
            _check_log_choice(name, options)
        row = _Row.of(
            checks.integer(dim, "dim", least=1), tf.as_dtype(dtype), optimizer
        )
        size = checks.integer(batch_size, "batch_size", least=1)
        return _of_log(list(_batches(source, size)), chosen, row)
    path = saved_path(source)
    if path is not None:
        return _of_table(_saved_table(path, table), chosen)
    return _of_table(_live_table(source, table), chosen)


def _check_choices(
    choices: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    if not isinstance(choices, Mapping) or not choices:
        raise errors.ArgumentError(
            "`choices` must be a dict of dicts, by a name for each, as "
            f"{{'all': {{}}, 'bounded': {{'max_size': 1000}}}}; got {choices!r}."
        )
    for name, options in choices.items():
        if not isinstance(options, Mapping):
            raise errors.ArgumentError(
                "A choice is a dict of arguments of a table, as "
                f"{{'max_size': 1000}}; got {options!r} for {name!r}."
            )
        unknown = set(options) - set(OPTIONS)
        if unknown:
            raise errors.ArgumentError(
                f"A choice may have {list(OPTIONS)}; got {sorted(unknown)} for "
                f"{name!r}."
            )
    return {name: dict(options) for name, options in choices.items()}


def _check_log_choice(name: str, options: Mapping[str, Any]) -> None:
    eviction, expiry = options.get("eviction"), options.get("expiry")
    if eviction is not None and not eviction.notes:
        raise errors.ArgumentError(
            f"Choice {name!r} has SmallestNorm, which judges trained rows: a "
            "log has none. Simulate it from a table that was trained."
        )
    if eviction is not None and eviction.unit == "seconds":
        raise errors.ArgumentError(
            f"Choice {name!r} counts seconds, which a log of ids does not have. "
            "Use LeastRecent() and steps."
        )
    if expiry is not None and expiry.every is None:
        raise errors.ArgumentError(
            f"Choice {name!r} expires rows at checkpoints, which a log of ids "
            "does not have. Give its Expiry `every`, the steps from one "
            "checkpoint to the next."
        )


def _is_log(source: Any) -> bool:
    if isinstance(source, (str, bytes, Mapping, pathlib.PurePath)):
        return False
    if isinstance(source, tf.__internal__.tracking.Trackable):
        return isinstance(source, tf.data.Dataset)
    return (
        tf.is_tensor(source)
        or hasattr(source, "__array__")
        or isinstance(source, Iterable)
    )


def _batches(source: Any, size: int) -> Iterator[tf.Tensor]:
    """Yields the ids of each step, flat.

    Args:
      source: a log, for which `_is_log` is true.
      size: the number of ids of a step, for a log without steps.
    """
    steps = _steps(source)
    if not isinstance(steps, tf.Tensor):
        for step in steps:
            if not (isinstance(step, (list, tuple)) and not step):
                yield tf.reshape(_ids(step), [-1])  # Else it has no dtype.
        return
    for i in range(0, int(tf.size(steps)), size):
        yield steps[i : i + size]


def _steps(source: Any) -> Any:
    """Returns a log without steps as a tensor [n], others as their steps.

    Raises:
      tfembed.errors.ArgumentError: it cannot be told what the steps are.
      tfembed.errors.DtypeError: numbers or objects that are no ids.
    """
    _check_one_column(source)
    if isinstance(source, tf.SparseTensor):
        source = tf.RaggedTensor.from_sparse(source)
    if isinstance(source, tf.Tensor):
        return _of_array(_ids(source))
    if hasattr(source, "__array__") and not isinstance(source, tf.RaggedTensor):
        array = np.asarray(source)  # Also of a Series or an Arrow column.
        if array.dtype != object or not array.ndim:
            return _of_array(_ids(array))
        source = array
    is_unbatched = (
        isinstance(source, tf.data.Dataset) and not source.element_spec.shape
    )
    items = list(source.as_numpy_iterator() if is_unbatched else source)
    of_one = [one for one in items if _is_one_id(one)]
    if len(of_one) == len(items) > 0:
        return _ids(items)
    if of_one:
        other = next(one for one in items if not _is_one_id(one))
        raise errors.ArgumentError(
            f"{len(of_one):,} of the {len(items):,} items of the log are single "
            f"ids, and the others are not, as {_in_short(other)}. Give all ids "
            "in one sequence, or a sequence with the ids of each step."
        )
    is_column = len(items) > 1 and all(map(_has_one_id, items))
    if is_column and not isinstance(source, tf.data.Dataset):
        raise errors.ArgumentError(
            f"Each of the {len(items):,} items of the log has one id, as "
            f"{_in_short(items[0])}: {_COLUMN}"
        )
    return items


def _of_array(ids: tf.Tensor) -> Any:
    """Returns ids [n] as they are, and the rows of ids [steps, batch, ...]."""
    if ids.shape.rank == 1:
        return ids
    if not ids.shape.rank or (ids.shape[0] > 1 and ids.shape[1:] == [1]):
        raise errors.ArgumentError(
            "A log has the shape [n], or [steps, batch]; got "
            f"{ids.shape}. {_COLUMN}"
        )
    return tf.unstack(ids)


def _is_one_id(value: Any) -> bool:
    if tf.is_tensor(value) or isinstance(value, np.ndarray):
        return len(value.shape) == 0
    return isinstance(value, (int, float, str, bytes, np.generic))


def _has_one_id(step: Any) -> bool:
    items = list(step)
    return len(items) == 1 and _is_one_id(items[0])


def _in_short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_one_column(value: Any) -> None:
    """Refuses frames, and batches of several columns.

    Raises:
      tfembed.errors.ArgumentError: a frame, or a structure of tensors.
    """
    names: Any = None
    if isinstance(value, tf.data.Dataset):
        if tf.nest.is_nested(value.element_spec):
            names = f"a tf.data.Dataset of {value.element_spec}"
    elif isinstance(value, Mapping):
        names = f"a dict of {list(value)}"
    elif hasattr(value, "columns"):  # An Arrow table has them without names.
        names = getattr(value, "column_names", value.columns)
        names = f"a frame of {list(names)}"
    elif isinstance(value, tuple) and any(
        hasattr(one, "shape") and len(one.shape) for one in value
    ):
        names = f"a tuple of {len(value)} arrays"
    if names is not None:
        raise errors.ArgumentError(
            f"A log has the ids of one table; got {names}. Give one column, as "
            "`frame['id']` or `dataset.map(lambda batch: batch['id'])`."
        )


def _ids(batch: Any) -> tf.Tensor:
    """Returns ids as int64 or strings.

    Raises:
      tfembed.errors.ArgumentError: ids of several columns.
      tfembed.errors.DtypeError: numbers or objects that are no ids.
    """
    _check_one_column(batch)
    if isinstance(batch, (tf.RaggedTensor, tf.SparseTensor)):
        batch = getattr(batch, "flat_values", getattr(batch, "values", None))
    try:
        ids = tf.convert_to_tensor(batch)
    except (TypeError, ValueError) as error:
        raise errors.DtypeError(
            "A log has ids, integers or strings, and none is missing; got "
            f"{_in_short(batch)}."
        ) from error
    if ids.dtype.is_integer:
        return tf.cast(ids, tf.int64)
    if ids.dtype == tf.string:
        return ids
    raise errors.DtypeError(
        f"A log has ids, integers or strings; got {ids.dtype.name}. A column "
        "with missing numbers is one of floats: leave these out, and cast it."
    )


def _of_log(
    batches: list[tf.Tensor],
    choices: Mapping[str, Mapping[str, Any]],
    row: _Row,
) -> Simulation:
    total = sum(int(tf.size(batch)) for batch in batches)
    if total == 0:
        raise errors.ArgumentError("The log has no ids.")
    return Simulation(
        tuple(
            _run(batches, name, options, row)
            for name, options in choices.items()
        ),
        ids=total,
        steps=len(batches),
        row=row.in_words(),
    )


def _new_table(name: str, key_dtype: tf.DType, **options: Any) -> HashTable:
    table = HashTable(1, key_dtype=key_dtype, name=name, **options)
    table.attach(optimizers.SGD(0.0))
    return table


def _run(
    batches: list[tf.Tensor], name: str, options: Mapping[str, Any], row: _Row
) -> Outcome:
    """Runs the log through a real table and returns the outcome."""
    table = _new_table(name or "simulated", batches[0].dtype, **options)
    moments = {
        *np.linspace(0, len(batches), _POINTS + 1).astype(int)[1:].tolist(),
        math.ceil(0.9 * len(batches)),
    }
    curve: list[tuple[int, int, float]] = []
    counted_hits, last = [(0, 0)], (0, 0)
    for step, batch in enumerate(batches, 1):
        table.lookup(batch)
        table.apply_gradients(batch, tf.zeros([tf.size(batch), 1]))
        if step not in moments:
            continue
        counts = _Counts.of(table)
        hits, seen = counts.hits, counts.hits + counts.misses
        before = counted_hits[-1]
        share = (hits - before[0]) / max(1, seen - before[1])
        curve.append((seen, counts.rows, share))
        counted_hits.append((hits, seen))
        if step <= math.ceil(0.9 * len(batches)):
            last = (hits, seen)
    counts = _Counts.of(table)
    hits, seen = counted_hits[-1]
    in_last = seen - last[1]
    return Outcome(
        name=name,
        rows=counts.rows,
        peak_rows=max(rows for _, rows, _ in curve),
        bytes=counts.bytes_with(row, table.eviction),
        hit_rate=hits / seen,
        last_hit_rate=(hits - last[0]) / in_last if in_last else None,
        refused=counts.refused,
        waiting=counts.waiting,
        evicted=counts.evicted,
        curve=tuple(curve),
    )


@dataclasses.dataclass(frozen=True)
class _Counts:
    """The core's counters of a table with one shard, in the op's order."""

    rows: int
    capacity: int
    index_bytes: int
    row_bytes: int
    hits: int
    misses: int
    admitted: int
    refused: int
    evicted: int
    nan_rows: int
    value_bytes: int
    slot_bytes: int
    meta_bytes: int
    policy_bytes: int
    places: int
    probes: int
    longest_probe: int
    waiting: int

    @classmethod
    def of(cls, table: HashTable) -> _Counts:
        survey = table_ops.survey(table.handle, 0, key_dtype=table.key_dtype)
        return cls(*survey.counts.numpy().tolist())

    def bytes_with(self, row: _Row, eviction: Any) -> int:
        """Returns the bytes if rows were `row`, in place of one number each."""
        notes = eviction is not None and eviction.notes
        taken = self.row_bytes // (_WORD * (1 + notes))
        rows = taken * _WORD * row.words(notes)
        return rows + self.index_bytes + self.policy_bytes


def _live_table(source: Any, name: str | None) -> _Judged:
    found = require_tables(source)
    names = [one.name for one in found]
    tables = [one.rows for one in found if name in (None, one.name)]
    if name is not None and not tables:
        raise errors.MissingTableError(
            f"There is no table '{name}' among {names}."
        )
    if len(tables) != 1 or not isinstance(tables[0], HashTable):
        raise errors.ArgumentError(
            "`simulate` takes a log of ids or one hash table; got "
            f"{names} in {source!r}. Name one by `table`."
        )
    (table,) = tables
    policy = table.eviction or SmallestNorm()
    keys, worth = table.worth(policy)
    return _Judged(
        name=table.name,
        key_dtype=table.key_dtype,
        row=_Row.of(table.dim, table.value_dtype, table.optimizer),
        keys=keys,
        policy=policy,
        has_admission=table.admission is not None,
        worth=lambda wanted: (
            worth.numpy()
            if wanted == policy
            # Raises an error if SmallestNorm cannot judge.
            else table.worth(wanted)[1].numpy()
        ),
    )


def _saved_table(path: str, name: str | None) -> _Judged:
    saved = open_saved(path)
    if name is None and len(saved) != 1:
        raise errors.MissingTableError(
            f"'{path}' has the tables {list(saved)}. Name one by `table`."
        )
    table = saved[next(iter(saved)) if name is None else name]
    if table.has_vocabulary or table.dtype == "string":
        raise errors.ArgumentError(
            f"Table '{table.name}' of '{path}' has "
            + ("a vocabulary" if table.has_vocabulary else "rows of strings")
            + ": it has no policies to simulate."
        )
    policy = _POLICIES[table.counters]
    sign, now = 1, saved.modified or time.time()
    if table.counters == "steps_ago":
        sign, now = -1, 0.0  # These notes count back from the save.
    chunks = [
        (chunk.keys, _worth(policy, chunk.counters, sign, now))
        for chunk in table.chunks(rows=False, slots=False)
    ]
    dtype = tf.as_dtype(table.key_dtype)
    keys = [keys for keys, _ in chunks]

    def worth(wanted: Any) -> Any:
        if not wanted.notes:
            return np.concatenate([np.zeros(0), *_norms(table, wanted)])
        if wanted != policy:
            raise errors.ArgumentError(
                f"Table '{table.name}' of '{path}' has no notes for "
                f"{wanted!r}: it was trained with "
                f"{table.policies.get('eviction', 'no eviction policy')}."
            )
        return np.concatenate([np.zeros(0), *(one for _, one in chunks)])

    return _Judged(
        name=table.name,
        key_dtype=dtype if dtype == tf.string else tf.int64,
        row=_Row(
            table.width,
            tf.as_dtype(table.dtype),
            sum(table.slot_widths.values()),
            table.rule or "",
        ),
        keys=tf.constant(
            np.concatenate(keys) if keys else [],
            dtype if dtype == tf.string else tf.int64,
        ),
        policy=policy,
        has_admission="admission" in table.policies or table.num_waiting > 0,
        worth=worth,
    )


def _worth(policy: EvictionPolicy, counters: Any, sign: int, now: float) -> Any:
    if counters is None:
        return np.zeros(0)
    return policy.worth(None, sign * counters, now)


def _norms(table: SavedTable, policy: EvictionPolicy) -> Iterator[Any]:
    for chunk in table.chunks(slots=False, counters=False):
        yield policy.worth(chunk.rows, None, 0)


def _of_table(
    table: _Judged, choices: Mapping[str, Mapping[str, Any]]
) -> Simulation:
    return Simulation(
        tuple(_kept(table, name, options) for name, options in choices.items()),
        ids=int(tf.size(table.keys)),
        steps=None,
        row=table.row.in_words(),
    )


def _kept(table: _Judged, name: str, options: Mapping[str, Any]) -> Outcome:
    """Returns the rows of a table that a choice keeps."""
    wanted = options.get("eviction", table.policy)
    worth = table.worth(wanted)
    stays = np.ones(len(worth), bool)
    admission, expiry = options.get("admission"), options.get("expiry")
    counts = wanted.unit == "touches"
    if admission is not None:
        if not counts or table.has_admission:
            raise errors.ArgumentError(
                f"Choice {name!r} has an admission, but table '{table.name}' "
                "does not know how often its keys were seen. Simulate from a log "
                "of ids, or from a table with eviction=LeastFrequent() and "
                "without an admission."
            )
        stays &= worth >= admission.seen
    if expiry is not None:
        past = (
            -worth >= expiry.limit
            if wanted.limit_is_age
            else worth < (expiry.limit)
        )
        stays &= ~past
    most = options.get("max_size")
    if most is not None and stays.sum() > most:
        order = np.argsort(np.where(stays, worth, -np.inf), kind="stable")
        stays[order[: len(stays) - most]] = False
    kept = tf.boolean_mask(table.keys, stays)
    alone = _new_table(
        "kept", table.key_dtype, eviction=wanted if wanted.notes else None
    )
    alone.upsert(kept, tf.zeros([tf.size(kept), 1]))
    return Outcome(
        name=name,
        rows=int(stays.sum()),
        peak_rows=int(stays.sum()),
        bytes=_Counts.of(alone).bytes_with(table.row, wanted),
        hit_rate=float(worth[stays].sum() / worth.sum())
        if counts and len(worth)
        else None,
        evicted=int((~stays).sum()),
    )
