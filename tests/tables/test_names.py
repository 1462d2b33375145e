"""A table has no name that a file or a terminal takes for another.

A NUL ends the name of a file: rows were saved nowhere. Names are given to tables,
Variables, configs of three kinds, embeddings and Keras layers; names of files, to
saves.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.tables import StringTable

MAKERS = {
    "HashTable": lambda name: tfembed.HashTable(2, name=name),
    "StringTable": lambda name: StringTable(2, name=name),
    "Variable": lambda name: de.Variable(dim=2, name=name),
    "get_variable": lambda name: de.get_variable(name, dim=2),
    "TableConfig": lambda name: tfembed.TableConfig(4, 2, name=name),
    "TensorFlow's": lambda name: tfembed.TPUEmbedding(
        tfembed.FeatureConfig(
            tf.tpu.experimental.embedding.TableConfig(4, 2, name=name)
        ),
        tfembed.SGD(0.1),
    ),
    "keras-rs'": lambda name: tfembed.keras.layers.TableConfig(name, 4, 2),
    "Embedding": lambda name: tfembed.keras.layers.Embedding(2, name=name),
    "TFRA's": lambda name: de.keras.layers.Embedding(2, name=name),
}


@pytest.mark.parametrize(
    "name", ["a\0b", "a\nb", "\x1b[2Ja", "a\u2028", "\x9b"]
)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_name_with_control_characters_is_refused_where_it_is_given(
    maker, name
):
    with pytest.raises(errors.ArgumentError, match="no control characters"):
        MAKERS[maker](name)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_name_of_any_script_is_taken(maker):
    MAKERS[maker]("modèle 用户-1.a")


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\x7f", "a/b", ""])
def test_a_save_refuses_such_a_name_of_a_file(tmp_path, name):
    table = de.Variable(dim=2, name="t")
    table.upsert([1], [[1.0, 2.0]])

    with pytest.raises(tf.errors.InvalidArgumentError, match="no control char"):
        table.save_to_file_system(tmp_path, file_name_list=[name])
    assert not list(tmp_path.iterdir())
