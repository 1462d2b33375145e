"""Columns: what is requested, and arrays of it from texts and from Arrow's."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks
from tfembed.errors import DataError

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A description of a column.

    Attributes:
      dtype: "int32", "int64", "float32", "float64" or "string".
      separator: the separator of several values in a field; None: one value.
      blank: the number of an empty field; None: an empty field is a fault.
      finite: whether only finite numbers are allowed.
      among: the only values that are allowed; empty: all.
    """

    dtype: str
    separator: str | None = None
    blank: float | None = 0
    finite: bool = False
    among: tuple[float, ...] = ()

    def spread(self, values: Array, is_there: Array) -> Array:
        """Returns values in their places, and blank values in the others."""
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


def specs(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Returns the specs of columns in a batch."""
    return {
        name: tf.TensorSpec([None], kind.dtype)
        if kind.separator is None
        else tf.RaggedTensorSpec([None, None], kind.dtype, 1, tf.int64)
        for name, kind in kinds.items()
    }


def batches(
    chunks: Callable[[], Iterator[dict[str, Any]]],
    specs: Mapping[str, Any],
    batch_size: int,
    label: str | None,
    epochs: int = 1,
    shuffle: int = 0,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of the chunks' rows."""
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
        for chunk in chunks():
            with tf.device("/cpu:0"):
                columns = {name: tensor(c) for name, c in chunk.items()}
            yield columns

    rows = tf.data.Dataset.from_generator(tensors, output_signature=dict(specs))
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

    Args:
      values: texts, integers or floats; whole floats may become integers.
      dtype: as of a Kind. Fractions, and floats from 2**53 on, are rounded.
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
    """Returns columns in their dtypes, of one value per row or of Lists.

    Args:
      found: for each column, an array of values or Lists.
      kinds: descriptions of the columns.
      path: the file.
      what: "row" or "record".
      first: the number of the first row, from 1.

    Raises:
      DataError: a value does not fit, or a row has several.
    """
    fitting: dict[str, Any] = {}
    for name, kind in kinds.items():
        column, fault = found[name], ""
        is_lists = isinstance(column, Lists)
        given = column.values if is_lists else column
        values, is_bad = narrow(given, kind.dtype)
        is_single = is_lists and kind.separator is None
        if is_bad.any():
            row = int(np.argmax(is_bad))
            fault = f"is {given[row]}, which does not fit {kind.dtype}"
            if is_lists:
                ends = np.cumsum(column.lengths)
                row = int(np.searchsorted(ends, row, "right"))
        elif is_single and (column.lengths > 1).any():
            row = int(np.argmax(column.lengths > 1))
            fault = f"has {column.lengths[row]} values; name it as a Bag"
        if fault:
            where = f"{what} {first + row}: column {name!r}"
            raise DataError(f"{where} {fault}", path=path)
        if is_single:
            values = kind.spread(values, column.lengths == 1)
        is_bag = is_lists and not is_single
        fitting[name] = Lists(values, column.lengths) if is_bag else values
    return fitting


def from_arrow(array: Any, kind: Kind) -> Any:
    """Returns an array of values or Lists, of the dtypes of the file."""
    compute: Any = importlib.import_module("pyarrow.compute")
    array = _plain(array)
    if kind.separator is None:
        return _values(array, kind)
    if str(array.type) == "null":
        return Lists(_values(array[:0], kind), np.zeros(len(array), np.int64))
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
    if kind.dtype == "string":
        if "view" in given:
            array = pa.array(array.to_pylist(), pa.large_binary())
        elif given not in ("binary", "large_binary"):
            array = array.cast(pa.large_binary())
    elif given.startswith("decimal"):
        try:
            array = array.cast(pa.int64())
        except pa.ArrowInvalid:  # There are fractions, or larger numbers.
            array = array.cast(pa.float64())
    elif not given.startswith(("float", "double", "halffloat", "uint64")):
        array = array.cast(pa.int64())
    values = array.drop_null().to_numpy(zero_copy_only=False)
    if not array.null_count:
        return values
    return kind.spread(values, np.asarray(array.is_valid()))


def from_texts(
    texts: Any, name: str, kind: Kind, faults: dict[int, str]
) -> Any:
    """Returns the column of Arrow's texts, which are null where empty.

    Arrow converts all texts at once. Where it refuses one, or one is in doubt,
    they are judged one by one.

    Args:
      texts: one text per row.
      name: the name of the column.
      kind: describes the column.
      faults: takes the faults of rows, whose values then are of no use.
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
    texts = texts.cast("binary").fill_null(b"")
    for row, text in enumerate(texts.to_pylist()):
        try:
            column[row] = _value(text.strip(b" \t"), kind)
        except ValueError as error:
            shown = text[:24].decode(errors="backslashreplace")
            shown = repr(shown + "..." * (len(text) > 24))
            faults.setdefault(row, f"{name} is {shown}; it must {error}")
    return column


def _converted(texts: Any, kind: Kind) -> Array:
    """Returns values of texts; raises ValueError where one is in doubt."""
    pa: Any = importlib.import_module("pyarrow")
    compute: Any = importlib.import_module("pyarrow.compute")
    if kind.dtype == "string":
        return _values(texts, kind)
    number = pa.int64() if kind.dtype.startswith("int") else pa.float64()
    numbers = texts.cast(number)
    values = _values(numbers, kind)
    narrowed, is_doubt = narrow(values, kind.dtype)
    if number == pa.float64():
        # float64 may have rounded whole numbers and read 1e400 as infinite.
        is_doubt = is_doubt | (np.abs(values) >= 2.0**53)
        is_named = kind.finite and compute.any(compute.is_nan(numbers)).as_py()
    else:  # Arrow reads 0x10.
        is_hex = compute.match_substring(texts, "x", ignore_case=True)
        is_named = compute.any(is_hex).as_py()
    if kind.among:
        is_doubt |= ~np.isin(narrowed, kind.among)
    if is_named or is_doubt.any() or (kind.blank is None and texts.null_count):
        raise ValueError
    return narrowed


def _value(text: bytes, kind: Kind) -> Any:
    """Returns a number; raises ValueError that says what the text must be."""
    if not text and kind.blank is not None:
        return kind.blank
    is_integer = kind.dtype.startswith("int")
    is_name = text.strip(b"+-").isalpha()  # Such as nan.
    is_whole = is_integer or text.lstrip(b"+-").isdigit()
    try:
        # Python takes 1_0, and white space of all kinds.
        if b"_" in text or text != text.strip() or (is_name and kind.finite):
            raise ValueError
        number: Any = int(text) if is_whole else float(text)
    except ValueError:
        finite = "finite " if kind.finite else ""
        wanted = "an integer" if is_integer else f"a {finite}number"
        or_empty = "" if kind.blank is None else " or empty"
        raise ValueError(f"be {wanted}{or_empty}") from None
    try:
        with np.errstate(over="ignore"):
            value = np.array(number).astype(kind.dtype)[()]
        if is_whole:
            is_held = int(value) == number
        else:
            _, is_bad = narrow(np.array([number]), kind.dtype)
            is_held = is_name or (np.isfinite(number) and not is_bad[0])
    except OverflowError:
        is_held = False
    if not is_held:
        raise ValueError(f"fit into {kind.dtype} as it is")
    if kind.among and value not in kind.among:
        raise ValueError("be " + " or ".join(f"{one:g}" for one in kind.among))
    return value
