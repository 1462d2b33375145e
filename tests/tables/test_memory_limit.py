"""Tables that are asked to exceed the machine's memory say so and stay whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tfembed.tables import HashTable

KEYS = 10**12  # 12 TB of index at least.


def test_room_for_more_keys_than_memory_is_refused():
    with pytest.raises(tf.errors.ResourceExhaustedError, match="available"):
        HashTable(8, name="t", init_size=KEYS)


_PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
from tfembed.tables import HashTable

n = {batch}
table = HashTable(1024, name="t")
rows = tf.ones([n, 1024])
table.upsert(np.arange(n), rows)
written = n
{limit}
try:
    while written < 2_000_000:
        table.upsert(np.arange(written, written + n), 2 * rows)
        written += n
except tf.errors.ResourceExhaustedError as error:
    print("refused:", error.message)
assert int(table.size()) == written, (int(table.size()), written)
found = table.lookup(np.arange(written - 10, written + 10))[0].numpy()
assert (found[:10] == (2 if written > n else 1)).all()
assert (found[10:] == 0).all()
# What is there needs no memory, nor do rows that were given back.
table.upsert(np.arange(4096), 3 * rows[:4096])
table.remove(np.arange(4096))
table.upsert(np.arange(-2048, 0), 4 * rows[:2048])
assert (table.lookup([-1, 1, 4097])[0].numpy()[:, 0] == [4, 0, 1]).all()
assert int(table.size()) == written - 2048
"""

_OF_ADDRESSES = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), used + (3 << 30)))
"""

# What is used now and half a GB.
_OF_THE_GROUP = """
group, limit = sys.argv[1:]
open(group + "/cgroup.procs", "w").write("0")
used = int(open("/proc/self/statm").read().split()[1]) * 4096
open(group + "/" + limit, "w").write(str(used + (1 << 29)))
"""


def run_under(limit, *arguments, batch):
    program = _PROGRAM.format(limit=limit, batch=batch)
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])
    return run.stdout


def test_inserts_beyond_the_limit_of_addresses_leave_the_table_as_it_was():
    said = run_under(_OF_ADDRESSES, batch=100_000)
    assert "The system refused" in said


@pytest.fixture
def memory_group():
    """A control group of version 2 or 1, and the file of its limit."""
    for mount, limit in [
        ("/sys/fs/cgroup", "memory.max"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ]:
        folder = Path(mount) / f"tfembed_test_{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / limit).exists() and os.access(folder / limit, os.W_OK):
                yield str(folder), limit
                return
        finally:
            folder.rmdir()
    pytest.skip("no control group can be made here")


def test_inserts_beyond_the_memory_of_a_container_are_refused(memory_group):
    assert "are available" in run_under(
        _OF_THE_GROUP, *memory_group, batch=8192
    )
