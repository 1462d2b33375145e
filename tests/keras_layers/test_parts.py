"""DistributedEmbedding: some of its features, and models inside of models."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers import small_model
from tfembed.keras.layers import DistributedEmbedding, Embedding


def test_a_part_of_the_features_is_looked_up_alone():
    layer = small_model.layer()
    batch = small_model.batch()
    everything = layer(batch, training=False)

    part = layer({"user": batch["user"], "bag": batch["bag"]}, training=False)

    assert set(part) == {"user", "bag"}
    for name, activations in part.items():
        np.testing.assert_array_equal(activations, everything[name])


def test_a_part_trains_its_tables_alone_and_warns_of_no_other(recwarn):
    layer = small_model.layer()
    before = small_model.rows(layer)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"user": tf.constant([3])})["user"])
    small_model.apply(tape, loss, layer)

    after = small_model.rows(layer)
    assert (after["users"][3] != before["users"][3]).all()
    np.testing.assert_array_equal(after["items"], before["items"])
    assert not [
        w for w in recwarn if "Gradients do not exist" in str(w.message)
    ]


@pytest.mark.parametrize("parts", [{}, {"usr": 1}, {"user": 1, "usr": 1}])
def test_a_part_of_other_features_is_refused(parts):
    inputs = {name: tf.constant([one]) for name, one in parts.items()}
    with pytest.raises((ValueError, TypeError), match="structure"):
        small_model.layer()(inputs)


@pytest.mark.parametrize("inputs", [{"usr": [1]}, [1, 2], {"user": {"a": [1]}}])
def test_lists_of_other_features_are_refused_by_the_names_of_all(inputs):
    with pytest.raises((ValueError, TypeError), match="'user'.*got"):
        small_model.layer()(inputs)


def test_a_tower_is_a_model_of_its_own_and_part_of_another(tmp_path):
    layer = small_model.layer()
    user = {"user": keras.Input((), dtype="int64", name="user")}
    tower = keras.Model(user, layer(user)["user"], name="tower")
    bag = keras.Input((3,), dtype="int64", name="bag")
    ids = keras.Input((), dtype="int64", name="ids")
    item = keras.layers.Dense(2)(layer({"bag": bag})["bag"])
    model = keras.Model(
        {"ids": ids, "bag": bag},
        keras.layers.Dot(-1)([tower({"user": ids}), item]),
    )
    data, labels = small_model.data()
    model.compile("adam", "mse")
    before = small_model.rows(layer)
    model.fit({"ids": data["user"], "bag": data["bag"]}, labels, verbose=0)

    after = small_model.rows(layer)
    assert all((after[name] != before[name]).any() for name in after)
    found = tower.predict({"user": data["user"]}, verbose=0)
    np.testing.assert_array_equal(found, after["users"][data["user"]])
    tower.save(tmp_path / "tower.keras")
    loaded = keras.saving.load_model(tmp_path / "tower.keras")
    again = loaded.predict({"user": data["user"]}, verbose=0)
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("kind", ["distributed", "single"])
def test_towers_that_share_a_layer_share_its_tables_in_a_loaded_model(
    kind, tmp_path
):
    left = keras.Input((), dtype="int64", name="left")
    right = keras.Input((), dtype="int64", name="right")
    if kind == "single":
        layer = Embedding(2)
        rows = [layer(left), layer(right)]
    else:
        layer = small_model.layer(None)
        rows = [layer({"user": ids})["user"] for ids in (left, right)]
    towers = [
        keras.Model(ids, keras.layers.Dense(2)(one), name=f"tower_{ids.name}")
        for ids, one in zip((left, right), rows, strict=True)
    ]
    out = keras.layers.Dot(-1)([towers[0](left), towers[1](right)])
    model = keras.Model([left, right], out)
    data = [np.arange(8), np.arange(8)[::-1]]
    labels = np.ones([8, 1])
    model.compile("adam", "mse")
    model.fit(data, labels, verbose=0)
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    for one in (model, loaded):
        one.fit(data, labels, shuffle=False, verbose=0)
    wanted, found = (one.predict(data, verbose=0) for one in (model, loaded))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    loaded.save(tmp_path / "again.keras")
    again = keras.saving.load_model(tmp_path / "again.keras")
    np.testing.assert_array_equal(again.predict(data, verbose=0), found)


def test_a_layer_of_three_models_inside_of_one_is_loaded(tmp_path):
    table = tfembed.TableConfig(8, 2, name="shared")
    names = ("a", "b", "c")
    layer = DistributedEmbedding(
        {name: tfembed.FeatureConfig(table) for name in names}
    )

    def inner(name):
        ids = keras.Input((), dtype="int64")
        return keras.Model(ids, layer({name: ids})[name], name=name)

    inputs = [keras.Input((), dtype="int64") for _ in names]
    rows = [inner(name)(one) for name, one in zip(names, inputs, strict=True)]
    model = keras.Model(inputs, keras.layers.Concatenate()(rows))
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    ids = [tf.constant([i]) for i in (1, 2, 3)]
    np.testing.assert_array_equal(loaded(ids), model(ids))


def test_an_expiry_counts_the_calls_that_ask_its_table():
    expiry = tfembed.policies.Expiry(5.0, every=100)
    config = {
        name: tfembed.FeatureConfig(
            tfembed.TableConfig(
                None,
                2,
                name=name,
                expiry=expiry,
                eviction=tfembed.policies.LeastRecent(),
            )
        )
        for name in ("users", "items")
    }
    layer = DistributedEmbedding(config, tfembed.SGD(1.0))
    for name, step in (("users", 1), ("items", 1), ("items", 2), ("items", 3)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer({name: tf.constant([step])})[name])
        small_model.apply(tape, loss, layer)

    tables = layer.get_embedding_tables()
    assert int(tables["users"]._trained_steps) == 1
    assert int(tables["items"]._trained_steps) == 3
