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

# From here on what is used counts in the group.
_JOIN = """
import sys
import time
group, limit = sys.argv[1:3]
open(group + "/cgroup.procs", "w").write("0")
"""

# What is used now and some more.
_OF_THE_GROUP = """
status = open("/proc/self/status").read()
used = int(status.partition("RssAnon:")[2].split()[0]) << 10
open(group + "/" + limit, "w").write(str(used + ({mebibytes} << 20)))
time.sleep(0.1)  # What was read before is no longer trusted.
"""


def run(program, *arguments):
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
    return result.stdout


def test_inserts_beyond_the_limit_of_addresses_leave_the_table_as_it_was():
    said = run(_PROGRAM.format(limit=_OF_ADDRESSES, batch=100_000))
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
    limit = _OF_THE_GROUP.format(mebibytes=512)
    program = _JOIN + _PROGRAM.format(limit=limit, batch=8192)
    assert "are available" in run(program, *memory_group)


_RESTORE = """
import ctypes
import numpy as np
import tensorflow as tf
from tfembed.tables import HashTable

small, large, largest = 5_000, 130_000, 150_000
a, b = HashTable(256, name="a"), HashTable(256, name="b")

def fill(table, n, number):
    table.clear()
    for begin in range(0, n, 5_000):
        rows = tf.fill([5_000, 256], number)
        table.upsert(np.arange(begin, begin + 5_000), rows)

def sizes():
    return [int(a.size()), int(b.size())]

fill(a, large, 1.0)
fill(b, small, 1.0)
checkpoint = tf.train.Checkpoint(a=a, b=b)
path = checkpoint.save(sys.argv[3] + "/c")
fill(a, small, 2.0)
fill(b, largest, 2.0)
trim = ctypes.CDLL(None).malloc_trim  # Some 100 MB that malloc keeps or not.
trim(0)
{limit}
try:
    checkpoint.restore(path)
except tf.errors.ResourceExhaustedError as error:
    print("refused:", error.message)
assert sizes() == [small, largest], sizes()
assert a.lookup([3])[0][0, 0] == 2 and b.lookup([140_000])[0][0, 0] == 2
b.clear()
trim(0)
checkpoint.restore(path)
assert sizes() == [large, small], sizes()
"""


def test_a_restore_beyond_the_memory_leaves_all_tables(memory_group, tmp_path):
    # A restore takes 16 MB before it asks for 140 for `a`, beside the 64 that
    # are left to the program; without `b` there are 150 more.
    program = _JOIN + _RESTORE.format(limit=_OF_THE_GROUP.format(mebibytes=130))
    assert "are available" in run(program, *memory_group, tmp_path)


_SMALL_WRITES = """
import numpy as np
import tensorflow as tf
import tfembed.dynamic_embedding as de
from tfembed import optimizers
from tfembed.tables import HashTable, StringTable

def write(name):
    rows = tf.ones([4, 8])
    table = HashTable(8, name=name)
    table.attach(optimizers.Adagrad(0.1))
    table.upsert([1, 2, 3, 4], rows)
    table.apply_gradients([1, 5], rows[:2])
    variable = de.Variable(dim=8, name=name, devices=["/CPU:0"] * 3)
    variable.upsert([1, 2, 3, 4], rows)
    texts = StringTable(1, name=name)
    texts.upsert([1], [["a"]])
    names = HashTable(8, name=name, key_dtype=tf.string)
    names.upsert(["a"], rows[:1])
    path = tf.train.Checkpoint(table=table, names=names).write(sys.argv[3])
    tf.train.Checkpoint(table=table, names=names).read(path)
    variable.save_to_file_system(sys.argv[3])
    variable.load_from_file_system(sys.argv[3])
    assert int(table.size()) == 5 and int(variable.size()) == 4
    return table

table = write("before")  # What TensorFlow takes at first is among what is used.
{limit}
for n in range(8):
    write(f"after{{n}}")
keys = np.arange(10, 100_010)
try:
    table.upsert(keys, tf.ones([len(keys), 8]))
except tf.errors.ResourceExhaustedError as error:
    print("refused:", error.message)
assert int(table.size()) == 5
"""


def test_a_small_write_is_not_refused_where_others_took_the_reserve(
    memory_group, tmp_path
):
    limit = _OF_THE_GROUP.format(mebibytes=45)
    program = _JOIN + _SMALL_WRITES.format(limit=limit)
    said = run(program, *memory_group, tmp_path / "checkpoint")
    assert "are available" in said
