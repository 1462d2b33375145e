"""Repeated work in a process leaves no bytes behind, by kind.

Kind: memory kept for good by each use of something new: a name, a number, a
table, a trace. Looked for in: lookups, shadows, tables of all kinds, optimizers,
embeddings, layers, functions, checkpoints, files, SavedModels, graphs, failed
calls, threads, tf.data. Where TensorFlow alone keeps something, ours may be as
much.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib

import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from benchmarks.soak import growth, memory
from benchmarks.soak.kinds import KINDS
from tfembed.ops import private

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
STEPS = 10_000 if FULL else 200


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """All kinds, in one process for all that test; in full each has its own."""
    if FULL:
        return {}
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # Of all workers.
    shared = folder / "flat_memory.json"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.write_text(json.dumps(memory.run(list(KINDS), STEPS)))
        return json.loads(shared.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_flat(kind, measured):
    found = measured.get(kind) or memory.run([kind], STEPS)[kind]
    print(memory.line(found))
    assert found["is_flat"], memory.line(found)


GROWTH = """
import sys
sys.path.insert(0, sys.argv[1])
from benchmarks.soak import growth

kept = []
grown = growth.measure(lambda i: kept.append(b"%9d" % i * 1000), 50)
assert 9000 < grown.bytes_each < 12_000, grown
assert not grown.is_flat()
assert grown.is_flat(beside=grown)
cache = {}
flat = growth.measure(lambda i: cache.setdefault(i % 10, bytes(9000)), 50)
assert flat.is_flat(), flat
found = growth.kept_objects(lambda i: kept.append({i: [i]}), 20)
assert abs(found["builtins.dict"] - 1) < 0.2, found
"""


def test_what_is_kept_is_told_from_what_is_taken_once():
    # In a process of its own, whose memory is soon looked through.
    root = pathlib.Path(growth.__file__).parents[2]
    fresh_process.output_of(GROWTH, root)


def test_a_wrapper_and_a_shadow_call_their_variables_by_their_names():
    table = de.Variable(dim=2, name="table")
    with tf.name_scope("step"):
        _, wrapper = table.embedding_lookup([1], "rows", return_trainable=True)
        shadow = de.shadow_ops.ShadowVariable(table, name="mine")
    assert wrapper.name == "rows"
    assert shadow.ids.name == "mine-ids:0"
    assert shadow.exists.name == "mine-exists:0"


@pytest.mark.parametrize("number", [0.25, 1e-30, 7, -3, True, 2**30])
def test_numbers_become_the_tensors_that_tensorflow_makes(number):
    expected = tf.convert_to_tensor(number)
    found = private.number_tensor(number)
    assert found.dtype == expected.dtype
    assert found.numpy() == expected.numpy()
