"""Files of tfembed that are loaded by a program that did not import tfembed."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import fresh_process
import tfembed
from tfembed import dynamic_embedding as de

LOADS = """
    import sys
    import keras
    import tensorflow as tf

    folder = sys.argv[1]

    def restore():
        checkpoint = tf.train.Checkpoint(users=tf.Module())
        checkpoint.restore(f"{folder}/ckpt-1").assert_consumed()

    for load in (
        lambda: keras.saving.load_model(f"{folder}/model.keras"),
        lambda: tf.saved_model.load(f"{folder}/saved"),
        restore,
    ):
        try:
            load()
            print("no error")
        except Exception as error:
            print(str(error).replace(chr(10), " "))
    assert "tfembed" not in sys.modules
"""


@pytest.mark.slow
def test_the_error_of_each_names_tfembed(tmp_path):
    layer = de.keras.layers.Embedding(2, name="users")
    model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
    model.save(tmp_path / "model.keras")
    module = tf.Module()
    module.table = tfembed.HashTable(2, name="users")
    module.look_up = tf.function(
        lambda keys: module.table.lookup(keys)[0],
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"))
    tf.train.Checkpoint(users=module.table).save(str(tmp_path / "ckpt"))

    result = fresh_process.run(LOADS, tmp_path, new_interpreter=True)

    assert result.returncode == 0, result.stderr
    of_keras, of_saved_model, of_checkpoint = result.stdout.splitlines()
    assert "tfembed>Embedding" in of_keras
    assert "Make sure" in of_keras
    assert "Tfembed>" in of_saved_model
    # TensorFlow only warns of a saver that it does not know; the mark beside a
    # table has it count the rows as missing.
    assert "tfembed.HashTable was not found" in result.stderr
    assert "Unresolved object in checkpoint (root).users.mark" in of_checkpoint
