"""Columns: what is requested, and arrays of it from texts and from Arrow's."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.errors import DataError

Array = np.ndarray[Any, Any]

# Types of Arrow, as their names begin.
_TEXTS = "(large_)?(string|binary)|fixed_size_binary|null"
_NUMBERS = "u?int|halffloat|float|double|bool|decimal|null"
_NUMBER = re.compile(
    rb"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A description of a column."""

    dtype: str  # "int32", "int64", "float32", "float64" or "string".
    separator: str | None = None  # Of a field's values. None: it is one value.
    blank: float | None = 0  # Of an empty field. None: it is a fault.
    finite: bool = False  # Only finite numbers are allowed.
    among: tuple[float, ...] = ()  # The only values allowed. Empty: all are.
    shape: tuple[int, ...] = ()  # Of a row's value.

    @property
    def spec(self) -> Any:
        """The spec of the column in a batch."""
        if self.separator is None:
            return tf.TensorSpec([None, *self.shape], self.dtype)
        return tf.RaggedTensorSpec([None, None], self.dtype, 1, tf.int64)

    def spread(self, values: Array, is_there: Array) -> Array:
        """Returns values in their places, and blank values in the others."""
        if is_there.all():
            return values
        blank: Any = b"" if self.dtype == "string" else self.blank
        column = np.full(len(is_there), blank, values.dtype)
        column[is_there] = values
        return column


@dataclasses.dataclass(frozen=True)
class Lists:
    """A column of several values per row: all values, and each row's number."""

    values: Array
    lengths: Array

    def __getitem__(self, mask: Array) -> Lists:
        """Returns the rows of a mask."""
        values = self.values[np.repeat(mask, self.lengths)]
        return Lists(values, self.lengths[mask])


def batches(
    read: Callable[[Any], Iterator[dict[str, Any]]],
    sources: Sequence[Any],
    kinds: Mapping[str, Kind],
    batch_size: int,
    label: str | None,
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of the rows that `read` yields of each source."""
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    epochs = checks.integer(epochs, "epochs", least=1)
    shuffle = checks.integer(shuffle, "shuffle", least=0)

    def tensor(column: Any) -> Any:
        if not isinstance(column, Lists):
            return column
        return tf.RaggedTensor.from_row_lengths(
            column.values, column.lengths, validate=False
        )

    def tensors() -> Iterator[dict[str, Any]]:
        for chunk in itertools.chain.from_iterable(map(read, sources)):
            with tf.device("/cpu:0"):
                columns = {name: tensor(c) for name, c in chunk.items()}
            yield columns

    specs = {name: kind.spec for name, kind in kinds.items()}
    rows = tf.data.Dataset.from_generator(tensors, output_signature=specs)
    if shuffle:
        rows = rows.unbatch().shuffle(shuffle, seed=seed).repeat(epochs)
        rows = rows.batch(batch_size)
    else:
        rows = rows.repeat(epochs).rebatch(batch_size)
    if label is not None:

        def apart(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            features = dict(batch)
            return features, features.pop(label)

        rows = rows.map(apart)
    return rows.prefetch(2)


def narrow(values: Array, dtype: str) -> tuple[Array, Array]:
    """Returns values in the dtype, and which of them the dtype does not hold.

    Fractions, and floats from 2**53 on, are rounded; integers never are.
    """
    if dtype == "string" or values.dtype == dtype:
        return values, np.zeros(len(values), bool)
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = values.astype(dtype)
        is_bad = narrowed.astype(values.dtype) != values
        if values.dtype.kind == narrowed.dtype.kind == "f":
            is_whole = (np.trunc(values) == values) & (np.abs(values) < 2.0**53)
            is_bad &= is_whole | (np.isinf(narrowed) & np.isfinite(values))
            return narrowed, is_bad
        # 2**63 as an int64 is another number on each processor.
        for one in values, narrowed:
            if one.dtype.kind != "i":
                is_bad |= ~(np.abs(one.astype(np.float64)) < 2.0**63)
    return narrowed, is_bad


def fit(
    found: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    path: str,
    what: str,
    first: int,
) -> dict[str, Any]:
    """Returns columns, arrays of values or Lists, in their dtypes.

    Raises:
      DataError: a value does not fit, or a row has several. The text names the
        path, `what` ("row" or "record") and its number; that of the first is
        `first`.
    """
    fitting: dict[str, Any] = {}
    for name, kind in kinds.items():
        column, fault = found[name], ""
        if not isinstance(column, Lists):
            column = Lists(column, np.ones(len(column), np.int64))
        values, is_bad = narrow(column.values, kind.dtype)
        if is_bad.any():
            place = int(np.argmax(is_bad))
            row = np.searchsorted(np.cumsum(column.lengths), place, "right")
            fault = (
                f"is {column.values[place]}, which does not fit {kind.dtype}"
            )
        elif kind.separator is None and (column.lengths > 1).any():
            row = np.argmax(column.lengths > 1)
            fault = f"has {column.lengths[row]} values; name it as a Bag"
        if fault:
            where = f"{what} {first + row}: column {name!r}"
            raise DataError(f"{where} {fault}", path=path)
        fitting[name] = Lists(values, column.lengths)
        if kind.separator is None:
            fitting[name] = kind.spread(values, column.lengths == 1)
    return fitting


def from_arrow(array: Any, kind: Kind) -> Any:
    """Returns values or Lists, of the file's dtype; raises TypeError for others."""
    pa: Any = importlib.import_module("pyarrow")
    compute: Any = importlib.import_module("pyarrow.compute")
    array, is_bag = _plain(array), kind.separator is not None
    if is_bag and str(array.type) == "null":
        array = array.cast(pa.list_(pa.null()))
    if ("list" in str(array.type).partition("<")[0]) != is_bag:
        raise TypeError("it is not a Bag" if is_bag else "name it as a Bag")
    if not is_bag:
        return _values(array, kind)
    lengths = compute.list_value_length(array).cast("int64").fill_null(0)
    flat = _plain(compute.list_flatten(array))
    return Lists(_values(flat, kind), lengths.to_numpy(zero_copy_only=False))


def _plain(array: Any) -> Any:
    """Returns an array without extension types, views and dictionaries."""
    pa: Any = importlib.import_module("pyarrow")
    array = getattr(array, "storage", array)
    if "list_view<" in str(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    is_coded = hasattr(array, "dictionary_decode")
    return array.dictionary_decode() if is_coded else array


def _values(array: Any, kind: Kind) -> Array:
    """Returns int64, floats, or texts as bytes; the blank value for null."""
    pa: Any = importlib.import_module("pyarrow")
    given = str(array.type)
    if not re.match(_TEXTS if kind.dtype == "string" else _NUMBERS, given):
        wanted = "numbers, texts and lists of them are read"
        raise TypeError(f"{kind.dtype} is requested; {wanted}")
    if "view" in given:
        array = pa.array(array.to_pylist(), pa.binary())
    elif given.startswith("decimal"):
        try:
            array = array.cast("int64")
        except pa.ArrowInvalid:  # There are fractions, or larger numbers.
            array = array.cast("float64")
    elif kind.dtype == "string":
        array = array.cast("large_binary")
    elif not given.startswith(("float", "double", "halffloat", "uint64")):
        array = array.cast("int64")
    values = array.drop_null().to_numpy(zero_copy_only=False)
    return kind.spread(values, np.asarray(array.is_valid()))


def from_texts(
    texts: Any, name: str, kind: Kind, faults: dict[int, str]
) -> Any:
    """Returns the column of Arrow's texts, which are null where empty.

    Arrow converts all texts at once. Where it refuses one, or one is in doubt,
    they are judged one by one. `faults` takes the faults by the numbers of
    their rows, from 0; the values of these rows are of no use.
    """
    if kind.separator is not None:
        compute: Any = importlib.import_module("pyarrow.compute")
        pieces = compute.split_pattern(texts, kind.separator)
        flat, rows = pieces.flatten(), compute.list_parent_indices(pieces)
        is_filled = compute.not_equal(compute.binary_length(flat), 0)
        rows = rows.filter(is_filled).to_numpy()
        single = dataclasses.replace(kind, separator=None)
        bad: dict[int, str] = {}
        values = from_texts(flat.filter(is_filled), name, single, bad)
        for place, fault in bad.items():
            faults.setdefault(int(rows[place]), fault)
        return Lists(values, np.bincount(rows, minlength=len(texts)))
    try:
        return _converted(texts, kind)
    except ValueError:  # So are pyarrow's errors.
        column = np.zeros(len(texts), kind.dtype)
    for row, text in enumerate(texts.fill_null(b"").to_pylist()):
        try:
            column[row] = _value(text.strip(b" \t"), kind)
        except ValueError as error:
            shown = text[:24].decode(errors="backslashreplace")
            shown = repr(shown + "..." * (len(text) > 24))
            faults.setdefault(row, f"{name} is {shown}; it must {error}")
    return column


def _converted(texts: Any, kind: Kind) -> Array:
    """Returns values of texts; raises ValueError where one is in doubt."""
    compute: Any = importlib.import_module("pyarrow.compute")
    if kind.dtype == "string":
        return _values(texts, kind)
    is_integer = kind.dtype.startswith("int")
    numbers = texts.cast("int64" if is_integer else "float64")
    given = numbers.drop_null().to_numpy(zero_copy_only=False)
    values, is_doubt = narrow(given, kind.dtype)
    if is_integer:  # Arrow reads 0x10.
        is_hex = compute.match_substring(texts, "x", ignore_case=True)
        is_doubt |= bool(compute.any(is_hex).as_py())
    else:
        # float64 may have rounded whole numbers and read 1e400 as infinite.
        is_doubt |= (np.abs(given) >= 2.0**53) | (np.isnan(given) & kind.finite)
    if kind.among:
        is_doubt |= ~np.isin(values, kind.among)
    if is_doubt.any() or (kind.blank is None and texts.null_count):
        raise ValueError
    return kind.spread(values, np.asarray(texts.is_valid()))


def _value(text: bytes, kind: Kind) -> Any:
    """Returns a number; raises ValueError that says what the text must be."""
    if not text and kind.blank is not None:
        return kind.blank
    is_integer = kind.dtype.startswith("int")
    is_whole = text.lstrip(b"+-").isdigit()
    is_name = text.lstrip(b"+-").isalpha()  # Such as nan.
    is_allowed = is_whole or not (is_integer or (is_name and kind.finite))
    if not is_allowed or not _NUMBER.fullmatch(text):
        finite = "finite " if kind.finite else ""
        wanted = "an integer" if is_integer else f"a {finite}number"
        or_empty = "" if kind.blank is None else " or empty"
        raise ValueError(f"be {wanted}{or_empty}")
    number: Any = int(text) if is_whole else float(text)
    is_rounded = not is_whole and (number % 1 or abs(number) >= 2.0**53)
    try:
        with np.errstate(over="ignore"):
            value = np.array(number).astype(kind.dtype)[()]
        is_held = np.isfinite(value) and (is_rounded or int(value) == number)
    except OverflowError:
        is_held = False
    if not is_held and not is_name:
        raise ValueError(f"fit into {kind.dtype} as it is")
    if kind.among and value not in kind.among:
        raise ValueError("be " + " or ".join(f"{one:g}" for one in kind.among))
    return value
