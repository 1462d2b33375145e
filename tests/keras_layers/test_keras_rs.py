"""Programs of keras-rs: its configs, and objects of the same arguments."""

from __future__ import annotations

import sys
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers import small_model
from tfembed import errors
from tfembed.keras import keras_rs as translation
from tfembed.keras.layers import (
    DistributedEmbedding,
    FeatureConfig,
    TableConfig,
)

BATCH, WIDTH = 16, 4


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr(translation, "_SAID", set())


def foreign():
    """Classes as keras-rs has them, which say nothing of tfembed."""
    import dataclasses

    @dataclasses.dataclass(order=True)
    class Table:
        name: str
        vocabulary_size: int
        embedding_dim: int
        initializer: object = "glorot_uniform"
        optimizer: object = "adam"
        combiner: str = "mean"
        placement: str = "auto"
        max_ids_per_partition: int = 256
        max_unique_ids_per_partition: int = 256

        def get_config(self):
            return dict(vars(self))

    @dataclasses.dataclass(order=True)
    class Feature:
        name: str
        table: object
        input_shape: object
        output_shape: object

    return Table, Feature


def features(table_class=TableConfig, feature_class=FeatureConfig):
    tables = {
        size: table_class(
            name=f"table_{size}",
            vocabulary_size=size,
            embedding_dim=WIDTH,
            initializer=keras.initializers.VarianceScaling(
                scale=1.0, mode="fan_in", distribution="uniform", seed=1337
            ),
            optimizer=keras.optimizers.Adagrad(learning_rate=0.1),
            combiner="sum",
            placement="sparsecore",
            max_ids_per_partition=4096,
            max_unique_ids_per_partition=2048,
        )
        for size in (40, 100)
    }
    return {
        f"{name}_id": feature_class(
            name=name,
            table=tables[size],
            input_shape=(BATCH, 1),
            output_shape=(BATCH, WIDTH),
        )
        for name, size in (("site", 40), ("app", 100), ("device", 100))
    }


@keras.saving.register_keras_serializable("tests")
class Ranker(keras.Model):
    """A DLRM as the MLPerf example of keras-rs has it, but smaller."""

    def __init__(self, feature_configs, **kwargs):
        super().__init__(**kwargs)
        self.bottom = keras.layers.Dense(WIDTH, activation="relu")
        self.embedding_layer = DistributedEmbedding(
            feature_configs=feature_configs,
            table_stacking="auto",
            dtype="float32",
            name="embedding_layer",
        )
        self.small = keras.layers.Embedding(10, WIDTH)
        self.top = keras.layers.Dense(1, activation="sigmoid")
        self.feature_configs = feature_configs

    def call(self, inputs):
        rows = self.embedding_layer(inputs["large_emb_inputs"])
        small = keras.ops.sum(
            self.small(inputs["small_emb_inputs"]["9_id"]), -2
        )
        dense = self.bottom(inputs["dense_input"])
        return self.top(
            keras.ops.concatenate([dense, *rows.values(), small], axis=-1)
        )

    def get_config(self):
        return {**super().get_config(), "feature_configs": self.feature_configs}

    @classmethod
    def from_config(cls, config):
        features = keras.saving.deserialize_keras_object(
            config["feature_configs"]
        )
        return cls(**{**config, "feature_configs": features})


def batches(preprocess=None, steps=12):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        ids = {
            "site_id": rng.integers(0, 40, (BATCH, 1)),
            "app_id": rng.integers(0, 100, (BATCH, 1)),
            "device_id": rng.integers(0, 100, (BATCH, 1)),
        }
        labels = (ids["site_id"] % 2).astype(np.float32)
        yield (
            {
                "dense_input": rng.normal(size=(BATCH, 3)).astype(np.float32),
                "large_emb_inputs": preprocess(ids, training=True)
                if preprocess
                else ids,
                "small_emb_inputs": {"9_id": ids["site_id"] % 10},
            },
            labels,
        )


@pytest.mark.parametrize("classes", [(), foreign()], ids=["ours", "theirs"])
def test_the_ranker_of_keras_rs_trains(classes):
    with pytest.warns(UserWarning, match="means nothing here") as said:
        model = Ranker(features(*classes))
    assert len({str(w.message) for w in said}) == len(said) == 3
    model.compile(
        keras.optimizers.Adagrad(0.1), keras.losses.BinaryCrossentropy()
    )

    preprocess = model.embedding_layer.preprocess
    first, last = (
        model.fit(batches(preprocess, 30), verbose=0).history["loss"][0]
        for _ in range(2)
    )

    assert last < first
    tables = model.embedding_layer.get_embedding_tables()
    assert {name: tuple(t.shape) for name, t in tables.items()} == {
        "table_40": (40, WIDTH),
        "table_100": (100, WIDTH),
    }


def test_a_saved_ranker_comes_back_with_its_shared_tables(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Ranker(features())
        model.compile("sgd", "mse")
        model.fit(batches(), verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")

    batch, _ = next(batches())
    np.testing.assert_array_equal(
        loaded.predict(batch, verbose=0), model.predict(batch, verbose=0)
    )
    assert len(loaded.embedding_layer.get_embedding_tables()) == 2


def test_defaults_say_nothing(recwarn):
    table = TableConfig("items", 10, 4)
    layer = DistributedEmbedding(
        FeatureConfig("item", table, (None,), (None, 4)), update_stats=False
    )

    assert layer(tf.constant([[1, 2], [3, 4]])).shape == (2, 4)
    (config,) = layer.embedding.embedding_tables
    assert type(config.optimizer) is tfembed.optimizers.Adam
    assert not recwarn.list


def test_a_table_without_a_vocabulary_grows():
    table = TableConfig("items", None, 4, initializer="zeros", optimizer="sgd")
    layer = DistributedEmbedding(FeatureConfig("item", table, (4,), (4, 4)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([10**15])))
    small_model.apply(tape, loss, layer)
    assert layer.get_embedding_tables()["items"].size() == 1


def test_bags_in_positions_are_combined_as_in_keras_rs():
    table = TableConfig("t", 16, WIDTH, combiner="sum")
    feature = FeatureConfig("seen", table, (2, 3, 5), (2, 3, WIDTH))
    layer = DistributedEmbedding(feature)
    ids = np.arange(30).reshape(2, 3, 5) % 16
    rows = layer.get_embedding_tables()["t"].numpy()
    np.testing.assert_allclose(layer(ids), rows[ids].sum(2), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TableConfig("t", 8, 4, placement="gpu"), "`placement`"),
        (
            lambda: DistributedEmbedding(
                FeatureConfig("f", TableConfig("t", 8, 4), (2, 3), (2, 3, 4))
            ),
            r"must be \(batch, 4\).*max_sequence_length",
        ),
        (
            lambda: DistributedEmbedding(
                FeatureConfig(
                    "f", TableConfig("t", 8, 4, combiner="max"), (2,), (2, 4)
                )
            ),
            "combiner",
        ),
    ],
)
def test_wrong_values_are_named(make, words):
    with pytest.raises(errors.ArgumentError, match=words):
        make()


def test_the_objects_of_keras_rs_itself_are_taken():
    keras_rs = pytest.importorskip(
        "keras_rs", reason="keras-rs is not installed here"
    )
    assert isinstance(sys.modules["keras_rs"], types.ModuleType)
    table = keras_rs.layers.TableConfig("items", 10, 4)
    feature = keras_rs.layers.FeatureConfig("item", table, (2,), (2, 4))
    assert DistributedEmbedding(feature)(tf.constant([1, 2])).shape == (2, 4)
