"""tf_keras models that look up in a `Variable`: the kind of test_bare_tables."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.keras.test_bare_tables import (
    IDS,
    LABELS,
    NOT_TRAINED,
    bags,
    fit,
    is_trained,
    table,
)

tf_keras = pytest.importorskip("tf_keras")
OPTIMIZERS = pytest.mark.parametrize(
    "make_optimizer",
    [tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD],
    ids=["SGD", "legacy SGD"],
)


class Bags(tf_keras.layers.Layer):
    def __init__(self, films):
        super().__init__()
        self.films = films

    def call(self, ids):
        return bags(self.films, ids)


class Subclassed(tf_keras.Model):
    def __init__(self, films):
        super().__init__()
        self.films = films
        self.out = tf_keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids):
        return self.out(bags(self.films, ids))


class OwnStep(Subclassed):
    def variables_of_step(self):
        return self.trainable_variables

    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(ids, training=True) - labels) ** 2)
        self.optimizer.minimize(loss, self.variables_of_step(), tape=tape)
        return {"loss": loss}


class ChoosesVariables(OwnStep):
    def variables_of_step(self):
        return self.out.trainable_variables[:1]


class ByShadow(Subclassed):
    def __init__(self, films):
        super().__init__(films)
        self.shadow = de.shadow_ops.ShadowVariable(films)

    def call(self, ids):
        rows = de.shadow_ops.embedding_lookup(self.shadow, ids)
        return self.out(tf.reduce_sum(rows, 1))


def functional(films, layer=None):
    ids = tf_keras.Input((2,), dtype="int64")
    rows = (layer or Bags(films))(ids)
    out = tf_keras.layers.Dense(1, kernel_initializer="ones")(rows)
    return tf_keras.Model(ids, out)


def by_lambda(films):
    return functional(films, tf_keras.layers.Lambda(lambda i: bags(films, i)))


MODELS = {
    "subclassed": Subclassed,
    "train_step": OwnStep,
    "shadow": ByShadow,
    "functional": functional,
    "Lambda": by_lambda,
}


@OPTIMIZERS
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_fit_trains_what_a_model_looks_up(make, make_optimizer):
    films = table()
    fit(make(films), de.DynamicEmbeddingOptimizer(make_optimizer(0.1)))
    assert is_trained(films)


def test_fit_trains_it_eagerly_too():
    films = table()
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.SGD(0.1))
    fit(Subclassed(films), optimizer, run_eagerly=True)
    assert is_trained(films)


@OPTIMIZERS
@pytest.mark.parametrize("make", [Subclassed, functional, by_lambda])
def test_an_optimizer_that_trains_no_tables_is_told(make, make_optimizer):
    films = table()
    with pytest.warns(UserWarning, match=NOT_TRAINED):
        fit(make(films), make_optimizer(0.1))
    assert int(films.size()) == 0


@pytest.mark.parametrize("wrap", [de.DynamicEmbeddingOptimizer, lambda o: o])
def test_a_layer_that_is_frozen_leaves_its_table_alone(wrap):
    films = table()
    layer = Bags(films)
    layer.trainable = False
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(not train|radient)")
        fit(functional(films, layer), wrap(tf_keras.optimizers.SGD(0.1)))
    assert int(films.size()) == 0


def test_a_step_that_chooses_its_variables_moves_no_others():
    films = table()
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.SGD(0.1))
    model = ChoosesVariables(films)
    fit(model, optimizer)
    assert int(films.size()) == 0
    assert not np.allclose(model.out.kernel, 1)
    assert len(IDS) == len(LABELS)
