"""Parses lines of a click log in Criteo's format, many at a time.

A line has a label, 13 integers and 26 categories.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
NUM_FIELDS = 1 + NUM_INTEGERS + NUM_CATEGORIES

INTEGER_NAMES = tuple(f"I{i + 1}" for i in range(NUM_INTEGERS))
CATEGORY_NAMES = tuple(f"C{i + 1}" for i in range(NUM_CATEGORIES))
FIELD_NAMES = ("label", *INTEGER_NAMES, *CATEGORY_NAMES)

# What empty fields read as. An empty label is none, and so a fault.
_EMPTY_LABEL, _EMPTY_INTEGER, _EMPTY_CATEGORY = [-1.0], [float("nan")], [""]
_DEFAULTS = [
    _EMPTY_LABEL,
    *[_EMPTY_INTEGER] * NUM_INTEGERS,
    *[_EMPTY_CATEGORY] * NUM_CATEGORIES,
]
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Columns(NamedTuple):
    """labels [n]; integers [n, 13], NaN where empty; categories [26, n]."""

    labels: tf.Tensor
    integers: tf.Tensor
    categories: tf.Tensor


def parse(
    lines: Sequence[bytes], delimiter: bytes
) -> tuple[Columns, dict[int, str]]:
    """The columns of the good lines, and what is wrong with the others.

    Args:
      lines: without their line breaks.
      delimiter: a tab or a comma.

    Returns:
      columns: the columns of the good lines, in their order.
      faults: the faults by the positions of the bad lines in `lines`, in their
        order.
    """
    columns = _decode(lines, delimiter)
    if columns is not None:
        return columns, {}
    bad = _bad_positions(lines, 0, delimiter)
    faults = {position: fault(lines[position], delimiter) for position in bad}
    good = [line for i, line in enumerate(lines) if i not in faults]
    columns = _decode(good, delimiter)
    assert columns is not None
    return columns, faults


def fault(line: bytes, delimiter: bytes) -> str:
    """Says in words what is wrong with a bad line."""
    if not line.strip():
        return "an empty line"
    fields = line.split(delimiter)
    if len(fields) != NUM_FIELDS:
        few = "few" if len(fields) < NUM_FIELDS else "many"
        return (
            f"too {few} fields: {len(fields)}; a line has {NUM_FIELDS}: the "
            "label, 13 integers, 26 categories"
        )
    if fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
        return f"label {_shown(fields[0])}; it must be 0 or 1"
    for name, field in zip(FIELD_NAMES[1:], fields[1 : 1 + NUM_INTEGERS]):
        if field and not _NUMBER.fullmatch(field.strip()):
            return f"{name} is {_shown(field)}; it must be a number or empty"
    return "a number that is too large for a float"


def _decode(lines: Sequence[bytes], delimiter: bytes) -> Columns | None:
    """Returns the columns; None if a line is bad."""
    separators = NUM_FIELDS - 1
    if any(line.count(delimiter) != separators for line in lines):
        return None
    # The decoder takes "nan" for a number, and so would hide it.
    if b"nan" in b"".join(lines).lower() and any(map(_has_nan, lines)):
        return None
    try:
        fields = tf.io.decode_csv(
            tf.constant(lines, tf.string),
            _DEFAULTS,
            field_delim=delimiter.decode(),
            use_quote_delim=False,
        )
    except tf.errors.InvalidArgumentError:
        return None
    labels = fields[0]
    integers = tf.stack(fields[1 : 1 + NUM_INTEGERS], axis=1)
    is_binary = (labels == 0) | (labels == 1)
    if not tf.reduce_all(is_binary) or tf.reduce_any(tf.math.is_inf(integers)):
        return None
    return Columns(labels, integers, tf.stack(fields[1 + NUM_INTEGERS :]))


def _bad_positions(
    lines: Sequence[bytes], first: int, delimiter: bytes
) -> list[int]:
    """Halves the lines until the bad ones stand alone."""
    if _decode(lines, delimiter) is not None:
        return []
    if len(lines) == 1:
        return [first]
    middle = len(lines) // 2
    return _bad_positions(lines[:middle], first, delimiter) + _bad_positions(
        lines[middle:], first + middle, delimiter
    )


def _has_nan(line: bytes) -> bool:
    head = re.split(rb"[\t,]", line, maxsplit=1 + NUM_INTEGERS)
    return any(b"nan" in field.lower() for field in head[: 1 + NUM_INTEGERS])


def _shown(field: bytes) -> str:
    text = field[:24].decode(errors="backslashreplace")
    return repr(text if len(field) <= 24 else text + "...")
