"""Reads protocol buffers' wire format: enough for the index of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from tfembed import errors

__all__ = ["fields", "signed", "take_varint"]


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to ten bytes, and the place behind it.

    Raises:
      tfembed.errors.CheckpointError: it does not end.
    """
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number & (1 << 64) - 1, at + i + 1
    raise errors.CheckpointError("a number does not end")


def signed(number: int) -> int:
    """The int64 of an unsigned number of 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, by their numbers, in their order.

    Raises:
      tfembed.errors.CheckpointError: it is no message.
    """
    at = 0
    while at < len(data):
        tag, at = take_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value: int | bytes
            value, at = take_varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = take_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise errors.CheckpointError(f"a field is of the kind {kind}")
        if size > len(data) - at:
            raise errors.CheckpointError("a field does not end")
        value = data[at : at + size]
        at += size
        yield number, value if kind == 2 else int.from_bytes(value, "little")
