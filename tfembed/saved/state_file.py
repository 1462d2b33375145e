"""The file `checkpoint` of a folder, which names the latest checkpoint.

TensorFlow writes it as the text of a protocol buffer, CheckpointState, with
octal escapes for what is not ASCII.
"""

from __future__ import annotations

import re

__all__ = ["MOST_BYTES", "NAME", "latest_of"]

NAME = "checkpoint"
MOST_BYTES = 1 << 20  # A longer file is read so far.

_LATEST = b"model_checkpoint_path"

_STRING = rb"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_SPACE = rb"(?:\s|#[^\n]*(?:\n|$))*"
_FIELD = re.compile(
    rb"(\w+)%b:%b((?:%b%b)+|[\w.+-]+)%b[;,]?%b"
    % (_SPACE, _SPACE, _STRING, _SPACE, _SPACE, _SPACE)
)
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})"
    rb"|U([0-9a-fA-F]{8})|([abfnrtv\\'\"?]))|(\\)"
)
_SIGNS = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))


def latest_of(text: bytes) -> str | None:
    """Returns the path of the latest checkpoint, relative to the folder.

    Args:
      text: the content of the file.

    Returns:
      The path, as the file has it; None where the file is damaged or cut
      short, or names none.
    """
    at = re.match(_SPACE, text).end()  # type: ignore[union-attr]
    latest = None
    while at < len(text):
        field = _FIELD.match(text, at)
        if field is None:
            return None
        at = field.end()
        if field[1] == _LATEST:
            latest = _unquoted(field[2])
            if latest is None:
                return None
    return latest or None


def _unquoted(text: bytes) -> str | None:
    """Joins quoted strings and decodes escapes; None: these are damaged."""
    parts = [part[1:-1] for part in re.findall(_STRING, text)]
    try:
        decoded = _ESCAPE.sub(_character, b"".join(parts)).decode()
    except (ValueError, OverflowError):
        return None
    return None if "\0" in decoded else decoded


def _character(escape: re.Match[bytes]) -> bytes:
    octal, byte, short, long, sign, other = escape.groups()
    if other:
        raise ValueError("an escape that the format does not have")
    if octal or byte:
        return bytes([int(octal, 8) if octal else int(byte, 16)])
    if short or long:
        return chr(int(short or long, 16)).encode()
    return bytes([_SIGNS.get(sign[0], sign[0])])
