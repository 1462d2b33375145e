"""The format of docs/formats/hash_table.md, written and read by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from saved_models import assert_same_content, content, model_of, trained_model
from tfembed import optimizers
from tfembed.checkpoint import tensor_prefix
from tfembed.ops import checkpoint as checkpoint_ops

NAME = "model/table/.ATTRIBUTES"
KEYS = np.array([5, -9, 0], np.int64)
ROWS = np.arange(9, dtype=np.float32).reshape(3, 3)
LAYOUT = """\
tfembed.hash_table 1
dim 3
seed 18446744073709551574
rule adagrad
slot accumulators 0.25"""


def write(directory, **changes) -> str:
    """A checkpoint with one table; `changes` by the end of a tensor's name."""
    tensors = {
        "layout": LAYOUT,
        "keys": KEYS,
        "values": ROWS,
        "slots/accumulators": ROWS + 100,
        **changes,
    }
    tensors = {k: v for k, v in tensors.items() if v is not None}
    prefix = str(directory / "ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[f"{NAME}/{name}" for name in tensors],
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(value) for value in tensors.values()],
    )
    return prefix


def restore(table, prefix) -> str:
    layouts = checkpoint_ops.restore(
        table.handles,
        tf.constant(prefix),
        tensor_names=[NAME],
        shard_counts=[len(table.shards)],
        keep_seeds=[False],
        deal_rows=[True],
        load_slots=[True],
    )
    return layouts.numpy()[0].decode()


def test_a_table_written_by_hand_is_read(tmp_path):
    table = model_of(2).table

    layout = restore(table, write(tmp_path))

    assert layout == LAYOUT
    table.attach(optimizers.Adagrad(0.1))
    order = np.argsort(KEYS)
    expected = {
        "keys": KEYS[order],
        "values": ROWS[order],
        "accumulators": ROWS[order] + 100,
    }
    assert_same_content(content(table), expected)


@pytest.mark.parametrize("number", [2, 3])
def test_the_numbers_that_drafts_of_the_layout_had_are_read(tmp_path, number):
    table = model_of(2).table
    layout = LAYOUT.replace("table 1", f"table {number}")

    restore(table, write(tmp_path, layout=layout))

    np.testing.assert_array_equal(table.lookup(KEYS)[0], ROWS)


def test_a_saved_table_has_the_layout_of_the_page(tmp_path):
    model = trained_model(
        optimizer=optimizers.Adagrad(0.1, initial_accumulator_value=0.25),
        seed=-42,
    )
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))

    reader = tf.train.load_checkpoint(path)

    assert tensor_prefix("model/table") == NAME
    assert reader.get_tensor(f"{NAME}/layout").decode() == LAYOUT
    assert {
        name.removeprefix(f"{NAME}/"): (dtype.name, shape)
        for name, dtype in reader.get_variable_to_dtype_map().items()
        for shape in [reader.get_variable_to_shape_map()[name]]
        if name.startswith(NAME)
    } == {
        "layout": ("string", []),
        "name": ("string", []),
        "keys": ("int64", [1000]),
        "values": ("float32", [1000, 3]),
        "slots/accumulators": ("float32", [1000, 3]),
    }


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"layout": None}, tf.errors.NotFoundError, "layout.*no hash table"),
        ({"keys": None}, tf.errors.NotFoundError, "keys"),
        ({"values": None}, tf.errors.NotFoundError, "values"),
        ({"slots/accumulators": None}, tf.errors.NotFoundError, "accumulators"),
        ({"layout": 3.5}, tf.errors.InvalidArgumentError, "layout.*float"),
        (
            {"keys": ROWS},
            tf.errors.InvalidArgumentError,
            r"keys.*float \[3,3\]",
        ),
        (
            {"values": ROWS[:2]},
            tf.errors.InvalidArgumentError,
            r"values.*float \[2,3\].*takes float \[3,3\]",
        ),
        (
            {"values": ROWS.astype(np.float64)},
            tf.errors.InvalidArgumentError,
            "values.*double",
        ),
        (
            {"layout": LAYOUT.replace("table 1", "table 4")},
            tf.errors.InvalidArgumentError,
            "hash_table 4'; this release reads 'tfembed.hash_table 1'",
        ),
        (
            {"layout": LAYOUT.replace("dim 3", "dim x")},
            tf.errors.InvalidArgumentError,
            "line 'dim x'",
        ),
        (
            {"layout": LAYOUT + "\nnew 1"},
            tf.errors.InvalidArgumentError,
            "line 'new 1'",
        ),
        (
            {"layout": LAYOUT.replace("dim 3", "dim 4")},
            tf.errors.InvalidArgumentError,
            "width 4.*`dim` is 3",
        ),
    ],
)
def test_other_content_is_refused_and_named(tmp_path, changes, error, text):
    prefix = write(tmp_path, **changes)
    table = trained_model(5).table
    before = content(table)

    with pytest.raises(
        error, match=f"(?s)'user'.*{prefix}.*{text}|'user'.*{text}"
    ):
        restore(table, prefix)

    assert_same_content(content(table), before)
