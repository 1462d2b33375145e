"""Policies of layers in Keras' files."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.trained_models import trained
from keras_models import batches, model_of, rows_of, table_of
from tfembed import policies
from tfembed.dynamic_embedding.keras import layers

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
    model = trained(eviction=policies.LeastFrequent())
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
    model = trained()
    model.optimizer.nonfinite_rows.assign(7)
    model.save(tmp_path / "m.keras")

    other = keras.saving.load_model(tmp_path / "m.keras")

    assert int(other.optimizer.nonfinite_rows) == 7
