"""Models that derive from keras.Model, as TFRA's programs have them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from cpu_replicas import mirrored
from tfembed import errors
from tfembed.dynamic_embedding.keras import layers, models

SIGNATURE = [tf.TensorSpec([None, None], tf.int64)]
IDS = np.arange(24).reshape(8, 3)


def category(ids):
    return tf.math.floormod(ids, 4)


class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.rows = layers.FieldWiseEmbedding(
            4, 4, slot_map_fn=category, combiner="mean", name="rows"
        )
        self.flat = keras.layers.Flatten()
        self.out = keras.layers.Dense(1)

    def call(self, ids):
        return self.out(self.flat(self.rows(ids)))


class Signed(Subclassed):
    @tf.function(input_signature=SIGNATURE)
    def call(self, ids):
        return super().call(ids)


def trained(model):
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, loss="mse")
    model.fit(IDS, np.ones([8, 1]), verbose=0)
    return model


def check_served(model, folder):
    served = tf.saved_model.load(folder).signatures["serving_default"]
    (name,) = served.structured_input_signature[1]
    (out,) = served(**{name: tf.constant(IDS[:5])}).values()
    np.testing.assert_allclose(out, model(tf.constant(IDS[:5])), rtol=1e-5)


def test_a_call_with_a_signature_is_what_is_served(tmp_path):
    model = trained(Signed())
    assert int(model.rows.params.size()) == IDS.size
    models.save_model(model, tmp_path / "served")
    check_served(model, tmp_path / "served")


def test_signatures_that_are_given_are_served(tmp_path):
    model = trained(Subclassed())
    concrete = tf.function(model).get_concrete_function(*SIGNATURE)
    models.save_model(model, tmp_path / "served", signatures=concrete)
    check_served(model, tmp_path / "served")


def test_keras_export_serves_a_signature_that_is_given(tmp_path):
    model = trained(Subclassed())
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", model.call, SIGNATURE)
    archive.write_out(tmp_path / "served")
    check_served(model, tmp_path / "served")


def test_ids_that_would_be_floats_are_refused_before_anything_is_written(
    tmp_path,
):
    with pytest.raises(errors.ArgumentError, match="`signatures` of"):
        models.save_model(trained(Subclassed()), tmp_path / "served")
    assert not (tmp_path / "served").exists()


def test_a_model_without_tables_needs_no_signatures(tmp_path):
    class Dense(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, inputs):
            return self.out(inputs)

    model = Dense()
    model(tf.ones([2, 3]))
    models.save_model(model, tmp_path / "served")
    assert tf.saved_model.load(tmp_path / "served").signatures


def test_a_subclassed_model_is_still_built_by_loading_a_file(tmp_path):
    model = trained(Subclassed())
    models.save_model(model, tmp_path / "m.keras")
    other = keras.saving.load_model(
        tmp_path / "m.keras", custom_objects={"Subclassed": Subclassed}
    )
    np.testing.assert_array_equal(
        other.predict(IDS, verbose=0), model.predict(IDS, verbose=0)
    )


@keras.saving.register_keras_serializable("tests")
class Doubled(layers.Embedding):
    def call(self, ids):
        return 2 * de.shadow_ops.embedding_lookup(self.shadow, ids)


@keras.saving.register_keras_serializable("tests")
class OfDoubled(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.rows = Doubled(2, name="doubled")
        self.out = keras.layers.Dense(1)

    def call(self, ids):
        return self.out(self.rows(ids))


def test_a_file_has_models_of_layers_that_look_up_through_their_shadows(
    tmp_path,
):
    model = trained(OfDoubled())
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")

    for one in (model, loaded):
        one.fit(IDS, np.ones([8, 1]), verbose=0)

    assert int(loaded.rows.params.size()) == IDS.size
    np.testing.assert_allclose(loaded(IDS), model(IDS), rtol=1e-5)


def test_replicas_build_models_of_layers_that_look_up_through_their_shadows():
    with mirrored(2).scope():
        model = trained(OfDoubled())
    assert int(model.rows.params.size()) == IDS.size


def test_a_layer_that_looks_up_through_its_shadow_takes_narrower_ids():
    layer = Doubled(2, name="narrow")
    expected = layer(tf.constant([5], tf.int64))
    for ids in (tf.constant([5], tf.int32), np.array([5], np.int32)):
        np.testing.assert_array_equal(layer(ids), expected)
    with pytest.raises(errors.DtypeError, match="must be int64; got float32"):
        layer(tf.constant([5.0]))
