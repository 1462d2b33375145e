"""The memory that saving and loading files take beside the table."""

from __future__ import annotations

import pytest

import fresh_process

PROGRAM = """
import sys
import tensorflow as tf
import tfembed.dynamic_embedding as de

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith(field)) >> 10

def peak_over(what, base):
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    what()
    return status("VmHWM") - base()

shards = int(sys.argv[2])
v, w = (
    de.Variable(dim=60, devices=["/CPU:0"] * shards, name="v") for _ in range(2)
)
for begin in range(0, 10**6, 10**5):
    keys = tf.range(begin, begin + 10**5, dtype=tf.int64)
    v.upsert(keys, tf.ones([10**5, 60]))
before = status("VmRSS")
save = peak_over(lambda: v.save_to_file_system(sys.argv[1]), lambda: before)
load = peak_over(
    lambda: w.load_from_file_system(sys.argv[1]), lambda: status("VmRSS")
)
assert int(w.size()) == 10**6
assert save < 128 and load < 128, (save, load)
print("peaks", save, load)
"""


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_saving_and_loading_take_a_part_of_the_tables_memory(tmp_path, shards):
    assert "peaks" in fresh_process.output_of(PROGRAM, tmp_path, shards)
