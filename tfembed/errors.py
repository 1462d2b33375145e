"""The exceptions that tfembed raises itself.

    TfembedError
    ├── ArgumentError      also ValueError: a value that is not allowed
    │   └── MissingTableError  also KeyError: a table that a mapping lacks
    ├── DtypeError         also TypeError: a dtype or a type that is not allowed
    ├── StateError         also RuntimeError: right call, wrong moment
    ├── UnsupportedError   also NotImplementedError: not in this release
    ├── CheckpointError    also ValueError: a checkpoint that cannot be used
    ├── DataError          also ValueError: a bad line of an input file
    └── LibraryError       also ImportError: the ops library does not load

Each is also the builtin exception that TensorFlow and TensorFlow Recommenders
Addons raise in the same place, so code that moves here keeps its `except`
clauses. Faults that only an op can see (shapes, ids, not-finite gradients) are
`tf.errors.InvalidArgumentError`, as from TensorFlow's own ops.
"""

from __future__ import annotations


class TfembedError(Exception):
    """Whatever tfembed raises on purpose."""

    # AutoGraph raises an error of traced code again, with the user's lines in
    # it, as the type it was only where that type is made like an Exception.
    __init__ = Exception.__init__


class ArgumentError(TfembedError, ValueError):
    """A value that is not allowed; the text says which are."""


class MissingTableError(ArgumentError, KeyError):
    """A table that is not in the mapping that was given; the text names it."""

    # KeyError shows the repr of its text.
    __str__ = Exception.__str__


class DtypeError(TfembedError, TypeError):
    """A dtype, or a type of object, that is not allowed."""


class StateError(TfembedError, RuntimeError):
    """The call is right, but not now: the text says what must come first."""


class UnsupportedError(TfembedError, NotImplementedError):
    """Something that this release does not do; the text names the way out."""


class CheckpointError(TfembedError, ValueError):
    """A checkpoint that is missing, damaged or of other tables."""


class LibraryError(TfembedError, ImportError):
    """The ops library is missing or was built for another TensorFlow."""


class DataError(TfembedError, ValueError):
    """A bad line of an input file, with its path and line number.

    Attributes:
      path: the file.
      line: the line's number, from 1; None where the whole file is at fault.
    """

    def __init__(
        self, message: str, *, path: str, line: int | None = None
    ) -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {message}")
        self.path = path
        self.line = line
