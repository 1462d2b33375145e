"""Rows of an exported model by its files alone: the C library in Python.

cc/sealed/tfembed_sealed.h describes the calls.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tfembed import errors
from tfembed.ops import library

__all__ = ["SealedModel", "SealedModelTable", "open_sealed"]

_Array = npt.NDArray[Any]

_LARGEST = np.iinfo(np.int64).max

# What the codes of the C library raise: TFEMBED_SEALED_*.
_ERRORS: dict[int, type[errors.TfembedError]] = {
    1: errors.CheckpointError,
    2: errors.CheckpointError,
    3: errors.ArgumentError,
}


def open_sealed(path: str | os.PathLike[str]) -> SealedModel:
    """Opens the tables of a SavedModel that `to_stock` wrote.

    The files are mapped, not read: a model of any size opens in milliseconds,
    and processes that have it open share its memory.

    Args:
      path: the folder of the SavedModel.

    Returns:
      The tables by their names.

    Raises:
      tfembed.errors.CheckpointError: the folder is no such SavedModel, or its
        files are damaged.

    Example:
      with tfembed.export.open_sealed("ranker/1") as model:
          rows, exists = model["users"].find(["ann", "bob"])
    """
    return SealedModel(path)


class SealedModel(Mapping[str, "SealedModelTable"]):
    """The tables of an exported model, by their names.

    It may be used by several threads at once, and as a context that closes it.

    Args:
      path: the folder of the SavedModel.

    Attributes:
      tables: all tables, also those that share a name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._calls = _Calls()
        handle = ctypes.c_void_p()
        self._calls.run("open", os.fsencode(path), ctypes.byref(handle))
        self._handle = handle
        self._close = weakref.finalize(self, self._calls.close, handle)
        self.tables = [
            SealedModelTable(
                self, self._calls, ctypes.c_void_p(self._calls.at(handle, i))
            )
            for i in range(self._calls.count(handle))
        ]
        self._by_name = {table.name: table for table in self.tables}

    def __getitem__(self, name: str) -> SealedModelTable:
        """Returns a table.

        Raises:
          tfembed.errors.MissingTableError: no table has this name, or several.
        """
        names = [table.name for table in self.tables]
        if names.count(name) > 1:
            raise errors.MissingTableError(
                f"{names.count(name)} tables of the model are called {name!r}; "
                f"take one from `tables`: {names}."
            )
        if name in names:
            return self._by_name[name]
        raise errors.MissingTableError(
            f"The model has no table {name!r}; its tables are {names}."
        )

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def check(self) -> None:
        """Reads all bytes of the tables and compares their checksums.

        Raises:
          tfembed.errors.CheckpointError: a file is damaged.
          tfembed.errors.ArgumentError: the model is closed.
        """
        self._calls.run("check", self.require_open())

    def close(self) -> None:
        """Gives the memory back; tables of the model are not to be used then.

        No other thread may be looking anything up. A second call does nothing.
        """
        self._close()

    def require_open(self) -> ctypes.c_void_p:
        """Returns the handle of the C library.

        Raises:
          tfembed.errors.ArgumentError: the model is closed.
        """
        if not self._close.alive:
            raise errors.ArgumentError(
                "The model is closed. Open it again by `open_sealed`."
            )
        return self._handle

    def __enter__(self) -> SealedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SealedModelTable:
    """A table of an exported model.

    Args:
      model: the model.
      calls: the functions of the C library.
      handle: the table in the C library.

    Attributes:
      name: the name of the table.
      num_rows: the number of its keys.
      dim: the number of elements of a row.
      dtype: TensorFlow's name of the rows' dtype.
      key_dtype: "int64", also where keys were trained as int32, or "string".
      num_bytes: the bytes of the table in its file.
    """

    def __init__(
        self, model: SealedModel, calls: _Calls, handle: ctypes.c_void_p
    ) -> None:
        self._model = model
        self._calls = calls
        self._handle = handle
        info = _Info()
        calls.describe(handle, ctypes.byref(info))
        self.name: str = info.name.decode(errors="replace")
        self.dtype: str = info.dtype.decode()
        self.key_dtype = "string" if info.has_string_keys else "int64"
        self.dim: int = info.dim
        self.num_rows: int = info.num_rows
        self.num_bytes: int = info.num_bytes

    def find(self, keys: npt.ArrayLike) -> tuple[_Array, _Array]:
        """Looks keys up.

        Args:
          keys: integers, or strings or bytes, of any shape.

        Returns:
          The rows [..., dim], of NumPy's dtype, float32 for a table of
          bfloat16; of a key that the table has not the row that training would
          have begun with. And bool [...], the keys that the table has.

        Raises:
          tfembed.errors.DtypeError: the keys are not of `key_dtype`.
          tfembed.errors.ArgumentError: the model is closed, or a key is no
            int64.
        """
        self._model.require_open()
        # NumPy's own strings lose zeros at their end.
        is_text = self.key_dtype == "string"
        given = np.asarray(keys, object if is_text else None)
        stored = "uint16" if self.dtype == "bfloat16" else self.dtype
        rows = np.empty([given.size, self.dim], stored)
        exists = np.empty(given.size, bool)
        outputs = (rows.ctypes.data, exists.ctypes.data)
        if is_text:
            texts = self._texts(given)
            sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
            joined = b"".join(texts)
            begins = np.zeros(len(texts), np.uint64)
            np.cumsum(sizes[:-1], out=begins[1:])
            buffer = np.frombuffer(joined or b"\0", np.uint8)
            begins += np.uint64(buffer.ctypes.data)
            self._calls.run(
                "find_strings",
                self._handle,
                begins.ctypes.data,
                sizes.ctypes.data,
                len(texts),
                *outputs,
            )
        else:
            if given.dtype.kind not in "iu" and given.size:
                raise self._wrong_keys(given)
            if given.dtype.kind == "u" and (given > _LARGEST).any():
                raise errors.ArgumentError(
                    f"`keys` of table '{self.name}' must be at most {_LARGEST}, "
                    f"the largest int64; got {given.max()}."
                )
            numbers = np.ascontiguousarray(given, np.int64)
            self._calls.run(
                "find", self._handle, numbers.ctypes.data, given.size, *outputs
            )
        if self.dtype == "bfloat16":
            rows = (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
        shape = given.shape
        return rows.reshape([*shape, self.dim]), exists.reshape(shape)

    def _texts(self, keys: _Array) -> list[bytes]:
        texts = [
            key.encode() if isinstance(key, str) else key
            for key in keys.reshape(-1).tolist()
        ]
        if not all(isinstance(text, bytes) for text in texts):
            raise self._wrong_keys(keys)
        return texts

    def _wrong_keys(self, keys: _Array) -> errors.DtypeError:
        return errors.DtypeError(
            f"`keys` must be {self.key_dtype} for table '{self.name}'; got "
            f"{keys.dtype}."
        )


class _Info(ctypes.Structure):
    """`tfembed_sealed_info`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("dim", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("num_bytes", ctypes.c_int64),
        ("has_string_keys", ctypes.c_int),
    )


class _Calls:
    """The functions of the C library, with the types of their arguments."""

    def __init__(self) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._library = library.load_sealed()
        self._message = self._function("message", [], ctypes.c_char_p)
        self.close = self._function("close", [pointer], None)
        self.count = self._function("count", [pointer], number)
        self.at = self._function("at", [pointer, number], pointer)
        self.describe = self._function("describe", [pointer, pointer], None)
        arguments: dict[str, list[Any]] = {
            "open": [ctypes.c_char_p, pointer],
            "check": [pointer],
            "find": [pointer, pointer, number, pointer, pointer],
            "find_strings": [*[pointer] * 3, number, pointer, pointer],
        }
        self._with_code = {
            name: self._function(name, types, ctypes.c_int)
            for name, types in arguments.items()
        }

    def run(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a code; raises what it says."""
        code = self._with_code[name](*arguments)
        if code:
            text = self._message().decode(errors="replace")
            raise _ERRORS.get(code, errors.TfembedError)(text)

    def _function(self, name: str, arguments: list[Any], result: Any) -> Any:
        function = getattr(self._library, f"tfembed_sealed_{name}")
        function.argtypes, function.restype = arguments, result
        return function
