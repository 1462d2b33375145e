"""Texts of files and of tables as a terminal or a page may show them."""

from __future__ import annotations

__all__ = ["printable", "printable_key", "shortened"]

_MOST_CHARACTERS = 60


def printable(text: str) -> str:
    """A text in one line that no terminal takes for commands."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text
    )


def shortened(text: str) -> str:
    """A text of at most 60 characters; "..." is in the place of what is more."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS - 3]}..."


def printable_key(key: int | str | bytes) -> str:
    r"""A key in one short line, `''` for the empty one.

    Args:
      key: an integer, or a text; bytes that are no UTF-8 are shown as `\xff`.
    """
    if isinstance(key, bytes):
        key = key.decode("utf-8", "backslashreplace")
    return shortened(printable(str(key))) or "''"
