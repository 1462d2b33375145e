"""The private TensorFlow symbols that saving uses are there."""

from __future__ import annotations

import tensorflow as tf

from saved_models import model_of
from tfembed.checkpoint import private
from tfembed.tables import StringTable


def test_one_saver_is_registered_for_tables_alone():
    from tensorflow.python.saved_model import registration

    model = model_of()

    name = registration.get_registered_saver_name

    assert name(model.table) == "tfembed.HashTable"
    assert name(StringTable(1, name="strings")) == "tfembed.HashTable"
    assert name(model.bias) is None


def test_exporting_is_known_while_a_saved_model_is_written(tmp_path):
    seen = []

    class Watched(tf.Module):
        @tf.function(input_signature=[])
        def call(self):
            return tf.constant(1)

        def _trackable_children(self, save_type="checkpoint", **kwargs):
            if save_type == "savedmodel":
                seen.append(private.exporting_saved_model())
            return super()._trackable_children(save_type, **kwargs)

    tf.saved_model.save(Watched(), str(tmp_path / "model"))

    assert True in seen
    assert not private.exporting_saved_model()


def test_a_saver_of_tensorflow_1_saves_what_our_saveable_tells(tmp_path):
    class Three(private.SaveableObject):
        def restore(self, restored_tensors, restored_shapes):
            return tf.group(*restored_tensors)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        spec = private.SaveSpec(
            lambda: tf.constant(3.0),
            "",
            "three",
            dtype=tf.float32,
            device="/CPU:0",
        )
        saver = tf.compat.v1.train.Saver([Three(None, [spec], "saved")])
        path = saver.save(session, str(tmp_path / "ckpt"))

    assert tf.train.load_checkpoint(path).get_tensor("three") == 3.0
