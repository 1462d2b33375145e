"""Models of tf_keras, which `fit` trains by a wrapped optimizer of tf_keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import documents
import fresh_process
import tfembed.dynamic_embedding as de
from cpu_replicas import mirrored
from tfembed import errors

tf_keras = pytest.importorskip("tf_keras")
OPTIMIZERS = pytest.mark.parametrize(
    "make",
    [
        tf_keras.optimizers.legacy.Adam,
        tf_keras.optimizers.legacy.Nadam,
        tf_keras.optimizers.Adam,
    ],
    ids=["legacy Adam", "legacy Nadam", "Adam"],
)
IDS = np.array([[1], [2], [3], [10**15]] * 8)
LABELS = np.array([[1.0], [2.0], [3.0], [4.0]] * 8)


class ByShadow(tf_keras.Model):
    """Looks up through a shadow, as a model of TFRA's users does."""

    def __init__(self):
        super().__init__()
        self.table = de.Variable(dim=4, initializer=0.1, name="t")
        self.shadow = de.shadow_ops.ShadowVariable(self.table)
        self.out = tf_keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids):
        return self.out(de.shadow_ops.embedding_lookup(self.shadow, ids[:, 0]))


class ByLayer(tf_keras.Model):
    """Has a layer of tfembed."""

    def __init__(self):
        super().__init__()
        self.layer = de.keras.layers.Embedding(4, initializer=0.1, name="by")
        self.table = self.layer.params
        self.out = tf_keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids):
        return self.out(self.layer(ids)[:, 0, :])


def compiled(model, make, **options):
    optimizer = de.DynamicEmbeddingOptimizer(make(0.05))
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model


def fit(model, epochs=20, **options):
    history = model.fit(
        IDS,
        LABELS,
        batch_size=4,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        **options,
    )
    return history.history["loss"]


@OPTIMIZERS
@pytest.mark.parametrize("model", [ByShadow, ByLayer])
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_trains_tables_and_dense_weights(model, make, run_eagerly):
    model = compiled(model(), make, run_eagerly=run_eagerly)
    epochs = 4 if run_eagerly else 20

    losses = fit(model, epochs)

    assert losses[-1] < losses[0] / (1.5 if run_eagerly else 20)
    assert int(model.table.size()) == 4
    assert int(model.optimizer.iterations) == 8 * epochs
    rows = model.table.lookup(IDS[:4, 0]).numpy()
    assert len(np.unique(rows[:, 0])) == 4


@OPTIMIZERS
def test_a_callback_sets_the_learning_rate(make):
    model = compiled(ByShadow(), make)
    callback = tf_keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
    fit(model, 1)
    before = model.table.lookup([1]).numpy()

    fit(model, 1, callbacks=[callback])

    np.testing.assert_array_equal(model.table.lookup([1]), before)
    assert float(model.optimizer.learning_rate) == 0


@OPTIMIZERS
@pytest.mark.parametrize("model", [ByShadow, ByLayer])
def test_saved_weights_go_on_where_they_were(model, make, tmp_path):
    saved = compiled(model(), make)
    fit(saved, 3)
    saved.save_weights(tmp_path / "weights", save_format="tf")
    expected = fit(saved, 1)

    restored = compiled(model(), make)
    restored.load_weights(tmp_path / "weights")

    np.testing.assert_allclose(fit(restored, 1), expected, rtol=1e-5)
    assert int(restored.optimizer.iterations) == 32


SAVES = {
    "tf_keras": lambda model, path: model.save(path),
    "TFRA": lambda model, path: de.keras.models.save_model(
        model,
        path,
        options=tf.saved_model.SaveOptions(namespace_whitelist=["TFRA"]),
    ),
}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("model", [ByShadow, ByLayer])
def test_a_saved_model_serves_its_rows(model, save, tmp_path):
    model = compiled(model(), tf_keras.optimizers.legacy.Adam)
    fit(model, 3)
    save(model, tmp_path / "model")

    loaded = tf_keras.models.load_model(tmp_path / "model", compile=False)

    ids = tf.constant(IDS[:4])
    np.testing.assert_allclose(loaded(ids), model(ids), rtol=1e-6)
    assert len(np.unique(model(ids))) == 4


def test_signatures_of_a_model_are_in_what_tfras_function_saves(tmp_path):
    model = compiled(ByLayer(), tf_keras.optimizers.Adam)
    fit(model, 1)
    call = tf.function(model).get_concrete_function(
        tf.TensorSpec([None, 1], tf.int64, name="ids")
    )
    de.keras.models.save_model(
        model,
        tmp_path / "model",
        include_optimizer=False,
        signatures=call,
    )
    served = tf_keras.models.load_model(tmp_path / "model", compile=False)
    (rows,) = served.signatures["serving_default"](ids=IDS[:4]).values()
    np.testing.assert_allclose(rows, model(tf.constant(IDS[:4])), rtol=1e-6)


@pytest.mark.parametrize("name", ["m.keras", "m.h5"])
def test_files_without_rows_are_refused_by_tfras_function(name, tmp_path):
    with pytest.raises(errors.ArgumentError, match="must be a folder; got"):
        de.keras.models.save_model(ByLayer(), tmp_path / name)


@OPTIMIZERS
def test_two_replicas_fit_as_one_does(make):
    losses = []
    for strategy in (tf.distribute.get_strategy(), mirrored(2)):
        with strategy.scope():
            model = compiled(ByShadow(), make)
        losses.append(fit(model, 2))
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (ByShadow, tf_keras.optimizers.legacy.SGD),
        (ByShadow, tf_keras.optimizers.legacy.Adam),
        (ByShadow, tf_keras.optimizers.Adam),
        (ByLayer, tf_keras.optimizers.Adam),
    ],
)
def test_an_optimizer_that_is_not_wrapped_is_refused(model, make):
    model = model()
    model.compile(make(), loss="mse", run_eagerly=True)
    with pytest.raises(
        (NotImplementedError, AttributeError), match="DynamicEmbeddingOptimizer"
    ):
        fit(model, 1)
    assert int(model.table.size()) == 0


def test_compile_says_what_it_takes_in_place_of_an_optimizer_of_tensorflow_1():
    adam = tf.compat.v1.train.AdamOptimizer(0.1)
    text = (
        "over AdamOptimizer of .* takes one over an optimizer of its own Keras"
    )
    for kind in (tf_keras, keras):
        with pytest.raises(ValueError, match=text):
            kind.Sequential().compile(de.DynamicEmbeddingOptimizer(adam))


def test_a_model_that_scales_losses_is_refused():
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with pytest.raises(NotImplementedError, match="mixed_bfloat16"):
            compiled(ByShadow(), tf_keras.optimizers.legacy.SGD)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


def test_a_functional_model_is_refused_as_it_would_not_train():
    ids = tf_keras.Input((1,), dtype="int64")
    layer = de.keras.layers.SquashedEmbedding(4)
    with pytest.raises(NotImplementedError, match=r"Derive the model from"):
        layer(ids)


def test_the_documents_example_runs():
    page = ("dynamic_embedding_keras.md", "Models of tf_keras")
    exec(documents.program(*page), {})


# As TFRA's programs begin. In a process of its own: `tf.keras` is chosen once.
_TFRA_PROGRAM = """
    import os
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import numpy as np, tensorflow as tf
    import tfembed.dynamic_embedding as de
    from tensorflow.keras.layers import Dense
    from tensorflow.keras.optimizers.legacy import Adam

    class Ratings(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.users = de.keras.layers.SquashedEmbedding(
                4, initializer=tf.keras.initializers.RandomNormal(), name="u"
            )
            self.out = Dense(1)

        @tf.function
        def call(self, features):
            return self.out(self.users(tf.reshape(features["id"], (-1, 1))))

    model = Ratings()
    model.compile(de.DynamicEmbeddingOptimizer(Adam(0.05)), loss="mse")
    ids = np.arange(64) % 8 * 10**12
    features, labels = {"id": ids}, (ids % 3).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(8)
    losses = model.fit(data, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 10, losses
    assert int(model.users.params.size()) == 8
    print("trained")
"""


def test_a_program_of_tfra_with_legacy_keras_trains():
    assert "trained" in fresh_process.output_of(
        _TFRA_PROGRAM, new_interpreter=True
    )
