"""Operations on tables to which the system refuses memory, and their oracle.

`main` runs in a process under the library made of refused_new.cc. It tries each
operation until each of its calls of `new` was refused, and prints how often it
failed. MODE is `one` (one refusal a try) or `all` (that call and all after it).

  main(LIBRARY, FOLDER, MODE, OPERATION ...)
"""

from __future__ import annotations

import ctypes
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.tpu.ops import tpu_ops

from tfembed import optimizers, policies
from tfembed.ops import exchange
from tfembed.tables import HashTable

REFUSED = (tf.errors.ResourceExhaustedError, MemoryError)
KEYS = np.arange(2500)  # Enough for a step of several tasks.
DIM = 16
EVER = 1 << 40


def filled(name, optimizer=None, **options):
    table = HashTable(DIM, name=name, **options)
    table.attach(optimizer or optimizers.SGD(1.0))
    return table


def numbers(rows):
    """The numbers that rows hold; each row has one, in all places."""
    rows = np.asarray(rows, np.float32)
    assert (rows == rows[:, :1]).all()
    return sorted(set(rows[:, 0].tolist()))


class Table:
    """Writes, reads and steps of a table.

    An operation finds rows of 1, or none, and leaves them so if it fails.
    """

    def __init__(self, folder):
        self.table = filled("table")
        self.other = filled("other")
        # Those of a step beside it: rows that are rounded, rows that all move,
        # and rows for which others go.
        self.half = filled("half", value_dtype=tf.half)
        self.moving = filled("moving", optimizers.Adam(1.0, lazy_adam=False))
        self.bounded = filled(
            "bounded",
            max_size=len(KEYS),
            eviction=policies.LeastRecent(),
        )
        # Rows in a program that XLA compiles.
        self.compiled = tf.Variable(tf.ones([len(KEYS), DIM]))
        self.path = f"{folder}/checkpoint"
        self.checkpoint = tf.train.Checkpoint(a=self.table, b=self.other)
        self.fill(3.0)
        self.checkpoint.write(self.path)
        self.reset()

    def tables(self):
        return self.table, self.other, self.half, self.moving, self.bounded

    def fill(self, number):
        for table in self.tables():
            table.clear()
            rows = tf.fill([len(KEYS), DIM], number)
            table.upsert(KEYS, tf.cast(rows, table.value_dtype))

    def reset(self):
        self.fill(1.0)
        self.compiled.assign(tf.ones([len(KEYS), DIM]))

    def upsert(self):
        self.table.upsert(KEYS, tf.fill([len(KEYS), DIM], 2.0))

    def insert(self):
        self.table.upsert(KEYS + 10**6, tf.fill([len(KEYS), DIM], 1.0))

    def accum(self):
        ones = tf.ones([len(KEYS), DIM])
        self.table.accum(KEYS, ones, tf.fill([len(KEYS)], True))

    def lookup(self):
        self.table.lookup(KEYS)

    def export(self):
        self.table.export()

    def remove(self):
        self.table.remove(KEYS[:100])

    def update(self):
        self.table.apply_gradients(KEYS, tf.ones([len(KEYS), DIM]))

    def new_rows(self):
        keys = KEYS + 2 * 10**6
        self.table.apply_gradients(keys, tf.fill([len(KEYS), DIM], -1.0))

    def update_half(self):
        self.half.apply_gradients(KEYS, tf.ones([len(KEYS), DIM]))

    def update_moving(self):
        self.moving.apply_gradients(KEYS[50:], tf.ones([len(KEYS) - 50, DIM]))

    def evict_rows(self):
        keys = KEYS[:50] + 10**6
        self.bounded.apply_gradients(keys, tf.fill([50, DIM], -1.0))

    @tf.function(jit_compile=True)
    def compiled_update(self):
        updated = exchange.update(
            self.compiled.value(),
            [],
            tf.constant(KEYS, tf.int32),
            tf.ones([len(KEYS), DIM]),
            1.0,
            exchange.Exchange(1, 1),
            rule=optimizers.SGD(1.0).rule_text(),
            table_rows=[len(KEYS)],
        )
        self.compiled.assign(updated.values)

    def update_compiled(self):
        try:
            self.compiled_update()
        except tf.errors.InternalError as error:
            # XLA has no other code for what a callable refuses.
            assert "out of memory" in str(error), error
            raise MemoryError from error

    def trace(self):
        tf.function(lambda: self.table.lookup_trained(KEYS[:3]))()

    def meet(self):
        """Sums over replicas, in a session whose copies wait for each other."""
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            sums = [
                tpu_ops.cross_replica_sum(tf.ones([3]), [[0, 1]])
                for _ in range(2)
            ]
            for replica, result in enumerate(sums):
                for name, value in (
                    ("replica", attr_value_pb2.AttrValue(i=replica)),
                    ("replicas", attr_value_pb2.AttrValue(i=2)),
                    ("key", attr_value_pb2.AttrValue(s=b"key")),
                ):
                    result.op._set_attr(f"_tfembed_{name}", value)
            assert session.run(sums)[1].tolist() == [2, 2, 2]

    def save(self):
        self.checkpoint.write(self.path + "_again")

    def restore(self):
        self.checkpoint.read(self.path)

    def check(self, name, ended):
        """Checks that an operation was done as a whole or not at all."""
        for table in self.tables():
            keys, rows = table.export()
            found = numbers(rows)
            sizes = int(table.size()), len(keys), len(set(keys.numpy()))
            assert len(set(sizes)) == 1, sizes
            assert (table.lookup(keys)[0].numpy() == rows.numpy()).all()
            if name == "restore":  # It writes chunk after chunk.
                assert set(found) <= {1.0, 3.0}, found
            elif not ended:
                assert set(KEYS[100:]) <= set(keys.numpy())
                assert found == [1.0], found
            elif table is not self.moving:
                assert len(found) == 1, found
        (number,) = numbers(self.compiled)
        assert ended or number == 1.0, number


OPERATIONS = (
    "upsert",
    "insert",
    "accum",
    "lookup",
    "export",
    "remove",
    "update",
    "new_rows",
    "update_half",
    "update_moving",
    "evict_rows",
    "update_compiled",
    "trace",
    "meet",
    "save",
    "restore",
)


def main(library, folder, mode, *names):
    refused = ctypes.CDLL(library)
    refused.end_refusals.restype = ctypes.c_int64
    refuse, end = refused.refuse_new, refused.end_refusals
    refuse.argtypes = [ctypes.c_int64] * 2
    of = Table(folder)
    for name in names or OPERATIONS:
        operation = getattr(of, name)
        operation()  # What is made once.
        of.reset()
        failed, call = 0, 1
        while True:
            print(name, call, file=sys.stderr, flush=True)  # If it dies.
            refuse(call, call if mode == "one" else EVER)
            ended = False
            try:
                operation()
                ended = True
            except REFUSED:
                failed += 1
            finally:
                calls = end()
            of.check(name, ended)
            of.reset()
            if calls < call:
                break
            # Files are read and written by many calls that are alike.
            call += 7 if name in ("save", "restore") else 1
        print(name, failed, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
