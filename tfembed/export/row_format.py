"""The forms of a sealed table's rows: as trained, or shorter."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfembed import errors

__all__ = ["FORMATS", "NotStored", "RowError", "RowFormat"]

FORMATS = ("as_trained", "float32", "bfloat16", "int8")

_Rows = npt.NDArray[Any]

_SCALES = 4  # The bytes of a row's two float16.


@dataclasses.dataclass(frozen=True)
class RowError:
    """The differences between stored rows and those that were trained.

    Attributes:
      largest: the largest difference of two numbers.
      squares: the sum of all differences' squares.
      count: the number of numbers.
    """

    largest: float = 0.0
    squares: float = 0.0
    count: int = 0

    def __add__(self, other: RowError) -> RowError:
        return RowError(
            max(self.largest, other.largest),
            self.squares + other.squares,
            self.count + other.count,
        )

    @property
    def root_mean_square(self) -> float:
        """The root of the mean of the differences' squares."""
        return float(np.sqrt(self.squares / max(self.count, 1)))


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """A form of a table's rows.

    A row of "int8" is two float16, the least number and the step, and then a
    byte for each number: least + step * byte, in float32. The least number is
    rounded down and the step up, so that all of a row is within its bytes; a
    number is off by half of the step at most.

    Attributes:
      name: one of `FORMATS`.
      trained: the dtype of the table's rows, TensorFlow's name.
      dim: the number of numbers of a row.

    Raises:
      tfembed.errors.DtypeError: rows of `trained` have no such form.
    """

    name: str
    trained: str
    dim: int

    def __post_init__(self) -> None:
        if self.keeps:
            return
        if not tf.as_dtype(self.trained).is_floating:
            raise errors.DtypeError(
                f"`rows` must be 'as_trained' for rows of {self.trained}; got "
                f"{self.name!r}."
            )

    @property
    def keeps(self) -> bool:
        """Says whether rows stay as they were trained."""
        return self.name == "as_trained"

    @property
    def has_steps(self) -> bool:
        """Says whether a row is two float16 and bytes."""
        return self.name == "int8"

    @property
    def dtype(self) -> str:
        """TensorFlow's name of the dtype that rows have when read."""
        if self.keeps:
            return self.trained
        return "float32" if self.has_steps else self.name

    @property
    def stored(self) -> str:
        """NumPy's name of the dtype in the bytes; bfloat16 as its bits."""
        if self.has_steps:
            return "uint8"
        return "uint16" if self.dtype == "bfloat16" else self.dtype

    @property
    def row_elements(self) -> int:
        """The elements of `stored` in a row."""
        return self.dim + _SCALES * self.has_steps

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return np.dtype(self.stored).itemsize * self.row_elements

    def encode(self, rows: _Rows) -> tuple[_Rows, RowError]:
        """Returns rows [n, row_elements] as stored, and their error.

        Args:
          rows: [n, dim]; float32 where the table's are bfloat16.

        Raises:
          NotStored: a row has no such form.
        """
        if self.keeps:
            if self.trained != "bfloat16":
                return rows, RowError()
            # The reader widens bfloat16 by zeros.
            return (rows.view(np.uint32) >> np.uint32(16)).astype(
                np.uint16
            ), RowError()
        with np.errstate(over="ignore", invalid="ignore"):
            if self.has_steps:
                stored, read = _stepped(rows.astype(np.float32))
                is_lost = ~np.isfinite(read)
            else:
                narrow = rows.astype(tf.as_dtype(self.name).as_numpy_dtype)
                stored, read = narrow.view(self.stored), narrow
                is_lost = np.isfinite(rows) & ~np.isfinite(
                    read.astype(np.float64)
                )
            if is_lost.any():
                raise NotStored(int(np.flatnonzero(is_lost.any(axis=1))[0]))
            apart = np.abs(read.astype(np.float64) - rows.astype(np.float64))
        apart = apart[np.isfinite(apart)]  # NaN and infinity stay themselves.
        return stored, RowError(
            float(apart.max(initial=0.0)),
            float(np.square(apart).sum()),
            apart.size,
        )

    def decode(self, stored: tf.Tensor) -> tf.Tensor:
        """Returns stored rows [n, row_elements] as rows [n, dim], `trained`.

        Args:
          stored: the rows, uint8 where `has_steps`, else of `dtype`.
        """
        rows = stored
        if self.has_steps:
            scales = tf.bitcast(
                tf.reshape(stored[:, :_SCALES], [-1, 2, 2]), tf.float16
            )
            least, step = tf.split(tf.cast(scales, tf.float32), 2, axis=1)
            rows = least + step * tf.cast(stored[:, _SCALES:], tf.float32)
        return tf.cast(rows, tf.as_dtype(self.trained))


class NotStored(Exception):
    """A row has NaN, infinity, or a number that is too large for the format.

    Args:
      row: the number of the row in its chunk.
    """

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _stepped(rows: _Rows) -> tuple[_Rows, _Rows]:
    """Returns the bytes of float32 rows, and the rows that they give."""
    low = rows.min(axis=1, keepdims=True, initial=np.inf)
    high = rows.max(axis=1, keepdims=True, initial=-np.inf)
    if not rows.shape[1]:
        low = high = np.zeros_like(low)
    least = _rounded(low, -np.inf)
    step = _rounded((high - least.astype(np.float32)) / np.float32(255), np.inf)
    scales = [one.astype(np.float32) for one in (least, step)]
    divisor = np.where(scales[1] > 0, scales[1], np.float32(1))
    numbers = np.clip(np.rint((rows - scales[0]) / divisor), 0, 255)
    numbers = np.nan_to_num(numbers).astype(np.uint8)
    read = scales[0] + scales[1] * numbers.astype(np.float32)
    # NaN in a row is NaN in its scales, and so in all of `read`.
    stored = np.concatenate([least, step], axis=1).astype("<f2")
    return np.concatenate([stored.view(np.uint8), numbers], axis=1), read


def _rounded(numbers: _Rows, towards: float) -> _Rows:
    """Returns numbers as float16, on one side of what they were."""
    near = numbers.astype(np.float16)
    back = near.astype(np.float32)
    is_off = back < numbers if towards > 0 else back > numbers
    return np.where(is_off, np.nextafter(near, np.float16(towards)), near)
