"""Slots of one float a row: row-wise Adagrad in hash tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.tables import HashTable

DIM = 8
RULE = optimizers.RowWiseAdagrad(0.5)


def make(shards=1, rule=RULE):
    table = HashTable(
        DIM, name="users", initializer=1, devices=["/CPU:0"] * shards
    )
    if rule is not None:
        table.attach(rule)
    return table


def trained(shards=1):
    table = make(shards)
    table.apply_gradients([3, -4, 3], tf.ones([3, DIM]))
    return table


def slots_of(table):
    keys, slots = table.export_slots()
    return dict(
        zip(keys.numpy().tolist(), slots["accumulators"].numpy(), strict=True)
    )


@pytest.mark.parametrize("shards", [1, 3])
def test_a_row_has_one_accumulator(shards):
    table = trained(shards)
    assert table.slot_widths == (1,)
    assert {k: s.tolist() for k, s in slots_of(table).items()} == {
        3: [4.0],
        -4: [1.0],
    }
    rows = table.lookup([3, -4])[0].numpy()
    np.testing.assert_allclose(rows, 0.5, rtol=1e-6)


def test_bytes_are_those_of_a_row_and_one_float():
    # Slabs are large: what a row takes shows in the differences.
    def slot_bytes(rule):
        table = make(rule=rule)
        table.apply_gradients(list(range(100)), tf.ones([100, DIM]))
        return table.stats().slot_bytes

    assert slot_bytes(RULE) == 100 * 4
    assert slot_bytes(optimizers.Adagrad(0.5)) == 100 * 4 * DIM


def test_a_filled_table_takes_the_slot():
    table = make(rule=None)
    table.upsert([1, 2], tf.ones([2, DIM]))
    table.attach(RULE)
    table.apply_gradients([1], tf.ones([1, DIM]))
    assert {k: s.tolist() for k, s in slots_of(table).items()} == {
        1: [1.0],
        2: [0.0],
    }


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 1), (1, 2)])
def test_checkpoints_keep_it(tmp_path, before, after):
    path = tf.train.Checkpoint(table=trained(before)).save(str(tmp_path / "c"))
    shapes = dict(tf.train.list_variables(path))
    assert shapes["table/.ATTRIBUTES/slots/accumulators"] == [2, 1]
    for rule in (RULE, None):
        table = make(after, rule)
        tf.train.Checkpoint(table=table).restore(path)
        assert table.slot_widths == (1,)
        assert slots_of(table)[3].tolist() == [4.0]


def test_a_checkpoint_of_an_empty_table_restores(tmp_path):
    path = tf.train.Checkpoint(table=make()).save(str(tmp_path / "c"))
    table = trained()
    tf.train.Checkpoint(table=table).restore(path)
    assert table.size().numpy() == 0


def test_value_and_slot_are_written_together():
    table = trained()
    assert table.trained_width == DIM + 1
    full = table.lookup_trained(tf.constant([3], tf.int64))
    assert full.shape == [1, DIM + 1]
    table.write_trained(tf.constant([7], tf.int64), full, add=False)
    assert slots_of(table)[7].tolist() == [4.0]


def test_a_rule_of_whole_slots_is_another_one(tmp_path):
    with pytest.raises(errors.ArgumentError, match="row_wise_adagrad"):
        trained().attach(optimizers.Adagrad(0.5))
    path = tf.train.Checkpoint(table=trained()).save(str(tmp_path / "c"))
    table = make(rule=optimizers.Adagrad(0.5))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="slots of 'row_wise_adagrad'"
    ):
        tf.train.Checkpoint(table=table).restore(path)
