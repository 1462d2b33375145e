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


def embedding(optimizer=None):
    return tfembed.keras.layers.Embedding(2, optimizer=optimizer, name="rows")


def distributed(vocabulary):
    def layer(optimizer):
        table = tfembed.TableConfig(
            vocabulary, 2, optimizer=optimizer, name="users"
        )
        feature = tfembed.FeatureConfig(table, max_sequence_length=3)
        return DistributedEmbedding(feature, None, name="rows")

    return layer


def model_of(layer, optimizer="sgd"):
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense(1)
    model = keras.Sequential(
        [keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), dense]
    )
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


# Who holds the optimizer -> (optimizer) -> a model.
HOLDERS = {
    "the model": lambda one: model_of(embedding(), one),
    "the layer": lambda one: model_of(embedding(one)),
    "wrapped": lambda one: model_of(
        de.keras.layers.Embedding(2, name="rows"),
        de.DynamicEmbeddingOptimizer(one),
    ),
    "hash table": lambda one: model_of(distributed(None)(one)),
    "vocabulary": lambda one: model_of(distributed(8)(one)),
}
FUSED = ("sgd", "adagrad", "adam", "ftrl", "adam by a schedule")


def cells():
    everyday = {
        ("the model", "nadam"),
        ("the model", "fading"),
        ("the layer", "nadam"),
        ("the layer", "SGD"),
        ("wrapped", "nadam"),
        ("hash table", "adam by a schedule"),
        ("vocabulary", "SGD"),
    }
    for holder in HOLDERS:
        makers = dict(KERAS)
        if holder in ("hash table", "vocabulary"):
            makers = {name: KERAS[name] for name in FUSED}
        if holder not in ("the model", "wrapped"):
            makers |= TFEMBED
        for name, make in makers.items():
            is_slow = (holder, name) not in everyday
            yield pytest.param(
                lambda holder=holder, make=make: HOLDERS[holder](make()),
                id=f"{holder}, {name}",
                marks=[pytest.mark.slow] if is_slow else [],
            )


def train(model, steps=1):
    for _ in range(steps):
        model.train_on_batch(IDS, TARGETS)


def weights(model):
    """The looked-up rows, and the dense layer's weights."""
    rows = model.layers[0](tf.constant(IDS))
    return [np.asarray(x) for x in (rows, *model.layers[-1].get_weights())]


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


def by_checkpoint(model, make, folder, steps=0):
    path = tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
    loaded = make()
    train(loaded, steps)
    tf.train.Checkpoint(model=loaded).read(path)
    return loaded


def by_checkpoint_into_a_trained_model(model, make, folder):
    return by_checkpoint(model, make, folder, steps=2)


def by_copy(model, make, folder):
    loaded = copy.deepcopy(model)
    loaded.run_eagerly = True
    return loaded


WAYS = (
    by_keras_file,
    by_weights_file,
    by_checkpoint,
    by_checkpoint_into_a_trained_model,
    by_copy,
)


@pytest.mark.parametrize("make", cells())
def test_the_step_after_loading_is_the_step_without_it(make, tmp_path):
    model = make()
    train(model, steps=3)
    loaded = [way(model, make, tmp_path) for way in WAYS]

    train(model)

    wanted = weights(model)
    for way, one in zip(WAYS, loaded, strict=True):
        train(one)
        for found, own in zip(weights(one), wanted, strict=True):
            np.testing.assert_array_equal(found, own, err_msg=way.__name__)


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
@pytest.mark.parametrize("steps", [0, 2])
def test_optimizers_of_other_libraries_go_on_in_a_checkpoint(
    make, steps, tmp_path
):
    loop, other = Loop(make()), Loop(make())
    loop.train(3)
    other.train(steps)

    other.saver.read(loop.saver.write(str(tmp_path / "checkpoint")))

    loop.train()
    other.train()
    np.testing.assert_array_equal(other.dense, loop.dense)
    np.testing.assert_array_equal(
        other.rows.lookup(IDS[0]), loop.rows.lookup(IDS[0])
    )


def test_a_file_without_the_numbers_of_a_rule_says_that_they_begin_anew(
    tmp_path, monkeypatch
):
    make = lambda: model_of(embedding(), keras.optimizers.Nadam(0.1))  # noqa: E731
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
    np.testing.assert_array_equal(weights(trained)[0], weights(fresh)[0])


def test_a_loaded_model_that_is_saved_before_a_step_has_the_numbers(tmp_path):
    model = model_of(embedding(), keras.optimizers.Nadam(0.1))
    train(model, 3)
    loaded = by_copy(by_copy(model, None, tmp_path), None, tmp_path)

    train(model)
    train(loaded)

    np.testing.assert_array_equal(weights(loaded)[0], weights(model)[0])


def test_weights_that_are_set_leave_the_numbers_of_the_rule(tmp_path):
    model = model_of(embedding(), keras.optimizers.Nadam(0.1))
    train(model, 2)
    kept = model.get_weights()
    train(model)
    state = model.layers[0].table.table.rule_state
    (before,) = state.values().values()

    model.set_weights(kept)

    assert [before] == list(state.values().values())
