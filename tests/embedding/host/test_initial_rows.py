"""Initializers and checkpoints that do not give what a table needs."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed

KINDS = [tfembed.TPUEmbedding, tfembed.TPUEmbeddingV0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("initializer", "text"),
    [
        (lambda shape: tf.zeros(shape), "called as initializer.shape, dtype"),
        (
            lambda shape, dtype: tf.zeros([3, 2]),
            "float32 .4, 2.*cannot be made",
        ),
        (lambda shape, dtype: tf.zeros(shape, tf.float64), "dtype float32"),
    ],
)
def test_build_an_initializer_that_gives_something_else(
    initializer, text, kind
):
    table = tfembed.TableConfig(4, 2, initializer, name="users")
    embedding = kind(tfembed.FeatureConfig(table), tfembed.SGD(1.0))
    with pytest.raises(ValueError, match=f"'users'.*{text}"):
        embedding.build()


@pytest.mark.parametrize("kind", KINDS)
def test_build_a_table_of_another_size_than_the_checkpoints(tmp_path, kind):
    def made(rows):
        table = tfembed.TableConfig(rows, 2, name="users")
        return kind(tfembed.FeatureConfig(table), None)

    saved, other = made(4), made(5)
    saved.build()
    path = tf.train.Checkpoint(embedding=saved).save(tmp_path / "saved")
    tf.train.Checkpoint(embedding=other).restore(path)
    with pytest.raises(ValueError, match=r"'users', float32 \[5, 2\].*4, 2"):
        other.build()
