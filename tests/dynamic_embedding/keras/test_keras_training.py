"""Training of tables by `Model.fit`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from keras_models import DIM, batches, model_of, rows_of, table_of
from tfembed import errors
from tfembed.dynamic_embedding.keras import layers

NUM_IDS = 37


def _dense_twin(optimizer):
    """The same model over a dense keras.layers.Embedding."""
    ids = keras.Input((2,), dtype="int64")
    rows = keras.layers.Embedding(
        NUM_IDS, DIM, keras.initializers.Constant(0.5), name="users"
    )(ids)
    weights = keras.initializers.Constant(0.25)
    out = keras.layers.Dense(1, kernel_initializer=weights)(
        keras.ops.sum(rows, 1)
    )
    model = keras.Model(ids, out)
    model.compile(optimizer, loss="mse")
    return model


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.Adagrad(0.1)],
)
def test_fit_gives_what_a_dense_embedding_gives(make, run_eagerly):
    # Optimizers that leave rows without a gradient alone.
    model, twin = model_of(make()), _dense_twin(make())
    model.run_eagerly = run_eagerly

    losses = model.fit(batches(), epochs=3, verbose=0).history["loss"]
    expected = twin.fit(batches(), epochs=3, verbose=0).history["loss"]

    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(
        table_of(model).lookup(tf.range(NUM_IDS, dtype=tf.int64)),
        twin.get_layer("users").get_weights()[0],
        rtol=1e-5,
    )


def test_repeated_ids_of_a_batch_sum():
    layer = layers.Embedding(1, initializer=0.0, name="repeats")
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
    model.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)),
        loss=lambda y, x: tf.reduce_sum(x),
    )

    model.fit(np.array([[5, 5, 5]]), np.zeros([1, 1]), verbose=0)

    np.testing.assert_array_equal(layer.params.lookup([5]), [[-3.0]])


def test_a_layer_of_users_own_trains_what_its_shadow_looks_up(tmp_path):
    class Doubled(layers.Embedding):
        def call(self, ids):
            return 2 * de.shadow_ops.embedding_lookup(self.shadow, ids)

    layer = Doubled(1, initializer=0.0, name="doubled")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer])
    model.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)),
        loss=lambda y, x: tf.reduce_sum(x),
    )

    model.fit(np.array([[5, 6]]), np.zeros([1, 1]), verbose=0)

    np.testing.assert_array_equal(layer.params.lookup([5, 6]), [[-2.0]] * 2)
    de.keras.models.save_model(model, tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    (rows,) = served.signatures["serving_default"](
        tf.constant([[5, 7]], tf.int64)
    ).values()
    assert rows.numpy().tolist() == [[[-4], [0]]]


def test_validation_evaluation_and_prediction_insert_nothing():
    model = model_of()
    model.fit(batches(), validation_data=batches(5000), verbose=0)
    size = int(table_of(model).size())

    model.evaluate(batches(9000), verbose=0)
    model.predict(batches(9500), verbose=0)

    assert size == NUM_IDS
    assert int(table_of(model).size()) == size


def test_several_steps_per_execution_train_the_same():
    model, other = model_of(), model_of(name="others")
    other.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01)),
        loss="mse",
        steps_per_execution=3,
    )

    for each in (model, other):
        each.fit(batches(), epochs=2, verbose=0)

    np.testing.assert_allclose(
        rows_of(table_of(model)),
        rows_of(table_of(other, "others")),
        rtol=1e-6,
        atol=1e-8,
    )


ALONE = pytest.mark.parametrize("optimizer", ["adam", "sgd", "ftrl"])


@ALONE
def test_a_keras_optimizer_alone_says_what_to_do(optimizer):
    model = model_of()
    model.compile(optimizer, loss="mse")

    with pytest.raises(
        errors.UnsupportedError, match="DynamicEmbeddingOptimizer"
    ):
        model.fit(batches(), verbose=0)
    assert int(table_of(model).size()) == 0


@ALONE
def test_a_model_that_was_trained_is_not_trained_by_one_alone(optimizer):
    model = model_of()
    model.fit(batches(), verbose=0)
    before = rows_of(table_of(model))
    model.compile(optimizer, loss="mse")

    with pytest.raises(
        errors.UnsupportedError, match="DynamicEmbeddingOptimizer"
    ):
        model.fit(batches(), verbose=0)
    np.testing.assert_array_equal(rows_of(table_of(model)), before)


def test_a_frozen_layer_keeps_its_rows():
    model = model_of()
    model.fit(batches(), verbose=0)
    before = rows_of(table_of(model))
    model.get_layer("users").trainable = False
    model.compile(model.optimizer, loss="mse")

    model.fit(batches(), verbose=0)

    np.testing.assert_array_equal(rows_of(table_of(model)), before)


def test_a_schedule_and_callbacks_set_the_learning_rate():
    rates = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(
            float(model.optimizer.learning_rate)
        )
    )
    model = model_of()
    schedule = keras.callbacks.LearningRateScheduler(
        lambda epoch: 0.1 / (epoch + 1)
    )
    model.fit(batches(), epochs=2, verbose=0, callbacks=[schedule, record])

    np.testing.assert_allclose(rates, [0.1, 0.05], rtol=1e-6)


def test_bfloat16_activations_train_float32_rows():
    layer = layers.Embedding(2, name="bf16", dtype="mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), loss="mse"
    )

    model.fit(np.array([[1], [2]]), np.ones([2, 1]), verbose=0)

    assert layer(np.array([1])).dtype == tf.bfloat16
    assert layer.params.lookup([1]).dtype == tf.float32
    assert int(layer.params.size()) == 2


def test_loss_scaling_is_refused_when_the_model_is_compiled():
    inputs = keras.Input((1,), dtype="int64")
    rows = layers.Embedding(2, name="f16")(inputs)
    policy = keras.DTypePolicy("mixed_float16")
    model = keras.Model(inputs, keras.layers.Dense(1, dtype=policy)(rows))
    model.dtype_policy = policy
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam())

    with pytest.raises(errors.UnsupportedError, match="auto_scale_loss"):
        model.compile(optimizer, loss="mse")


@pytest.fixture
def mixed_float16():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.usefixtures("mixed_float16")
def test_a_load_that_would_scale_the_loss_says_how_to_load(tmp_path):
    # Keras keeps no `auto_scale_loss` in files, and scales where it loads.
    def compiled(model):
        optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        model.compile(optimizer, "mse", auto_scale_loss=False)
        return model

    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layers.Embedding(2, name="f16")(inputs))
    compiled(model).fit(np.array([5]), np.ones([1, 2]), verbose=0)
    model.save(tmp_path / "m.keras")

    with pytest.raises(errors.UnsupportedError, match="compile=False"):
        keras.saving.load_model(tmp_path / "m.keras")

    loaded = keras.saving.load_model(tmp_path / "m.keras", compile=False)
    compiled(loaded).fit(np.array([5]), np.ones([1, 2]), verbose=0)
    was, now = (m.get_layer("f16").params.lookup([5]) for m in (model, loaded))
    assert 0 < np.abs(now - was).max() < 0.01  # One more step of Adam.


def test_a_layer_never_asks_for_xla():
    assert not layers.Embedding(2, name="xla").supports_jit
    assert model_of().jit_compile is False


def test_the_optimizer_counts_steps_once():
    model = model_of()

    model.fit(batches(steps=3), verbose=0)

    assert int(model.optimizer.iterations) == 3


def test_a_sequential_model_without_input_says_what_to_do():
    # Keras would turn the ids into floats.
    model = keras.Sequential([layers.Embedding(2, name="no_input")])
    model.compile(loss="mse")

    with pytest.raises(errors.DtypeError, match=r"keras\.Input"):
        model.predict(np.array([[1]]), verbose=0)


def test_float_ids_of_a_subclassed_model_are_refused_when_it_runs():
    layer = layers.Embedding(2, name="floats")
    look_up = tf.function(layer)

    look_up.get_concrete_function(tf.TensorSpec([None], tf.float32))

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be int64"):
        look_up(tf.constant([1.0]))
