"""Files that a command writes: whole or not at all, and no device is replaced."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from tfembed import errors

__all__ = ["place_of", "written_file"]


def place_of(
    path: str | os.PathLike[str], *, replaces: bool = True
) -> pathlib.Path:
    """Returns the place of a file that is to be written: the end of its links.

    Args:
      path: the path of the file, which need not be there.
      replaces: whether a file that is there may be replaced.

    Raises:
      tfembed.errors.ArgumentError: there is a folder, a device or anything
        else that is no file; or a file, without `replaces`; or no folder for
        it.
    """
    text = os.fspath(path)
    with _words(text):
        if not replaces and os.path.lexists(text):
            raise errors.ArgumentError(
                f"'{text}' is there already. Remove it, or give another path."
            )
        place = pathlib.Path(os.path.realpath(text))
        if place.is_dir():
            raise errors.ArgumentError(
                f"'{text}' is a folder; give the path of a file."
            )
        if os.path.lexists(place) and not place.is_file():
            raise errors.ArgumentError(
                f"'{text}' is a device, a pipe or a socket, which no file "
                "replaces; give the path of a file."
            )
        if not place.parent.is_dir():
            raise errors.ArgumentError(f"There is no folder '{place.parent}'.")
    return place


@contextlib.contextmanager
def written_file(
    path: str | os.PathLike[str], *, replaces: bool = True
) -> Iterator[pathlib.Path]:
    """Gives the block a path to write to; its file or folder then takes `path`.

    A file that is replaced hands its permissions on. Where the block raises an
    error, `path` stays as it was.

    Args:
      path, replaces: as for `place_of`.

    Raises:
      tfembed.errors.ArgumentError: as for `place_of`, or the block or this
        function cannot write; the text has the system's reason.
    """
    place = place_of(path, replaces=replaces)
    with _words(os.fspath(path)):
        folder = tempfile.mkdtemp(prefix=".tfembed-", dir=place.parent)
        try:
            written = pathlib.Path(folder) / "written"
            yield written
            if place.exists():
                shutil.copymode(place, written)
            written.replace(place)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _words(path: str) -> Iterator[None]:
    """Turns errors of the system into words."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, errors.TfembedError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise errors.ArgumentError(
            f"'{path}' cannot be written: {reason}."
        ) from error
