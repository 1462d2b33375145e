"""Last batches that are not full, in forms that batches may have."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import X, Y
from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1
ROWS = 21
BAGS = [[i] * (i % 3) for i in range(ROWS)]
ALL_REPLICAS = pytest.mark.parametrize("replicas", [0, 1, 2])


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


def model_of(values_of):
    """A model_fn that predicts, and averages, a value per row."""

    def model_fn(features, labels, mode, params):
        values = values_of(features)
        if mode == ModeKeys.PREDICT:
            assert labels is None
            return tpu.TPUEstimatorSpec(mode, predictions={"value": values})
        return tpu.TPUEstimatorSpec(
            mode,
            loss=tf.reduce_mean(values),
            eval_metrics=(lambda x: {"mean": v1.metrics.mean(x)}, [values]),
        )

    return model_fn


def check(model, input_fn, expected):
    values = [found["value"] for found in model.predict(input_fn)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    mean = model.evaluate(input_fn)["mean"]
    np.testing.assert_allclose(mean, np.mean(expected), rtol=1e-5)


@ALL_REPLICAS
def test_rows_whose_number_is_known_at_run_time_are_all_there_once(
    tmp_path, replicas
):
    def values_of(features):
        values = tf.numpy_function(
            lambda x: x.sum(1), [features["x"]], tf.float32
        )
        values.set_shape([None])
        return values

    model = replica_model.make(tmp_path, replicas, model=model_of(values_of))

    check(model, replica_model.some(ROWS), X[:ROWS].sum(1))


@ALL_REPLICAS
@pytest.mark.parametrize("has_dense", [False, True])
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_sparse_and_ragged_features_are_padded(
    tmp_path, kind, has_dense, replicas
):
    def input_fn(params):
        bags = tf.ragged.constant(BAGS, dtype=tf.float32)
        features = {"bag": bags if kind == "ragged" else bags.to_sparse()}
        if has_dense:
            features["x"] = X[:ROWS]
        data = tf.data.Dataset.from_tensor_slices((features, Y[:ROWS]))
        return data.batch(params["batch_size"])

    def values_of(features):
        if kind == "ragged":
            return tf.reduce_sum(features["bag"], 1)
        return tf.reshape(tf.sparse.reduce_sum(features["bag"], 1), [-1])

    model = replica_model.make(tmp_path, replicas, model=model_of(values_of))

    check(model, input_fn, [sum(bag) for bag in BAGS])


@ALL_REPLICAS
def test_a_model_fn_without_labels_predicts_from_input_with_labels(
    tmp_path, replicas
):
    def model_fn(features, mode, params):
        return tpu.TPUEstimatorSpec(mode, predictions={"x": features["x"]})

    model = replica_model.make(tmp_path, replicas, model=model_fn)
    found = [row["x"] for row in model.predict(replica_model.some(ROWS))]

    np.testing.assert_array_equal(found, X[:ROWS])


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_model_with_tables_knows_its_padding(tmp_path, replicas):
    experimental = tpu.experimental
    spec = experimental.EmbeddingConfigSpec(
        feature_to_config_dict={"id": experimental.FeatureConfig("table")},
        table_to_config_dict={
            "table": experimental.TableConfig(
                64, 2, v1.constant_initializer(0.5), combiner=None
            )
        },
    )

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices(
            ({"id": np.arange(ROWS)}, Y[:ROWS])
        )
        return data.batch(params["batch_size"])

    def model_fn(features, labels, mode, params):
        weight = 1.0 - tf.cast(features["is_padding"], tf.float32)
        values = tf.reduce_sum(features["id"], 1)
        loss = tf.reduce_sum(weight * values) / tf.reduce_sum(weight)
        return tpu.TPUEstimatorSpec(mode, loss=loss)

    model = replica_model.make(
        tmp_path, replicas, model=model_fn, embedding_config_spec=spec
    )

    assert model.evaluate(input_fn)["loss"] == 1.0


@ALL_REPLICAS
@pytest.mark.parametrize("iterations", [1, 3])
def test_a_host_call_of_a_prediction_sees_each_batch_once(
    tmp_path, iterations, replicas
):
    seen = []

    def note(x):
        return tf.numpy_function(lambda rows: seen.append(len(rows)), [x], [])

    def model_fn(features, mode, params):
        return tpu.TPUEstimatorSpec(
            mode,
            predictions={"x": features["x"]},
            host_call=(note, [features["x"]]),
        )

    model = replica_model.make(
        tmp_path, replicas, model=model_fn, iterations=iterations
    )
    found = list(model.predict(replica_model.some(37)))

    assert len(found) == 37
    assert seen == [16, 16, 5]


def test_hosts_with_less_data_wait_for_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("TFEMBED_SIMULATED_HOSTS", "2")
    values = X[:, 0] + 3

    def input_fn(params):
        host = params["context"].current_host
        rows = values[:21] if host == 0 else values[40:45]
        data = tf.data.Dataset.from_tensor_slices(({"x": rows}, rows))
        return data.batch(params["batch_size"])

    model = replica_model.make(
        tmp_path,
        2,
        model=model_of(lambda features: features["x"]),
        batch=8,
        tpu_config={
            "per_host_input_for_training": tpu.InputPipelineConfig.PER_HOST_V2
        },
    )
    expected = np.concatenate([values[:21], values[40:45]]).mean()

    for steps in (None, 9):
        results = model.evaluate(input_fn, steps=steps)
        np.testing.assert_allclose(results["mean"], expected, rtol=1e-5)


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("empty", [0, 1])
def test_a_host_without_data_waits_for_the_others(
    tmp_path, monkeypatch, empty, labels
):
    monkeypatch.setenv("TFEMBED_SIMULATED_HOSTS", "2")
    values = X[:, 0] + 3

    def input_fn(params):
        rows = 0 if params["context"].current_host == empty else 21
        features = {
            "x": values[:rows],
            "bag": tf.ragged.constant(BAGS[:rows], tf.float32, ragged_rank=1),
            "tags": tf.sparse.from_dense(np.ones([rows, 2], np.float32)),
        }
        data = tf.data.Dataset.from_tensor_slices(
            (features, Y[:rows]) if labels else features
        )
        return data.batch(params["batch_size"])

    def values_of(features):
        bags = tf.reduce_sum(features["bag"], 1)
        tags = tf.sparse.reduce_sum(features["tags"], 1)
        return features["x"] + bags + tf.reshape(tags, [-1])

    model = replica_model.make(
        tmp_path,
        2,
        model=model_of(values_of)
        if labels
        else lambda features, mode, params: model_of(values_of)(
            features, None, mode, params
        ),
        batch=8,
        tpu_config={
            "per_host_input_for_training": tpu.InputPipelineConfig.PER_HOST_V2
        },
    )
    rows = values[:ROWS] + [sum(bag) for bag in BAGS] + 2

    for steps in (None, 9):
        results = model.evaluate(input_fn, steps=steps)
        np.testing.assert_allclose(results["mean"], rows.mean(), rtol=1e-5)
        np.testing.assert_allclose(results["loss"], rows.mean(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
def test_a_batch_to_train_that_cannot_be_dealt_evenly_is_refused(
    tmp_path, kind
):
    def input_fn(params):
        bags = tf.ragged.constant(BAGS, dtype=tf.float32)
        bag = {
            "dense": lambda: X[:ROWS, 0],
            "sparse": bags.to_sparse,
            "ragged": lambda: bags,
        }[kind]()
        data = tf.data.Dataset.from_tensor_slices({"bag": bag})
        return data.repeat().batch(7)

    rows = []

    def model_fn(features, mode, params):
        bag = features["bag"]
        if kind == "sparse":
            bag = tf.sparse.to_dense(bag)
        if kind == "ragged":
            bag = bag.to_tensor()
        w = v1.get_variable("w", initializer=0.0)
        loss = tf.cast(tf.shape(bag)[0], tf.float32) * w
        note = tf.numpy_function(rows.append, [tf.shape(bag)[0]], [])
        train_op = tf.group(replica_model.minimize(loss, params), note)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    model = replica_model.make(tmp_path, 2, model=model_fn)

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"cannot be dealt to 2 replicas evenly.*\n*.*drop_remainder",
    ):
        model.train(input_fn, steps=2)
    assert not rows


@pytest.mark.parametrize("replicas", [0, 2])
def test_the_loss_of_a_last_batch_weighs_its_rows_on_replicas(
    tmp_path, replicas
):
    model = replica_model.make(
        tmp_path, replicas, model=model_of(lambda features: features["x"][:, 0])
    )
    rows = X[:ROWS, 0]
    # A CPU's loss is that of an Estimator, the mean over batches.
    expected = (rows[:16].mean() + rows[16:].mean()) / 2
    if replicas:
        # The model does not look at padding, which repeats rows of the batch.
        padded = rows[[16, 17, 18, 19, 20, 16, 17, 18]]
        expected = (rows[:16].sum() + padded.mean() * 5) / ROWS

    found = model.evaluate(replica_model.some(ROWS))["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


# What a host sees of a last batch has no padding, or the step is refused, for
# tensors of any number of rows: of eval_metrics, host_call, predictions and
# host features, dense, sparse and ragged.
# Looked at too: the loss (weighed by rows), `features["is_padding"]`, tables.


def seen_of(tmp_path, values_of, *, rows=24, replicas=2, where="eval_metrics"):
    """Evaluates or predicts by 16 rows; returns what the host saw."""
    seen = []

    def note(x):
        dense = x
        if isinstance(x, tf.SparseTensor):
            dense = tf.sparse.to_dense(x)
        elif isinstance(x, tf.RaggedTensor):
            dense = x.to_tensor()
        noted = tf.numpy_function(
            lambda rows: seen.extend(rows.tolist()), [dense], []
        )
        return {"x": (tf.constant(0.0), noted)}

    def model_fn(features, mode, params):
        values = values_of(features)
        if where == "predictions":
            return tpu.TPUEstimatorSpec(mode, predictions={"x": values})
        loss = tf.constant(0.0)
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, **{where: (note, [values])}
        )

    def input_fn(params):
        return replica_model.some(rows)(params).map(lambda x, y: x)

    model = replica_model.make(tmp_path, replicas, model=model_fn)
    if where == "predictions":
        return [found["x"] for found in model.predict(input_fn)]
    model.evaluate(input_fn)
    return seen


def means_of_four(features):
    means = tf.reduce_mean(tf.reshape(features["x"][:, 0], [-1, 4]), 1)
    return means[:, tf.newaxis]


@pytest.mark.parametrize(
    ("where", "replicas", "convert"),
    [
        ("eval_metrics", 1, tf.identity),
        ("eval_metrics", 4, tf.identity),
        ("eval_metrics", 2, tf.sparse.from_dense),
        ("host_call", 2, tf.identity),
        ("predictions", 2, tf.identity),
        ("eval_metrics", 2, tf.RaggedTensor.from_tensor),
    ],
)
def test_groups_of_padding_are_not_seen(tmp_path, where, replicas, convert):
    seen = seen_of(
        tmp_path,
        lambda features: convert(means_of_four(features)),
        replicas=replicas,
        where=where,
    )

    expected = X[:24, 0].reshape([-1, 4]).mean(1, keepdims=True)
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def some_rows(features):
    """Rows whose number only the step knows."""
    return tf.boolean_mask(features["x"], features["x"][:, 0] > 0)


@pytest.mark.parametrize(
    ("where", "values_of"),
    [
        ("eval_metrics", means_of_four),
        (
            "eval_metrics",
            lambda features: tf.sparse.from_dense(means_of_four(features)),
        ),
        ("host_call", lambda features: features["x"][:3]),
        ("predictions", means_of_four),
        ("predictions", some_rows),
    ],
    ids=["groups", "sparse", "no_whole_number", "predictions", "at_run_time"],
)
def test_rows_of_data_and_of_padding_are_refused(tmp_path, where, values_of):
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"{where}: the tensor [0x] would count padding",
    ):
        seen_of(tmp_path, values_of, rows=21, where=where)


def test_full_batches_may_have_tensors_of_any_number_of_rows(tmp_path):
    seen = seen_of(tmp_path, some_rows, rows=32)

    np.testing.assert_array_equal(seen, X[:32][X[:32, 0] > 0])


@pytest.mark.parametrize("where", ["eval_metrics", "host_call"])
def test_a_tensor_that_leaves_padding_out_itself_is_seen_whole(tmp_path, where):
    def values_of(features):
        real = tf.cast(~features["is_padding"], tf.float32)
        return tf.reduce_sum(real)[tf.newaxis]

    # Of the last batch's two replicas the second has padding alone.
    seen = seen_of(tmp_path, values_of, rows=21, where=where)

    assert seen == [8, 8, 5]


@pytest.mark.parametrize("where", ["eval_metrics", "host_call"])
def test_a_tensor_that_no_batch_changes_is_seen_whole(tmp_path, where):
    def values_of(features):
        step = v1.train.get_global_step()
        return tf.stack([tf.cast(step, tf.float32), 7.0, 8.0])

    seen = seen_of(tmp_path, values_of, rows=21, where=where)

    assert seen == [0, 7, 8] * 3


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("replicas", [0, 2])
def test_an_evaluation_of_no_rows_has_no_loss(
    tmp_path, caplog, replicas, steps
):
    model = replica_model.make(tmp_path, replicas)

    with caplog.at_level("WARNING", "tensorflow"):
        for rows in (0, 5):
            found = model.evaluate(replica_model.some(rows), steps=steps)
            assert np.isnan(found["loss"]) == (rows == 0)
            assert np.isnan(found["mae"]) == (rows == 0)

    assert caplog.text.count("saw no rows") == 1
