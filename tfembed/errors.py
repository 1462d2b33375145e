"""The exceptions that tfembed raises itself.

    TfembedError
    ├── ArgumentError      also ValueError: a value that is not allowed
    │   └── MissingTableError  also KeyError: a table that a mapping lacks
    ├── DtypeError         also TypeError: a dtype or a type that is not allowed
    ├── StateError         also RuntimeError: right call, wrong moment
    ├── StoppedError       also RuntimeError: SIGTERM came before the result
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
    """The base of all exceptions that tfembed raises itself."""

    # AutoGraph raises errors of traced code again with the user's source lines.
    # It keeps the type only if the constructor takes what Exception takes.
    __init__ = Exception.__init__


class ArgumentError(TfembedError, ValueError):
    """A value that is not allowed; the text says which values are allowed."""


class MissingTableError(ArgumentError, KeyError):
    """A table that is not in the mapping that was given; the text names it."""

    # KeyError shows the repr of its text.
    __str__ = Exception.__str__


class DtypeError(TfembedError, TypeError):
    """A dtype, or a type of object, that is not allowed."""


class StateError(TfembedError, RuntimeError):
    """The call is right, but not now: the text says what must come first."""


class StoppedError(TfembedError, RuntimeError):
    """SIGTERM came before the call, inside of a training, had its result."""


class UnsupportedError(TfembedError, NotImplementedError):
    """A feature that this release lacks; the text names an alternative."""


class CheckpointError(TfembedError, ValueError):
    """A checkpoint that is missing, damaged or written by different tables."""


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
