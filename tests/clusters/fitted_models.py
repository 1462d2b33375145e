"""Models that programs of clusters fit, beside the same without a cluster."""

from __future__ import annotations

import contextlib
import pathlib

import keras
import numpy as np
import tensorflow as tf

import tfembed.keras


def data(samples):
    """Batches of eight ids, the last of fewer, and numbers to learn."""
    ids = np.arange(samples).reshape(-1, 1) % 16
    numbers = (ids[:, 0] % 3).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, numbers)).batch(8)


def functional(cls, layer):
    """A model of inputs and outputs, with a loss of its own."""
    ids = keras.Input((1,), dtype="int64")
    rows = keras.layers.Flatten()(layer(ids))
    out = keras.layers.Dense(1, kernel_regularizer="l2")(rows)
    return cls(inputs=ids, outputs=out)


def subclassed(cls, layer):
    """A model that calls its layers, as a Sequential does."""

    class Subclassed(cls):
        def __init__(self):
            super().__init__()
            dense = keras.layers.Dense(1)
            self.stack = [layer, keras.layers.Flatten(), dense]

        def call(self, inputs):
            for one in self.stack:
                inputs = one(inputs)
            return inputs

    return Subclassed()


def rows():
    """A layer of Keras' own."""
    return keras.layers.Embedding(16, 4)


def shared_rows():
    """A layer whose table the workers share."""
    return tfembed.keras.layers.Embedding(
        4, embeddings_initializer="zeros", name="shared"
    )


def compiled(
    cls, make=functional, layer=rows, optimizer=lambda x: x, **options
):
    """A model; the same weights in each call."""
    keras.utils.set_random_seed(3)
    model = make(cls, layer())
    adam = keras.optimizers.Adam(0.05)
    model.compile(optimizer(adam), "mse", metrics=["mae"], **options)
    return model


def found(model, samples):
    """Trains a model; returns what it then says, by name."""
    fitted = model.fit(
        data(samples), epochs=2, verbose=0, validation_data=data(samples)
    )
    inputs = data(samples).map(lambda ids, numbers: ids)
    return {
        **fitted.history,
        "evaluate": model.evaluate(data(samples), verbose=0),
        "predict": model.predict(inputs, verbose=0),
        "weights": np.concatenate(
            [
                np.ravel(weight)
                for layer in model.layers
                if not isinstance(layer, tfembed.keras.layers.Embedding)
                for weight in layer.get_weights()
            ]
        ),
    }


def differences(strategy, samples, *, compares=True, **options):
    """Returns the difference of a cluster's model to one process', by name."""
    with strategy.scope():
        model = compiled(tfembed.keras.Model, **options)
    ours = found(model, samples)
    if not compares:
        return {}
    alone = found(compiled(keras.Model, **options), samples)
    return {
        name: float(np.abs(np.ravel(ours[name]) - np.ravel(value)).max())
        for name, value in alone.items()
    }


class _Killed(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def interrupted_and_saved(strategy, folder):
    """Fits a model twice, as after a death, and saves it; returns what is seen."""
    folder, seen = pathlib.Path(folder), {}

    def names():
        return sorted(path.name for path in folder.iterdir())

    with strategy.scope():
        model = compiled(tfembed.keras.Model)

    def fit(*more):
        callbacks = [
            keras.callbacks.ModelCheckpoint(
                str(folder / "best.keras"), monitor="loss", save_best_only=True
            ),
            keras.callbacks.BackupAndRestore(str(folder / "backup")),
            keras.callbacks.TensorBoard(str(folder / "board")),
            keras.callbacks.CSVLogger(str(folder / "log.csv")),
            keras.callbacks.EarlyStopping("loss"),
        ]
        return model.fit(
            data(66), epochs=4, verbose=0, callbacks=[*callbacks, *more]
        )

    with contextlib.suppress(KeyboardInterrupt):
        fit(_Killed())
    seen["left"] = names()
    last = {}
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: last.update(logs)
    )
    seen["epochs"] = fit(note).epoch
    seen["last"] = last
    model.save(str(folder / "saved.keras"))
    model.save_weights(str(folder / "saved.weights.h5"))
    model.export(str(folder / "served"), verbose=False)
    seen["files"] = names()
    seen["boards"] = len(list((folder / "board").rglob("events*")))
    loaded = keras.saving.load_model(folder / "saved.keras")
    again = [np.ravel(weight) for weight in loaded.get_weights()]
    own = [np.ravel(weight) for weight in model.get_weights()]
    seen["loaded"] = bool(np.all(np.concatenate(again) == np.concatenate(own)))
    return model, seen
