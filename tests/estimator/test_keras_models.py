"""`model_to_estimator`: an Estimator's steps are those of the model's `fit`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfembed
from tfembed import errors, estimator
from tfembed.estimator import model_to_estimator

v1 = tf.compat.v1
random = np.random.default_rng(3)
X = random.normal(size=(24, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True) + 0.5
WEIGHTS = random.uniform(0.5, 1.5, 24).astype(np.float32)
BATCH = 8
CPUS = ["CPU:0", "CPU:1"]
KERNEL = {keras: "plain/sum/kernel", tf_keras: "sum/kernel"}
KINDS = pytest.mark.parametrize("kind", [keras, tf_keras])


def two_outputs(kind, optimizer=None):
    """A model with all that `compile` and layers add to a loss."""
    inputs = kind.Input((3,), name="x")
    hidden = kind.layers.BatchNormalization(name="normalized")(inputs)
    if kind is keras:  # Whose masks follow from a variable.
        hidden = keras.layers.Dropout(0.25, seed=5)(hidden)
    outputs = [
        kind.layers.Dense(
            1,
            kernel_initializer=kind.initializers.GlorotUniform(seed),
            kernel_regularizer="l2",
            name=name,
        )(hidden)
        for seed, name in enumerate("ab")
    ]
    model = kind.Model(inputs, outputs)
    model.compile(
        optimizer or kind.optimizers.Adam(0.05),
        ["mse", lambda labels, outputs: (labels - outputs) ** 4],
        loss_weights=[0.3, 2.0],
        metrics=[["mae"], ["mse"]],
        weighted_metrics=[[], [kind.metrics.MeanAbsoluteError(name="weighed")]],
    )
    return model


def data(batch=BATCH):
    rows = ({"x": X}, (Y, -Y), WEIGHTS)
    return tf.data.Dataset.from_tensor_slices(rows).batch(batch)


def input_fn():
    return data().map(lambda x, y, w: ({"features": x, "sample_weights": w}, y))


def fit(model, epochs=1):
    model.fit(data(), epochs=epochs, shuffle=False, verbose=0)
    return model


def plain(kind=keras, optimizer=None):
    model = kind.Sequential(
        [
            kind.Input((3,)),
            kind.layers.Dense(1, kernel_initializer="ones", name="sum"),
        ],
        name="plain",
    )
    optimizer = optimizer or kind.optimizers.Adam(0.05)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def plain_data(batch):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


def check_same(model, fitted):
    """Checks losses, metrics and predictions of an estimator."""
    results = model.evaluate(input_fn)
    expected = fitted.evaluate(data(), verbose=0, return_dict=True)
    assert set(results) == {
        "loss",
        "global_step",
        "a_mae",
        "b_mse",
        "b_weighed",
    }
    for name in set(results) - {"global_step"}:
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-5)
    (batch,) = (model.predict(lambda: {"x": X}, yield_single_examples=False),)
    batch = next(batch)
    assert set(batch) == {"a", "b"}
    for name, output in zip("ab", fitted.predict(X, verbose=0)):
        np.testing.assert_allclose(batch[name], output, rtol=1e-5, atol=1e-5)


@KINDS
def test_training_goes_on_where_fit_has_been_as_fit_goes_on(tmp_path, kind):
    given, fitted = fit(two_outputs(kind)), fit(two_outputs(kind))
    before = given.get_weights()
    model = model_to_estimator(given, model_dir=str(tmp_path))

    model.train(input_fn, steps=2)
    model.train(input_fn, steps=1)

    fitted.fit(data().take(2), shuffle=False, verbose=0)
    fitted.fit(data().take(1), shuffle=False, verbose=0)
    check_same(model, fitted)
    assert model.get_variable_value("global_step") == 3
    for now, then in zip(given.get_weights(), before):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf_keras.optimizers.legacy.Adam(0.05),
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5),
            momentum=0.5,
            global_clipnorm=1.0,
        ),
    ],
)
def test_optimizers_of_all_kinds_step_as_in_fit(tmp_path, make):
    kind = tf_keras if "tf_keras" in type(make()).__module__ else keras
    model = model_to_estimator(plain(kind, make()), model_dir=str(tmp_path))
    for _ in range(2):  # Slots and the step come back.
        model.train(lambda: plain_data(BATCH), steps=2)

    fitted = plain(kind, make())
    for _ in range(2):
        fitted.fit(plain_data(BATCH).take(2), shuffle=False, verbose=0)
    np.testing.assert_allclose(
        model.get_variable_value(KERNEL[kind]),
        fitted.get_weights()[0],
        rtol=1e-5,
    )


class Words(keras.Model):
    """A subclass with rows, a loop, and losses and outputs of its own."""

    def __init__(self):
        super().__init__()
        self.rows = keras.layers.Embedding(
            9,
            4,
            embeddings_initializer=keras.initializers.RandomUniform(seed=1),
        )
        self.walk = keras.layers.GRU(
            4, kernel_initializer="ones", recurrent_initializer="zeros"
        )
        self.out = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, words, training=False):
        found = self.walk(self.rows(words))
        if training:
            self.add_loss(tf.reduce_mean(found**2))
        return {"sum": self.out(found)}


def test_a_subclass_whose_weights_come_with_its_input_is_trained(tmp_path):
    words = random.integers(0, 9, (16, 5))
    sums = words.sum(1, keepdims=True).astype(np.float32)

    def batches():
        rows = words, {"sum": sums}
        return tf.data.Dataset.from_tensor_slices(rows).batch(4)

    def made():
        model = Words()
        model.compile("adam", {"sum": "mse"})
        return model

    given = made()
    model = model_to_estimator(given, model_dir=str(tmp_path))

    def once():
        return tf.data.Dataset.from_tensors(words[:1])

    next(model.predict(once))  # Makes the weights.
    fitted = made()
    fitted(words[:1])
    fitted.set_weights(given.get_weights())
    model.train(batches)
    fitted.fit(batches(), shuffle=False, verbose=0)

    predicted = [each["sum"] for each in model.predict(once)]
    np.testing.assert_allclose(
        predicted, fitted.predict(words[:1], verbose=0)["sum"], rtol=1e-5
    )


def test_replicas_of_a_strategy_train_as_fit_with_all_their_rows(tmp_path):
    strategy = tf.distribute.MirroredStrategy(CPUS)
    config = estimator.RunConfig(
        train_distribute=strategy, eval_distribute=strategy
    )
    model = model_to_estimator(plain(), model_dir=str(tmp_path), config=config)
    model.train(lambda: plain_data(BATCH // 2))
    results = model.evaluate(lambda: plain_data(BATCH // 2))

    fitted = plain()
    fitted.fit(plain_data(BATCH), shuffle=False, verbose=0)
    expected = fitted.evaluate(plain_data(BATCH), verbose=0, return_dict=True)
    for name in ("loss", "mae"):
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-5)
    assert results["global_step"] == len(X) // BATCH


def test_replicas_draw_masks_of_their_own(tmp_path):
    inputs = keras.Input((64,))
    scaled = keras.layers.EinsumDense("bi,i->bi", 64, name="scaled")
    model = keras.Model(inputs, scaled(keras.layers.Dropout(0.5)(inputs)))
    model.compile(
        keras.optimizers.SGD(1.0), lambda _, outputs: tf.reduce_sum(outputs, 1)
    )
    before = model.get_weights()[0]

    def ones():
        rows = np.ones([1, 64], np.float32), np.zeros([1], np.float32)
        return tf.data.Dataset.from_tensors(rows).repeat()

    made = model_to_estimator(
        model,
        model_dir=str(tmp_path),
        config=estimator.RunConfig(
            train_distribute=tf.distribute.MirroredStrategy(CPUS)
        ),
    )

    made.train(ones, steps=1)
    first = before - made.get_variable_value("scaled/kernel")
    made.train(ones, steps=1)
    second = before - first - made.get_variable_value("scaled/kernel")

    # The mean of two masks of 0 and 2: other values show that they differ.
    assert set(np.round(first, 4)) == {0, 1, 2}
    assert not np.allclose(first, second)


def raw_receiver():
    return estimator.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )()


@KINDS
def test_outputs_are_exported_as_asked(tmp_path, kind):
    given = two_outputs(kind)
    model = model_to_estimator(
        given,
        model_dir=str(tmp_path / "model"),
        export_outputs={"a": estimator.export.RegressionOutput},
        metric_names_map={"a_mae": "one", "b_mse": "two", "b_weighed": "three"},
    )
    folder = model.export_saved_model(str(tmp_path / "out"), raw_receiver)
    loaded = tf.saved_model.load(folder.decode())
    row = tf.train.Example()
    row.features.feature["x"].float_list.value.extend(X[0])
    served = loaded.signatures["a"](tf.constant([row.SerializeToString()]))

    assert set(loaded.signatures) == {"serving_default", "a"}
    np.testing.assert_allclose(
        served["outputs"], given.predict(X[:1], verbose=0)[0], rtol=1e-5
    )
    assert {"one", "two", "three"} < set(model.evaluate(input_fn, steps=1))


@KINDS
def test_checkpoints_by_object_are_those_of_the_model(tmp_path, kind):
    given = plain(kind)
    model = model_to_estimator(
        given, model_dir=str(tmp_path), checkpoint_format="checkpoint"
    )
    for _ in range(2):
        model.train(lambda: plain_data(BATCH), steps=2)

    fitted = plain(kind)
    fitted.fit(plain_data(BATCH).take(2), epochs=2, shuffle=False, verbose=0)
    status = tf.train.Checkpoint(given).restore(model.latest_checkpoint())
    status.assert_nontrivial_match()
    assert model.get_variable_value("global_step") == 4
    for restored, expected in zip(given.get_weights(), fitted.get_weights()):
        np.testing.assert_allclose(restored, expected, rtol=1e-5, atol=1e-6)


@KINDS
def test_a_model_is_read_from_its_file(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(tf, "keras", kind)
    given = plain(kind)
    given.save(tmp_path / "model.keras")
    model = model_to_estimator(
        keras_model_path=tmp_path / "model.keras", model_dir=str(tmp_path)
    )

    found = next(model.predict(lambda: X[:1]))

    (value,) = found.values()
    np.testing.assert_allclose(value, [X[0].sum()], rtol=1e-5)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return {"loss": 0.0}


def looked_up():
    table = tfembed.keras.layers.Embedding(2, name="users")
    return keras.Sequential([keras.Input((1,), dtype="int64"), table])


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        (lambda: object(), errors.DtypeError, "must be a model of Keras 3"),
        (lambda: OwnStep([keras.layers.Dense(1)]), errors.UnsupportedError,
         r"overrides \['train_step'\]"),
        (looked_up, errors.UnsupportedError, r"tables.*'users' \(Embedding\)"),
    ],
)  # fmt: skip
def test_a_model_that_no_estimator_can_train_is_refused(
    tmp_path, model, error, text
):
    given = model()
    if isinstance(given, keras.Model):
        given.compile("sgd", "mse")
    with pytest.raises(error, match=text):
        model_to_estimator(given, model_dir=str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_arguments_that_contradict_are_refused(tmp_path):
    for options, text in (
        ({}, "either `keras_model` or"),
        ({"keras_model": plain(), "keras_model_path": "x"}, "either"),
        ({"keras_model": plain(), "checkpoint_format": "h5"}, '"saver" or'),
        ({"keras_model": keras.Sequential()}, "not been compiled"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            model_to_estimator(**options)
    with tf.Graph().as_default(), pytest.raises(errors.StateError):
        model_to_estimator(plain(), model_dir=str(tmp_path))
    model = model_to_estimator(
        plain(),
        model_dir=str(tmp_path),
        metric_names_map={"mse": "error"},
        export_outputs={"z": estimator.export.RegressionOutput},
    )
    with pytest.raises(errors.ArgumentError, match=r"\['mae'\]; got .*'mse'"):
        model.evaluate(lambda: plain_data(BATCH))
    with pytest.raises(errors.ArgumentError, match=r"\['z'\], which are no"):
        next(model.predict(lambda: X))
    with pytest.raises(errors.ArgumentError, match=r"lack the inputs \['x'\]"):
        next(model_to_estimator(two_outputs(keras)).predict(lambda: {"y": X}))
