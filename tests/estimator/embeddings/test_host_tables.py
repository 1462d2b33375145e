"""One lookup and one update for all replicas, in graphs and sessions."""

from __future__ import annotations

import contextlib
import logging as python_logging

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_function

from estimator.embeddings.batches import draw
from oracle import assert_close, lookup_feature, summed_gradients
from tfembed import errors
from tfembed.estimator.embeddings import parameters as p
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.host_tables import HostTables, note_layers
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

v1 = tf.compat.v1
SGD = p.StochasticGradientDescentParameters(1.0)


def spec_of(features, tables, parameters=SGD, **arguments):
    return EmbeddingConfigSpec(
        feature_to_config_dict=features,
        table_to_config_dict=tables,
        optimization_parameters=parameters,
        **arguments,
    )


def constant(rows):
    return v1.constant_initializer(np.asarray(rows, np.float32))


def started(*fetches, feeds=None):
    """What a new session gives for each of `fetches`, one after the other."""
    with v1.Session() as session:
        session.run(
            [
                v1.global_variables_initializer(),
                v1.local_variables_initializer(),
            ]
        )
        return [session.run(fetch, feeds) for fetch in fetches]


@pytest.mark.parametrize("num_replicas", [1, 2, 8])
@pytest.mark.parametrize(
    ("kind", "combiner", "weighted", "length"),
    [
        ("sparse", "mean", False, 0),
        ("sparse", "sqrtn", True, 0),
        ("sparse", "sum", False, 2),
        ("ragged", "sum", True, 0),
        ("ragged", "mean", False, 3),
        ("dense", "mean", False, 0),
    ],
)
def test_activations_are_those_of_each_replicas_ids(
    kind, combiner, weighted, length, num_replicas
):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=[7, 3]).astype(np.float32)
    with tf.Graph().as_default():
        batches = [
            draw(
                rng,
                kind=kind,
                combiner=combiner,
                weighted=weighted,
                max_sequence_length=length,
            )
            for _ in range(num_replicas)
        ]
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t", length, "w" if weighted else None)},
                {"t": TableConfig(7, 3, constant(rows), combiner)},
            ),
            "infer",
            num_replicas=num_replicas,
            batch_size=4,
        )
        features = tables.look_up(
            [{"x": b.value, "w": b.weights, "z": 1.0} for b in batches]
        )
        tables.make_variables()
        (found,) = started([each["x"] for each in features])

    for activation, batch in zip(found, batches, strict=True):
        expected = lookup_feature(
            batch.feature, lambda i: rows[i], 3, fixed_vocabulary=True
        )
        assert_close(activation, expected)
    assert all("z" in each and "w" not in each for each in features) == weighted
    assert features[0]["x"].shape[0] == 4


def test_lengths_of_sequences_come_with_them():
    with tf.Graph().as_default():
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t", 2), "y": FeatureConfig("t", 3)},
                {"t": TableConfig(9, 2)},
            ),
            "infer",
        )
        (features,) = tables.look_up(
            [
                {
                    "x": tf.SparseTensor(
                        [[0, 0], [2, 0], [2, 1], [2, 2]], [1, 2, 3, 4], [3, 4]
                    ),
                    "y": tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64),
                }
            ]
        )
        tables.make_variables()
        ((x, y),) = started(
            [features["x_seq_length_"], features["y_seq_length_"]]
        )

    assert x.tolist() == [1, 0, 2]
    assert y.tolist() == [2, 0, 1]


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32, tf.uint8])
def test_a_matrix_of_a_dict_is_padded_with_0(dtype):
    ids = np.array([[1, 2, 0], [0, 0, 0]])

    assert _looked_up(tf.constant(ids, dtype), "sum").tolist() == [[3.0], [0.0]]


def test_a_vector_has_an_id_for_each_sample_and_minus_1_for_none():
    ids = tf.constant([0, 2, -1])

    assert _looked_up(ids, "mean").tolist() == [[10.0], [2.0], [0.0]]


def test_a_combiner_of_none_takes_one_id_for_each_sample():
    ids = tf.constant([[0], [2]])

    assert _looked_up(ids, None).tolist() == [[10.0], [2.0]]


def _looked_up(ids, combiner):
    rows = [[10.0], [1.0], [2.0]]
    with tf.Graph().as_default():
        ids = tf.constant(ids.numpy())
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t")},
                {"t": TableConfig(3, 1, constant(rows), combiner)},
            ),
            "eval",
        )
        (features,) = tables.look_up([{"x": ids}])
        tables.make_variables()
        (found,) = started(features["x"])
    return found


@pytest.mark.parametrize(
    ("value", "weights", "text"),
    [
        (None, None, "The input has no feature 'x'"),
        (
            lambda: tf.constant(["a"]),
            None,
            "SparseTensor with string as values are not supported.",
        ),
        (
            lambda: tf.SparseTensor([[0, 0]], [1], [1, 1]),
            None,
            "Please check if the weights are present in feature dict. Also "
            "note weight-sharing among weighted_categorical_column is not "
            "supported on TPU.",
        ),
        (
            lambda: tf.SparseTensor([[0, 0]], [1], [1, 1]),
            lambda: tf.constant([[1.0]]),
            "Dense weights are not supported on TPU",
        ),
        (
            lambda: tf.constant([1]),
            lambda: tf.SparseTensor([[0, 0]], [1.0], [1, 1]),
            "Found weights w of type SparseTensor",
        ),
    ],
)
def test_an_input_that_cannot_be_looked_up_is_refused(value, weights, text):
    with tf.Graph().as_default():
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t", weight_key="w")},
                {"t": TableConfig(3, 1)},
            ),
            "eval",
        )
        given = {"z": tf.constant(1)}
        if value is not None:
            given["x"] = value()
        if weights is not None:
            given["w"] = weights()
        with pytest.raises(errors.ArgumentError) as raised:
            tables.look_up([given])

    assert text in str(raised.value)


def test_weights_of_two_features_are_refused():
    spec = spec_of(
        {key: FeatureConfig("t", weight_key="w") for key in "xy"},
        {"t": TableConfig(3, 1)},
    )
    with pytest.raises(errors.ArgumentError, match="note weight-sharing among"):
        HostTables(spec, "eval")


def test_static_shapes_are_known_without_v2_tensor_shapes():
    v1.disable_v2_tensorshape()
    try:
        with tf.Graph().as_default():
            tables = HostTables(
                spec_of({"x": FeatureConfig("t")}, {"t": TableConfig(3, 2)}),
                "eval",
                batch_size=4,
            )
            ids = v1.sparse_placeholder(tf.int64)
            (features,) = tables.look_up([{"x": ids}])
            assert features["x"].shape.as_list() == [4, 2]
    finally:
        v1.enable_v2_tensorshape()


def test_features_must_be_a_dict_for_each_replica():
    spec = spec_of({"x": FeatureConfig("t")}, {"t": TableConfig(3, 1)})
    with tf.Graph().as_default():
        tables = HostTables(spec, "eval", num_replicas=2)
        with pytest.raises(errors.ArgumentError, match="must be a dict"):
            tables.look_up([tf.constant([1])] * 2)
        with pytest.raises(errors.ArgumentError, match="each of the 2 replic"):
            tables.look_up([{"x": tf.constant([1])}])


def test_the_gradients_that_an_optimizer_computes_are_noted():
    with tf.Graph().as_default():
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t"), "y": FeatureConfig("t")},
                {"t": TableConfig(3, 2, constant(np.zeros([3, 2])))},
            ),
            "train",
        )
        (features,) = tables.look_up(
            [{"x": tf.constant([1, 2]), "y": tf.constant([0, 1])}]
        )
        features = tables.capture(features)
        w = v1.get_variable("w", initializer=2.0)
        loss = tf.reduce_sum(features["x"]) * w + tf.reduce_sum(
            features["y"] * [[1.0, 3.0]]
        )
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.5).minimize(5.0 * loss, step)
        gradients = tables.gradients()
        tables.make_variables()
        update = tables.update([gradients])
        rows = v1.global_variables()[-1]
        saved = {v.op.name for v in v1.global_variables()}
        _, table = started([train, update], rows)

    # Both of x's ids get 5 * w, y's ids 5 and 15; SGD with rate 1.
    assert table.tolist() == [[-5.0, -15.0], [-15.0, -25.0], [-10.0, -10.0]]
    assert not any("dummy" in name for name in saved)
    assert "t/part_0" in saved


def test_gradients_that_are_computed_twice_are_refused():
    with tf.Graph().as_default():
        tables = HostTables(
            spec_of({"x": FeatureConfig("t")}, {"t": TableConfig(3, 2)}),
            "train",
        )
        (features,) = tables.look_up([{"x": tf.constant([1, 2])}])
        features = tables.capture(features)
        w = v1.get_variable("w", initializer=2.0)
        first, second = tf.reduce_sum(features["x"]), w * features["x"][0, 0]
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        optimizer.minimize(first)
        tf.gradients(second, [w])  # No gradient of the table is computed.
        with pytest.raises(
            errors.StateError, match=r"Duplicate gradients .* feature 'x'"
        ):
            optimizer.minimize(second)


def test_activations_that_no_loss_uses_count_as_0_with_a_warning(caplog):
    with tf.Graph().as_default():
        tables = HostTables(
            spec_of({"x": FeatureConfig("t")}, {"t": TableConfig(3, 2)}),
            "train",
        )
        (features,) = tables.look_up([{"x": tf.constant([1, 2])}])
        tables.capture(features)
        with caplog.at_level(python_logging.WARNING, "tensorflow"):
            (gradient,) = tables.gradients()
        tables.make_variables()
        (found,) = started(gradient)

    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert "['x'] are undefined" in caplog.text
    assert "variable 'tpu_embedding_dummy_table_variable'" in caplog.text


def test_rates_and_multiplier_are_those_of_the_step_before_it_is_counted():
    asked = []

    def rate(step):
        asked.append(step)
        return tf.cond(tf.equal(step, 0), lambda: 2, lambda: 3)

    def table(**arguments):
        return TableConfig(1, 1, constant([[0.0]]), **arguments)

    spec = spec_of(
        {key: FeatureConfig(key) for key in "abcd"},
        {
            "a": table(),
            "b": table(learning_rate_fn=rate),
            "c": table(learning_rate_fn=rate),
            "d": table(learning_rate=0.5),
        },
        experimental_gradient_multiplier_fn=lambda step: 10 * (step + 1),
    )
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        tables = HostTables(spec, "train")
        (features,) = tables.look_up(
            [{key: tf.constant([0]) for key in "abcd"}]
        )
        ones = [tf.ones_like(features[key]) for key in "abcd"]
        tables.make_variables()
        update = tables.update([ones])
        with tf.control_dependencies([one.op for one in ones]):
            count = step.assign_add(1)
        rows = v1.global_variables()[1:]
        _, first, _, second = started(
            [update, count], rows, [update, count], rows
        )

    assert [float(x) for x in first] == [-10.0, -20.0, -20.0, -5.0]
    assert [float(x) for x in second] == [-30.0, -80.0, -80.0, -15.0]
    assert len(asked) == 1


def test_tables_may_have_parameters_of_their_own():
    spec = spec_of(
        {"a": FeatureConfig("a"), "b": FeatureConfig("b")},
        {
            "a": TableConfig(1, 1, constant([[0.0]])),
            "b": TableConfig(
                1,
                1,
                constant([[0.0]]),
                optimization_parameters=p.AdagradParameters(1.0, 3.0),
            ),
        },
    )
    with tf.Graph().as_default():
        tables = HostTables(spec, "train")
        tables.look_up([{"a": tf.constant([0]), "b": tf.constant([0])}])
        tables.make_variables()
        update = tables.update([[tf.ones([1, 1]), tf.ones([1, 1])]])
        _, (a, b, slot) = started(update, v1.global_variables())

    assert (float(a), float(b), float(slot)) == (-1.0, -0.5, 4.0)


def test_a_table_without_parameters_is_looked_up_and_not_trained():
    spec = spec_of({"x": FeatureConfig("t")}, {"t": TableConfig(3, 1)}, None)
    with tf.Graph().as_default():
        HostTables(spec, "infer").look_up([{"x": tf.constant([0])}])
    with (
        tf.Graph().as_default(),
        pytest.raises(errors.StateError, match="'t' cannot be trained"),
    ):
        HostTables(spec, "train").look_up([{"x": tf.constant([0])}])


def _adagrad(gradients, initial=0.1, rate=0.12):
    """A row and its accumulator after gradients that come one by one."""
    row, accumulator = 0.0, initial
    for gradient in gradients:
        accumulator += gradient**2
        row -= rate * gradient / np.sqrt(accumulator)
    return row, accumulator


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_without_accumulation_cores_apply_their_sums_the_rows_own_first(kind):
    # Ids of two samples on each of two cores, and gradients of their means.
    ids = [[[0, 1], [1, 2]], [[1, 2], [2, 3]]]
    gradients = [[3.0, 2.0], [1.0, 0.0]]
    expected = [_adagrad([1.5]), _adagrad([0.5, 2.5]), _adagrad([1.0, 0.5])]
    parameters = p.AdagradParameters(0.12, 0.1, use_gradient_accumulation=False)
    with tf.Graph().as_default():
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t")},
                {"t": TableConfig(8, 1, constant(np.zeros([8, 1])))},
                parameters,
            ),
            "train",
            num_replicas=2,
        )
        values = [tf.ragged.constant(each, dtype=tf.int64) for each in ids]
        if kind == "sparse":
            values = [value.to_sparse() for value in values]
        tables.look_up([{"x": value} for value in values])
        tables.make_variables()
        update = tables.update(
            [[tf.constant([[g] for g in each])] for each in gradients]
        )
        _, (rows, slots) = started(update, v1.global_variables())

    np.testing.assert_allclose(
        np.concatenate([rows, slots], 1)[:3], expected, rtol=1e-6
    )
    assert rows[4:].tolist() == [[0.0]] * 4


@pytest.mark.parametrize(
    ("combiner", "weighted", "length"),
    [
        ("sum", True, 0),
        ("sqrtn", True, 0),
        ("mean", False, 0),
        ("sum", False, 3),
    ],
)
def test_without_accumulation_three_cores_follow_one_another(
    combiner, weighted, length
):
    rng = np.random.default_rng(5)
    num_replicas, rows = 3, 7
    parameters = p.AdagradParameters(0.12, 0.1, use_gradient_accumulation=False)
    with tf.Graph().as_default():
        batches = [
            draw(
                rng,
                kind="sparse",
                combiner=combiner,
                weighted=weighted,
                max_sequence_length=length,
            )
            for _ in range(num_replicas)
        ]
        shape = [4, length, 2] if length else [4, 2]
        wanted = [rng.normal(size=shape).astype(np.float32) for _ in batches]
        tables = HostTables(
            spec_of(
                {"x": FeatureConfig("t", length, "w" if weighted else None)},
                {
                    "t": TableConfig(
                        rows, 2, constant(np.zeros([rows, 2])), combiner
                    )
                },
                parameters,
            ),
            "train",
            num_replicas=num_replicas,
        )
        tables.look_up([{"x": b.value, "w": b.weights} for b in batches])
        tables.make_variables()
        update = tables.update([[tf.constant(g)] for g in wanted])
        _, (found, slots) = started(update, v1.global_variables())

    expected = _core_by_core([b.feature for b in batches], wanted, rows)
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slots, expected[1], rtol=1e-5)


def _core_by_core(features, gradients, rows):
    cores = len(features)
    sums = [
        summed_gradients([f], [g], fixed_vocabulary=True)
        for f, g in zip(features, gradients, strict=True)
    ]
    values, slots = np.zeros([rows, 2]), np.full([rows, 2], 0.1)
    for row in range(rows):
        for turn in range(cores):
            core = (row + turn) % cores
            if row in sums[core]:
                g = sums[core][row].value
                slots[row] += g**2
                values[row] -= 0.12 * g / np.sqrt(slots[row])
    return values, slots


def test_columns_have_the_names_of_the_cpu_and_their_checkpoints_fit(tmp_path):
    keras = pytest.importorskip("tf_keras.api._v1.keras")
    categorical = tf.feature_column.categorical_column_with_identity("x", 5)
    shared = [
        tf.feature_column.categorical_column_with_identity(key, 5)
        for key in ("y", "z")
    ]
    tpu = tf.compat.v1.tpu.experimental
    columns = [
        tpu.embedding_column(categorical, 2),
        *tpu.shared_embedding_columns(shared, 3),
    ]
    ids = {
        key: tf.SparseTensor([[0, 0], [1, 0]], [1, 2], [2, 1]) for key in "xyz"
    }

    def built(on_tpu):
        """The input layer, trained; with what runs a step."""
        features = {
            key: tf.SparseTensor(
                value.indices.numpy(),
                value.values.numpy(),
                value.dense_shape.numpy(),
            )
            for key, value in ids.items()
        }
        tables = HostTables(
            EmbeddingConfigSpec(columns, p.AdagradParameters(0.5)),
            "train",
            on_tpu=on_tpu,
        )
        assert HostTables.needed(tables._spec, on_tpu=on_tpu) == on_tpu
        if on_tpu:
            (features,) = tables.look_up([features])
            features = tables.capture(features)
        step = v1.train.get_or_create_global_step()
        with _tpu_step(on_tpu), v1.variable_scope("model"):
            layer = keras.layers.DenseFeatures(columns)(features)
        loss = tf.reduce_sum(layer**2)
        train = v1.train.AdagradOptimizer(0.5).minimize(loss, step)
        if on_tpu:
            gradients = tables.gradients()
            tables.make_variables()
            train = tf.group(train, tables.update([gradients]))
        return layer, train

    path = str(tmp_path / "model")
    with tf.Graph().as_default():
        layer, train = built(on_tpu=False)
        saver = v1.train.Saver()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            first = saver.save(session, f"{path}-cpu")
            session.run(train)
            expected = session.run(layer)
    with tf.Graph().as_default():
        layer, train = built(on_tpu=True)
        saver = v1.train.Saver()
        with v1.Session() as session:
            session.run(v1.local_variables_initializer())
            saver.restore(session, first)
            session.run(train)
            np.testing.assert_allclose(
                session.run(layer), expected, rtol=1e-6, atol=1e-7
            )
            second = saver.save(session, f"{path}-tpu")
    with tf.Graph().as_default():
        layer, _ = built(on_tpu=False)
        with v1.Session() as session:
            v1.train.Saver().restore(session, second)
            np.testing.assert_allclose(
                session.run(layer), expected, rtol=1e-6, atol=1e-7
            )
    assert dict(tf.train.list_variables(first)) == dict(
        tf.train.list_variables(second)
    )


def _tpu_step(on_tpu):
    if not on_tpu:
        return contextlib.nullcontext()
    note_layers()
    return tpu_function.tpu_shard_context(1)


def test_a_column_that_no_layer_used_is_refused():
    categorical = tf.feature_column.categorical_column_with_identity("x", 5)
    column = tf.compat.v1.tpu.experimental.embedding_column(categorical, 2)
    with tf.Graph().as_default():
        tables = HostTables(
            EmbeddingConfigSpec([column], p.AdagradParameters(0.5)), "train"
        )
        tables.look_up([{"x": tf.constant([1])}])
        with pytest.raises(RuntimeError, match="did not capture any thing"):
            tables.make_variables()


def test_columns_in_layers_of_keras_2_have_the_names_of_the_layers():
    keras = pytest.importorskip("tf_keras")
    columns = [
        tf.compat.v1.tpu.experimental.embedding_column(
            tf.feature_column.categorical_column_with_identity(key, 5), 2
        )
        for key in ("x", "y")
    ]
    with tf.Graph().as_default():
        tables = HostTables(EmbeddingConfigSpec(columns, SGD), "eval")
        (features,) = tables.look_up([dict.fromkeys("xy", tf.constant([1]))])
        with _tpu_step(True), tf.name_scope("tower"):
            keras.layers.DenseFeatures(columns)(features)
        tables.make_variables()
        names = [variable.op.name for variable in v1.global_variables()]

    assert names == [
        "tower/dense_features/x_embedding/embedding_weights/part_0",
        "tower/dense_features/y_embedding/embedding_weights/part_0",
    ]
