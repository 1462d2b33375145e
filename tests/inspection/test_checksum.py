"""CRC-32C by NumPy is CRC-32C."""

from __future__ import annotations

import numpy as np
import pytest

from checkpoint import bundle_files
from tfembed.saved import checksum

# About the degree of the sparse polynomial, a block, and words.
SIZES = [
    0,
    1,
    3,
    7,
    8,
    1023,
    1024,
    1027,
    5684,
    5685,
    11370,
    11371,
    11377,
    60_001,
    1 << 20,
]


def test_the_checksum_of_the_standard_example_is_known():
    assert checksum.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("size", [*SIZES, (1 << 20) + 12_345])
def test_a_checksum_is_that_of_the_bitwise_definition(size):
    data = np.random.default_rng(size).bytes(size)

    assert checksum.crc32c(data, 5) == bundle_files.crc32c(data, 5)


def test_a_checksum_of_parts_is_that_of_the_whole():
    data = np.random.default_rng(0).bytes(3_000_000)
    first = checksum.crc32c(data[:1_234_567])

    assert checksum.crc32c(data[1_234_567:], first) == checksum.crc32c(data)


@pytest.mark.parametrize("more", [1, 2, 3, 4])
def test_a_block_may_end_a_few_bytes_before_the_data(more):
    data = np.random.default_rng(0).bytes(checksum._BLOCK + more)
    first = checksum.crc32c(data[:1000], 5)

    assert checksum.crc32c(data[1000:], first) == checksum.crc32c(data, 5)


def test_unmasking_undoes_what_files_do():
    assert checksum.unmask(bundle_files.masked(0xE3069283)) == 0xE3069283
