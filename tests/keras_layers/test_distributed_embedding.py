"""DistributedEmbedding: in models, by fit, saved, in mixed precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


def _configs(vocabulary=16, optimizer=None):
    arguments = {"seed": 3} if vocabulary is None else {}
    items = tfembed.TableConfig(
        vocabulary, 4, combiner="sum", name="items", **arguments
    )
    users = tfembed.TableConfig(
        vocabulary, 2, optimizer=optimizer, name="users", **arguments
    )
    return {
        "user": tfembed.FeatureConfig(users),
        "bag": tfembed.FeatureConfig(items),
        "last": tfembed.FeatureConfig(items, max_sequence_length=3),
    }


def _layer(vocabulary=16, **arguments):
    return DistributedEmbedding(
        _configs(vocabulary), tfembed.Adagrad(0.1), **arguments
    )


def _batch(n=4):
    rng = np.random.default_rng(n)
    bags = tf.ragged.constant(
        [rng.integers(0, 16, k).tolist() for k in rng.integers(0, 5, n)],
        dtype=tf.int64,
        ragged_rank=1,
    )
    return {
        "user": tf.constant(rng.integers(0, 16, n)),
        "bag": bags.to_sparse(),
        "last": bags,
    }


def _model(layer):
    inputs = {
        "user": keras.Input((), dtype="int64"),
        "bag": keras.Input((3,), dtype="int64"),
        "last": keras.Input((3,), dtype="int64"),
    }
    activations = layer(inputs)
    assert activations["user"].shape == (None, 2)
    assert activations["bag"].shape == (None, 4)
    assert activations["last"].shape == (None, 3, 4)
    x = keras.layers.Concatenate()(
        [
            activations["user"],
            activations["bag"],
            keras.layers.Flatten()(activations["last"]),
        ]
    )
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def _data(n=96):
    rng = np.random.default_rng(0)
    data = {
        "user": rng.integers(0, 16, n),
        "bag": rng.integers(0, 16, [n, 3]),
        "last": rng.integers(0, 16, [n, 3]),
    }
    # The label is one number per user.
    return data, (data["user"] % 5).astype(np.float32)[:, None]


@pytest.mark.parametrize("vocabulary", [16, None])
def test_a_functional_model_learns_in_fit(vocabulary):
    keras.utils.set_random_seed(1)
    model = _model(_layer(vocabulary))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    data, labels = _data(100)
    # The last batch has 4 samples.
    history = model.fit(data, labels, batch_size=32, epochs=30, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert model.evaluate(data, labels, verbose=0) < 0.2 * losses[0]


def test_the_activations_are_tpu_embeddings():
    layer = _layer()
    batch = _batch()
    ours = layer(batch, training=False)
    layer.embedding.enqueue(batch, training=False)
    tf.nest.map_structure(
        np.testing.assert_array_equal, ours, layer.embedding.dequeue()
    )


def _moved(layer, before):
    return {
        name: np.abs(table.numpy() - before[name]).max(1) > 0
        for name, table in layer.get_embedding_tables().items()
    }


def _rows(layer):
    return {n: t.numpy() for n, t in layer.get_embedding_tables().items()}


@pytest.mark.parametrize("in_function", [False, True])
def test_a_tape_trains_the_rows_of_the_batch_and_no_others(in_function):
    layer = _layer()
    batch = _batch()
    before = _rows(layer)

    def step():
        with tf.GradientTape() as tape:
            activations = layer(batch, training=True)
            loss = tf.add_n([tf.reduce_sum(a) for a in activations.values()])
        return tape.gradient(loss, layer.trainable_variables)

    (gradient,) = (tf.function(step) if in_function else step)()
    assert float(gradient) == 0
    moved = _moved(layer, before)
    assert set(np.flatnonzero(moved["users"])) == set(batch["user"].numpy())
    assert set(np.flatnonzero(moved["items"])) == set(
        batch["last"].values.numpy()
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_that_is_frozen_or_does_not_train_does_not_move(frozen):
    layer = _layer()
    layer.trainable = not frozen
    before = _rows(layer)
    with tf.GradientTape() as tape:
        tape.watch(layer._trap.value)
        activations = layer(_batch(), training=frozen)
        loss = tf.add_n([tf.reduce_sum(a) for a in activations.values()])
    assert tape.gradient(loss, layer._trap.value) is None
    assert not any(one.any() for one in _moved(layer, before).values())


def test_several_calls_in_a_step_count_each():
    table = tfembed.TableConfig(4, 2, _zeros, name="users")
    layer = DistributedEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.add_n(
            [tf.reduce_sum(layer(tf.constant([i, 1]))) for i in (1, 2, 3)]
        )
    tape.gradient(loss, layer.trainable_variables)
    rows = layer.get_embedding_tables()["users"].numpy()
    assert rows[:, 0].tolist() == [0, -4, -1, -1]


def test_dense_input_of_several_ids_is_a_bag_or_a_sequence():
    layer = _layer()
    ids = tf.constant([[1, 2], [3, 3]])
    outputs = layer(
        {"user": tf.constant([[1], [2]]), "bag": ids, "last": ids},
        training=False,
    )
    items = layer.get_embedding_tables()["items"].numpy()
    np.testing.assert_allclose(outputs["bag"], items[ids.numpy()].sum(1), 1e-6)
    np.testing.assert_allclose(outputs["last"][:, :2], items[ids.numpy()])
    assert not outputs["last"].numpy()[:, 2].any()


def test_packed_batches_are_taken():
    layer = _layer()
    batch = _batch()
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        layer(layer.preprocess(batch), training=False),
        layer(batch, training=False),
    )


def test_weights_are_taken():
    layer = _layer()
    batch = _batch()
    weights = {
        "user": None,
        "bag": batch["bag"].with_values(
            tf.fill(tf.shape(batch["bag"].values), 2.0)
        ),
        "last": None,
    }
    twice = layer(batch, weights, training=False)["bag"]
    np.testing.assert_allclose(twice, 2 * layer(batch, training=False)["bag"])


@pytest.mark.parametrize("vocabulary", [16, None])
def test_weights_files_hold_tables_and_slots(vocabulary, tmp_path):
    data, labels = _data()
    models = []
    for _ in range(2):
        model = _model(_layer(vocabulary))
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
    layer = _layer()
    layer(_batch(), training=False)
    path = tf.train.Checkpoint(layer=layer).save(tmp_path / "model")
    keys = dict(tf.train.list_variables(path))
    assert "layer/embedding/items/.ATTRIBUTES/VARIABLE_VALUE" in keys
    assert (
        "layer/embedding/items.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE" in keys
    )


def test_a_config_cannot_be_saved_and_says_what_to_do():
    with pytest.raises(errors.UnsupportedError, match="save_weights"):
        _layer().get_config()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_activations_have_the_policys_dtype_and_tables_float32(policy):
    layer = _layer(dtype=policy)
    outputs = layer(_batch(), training=False)
    assert {a.dtype.name for a in outputs.values()} == {policy[6:]}
    assert layer.get_embedding_tables()["items"].dtype == tf.float32


def test_a_loss_scale_is_taken_back_before_the_update():
    keras.utils.set_random_seed(1)
    table = tfembed.TableConfig(4, 2, _zeros, name="users")

    def train(dtype, optimizer, scale):
        layer = DistributedEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(0.5), dtype=dtype
        )
        layer.loss_scale_optimizer = scale
        inputs = keras.Input((), dtype="int64")
        model = keras.Model(inputs, layer(inputs))
        model.compile(optimizer, "mse")
        model.fit(np.arange(4), np.ones([4, 2]), batch_size=4, verbose=0)
        return layer.get_embedding_tables()["users"].numpy()

    scaled = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5), initial_scale=2.0**10
    )
    plain = train("float32", keras.optimizers.SGD(0.5), None)
    mixed = train("mixed_float16", scaled, scaled)
    assert plain.any()
    np.testing.assert_allclose(mixed, plain, 1e-2)


def test_float16_without_a_known_loss_scale_is_refused():
    layer = _layer(dtype="mixed_float16")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(_batch())["user"])
    with pytest.raises(errors.StateError, match="loss_scale_optimizer"):
        tape.gradient(loss, layer.trainable_variables)
    layer.loss_scale_optimizer = False
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(_batch())["user"])
    tape.gradient(loss, layer.trainable_variables)


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_train_the_tables_once_in_fit(replicas):
    strategy = tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    table = tfembed.TableConfig(8, 2, _zeros, name="users")
    with strategy.scope():
        layer = DistributedEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(0.5)
        )
        inputs = keras.Input((), dtype="int64")
        model = keras.Model(inputs, layer(inputs))
        model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
    dataset = tf.data.Dataset.from_tensor_slices(
        (tf.range(8) % 4, tf.ones([8, 2]))
    ).batch(8)
    model.fit(dataset, epochs=1, verbose=0)
    rows = layer.get_embedding_tables()["users"].numpy()
    # Each row has 2 of 16 elements of the mean, in either replica count.
    np.testing.assert_allclose(rows[:4], np.full([4, 2], 0.125), 1e-5)
    assert not rows[4:].any()


WRONG = [
    ({"user": tf.constant([1])}, "features must have"),
    (
        {**_batch(), "user": tf.constant([1.5])},
        "user must be integers",
    ),
    ({**_batch(), "user": tf.zeros([1, 1, 1], tf.int64)}, "rank 3 for input"),
]


@pytest.mark.parametrize(("batch", "text"), WRONG)
def test_wrong_input_is_named(batch, text):
    with pytest.raises((ValueError, TypeError), match=text):
        _layer()(batch, training=False)


def test_an_output_shape_is_refused():
    table = tfembed.TableConfig(8, 2, name="users")
    layer = DistributedEmbedding(
        tfembed.FeatureConfig(table, output_shape=[4]), tfembed.SGD(0.1)
    )
    with pytest.raises(errors.ArgumentError, match="output_shape"):
        layer(tf.constant([1, 2, 3, 4]), training=False)
