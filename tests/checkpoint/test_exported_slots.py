"""The slots of optimizers in SavedModels, which serve, and in checkpoints."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from tfembed.saved.saved_tables import open_saved


def _trained_module():
    table = tfembed.HashTable(
        4, name="t", eviction=tfembed.policies.LeastFrequent()
    )
    table.attach(tfembed.Adam(0.1))
    table.apply_gradients([1, 2, 3], tf.ones([3, 4]))
    module = tf.Module()
    module.table = table
    module.serve = tf.function(
        table.lookup, input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    return module


def _only_table(path):
    (table,) = open_saved(path).values()
    return table


def test_a_saved_model_has_no_slots_and_the_next_checkpoint_has(tmp_path):
    module = _trained_module()

    tf.saved_model.save(module, str(tmp_path / "served"))
    checkpoint = tf.train.Checkpoint(model=module)
    path = checkpoint.save(str(tmp_path / "ckpt"))

    exported = _only_table(tmp_path / "served")
    assert exported.slot_names == ()
    assert exported.num_rows == 3
    assert exported.num_bytes["counters"] > 0
    assert len(_only_table(path).slot_names) == 2


def test_rows_of_a_saved_model_begin_with_initial_slots_in_training(tmp_path):
    module, other = _trained_module(), _trained_module()
    tf.saved_model.save(module, str(tmp_path / "served"))

    saved = tf.train.Checkpoint(table=other.table)
    saved.restore(str(tmp_path / "served/variables/variables"))

    keys, slots = other.table.export_slots()
    assert sorted(keys.numpy()) == [1, 2, 3]
    assert len(slots) == 2
    for slot in slots.values():
        assert not tf.reduce_any(slot != 0)


def test_a_checkpoint_after_a_failed_export_has_its_slots(tmp_path):
    module = _trained_module()
    (tmp_path / "file").write_text("")

    with pytest.raises(tf.errors.OpError):
        tf.saved_model.save(module, str(tmp_path / "file" / "served"))
    path = tf.train.Checkpoint(model=module).save(str(tmp_path / "ckpt"))

    assert len(_only_table(path).slot_names) == 2
