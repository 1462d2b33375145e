"""`ShadowVariable` in checkpoints and exports."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.shadows import contents, keys, shadow_ops, shadowed


@pytest.fixture(autouse=True)
def train_mode():
    yield
    de.enable_train_mode()


def test_the_table_alone_is_in_a_checkpoint(tmp_path):
    v, shadow = shadowed()
    v.upsert([1], [[1.0, 2.0]])
    shadow_ops.embedding_lookup(shadow, [1])
    saved = tf.train.Checkpoint(shadow=shadow).save(tmp_path / "c")
    names = [name for name, _ in tf.train.list_variables(saved)]
    assert not any("ids" in name or "rows" in name for name in names)

    other, shadow = shadowed()
    tf.train.Checkpoint(shadow=shadow).restore(saved)
    assert contents(other) == {1: [1, 2]}


def test_a_saved_model_looks_rows_up_through_a_shadow(tmp_path):
    module = tf.Module()
    module.v, module.shadow = shadowed()
    module.v.upsert([1], [[1.0, 2.0]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(ids):
        return shadow_ops.embedding_lookup(module.shadow, ids)

    module.serve = serve
    shadow_ops.embedding_lookup(module.shadow, keys(1, 2))
    tf.saved_model.save(module, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.serve(keys(1, 9)).numpy().tolist() == [[1, 2], [0, 0]]


def test_a_saved_model_may_read_the_value_of_a_shadow(tmp_path):
    module = tf.Module()
    module.v, module.shadow = shadowed()
    shadow_ops.embedding_lookup(module.shadow, keys(1, 2))
    module.value = tf.function(module.shadow.value, input_signature=[])
    tf.saved_model.save(module, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.value().shape == (0, 2)
    assert module.shadow.value().shape == (2, 2)


def test_an_export_has_no_rows_of_a_lookup_and_leaves_the_shadow_alone(
    tmp_path,
):
    class Served(tf.Module):
        def __init__(self):
            self.table = de.Variable(dim=2, initializer=0.5, name="table")
            self.rows = de.shadow_ops.ShadowVariable(self.table, "rows")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, ids):
            return de.shadow_ops.embedding_lookup(self.rows, ids)

    module = Served()
    keys = tf.constant([3, 1, 3], tf.int64)
    de.shadow_ops.embedding_lookup(module.rows, keys)

    tf.saved_model.save(module, str(tmp_path))

    assert module.rows.ids.numpy().tolist() == [3, 1, 3]
    value = module.rows.read_value(do_prefetch=False)
    assert value.numpy().tolist() == [[0.5, 0.5]] * 3
    saved = tf.train.load_checkpoint(str(tmp_path / "variables" / "variables"))
    shapes = saved.get_variable_to_shape_map()
    found = {k: shapes[k][0] for k in shapes if k.startswith("rows/")}
    assert found == dict.fromkeys(found, 0)
    assert len(found) == 3
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded(keys).numpy().tolist() == [[0.5, 0.5]] * 3
