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

from tfembed import optimizers
from tfembed.tables import HashTable

REFUSED = (tf.errors.ResourceExhaustedError, MemoryError)
KEYS = np.arange(4000)
DIM = 16
EVER = 1 << 40


def filled(name, dtype=tf.float32, **options):
    table = HashTable(DIM, name=name, value_dtype=dtype, **options)
    table.attach(optimizers.SGD(1.0))
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
        self.path = f"{folder}/checkpoint"
        self.checkpoint = tf.train.Checkpoint(a=self.table, b=self.other)
        self.fill(3.0)
        self.checkpoint.write(self.path)
        self.reset()

    def tables(self):
        return self.table, self.other

    def fill(self, number):
        for table in (self.table, self.other):
            table.clear()
            table.upsert(KEYS, tf.fill([len(KEYS), DIM], number))

    def reset(self):
        self.fill(1.0)

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
            assert set(KEYS[100:]) <= set(keys.numpy())
            if name in STEPS and not ended:  # Some rows may have moved.
                assert set(found) <= {0.0, 1.0, 2.0}, found
            elif not ended:
                assert found == [1.0], found
            else:
                assert len(found) == 1, found


STEPS = ("update", "new_rows")
OPERATIONS = (
    "upsert",
    "insert",
    "accum",
    "lookup",
    "export",
    "remove",
    *STEPS,
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
            call += 1
        print(name, failed, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
