"""Models with tables in Keras' files, in checkpoints, in copies."""

from __future__ import annotations

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from dynamic_embedding.trained_models import trained
from keras_models import batches, model_of, rows_of, table_of
from tfembed import errors
from tfembed.dynamic_embedding.keras import callbacks, layers, models

# Their update is not fused; Nadam keeps a product over its steps besides.
OWN_UPDATES = [
    keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    keras.optimizers.AdamW(0.01, weight_decay=0.1),
    keras.optimizers.Nadam(0.01),
    keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
]


def _fresh(optimizer):
    """One of the same options that has trained nothing."""
    return type(optimizer).from_config(optimizer.get_config())


def _assert_goes_on_alike(model, other, name="users"):
    np.testing.assert_array_equal(
        rows_of(table_of(other, name)), rows_of(table_of(model, name))
    )
    histories = [
        each.fit(batches(7), epochs=2, verbose=0).history["loss"]
        for each in (model, other)
    ]
    assert histories[0] == histories[1]
    np.testing.assert_array_equal(
        rows_of(table_of(other, name)), rows_of(table_of(model, name))
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1),
        keras.optimizers.Adagrad(0.1),
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 50)),
        keras.optimizers.Ftrl(0.1),
        *OWN_UPDATES,
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_a_keras_file_lets_training_go_on(tmp_path, optimizer):
    model = trained(_fresh(optimizer))

    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")

    assert int(other.optimizer.iterations) == int(model.optimizer.iterations)
    _assert_goes_on_alike(model, other)


def test_a_folder_lets_training_go_on(tmp_path):
    model = trained()

    keras.saving.save_model(model, tmp_path / "m", zipped=False)

    _assert_goes_on_alike(model, keras.saving.load_model(tmp_path / "m"))


def test_weights_let_training_go_on_with_another_number_of_shards(tmp_path):
    model = trained(devices=["/CPU:0"] * 2)
    other = model_of(devices=["/CPU:0"] * 3)

    model.save_weights(tmp_path / "m.weights.h5")
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.weights.h5")

    _assert_goes_on_alike(model, other)


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.Adam(0.01), *OWN_UPDATES],
    ids=lambda optimizer: optimizer.name,
)
def test_a_tf_checkpoint_lets_training_go_on(tmp_path, optimizer):
    model, other = trained(_fresh(optimizer)), model_of(_fresh(optimizer))

    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
        tmp_path / "c"
    )
    other.optimizer.build(other.trainable_variables)
    restored = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    restored.restore(path).assert_consumed()

    _assert_goes_on_alike(model, other)


def test_loading_without_compiling_serves(tmp_path):
    model = trained()
    model.save(tmp_path / "m.keras")

    other = keras.saving.load_model(tmp_path / "m.keras", compile=False)

    ids = np.arange(80).reshape(-1, 2)
    np.testing.assert_array_equal(other.predict(ids), model.predict(ids))


def test_ids_that_were_not_trained_read_alike_after_loading(tmp_path):
    model = model_of(initializer=None)
    model.save(tmp_path / "m.keras")
    ids = np.arange(80).reshape(-1, 2)
    expected = model.predict(ids, verbose=0)

    tf.random.set_seed(77)
    other = keras.saving.load_model(tmp_path / "m.keras")

    np.testing.assert_array_equal(other.predict(ids, verbose=0), expected)


def test_a_frozen_layer_is_exported_with_its_rows(tmp_path):
    model = trained()
    model.trainable = False
    ids = np.arange(80).reshape(-1, 2)

    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")

    np.testing.assert_array_equal(
        served.serve(ids), model.predict(ids, verbose=0)
    )


def test_model_checkpoint_keeps_rows(tmp_path):
    model = model_of()
    path = tmp_path / "{epoch}.keras"

    model.fit(
        batches(),
        epochs=2,
        verbose=0,
        callbacks=[callbacks.ModelCheckpoint(path)],
    )

    other = keras.saving.load_model(tmp_path / "2.keras")
    np.testing.assert_array_equal(
        rows_of(table_of(other)), rows_of(table_of(model))
    )


def test_save_model_writes_what_the_name_asks_for(tmp_path):
    model = trained()
    ids = np.arange(80).reshape(-1, 2)

    models.save_model(model, tmp_path / "m.keras")
    models.save_model(model, tmp_path / "m")

    loaded = keras.saving.load_model(tmp_path / "m.keras")
    served = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    expected = model.predict(ids, verbose=0)
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), expected)
    (values,) = served(tf.constant(ids)).values()
    np.testing.assert_array_equal(values, expected)
    with pytest.raises(errors.ArgumentError, match="exists"):
        models.save_model(model, tmp_path / "m.keras", overwrite=False)


def test_copies_have_rows_and_clones_have_none():
    model = trained()

    copied = copy.deepcopy(model)
    cloned = keras.models.clone_model(model)

    np.testing.assert_array_equal(
        rows_of(table_of(copied)), rows_of(table_of(model))
    )
    assert table_of(copied) is not table_of(model)
    assert int(table_of(cloned).size()) == 0


def test_a_layer_alone_is_copied_with_its_rows():
    layer = layers.Embedding(2, initializer=0.5, name="alone")
    layer.params.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])

    copied = copy.deepcopy(layer)

    np.testing.assert_array_equal(rows_of(copied.params), rows_of(layer.params))


def test_setting_weights_warns_that_rows_stay():
    model = trained()
    before = rows_of(table_of(model))

    with pytest.warns(UserWarning, match="hold no rows of 'users-parameter'"):
        model.set_weights([np.zeros(w.shape) for w in model.get_weights()])

    np.testing.assert_array_equal(rows_of(table_of(model)), before)


def test_weights_of_a_keras_file_are_not_taken_for_all_of_it(tmp_path):
    model, other = trained(), model_of()
    model.save(tmp_path / "m.keras")

    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.keras")

    with pytest.raises(errors.StateError, match="load_model"):
        other(np.array([[1, 2]]))


def test_a_file_of_another_model_is_refused(tmp_path):
    ids = keras.Input((2,), dtype="int64")
    rows = layers.Embedding(3, name="users")(ids)
    other = keras.Model(ids, rows)
    other.save_weights(tmp_path / "m.weights.h5")

    with pytest.raises(ValueError, match="could not be loaded"):
        model_of().load_weights(tmp_path / "m.weights.h5")


@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_a_layer_without_checkpoint_says_that_it_saves_no_rows(tmp_path, file):
    model, other = trained(checkpoint=False), model_of(checkpoint=False)
    path = tmp_path / file
    is_model = file.endswith(".keras")

    with pytest.warns(UserWarning, match="'users'.* are not saved"):
        model.save(path) if is_model else model.save_weights(path)
    with pytest.warns(UserWarning, match="'users'.* are not loaded"):
        if is_model:
            other = keras.saving.load_model(path)
        else:
            other.optimizer.build(other.trainable_variables)
            other.load_weights(path)

    assert int(table_of(other).size()) == 0
    other.predict(np.array([[1, 2]]), verbose=0)


def test_a_file_without_rows_is_not_taken_for_one_with_rows(tmp_path):
    model, other = trained(checkpoint=False), model_of()
    with pytest.warns(UserWarning, match="are not saved"):
        model.save_weights(tmp_path / "m.weights.h5")

    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="checkpoint=False"):
        other.load_weights(tmp_path / "m.weights.h5")
