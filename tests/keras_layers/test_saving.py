"""DistributedEmbedding in files: weights, checkpoints, models, exports."""

from __future__ import annotations

import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed
from keras_layers import small_model
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding


@pytest.mark.parametrize("vocabulary", [16, None])
def test_weights_files_hold_tables_and_slots(vocabulary, tmp_path):
    data, labels = small_model.data()
    models = []
    for _ in range(2):
        model = small_model.model(small_model.layer(vocabulary))
        model.compile(keras.optimizers.SGD(0.01), "mse")
        models.append(model)
    models[0].fit(data, labels, epochs=1, shuffle=False, verbose=0)
    path = str(tmp_path / "model.weights.h5")
    models[0].save_weights(path)
    models[1].load_weights(path)
    np.testing.assert_array_equal(*[m.predict(data, verbose=0) for m in models])
    # Adagrad goes on where it was.
    for model in models:
        model.fit(data, labels, epochs=1, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        *[m.predict(data, verbose=0) for m in models], 1e-5, 1e-6
    )


def test_a_checkpoint_holds_the_tables(tmp_path):
    layer = small_model.layer()
    layer(small_model.batch(), training=False)
    path = tf.train.Checkpoint(layer=layer).save(tmp_path / "model")
    keys = dict(tf.train.list_variables(path))
    assert "layer/embedding/items/.ATTRIBUTES/VARIABLE_VALUE" in keys
    assert (
        "layer/embedding/items.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE" in keys
    )


@pytest.mark.parametrize("vocabulary", [16, None])
@pytest.mark.parametrize("is_built", [False, True])
def test_a_checkpoint_of_a_layer_is_restored(vocabulary, is_built, tmp_path):
    layer, other = (small_model.layer(vocabulary) for _ in range(2))
    batch = small_model.batch()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(batch)["user"])
    small_model.apply(tape, loss, layer)
    path = tf.train.Checkpoint(layer=layer).save(tmp_path / "model")
    if is_built:
        other(batch, training=False)
    tf.train.Checkpoint(layer=other).restore(path).expect_partial()
    np.testing.assert_array_equal(
        other(batch, training=False)["user"],
        layer(batch, training=False)["user"],
    )


def _fitted(vocabulary):
    model = small_model.model(small_model.layer(vocabulary))
    model.compile("adam", "mse")
    data, labels = small_model.data()
    model.fit(data, labels, epochs=2, verbose=0)
    return model, data, labels


@pytest.mark.parametrize("vocabulary", [16, None])
def test_a_whole_model_is_saved_and_trains_on(vocabulary, tmp_path):
    model, data, labels = _fitted(vocabulary)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    models = (model, loaded)
    np.testing.assert_array_equal(*[m.predict(data, verbose=0) for m in models])
    for one in models:
        one.fit(data, labels, epochs=1, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        *[m.predict(data, verbose=0) for m in models], 1e-5, 1e-6
    )


def test_a_functional_model_of_nested_tuples_is_loaded(tmp_path):
    configs = small_model.configs()
    features = (configs["user"], [configs["bag"], (configs["last"],)])
    layer = DistributedEmbedding(features, tfembed.Adagrad(0.1))
    inputs = [keras.Input((n,), dtype="int64") for n in (1, 3, 3)]
    user, (bag, (last,)) = layer((inputs[0], [inputs[1], (inputs[2],)]))
    flat = [user, bag, keras.layers.Flatten()(last)]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(flat))
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    data, _ = small_model.data()
    data = [data["user"][:, None], data["bag"], data["last"]]
    np.testing.assert_array_equal(
        *[m.predict(data, verbose=0) for m in (model, loaded)]
    )


def test_the_tables_of_a_whole_model_are_assets(tmp_path):
    model, _, _ = _fitted(16)
    path = tmp_path / "model.keras"
    model.save(path)
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
    assert any(name.endswith("/rows.index") for name in names)
    weights = small_model.model(small_model.layer(16))
    weights.load_weights(path)
    with pytest.raises(errors.StateError, match="load_model"):
        weights.predict(small_model.data()[0], verbose=0)


def test_a_file_of_another_model_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save_weights(tmp_path / "model.weights.h5")
    layer = small_model.layer()
    before = small_model.rows(layer)
    with pytest.raises(errors.CheckpointError, match="no rows"):
        layer.table_files.load_own_variables({})
    with pytest.raises(errors.CheckpointError, match="no rows"):
        layer.table_files.load_assets(None)
    after = small_model.rows(layer)
    for name, rows in before.items():
        np.testing.assert_array_equal(after[name], rows)


def test_a_clone_has_the_features_and_rows_of_its_own():
    model, data, _ = _fitted(16)
    clone = keras.models.clone_model(model)
    ours, theirs = (
        next(x for x in m.layers if hasattr(x, "embedding"))
        for m in (model, clone)
    )
    assert list(ours.get_embedding_tables()) == ["items", "users"]
    assert list(theirs.get_embedding_tables()) == ["items", "users"]
    clone.compile("adam", "mse")
    clone.fit(data, np.ones([96, 1]), verbose=0)
    assert not np.array_equal(
        small_model.rows(ours)["users"], small_model.rows(theirs)["users"]
    )


def test_the_clone_of_a_layer_that_shares_tables_says_that_it_does_not():
    user = {"user": keras.Input((), dtype="int64", name="user")}
    first = small_model.layer(name="first")
    other = DistributedEmbedding(first, name="other")
    rows = [layer(user)["user"] for layer in (first, other)]
    model = keras.Model(user, keras.layers.Add()(rows))

    with pytest.warns(UserWarning) as said:
        keras.models.clone_model(model)

    (warning,) = said
    assert "The clone of layer 'other' has tables of its own" in str(
        warning.message
    )


@pytest.mark.parametrize("vocabulary", [16, None])
def test_an_exported_model_serves_and_brings_no_update(vocabulary, tmp_path):
    model, data, _ = _fitted(vocabulary)
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    inputs = {name: tf.constant(value) for name, value in data.items()}
    np.testing.assert_allclose(
        loaded.serve(inputs), model.predict(data, verbose=0), 1e-5, 1e-6
    )
    graph = loaded.serve.concrete_functions[0].graph
    ops = [op.type for op in graph.get_operations()]
    for function in graph.as_graph_def().library.function:
        ops += [node.op for node in function.node_def]
    assert "Tfembed>GroupedLookup" in ops
    assert "Tfembed>GroupedUpdate" not in ops


@pytest.mark.parametrize(
    "layer",
    [
        lambda: tfembed.keras.layers.Embedding(2, key_dtype="int64"),
        lambda: DistributedEmbedding(
            tfembed.FeatureConfig(tfembed.TableConfig(None, 2, name="users")),
            tfembed.SGD(0.1),
        ),
    ],
    ids=["Embedding", "DistributedEmbedding"],
)
def test_the_legacy_form_of_whole_models_says_that_it_has_no_rows(
    layer, tmp_path
):
    ids = keras.Input((), dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(layer()(ids)))

    with pytest.warns(UserWarning, match=r"rows behind .* not in this file"):
        model.save(tmp_path / "model.h5")


@pytest.mark.slow
def test_a_saved_model_is_loaded_where_tfembed_is_imported(tmp_path):
    model, data, _ = _fitted(None)
    path = tmp_path / "model.keras"
    model.save(path)
    np.savez(tmp_path / "data.npz", **data)
    printed = fresh_process.output_of(
        """
        import sys
        import keras, numpy as np
        import tfembed
        model = keras.saving.load_model(sys.argv[1])
        data = dict(np.load(sys.argv[2]))
        print(float(model.predict(data, verbose=0).sum()))
        """,
        path,
        tmp_path / "data.npz",
    )
    expected = float(model.predict(data, verbose=0).sum())
    assert float(printed) == pytest.approx(expected, rel=1e-5)


def test_the_optimizer_that_scales_the_loss_is_saved_with_its_model(tmp_path):
    layer = small_model.layer(dtype="mixed_float16")
    model = small_model.model(layer)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=64.0
    )
    model.compile(optimizer, "mse")
    layer.loss_scale_optimizer = model.optimizer
    data, labels = small_model.data()
    model.fit(data, labels, epochs=2, batch_size=32, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert int(model.optimizer.iterations) == 6
    for ours, theirs in zip(
        loaded.optimizer.variables, model.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
