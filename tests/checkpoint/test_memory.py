"""Memory: what saving, restoring and dropping a table takes.

Kind: memory of a load that stays, or grows with the table. Looked for in:
checkpoints, SavedModels, Keras' files and raw files, of one and of several
shards, with slots, in functions.
"""

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
def test_saving_and_restoring_take_16_mb(tmp_path, num_shards):
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
assert extra < 16 + 16, extra
del table
table = make()
before = resident()
reset_peak()
tf.train.Checkpoint(table=table).read(path).assert_consumed()
peak, after = status("VmHWM"), resident()
print("restore", peak - after, "MB beside", after)
# Two bytes a key while the files are checked.
assert peak - after < 16 + 8 + 16, (before, peak, after)
assert after - before > 900, (before, after)
assert int(table.size()) == 4 * 10**6
""",
        tmp_path,
        num_shards,
    )

    assert "restore" in output


LOADS = """
import os, keras
import tfembed.dynamic_embedding as de

def model_of(num_keys):
    layer = de.keras.layers.Embedding(64, name="e", devices=["/CPU:0"] * 2)
    model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
    for begin in range(0, num_keys, 10**4):
        keys = tf.range(begin, begin + 10**4, dtype=tf.int64)
        layer.params.upsert(keys, tf.random.normal([10**4, 64]))
    return model, layer.params

def write(folder, num_keys):
    model, table = model_of(num_keys)
    os.makedirs(folder)
    tf.train.Checkpoint(table=table).write(folder + "/checkpoint")
    served = tf.Module()
    served.table = table
    served.f = tf.function(
        lambda ids: table.lookup(ids),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(served, folder + "/saved_model")
    model.save_weights(folder + "/m.weights.h5")
    table.save_to_file_system(folder + "/raw")

def load(kind, folder):
    if kind == "SavedModel":
        return tf.saved_model.load(folder + "/saved_model")
    model, table = model_of(0)
    if kind == "checkpoint":
        tf.train.Checkpoint(table=table).read(folder + "/checkpoint")
    elif kind == "weights":
        model.load_weights(folder + "/m.weights.h5")
    else:
        table.load_from_file_system(folder + "/raw", buffer_size=10**6)
    return model, table
"""


@pytest.fixture(name="written", scope="module")
def make_written(tmp_path_factory):
    """Files of 300,000 rows of width 64, 77 MB, and of a small table."""
    folder = tmp_path_factory.mktemp("written")
    fresh_process.output_of(
        MEMORY
        + LOADS
        + """
write(sys.argv[1] + "/small", 10**4)
write(sys.argv[1] + "/large", 3 * 10**5)
""",
        folder,
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["checkpoint", "SavedModel", "weights", "raw files"]
)
def test_a_loaded_table_takes_what_a_written_one_takes(written, kind):
    fresh_process.output_of(
        MEMORY
        + LOADS
        + """
kind = sys.argv[2]
small = load(kind, sys.argv[1] + "/small")
before = resident()
model = model_of(3 * 10**5)
expected = resident() - before
before = resident()
reset_peak()
loaded = load(kind, sys.argv[1] + "/large")
peak, untrimmed, after = status("VmHWM"), status("VmRSS"), resident()
print(kind, expected, after - before, untrimmed - before, peak - before)
assert 77 <= expected < 110, expected
assert after - before < expected + 12, (expected, before, after)
assert untrimmed - before < expected + 24, (expected, before, untrimmed)
assert peak - before < expected + 16 + 16, (expected, before, peak)
""",
        written,
        kind,
    )


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
