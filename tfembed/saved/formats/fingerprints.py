"""The hashes by which sealed tables know their strings."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfembed.saved.saved_table import Array

__all__ = ["Fingerprints"]

_MASK = (1 << 64) - 1
_BUCKETS = np.uint64(2**63 - 1)
# "somepseudorandomlygeneratedbytes", of SipHash's description.
_BEGIN = (
    0x736F6D6570736575,
    0x646F72616E646F6D,
    0x6C7967656E657261,
    0x7465646279746573,
)


@dataclasses.dataclass(frozen=True)
class Fingerprints:
    """Hashes strings by SipHash-2-4, modulo 2^63 - 1.

    Attributes:
      secret, secret_2: the key, two numbers of 64 bits.
    """

    secret: int
    secret_2: int

    def __call__(self, strings: Array) -> Array:
        """Returns the texts that stand for strings, object [n] of bytes."""
        found = np.zeros(len(strings), np.uint64)
        sizes = np.asarray([len(text) // 8 for text in strings], np.int64)
        for size in np.unique(sizes):
            (alike,) = np.nonzero(sizes == size)
            found[alike] = self._hashes(
                [strings[i] for i in alike.tolist()], int(size) + 1
            )
        return self.texts_of((found % _BUCKETS).view(np.int64))

    @staticmethod
    def texts_of(hashes: Array) -> Array:
        """Returns hashes as texts of 16 digits, object [n] of bytes."""
        digits = hashes.astype(">i8").tobytes().hex().encode()
        texts = np.empty(len(hashes), object)
        texts[:] = [
            b"#" + digits[at : at + 16] for at in range(0, len(digits), 16)
        ]
        return texts

    def _hashes(self, strings: list[bytes], num_words: int) -> Array:
        """Returns the hashes of strings that end in word `num_words`."""
        size = 8 * num_words
        padded = b"".join(text.ljust(size, b"\0") for text in strings)
        words = np.frombuffer(padded, "<u8").reshape(-1, num_words).copy()
        lengths = np.asarray([len(text) & 0xFF for text in strings], np.uint64)
        words[:, -1] |= lengths << np.uint64(56)
        keys = [self.secret & _MASK, self.secret_2 & _MASK] * 2
        state: list[Array] = [
            np.full(len(strings), begin ^ key, np.uint64)
            for begin, key in zip(_BEGIN, keys, strict=True)
        ]
        for word in words.T:
            state[3] = state[3] ^ word
            state = _rounds(state, 2)
            state[0] = state[0] ^ word
        state[2] = state[2] ^ np.uint64(0xFF)
        a, b, c, d = _rounds(state, 4)
        return a ^ b ^ c ^ d


def _rounds(state: list[Array], count: int) -> list[Array]:
    a, b, c, d = state
    for _ in range(count):
        a, c = a + b, c + d
        b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
        a = _turned(a, 32)
        a, c = a + d, c + b
        d, b = _turned(d, 21) ^ a, _turned(b, 17) ^ c
        c = _turned(c, 32)
    return [a, b, c, d]


def _turned(words: Array, bits: int) -> Array:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
