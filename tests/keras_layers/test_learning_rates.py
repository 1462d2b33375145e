"""A table's learning rate, in all forms that a Keras optimizer takes."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from keras_layers.test_callbacks import IDS, LABELS, fit
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding, Embedding

HALVES = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
KINDS = {
    "number": (0.5, [0.5, 0.5, 0.5]),
    "schedule": (HALVES, [0.5, 0.25, 0.125]),
    "callable": (lambda: 0.25, [0.25, 0.25, 0.25]),
    "function of the step": (
        lambda step: 1.0 / (tf.cast(step, tf.float32) + 1.0),
        [1, 1 / 2, 1 / 3],
    ),
    "tf.Variable": (tf.Variable(0.125), [0.125] * 3),
    "keras.Variable": (keras.Variable(0.125), [0.125] * 3),
}


def moves(embedding, steps=3):
    """How far a row goes in each step, whose gradient is -1."""
    found = []
    for _ in range(steps):
        embedding.enqueue(tf.constant([3]))
        before = embedding.dequeue().numpy()
        embedding.apply_gradients(-tf.ones([1, 2]))
        embedding.enqueue(tf.constant([3]), training=False)
        found.append((embedding.dequeue() - before).numpy()[0, 0])
    return found


def embedding_of(rate, size=8, **arguments):
    table = tfembed.TableConfig(size, 2, name="users")
    return tfembed.TPUEmbedding(
        tfembed.FeatureConfig(table, output_shape=[1]),
        tfembed.SGD(rate),
        **arguments,
    )


@pytest.mark.parametrize("size", [8, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_steps_at_its_rate(kind, size):
    rate, expected = KINDS[kind]
    found = moves(embedding_of(rate, size))
    np.testing.assert_allclose(found, expected, 1e-5)


def test_a_schedule_goes_by_the_steps_of_the_table_in_functions_too():
    embedding = embedding_of(HALVES)
    embedding.build(per_replica_batch_size=1)

    @tf.function
    def step(ids):
        embedding.enqueue(ids)
        activations = embedding.dequeue()
        embedding.apply_gradients(-tf.ones_like(activations))
        return activations

    found = [step(tf.constant([3])).numpy()[0, 0] for _ in range(4)]
    np.testing.assert_allclose(np.diff(found), [0.5, 0.25, 0.125], 1e-5)


def test_a_step_that_is_refused_is_not_counted():
    embedding = embedding_of(HALVES, nonfinite="refuse")
    embedding.build(per_replica_batch_size=1)

    @tf.function
    def step(gradient):
        embedding.enqueue(tf.constant([3]))
        embedding.dequeue()
        embedding.apply_gradients(gradient)

    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(tf.fill([1, 2], np.nan))
        embedding.reset_steps()
    np.testing.assert_allclose(moves(embedding), [0.5, 0.25, 0.125], 1e-5)


def test_a_checkpoint_has_the_count_of_a_schedule(tmp_path):
    embedding = embedding_of(HALVES)
    moves(embedding, 2)
    path = tf.train.Checkpoint(embedding=embedding).save(tmp_path / "steps")
    other = embedding_of(HALVES)
    other.build(per_replica_batch_size=1)
    tf.train.Checkpoint(embedding=other).restore(path).assert_consumed()
    np.testing.assert_allclose(moves(other, 1), [0.125], 1e-5)


def test_a_rate_of_none_needs_a_model_or_a_function():
    embedding = embedding_of(None)
    with pytest.raises(errors.StateError, match=r"\['users'\].*Compile it"):
        moves(embedding, 1)
    embedding = embedding_of(None)
    embedding.follow_learning_rate(lambda: HALVES(2))
    np.testing.assert_allclose(moves(embedding, 1), [0.125], 1e-5)


def model_of(rate, optimizer=None):
    """A model over two tables, by `tfembed.SGD(rate)`."""
    ids = {name: keras.Input((), dtype="int64", name=name) for name in IDS}
    tables = {
        "user": tfembed.TableConfig(16, 4, name="users"),
        "item": tfembed.TableConfig(None, 4, name="items"),
    }
    features = {k: tfembed.FeatureConfig(table) for k, table in tables.items()}
    layer = DistributedEmbedding(features, tfembed.SGD(rate), name="rows")
    parts = keras.layers.Concatenate()(list(layer(ids).values()))
    model = keras.Model(ids, keras.layers.Dense(1)(parts))
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse")
    return model


def numbers(model):
    return model.predict(IDS, batch_size=16, verbose=0)


def test_tables_with_a_rate_of_their_own_say_that_callbacks_do_not_reach_it():
    model = model_of(0.1)
    with pytest.warns(UserWarning) as told:
        fit(model, keras.callbacks.ReduceLROnPlateau("loss"), epochs=2)
    said = [str(one.message) for one in told if "Tables" in str(one.message)]
    assert len(said) == 1
    assert "['items', 'users']" in said[0]
    assert "ReduceLROnPlateau sets" in said[0]
    assert "learning_rate=None" in said[0]


def test_tables_with_a_rate_of_their_own_say_so_where_a_program_sets_it():
    model = model_of(0.1)
    fit(model, epochs=1)
    model.optimizer.learning_rate = 0.01
    with pytest.warns(UserWarning, match=r"\['items', 'users'\].*program"):
        fit(model, epochs=2)


def test_tables_with_a_rate_of_their_own_say_so_where_a_schedule_sets_it():
    model = model_of(0.1, keras.optimizers.SGD(HALVES))
    with pytest.warns(UserWarning) as told:
        fit(model, epochs=2)
    said = [str(one.message) for one in told if "Tables" in str(one.message)]
    assert len(said) == 1
    assert "['items', 'users']" in said[0] and "A schedule sets" in said[0]


@pytest.mark.parametrize("with_callback", [False, True])
def test_in_half_precision_callbacks_warn_and_constant_rates_do_not(
    with_callback,
):
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = model_of(0.1)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fit(model, *[plateau] * with_callback, epochs=1)
    finally:
        keras.config.set_dtype_policy("float32")
    said = [str(one.message) for one in told if "Tables" in str(one.message)]
    assert ["ReduceLROnPlateau sets" in one for one in said] == [
        True
    ] * with_callback


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_layer_with_an_optimizer_of_its_own_says_so_too(eagerly):
    ids = keras.Input((), dtype="int64")
    rows = Embedding(4, optimizer=tfembed.SGD(0.1), name="users")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eagerly)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Tables")
        model.train_on_batch(IDS["user"], LABELS)
    model.optimizer.learning_rate = 0.01
    with pytest.warns(UserWarning, match="users.*stay: The program has"):
        model.train_on_batch(IDS["user"], LABELS)


@pytest.mark.parametrize(
    "option", [{"use_ema": True}, {"gradient_accumulation_steps": 2}]
)
def test_an_option_that_tables_do_not_have_is_told_by_their_names(option):
    model = model_of(0.1, keras.optimizers.SGD(0.1, **option))
    match = rf"\['items', 'users'\].*{next(iter(option))}"
    with pytest.warns(UserWarning, match=match) as told:
        fit(model, epochs=2)
    assert len([one for one in told if "Tables" in str(one.message)]) == 1


@keras.saving.register_keras_serializable(package="tests")
def quarter():
    return 0.25


@pytest.mark.parametrize(
    ("rate", "loaded"),
    [
        (HALVES, [0.125]),
        (None, None),
        (quarter, [0.25]),
        (tf.Variable(0.125), [0.125]),
        (lambda: 0.25, [0.25]),
    ],
)
def test_a_saved_model_has_the_rate_of_its_tables(rate, loaded, tmp_path):
    is_lambda = getattr(rate, "__name__", "") == "<lambda>"
    model = model_of(rate)
    for _ in range(2):
        model.train_on_batch(IDS, LABELS)
    model.save(tmp_path / "model.keras")
    # Keras saves lambdas too, and loads them where one trusts the file.
    path = tmp_path / "model.keras"
    model = keras.saving.load_model(path, safe_mode=not is_lambda)
    optimizer = model.get_layer("rows").embedding.table_rates.plan.optimizers[0]
    if loaded is None:
        assert model.get_layer("rows").embedding.table_rates.following
        return
    rate = optimizer.learning_rate
    np.testing.assert_allclose(rate() if callable(rate) else rate, loaded[0])


def test_weights_of_a_constant_rate_load_where_there_is_a_schedule(tmp_path):
    path = str(tmp_path / "rows.weights.h5")
    model, other = model_of(0.1), model_of(HALVES)
    model.train_on_batch(IDS, LABELS)
    model.save_weights(path)
    other.train_on_batch(IDS, LABELS)
    with pytest.warns(UserWarning, match="begin anew, at step 0") as told:
        other.load_weights(path)
    np.testing.assert_array_equal(numbers(other), numbers(model))
    rates = other.get_layer("rows").embedding.table_rates
    assert [int(count) for count in rates.counts] == [0, 0]
    assert len([one for one in told if "anew" in str(one.message)]) == 1


def test_set_weights_leaves_the_count_of_a_schedule_as_it_is():
    model = model_of(HALVES)
    weights = model.get_weights()
    model.train_on_batch(IDS, LABELS)
    model.set_weights(weights)
    rates = model.get_layer("rows").embedding.table_rates
    assert [int(count) for count in rates.counts] == [1, 1]


def plain():
    return 0.5


def test_a_rate_that_loads_by_its_name_alone_is_told_when_it_is_saved(tmp_path):
    model = model_of(plain)
    with pytest.warns(UserWarning, match="custom_objects={'plain': plain}"):
        model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(
        tmp_path / "model.keras", custom_objects={"plain": plain}
    )
    plan = model.get_layer("rows").embedding.table_rates.plan
    assert plan.optimizers[0].learning_rate is plain
