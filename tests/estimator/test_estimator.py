"""Estimator: train, evaluate, predict, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tfembed import errors, estimator

v1 = tf.compat.v1


class Runs(v1.train.SessionRunHook):
    def __init__(self):
        self.runs = 0
        self.ended = False

    def after_run(self, run_context, run_values):
        self.runs += 1

    def end(self, session):
        self.ended = True


def test_training_makes_the_steps_that_numpy_makes(tmp_path):
    model = linear_model.make(tmp_path)

    assert model.train(linear_model.input_fn, steps=9) is model

    weight, bias = linear_model.trained(9)
    np.testing.assert_allclose(
        model.get_variable_value("weight"), weight, rtol=1e-5
    )
    np.testing.assert_allclose(
        model.get_variable_value("bias"), bias, rtol=1e-5
    )
    assert set(model.get_variable_names()) == {"weight", "bias", "global_step"}
    assert model.latest_checkpoint() == str(tmp_path / "model.ckpt-9")


def test_steps_add_up_and_max_steps_do_not(tmp_path):
    model = linear_model.make(tmp_path)

    model.train(linear_model.input_fn, steps=2)
    model.train(linear_model.input_fn, steps=2)
    model.train(linear_model.input_fn, max_steps=5)
    model.train(linear_model.input_fn, max_steps=5)

    assert model.get_variable_value("global_step") == 5


def test_training_ends_with_its_input(tmp_path):
    model = linear_model.make(tmp_path)

    model.train(linear_model.once, steps=100)

    assert model.get_variable_value("global_step") == linear_model.BATCHES


def test_hooks_see_each_step_and_the_end(tmp_path):
    hook = Runs()
    linear_model.make(tmp_path).train(
        linear_model.input_fn, hooks=[hook], steps=3
    )

    assert (hook.runs, hook.ended) == (3, True)


def test_listeners_hear_of_each_checkpoint(tmp_path):
    class Listener(v1.train.CheckpointSaverListener):
        steps = []

        def after_save(self, session, global_step_value):
            self.steps.append(int(global_step_value))

    model = linear_model.make(tmp_path, save_checkpoints_steps=2)
    model.train(linear_model.input_fn, steps=5, saving_listeners=[Listener()])

    assert Listener.steps == [0, 2, 4, 5]


def test_an_evaluation_has_means_over_its_batches(tmp_path):
    model = linear_model.make(tmp_path)
    model.train(linear_model.input_fn, steps=4)

    results = model.evaluate(linear_model.once)

    assert results["global_step"] == 4
    np.testing.assert_allclose(
        results["loss"], linear_model.losses(4).mean(), rtol=1e-5
    )
    np.testing.assert_allclose(
        results["mean"], linear_model.predicted(4).mean(), rtol=1e-5
    )


def test_an_evaluation_of_steps_takes_so_many_batches(tmp_path):
    model = linear_model.make(tmp_path)
    model.train(linear_model.input_fn, steps=4)

    results = model.evaluate(linear_model.input_fn, steps=2)

    np.testing.assert_allclose(
        results["loss"], linear_model.losses(4)[:2].mean(), rtol=1e-5
    )


def test_an_evaluation_takes_the_checkpoint_that_is_named(tmp_path):
    model = linear_model.make(tmp_path, save_checkpoints_steps=2)
    model.train(linear_model.input_fn, steps=4)

    results = model.evaluate(
        linear_model.once, checkpoint_path=str(tmp_path / "model.ckpt-2")
    )

    assert results["global_step"] == 2
    np.testing.assert_allclose(
        results["loss"], linear_model.losses(2).mean(), rtol=1e-5
    )


def test_without_a_checkpoint_initial_values_are_evaluated(tmp_path):
    results = linear_model.make(tmp_path).evaluate(linear_model.once)

    assert results["global_step"] == 0
    np.testing.assert_allclose(
        results["loss"], linear_model.losses(0).mean(), rtol=1e-5
    )


def test_predictions_come_by_example_in_order(tmp_path):
    model = linear_model.make(tmp_path)
    model.train(linear_model.input_fn, steps=4)

    predictions = list(model.predict(linear_model.once))

    assert [sorted(one) for one in predictions[:1]] == [["twice", "y"]]
    np.testing.assert_allclose(
        [one["y"] for one in predictions],
        linear_model.predicted(4),
        rtol=1e-4,
        atol=1e-5,
    )


def test_predictions_come_by_batch_where_asked(tmp_path):
    batches = list(
        linear_model.make(tmp_path).predict(
            linear_model.once, predict_keys="y", yield_single_examples=False
        )
    )

    assert [sorted(one) for one in batches] == [["y"]] * linear_model.BATCHES
    np.testing.assert_allclose(
        np.concatenate([one["y"] for one in batches]),
        linear_model.predicted(0),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_generator_that_is_closed_closes_its_session(tmp_path):
    closed = []

    class Closed(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            closed.append(session)

    model = linear_model.make(tmp_path)
    predictions = model.predict(linear_model.input_fn, hooks=[Closed()])
    next(predictions)
    predictions.close()

    with pytest.raises(RuntimeError, match="closed"):
        closed[0].run(tf.no_op())


def test_a_generator_that_is_dropped_closes_its_session(tmp_path):
    made = []

    class Made(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            made.append(session)

    model = linear_model.make(tmp_path)
    predictions = model.predict(linear_model.input_fn, hooks=[Made()])
    next(predictions)
    del predictions

    with pytest.raises(RuntimeError, match="closed"):
        made[0].run(tf.no_op())


def test_between_predictions_the_caller_is_in_eager_mode(tmp_path):
    model = linear_model.make(tmp_path)
    one = model.predict(linear_model.input_fn)
    other = model.predict(linear_model.input_fn)

    for _ in range(3):
        np.testing.assert_array_equal(next(one)["y"], next(other)["y"])
        assert tf.executing_eagerly()
    other.close()
    assert next(one)["y"].shape == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 0}, "steps > 0, given: 0"),
        ({"max_steps": -1}, "max_steps > 0, given: -1"),
        ({"steps": 1, "max_steps": 1}, "both steps and max_steps"),
    ],
)
def test_steps_that_cannot_be_made_are_refused(tmp_path, options, text):
    with pytest.raises(errors.ArgumentError, match=text):
        linear_model.make(tmp_path).train(linear_model.input_fn, **options)


def test_an_evaluation_of_no_steps_is_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match="steps > 0, given: 0"):
        linear_model.make(tmp_path).evaluate(linear_model.once, steps=0)


def test_what_is_no_hook_is_refused(tmp_path):
    model = linear_model.make(tmp_path)

    with pytest.raises(errors.DtypeError, match="must be a SessionRunHook"):
        model.train(linear_model.input_fn, hooks=["hook"], steps=1)
    with pytest.raises(errors.DtypeError, match="CheckpointSaverListener"):
        model.train(
            linear_model.input_fn, saving_listeners=["listener"], steps=1
        )


def test_a_key_that_is_not_predicted_is_refused(tmp_path):
    predictions = linear_model.make(tmp_path).predict(
        linear_model.once, predict_keys=["z"]
    )

    with pytest.raises(errors.ArgumentError, match="twice.*provided"):
        next(predictions)


def test_a_model_fn_that_returns_something_else_is_refused(tmp_path):
    model = estimator.Estimator(lambda features: {"loss": 0.0}, tmp_path)

    with pytest.raises(errors.ArgumentError, match="EstimatorSpec.*dict"):
        model.train(lambda: {"x": [1.0]}, steps=1)


def test_a_spec_of_another_mode_is_refused(tmp_path):
    def model_fn(features, mode):
        return estimator.EstimatorSpec(
            estimator.ModeKeys.PREDICT, predictions=tf.constant([1.0])
        )

    with pytest.raises(errors.ArgumentError, match="'train'.*'infer'"):
        estimator.Estimator(model_fn, tmp_path).train(
            lambda: {"x": [1.0]}, steps=1
        )


def test_labels_that_no_model_fn_takes_are_refused(tmp_path):
    def model_fn(features):
        raise AssertionError

    with pytest.raises(errors.ArgumentError, match="does not take labels"):
        estimator.Estimator(model_fn, tmp_path).train(
            lambda: ({"x": [1.0]}, [1.0]), steps=1
        )


def test_input_of_three_parts_is_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match="len 2 tuple.*3 elements"):
        linear_model.make(tmp_path).train(lambda: (1.0, 2.0, 3.0), steps=1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    model = linear_model.make(tmp_path / "file" / "model")

    with pytest.raises(errors.StateError, match="file/model' cannot be wri"):
        model.train(linear_model.input_fn, steps=1)


def test_variables_need_a_checkpoint(tmp_path):
    model = linear_model.make(tmp_path)

    with pytest.raises(errors.ArgumentError, match="not find trained model"):
        model.get_variable_names()
    with pytest.raises(errors.ArgumentError, match="not find trained model"):
        model.get_variable_value("weight")


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_a_checkpoint_of_another_model_is_explained(tmp_path, call):
    def other_fn(features, labels, mode):
        v1.get_variable("kernel", [3])
        return linear_model.model_fn(features, labels, mode)

    linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)
    model = estimator.Estimator(other_fn, tmp_path)

    with pytest.raises(
        tf.errors.NotFoundError, match=r"lacks the variables \['kernel'\]"
    ):
        if call == "train":
            model.train(linear_model.input_fn, steps=1)
        elif call == "evaluate":
            model.evaluate(linear_model.once)
        else:
            next(model.predict(linear_model.once))


def test_a_variable_of_another_shape_is_named_with_both(tmp_path):
    def wide_fn(features, labels, mode):
        v1.get_variable("bias", [2])
        with v1.variable_scope("new"):
            return linear_model.model_fn(features, labels, mode)

    linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)

    with pytest.raises(
        tf.errors.OpError, match=r"'bias' is \[2\] here and \[\] there"
    ):
        estimator.Estimator(wide_fn, tmp_path).evaluate(linear_model.once)


def test_a_subclass_adds_methods_and_overrides_none(tmp_path):
    class Added(estimator.Estimator):
        def predict_proba(self):
            return 0.5

    class Overridden(estimator.Estimator):
        def predict(self, input_fn):
            return []

    assert Added(linear_model.model_fn, tmp_path).predict_proba() == 0.5
    with pytest.raises(errors.ArgumentError, match=r"override.*\['predict'\]"):
        Overridden(linear_model.model_fn, tmp_path)


def test_functions_get_the_arguments_that_they_name(tmp_path):
    seen = []

    def input_fn(mode, params, config):
        seen.append((mode, params, config.tf_random_seed))
        return linear_model.once()

    def model_fn(features, labels, mode, params, config):
        seen.append((mode, params, config.tf_random_seed))
        params["changed"] = True
        return linear_model.model_fn(features, labels, mode)

    params = {"rate": 3}
    model = estimator.Estimator(
        model_fn,
        tmp_path,
        config=estimator.RunConfig(tf_random_seed=11),
        params=params,
    )
    model.train(input_fn, steps=1)

    assert seen[0] == ("train", {"rate": 3}, 11)
    assert model.params == params == {"rate": 3}
    assert model.params is not model.params


def looks_up(features, mode):
    """A model whose table gets sparse gradients."""
    table = v1.get_variable(
        "table", [50, 4], initializer=v1.random_uniform_initializer(seed=3)
    )
    rows = v1.nn.safe_embedding_lookup_sparse(table, features["ids"])
    loss = tf.reduce_sum(rows**2)
    optimizer = v1.train.AdagradOptimizer(0.1)
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, v1.train.get_global_step()),
    )


def ids():
    found = tf.sparse.from_dense([[1, 2, 1], [7, 0, 0]])
    found = tf.cast(found, tf.int64)
    return tf.data.Dataset.from_tensors({"ids": found}).repeat()


class Ran(v1.train.SessionRunHook):
    """Notes the ops that sessions run, after TensorFlow's rewrites."""

    def before_run(self, run_context):
        options = v1.RunOptions(output_partition_graphs=True)
        return v1.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context, run_values):
        self.whole_reads = [
            node.name
            for graph in run_values.run_metadata.partition_graphs
            for node in graph.node
            if node.op == "ReadVariableOp" and "table" in node.input[0]
        ]


def train_lookups(folder, **options):
    ran = Ran()
    model = estimator.Estimator(
        looks_up,
        str(folder),
        estimator.RunConfig(tf_random_seed=1, **options),
    )
    model.train(ids, steps=3, hooks=[ran])
    return ran.whole_reads, model.get_variable_value("table")


def test_a_step_reads_no_whole_table_unless_the_config_says_so(tmp_path):
    as_given = v1.ConfigProto()
    rewrites = as_given.graph_options.rewrite_options
    rewrites.arithmetic_optimization = rewrites.ON

    found, table = train_lookups(tmp_path / "default")
    rewritten, same = train_lookups(tmp_path / "on", session_config=as_given)

    assert found == []
    assert rewritten  # What TensorFlow does by itself.
    np.testing.assert_allclose(table, same, rtol=1e-6)
