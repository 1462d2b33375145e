"""What a TPUEstimator refuses, and what its errors say."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.tpu import replica_model
from tfembed import errors, estimator
from tfembed.estimator import ModeKeys, tpu
from tfembed.estimator.tpu import input_pipeline
from tfembed.estimator.tpu.experimental import (
    AdagradParameters,
    EmbeddingConfigSpec,
)

v1 = tf.compat.v1
PIPELINES = tpu.InputPipelineConfig


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


def embedding_spec(**options):
    column = tf.feature_column.categorical_column_with_identity("ids", 8)
    return EmbeddingConfigSpec(
        feature_columns=[
            v1.tpu.experimental.embedding_column(column, dimension=2)
        ],
        optimization_parameters=AdagradParameters(0.1),
        **options,
    )


def without_features(labels, params):
    pass


def with_unknown_arguments(features, params, extra):
    pass


@pytest.mark.parametrize(
    "options, error, text",
    [
        (
            {"config": estimator.RunConfig()},
            errors.ArgumentError,
            "must be provided with type",
        ),
        ({"config": None}, errors.ArgumentError, "must be provided with type"),
        (
            {"params": {"batch_size": 1}},
            errors.ArgumentError,
            "are reserved keys",
        ),
        ({"params": {"context": 1}}, errors.ArgumentError, "are reserved keys"),
        (
            {
                "train_batch_size": None,
                "eval_batch_size": None,
                "predict_batch_size": None,
            },
            errors.ArgumentError,
            "`train_batch_size` cannot be `None`",
        ),
        ({"train_batch_size": 1.0}, errors.DtypeError, "must be int"),
        ({"train_batch_size": 0}, errors.ArgumentError, "must be positive"),
        ({"eval_batch_size": "8"}, errors.DtypeError, "eval_batch_size must"),
        ({"eval_batch_size": -8}, errors.ArgumentError, "eval_batch_size must"),
        ({"predict_batch_size": 8.5}, errors.DtypeError, "predict_batch_size"),
        ({"predict_batch_size": 0}, errors.ArgumentError, "predict_batch_size"),
        (
            {
                "tpu_config": {
                    "per_host_input_for_training": False,
                    "num_cores_per_replica": 2,
                }
            },
            errors.ArgumentError,
            "Model parallelism only supports per host",
        ),
        (
            {
                "tpu_config": {"per_host_input_for_training": 4},
                "embedding_config_spec": embedding_spec(),
            },
            errors.ArgumentError,
            "Only PER_HOST_V1 and PER_HOST_V2 is supported",
        ),
        (
            {
                "eval_on_tpu": False,
                "embedding_config_spec": embedding_spec(
                    partition_strategy="mod"
                ),
            },
            errors.ArgumentError,
            "Mod sharding of embedding tables not supported on CPU",
        ),
        (
            {"export_saved_model_api_version": 3},
            errors.ArgumentError,
            "should be 1 or 2; got 3",
        ),
        (
            {"model": without_features},
            errors.ArgumentError,
            "must include features argument",
        ),
        (
            {"model": with_unknown_arguments},
            errors.ArgumentError,
            "has following not expected args",
        ),
        ({"model": None}, errors.ArgumentError, "model_fn must be provided"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        replica_model.make(tmp_path, **options)


def test_params_that_no_model_fn_takes_are_refused(tmp_path):
    def model_fn(features, labels):
        pass

    with pytest.raises(errors.ArgumentError, match="not include params"):
        replica_model.make(tmp_path, model=model_fn, params={"a": 1})


@pytest.mark.parametrize(
    "limits, error, text",
    [
        ({}, errors.ArgumentError, "one of `steps` or `max_steps` must be set"),
        ({"steps": 1.5}, errors.DtypeError, "Train steps must be int"),
        ({"max_steps": 1.5}, errors.DtypeError, "max_steps must be int"),
        ({"steps": -1}, errors.ArgumentError, "Must specify steps > 0"),
        ({"max_steps": 0}, errors.ArgumentError, "Must specify max_steps > 0"),
        ({"steps": 1, "max_steps": 1}, errors.ArgumentError, "Can not provide"),
    ],
)
def test_limits_of_training_are_checked(tmp_path, limits, error, text):
    model = replica_model.make(tmp_path)
    with pytest.raises(error, match=text):
        model.train(replica_model.train_fn, **limits)
    assert not list(tmp_path.glob("model.ckpt*"))


@pytest.mark.parametrize(
    "steps, error, text",
    [
        (1.5, errors.DtypeError, "Eval steps must be int"),
        (-3, errors.ArgumentError, "Eval steps must be positive"),
    ],
)
def test_steps_of_an_evaluation_are_checked(tmp_path, steps, error, text):
    with pytest.raises(error, match=text):
        replica_model.make(tmp_path).evaluate(replica_model.train_fn, steps)


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
@pytest.mark.parametrize(
    "size, text", [(None, "cannot be `None`"), (17, "must be divisible")]
)
def test_a_mode_needs_a_batch_size_that_fits(tmp_path, mode, size, text):
    model = replica_model.make(tmp_path, **{f"{mode}_batch_size": size})
    with pytest.raises(errors.ArgumentError, match=text):
        if mode == "train":
            model.train(replica_model.train_fn, steps=1)
        elif mode == "eval":
            model.evaluate(replica_model.train_fn, steps=1)
        else:
            next(model.predict(replica_model.some(4)))


def no_params():
    pass


def no_dataset(params):
    return replica_model.tensors_fn(params)


@pytest.mark.parametrize("replicas", [0, 2])
def test_an_input_fn_takes_params(tmp_path, replicas):
    model = replica_model.make(tmp_path, replicas)
    with pytest.raises(errors.ArgumentError, match="input_fn .* not include"):
        model.train(no_params, steps=1)


def test_a_dataset_is_needed_or_cannot_be_taken(tmp_path):
    def make(pipeline):
        return replica_model.make(
            tmp_path, tpu_config={"per_host_input_for_training": pipeline}
        )

    with pytest.raises(errors.DtypeError, match="must return a `Dataset`"):
        make(PIPELINES.PER_HOST_V2).train(no_dataset, steps=1)
    with pytest.raises(errors.DtypeError, match="per-core input pipeline"):
        make(PIPELINES.PER_SHARD_V1).train(replica_model.train_fn, steps=1)
    with pytest.raises(errors.DtypeError, match="mode PREDICT, `input_fn`"):
        next(make(PIPELINES.PER_HOST_V1).predict(no_dataset))


def test_a_batch_axis_is_not_for_prediction_and_has_one_number_each(tmp_path):
    model = replica_model.make(tmp_path, batch_axis=[0, 0])
    with pytest.raises(errors.DtypeError, match="batch_axis is not supported"):
        next(model.predict(replica_model.some(16)))
    model = replica_model.make(tmp_path, batch_axis=[0])
    with pytest.raises(errors.ArgumentError, match="one number for each"):
        model.train(replica_model.train_fn, steps=1)


def test_a_batch_that_replicas_cannot_share_is_named(tmp_path):
    def odd(params):
        data = tf.data.Dataset.from_tensor_slices(
            ({"x": replica_model.X}, replica_model.Y)
        )
        return data.batch(5, drop_remainder=True).repeat()

    with pytest.raises(errors.ArgumentError, match="cannot be dealt to 2"):
        replica_model.make(tmp_path).train(odd, steps=1)


def test_a_last_batch_of_unknown_size_that_cannot_be_dealt_is_named(tmp_path):
    def odd(params):
        data = tf.data.Dataset.from_tensor_slices(
            ({"x": replica_model.X[:21]}, replica_model.Y[:21])
        )
        return data.batch(16)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="drop_remainder=True"
    ):
        replica_model.make(tmp_path).train(odd, steps=5)


def test_slices_are_for_replicas_alone(tmp_path):
    model = replica_model.make(
        tmp_path, 0, tpu_config={"eval_training_input_configuration": 5}
    )
    with pytest.raises(errors.ArgumentError, match="SLICED mode only works"):
        model.evaluate(replica_model.train_fn, steps=1)


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_model_fn_takes_labels_and_params(tmp_path, replicas):
    def without_labels(features, params):
        raise AssertionError

    def without_params(features, labels):
        raise AssertionError

    model = replica_model.make(tmp_path, replicas, model=without_labels)
    with pytest.raises(errors.ArgumentError, match="does not take labels"):
        model.train(replica_model.train_fn, steps=1)
    model = replica_model.make(tmp_path, replicas, model=without_params)
    with pytest.raises(errors.ArgumentError, match="not include params"):
        model.train(replica_model.train_fn, steps=1)


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_model_fn_returns_a_spec(tmp_path, replicas):
    def model_fn(features, labels, mode, params):
        return tf.constant(1.0)

    model = replica_model.make(tmp_path, replicas, model=model_fn)
    with pytest.raises(errors.ArgumentError, match="should return"):
        model.train(replica_model.train_fn, steps=1)


def changed(**fields):
    """A model_fn whose spec has other fields, as functions of its tensors."""

    def model_fn(features, labels, mode, params):
        spec = replica_model.model_fn(features, labels, mode, params)
        return spec._replace(
            **{name: make(spec) for name, make in fields.items()}
        )

    return model_fn


def v1_summary(loss):
    v1.summary.scalar("loss", loss[0])
    return []


def capturing(spec):
    def scaffold_fn():
        v1.summary.scalar("captured", spec.loss)
        return v1.train.Scaffold()

    return scaffold_fn


def summarizing(spec):
    v1.summary.scalar("merged", spec.loss)
    return v1.train.Scaffold


@pytest.mark.parametrize(
    "fields, error, text",
    [
        (
            {"host_call": lambda s: (lambda loss: loss, [s.loss])},
            errors.StateError,
            "should preserve batch size dimension, but got scalar",
        ),
        (
            {"host_call": lambda s: (v1_summary, [tf.reshape(s.loss, [1])])},
            errors.ArgumentError,
            "summary of tf.compat.v1.summary",
        ),
        (
            {"scaffold_fn": lambda s: lambda: None},
            errors.ArgumentError,
            "scaffold_fn returns None",
        ),
        (
            {"scaffold_fn": capturing},
            errors.ArgumentError,
            "Inside scaffold_fn: .* depends on TPU computation",
        ),
        (
            {"scaffold_fn": summarizing},
            errors.ArgumentError,
            "Scaffold.finalize.* depends on TPU computation",
        ),
    ],
)
def test_what_replicas_cannot_hand_out_is_refused(
    tmp_path, fields, error, text
):
    model = replica_model.make(tmp_path, model=changed(**fields))
    with pytest.raises(error, match=text):
        model.train(replica_model.train_fn, steps=1)


def plain(mode, **fields):
    return estimator.EstimatorSpec(
        mode,
        loss=tf.constant(1.0),
        train_op=tf.no_op(),
        predictions={"y": tf.zeros([8])},
        **fields,
    )


def test_plain_specs_are_for_training_without_hooks_of_the_chief(tmp_path):
    def model_fn(features, labels, mode, params):
        hooks = {"training_chief_hooks": [v1.train.SessionRunHook()]}
        return plain(mode, **(hooks if mode == ModeKeys.TRAIN else {}))

    model = replica_model.make(tmp_path, model=model_fn)
    with pytest.raises(errors.ArgumentError, match="training_chief_hooks"):
        model.train(replica_model.train_fn, steps=1)
    with pytest.raises(
        errors.StateError, match="evaluation must have type `TPUEs"
    ):
        model.evaluate(replica_model.train_fn, steps=1)
    with pytest.raises(errors.StateError, match="prediction must have type"):
        next(model.predict(replica_model.some(16)))


def without_sums(features, labels, mode, params):
    loss = tf.reduce_mean((replica_model.linear(features) - labels) ** 2)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    step = v1.train.get_global_step()
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, step)
    )


def test_replicas_that_never_hear_of_each_other_are_refused(tmp_path):
    with pytest.raises(
        errors.ArgumentError,
        match=r"CrossShardOptimizer must be used.*check_cross_replica=False",
    ):
        replica_model.make(tmp_path, model=without_sums).train(
            replica_model.train_fn, steps=1
        )
    replica_model.make(
        tmp_path,
        model=without_sums,
        tpu_config={"check_cross_replica": False},
    ).train(replica_model.train_fn, steps=1)
    replica_model.make(tmp_path, 1, model=without_sums).train(
        replica_model.train_fn, steps=1
    )


def test_a_variable_that_became_nan_ends_training(tmp_path):
    def model_fn(features, labels, mode, params):
        weight = v1.get_variable("w", [], use_resource=True)
        step = v1.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode,
            loss=v1.tpu.cross_replica_sum(tf.constant(1.0)),
            train_op=tf.group(weight.assign(np.nan), v1.assign_add(step, 1)),
        )

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="Gradient for w:0 is NaN"
    ):
        replica_model.make(tmp_path, model=model_fn).train(
            replica_model.train_fn, steps=2
        )


def test_static_shapes_are_asked_for_where_a_tpu_would(tmp_path):
    def padded(params):
        length = tf.random.uniform([], 3, 4, tf.int32)
        data = replica_model.some(16)(params)
        return data.map(lambda x, y: ({"x": x["x"][:, :length]}, y))

    def model_fn(features, labels, mode, params):
        features = {"x": tf.ensure_shape(features["x"], [None, 3])}
        return replica_model.model_fn(features, labels, mode, params)

    strict = replica_model.make(
        tmp_path, model=model_fn, tpu_config={"strict_tpu": True}
    )
    with pytest.raises(
        errors.ArgumentError,
        match="features 'x' to the model .* must have static shape.*drop_rem",
    ):
        next(strict.predict(padded))
    assert len(
        list(replica_model.make(tmp_path).predict(replica_model.some(9)))
    )


@pytest.mark.parametrize("name", ["", "weights"])
def test_labels_of_a_prediction_are_asked_for_static_shapes_too(tmp_path, name):
    def padded(params):
        length = tf.random.uniform([], 1, 2, tf.int32)
        data = replica_model.some(16)(params)
        labels = tf.ones([8, length])
        return data.map(lambda x, y: (x, {name: labels} if name else labels))

    strict = replica_model.make(tmp_path, tpu_config={"strict_tpu": True})
    of = f" '{name}'" if name else ""
    with pytest.raises(
        errors.ArgumentError, match=f"labels{of} to the model .* static shape"
    ):
        next(strict.predict(padded))


def test_predictions_without_a_static_size_are_refused_where_a_tpu_would(
    tmp_path,
):
    model = replica_model.make(
        tmp_path,
        model=changed(
            predictions=lambda s: {"y": v1.placeholder(tf.float32, [None])}
        ),
        tpu_config={"strict_tpu": True},
    )
    with pytest.raises(errors.ArgumentError, match="should be static"):
        next(model.predict(replica_model.some(16)))


def test_predictions_of_a_gigabyte_are_refused(tmp_path):
    model = replica_model.make(
        tmp_path,
        model=changed(predictions=lambda s: {"y": tf.zeros([8, 2**24])}),
    )
    with pytest.raises(errors.ArgumentError, match="is too large"):
        next(model.predict(replica_model.some(16)))


def queues(params):
    row = v1.train.limit_epochs(tf.constant([1.0, 2.0, 3.0]))
    x = v1.train.batch([row], params["batch_size"])
    return {"x": x}, tf.zeros([params["batch_size"], 1])


def test_queues_are_refused_where_the_host_would_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "WRAP_INPUT_FN_INTO_WHILE_LOOP", True)
    with pytest.raises(errors.StateError, match="more QueueRunners"):
        replica_model.make(tmp_path).train(queues, steps=1)
