"""Memory: what saving, restoring and dropping a table takes."""

from __future__ import annotations

import pytest

import fresh_process

MEMORY = """
import ctypes, gc, sys
import numpy as np
import tensorflow as tf
from tfembed.tables import HashTable

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith(field)) >> 10

def resident():
    # Without what the batches' tensors left with malloc.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return status("VmRSS")

def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")

def fill(table, num_keys):
    for begin in range(0, num_keys, 10**5):
        keys = tf.range(begin, begin + 10**5, dtype=tf.int64)
        table.upsert(keys, tf.ones([10**5, table.dim]))
"""


def test_a_tables_memory_goes_with_its_last_reference():
    fresh_process.output_of(
        MEMORY
        + """
table = HashTable(64, name="t")
lookup = tf.function(lambda keys: table.lookup(keys)[0])
lookup(tf.constant([1], tf.int64))
before = resident()
fill(table, 10**6)
filled = status("VmRSS")
assert filled - before > 240, (before, filled)
del table, lookup
after = resident()
assert after - before < 40, (before, filled, after)
"""
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [1, 3])
def test_saving_and_restoring_take_less_than_256_mb(tmp_path, num_shards):
    output = fresh_process.output_of(
        MEMORY
        + """
num_shards = int(sys.argv[2])
def make():
    return HashTable(60, name="t", devices=["/CPU:0"] * num_shards)

table = make()
fill(table, 4 * 10**6)
before = status("VmRSS")
reset_peak()
path = tf.train.Checkpoint(table=table).write(sys.argv[1] + "/ckpt")
extra = status("VmHWM") - before
print("save", extra, "MB beside", before)
assert extra < 256, extra
del table
gc.collect()
table = make()
before = status("VmRSS")
reset_peak()
tf.train.Checkpoint(table=table).read(path).assert_consumed()
peak, after = status("VmHWM"), status("VmRSS")
print("restore", peak - after, "MB beside", after)
assert peak - after < 256, (before, peak, after)
assert after - before > 900, (before, after)
assert int(table.size()) == 4 * 10**6
""",
        tmp_path,
        num_shards,
    )

    assert "restore" in output


@pytest.mark.slow
def test_each_save_takes_a_few_chunks(tmp_path):
    output = fresh_process.output_of(
        MEMORY
        + """
table = HashTable(8, name="t")
fill(table, 8 * 10**6)
checkpoint = tf.train.Checkpoint(table=table)
most = 0
for _ in range(8):
    before = status("VmRSS")
    reset_peak()
    path = checkpoint.write(sys.argv[1] + "/ckpt")
    extra = status("VmHWM") - before
    print("save", extra, "MB beside", before)
    most = max(most, extra)
    checkpoint.read(path).assert_consumed()
assert most < 100, most  # Its values alone have 244.
""",
        tmp_path,
    )

    assert output.count("save") == 8


@pytest.mark.slow
def test_strings_are_restored_with_one_copy_beside_them(tmp_path):
    fresh_process.output_of(
        MEMORY
        + """
from tfembed.tables import StringTable

n = 2 * 10**6
table = StringTable(1, name="t")
for begin in range(0, n, 10**5):
    keys = tf.range(begin, begin + 10**5, dtype=tf.int64)
    table.upsert(keys, tf.fill([10**5, 1], ""))
path = tf.train.Checkpoint(table=table).write(sys.argv[1] + "/ckpt")
before = resident()
reset_peak()
tf.train.Checkpoint(table=table).read(path).assert_consumed()
extra = status("VmHWM") - before
# 8 bytes of a key, 24 of an empty string; 140 MB more with a second copy.
assert extra < 62 + 48, extra
""",
        tmp_path,
    )
