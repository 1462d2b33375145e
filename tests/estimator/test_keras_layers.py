"""Layers of Keras 3 inside of model_fns have names, updates and seeds."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors
from tfembed import estimator as estimator_lib
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1
ROWS, WIDTH, BATCHES, RATE = 8, 3, 4, 0.1
_random = np.random.default_rng(3)
X = _random.normal(2.0, 1.5, (BATCHES, ROWS, WIDTH)).astype(np.float32)
IDS = _random.integers(0, 5, (BATCHES, ROWS)).astype(np.int32)
TABLE = _random.normal(size=(5, 2)).astype(np.float32)
Y = _random.normal(size=(BATCHES, ROWS, 1)).astype(np.float32)


def batches(epochs=None):
    data = tf.data.Dataset.from_tensor_slices(({"x": X, "ids": IDS}, Y))
    return data.repeat(epochs)


def rows_fn(params):
    x, ids, y = X.reshape(-1, WIDTH), IDS.reshape(-1), Y.reshape(-1, 1)
    data = tf.data.Dataset.from_tensor_slices(({"x": x, "ids": ids}, y))
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def rows_once(params):
    return rows_fn(params).take(BATCHES)


def once():
    return batches(1)


def _spec(mode, outputs, labels, predictions=None, *, sums=False):
    if mode == ModeKeys.PREDICT:
        predictions = predictions or {"y": outputs}
        return tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    if sums:
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, v1.train.get_global_step()),
    )


def linear(features, labels, mode, params):
    """A Dense layer over an Embedding and the features."""
    table = keras.layers.Embedding(
        5, 2, embeddings_initializer=lambda shape, dtype: tf.constant(TABLE)
    )
    rows = table(features["ids"])
    both = tf.concat([features["x"], rows], 1)
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(both)
    return _spec(mode, outputs, labels, sums=params.get("sums", False))


def normalized(features, labels, mode, params):
    layer = keras.layers.BatchNormalization(momentum=0.9, scale=False)
    x = layer(features["x"], training=mode == ModeKeys.TRAIN)
    outputs = tf.reduce_sum(x, 1, keepdims=True)
    return _spec(
        mode, outputs, labels, {"x": x}, sums=params.get("sums", False)
    )


def masked(features, labels, mode, params):
    """Drops ones twice by a layer, in every mode."""
    layer = keras.layers.Dropout(0.5)
    # The input ends predictions. Wide: no two masks are the same by chance.
    ones = tf.tile(0 * features["x"] + 1, [1, 8])
    first = layer(ones, training=True)
    second = layer(ones, training=True)
    weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())
    outputs = weight * tf.reduce_sum(first, 1, keepdims=True)
    both = {"first": first, "second": second}
    for name, mask in both.items():
        v1.add_to_collection(name, mask)
    return _spec(mode, outputs, labels, both, sums=params.get("sums", False))


class Fetched(v1.train.SessionRunHook):
    """Notes tensors of collections in each run of the session."""

    def __init__(self, *names):
        self._names, self.values = names, []

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(
            [v1.get_collection(name)[0] for name in self._names]
        )

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results)


def make(model_fn, folder, **params):
    def of_cpu(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        return spec.as_estimator_spec()

    config = estimator_lib.RunConfig(save_summary_steps=0, tf_random_seed=5)
    return estimator_lib.Estimator(of_cpu, str(folder), config, params)


def make_replicated(model_fn, folder, replicas=2):
    config = tpu.RunConfig(
        model_dir=str(folder),
        tpu_config=tpu.TPUConfig(
            num_shards=replicas,
            iterations_per_loop=1,
            check_cross_replica=False,
        ),
    )
    return tpu.TPUEstimator(
        model_fn,
        config=config,
        params={"sums": True},
        train_batch_size=ROWS,
        eval_batch_size=ROWS,
        predict_batch_size=ROWS,
    )


def trained(table, steps):
    """What NumPy says of table, kernel and bias after so many steps."""
    table = table.astype(np.float64)
    kernel, bias = np.ones((WIDTH + 2, 1)), np.zeros(1)
    for step in range(steps):
        ids = IDS[step % BATCHES]
        both = np.concatenate([X[step % BATCHES], table[ids]], 1)
        slope = 2 * (both @ kernel + bias - Y[step % BATCHES]) / ROWS
        towards = slope @ kernel[WIDTH:].T
        kernel = kernel - RATE * both.T @ slope
        bias = bias - RATE * slope.sum(0)
        np.subtract.at(table, ids, RATE * towards)
    return table, kernel, bias


def _check_linear(model):
    found = {
        name: model.get_variable_value(name)
        for name in ("embedding/embeddings", "dense/kernel", "dense/bias")
    }
    return list(found.values())


@pytest.mark.parametrize("replicas", [0, 2])
def test_dense_and_embedding_train_as_numpy_says(replicas, tmp_path):
    model = make(linear, tmp_path)
    input_fn = batches
    if replicas:
        model = make_replicated(linear, tmp_path, replicas)
        input_fn = rows_fn
    model.train(input_fn, steps=5)

    for value, expected in zip(_check_linear(model), trained(TABLE, 5)):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_initial_values_follow_from_the_random_seed_in_every_mode(tmp_path):
    found = []

    class Read(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            found.append(session.run(v1.trainable_variables())[0])

    def drawn(features, labels, mode, params):
        return _spec(mode, keras.layers.Dense(1)(features["x"]), labels)

    next(make(drawn, tmp_path / "a").predict(once, hooks=[Read()]))
    make(drawn, tmp_path / "b").train(batches, steps=1, hooks=[Read()])

    np.testing.assert_array_equal(found[0], found[1])


def test_evaluate_predict_and_export_find_the_checkpoints_variables(tmp_path):
    model = make(linear, tmp_path / "model")
    model.train(batches, steps=3)
    table, kernel, bias = _check_linear(model)
    both = np.concatenate([X, table[IDS]], 2)
    expected = both @ kernel + bias

    results = model.evaluate(once)
    predicted = np.array([row["y"] for row in model.predict(once)])
    folder = model.export_saved_model(str(tmp_path / "out"), _receiver)
    served = tf.saved_model.load(folder.decode()).signatures["serving_default"]
    answer = served(x=tf.constant(X[0]), ids=tf.constant(IDS[0]))

    assert results["loss"] == pytest.approx(((expected - Y) ** 2).mean())
    np.testing.assert_allclose(
        predicted, expected.reshape(-1, 1), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(answer["y"], expected[0], rtol=1e-4, atol=1e-5)


def _receiver():
    given = {
        "x": v1.placeholder(tf.float32, [None, WIDTH]),
        "ids": v1.placeholder(tf.int32, [None]),
    }
    return estimator_lib.export.ServingInputReceiver(given, given)


@pytest.mark.parametrize("replicas", [0, 2])
def test_moving_statistics_move_in_training_and_are_used_after(
    replicas, tmp_path
):
    model, input_fn, rows, predict_fn = (
        make(normalized, tmp_path),
        batches,
        ROWS,
        once,
    )
    if replicas:
        model = make_replicated(normalized, tmp_path)
        input_fn, rows = rows_fn, ROWS // replicas  # Replica 0's are kept.
        predict_fn = rows_once
    model.train(input_fn, steps=BATCHES)
    mean, variance = np.zeros(WIDTH), np.ones(WIDTH)
    for x in X.astype(np.float64):
        mean = 0.9 * mean + 0.1 * x[:rows].mean(0)
        variance = 0.9 * variance + 0.1 * x[:rows].var(0)
    beta = model.get_variable_value("batch_normalization/beta")
    expected = (X - mean) / np.sqrt(variance + 1e-3) + beta

    predicted = [row["x"] for row in model.predict(predict_fn)]

    for name, value in (("mean", mean), ("variance", variance)):
        np.testing.assert_allclose(
            model.get_variable_value(f"batch_normalization/moving_{name}"),
            value,
            rtol=1e-4,
        )
    np.testing.assert_allclose(
        predicted, expected.reshape(-1, WIDTH), rtol=1e-3, atol=1e-4
    )


def _masks(model, input_fn, steps=3):
    hook = Fetched("first", "second")
    model.train(input_fn, steps=steps, hooks=[hook])
    return [mask for masks in hook.values for mask in masks]


def test_dropout_draws_another_mask_at_each_call_and_step(tmp_path):
    masks = _masks(make(masked, tmp_path), batches)

    assert len({mask.tobytes() for mask in masks}) == 6


def test_masks_follow_from_the_random_seed_of_the_config(tmp_path):
    first = _masks(make(masked, tmp_path / "a"), batches)
    again = _masks(make(masked, tmp_path / "b"), batches)

    np.testing.assert_array_equal(first, again)


def test_masks_go_on_after_a_checkpoint(tmp_path):
    whole = _masks(make(masked, tmp_path / "a"), batches, steps=4)
    halves = [
        mask
        for _ in range(2)
        for mask in _masks(make(masked, tmp_path / "b"), batches, steps=2)
    ]

    np.testing.assert_array_equal(whole, halves)


def test_predictions_that_draw_do_not_repeat_a_mask(tmp_path):
    model = make(masked, tmp_path)
    model.train(batches, steps=1)

    found = list(model.predict(once, yield_single_examples=False))

    drawn = {b[name].tobytes() for b in found for name in ("first", "second")}
    assert len(drawn) == 2 * BATCHES


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_draw_masks_of_their_own(replicas, tmp_path):
    model = make_replicated(masked, tmp_path, replicas)
    model.train(rows_fn, steps=1)
    found = list(model.predict(rows_once, yield_single_examples=False))

    drawn = [
        part.tobytes()
        for batch in found
        for name in ("first", "second")
        for part in np.split(batch[name], replicas)
    ]

    assert len(set(drawn)) == 2 * BATCHES * replicas


def test_names_outside_of_model_fns_count_on(tmp_path):
    before = keras.layers.Dense(1).name
    make(linear, tmp_path).train(batches, steps=1)
    after = keras.layers.Dense(1).name

    number = int(before.partition("_")[2] or 0)
    assert after == f"dense_{number + 1}"


def test_layers_that_were_made_outside_are_refused(tmp_path):
    layer = keras.layers.Dense(1)
    layer.build((None, WIDTH))

    def outside(features, labels, mode, params):
        return _spec(mode, layer(features["x"]), labels)

    with pytest.raises(errors.StateError, match="layers in model_fn"):
        make(outside, tmp_path).train(batches, steps=1)


def test_layers_of_another_call_are_refused(tmp_path):
    layer = keras.layers.Dense(1)

    def shared(features, labels, mode, params):
        return _spec(mode, layer(features["x"]), labels)

    model = make(shared, tmp_path)
    model.train(batches, steps=1)

    with pytest.raises(errors.StateError, match="in each call"):
        model.evaluate(once)


def test_updates_in_a_loop_of_version_1_are_refused(tmp_path):
    def looping(features, labels, mode, params):
        layer = keras.layers.BatchNormalization()
        layer.build((None, WIDTH))
        v1.disable_control_flow_v2()
        try:
            x = v1.while_loop(
                lambda i, x: i < 2,
                lambda i, x: (i + 1, layer(x, training=True)),
                [0, features["x"]],
                shape_invariants=[
                    tf.TensorShape([]),
                    tf.TensorShape([None, WIDTH]),
                ],
            )[1]
        finally:
            v1.enable_control_flow_v2()
        return _spec(mode, x[:, :1], labels)

    with pytest.raises(errors.UnsupportedError, match="control_flow_v2"):
        make(looping, tmp_path).train(batches, steps=1)


def _mirrored(model_fn, folder):
    def of_cpu(features, labels, mode, params):
        return model_fn(features, labels, mode, params).as_estimator_spec()

    config = estimator_lib.RunConfig(
        save_summary_steps=0,
        train_distribute=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    )
    return estimator_lib.Estimator(of_cpu, str(folder), config, {})


def test_layers_without_updates_train_under_a_strategy(tmp_path):
    model = _mirrored(linear, tmp_path)
    model.train(batches, steps=1)

    # A step sums the gradients of two batches, each loss scaled by a half.
    slope = np.zeros(1)
    for batch in range(2):
        both = np.concatenate([X[batch], TABLE[IDS[batch]]], 1)
        slope += (both.sum(1, keepdims=True) - Y[batch]).mean(0)
    np.testing.assert_allclose(
        model.get_variable_value("dense/bias"), -RATE * slope, rtol=1e-4
    )


def test_an_optimizer_of_keras_steps_as_in_eager_mode(tmp_path):
    def model_fn(features, labels, mode):
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        loss = tf.reduce_mean(tf.square(layer(features["x"]) - labels))
        weights = layer.trainable_variables
        gradients = tf.gradients(loss, [weight.value for weight in weights])
        keras.optimizers.Adam(RATE).apply(gradients, weights)
        step = v1.train.get_global_step().assign_add(1)
        return estimator_lib.EstimatorSpec(mode, loss=loss, train_op=step)

    model = estimator_lib.Estimator(model_fn, str(tmp_path))
    for _ in range(2):  # Slots go on from the checkpoint.
        model.train(batches, steps=2)
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    optimizer = keras.optimizers.Adam(RATE)
    for step in (0, 1, 0, 1):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(X[step]) - Y[step]))
        weights = layer.trainable_variables
        optimizer.apply(
            tape.gradient(loss, [weight.value for weight in weights]), weights
        )

    for name, weight in (("kernel", layer.kernel), ("bias", layer.bias)):
        np.testing.assert_allclose(
            model.get_variable_value(f"dense/{name}"), weight, rtol=1e-5
        )


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.parametrize("runs_updates", [True, False])
def test_updates_of_tf_keras_that_nothing_runs_are_named(
    tmp_path, caplog, runs_updates, replicas
):
    tf_keras = pytest.importorskip("tf_keras")

    def model_fn(features, labels, mode, params):
        layer = tf_keras.layers.BatchNormalization(momentum=0.5, name="norm")
        outputs = layer(features["x"], training=True)[:, :1]
        spec = _spec(mode, outputs, labels, sums=replicas > 0)
        updates = layer.updates if runs_updates else []
        return spec._replace(train_op=tf.group(spec.train_op, *updates))

    maker = make_replicated if replicas else make
    model = maker(model_fn, tmp_path)
    with caplog.at_level("WARNING", "tensorflow"):
        model.train(rows_fn if replicas else batches, steps=1)

    moved = model.get_variable_value("norm/moving_mean").any()
    assert bool(moved) == runs_updates
    named = "['norm/moving_mean', 'norm/moving_variance']" in caplog.text
    assert named != runs_updates
