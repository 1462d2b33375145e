"""Texts of files and tables, in a form that terminals and pages can show."""

from __future__ import annotations

import datetime
import html

__all__ = [
    "as_time",
    "key_text",
    "markup",
    "printable",
    "printable_key",
    "shortened",
]

_MOST_CHARACTERS = 60


def printable(text: str) -> str:
    """Returns a text on one line, without a terminal's control characters."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text
    )


def markup(text: str) -> str:
    """Returns a text for an HTML page, on one line and escaped."""
    return html.escape(printable(text))


def as_time(seconds: float) -> str:
    """Formats a time, given in seconds since 1970, in the local time zone."""
    try:
        return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # After the year 9999.
        return f"at second {seconds:.0f} since 1970"


def shortened(text: str) -> str:
    """Returns a text cut to 60 characters, with "..." for the rest."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS - 3]}..."


def key_text(key: bytes) -> str:
    r"""Returns the text of a key; `b'\xff'` of bytes that are not UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return repr(key)


def printable_key(key: int | str | bytes) -> str:
    """Returns a key as a short line; `''` for the empty key."""
    text = key_text(key) if isinstance(key, bytes) else str(key)
    return shortened(printable(text)) or "''"
