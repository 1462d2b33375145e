"""The step after a file was loaded is the step without the interruption.

The kind: what an update rule knows besides a row's slots (Nadam's product of
momenta, counts of steps, numbers of a user's own) must be in the files that have
the slots. Tried for every optimizer of Keras, tf_keras, its legacy ones,
tf.compat.v1 and tfembed that trains tables, one of a user's own, both layers,
`dynamic_embedding`'s, and every kind of file.
"""

from __future__ import annotations

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfembed
import tfembed.dynamic_embedding as de
from tfembed.keras.layers import DistributedEmbedding

IDS = np.array([[1, 2, 3], [2, 3, 4]])
TARGETS = np.array([[1.0], [2.0]], np.float32)


@keras.saving.register_keras_serializable()
class Fading(keras.optimizers.Optimizer):
    """A user's own, whose steps become shorter by a number of its own."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.gain = self.add_variable((), "ones", name="gain")

    def _backend_update_step(self, gradients, variables, rate):
        self.assign(self.gain, self.gain * 0.8)
        super()._backend_update_step(gradients, variables, rate)

    def update_step(self, gradient, variable, rate):
        self.assign_sub(variable, rate * self.gain * gradient)


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def of_keras(name, **options):
    return lambda: getattr(keras.optimizers, name)(0.1, **options)


KERAS = {
    "nadam": of_keras("Nadam"),
    "fading": lambda: Fading(0.1),
    "adam by a schedule": lambda: keras.optimizers.Adam(schedule()),
    "sgd": of_keras("SGD"),
    "momentum": of_keras("SGD", momentum=0.9, nesterov=True),
    "decayed sgd": of_keras("SGD", weight_decay=0.1),
    "adagrad": of_keras("Adagrad"),
    "adam": of_keras("Adam"),
    "amsgrad": of_keras("Adam", amsgrad=True),
    "adamw": of_keras("AdamW"),
    "adamax": of_keras("Adamax"),
    "adadelta": of_keras("Adadelta"),
    "ftrl": of_keras("Ftrl"),
    "lion": of_keras("Lion"),
    "rmsprop": of_keras("RMSprop", centered=True, momentum=0.5),
    "nadam by a schedule": lambda: keras.optimizers.Nadam(schedule()),
}
TFEMBED = {
    name: lambda name=name: getattr(tfembed, name)(learning_rate=schedule())
    for name in (
        *("SGD", "Adadelta", "Adagrad", "AdagradMomentum", "Adam"),
        *("CenteredRMSProp", "FTRL", "Lion", "Momentum", "ProximalAdagrad"),
        *("RMSProp", "RowWiseAdagrad", "Yogi"),
    )
}


def embedding(optimizer=None, name="rows"):
    return tfembed.keras.layers.Embedding(2, optimizer=optimizer, name=name)


def distributed(vocabulary):
    def layer(optimizer, name):
        table = tfembed.TableConfig(
            vocabulary, 2, optimizer=optimizer, name=f"users of {name}"
        )
        feature = tfembed.FeatureConfig(table, max_sequence_length=3)
        return DistributedEmbedding(feature, None, name=name)

    return layer


def model_of(*layers, optimizer="sgd"):
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int64")
    rows = [layer(ids) for layer in layers]
    joined = rows[0] if len(rows) == 1 else keras.layers.Concatenate()(rows)
    flat = keras.layers.Flatten()(joined)
    model = keras.Model(ids, keras.layers.Dense(1)(flat))
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def of_layers(layer):
    """A model with a layer for each of several optimizers."""
    return lambda makers: model_of(
        *(
            layer(make(), f"rows by {name}".replace(" ", "_"))
            for name, make in makers.items()
        )
    )


def of_one(layer, wrap=lambda one: one):
    """A model that has the only optimizer."""

    def model(makers):
        (make,) = makers.values()
        return model_of(layer(), optimizer=wrap(make()))

    return model


# Who holds the optimizers -> (name -> optimizer) -> a model.
HOLDERS = {
    "the model": of_one(embedding),
    "wrapped": of_one(
        lambda: de.keras.layers.Embedding(2, name="rows"),
        de.DynamicEmbeddingOptimizer,
    ),
    "the layer": of_layers(embedding),
    "hash table": of_layers(distributed(None)),
    "vocabulary": of_layers(distributed(8)),
}
FUSED = ("sgd", "adagrad", "adam", "ftrl", "adam by a schedule")
EVERYDAY = {
    "the model": ("nadam", "fading"),
    "wrapped": ("nadam",),
    "the layer": ("nadam", "SGD"),
    "hash table": ("adam by a schedule",),
    "vocabulary": ("SGD",),
}


def cells():
    for holder, everyday in EVERYDAY.items():
        is_fused = holder in ("hash table", "vocabulary")
        names = FUSED if is_fused else tuple(KERAS)
        if holder in ("the model", "wrapped"):
            for name in names:
                yield cell(holder, name, (name,), name not in everyday)
            continue
        rest = [one for one in (*names, *TFEMBED) if one not in everyday]
        yield cell(holder, " and ".join(everyday), everyday, False)
        yield cell(holder, f"{len(rest)} others", rest, True)


def cell(holder, title, names, is_slow):
    makers = {name: (KERAS | TFEMBED)[name] for name in names}
    return pytest.param(
        lambda: HOLDERS[holder](makers),
        id=f"{holder}, {title}",
        marks=[pytest.mark.slow] if is_slow else [],
    )


def train(model, steps=1):
    for _ in range(steps):
        model.train_on_batch(IDS, TARGETS)


def weights(model):
    """The looked-up rows of each layer, and the dense layer's weights."""
    ids = tf.constant(IDS)
    rows = {one.name: one(ids) for one in model.layers if "rows" in one.name}
    kernel, bias = model.layers[-1].get_weights()
    return {**rows, "kernel": kernel, "bias": bias}


def check(model, wanted, way):
    found = weights(model)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_array_equal(
            found[name], value, err_msg=f"{way}: {name}"
        )


def by_keras_file(model, make, folder):
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    loaded.run_eagerly = True
    return loaded


def by_weights_file(model, make, folder):
    model.save_weights(folder / "model.weights.h5")
    loaded = make()
    # Keras leaves out the state of an optimizer that is not built.
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(folder / "model.weights.h5")
    return loaded


def by_checkpoint(model, make, folder):
    path = tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
    loaded = make()
    tf.train.Checkpoint(model=loaded).read(path)
    return loaded


def by_copy(model, make, folder):
    loaded = copy.deepcopy(model)
    loaded.run_eagerly = True
    return loaded


WAYS = (by_keras_file, by_weights_file, by_checkpoint, by_copy)


@pytest.mark.parametrize("make", cells())
def test_the_step_after_loading_is_the_step_without_it(make, tmp_path):
    model = make()
    train(model, steps=2)
    loaded = {way.__name__: way(model, make, tmp_path) for way in WAYS}

    train(model)

    wanted = weights(model)
    for way, one in loaded.items():
        train(one)
        check(one, wanted, way)
    trained = loaded["by_weights_file"]
    tf.train.Checkpoint(model=trained).read(str(tmp_path / "checkpoint"))
    train(trained)
    check(trained, wanted, "by_checkpoint into a trained model")


V1 = tf.compat.v1.train
LEGACY = tf_keras.optimizers.legacy
OTHERS = {
    "tf_keras Nadam": lambda: tf_keras.optimizers.Nadam(0.1),
    "legacy Nadam": lambda: LEGACY.Nadam(0.1),
    "v1 Momentum": lambda: V1.MomentumOptimizer(0.1, 0.9),
    **{
        f"tf_keras {name}": lambda name=name: getattr(
            tf_keras.optimizers, name
        )(0.1)
        for name in (
            *("SGD", "Adagrad", "Adam", "AdamW", "Adamax", "Adadelta"),
            *("Ftrl", "Lion", "RMSprop"),
        )
    },
    **{
        f"legacy {name}": lambda name=name: getattr(LEGACY, name)(0.1)
        for name in (
            *("SGD", "Adagrad", "Adam", "Adamax", "Adadelta", "Ftrl"),
            *("RMSprop",),
        )
    },
    **{
        f"v1 {name}": lambda name=name: getattr(V1, f"{name}Optimizer")(0.1)
        for name in (
            *("GradientDescent", "Adagrad", "Adam", "Adadelta", "Ftrl"),
            *("RMSProp", "ProximalAdagrad", "ProximalGradientDescent"),
        )
    },
}


class Loop:
    """A loop over a variable without a layer and a dense one."""

    def __init__(self, optimizer):
        self.rows = de.Variable(dim=2, initializer=1.0, name="rows")
        self.dense = tf.Variable([0.5, 0.2])
        self.optimizer = de.DynamicEmbeddingOptimizer(optimizer)
        self.saver = tf.train.Checkpoint(
            rows=self.rows, dense=self.dense, optimizer=self.optimizer
        )

    def train(self, steps=1):
        for _ in range(steps):
            with tf.GradientTape() as tape:
                rows, source = de.embedding_lookup(
                    self.rows, IDS[0], return_trainable=True, name="lookup"
                )
                loss = tf.reduce_sum((rows + self.dense) ** 2)
            sources = [source, self.dense]
            gradients = tape.gradient(loss, sources)
            self.optimizer.apply_gradients(zip(gradients, sources, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[] if i < 3 else [pytest.mark.slow])
        for i, (name, make) in enumerate(OTHERS.items())
    ],
)
def test_optimizers_of_other_libraries_go_on_in_a_checkpoint(make, tmp_path):
    loop, fresh, trained = Loop(make()), Loop(make()), Loop(make())
    loop.train(3)
    trained.train(2)

    path = loop.saver.write(str(tmp_path / "checkpoint"))
    for one in (fresh, trained):
        one.saver.read(path)

    for one in (loop, fresh, trained):
        one.train()
    for one in (fresh, trained):
        np.testing.assert_array_equal(one.dense, loop.dense)
        np.testing.assert_array_equal(
            one.rows.lookup(IDS[0]), loop.rows.lookup(IDS[0])
        )


def test_a_file_without_the_numbers_of_a_rule_says_that_they_begin_anew(
    tmp_path, monkeypatch
):
    def make():
        optimizer = keras.optimizers.Nadam(0.1)
        return model_of(embedding(), optimizer=optimizer)

    model = make()
    train(model, 3)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            tfembed.tables.rule_state.RuleState, "values", lambda self: {}
        )
        path = tf.train.Checkpoint(model=model).write(str(tmp_path / "c"))

    fresh, trained = make(), make()
    tf.train.Checkpoint(model=fresh).read(path)
    with pytest.warns(UserWarning, match="rows.*begin anew"):
        train(fresh)

    train(trained, 2)
    with pytest.warns(UserWarning, match="rows.*begin anew"):
        tf.train.Checkpoint(model=trained).read(path)
    train(trained)
    check(trained, weights(fresh), "begun anew")


def test_a_loaded_model_that_is_saved_before_a_step_has_the_numbers(tmp_path):
    model = model_of(embedding(), optimizer=keras.optimizers.Nadam(0.1))
    train(model, 3)
    loaded = by_copy(by_copy(model, None, tmp_path), None, tmp_path)

    train(model)
    train(loaded)

    check(loaded, weights(model), "two copies")


def test_weights_that_are_set_leave_the_numbers_of_the_rule(tmp_path):
    model = model_of(embedding(), optimizer=keras.optimizers.Nadam(0.1))
    train(model, 2)
    kept = model.get_weights()
    train(model)
    state = model.layers[1].table.table.rule_state
    (before,) = state.values().values()

    model.set_weights(kept)

    assert [before] == list(state.values().values())
