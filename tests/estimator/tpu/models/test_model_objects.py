"""Model objects in place of model_fns."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.embeddings import test_in_estimators as tables
from tests.estimator.tpu import replica_model
from tests.estimator.tpu.models import linear_objects
from tests.estimator.tpu.replica_model import X, Y
from tfembed import errors
from tfembed import estimator as tf_estimator
from tfembed.estimator import tpu

ROWS = 21


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


@pytest.mark.parametrize("replicas", [0, 2, 4])
@pytest.mark.parametrize("kind", ["compiled", "Plain"])
def test_a_model_trains_evaluates_and_predicts_on_replicas(
    tmp_path, kind, replicas
):
    model = linear_objects.make(
        tmp_path, replicas, getattr(linear_objects, kind)
    )
    model.train(replica_model.train_fn, steps=6)
    model.train(replica_model.train_fn, max_steps=10)
    results = model.evaluate(replica_model.some(ROWS))
    found = list(model.predict(replica_model.some(ROWS)))

    # The second call begins the data anew.
    weight, bias = replica_model.trained([0, 1, 2, 3, 4, 5, 0, 1, 2, 3])
    for got, expected in zip(linear_objects.weights(model), (weight, bias)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    predicted = X[:ROWS] @ weight + bias
    np.testing.assert_allclose(found, predicted, rtol=1e-4, atol=1e-5)
    error = predicted - Y[:ROWS]
    assert results["global_step"] == 10
    np.testing.assert_allclose(results["mae"], np.abs(error).mean(), rtol=1e-4)
    np.testing.assert_allclose(results["loss"], (error**2).mean(), rtol=1e-4)


def check_trained(model, steps):
    for got, expected in zip(
        linear_objects.weights(model), replica_model.trained(steps)
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pipeline", ["PER_SHARD_V1", "PER_HOST_V2"])
def test_input_is_dealt_as_the_plan_says(tmp_path, monkeypatch, pipeline):
    monkeypatch.setenv("TFEMBED_SIMULATED_HOSTS", "2")
    calls = []

    def input_fn(params):
        _, call, num_calls, _ = params["context"].current_input_fn_deployment()
        size = params["batch_size"]
        calls.append((call, num_calls, size))
        parts = np.arange(64).reshape(4, 16 // size, size)
        per_call = 16 // size // num_calls
        rows = parts[:, call * per_call : (call + 1) * per_call].reshape(-1)
        data = tf.data.Dataset.from_tensor_slices(({"x": X[rows]}, Y[rows]))
        return data.batch(size, drop_remainder=True)

    model = linear_objects.make(
        tmp_path,
        4,
        linear_objects.Plain,
        tpu_config={
            "per_host_input_for_training": getattr(
                tpu.InputPipelineConfig, pipeline
            )
        },
    )
    model.train(input_fn, steps=9)  # The data end after four.

    expected = 4 if pipeline == "PER_SHARD_V1" else 2
    assert calls == [(i, expected, 4) for i in range(expected)]
    assert model.get_variable_value(STEP) == 4
    check_trained(model, 4)


STEP = "global_step/.ATTRIBUTES/VARIABLE_VALUE"


def test_a_broadcast_batch_counts_once(tmp_path):
    model = linear_objects.make(
        tmp_path,
        2,
        tpu_config={
            "per_host_input_for_training": tpu.InputPipelineConfig.BROADCAST
        },
    )
    model.train(replica_model.train_fn, steps=3)
    results = model.evaluate(replica_model.some(ROWS))
    found = list(model.predict(replica_model.some(ROWS)))

    check_trained(model, 3)
    weight, bias = replica_model.trained(3)
    predicted = X[:ROWS] @ weight + bias
    np.testing.assert_allclose(found, predicted, rtol=1e-4, atol=1e-5)
    mae = np.abs(predicted - Y[:ROWS]).mean()
    np.testing.assert_allclose(results["mae"], mae, rtol=1e-4)


@pytest.mark.parametrize("saves_input", [True, False])
def test_training_goes_on_from_its_checkpoint_with_slots(tmp_path, saves_input):
    def train(folder, *goals):
        for goal in goals:
            linear_objects.make(
                folder,
                2,
                lambda: linear_objects.compiled(keras.optimizers.Adam(0.1)),
                run_config={"save_input_state": saves_input},
            ).train(input_fn, max_steps=goal)
        return linear_objects.make(folder, 2)

    def input_fn(params):
        if saves_input:
            return replica_model.train_fn(params)
        return replica_model.some(16)(params).repeat()

    once = train(tmp_path / "once", 6)
    twice = train(tmp_path / "twice", 3, 6)

    names = [
        name
        for name in once.get_variable_names()
        if "Adam" in name or "_variables" in name
    ]
    assert len(names) > 5
    for name in names:
        np.testing.assert_array_equal(
            once.get_variable_value(name), twice.get_variable_value(name)
        )


class Notes:
    """A callback with some of Keras' methods."""

    def __init__(self):
        self.seen = []

    def set_model(self, model):
        self.model = model

    def on_train_begin(self):
        self.seen.append("begin")

    def on_train_batch_end(self, step, logs):
        self.seen.append((step, logs["loss"] > 0))
        self.model.stop_training = step >= 4

    def on_test_batch_end(self, batch, logs):
        self.seen.append(("test", batch))

    def on_test_end(self, logs):
        self.seen.append(sorted(logs))

    def on_predict_batch_end(self, batch, logs):
        self.seen.append(("predict", batch))


def test_callbacks_hear_of_loops_and_can_end_training(tmp_path, caplog):
    notes = Notes()
    model = linear_objects.make(tmp_path, 0, linear_objects.Plain, iterations=2)
    model.train(replica_model.train_fn, steps=10, callbacks=[notes])
    model.evaluate(replica_model.some(ROWS), callbacks=[notes])
    list(model.predict(replica_model.some(5), callbacks=[notes]))

    assert notes.seen == [
        "begin",
        (2, True),
        (4, True),
        ("test", 1),
        ("test", 2),
        ["global_step", "loss", "mae"],
        ("predict", 1),
    ]


def test_a_model_is_trained_and_evaluated_and_exported(tmp_path):
    receiver = tf_estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, 3], tf.float32, name="x")}
    )
    model = linear_objects.make(
        tmp_path / "model", 2, run_config={"save_checkpoints_steps": 4}
    )
    results, exported = tf_estimator.train_and_evaluate(
        model,
        tf_estimator.TrainSpec(replica_model.train_fn, max_steps=8),
        tf_estimator.EvalSpec(
            replica_model.some(ROWS),
            throttle_secs=0,
            exporters=tf_estimator.FinalExporter("final", receiver),
        ),
    )
    signature = tf.saved_model.load(exported[0]).signatures["serving_default"]
    (served,) = signature(x=tf.constant(X[:5])).values()

    weight, bias = replica_model.trained(8)
    assert results["global_step"] == 8
    np.testing.assert_allclose(served, X[:5] @ weight + bias, rtol=1e-4)


def test_examples_are_parsed_where_a_model_is_served(tmp_path):
    model = linear_objects.make(tmp_path / "model", 0, linear_objects.Plain)
    model.train(replica_model.train_fn, steps=2)
    receiver = tf_estimator.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    folder = model.export_saved_model(str(tmp_path / "served"), receiver)
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(
                        float_list=tf.train.FloatList(value=row)
                    )
                }
            )
        ).SerializeToString()
        for row in X[:5]
    ]
    loaded = tf.saved_model.load(folder.decode())
    served = loaded.signatures["serving_default"](
        examples=tf.constant(examples)
    )["output"]

    weight, bias = replica_model.trained(2)
    np.testing.assert_allclose(served, X[:5] @ weight + bias, rtol=1e-4)


def normalized():
    inputs = {"x": keras.Input((3,), name="x")}
    layer = keras.layers.BatchNormalization(momentum=0.5)(inputs["x"])
    layer = keras.layers.Dropout(0.25)(layer)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("replicas", [0, 2])
def test_layers_that_assign_train(tmp_path, replicas):
    def input_fn(params):
        rows = np.tile(np.arange(8), 2)  # Each of two replicas has the same.
        data = tf.data.Dataset.from_tensors(({"x": X[rows]}, Y[rows]))
        return data.repeat().unbatch().batch(params["batch_size"], True)

    model = linear_objects.make(tmp_path, replicas, normalized)
    model.train(input_fn, steps=2)
    (mean,) = [
        model.get_variable_value(name)
        for name in model.get_variable_names()
        if "moving_mean" in name
    ]

    np.testing.assert_allclose(mean, 0.75 * X[:8].mean(0), rtol=1e-5)


def test_what_is_no_model_is_refused(tmp_path):
    made = linear_objects.make
    with pytest.raises(errors.ArgumentError, match="function that makes"):
        made(tmp_path, 0, linear_objects.compiled())
    with pytest.raises(errors.UnsupportedError, match="host_features"):
        made(tmp_path, 0, host_features=["x"])
    with pytest.raises(errors.UnsupportedError, match="checkpoint's path"):
        made(
            tmp_path,
            0,
            warm_start_from=tf_estimator.WarmStartSettings("somewhere"),
        )
    for make_model, text in (
        (
            lambda: keras.Sequential([keras.layers.Dense(1)]),
            "Compile the model",
        ),
        (lambda: object(), r"lacks \['__call__', 'loss', 'optimizer'\]"),
    ):
        model = made(tmp_path, 0, make_model)
        with pytest.raises(errors.DtypeError, match=text):
            model.train(replica_model.train_fn, steps=1)

    class WithLossOfKeras(linear_objects.Plain):
        loss = keras.losses.MeanSquaredError()

    with pytest.raises(errors.DtypeError, match="divides by the number"):
        made(tmp_path, 0, WithLossOfKeras).train(
            replica_model.train_fn, steps=1
        )


def test_what_goes_with_sessions_is_refused(tmp_path):
    model = linear_objects.make(tmp_path, 2, linear_objects.Plain)
    hooks = [tf.compat.v1.train.SessionRunHook()]
    with pytest.raises(errors.UnsupportedError, match=r"callbacks=\["):
        model.train(replica_model.train_fn, hooks, steps=1)
    with pytest.raises(errors.UnsupportedError, match=r"callbacks=\["):
        model.evaluate(replica_model.train_fn, hooks=hooks, steps=1)
    with pytest.raises(errors.UnsupportedError, match="hooks="):
        replica_model.make(tmp_path).train(
            replica_model.train_fn, steps=1, callbacks=[Notes()]
        )
    with pytest.raises(ValueError, match="one of `steps` or `max_steps`"):
        model.train(replica_model.train_fn)
    with pytest.raises(errors.DtypeError, match="must return a tf.data.Data"):
        model.train(lambda params: {"x": X}, steps=1)
    with (
        tf.Graph().as_default(),
        pytest.raises(errors.StateError, match="eager"),
    ):
        model.train(replica_model.train_fn, steps=1)


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    linear_objects.make(tmp_path, 0).train(replica_model.train_fn, steps=1)
    with pytest.raises(errors.CheckpointError, match="is not of this model"):
        linear_objects.make(tmp_path, 0, normalized).train(
            replica_model.train_fn, steps=1
        )


class Dots(tf.Module):
    """The model of test_in_estimators' model_fn, without its tables."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.fill([8, 1], 0.2))
        self.optimizer = keras.optimizers.SGD(0.1)

    def __call__(self, features):
        layer = tf.concat([features["user"], features["bag"]], 1)
        return {"logit": (layer @ self.w)[:, 0]}

    def loss(self, labels, predictions):
        return (predictions["logit"] - labels) ** 2


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.parametrize("vocabulary", [50, None])
def test_tables_train_as_those_of_a_model_fn(tmp_path, vocabulary, replicas):
    experimental = tpu.experimental
    spec = tables.dict_spec(
        vocabulary,
        experimental.AdagradParameters(0.1, use_gradient_accumulation=True),
        learning_rate_fn=lambda step: 0.1 / tf.cast(step + 1, tf.float32),
    )
    outcomes = []
    for kind in ("model_fn", "model"):
        estimator = linear_objects.make(
            tmp_path / kind, replicas, Dots, embedding_config_spec=spec
        )
        if kind == "model_fn":
            estimator = tables.make(tmp_path / kind, spec, replicas)
        estimator.train(tables.input_fn_of(), steps=8)
        found = estimator.predict(tables.input_fn_of(2))
        outcomes.append([float(each["logit"]) for each in found])

    assert len(outcomes[1]) == 2 * tables.BATCH
    np.testing.assert_allclose(outcomes[1], outcomes[0], rtol=1e-5)


def test_tables_of_a_model_are_served(tmp_path):
    spec = tables.dict_spec(
        None, tpu.experimental.StochasticGradientDescentParameters(0.5)
    )
    model = linear_objects.make(
        tmp_path / "model", 2, Dots, embedding_config_spec=spec
    )
    model.train(tables.input_fn_of(), steps=4)
    predicted = [row["logit"] for row in model.predict(tables.input_fn_of(1))]
    receiver = tf_estimator.export.build_raw_serving_input_receiver_fn(
        {
            "user": tf.TensorSpec([None], tf.int64, name="user"),
            "bag": tf.TensorSpec([None, 3], tf.int64, name="bag"),
        }
    )
    folder = model.export_saved_model(str(tmp_path / "served"), receiver)
    loaded = tf.saved_model.load(folder.decode())
    batch, _ = next(iter(tables.input_fn_of(1)({"batch_size": tables.BATCH})))
    served = loaded.signatures["serving_default"](**batch)

    np.testing.assert_allclose(served["logit"], predicted, rtol=1e-5)


def test_a_model_of_tf_keras_runs(tmp_path):
    tf_keras = pytest.importorskip("tf_keras")

    def make_model():
        inputs = {"x": tf_keras.Input((3,), name="x")}
        layer = tf_keras.layers.Dense(1, kernel_initializer="zeros")
        model = tf_keras.Model(inputs, layer(inputs["x"]))
        rate = replica_model.RATE
        model.compile(tf_keras.optimizers.SGD(rate), "mse", metrics=["mae"])
        return model

    model = linear_objects.make(tmp_path, 2, make_model)
    model.train(replica_model.train_fn, steps=5)
    results = model.evaluate(replica_model.some(ROWS))

    weight, bias = replica_model.trained(5)
    error = X[:ROWS] @ weight + bias - Y[:ROWS]
    np.testing.assert_allclose(results["mae"], np.abs(error).mean(), rtol=1e-4)
    np.testing.assert_allclose(results["loss"], (error**2).mean(), rtol=1e-4)


def test_static_shapes_keep_padding_out_of_weighted_metrics(tmp_path):
    def make_model():
        model = linear_objects.compiled()
        model.compile("sgd", "mse", weighted_metrics=["mae"])
        return model

    model = linear_objects.make(
        tmp_path, 2, make_model, tpu_config={"strict_tpu": True}
    )
    results = model.evaluate(replica_model.some(ROWS))
    found = list(model.predict(replica_model.some(ROWS)))

    expected = np.abs(Y[:ROWS]).mean()
    name = next(
        name for name in results if name.startswith("mean_abs") or name == "mae"
    )
    np.testing.assert_allclose(results[name], expected, rtol=1e-5)
    assert len(found) == ROWS


def test_an_evaluation_of_no_rows_has_no_metrics(tmp_path, caplog):
    model = linear_objects.make(tmp_path, 0)

    with caplog.at_level("WARNING", "tensorflow"):
        found = model.evaluate(replica_model.some(0))

    assert np.isnan(found["loss"])
    assert np.isnan(found["mae"])
    assert "saw no rows" in caplog.text


@pytest.mark.parametrize("rows", [24, 21])
def test_groups_of_padding_are_not_predicted(tmp_path, rows):
    class Means(linear_objects.Plain):
        def __call__(self, features, training):
            return tf.reduce_mean(tf.reshape(features["x"], [-1, 4, 3]), 1)

    # Static shapes: batches are not cut to their rows.
    model = linear_objects.make(
        tmp_path, 2, Means, tpu_config={"strict_tpu": True}
    )
    predictions = model.predict(replica_model.some(rows))

    if rows % 4:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="would count padding"
        ):
            list(predictions)
    else:
        expected = X[:rows].reshape([-1, 4, 3]).mean(1)
        np.testing.assert_allclose(list(predictions), expected, rtol=1e-5)


def test_a_warm_start_takes_the_model_and_not_the_step(tmp_path):
    first = linear_objects.make(tmp_path / "first", 0)
    first.train(replica_model.train_fn, steps=5)
    second = linear_objects.make(
        tmp_path / "second", 2, warm_start_from=str(tmp_path / "first")
    )
    second.train(replica_model.train_fn, steps=1)

    assert second.get_variable_value(STEP) == 1
    check_trained(second, [0, 1, 2, 3, 4, 0])
