"""Tables of a TPUEstimator through training, evaluation, prediction, export."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import dynamic_embedding, errors, policies
from tfembed import estimator as tf_estimator

v1 = tf.compat.v1
tpu = tf_estimator.tpu
experimental = tpu.experimental

BATCH, STEPS = 16, 20


def dict_spec(vocabulary_size, parameters, **options):
    """Two features, one of them a bag of ids, in two tables."""
    return experimental.EmbeddingConfigSpec(
        feature_to_config_dict={
            "user": experimental.FeatureConfig("users"),
            "bag": experimental.FeatureConfig("items"),
        },
        table_to_config_dict={
            name: experimental.TableConfig(
                vocabulary_size,
                4,
                v1.constant_initializer(0.1),
                combiner="sum",
                **options,
            )
            for name in ("users", "items")
        },
        optimization_parameters=parameters,
    )


def column_spec(parameters):
    """The same features as columns of TensorFlow."""
    columns = [
        v1.tpu.experimental.embedding_column(
            tf.feature_column.categorical_column_with_identity(key, 50),
            4,
            combiner="sum",
            initializer=v1.constant_initializer(0.1),
        )
        for key in ("user", "bag")
    ]
    return experimental.EmbeddingConfigSpec(columns, parameters)


def input_fn_of(num_batches=STEPS, key_dtype=tf.int64):
    """A given stream, of which each replica takes its part of a batch."""
    rng = np.random.default_rng(1)
    n = BATCH * num_batches
    users = rng.integers(0, 50, n)
    bags = rng.integers(1, 50, [n, 3])
    labels = (users % 2 == 0).astype(np.float32)

    def input_fn(params):
        ids = users if key_dtype == tf.int64 else np.char.mod("u%d", users)
        dataset = tf.data.Dataset.from_tensor_slices((ids, bags, labels))
        dataset = dataset.batch(params["batch_size"], drop_remainder=True)

        def named(user, bag, label):
            if key_dtype == tf.string:
                bag = tf.strings.as_string(bag)
            return {"user": user, "bag": bag}, label

        return dataset.map(named)

    return input_fn


def model_fn_of(columns=None):
    def model_fn(features, labels, mode, params):
        if columns is None:
            layer = tf.concat([features["user"], features["bag"]], 1)
        else:
            layer = v1.feature_column.input_layer(features, columns)
        w = v1.get_variable(
            "w", [8, 1], initializer=v1.constant_initializer(0.2)
        )
        logits = (layer @ w)[:, 0]
        predictions = {"logit": logits}
        if mode == "infer":
            return tpu.TPUEstimatorSpec(
                mode,
                predictions=predictions,
                export_outputs={
                    "serving_default": tf_estimator.export.PredictOutput(
                        predictions
                    )
                },
            )
        loss = tf.reduce_mean((logits - labels) ** 2)
        if mode == "eval":
            return tpu.TPUEstimatorSpec(
                mode,
                loss=loss,
                eval_metrics=(
                    lambda x: {"mean": v1.metrics.mean(x)},
                    [logits],
                ),
            )
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def make(model_dir, spec, replicas, *, columns=None, **arguments):
    """An estimator; 0 replicas: the CPU's way."""
    return tpu.TPUEstimator(
        model_fn_of(columns),
        config=tpu.RunConfig(
            model_dir=str(model_dir),
            tpu_config=tpu.TPUConfig(
                iterations_per_loop=4,
                num_shards=replicas or None,
                per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
            ),
        ),
        use_tpu=replicas > 0,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        export_to_tpu=False,
        embedding_config_spec=spec,
        **arguments,
    )


def predicted(estimator, **arguments):
    found = estimator.predict(input_fn_of(2, **arguments))
    return np.array([one["logit"] for one in found])


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        experimental.AdagradParameters(0.1),
        experimental.AdamParameters(0.01),
        experimental.FtrlParameters(0.1),
    ],
    ids=lambda given: type(given).__name__,
)
def test_all_numbers_of_replicas_train_the_same_model(tmp_path, parameters):
    made = {}
    for replicas in (0, 1, 2, 8):
        estimator = make(
            tmp_path / str(replicas), dict_spec(50, parameters), replicas
        )
        estimator.train(input_fn_of(), steps=STEPS)
        made[replicas] = predicted(estimator)

    assert np.abs(made[0] - 0.1 * 0.2 * 8).max() > 0.01
    for replicas in (1, 2, 8):
        np.testing.assert_allclose(made[replicas], made[0], atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_goes_from_the_cpu_to_replicas_and_back(tmp_path):
    spec = column_spec(experimental.AdagradParameters(0.1))
    columns = spec.feature_columns

    replicas = make(tmp_path, spec, 2, columns=columns)
    replicas.train(input_fn_of(), steps=STEPS)
    of_replicas = predicted(replicas)
    of_cpu = predicted(make(tmp_path, spec, 0, columns=columns))
    names = set(replicas.get_variable_names())

    np.testing.assert_allclose(of_replicas, of_cpu, atol=1e-6)
    assert {
        "input_layer/user_embedding/embedding_weights",
        "input_layer/user_embedding/embedding_weights/Adagrad",
    } <= names
    assert not any("dummy" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
@pytest.mark.parametrize("replicas", [0, 2])
def test_tables_without_a_vocabulary_go_through_all_modes(
    tmp_path, replicas, key_dtype
):
    spec = dict_spec(
        None, experimental.AdagradParameters(0.1), key_dtype=key_dtype
    )
    given = {"key_dtype": key_dtype}
    estimator = make(tmp_path / "model", spec, replicas)
    estimator.train(input_fn_of(**given), steps=STEPS // 2)
    # Another call, which begins with the checkpoint.
    estimator.train(input_fn_of(**given), steps=STEPS // 2)
    evaluated = estimator.evaluate(input_fn_of(2, **given), steps=2)
    found = predicted(estimator, **given)

    def receiver_fn():
        features = {
            key: v1.placeholder(key_dtype, [None, *rest], key)
            for key, rest in (("user", []), ("bag", [3]))
        }
        return tf_estimator.export.ServingInputReceiver(features, features)

    path = estimator.export_saved_model(str(tmp_path / "export"), receiver_fn)
    with tf.device("CPU:0"):
        features, _ = next(iter(input_fn_of(2, **given)({"batch_size": 32})))
    served = tf.saved_model.load(tf.compat.as_str(path)).signatures[
        "serving_default"
    ](**features)["logit"]

    assert evaluated["mean"] == pytest.approx(found.mean(), abs=1e-5)
    np.testing.assert_allclose(served, found, atol=1e-6)
    assert "users_mht_1of1-keys" in estimator.get_variable_names()
    # Trained and resumed as tables with a vocabulary are.
    if key_dtype == tf.int64:
        other = make(
            tmp_path / "other",
            dict_spec(50, experimental.AdagradParameters(0.1)),
            replicas,
        )
        for _ in range(2):
            other.train(input_fn_of(), steps=STEPS // 2)
        np.testing.assert_allclose(found, predicted(other), atol=1e-5)


@pytest.mark.slow
def test_evaluation_inserts_no_ids_and_a_bound_is_kept(tmp_path):
    spec = dict_spec(
        None,
        experimental.AdagradParameters(0.1),
        max_size=40,
        eviction=policies.LeastRecent(),
        admission=policies.CountAdmission(2),
    )
    estimator = make(tmp_path, spec, 2)
    estimator.train(input_fn_of(), steps=STEPS)
    before = estimator.get_variable_value("items_mht_1of1-keys")
    estimator.evaluate(input_fn_of(2), steps=2)
    after = estimator.get_variable_value("items_mht_1of1-keys")

    assert 0 < len(before) <= 40
    assert before.tolist() == after.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 2])
def test_columns_without_a_vocabulary_feed_an_input_layer(tmp_path, replicas):
    columns = [
        tf_estimator.embedding_column(key, 4, combiner="sum", initializer=0.1)
        for key in ("user", "bag")
    ]
    spec = experimental.EmbeddingConfigSpec(
        columns, experimental.AdagradParameters(0.1)
    )
    estimator = make(tmp_path / "columns", spec, replicas, columns=columns)
    estimator.train(input_fn_of(), steps=STEPS)
    other = make(
        tmp_path / "dicts",
        dict_spec(50, experimental.AdagradParameters(0.1)),
        replicas,
    )
    other.train(input_fn_of(), steps=STEPS)

    # An input layer has the columns by name: the bag comes first.
    np.testing.assert_allclose(
        predicted(estimator), predicted(other), atol=1e-5
    )


def test_a_variable_inside_of_replicas_is_refused_and_the_way_is_named(
    tmp_path,
):
    def model_fn(features, labels, mode, params):
        variable = dynamic_embedding.get_variable("inside", dim=4)
        rows = dynamic_embedding.embedding_lookup(variable, features["user"])
        loss = tf.reduce_mean((tf.reduce_sum(rows, 1) - labels) ** 2)
        train_op = v1.train.get_global_step().assign_add(1)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            model_dir=str(tmp_path),
            tpu_config=tpu.TPUConfig(
                num_shards=2,
                check_cross_replica=False,
                per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
            ),
        ),
        train_batch_size=BATCH,
    )
    with pytest.raises(errors.UnsupportedError, match="embedding_config_spec"):
        estimator.train(input_fn_of(), steps=1)


def test_columns_that_cannot_be_looked_up_are_refused_at_once(tmp_path):
    plain = tf.feature_column.embedding_column(
        tf.feature_column.categorical_column_with_identity("user", 50), 4
    )
    spec = experimental.EmbeddingConfigSpec(
        [plain], experimental.AdagradParameters(0.1)
    )
    with pytest.raises(TypeError, match="Unsupported feature column"):
        make(tmp_path, spec, 2)


CPU_SLOTS = {
    "Adam": (v1.train.AdamOptimizer, ("Adam", "Adam_1"), ("Adam/m", "Adam/v")),
    "RMSProp": (
        lambda rate: v1.train.RMSPropOptimizer(rate, momentum=0.9),
        ("RMSProp", "RMSProp_1"),
        ("RMSProp/ms", "RMSProp/mom"),
    ),
}


class Slots(v1.train.SessionRunHook):
    """Reads a table's slots before the first step."""

    def __init__(self, table):
        self._table = table

    def after_create_session(self, session, coord):
        slots = [
            variable
            for variable in v1.global_variables()
            if f"{self._table}/" in variable.op.name
            and any(kind in variable.op.name for kind in CPU_SLOTS)
        ]
        self.values = session.run(slots)


@pytest.mark.parametrize("kind", list(CPU_SLOTS))
def test_slots_go_from_the_cpus_names_to_the_tpus_and_back(tmp_path, kind):
    optimizer, of_cpu, of_tpu = CPU_SLOTS[kind]
    parameters = {
        "Adam": experimental.AdamParameters(0.1),
        "RMSProp": experimental.RMSPropParameters(0.1, 0.9, 0.9, 1e-10),
    }[kind]
    spec = column_spec(parameters)
    table = "input_layer/user_embedding/embedding_weights"

    def model_fn(features, labels, mode, params):
        layer = v1.feature_column.input_layer(features, spec.feature_columns)
        w = v1.get_variable("w", [8, 1])
        loss = tf.reduce_mean(((layer @ w)[:, 0] - labels) ** 2)
        made = optimizer(0.1)
        if params["use_tpu"]:
            made = tpu.CrossShardOptimizer(made)
        train_op = made.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def train(replicas, steps):
        config = tpu.RunConfig(
            model_dir=str(tmp_path),
            tpu_config=tpu.TPUConfig(num_shards=replicas or None),
        )
        estimator = tpu.TPUEstimator(
            model_fn,
            config=config,
            use_tpu=replicas > 0,
            train_batch_size=BATCH,
            embedding_config_spec=spec,
        )
        noted = Slots(table)
        estimator.train(input_fn_of(), hooks=[noted], steps=steps)
        path = estimator.latest_checkpoint()
        names = of_tpu if replicas else of_cpu
        saved = [tf.train.load_variable(path, f"{table}/{s}") for s in names]
        return noted.values, saved

    _, saved_by_cpu = train(0, 3)
    begun_by_tpu, saved_by_tpu = train(2, 2)
    begun_by_cpu, _ = train(0, 1)

    assert np.abs(saved_by_cpu).max(axis=(1, 2)).min() > 0
    assert np.any(np.not_equal(saved_by_tpu, saved_by_cpu))
    np.testing.assert_array_equal(begun_by_tpu, saved_by_cpu)
    np.testing.assert_array_equal(begun_by_cpu, saved_by_tpu)


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_warm_start_has_the_rows_of_tables(tmp_path, replicas):
    spec = dict_spec(50, experimental.AdagradParameters(0.1))
    first = make(tmp_path / "first", spec, replicas)
    first.train(input_fn_of(4), steps=4)
    frozen = dict_spec(
        50, experimental.StochasticGradientDescentParameters(0.0)
    )

    second = make(
        tmp_path / "second",
        frozen,
        replicas,
        warm_start_from=str(tmp_path / "first"),
    )
    second.train(input_fn_of(4), steps=1)

    for name in ("users", "items"):
        rows = second.get_variable_value(name)
        np.testing.assert_array_equal(rows, first.get_variable_value(name))
        assert np.abs(rows - 0.1).max() > 1e-4


def test_a_warm_start_names_tables_that_start_empty(tmp_path, caplog):
    spec = dict_spec(None, experimental.AdagradParameters(0.1))
    make(tmp_path / "first", spec, 0).train(input_fn_of(2), steps=1)

    second = make(
        tmp_path / "second", spec, 0, warm_start_from=str(tmp_path / "first")
    )
    second.train(input_fn_of(2), steps=1)

    (line,) = (
        record.getMessage()
        for record in caplog.records
        if "No warm start" in record.getMessage()
    )
    assert "users" in line
    assert "items" in line


@pytest.mark.parametrize("dtype", [tf.string, tf.int32])
def test_a_dtype_that_rows_cannot_have_is_refused_at_once(dtype):
    with pytest.raises(errors.ArgumentError, match="ids is `key_dtype`"):
        experimental.TableConfig(None, 4, dtype=dtype)
