"""Texts of files and tables, in a form that terminals and pages can show."""

from __future__ import annotations

__all__ = ["printable", "printable_key", "shortened"]

_MOST_CHARACTERS = 60


def printable(text: str) -> str:
    """Returns a text on one line, without a terminal's control characters."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text
    )


def shortened(text: str) -> str:
    """Returns a text cut to 60 characters, with "..." for the rest."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS - 3]}..."


def printable_key(key: int | str | bytes) -> str:
    r"""Returns a key as a short line; `''` for the empty key.

    Args:
      key: an integer or a text; bytes that are not UTF-8 are shown as `\xff`.
    """
    if isinstance(key, bytes):
        key = key.decode("utf-8", "backslashreplace")
    return shortened(printable(str(key))) or "''"
