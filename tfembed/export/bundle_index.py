"""The index of a checkpoint whose data file is one tensor of bytes.

TensorFlow writes tensors that are in memory; a sealed table never is. The
index is a table of LevelDB, as tfembed/saved/formats/bundle.py reads it: a block
of entries, sorted by name, a block that names it, and a footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfembed.saved.checksum import crc32c, mask
from tfembed.saved.formats.bundle import MAGIC, slice_name

__all__ = ["index_of_bytes"]

_UINT8 = 4  # TensorFlow's number of the dtype.


def index_of_bytes(
    name: str, size: int, slice_bytes: int, checksums: Sequence[int]
) -> bytes:
    """Returns the index of a tensor uint8 [size], saved in slices.

    Args:
      name: the name of the tensor.
      size: its bytes, which the data file has and nothing else.
      slice_bytes: the bytes of each slice but the last one.
      checksums: the CRC-32C of each slice.
    """
    extents = []
    entries = {b"": _number(1, 1) + _text(3, _number(1, 1))}  # A data file.
    for i, checksum in enumerate(checksums):
        first = i * slice_bytes
        length = min(slice_bytes, size - first)
        extents.append(_text(1, _number(1, first) + _number(2, length)))
        entries[slice_name(name.encode(), ((first, length),))] = (
            _head(length)
            + _number(4, first)
            + _number(5, length)
            + bytes([6 << 3 | 5])  # A number of four bytes.
            + mask(checksum).to_bytes(4, "little")
        )
    whole = b"".join(_text(7, extent) for extent in extents)
    entries[name.encode()] = _head(size) + whole
    block = _block(sorted(entries.items()))
    names = _block([])
    handle = _varint(0) + _varint(len(block) - _TRAILER_BYTES)
    index = _block([(max(entries), handle)])
    footer = (
        _varint(len(block))
        + _varint(len(names) - _TRAILER_BYTES)
        + _varint(len(block) + len(names))
        + _varint(len(index) - _TRAILER_BYTES)
    )
    footer = footer.ljust(40, b"\0") + MAGIC.to_bytes(8, "little")
    return block + names + index + footer


_TRAILER_BYTES = 5


def _head(size: int) -> bytes:
    """Returns the dtype and shape of an entry."""
    return _number(1, _UINT8) + _text(2, _text(2, _number(1, size)))


def _block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns a block of entries, each a restart, with its trailer."""
    block, restarts = b"", []
    for name, value in entries:
        restarts.append(len(block))
        block += _varint(0) + _varint(len(name)) + _varint(len(value))
        block += name + value
    for number in (*(restarts or [0]), len(restarts) or 1):
        block += number.to_bytes(4, "little")
    block += b"\0"  # Not compressed.
    return block + mask(crc32c(block)).to_bytes(4, "little")


def _number(field: int, number: int) -> bytes:
    return bytes([field << 3]) + _varint(number)


def _text(field: int, text: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    octets = b""
    while number >= 0x80:
        octets += bytes([number & 0x7F | 0x80])
        number >>= 7
    return octets + bytes([number])
