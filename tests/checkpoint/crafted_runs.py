"""Crafted files through every reader: a program for a process of its own.

  python -m checkpoint.crafted_runs FOLDER FIRST COUNT

Case k is made from seed k alone. The program writes the number of the case under
way to FOLDER/case, and a line to FOLDER/failures for each that is not as it must
be: refused by an error that can be shown, with tables as they were, or read,
with tables whose size, keys, export and lookups agree; in memory that the files
pay for. It is the parent's to see that the process lives and goes on.
"""

from __future__ import annotations

import pathlib
import random
import sys
import time

import numpy as np
import tensorflow as tf

import tfembed.dynamic_embedding as de
from checkpoint import bundle_files, crafted_files
from tfembed import checkpoint, errors, optimizers, policies
from tfembed.checkpoint import table_saver
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.ops import files
from tfembed.ops import table as table_ops
from tfembed.tables import HashTable, StringTable

MEMORY = 64 << 20
SECONDS = 30
ADAGRAD = optimizers.Adagrad(0.1)


def peak():
    text = pathlib.Path("/proc/self/status").read_text()
    return [
        int(text.split(f"\n{x}:", 1)[1].split(maxsplit=1)[0]) << 10
        for x in ("VmHWM", "VmRSS")
    ]


def own_time(process="self"):
    """Seconds, without those in which other programs had the processors.

    So a test at the lowest priority takes no program that waits for one that hangs.
    """
    try:
        text = pathlib.Path(f"/proc/{process}/schedstat").read_text()
    except OSError:  # It has ended.
        return time.monotonic()
    return time.monotonic() - int(text.split()[1]) / 1e9


def reset_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def plain(array):
    """A value that is equal where arrays are equal, NaNs too."""
    return array.tolist() if array.dtype == object else array.tobytes()


def table_of(name, dim=3, num_shards=1, optimizer=None, **options):
    table = HashTable(
        dim,
        name=name,
        initializer=0.5,
        devices=["/CPU:0"] * num_shards,
        **options,
    )
    if optimizer is not None:
        table.attach(optimizer)
    return table


def keys_of(table, first, n):
    keys = range(first, first + n)
    if table.key_dtype == tf.string:
        return tf.constant([f"key {k}" * (1 + k % 5) for k in keys])
    return tf.constant(list(keys), table.key_dtype)


def fill(table, first, n=12):
    """Rows; with an admission, training until some are rows and some wait."""
    if table.admission is not None:
        for begin in range(3):
            keys = keys_of(table, first + begin, n)
            table.apply_gradients(keys, tf.ones([n, table.dim]))
        return
    values = np.arange(n * table.dim).reshape([n, table.dim]) % 2
    keys = keys_of(table, first, n)
    table.upsert(keys, tf.cast(values, table.value_dtype))
    if table.optimizer is not None:
        table.apply_gradients(keys, tf.ones([n, table.dim]))


def plain_tables():
    return {
        "a": table_of("a", num_shards=2, optimizer=ADAGRAD),
        "b": table_of("b", 2, key_dtype=tf.int32, value_dtype=tf.bfloat16),
        "c": table_of("c", key_dtype=tf.string, optimizer=ADAGRAD),
        "d": table_of("d", 1, key_dtype=tf.int32, value_dtype=tf.int32),
        "g": table_of("g", 1, value_dtype=tf.int8),
        "h": table_of("h", key_dtype=tf.string, value_dtype=tf.bool),
        "e": table_of("e", 0),
        "f": table_of("f", key_dtype=tf.string, num_shards=2),
    }


def policy_tables():
    seen, recent = policies.CountAdmission(2), policies.LeastRecent()
    options = {"optimizer": ADAGRAD, "eviction": recent, "max_size": 20}
    return {
        "a": table_of("a", num_shards=2, admission=seen, **options),
        "b": table_of("b", key_dtype=tf.int32, admission=seen, **options),
        "c": table_of("c", key_dtype=tf.string, admission=seen, **options),
        "d": table_of(
            "d",
            admission=policies.BloomAdmission(2, capacity=100),
            optimizer=ADAGRAD,
        ),
    }


class Tables:
    """Several tables in one checkpoint.

    Args:
      make: gives new tables, by name.
      folder: for the checkpoint of other rows, to which tables go back.
      slices: whether the crafted checkpoints have slices.
    """

    def __init__(self, make, folder, *, slices=False):
        saved, self._tables = make(), make()
        for table in saved.values():
            fill(table, first=3)
        for table in self._tables.values():
            fill(table, first=-4, n=7)
        self.bundle = self._save(saved, folder / "saved")
        self._save(self._tables, folder / "own")
        self._own = str(folder / "own")
        # A restore of a SavedModel, or of a program's own function, is a graph.
        self._restore_in_graph = tf.function(
            lambda prefix: table_saver._restore(self._tables, prefix),
            input_signature=[tf.TensorSpec([], tf.string)],
            autograph=False,
        )
        self._snapshots = tf.function(self._take_snapshots, autograph=False)
        if slices:
            for name, entry in list(self.bundle.entries.items()):
                dims = [dim.size for dim in entry.shape.dim]
                is_whole = not entry.slices and entry.size > 0
                if is_whole and dims[:1] == [12]:
                    self.bundle.slice_rows(name, [5, 9, 12])
        self._restore(self._own)
        self._before = self.state()

    @staticmethod
    def _save(tables, prefix):
        table_saver._save(tables, tf.constant(str(prefix)))
        return bundle_files.Bundle.load(prefix)

    def _restore(self, prefix):
        table_saver._restore(self._tables, tf.constant(prefix))

    def _take_snapshots(self):
        return [
            table_ops.snapshot(
                table.handles,
                key_dtype=table.key_dtype,
                value_dtype=table.value_dtype,
            )
            for table in self._tables.values()
        ]

    def state(self):
        return [
            [plain(x.numpy()) for x in parts] for parts in self._snapshots()
        ]

    def readers(self, prefix, rng):
        yield lambda: checkpoint.verify(prefix)
        yield lambda: self._read_tensors(prefix)
        yield lambda: self._read_chunks(prefix, rng)
        if rng.random() < 0.3:
            yield lambda: self._restore(prefix)
        else:
            yield lambda: self._restore_in_graph(tf.constant(prefix))

    def _read_tensors(self, prefix):
        for name, entry in self.bundle.entries.items():
            if name[:1] != b"\0":
                dtype = tf.dtypes.as_dtype(entry.dtype)
                checkpoint_ops.read(
                    tf.constant(prefix), tensors={name.decode(): dtype}
                )

    def _read_chunks(self, prefix, rng):
        name, table = rng.choice(sorted(self._tables.items()))
        for read, options in [
            (checkpoint_ops.read_chunk, {"load_slots": True}),
            (checkpoint_ops.read_waiting, {}),
        ]:
            chunk, chunks = 0, 1
            while chunk < chunks:
                *_, chunks = read(
                    table.handle,
                    tf.constant(prefix),
                    tf.constant(chunk, tf.int64),
                    tensor_name=table_saver.tensor_prefix(name),
                    has_string_keys=table.key_dtype == tf.string,
                    **options,
                )
                chunk, chunks = chunk + 1, int(chunks)

    def after(self, accepted):
        """The faults of the tables now; brings the tables back."""
        if not accepted:
            return "" if self.state() == self._before else "a table has changed"
        wrong = [agreement(t) for t in self._tables.values()]
        self._restore_in_graph(tf.constant(self._own))
        self._before = self.state()
        return " ".join(filter(None, wrong))


def agreement(table):
    """The answers of a table that contradict each other."""
    keys, values = (x.numpy() for x in table.export())
    n = int(table.size())
    if len(keys) != n or len(set(keys.tolist())) != n:
        return f"size {n}, {len(keys)} keys, {len(set(keys.tolist()))} distinct"
    if not n:
        return ""
    found, exists = (x.numpy() for x in table.lookup(keys))
    same = plain(found) == plain(values)
    if not exists.all() or not same:
        return "lookups differ from the export"
    return ""


class WarmStart:
    """A variable that begins with the rows of another program."""

    def __init__(self, folder):
        self._variable = de.Variable(dim=2, name="w")
        self._fill()
        self.bundle = bundle_files.Bundle(
            bundle_files.Header(), {}, [bytearray()]
        )
        self.bundle.header.num_shards = 1
        self.bundle.header.version.producer = 1
        for part, values in {
            "keys": np.arange(6),
            "values": np.ones([6, 2], np.float32),
        }.items():
            name = f"w_mht_1of1-{part}".encode()
            entry = bundle_files.Entry(
                dtype=tf.as_dtype(values.dtype).as_datatype_enum
            )
            for size in values.shape:
                entry.shape.dim.add(size=size)
            self.bundle.entries[name] = entry
            self.bundle.replace(name, values.tobytes())
        self.bundle.write(folder / "warm")
        de.warm_start(str(folder / "warm"), [self._variable])
        assert int(self._variable.size()) == 6
        self._fill()
        self._before = self.state()

    def _fill(self):
        self._variable.clear()
        self._variable.upsert([1, -2], [[1.0, 2.0], [3.0, 4.0]])

    def state(self):
        return [plain(x.numpy()) for x in self._variable.export()]

    def readers(self, prefix, rng):
        yield lambda: de.warm_start(prefix, [self._variable])

    def after(self, accepted):
        if not accepted:
            return "" if self.state() == self._before else "it has changed"
        wrong = agreement(self._variable.table)
        self._fill()
        self._before = self.state()
        return wrong


class Strings:
    """A table of strings."""

    def __init__(self, folder):
        def make(first):
            table = StringTable(2, name="s", initializer="?")
            table.upsert([first, 8], [["x" * 30, "y"], ["", "z"]])
            return table

        self._table = make(1)
        prefix = tf.constant(str(folder / "strings"))
        table_saver.save_strings({"s": make(7)}, prefix)
        self.bundle = bundle_files.Bundle.load(str(folder / "strings"))
        self._before = self.state()

    def state(self):
        return [plain(x.numpy()) for x in self._table.export()]

    def readers(self, prefix, rng):
        yield lambda: checkpoint.verify(prefix)
        yield lambda: table_saver._restore(
            {"s": self._table}, tf.constant(prefix)
        )

    def after(self, accepted):
        if not accepted:
            return "" if self.state() == self._before else "it has changed"
        wrong = agreement(self._table)
        self._before = self.state()
        return wrong


class RowFiles:
    """A variable and its raw files."""

    def __init__(self, folder, **options):
        self._variable = de.Variable(dim=2, name="fs", **options)
        dtype = self._variable.key_dtype
        self._keys = [
            str(k) if dtype == tf.string else k for k in (5, 7, 2**31 - 1, -9)
        ]
        self._fill(4)
        folder = folder / f"rows {dtype.name} {len(options)}"
        folder.mkdir()
        self._variable.save_to_file_system(str(folder))
        self.files = {x.name: x.read_bytes() for x in folder.iterdir()}
        self._fill(2)
        self._before = self.state()

    def _fill(self, n):
        self._variable.clear()
        keys = tf.constant(self._keys[:n], self._variable.key_dtype)
        self._variable.upsert(keys, tf.ones([n, 2]))

    def state(self):
        return [plain(x.numpy()) for x in self._variable.export()]

    def readers(self, folder, rng):
        yield lambda: self._variable.load_from_file_system(folder)
        if rng.random() < 0.2:
            yield lambda: self._append(folder)

    def _append(self, folder):
        handles = self._variable.table.handles
        n = len(handles)
        stems = [f"fs_mht_{i + 1}of{n}_rank0_size1" for i in range(n)]
        files.save(
            handles,
            tf.constant(folder),
            stems,
            buffer_size=100,
            append=True,
            owner=self._variable.table.file_owner,
        )

    def after(self, accepted):
        if not accepted:
            return "" if self.state() == self._before else "it has changed"
        wrong = agreement(self._variable.table)
        self._fill(2)
        self._before = self.state()
        return wrong


def disk_bytes(folder):
    return sum(
        x.lstat().st_blocks * 512 for x in pathlib.Path(folder).iterdir()
    )


class Runs:
    """All cases.

    Args:
      folder: for their files.
    """

    def __init__(self, folder):
        made = folder / "made"
        self._folder = folder / "crafted"
        for one in (made, self._folder):
            one.mkdir()
        for name in ("plain", "policies", "sliced", "waiting"):
            (made / name).mkdir()
        self._subjects = [
            Tables(plain_tables, made / "plain"),
            Tables(plain_tables, made / "sliced", slices=True),
            Tables(policy_tables, made / "policies"),
            Tables(policy_tables, made / "waiting", slices=True),
            WarmStart(made),
            Strings(made),
            RowFiles(made),
            RowFiles(made, key_dtype=tf.string, devices=["/CPU:0"] * 2),
        ]

    def run(self, case):
        """The fault of a case; "" where there is none."""
        rng = random.Random(case)
        subject = self._subjects[case % len(self._subjects)]
        crafted_files.clear_folder(self._folder)
        path = str(self._folder)
        if isinstance(subject, RowFiles):
            what = crafted_files.craft_row_files(rng, subject.files, path)
        else:
            path = str(self._folder / "ckpt")
            what = crafted_files.craft_checkpoint(rng, subject.bundle, path)
        wrong = []
        limit = MEMORY + 4 * disk_bytes(self._folder)
        for i, read in enumerate(subject.readers(path, rng)):
            wrong += self._read(i, read, limit)
            accepted = self._accepted
        wrong.append(subject.after(accepted))
        wrong = list(filter(None, wrong))
        return f"case {case} ({what}): {'; '.join(wrong)}" if wrong else ""

    def _read(self, i, read, limit):
        reset_peak()
        _, before = peak()
        begun, self._accepted = own_time(), False
        wrong = []
        try:
            read()
            self._accepted = True
        except UnicodeError as error:
            wrong.append(f"reader {i}: {error!r}")
        except (tf.errors.OpError, errors.TfembedError, ValueError) as error:
            if not str(error):
                wrong.append(f"reader {i}: an error without words")
        except Exception as error:
            wrong.append(f"reader {i}: {error!r}")
        seconds = own_time() - begun
        if seconds > SECONDS:
            wrong.append(f"reader {i}: {seconds:.0f} s")
        more = peak()[0] - before
        if more > limit:
            wrong.append(f"reader {i}: {more >> 20} MB")
        return wrong


def main(folder, first, count):
    folder = pathlib.Path(folder)
    runs = Runs(folder)
    for case in range(int(first), int(first) + int(count)):
        (folder / "case").write_text(str(case))
        wrong = runs.run(case)
        if wrong:
            with (folder / "failures").open("a") as file:
                file.write(wrong + "\n")
    (folder / "case").write_text("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
