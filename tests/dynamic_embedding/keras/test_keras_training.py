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


@pytest.fixture
def mixed_float16():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(policy)


def half_model(optimizer, **options):
    """Ids [batch] to rows of two zeros; compiled over the optimizer."""
    inputs = keras.Input((), dtype="int64")
    rows = layers.Embedding(2, initializer=0.0, name="f16")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(rows))
    model.layers[-1].set_weights([np.array([[1.0], [2.0]]), np.zeros(1)])
    model.compile(de.DynamicEmbeddingOptimizer(optimizer), "mse", **options)
    return model


def fit_half(model):
    """A step; the first one's gradients are -(0.5, 1) of the row, -0.5 of the bias."""
    model.fit(np.array([10**15]), np.full([1, 1], 0.25), verbose=0)
    row = model.get_layer("f16").params.lookup([10**15])
    return row.numpy()[0], model.get_layer("dense").get_weights()[1]


@pytest.mark.usefixtures("mixed_float16")
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_the_loss_scale_of_float16_is_taken_back(run_eagerly):
    model = half_model(keras.optimizers.SGD(0.25), run_eagerly=run_eagerly)

    row, bias = fit_half(model)

    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    np.testing.assert_allclose(row, [0.125, 0.25], 1e-3)
    np.testing.assert_allclose(bias, [0.125], 1e-3)


@pytest.mark.usefixtures("mixed_float16")
def test_a_gradient_of_float16_that_overflows_moves_nothing():
    model = half_model(keras.optimizers.SGD(0.125))
    model.compile(
        keras.optimizers.LossScaleOptimizer(
            de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.125)),
            initial_scale=2.0**17,
        ),
        "mse",
    )

    # In the second step the gradient of the row alone overflows.
    for scale in (2.0**16, 2.0**15):
        row, bias = fit_half(model)
        assert [*row, *bias] == [0, 0, 0]
        assert int(model.get_layer("f16").params.size()) == 0
        assert float(model.optimizer.dynamic_scale) == scale
        assert int(model.optimizer.iterations) == 0

    row, bias = fit_half(model)
    assert min(*row, *bias) > 0


def test_a_loop_of_ones_own_says_how_to_scale_the_loss():
    layer = layers.Embedding(2, initializer=0.0, name="loop")

    def step(optimizer):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(layer(tf.constant([5]))))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)

    sgd = keras.optimizers.SGD(0.5)
    scaled = keras.optimizers.LossScaleOptimizer(
        de.DynamicEmbeddingOptimizer(sgd)
    )
    with pytest.raises(errors.UnsupportedError, match="`loss_scale_factor`"):
        step(scaled)
    sgd = keras.optimizers.SGD(0.5, loss_scale_factor=64.0)
    step(de.DynamicEmbeddingOptimizer(sgd))
    assert layer.params.lookup([5]).numpy().tolist() == [[-0.5, -0.5]]


@pytest.mark.usefixtures("mixed_float16")
def test_a_gradient_that_lost_its_keys_under_a_loss_scale_is_refused():
    class Clipped(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows = layers.Embedding(2, name="clipped")

        def call(self, ids):
            return self.rows(ids)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.cast(self(data[0]), tf.float32))
                loss = self.optimizer.scale_loss(loss)
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
            self.optimizer.apply(gradients, variables)
            return {"loss": loss}

    model = Clipped()
    model.compile(de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)))
    with pytest.raises(errors.UnsupportedError, match="`global_clipnorm`"):
        model.fit(np.array([10**15]), np.ones([1, 2]), verbose=0)
    assert int(model.rows.params.size()) == 0


@pytest.mark.usefixtures("mixed_float16")
def test_training_with_a_loss_scale_goes_on_in_a_loaded_model(tmp_path):
    model = half_model(keras.optimizers.Adam(0.01))
    fit_half(model)
    model.save(tmp_path / "m.keras")

    loaded = keras.saving.load_model(tmp_path / "m.keras")

    assert fit_half(loaded)[0].tolist() == fit_half(model)[0].tolist()
    assert int(loaded.optimizer.iterations) == 2


@pytest.mark.usefixtures("mixed_float16")
def test_a_load_that_would_scale_the_loss_says_how_to_load(tmp_path):
    # Keras keeps no `auto_scale_loss` in files, and scales where it loads.
    adam = keras.optimizers.Adam(0.01)
    model = half_model(adam, auto_scale_loss=False)
    fit_half(model)
    model.save(tmp_path / "m.keras")

    with pytest.raises(Exception, match="compile=False"):
        keras.saving.load_model(tmp_path / "m.keras")

    loaded = keras.saving.load_model(tmp_path / "m.keras", compile=False)
    was = model.get_layer("f16").params.lookup([10**15])
    now = loaded.get_layer("f16").params.lookup([10**15])
    np.testing.assert_array_equal(now, was)


def test_a_layer_never_asks_for_xla():
    assert not layers.Embedding(2, name="xla").supports_jit
    assert model_of().jit_compile is False


def test_the_optimizer_counts_steps_once():
    model = model_of()

    model.fit(batches(steps=3), verbose=0)

    assert int(model.optimizer.iterations) == 3


@pytest.mark.parametrize("depth", [1, 3])
def test_sequential_models_without_input_wait_for_ids(depth):
    layer = layers.Embedding(2, name="no_input", initializer=0.5)
    model = layer
    for _ in range(depth):
        model = keras.Sequential([model])
    model.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)), "mse"
    )

    model.fit(np.array([[10**15]]), np.ones([1, 1, 2]), verbose=0)

    found = model.predict(np.array([[10**15], [1]]), verbose=0)
    np.testing.assert_allclose(found[:, 0], [[1.0] * 2, [0.5] * 2], 1e-6)
    with pytest.raises(errors.UnsupportedError, match=r"keras\.Input"):
        layer(keras.Input((1,)))


def test_float_ids_of_a_subclassed_model_are_refused_when_it_runs():
    layer = layers.Embedding(2, name="floats")
    look_up = tf.function(layer)

    look_up.get_concrete_function(tf.TensorSpec([None], tf.float32))

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be int64"):
        look_up(tf.constant([1.0]))
