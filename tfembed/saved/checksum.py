"""CRC-32C, the checksum of TensorFlow's checkpoints, in NumPy.

The standard library has no CRC-32C. The checksum of a text is the remainder of
a polynomial over {0, 1}, whose first coefficient is the text's first bit, by

    P = x^32 + x^28 + x^27 + x^26 + ... + 1.

P divides the sparse Q = x^5685 + x^1362 + x^426 + 1, and so also Q(x^8) and
Q(x^64), which have the same coefficients in bytes and in words. A remainder by
these needs no table: a word of the text is added, by XOR, to the words 4323,
5259 and 5685 places behind it, 4323 words at a time. The 5685 bytes that are
left are divided by P itself, by a table for each byte's distance to the end of
a line of 1024. That reads some gigabytes a second, and needs neither TensorFlow
nor a compiled library.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

__all__ = ["crc32c", "mask", "unmask"]

_POLYNOMIAL = 0x82F63B78  # P, without x^32, its coefficients from x^31 on.
_DEGREE = 5685  # The degree of Q; its other terms are this far behind a word.
_STEPS = (_DEGREE - 1362, _DEGREE - 426, _DEGREE)
# The number of bytes that are copied and folded at a time.
_BLOCK = 1 << 22
_LINE = 1024
_ONES = 0xFFFFFFFF


def unmask(saved: int) -> int:
    """Returns the checksum that a file stores, masked, as `saved`."""
    rotated = (saved - 0xA282EAD8) & _ONES
    return (rotated >> 17 | rotated << 15) & _ONES


def mask(checksum: int) -> int:
    """Returns what a file stores for a checksum."""
    rotated = (checksum >> 15 | checksum << 17) & _ONES
    return (rotated + 0xA282EAD8) & _ONES


def crc32c(data: Any, start: int = 0) -> int:
    """Returns the checksum of bytes or an array, going on from `start`."""
    view = np.frombuffer(data, np.uint8)
    register = start ^ _ONES
    if len(view) > 2 * _DEGREE:
        view, register = _remainder(view, register), 0
    for begin in range(0, len(view), _LINE):
        line = view[begin : begin + _LINE].copy()
        n = len(line)
        line[:4] ^= _octets(register)[:n]
        ends = _tables()[-n:][np.arange(n), line]
        register = int(np.bitwise_xor.reduce(ends)) ^ register >> 8 * n
    return register ^ _ONES


def _remainder(data: Any, register: int) -> Any:
    """Returns `_DEGREE` bytes with the checksum of `data`, from register 0."""
    size = (len(data) - 4) % _BLOCK + 4  # Whose first bytes meet `register`.
    most = max(size, min(len(data), _BLOCK)) // 8 + 1
    memory = np.empty(_DEGREE + most, np.uint64)
    # Zeros before the first byte do not change the remainder: pad to whole
    # words.
    memory[0] = 0
    left = memory[:0]
    begin = 0
    while begin < len(data):
        words = memory[: len(left) + -(-size // 8)]
        words[: len(left)] = left
        octets = words.view(np.uint8)
        octets[len(octets) - size :] = data[begin : begin + size]
        if begin == 0:
            octets[len(octets) - size :][:4] ^= _octets(register)
        left = _fold(words)
        begin, size = begin + size, _BLOCK
    return _fold(left.view(np.uint8))


def _fold(places: Any) -> Any:
    """Adds all words to the last `_DEGREE` words, and returns these."""
    n = len(places) - _DEGREE
    nearest = _STEPS[0]
    for begin in range(0, n, nearest):
        end = min(begin + nearest, n)
        for step in _STEPS:
            places[begin + step : end + step] ^= places[begin:end]
    return places[max(n, 0) :]


def _octets(register: int) -> Any:
    return np.frombuffer(register.to_bytes(4, "little"), np.uint8)


@functools.cache
def _tables() -> Any:
    """Returns the register at the end of a line that has one byte, from 0 on.

    That is uint32 [_LINE, 256], by the place of the byte and its value.
    """
    tables = np.empty((_LINE, 256), np.uint32)
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = last >> 1 ^ np.where(last & 1, np.uint32(_POLYNOMIAL), 0)
    tables[-1] = last
    for place in range(_LINE - 2, -1, -1):
        later = tables[place + 1]
        tables[place] = last[later & 0xFF] ^ later >> 8
    return tables
