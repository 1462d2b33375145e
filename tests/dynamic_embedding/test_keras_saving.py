"""Models with tables in Keras' files, in checkpoints, in copies."""

from __future__ import annotations

import copy
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from keras_models import batches, model_of, rows_of, table_of
from tfembed import errors, policies
from tfembed.dynamic_embedding.keras import callbacks, layers, models


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


def _trained(optimizer=None, **options):
    model = model_of(optimizer, **options)
    model.fit(batches(), epochs=2, verbose=0)
    return model


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
    model = _trained(_fresh(optimizer))

    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")

    assert int(other.optimizer.iterations) == int(model.optimizer.iterations)
    _assert_goes_on_alike(model, other)


def test_a_folder_lets_training_go_on(tmp_path):
    model = _trained()

    keras.saving.save_model(model, tmp_path / "m", zipped=False)

    _assert_goes_on_alike(model, keras.saving.load_model(tmp_path / "m"))


def test_weights_let_training_go_on_with_another_number_of_shards(tmp_path):
    model = _trained(devices=["/CPU:0"] * 2)
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
    model, other = _trained(_fresh(optimizer)), model_of(_fresh(optimizer))

    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
        tmp_path / "c"
    )
    other.optimizer.build(other.trainable_variables)
    restored = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    restored.restore(path).assert_consumed()

    _assert_goes_on_alike(model, other)


def test_loading_without_compiling_serves(tmp_path):
    model = _trained()
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
    import test_keras_saving
    tower = keras.saving.load_model(f"{folder}/tower.keras")
    steps = [int(m.optimizer.iterations) for m in (model, tower)]
    values = [model(ids), served.serve(ids), tower(ids)]
    print(json.dumps([steps, [v.numpy().ravel().tolist() for v in values]]))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Steps and predictions of two models, here and in a fresh process."""
    folder = tmp_path_factory.mktemp("models")
    model, tower = _trained(devices=["/CPU:0"] * 2), Tower()
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


def test_a_frozen_layer_is_exported_with_its_rows(tmp_path):
    model = _trained()
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
    model = _trained()
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
    model = _trained()

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
    model = _trained()
    before = rows_of(table_of(model))

    with pytest.warns(UserWarning, match="hold no rows of 'users-parameter'"):
        model.set_weights([w * 0 for w in model.get_weights()])

    np.testing.assert_array_equal(rows_of(table_of(model)), before)


def test_weights_of_a_keras_file_are_not_taken_for_all_of_it(tmp_path):
    model, other = _trained(), model_of()
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
    model, other = _trained(checkpoint=False), model_of(checkpoint=False)
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
    model, other = _trained(checkpoint=False), model_of()
    with pytest.warns(UserWarning, match="are not saved"):
        model.save_weights(tmp_path / "m.weights.h5")

    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="checkpoint=False"):
        other.load_weights(tmp_path / "m.weights.h5")


POLICIES = {
    "admission": policies.CountAdmission(2, value=0.25),
    "eviction": policies.LeastFrequent(),
    "expiry": policies.Expiry(1, every=1000, at_checkpoints=True),
    "max_size": 20,
}


def test_policies_of_a_layer_are_its_table_s_and_come_back(tmp_path):
    model = model_of(**POLICIES)
    model.fit(batches(width=1, batch=10), epochs=2, verbose=0)

    table = table_of(model).table
    assert int(table.size()) == table.max_size == 20
    assert table.stats().refused >= 37

    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")

    assert {k: getattr(table_of(other).table, k) for k in POLICIES} == POLICIES
    np.testing.assert_array_equal(
        rows_of(table_of(other)), rows_of(table_of(model))
    )


def test_weights_load_into_a_layer_that_has_an_expiry_since(tmp_path):
    model = _trained(eviction=policies.LeastFrequent())
    other = model_of(
        eviction=policies.LeastFrequent(), expiry=policies.Expiry(1, every=9)
    )
    model.save_weights(tmp_path / "m.weights.h5")

    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.weights.h5")

    np.testing.assert_array_equal(
        rows_of(table_of(other)), rows_of(table_of(model))
    )


def test_rows_that_are_rounded_by_chance_stay_so_after_loading():
    options = {"value_dtype": "bfloat16", "stochastic_rounding": True}
    layer = layers.Embedding(2, name="half", **options)

    other = layers.Embedding.from_config(layer.get_config())

    for each in (layer, other):
        assert each.params.table.shards[0].options.stochastic_rounding
        assert each.params.value_dtype == tf.bfloat16


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_size": 3}, ValueError, "needs an `eviction` policy"),
        ({"eviction": "lru"}, TypeError, "`eviction`"),
        ({"eviction": {"class_name": "Oldest"}}, ValueError, "'Oldest'"),
    ],
)
def test_policies_that_are_not_allowed_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        layers.Embedding(2, name="users", **options)


def test_a_restrict_policy_goes_on_after_loading(tmp_path):
    policy = de.FrequencyRestrictPolicy
    model = model_of(restrict_policy=policy)
    model.fit(batches(), verbose=0)
    model.fit(batches(steps=1, batch=3), epochs=3, verbose=0)  # Ids 0 to 5.
    model.save(tmp_path / "m.keras")

    params = table_of(keras.saving.load_model(tmp_path / "m.keras"))
    params.restrict(6, trigger=6)

    assert isinstance(params.restrict_policy, policy)
    assert sorted(params.export()[0].numpy()) == [0, 1, 2, 3, 4, 5]


def test_the_count_of_rows_that_were_not_finite_goes_on(tmp_path):
    model = _trained()
    model.optimizer.nonfinite_rows.assign(7)
    model.save(tmp_path / "m.keras")

    other = keras.saving.load_model(tmp_path / "m.keras")

    assert int(other.optimizer.nonfinite_rows) == 7
