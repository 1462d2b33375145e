"""DistributedEmbedding: in models, by fit, in mixed precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers import small_model
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


@pytest.mark.parametrize("vocabulary", [16, None])
def test_a_functional_model_learns_in_fit(vocabulary):
    keras.utils.set_random_seed(1)
    model = small_model.model(small_model.layer(vocabulary))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    data, labels = small_model.data(100)
    # The last batch has 4 samples.
    history = model.fit(data, labels, batch_size=32, epochs=30, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert model.evaluate(data, labels, verbose=0) < 0.2 * losses[0]


def test_the_activations_are_tpu_embeddings():
    layer = small_model.layer()
    batch = small_model.batch()
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


@pytest.mark.parametrize("in_function", [False, True])
def test_a_tape_trains_the_rows_of_the_batch_and_no_others(in_function):
    layer = small_model.layer()
    batch = small_model.batch()
    before = small_model.rows(layer)

    def step():
        with tf.GradientTape() as tape:
            activations = layer(batch, training=True)
            loss = tf.add_n([tf.reduce_sum(a) for a in activations.values()])
        return tape.gradient(loss, layer.trainable_variables)

    gradients = (tf.function(step) if in_function else step)()
    assert not any(one.any() for one in _moved(layer, before).values())
    keras.optimizers.SGD(0.0).apply(gradients, layer.trainable_variables)
    moved = _moved(layer, before)
    assert set(np.flatnonzero(moved["users"])) == set(batch["user"].numpy())
    assert set(np.flatnonzero(moved["items"])) == set(
        batch["last"].values.numpy()
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_that_is_frozen_or_does_not_train_does_not_move(frozen):
    layer = small_model.layer()
    layer.trainable = not frozen
    before = small_model.rows(layer)
    with tf.GradientTape() as tape:
        tape.watch(layer._trap.value)
        activations = layer(small_model.batch(), training=frozen)
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
    small_model.apply(tape, loss, layer)
    rows = layer.get_embedding_tables()["users"].numpy()
    assert rows[:, 0].tolist() == [0, -4, -1, -1]


def test_dense_input_of_several_ids_is_a_bag_or_a_sequence():
    layer = small_model.layer()
    ids = tf.constant([[1, 2], [3, 3]])
    outputs = layer(
        {"user": tf.constant([[1], [2]]), "bag": ids, "last": ids},
        training=False,
    )
    items = layer.get_embedding_tables()["items"].numpy()
    np.testing.assert_allclose(outputs["bag"], items[ids.numpy()].sum(1), 1e-6)
    np.testing.assert_allclose(outputs["last"][:, :2], items[ids.numpy()])
    assert not outputs["last"].numpy()[:, 2].any()


def test_weights_are_taken():
    layer = small_model.layer()
    batch = small_model.batch()
    weights = {
        "user": None,
        "bag": batch["bag"].with_values(
            tf.fill(tf.shape(batch["bag"].values), 2.0)
        ),
        "last": None,
    }
    twice = layer(batch, weights, training=False)["bag"]
    np.testing.assert_allclose(twice, 2 * layer(batch, training=False)["bag"])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_activations_have_the_policys_dtype_and_tables_float32(policy):
    layer = small_model.layer(dtype=policy)
    outputs = layer(small_model.batch(), training=False)
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
    layer = small_model.layer(dtype="mixed_float16")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(small_model.batch())["user"])
    with pytest.raises(errors.StateError, match="loss_scale_optimizer"):
        small_model.apply(tape, loss, layer)
    layer.loss_scale_optimizer = False
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(small_model.batch())["user"])
    small_model.apply(tape, loss, layer)


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_train_the_tables_once_in_fit(replicas, tmp_path):
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
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    ids = tf.range(8, dtype=tf.int64)
    np.testing.assert_array_equal(served.serve(ids), rows)


WRONG = [
    ({"usr": tf.constant([1])}, "features must have"),
    (
        {**small_model.batch(), "user": tf.constant([1.5])},
        "user must be integers",
    ),
]


@pytest.mark.parametrize(("batch", "text"), WRONG)
def test_wrong_input_is_named(batch, text):
    with pytest.raises((ValueError, TypeError), match=text):
        small_model.layer()(batch, training=False)


def test_an_output_shape_is_refused():
    table = tfembed.TableConfig(8, 2, name="users")
    layer = DistributedEmbedding(
        tfembed.FeatureConfig(table, output_shape=[4]), tfembed.SGD(0.1)
    )
    with pytest.raises(errors.ArgumentError, match="output_shape"):
        layer(tf.constant([1, 2, 3, 4]), training=False)


def _custom():
    def total(valency, vectors):
        del valency
        return tf.reduce_sum(vectors, axis=0)

    combiner = tfembed.CustomCombiner(total, 3)
    return tfembed.TableConfig(8, 2, _zeros, combiner=combiner, name="users")


@pytest.mark.parametrize("ids", [[1, 2], [[1], [2]]])
def test_single_ids_of_a_table_with_a_custom_combiner_train(ids):
    layer = DistributedEmbedding(
        tfembed.FeatureConfig(_custom()), tfembed.SGD(1.0)
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(ids)))
    small_model.apply(tape, loss, layer)
    rows = layer.get_embedding_tables()["users"].numpy()
    assert rows[:4, 0].tolist() == [0, -1, -1, 0]


def test_sequences_of_a_table_with_a_custom_combiner_train():
    layer = DistributedEmbedding(
        tfembed.FeatureConfig(_custom(), max_sequence_length=3),
        tfembed.SGD(1.0),
    )
    with tf.GradientTape() as tape:
        found = layer(tf.ragged.constant([[1, 2], [2]], dtype=tf.int64))
        loss = tf.reduce_sum(found)
    small_model.apply(tape, loss, layer)
    assert found.shape == (2, 3, 2)
    rows = layer.get_embedding_tables()["users"].numpy()
    assert rows[:4, 0].tolist() == [0, -1, -2, 0]


def test_weights_for_a_custom_combiner_are_refused():
    layer = DistributedEmbedding(
        tfembed.FeatureConfig(_custom()), tfembed.SGD(1.0)
    )
    ids = tf.ragged.constant([[0, 1]], dtype=tf.int64)
    with pytest.raises(errors.ArgumentError, match="CustomCombiner"):
        layer(ids, tf.cast(ids, tf.float32))


def _of_three_dimensions(**options):
    table = tfembed.TableConfig(16, 2, name="t", combiner="mean")
    feature = tfembed.FeatureConfig(table, **options)
    return DistributedEmbedding({"bags": feature}, tfembed.SGD(1.0))


@pytest.mark.parametrize("form", ["eager", "function", "packed", "no ids"])
def test_the_last_dimension_of_dense_ids_of_three_is_combined(form):
    layer = _of_three_dimensions()
    ids = tf.constant([[[1, 2], [3, 3], [0, 4]], [[5, 5], [0, 0], [7, 8]]])
    if form == "no ids":
        ids = ids[:, :, :0]
    rows = layer.get_embedding_tables()["t"].numpy()
    inputs = (
        layer.preprocess({"bags": ids}) if form == "packed" else {"bags": ids}
    )
    call = tf.function(layer) if form == "function" else layer

    found = call(inputs)["bags"]

    wanted = rows[ids.numpy()].sum(2) / max(ids.shape[-1], 1)
    assert found.shape == (2, 3, 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    of_input = layer({"bags": keras.Input((3, 2), dtype="int64")})["bags"]
    assert of_input.shape == (None, 3, 2)
    assert layer.compute_output_shape({"bags": (None, 3, 2)}) == {
        "bags": (None, 3, 2)
    }


def test_bags_of_three_dimensions_have_weights_and_train_their_rows():
    layer = _of_three_dimensions()
    before = layer.get_embedding_tables()["t"].numpy()
    ids = tf.constant([[[1, 2], [3, 3]]])
    weights = tf.constant([[[1.0, 3.0], [1.0, 0.0]]])
    with tf.GradientTape() as tape:
        found = layer({"bags": ids}, {"bags": weights})["bags"]
        loss = tf.reduce_sum(found)
    small_model.apply(tape, loss, layer)

    wanted = [[0.25 * before[1] + 0.75 * before[2], before[3]]]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    moved = (before - layer.get_embedding_tables()["t"].numpy())[:5, 0]
    np.testing.assert_allclose(moved, [0, 0.25, 0.75, 1, 0], atol=1e-6)
    with pytest.raises(errors.ArgumentError, match="one weight"):
        layer({"bags": ids}, {"bags": tf.ones([2, 1, 2])})
    with pytest.raises(errors.ArgumentError, match="to the layer itself"):
        layer.preprocess({"bags": ids}, {"bags": weights})


def test_dense_sequences_of_three_dimensions_are_said_to_be_combined(caplog):
    layer = _of_three_dimensions(max_sequence_length=5)
    assert layer({"bags": tf.ones([2, 3, 4], tf.int64)})["bags"].shape == (
        2,
        3,
        2,
    )
    assert "max_sequence_length=5 is ignored" in caplog.text


def test_sparse_ids_of_three_dimensions_are_described():
    table = tfembed.TableConfig(16, 4, name="t")
    layer = DistributedEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(0.1))
    ids = tf.sparse.from_dense(tf.ones([2, 2, 3], tf.int64))
    of_input = keras.Input((2, 3), dtype="int64", sparse=True)
    assert layer(of_input).shape == (None, 2, 4)
    assert layer.compute_output_shape((None, 2, 3)) == (None, 2, 4)
    spec = layer.compute_output_spec(layer.preprocess(ids))
    assert spec.shape == layer(ids).shape == (2, 2, 4)


@pytest.mark.parametrize("pack", [False, True])
def test_lists_are_taken_for_tuples(pack):
    configs = small_model.configs()
    layer = DistributedEmbedding(
        (configs["bag"], {"both": (configs["user"], configs["last"])}),
        tfembed.Adagrad(0.1),
    )
    ids = tf.constant([[1, 2], [3, 4]])
    weights = tf.constant([[0.5, 2.0], [1.0, 3.0]])
    activations = [
        layer(layer.preprocess(inputs, of_ids))
        if pack
        else layer(inputs, of_ids)
        for inputs, of_ids in (
            ((ids, {"both": (ids, ids)}), (weights, {"both": (None, None)})),
            ([ids, {"both": [ids, ids]}], [weights, {"both": [None, None]}]),
        )
    ]
    tf.nest.map_structure(np.testing.assert_array_equal, *activations)


@pytest.mark.parametrize("given", [[1, 2, 3], {"a": 1}])
def test_other_structures_are_refused(given):
    config = tfembed.FeatureConfig(tfembed.TableConfig(16, 4, name="t"))
    layer = DistributedEmbedding((config, config), tfembed.SGD(0.1))
    inputs = tf.nest.map_structure(lambda one: tf.constant([one]), given)
    with pytest.raises((TypeError, ValueError), match="structure"):
        layer(inputs)


@pytest.mark.parametrize(
    "ids",
    [
        {"user": [3, 4], "bag": [[1, 2], [5]]},  # Of some features.
        {"bag": [[1, 2], [5]], "user": np.array([3, 4]), "last": [[6, 7], [8]]},
    ],
)
def test_ids_in_lists_are_taken_as_enqueue_takes_them(ids):
    layer = small_model.layer()
    tensors = {
        name: tf.ragged.constant(one, dtype=tf.int64)
        if np.ndim(one[0])
        else tf.constant(one, tf.int64)
        for name, one in ids.items()
    }

    rows = layer(ids, training=False)

    expected = layer(tensors, training=False)
    tf.nest.map_structure(np.testing.assert_array_equal, rows, expected)


def test_a_list_of_strings_trains_the_one_feature_of_a_layer():
    table = tfembed.TableConfig(None, 2, name="users", key_dtype="string")
    layer = DistributedEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(1.0))

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(["ann", "bob"]))
    small_model.apply(tape, loss, layer)

    assert len(layer.embedding.embedding_tables["users"]) == 2
