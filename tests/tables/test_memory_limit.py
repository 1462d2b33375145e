"""Tables that are asked to exceed the machine's memory say so and stay whole."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

from tfembed.tables import HashTable

KEYS = 10**12  # 12 TB of index at least.


def test_room_for_more_keys_than_memory_is_refused():
    with pytest.raises(tf.errors.ResourceExhaustedError, match="available"):
        HashTable(8, name="t", init_size=KEYS)


_PROGRAM = """
import resource
import numpy as np
import tensorflow as tf
from tfembed.tables import HashTable

table = HashTable(1024, name="t")
table.upsert(np.arange(10), np.ones([10, 1024], np.float32))
limit = 3 << 30
rows = tf.zeros([100_000, 1024])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
written = 10
try:
    while written < 2_000_000:
        table.upsert(np.arange(written, written + 100_000), rows)
        written += 100_000
except tf.errors.ResourceExhaustedError as error:
    print("refused", error.message[:40])
assert int(table.size()) == written, (int(table.size()), written)
assert (table.lookup([0, 9])[0].numpy() == 1).all()
table.remove(np.arange(10, 1000))
table.upsert([5], np.full([1, 1024], 2, np.float32))
assert table.lookup([5])[0][0, 0] == 2
"""


def test_inserts_beyond_the_limit_leave_the_table_as_it_was():
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith("refused")
