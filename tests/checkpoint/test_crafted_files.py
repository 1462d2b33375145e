"""Files whose checksums hold and which say what cannot be.

No reader believes a number of a file before it compares the number with the bytes
that are there, or asks TensorFlow's reader, which ends the process. The files are
checkpoints (index, data files, layout, slices, strings, waiting keys), raw
files and their manifest, warm starts, tables of strings, what Keras keeps of
layers; whatever opens a file, for files that are none. HYPOTHESIS_PROFILE=full:
100,000 crafted ones.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from checkpoint import bundle_files, crafted_files, crafted_runs
from dynamic_embedding import file_variables
from saved_models import assert_same_content, content, trained_model
from tfembed import checkpoint, errors, optimizers, policies
from tfembed.checkpoint import table_saver
from tfembed.dynamic_embedding.keras import row_files
from tfembed.ops import checkpoint as checkpoint_ops
from tfembed.tables import HashTable, StringTable

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
CASES = 100_000 if FULL else 1600
PROCESSES = 2 if FULL else 1
STALLED = 120  # Seconds without a new case.

TABLE = b"table/.ATTRIBUTES/"
FAR = 7 + 2**32


def write(table, prefix):
    """Saves a table, and takes the files apart."""
    table_saver._save({"table": table}, tf.constant(str(prefix)))
    return bundle_files.Bundle.load(prefix)


def restore(table, prefix):
    table_saver._restore({"table": table}, tf.constant(str(prefix)))


def narrow_table(num_shards=1, **options):
    return HashTable(
        2,
        key_dtype=tf.int32,
        name="narrow",
        initializer=0.5,
        devices=["/CPU:0"] * num_shards,
        **options,
    )


# Keys that do not fit.


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(
    "partitioner", [None, lambda keys, n: tf.math.floormod(keys, n)]
)
@pytest.mark.parametrize("key", [FAR, -(2**31) - 1, 2**31])
def test_a_key_beyond_int32_is_refused_by_number(
    tmp_path, num_shards, partitioner, key
):
    saved = narrow_table()
    saved.upsert([7, 8], np.ones([2, 2]))
    bundle = write(saved, tmp_path / "ckpt")
    bundle.replace(TABLE + b"keys", np.array([7, key], "<i8").tobytes())
    bundle.write(tmp_path / "ckpt")
    table = narrow_table(num_shards, partitioner=partitioner)
    table.upsert([1, 7], [[1, 2], [3, 4]])
    before = content(table)

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"'narrow'.*keys.* key {key}; .*int32, from -2147483648 to",
    ):
        restore(table, tmp_path / "ckpt")

    assert_same_content(content(table), before)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_ends_of_int32_are_restored(tmp_path, num_shards):
    saved = narrow_table()
    keys = [-(2**31), -1, 2**31 - 1]
    saved.upsert(keys, [[1, 2], [3, 4], [5, 6]])
    write(saved, tmp_path / "ckpt")
    table = narrow_table(num_shards)

    restore(table, tmp_path / "ckpt")

    assert_same_content(content(table), content(saved))


def test_a_waiting_key_beyond_int32_is_refused_by_number(tmp_path):
    def make():
        table = narrow_table(admission=policies.CountAdmission(3))
        table.attach(optimizers.SGD(1.0))
        return table

    saved, table = make(), make()
    for one in (saved, table):
        one.apply_gradients(tf.constant([7, 8]), tf.ones([2, 2]))
    bundle = write(saved, tmp_path / "ckpt")
    name = TABLE + b"waiting/keys"
    bundle.replace(name, np.array([7, FAR], "<i8").tobytes())
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"key {FAR};"):
        restore(table, tmp_path / "ckpt")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"key {FAR};"):
        checkpoint_ops.read_waiting(
            table.handle,
            tf.constant(str(tmp_path / "ckpt")),
            tf.constant(0, tf.int64),
            tensor_name=TABLE.decode().rstrip("/"),
        )

    assert int(table.size()) == 0


@pytest.mark.parametrize("seen", [0, -1, -(2**31)])
def test_a_waiting_key_that_was_never_seen_is_refused(tmp_path, seen):
    table = narrow_table(admission=policies.CountAdmission(3))
    table.attach(optimizers.SGD(1.0))
    table.apply_gradients(tf.constant([7]), tf.ones([1, 2]))
    bundle = write(table, tmp_path / "ckpt")
    bundle.replace(TABLE + b"waiting/seen", np.array([seen], "<i4").tobytes())
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.DataLossError, match=f"seen {seen} times"):
        restore(table, tmp_path / "ckpt")


# Keys that come twice.

KEYS = {
    tf.int64: [5, -1, 7, 9],
    tf.int32: [5, -1, 7, 9],
    tf.string: [b"a", b"", b"c" * 40, b"d"],
}


def write_keys(bundle, name, keys):
    """Puts other keys into a bundle, in one piece or in its slices."""
    if isinstance(keys[0], bytes):
        bundle.replace_strings(name, keys)
    else:
        bundle.replace(name, np.array(keys, "<i8").tobytes())


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("key_dtype", KEYS)
def test_a_key_that_comes_twice_is_refused_by_name(
    tmp_path, key_dtype, partitioned, num_shards, slices
):
    def deal(keys, n):
        if key_dtype == tf.string:
            return tf.strings.to_hash_bucket_fast(keys, n)
        return tf.math.floormod(keys, n)

    def make(num_shards, **options):
        return HashTable(
            2,
            key_dtype=key_dtype,
            name="t",
            devices=["/CPU:0"] * num_shards,
            **options,
        )

    keys = KEYS[key_dtype]
    saved = make(1)
    saved.upsert(tf.constant(keys, key_dtype), np.ones([4, 2]))
    bundle = write(saved, tmp_path / "ckpt")
    write_keys(bundle, TABLE + b"keys", [keys[1], keys[0], keys[3], keys[1]])
    if slices:  # In each of which it comes once.
        for part in (b"keys", b"values"):
            bundle.slice_rows(TABLE + part, [2, 3, 4])
    bundle.write(tmp_path / "ckpt")
    table = make(num_shards, partitioner=deal if partitioned else None)
    table.upsert(tf.constant(keys[2:], key_dtype), [[1, 2], [3, 4]])
    before = content(table)

    shown = "''" if key_dtype == tf.string else "-1"
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"'t'.*/keys' .*it has key {shown} more than once",
    ):
        restore(table, tmp_path / "ckpt")

    assert_same_content(content(table), before)


def test_keys_that_all_are_the_same_are_refused(tmp_path):
    saved = HashTable(1, name="t")
    saved.upsert(range(1000), np.ones([1000, 1]))
    bundle = write(saved, tmp_path / "ckpt")
    write_keys(bundle, TABLE + b"keys", [8] * 1000)
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.InvalidArgumentError, match="key 8 more than"):
        restore(saved, tmp_path / "ckpt")

    assert int(saved.size()) == 1000


def test_one_key_that_comes_twice_is_found_among_many(tmp_path):
    n = 100_000
    saved = HashTable(1, name="t")
    saved.upsert(range(n), np.ones([n, 1]))
    bundle = write(saved, tmp_path / "ckpt")
    keys = np.random.default_rng(3).permutation(n)
    keys[-1] = keys[17]
    write_keys(bundle, TABLE + b"keys", keys)
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"key {keys[17]} more than once"
    ):
        restore(saved, tmp_path / "ckpt")


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
def test_a_waiting_key_that_comes_twice_is_refused(tmp_path, key_dtype):
    table = HashTable(
        2,
        key_dtype=key_dtype,
        name="t",
        admission=policies.CountAdmission(3),
    )
    table.attach(optimizers.SGD(1.0))
    keys = KEYS[key_dtype][:2]
    table.apply_gradients(tf.constant(keys, key_dtype), tf.ones([2, 2]))
    bundle = write(table, tmp_path / "ckpt")
    write_keys(bundle, TABLE + b"waiting/keys", [keys[0], keys[0]])
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="waiting/keys.*more than once"
    ):
        restore(table, tmp_path / "ckpt")


def test_a_table_of_strings_has_each_key_once(tmp_path):
    module = tf.Module()
    module.strings = StringTable(1, name="s")
    module.strings.upsert([1, 2], [["a"], ["b"]])
    module.hashed = HashTable(1, name="h")
    module.hashed.upsert([3], [[3.0]])
    saver = tf.train.Checkpoint(module=module)
    path = saver.write(str(tmp_path / "ckpt"))
    bundle = bundle_files.Bundle.load(path)
    name = b"module/strings/.ATTRIBUTES/keys"
    write_keys(bundle, name, [2, 2])
    bundle.write(path)
    module.hashed.upsert([3], [[4.0]])

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="'s'.* key 2 more than once"
    ):
        saver.read(path)

    rows, _ = module.strings.lookup([1, 2])
    assert rows.numpy().tolist() == [[b"a"], [b"b"]]
    assert module.hashed.lookup([3])[0].numpy().tolist() == [[4.0]]


def warm_start(path, keys):
    """Starts a variable from a checkpoint of a Saver's form."""
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=[
            f"w_mht_{shard}of2-{part}"
            for part in ("keys", "values")
            for shard in (1, 2)
        ],
        shape_and_slices=[""] * 4,
        tensors=[
            *map(np.array, keys),
            np.ones([2, 2], "f"),
            np.ones([1, 2], "f"),
        ],
    )
    variable = de.Variable(dim=2, name="w")
    variable.upsert([1], [[1.0, 2.0]])
    try:
        de.warm_start(path, [variable])
    finally:
        assert file_variables.contents(variable) == {1: [1.0, 2.0]}


def test_a_key_in_two_shards_starts_no_variable(tmp_path):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="'w'.* key 4 more than once"
    ):
        warm_start(str(tmp_path / "ckpt"), [[4, 2], [4]])


@pytest.mark.parametrize("admission", [None, policies.CountAdmission(3)])
def test_a_saver_of_tensorflow_1_restores_each_key_once(tmp_path, admission):
    path = str(tmp_path / "ckpt")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        a = de.get_variable("a", dim=2, admission=admission)
        b = de.get_variable("b", dim=2)
        session.run(
            [a.upsert([1, 2], np.ones([2, 2])), b.upsert([5], [[5, 5]])]
        )
        saver = tf.compat.v1.train.Saver([a, b])
        saver.save(session, path)
        bundle = bundle_files.Bundle.load(path)
        write_keys(bundle, b"a_mht_1of1-keys", [2, 2])
        bundle.write(path)
        session.run([a.upsert([3], [[3, 3]]), b.upsert([5], [[6, 6]])])

        with pytest.raises(
            tf.errors.InvalidArgumentError, match="'a'.* key 2 more than once"
        ):
            saver.restore(session, path)

        assert session.run(a.size()) == 3
        assert session.run(b.lookup([5])).tolist() == [[6, 6]]


# In raw files, to which rows are appended, the last row of a key counts.


def test_a_key_that_comes_twice_in_raw_files_has_its_last_row(tmp_path):
    variable = file_variables.filled()
    (tmp_path / file_variables.KEYS).write_bytes(
        np.array([4, 9, 4], "<i8").tobytes()
    )
    np.array([[1, 1], [2, 2], [3, 3]], "<f4").tofile(
        tmp_path / file_variables.VALUES
    )
    variable.clear()

    variable.load_from_file_system(tmp_path)

    assert file_variables.contents(variable) == {4: [3, 3], 9: [2, 2]}


def test_a_saved_bool_is_0_or_1(tmp_path):
    table = HashTable(2, key_dtype=tf.string, value_dtype=tf.bool, name="t")
    table.upsert(["a"], [[True, False]])
    bundle = write(table, tmp_path / "ckpt")
    bundle.replace(TABLE + b"values", b"\x05\0")
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.DataLossError, match="neither 0 nor 1"):
        restore(table, tmp_path / "ckpt")

    assert table.export()[1].numpy().tobytes() == b"\1\0"


def test_a_bool_of_a_raw_file_is_0_or_1(tmp_path):
    v = file_variables.variable(key_dtype=tf.string, value_dtype=tf.bool)
    v.upsert(["a"], [[True, False]])
    (tmp_path / file_variables.KEYS).write_bytes(b"\1\0\0\0b")
    np.array([5, 0], "u1").tofile(tmp_path / file_variables.VALUES)

    with pytest.raises(tf.errors.DataLossError, match="a bool that is 5"):
        v.load_from_file_system(tmp_path)

    assert v.export()[0].numpy().tolist() == [b"a"]


# Sizes against bytes.


def index_that_says(prefix, n, content=b"\0\0\0\0"):
    """An index of a string tensor of n strings, and 4 bytes of data."""
    header = bundle_files.Header(num_shards=1)
    header.version.producer = 1
    entry = bundle_files.Entry(dtype=bundle_files.STRING)
    entry.shape.dim.add(size=n)
    bundle = bundle_files.Bundle(header, {b"words": entry}, [bytearray()])
    bundle.replace(b"words", content)
    bundle.write(prefix)


# Prints the megabytes that `program` took, or "refused" and those.
MEASURED = """
import sys
import tensorflow as tf
from checkpoint.crafted_runs import peak, reset_peak
from tfembed import checkpoint
import tfembed.dynamic_embedding as de
from tfembed.ops import checkpoint as checkpoint_ops

path = sys.argv[1]
variable = de.Variable(dim=2, name="fs")
variable.upsert([1], [[1.0, 2.0]])
reset_peak()
_, before = peak()
try:
    {program}
    word = "accepted"
except (tf.errors.OpError, ValueError) as error:
    word = "refused"
    print(error, file=sys.stderr)
print(word, peak()[0] - before >> 20)
"""


STRINGS_MEASURED = MEASURED.replace(
    "reset_peak()\n",
    "from tfembed.checkpoint import table_saver\n"
    "from tfembed.tables import HashTable\n"
    "table = HashTable(0, key_dtype=tf.string, name='t')\n"
    "reset_peak()\n",
    1,
)


@pytest.mark.parametrize("n", [2**40, 2**62, 2**63 - 1])
def test_a_string_tensor_has_no_more_strings_than_bytes(tmp_path, n):
    index_that_says(tmp_path / "ckpt", n)
    prefix = tf.constant(str(tmp_path / "ckpt"))

    with pytest.raises(errors.CheckpointError, match="words': its .* elements"):
        checkpoint.verify(tmp_path / "ckpt")
    with pytest.raises(
        tf.errors.DataLossError, match="words': its .* elements"
    ):
        checkpoint_ops.read(prefix, tensors={"words": tf.string})


@pytest.mark.parametrize(
    "program",
    [
        "checkpoint.verify(path)",
        "checkpoint_ops.read(tf.constant(path), tensors={'words': tf.string})",
    ],
)
def test_a_string_tensor_takes_no_memory_that_its_bytes_do_not_pay(
    tmp_path, program
):
    index_that_says(tmp_path / "ckpt", 2**28)

    word, megabytes = fresh_process.output_of(
        MEASURED.format(program=program), tmp_path / "ckpt"
    ).split()

    assert word == "refused"
    assert int(megabytes) < 64


NOTHING = 8_000_000


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("checkpoint.verify(path)", "accepted"),
        (
            "checkpoint_ops.read(tf.constant(path), tensors={'words': "
            "tf.string})",
            "refused",
        ),
        (
            "checkpoint_ops.read(tf.constant(path), tensors={'words': "
            "tf.string, 'few': tf.string})",
            "refused",
        ),
        (
            "checkpoint_ops.read(tf.constant(path), tensors={'few': "
            "tf.string})",
            "accepted",
        ),
        (
            "table_saver._restore({'table': table}, tf.constant(path))",
            "refused",
        ),
    ],
)
def test_strings_of_nothing_take_no_more_than_their_file_pays(
    tmp_path, program, expected
):
    path = str(tmp_path / "ckpt")
    keys = "table/.ATTRIBUTES/keys"
    names = {"words": NOTHING, "few": NOTHING // 10, keys: NOTHING}
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(names),
        shape_and_slices=[""] * len(names),
        tensors=[tf.fill([n], "") for n in names.values()],
    )
    bundle = bundle_files.Bundle.load(path)
    # A table that has so many keys, and rows of no width.
    table = HashTable(0, key_dtype=tf.string, name="t")
    table.upsert(["a"], np.ones([1, 0]))
    small = write(table, tmp_path / "small")
    bundle.entries[TABLE + b"layout"] = small.entries[TABLE + b"layout"]
    bundle.replace_strings(
        TABLE + b"layout", small.strings_of(TABLE + b"layout")
    )
    values = small.entries[TABLE + b"values"]
    values.shape.dim[0].size = NOTHING
    bundle.entries[TABLE + b"values"] = values
    bundle.write(path)
    limit = 64 + 4 * sum(
        file.stat().st_size >> 20 for file in tmp_path.glob("ckpt.data*")
    )

    word, megabytes = fresh_process.output_of(
        STRINGS_MEASURED.format(program=program), path
    ).split()

    assert word == expected
    assert int(megabytes) < limit


def test_row_files_of_empty_strings_take_no_more_than_they_pay(tmp_path):
    n = 63 << 18  # 63 MB, which are read ahead where rows are no strings.
    variable = file_variables.variable(key_dtype=tf.string, dim=0)
    variable.save_to_file_system(tmp_path)
    (manifest,) = tmp_path.glob(".tfembed.*")
    manifest.unlink()
    np.zeros(n, "<u4").tofile(tmp_path / file_variables.KEYS)
    program = MEASURED.replace("dim=2", "dim=0, key_dtype=tf.string").replace(
        "variable.upsert([1], [[1.0, 2.0]])\n", ""
    )

    word, megabytes = fresh_process.output_of(
        program.format(program="variable.load_from_file_system(path)"), tmp_path
    ).split()

    assert word == "accepted"
    assert int(megabytes) < 64 + 4 * 63


@pytest.mark.parametrize("length", [5, 2**31, 2**40, 2**63])
def test_a_strings_length_is_held_against_its_bytes(tmp_path, length):
    table = HashTable(2, key_dtype=tf.string, name="t")
    table.upsert(["a", "b"], np.ones([2, 2]))
    bundle = write(table, tmp_path / "ckpt")
    bundle.replace_strings(TABLE + b"keys", [b"a", b"b"], [1, length])
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.DataLossError, match=r"'t'.*string"):
        restore(table, tmp_path / "ckpt")
    with pytest.raises(errors.CheckpointError, match="keys"):
        checkpoint.verify(tmp_path / "ckpt")

    assert int(table.size()) == 2


def test_bytes_that_several_tensors_have_are_refused(tmp_path):
    model = trained_model(100)
    bundle = write(model.table, tmp_path / "ckpt")
    values = bundle.entries[TABLE + b"values"]
    for i in range(3):
        bundle.entries[b"other %d" % i] = values
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(errors.CheckpointError, match="other tensors have"):
        checkpoint.verify(tmp_path / "ckpt")


def test_a_layout_that_is_too_long_is_not_read(tmp_path):
    model = trained_model(10)
    bundle = write(model.table, tmp_path / "ckpt")
    (layout,) = bundle.strings_of(TABLE + b"layout")
    bundle.replace_strings(
        TABLE + b"layout", [layout + b"\nnotes " + b"n" * 2**20]
    )
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"has \d+ bytes.*at most 1048576"
    ):
        restore(model.table, tmp_path / "ckpt")


@pytest.mark.parametrize(
    "line", ["dim 3", "seed 5", "rule \udcff", "slot \udcff 1"]
)
def test_a_layout_says_a_thing_once_and_in_text(tmp_path, line):
    model = trained_model(10)
    bundle = write(model.table, tmp_path / "ckpt")
    (layout,) = bundle.strings_of(TABLE + b"layout")
    line = line.encode(errors="surrogateescape")
    bundle.replace_strings(TABLE + b"layout", [layout + b"\n" + line])
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.InvalidArgumentError, match="layout's line"):
        restore(model.table, tmp_path / "ckpt")


@pytest.mark.parametrize("file", ["index", "manifest"])
def test_a_terabyte_of_nothing_is_not_read(tmp_path, file):
    file_variables.filled().save_to_file_system(tmp_path)
    path = tmp_path / "ckpt.index"
    program = "checkpoint.verify(path)"
    if file == "manifest":
        (path,) = tmp_path.glob(".tfembed.*")
        program = "variable.load_from_file_system(path)"
    with path.open("ab") as opened:
        opened.truncate(2**40)

    word, megabytes = fresh_process.output_of(
        MEASURED.format(program=program),
        tmp_path if file == "manifest" else tmp_path / "ckpt",
    ).split()

    assert word == "refused"
    assert int(megabytes) < 64


# Files that are none.


def put(kind, path):
    """Puts something else where a file was."""
    path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


KINDS = pytest.mark.parametrize("kind", ["FIFO", "folder", "device"])


@KINDS
@pytest.mark.parametrize("file", ["ckpt.index", "ckpt.data-00000-of-00001"])
def test_a_checkpoint_is_made_of_files(tmp_path, file, kind):
    model = trained_model(10)
    write(model.table, tmp_path / "ckpt")
    put(kind, tmp_path / file)
    before = content(model.table)

    with pytest.raises(
        tf.errors.OpError, match=f"{file}' is no file but a {kind}"
    ):
        restore(model.table, tmp_path / "ckpt")
    with pytest.raises(errors.CheckpointError, match=f"no file but a {kind}"):
        checkpoint.verify(tmp_path / "ckpt")

    assert_same_content(content(model.table), before)


@KINDS
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("file", ["keys", "values", "manifest"])
def test_rows_are_in_files(tmp_path, file, listed, kind):
    variable = file_variables.filled()
    variable.save_to_file_system(tmp_path)
    (manifest,) = tmp_path.glob(".tfembed.*")
    (path,) = tmp_path.glob(f"*-{file}") if file != "manifest" else [manifest]
    if not listed and path != manifest:
        manifest.unlink()
    put(kind, path)
    before = file_variables.contents(variable)

    with pytest.raises(tf.errors.OpError, match=f"no file but a {kind}"):
        variable.load_from_file_system(tmp_path)

    assert file_variables.contents(variable) == before


def test_a_manifest_says_whose_rows_the_files_hold(tmp_path):
    variable = file_variables.filled()
    variable.save_to_file_system(tmp_path)
    (manifest,) = tmp_path.glob(".tfembed.*")
    lines = manifest.read_bytes().splitlines()[:-1]
    others = [line for line in lines if not line.startswith(b"table ")]
    assert len(others) == len(lines) - 1
    manifest.write_bytes(crafted_files.with_end(others))

    with pytest.raises(tf.errors.DataLossError, match="whose rows"):
        variable.load_from_file_system(tmp_path)


# What TensorFlow's reader answers by ending the process.


def sliced(tmp_path):
    """A table in three slices."""
    bundle = write(trained_model(12).table, tmp_path / "ckpt")
    for part in (b"keys", b"values"):
        bundle.slice_rows(TABLE + part, [5, 9, 12])
    return bundle


def change_dtype(number):
    def change(bundle):
        bundle.entries[TABLE + b"values"].dtype = number

    return change


def negative_extent(bundle):
    extent = bundle.entries[TABLE + b"keys"].slices[1].extent[0]
    extent.start, extent.length = 9, -4


def equal_slices(bundle):
    slices = bundle.entries[TABLE + b"keys"].slices
    slices[1].CopyFrom(slices[0])


def no_slice(bundle):
    del bundle.entries[bundle_files.slice_name(TABLE + b"keys", [(5, 4)])]


def file_of_none(bundle):
    name = bundle_files.slice_name(TABLE + b"keys", [(5, 4)])
    bundle.entries[name].shard_id = 1


def no_files(bundle):
    bundle.header.num_shards = 0


CHANGES = {
    "dtype 0": change_dtype(0),
    "dtype 20": change_dtype(20),
    "dtype 107": change_dtype(107),
    "negative extent": negative_extent,
    "equal slices": equal_slices,
    "missing slice": no_slice,
    "file of none": file_of_none,
    "no files": no_files,
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_that_would_end_the_process_is_refused(tmp_path, change):
    bundle = sliced(tmp_path)
    CHANGES[change](bundle)
    bundle.write(tmp_path / "ckpt")
    prefix = tf.constant(str(tmp_path / "ckpt"))
    table = trained_model(7).table
    before = content(table)

    with pytest.raises(errors.CheckpointError, match=r"ckpt\.index.*damaged"):
        checkpoint.verify(tmp_path / "ckpt")
    with pytest.raises(tf.errors.DataLossError, match=r"ckpt\.index.*damaged"):
        restore(table, tmp_path / "ckpt")
    with pytest.raises(tf.errors.DataLossError, match=r"ckpt\.index.*damaged"):
        for part, dtype in [("keys", tf.int64), ("values", tf.float32)]:
            name = TABLE.decode() + part
            checkpoint_ops.read(prefix, tensors={name: dtype})

    assert_same_content(content(table), before)


def test_an_entry_that_does_not_parse_is_refused(tmp_path):
    bundle = sliced(tmp_path)
    texts = [
        (name, b"\xff\xff" if name == TABLE + b"keys" else text)
        for name, text in bundle.texts()
    ]
    bundle.write(tmp_path / "ckpt")
    index = tmp_path / "ckpt.index"
    index.write_bytes(bundle_files.index_file(texts))

    with pytest.raises(errors.CheckpointError, match="keys' cannot be read"):
        checkpoint.verify(tmp_path / "ckpt")
    with pytest.raises(tf.errors.DataLossError, match="keys' cannot be read"):
        restore(trained_model(7).table, tmp_path / "ckpt")


def test_a_name_that_is_no_text_is_shown(tmp_path):
    bundle = write(trained_model(12).table, tmp_path / "ckpt")
    bundle.entries[b"nam\xff"] = bundle.entries.pop(TABLE + b"values")
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(errors.CheckpointError, match=r"name 'nam\\xff' is"):
        checkpoint.verify(tmp_path / "ckpt")


# A restore reads all that it will change before it changes anything: rows, keys
# that wait, strings, and the numbers of rules besides slots, which it read last.

STATE = TABLE + b"rule_state/momenta"


def damage_state(bundle):
    entry = bundle.entries[STATE]
    bundle.data[entry.shard_id][entry.offset] ^= 1


def name_without_text(bundle):
    bundle.entries[b"nam\xff"] = bundle.entries.pop(STATE)


def state_of_strings(bundle):
    bundle.entries[STATE].dtype = bundle_files.STRING
    bundle.replace_strings(STATE, [b"a"])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (name_without_text, r"name 'nam\\xff' is"),
        (damage_state, "momenta' .*: checksum"),
        (state_of_strings, "momenta' .* must be numbers .* it is string"),
    ],
)
def test_what_a_rule_knows_besides_slots_is_read_before_a_change(
    tmp_path, change, fault, monkeypatch
):
    # TensorFlow's reader ends the process where an index has become unreadable.
    monkeypatch.delattr(tf.compat.v1.train, "NewCheckpointReader")
    table, restored = trained_model(12).table, trained_model(7).table
    table.rule_state.bind({"momenta": tf.Variable([0.5])})
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "ckpt"))
    bundle = bundle_files.Bundle.load(path)
    restored.rule_state.bind({"momenta": tf.Variable([0.25])})
    restore(restored, tmp_path / "ckpt")
    assert restored.rule_state.values()["momenta"].numpy() == [0.5]
    restored.upsert([3], [[1.0] * restored.dim])
    before = content(restored)
    change(bundle)
    bundle.write(tmp_path / "ckpt")
    (tmp_path / "ckpt").mkdir()  # As folders of raw files may be called.

    with pytest.raises(tf.errors.DataLossError, match=fault):
        restore(restored, tmp_path / "ckpt")

    assert_same_content(content(restored), before)


def test_a_block_of_a_terabyte_is_refused(tmp_path):
    model = trained_model(12)
    write(model.table, tmp_path / "ckpt")
    index = tmp_path / "ckpt.index"
    content = index.read_bytes()[:-48]
    index.write_bytes(content + bundle_files.footer((0, 2**40)))

    with pytest.raises(
        errors.CheckpointError, match="a block of 1099511627776"
    ):
        checkpoint.verify(tmp_path / "ckpt")
    with pytest.raises(
        tf.errors.DataLossError, match="a block of 109951162777"
    ):
        restore(model.table, tmp_path / "ckpt")


def test_a_warm_start_looks_at_the_index_first(tmp_path):
    variable = de.Variable(dim=2, name="w")
    variable.upsert([1], [[1.0, 2.0]])
    index_that_says(tmp_path / "ckpt", 1)
    bundle = bundle_files.Bundle.load(tmp_path / "ckpt")
    for part in (b"keys", b"values"):
        bundle.entries[b"w_mht_1of1-" + part] = bundle.entries[b"words"]
    bundle.entries[b"words"].dtype = 107
    bundle.write(tmp_path / "ckpt")

    with pytest.raises(tf.errors.DataLossError, match="dtype is number 107"):
        de.warm_start(str(tmp_path / "ckpt"), [variable])

    assert file_variables.contents(variable) == {1: [1.0, 2.0]}


def test_a_table_of_strings_looks_at_the_index_first(tmp_path):
    module = tf.Module()
    module.table = StringTable(2, name="s", initializer="")
    module.table.upsert([1], [["a", "b"]])
    path = tf.train.Checkpoint(module=module).write(str(tmp_path / "ckpt"))
    bundle = bundle_files.Bundle.load(path)
    (name,) = [n for n in bundle.entries if n.endswith(b"/values")]
    for dim in bundle.entries[name].shape.dim:
        dim.size = 2**28
    bundle.write(path)

    with pytest.raises(tf.errors.DataLossError, match="elements cannot have"):
        tf.train.Checkpoint(module=module).read(path)

    assert module.table.export()[1].numpy().tolist() == [[b"a", b"b"]]


# A shape [2] compares as [2, 2] does, where a table has two rows of width two.


def flatten_values(path, name):
    bundle = bundle_files.Bundle.load(path)
    del bundle.entries[name].shape.dim[0]
    if bundle.entries[name].dtype == bundle_files.STRING:
        bundle.replace_strings(name, [b"p", b"q"])
    else:
        bundle.replace(name, np.array([8, 9], "<f4").tobytes())
    bundle.write(path)


def test_strings_of_another_rank_are_refused(tmp_path):
    module = tf.Module()
    module.table = StringTable(2, name="s")
    module.table.upsert([1, 2], [["a", "b"], ["c", "d"]])
    path = tf.train.Checkpoint(module=module).write(str(tmp_path / "ckpt"))
    flatten_values(path, b"module/table/.ATTRIBUTES/values")

    with pytest.raises(tf.errors.InvalidArgumentError, match="'s' do not fit"):
        tf.train.Checkpoint(module=module).read(path)

    assert int(module.table.size()) == 2


def test_rows_of_another_rank_are_refused_by_a_graph_s_saver(tmp_path):
    path = str(tmp_path / "ckpt")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        a = de.get_variable("a", dim=2)
        session.run(a.upsert([1, 2], [[1, 2], [3, 4]]))
        saver = tf.compat.v1.train.Saver([a])
        saver.save(session, path)
        flatten_values(path, b"a_mht_1of1-values")

        with pytest.raises(
            tf.errors.InvalidArgumentError, match="'a.*do not fit width 2"
        ):
            saver.restore(session, path)

        assert session.run(a.lookup([1, 2])).tolist() == [[1, 2], [3, 4]]


def test_what_keras_keeps_of_a_layer_names_no_files_elsewhere(tmp_path):
    variable = file_variables.filled()
    store = {}
    row_files.write_store(variable, store)
    target = tmp_path / "elsewhere"
    store[f"rows./../../../{target}|000000"] = np.zeros(3, np.uint8)
    store[f"rows.{'../' * 20}{target}|000000"] = np.zeros(3, np.uint8)

    row_files.read_store(variable, store)

    assert not target.exists()


# What is right is read as before.


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
def test_slices_of_rows_are_read(tmp_path, key_dtype):
    def make():
        return HashTable(2, key_dtype=key_dtype, name="t")

    table, restored = make(), make()
    keys = tf.as_string(tf.range(12)) if key_dtype == tf.string else range(12)
    table.upsert(keys, np.arange(24.0).reshape([12, 2]))
    bundle = write(table, tmp_path / "ckpt")
    names = [TABLE.decode() + part for part in ("keys", "values")]
    tensors = dict(zip(names, (key_dtype, tf.float32), strict=True))
    prefix = tf.constant(str(tmp_path / "ckpt"))
    wholes = checkpoint_ops.read(prefix, tensors=tensors)
    for name in names:
        bundle.slice_rows(name.encode(), [1, 1 + 9, 12])
    bundle.write(tmp_path / "ckpt")

    checkpoint.verify(tmp_path / "ckpt")
    restore(restored, tmp_path / "ckpt")
    slices = checkpoint_ops.read(prefix, tensors=tensors)

    for whole, read in zip(wholes, slices, strict=True):
        np.testing.assert_array_equal(whole, read)
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt"))
    np.testing.assert_array_equal(reader.get_tensor(names[1]), slices[1])
    assert_same_content(content(restored), content(table))


@pytest.mark.parametrize("dtype", [tf.float32, tf.string, tf.bool, tf.half])
def test_slices_of_parts_of_rows_are_read(tmp_path, dtype):
    whole = tf.reshape(tf.range(60), [4, 5, 3])
    whole = tf.as_string(whole) if dtype == tf.string else tf.cast(whole, dtype)
    places = [(0, 3, 0, 2), (0, 3, 2, 3), (3, 1, 0, 5)]
    prefix = str(tmp_path / "ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["x"] * len(places),
        shape_and_slices=[f"4 5 3 {a},{n}:{b},{m}:-" for a, n, b, m in places],
        tensors=[whole[a : a + n, b : b + m] for a, n, b, m in places],
    )

    checkpoint.verify(prefix)
    (read,) = checkpoint_ops.read(tf.constant(prefix), tensors={"x": dtype})

    np.testing.assert_array_equal(read, whole)


# By chance.


class Child:
    """A process that goes through cases, and is started anew behind a crash."""

    def __init__(self, folder, first, end):
        self._folder, self._next, self._end = folder, first, end
        self._failures = []
        self._tries = 0
        self._start()

    def _start(self):
        self._tries += 1
        self._work = self._folder / f"try {self._tries}"
        self._work.mkdir(parents=True)
        self._process = fresh_process.start(
            "import sys; from checkpoint.crafted_runs import main; "
            "main(*sys.argv[1:])",
            *(self._work, self._next, self._end - self._next),
        )
        self._seen, self._since = "", self._time()

    def _time(self):
        return crafted_runs.own_time(self._process.pid)

    def _case(self):
        path = self._work / "case"
        return path.read_text() if path.exists() else ""

    def poll(self):
        """Whether all cases are through."""
        case = self._case()
        if case != self._seen:
            self._seen, self._since = case, self._time()
        stalled = self._time() - self._since > STALLED
        if self._process.poll() is None and not stalled:
            return False
        self._process.kill()
        _, err = self._process.communicate()
        failures = self._work / "failures"
        if failures.exists():
            self._failures += failures.read_text().splitlines()
        if case == "done":
            return True
        how = "hangs" if stalled else f"ends with {self._process.returncode}"
        self._failures.append(f"case {case} {how}: {err[-1500:]}")
        if not case or len(self._failures) > 20:
            return True
        self._next = int(case) + 1
        if self._next == self._end:
            return True
        self._start()
        return False

    def failures(self):
        return self._failures


@pytest.mark.slow
def test_crafted_files_are_refused_or_read_and_change_nothing_else(tmp_path):
    each = CASES // PROCESSES
    children = [
        Child(tmp_path / str(i), i * each, (i + 1) * each)
        for i in range(PROCESSES)
    ]
    running = list(children)
    while running:
        time.sleep(0.2)
        running = [child for child in running if not child.poll()]

    assert [x for child in children for x in child.failures()] == []
