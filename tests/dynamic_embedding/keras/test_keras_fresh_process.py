"""Saved and exported models in a process of their own."""

from __future__ import annotations

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from dynamic_embedding.trained_models import trained
from keras_models import batches
from tfembed.dynamic_embedding.keras import layers


@keras.saving.register_keras_serializable("tests")
def parity(ids):
    return ids % 2


@keras.saving.register_keras_serializable("tests")
class Tower(keras.Model):
    """A subclassed model."""

    def __init__(self, **options):
        super().__init__(**options)
        self.users = layers.Embedding(4, name="users")
        self.fields = layers.FieldWiseEmbedding(4, 2, parity, name="fields")
        self.out = keras.layers.Dense(1)

    def call(self, ids):
        rows = tf.concat([self.users(ids), self.fields(ids)], 1)
        return self.out(tf.reduce_sum(rows, 1))


# Loads what the fixture below has saved; the first load has no more imports
# than a user would make.
_FRESH = """
    import json, sys
    import keras, numpy, tensorflow as tf, tfembed
    folder, tests = sys.argv[1:]
    ids = numpy.arange(80).reshape(-1, 2)
    model = keras.saving.load_model(f"{folder}/model.keras")
    served = tf.saved_model.load(f"{folder}/served")
    sys.path.insert(0, tests)
    import test_keras_fresh_process
    tower = keras.saving.load_model(f"{folder}/tower.keras")
    steps = [int(m.optimizer.iterations) for m in (model, tower)]
    values = [model(ids), served.serve(ids), tower(ids)]
    print(json.dumps([steps, [v.numpy().ravel().tolist() for v in values]]))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Steps and predictions of two models, here and in a fresh process."""
    folder = tmp_path_factory.mktemp("models")
    model, tower = trained(devices=["/CPU:0"] * 2), Tower()
    tower.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01)), loss="mse"
    )
    tower.fit(batches(), verbose=0)
    model.save(folder / "model.keras")
    model.export(folder / "served", verbose=False)
    tower.save(folder / "tower.keras")
    ids = np.arange(80).reshape(-1, 2)
    expected = [each(ids).numpy().ravel() for each in (model, model, tower)]
    out = fresh_process.output_of(_FRESH, folder, pathlib.Path(__file__).parent)
    steps, values = json.loads(out.strip().splitlines()[-1])
    return steps, [np.float32(v) for v in values], expected


def test_importing_tfembed_is_enough_to_load_a_model(fresh):
    steps, values, expected = fresh

    assert steps[0] == 8
    np.testing.assert_allclose(values[0], expected[0], rtol=1e-6)


def test_an_exported_model_serves_in_a_fresh_process(fresh):
    _, values, expected = fresh

    np.testing.assert_allclose(values[1], expected[1], rtol=1e-6)


def test_a_subclassed_model_with_two_tables_loads_in_a_fresh_process(fresh):
    steps, values, expected = fresh

    assert steps[1] == 4
    np.testing.assert_allclose(values[2], expected[2], rtol=1e-5, atol=1e-7)
