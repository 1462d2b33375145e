"""Warm starts: once, when model_dir has no checkpoint; and the public names."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tests.estimator import linear_model
from tests.estimator.test_exports import raw_receiver
from tfembed import errors, estimator

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = linear_model.make(tmp_path_factory.mktemp("warm"))
    return model.train(linear_model.input_fn, steps=5)


def warm(folder, source):
    return estimator.Estimator(
        linear_model.model_fn, folder, warm_start_from=source
    )


def bias_after(model, steps):
    """The bias, where NumPy trains on from the warm start."""
    return model.get_variable_value("bias"), linear_model.trained(5 + steps)[1]


def test_variables_start_with_the_values_of_a_checkpoint(trained, tmp_path):
    model = warm(tmp_path, trained.model_dir)

    model.train(lambda: linear_model.input_fn().skip(5), steps=2)

    assert model.get_variable_value("global_step") == 2
    np.testing.assert_allclose(*bias_after(model, 2), rtol=1e-5)


def test_a_checkpoint_in_model_dir_comes_before(trained, tmp_path):
    model = warm(tmp_path, trained.model_dir)

    model.train(lambda: linear_model.input_fn().skip(5), steps=1)
    model.train(lambda: linear_model.input_fn().skip(6), steps=1)

    np.testing.assert_allclose(*bias_after(model, 2), rtol=1e-5)


def test_predictions_and_exports_start_warm_too(trained, tmp_path):
    model = warm(tmp_path / "model", trained.model_dir)

    predicted = [one["y"] for one in model.predict(linear_model.once)]
    model.export_saved_model(str(tmp_path / "export"), raw_receiver)

    np.testing.assert_allclose(
        predicted, linear_model.predicted(5), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("as_settings", [False, True])
def test_a_saved_model_is_a_warm_start(trained, tmp_path, as_settings):
    folder = tf.compat.as_str(
        trained.export_saved_model(str(tmp_path / "export"), raw_receiver)
    )
    source = estimator.WarmStartSettings(folder) if as_settings else folder

    predicted = warm(tmp_path / "model", source).predict(linear_model.once)

    np.testing.assert_allclose(
        [one["y"] for one in predicted],
        linear_model.predicted(5),
        rtol=1e-4,
        atol=1e-5,
    )


def test_settings_pick_and_rename_variables(trained, tmp_path):
    def model_fn(features, labels, mode):
        with v1.variable_scope("new"):
            return linear_model.model_fn(features, labels, mode)

    model = estimator.Estimator(
        model_fn,
        tmp_path,
        warm_start_from=estimator.WarmStartSettings(
            trained.model_dir,
            vars_to_warm_start="new/weight",
            var_name_to_prev_var_name={"new/weight": "weight"},
        ),
    )
    predicted = [one["y"] for one in model.predict(linear_model.once)]

    weight = linear_model.trained(5)[0]
    np.testing.assert_allclose(
        predicted,
        (linear_model.FEATURES @ weight).reshape(-1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_vocabulary_that_changed_moves_rows(tmp_path):
    def model_of(words, folder, **options):
        def model_fn(features, mode):
            table = v1.get_variable(
                "table", [len(words), 1], initializer=v1.ones_initializer()
            )
            step = v1.train.get_global_step()
            write = table.assign(
                tf.reshape(tf.range(1.0, len(words) + 1), [-1, 1])
            )
            return estimator.EstimatorSpec(
                mode,
                predictions=tf.gather(table, features),
                loss=tf.constant(0.0),
                train_op=tf.group(write, step.assign_add(1)),
            )

        path = tmp_path / f"{folder}.txt"
        path.write_text("\n".join(words))
        return estimator.Estimator(model_fn, tmp_path / folder, **options), str(
            path
        )

    old, old_path = model_of(["a", "b", "c"], "old")
    old.train(lambda: tf.constant([0]), steps=1)
    new_path = str(tmp_path / "new.txt")
    vocabulary = estimator.VocabInfo(
        new_vocab=new_path,
        new_vocab_size=4,
        num_oov_buckets=0,
        old_vocab=old_path,
    )
    new, _ = model_of(
        ["c", "x", "a", "b"],
        "new",
        warm_start_from=estimator.WarmStartSettings(
            old.model_dir, var_name_to_vocab_info={"table": vocabulary}
        ),
    )

    rows = new.predict(lambda: tf.data.Dataset.from_tensors([0, 1, 2, 3]))
    np.testing.assert_array_equal(
        np.reshape(list(rows), -1), [3.0, 0.0, 1.0, 2.0]
    )


def test_warm_starts_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match="MUST be set"):
        estimator.WarmStartSettings("")
    with pytest.raises(errors.ArgumentError, match="string or a WarmStart"):
        warm(tmp_path, 7)
    with pytest.raises(errors.ArgumentError, match="neither a checkpoint nor"):
        warm(tmp_path / "model", str(tmp_path)).train(
            linear_model.input_fn, steps=1
        )


def test_names_are_where_tensorflow_had_them():
    for name in estimator.__all__:
        assert getattr(estimator, name) is not None
    for name in estimator.experimental.__all__:
        assert callable(getattr(estimator.experimental, name))
    assert tfembed.estimator is estimator
    assert callable(estimator.inputs.numpy_input_fn)
    assert callable(estimator.export.PredictOutput)


@pytest.mark.parametrize(
    ("module", "name", "way"),
    [
        (estimator, "DNNClassifier", "network in a model_fn"),
        (estimator, "LinearRegressor", "network in a model_fn"),
        (estimator, "MultiClassHead", "EstimatorSpec"),
        (estimator, "BoostedTreesClassifier", "Decision Forests"),
        (estimator.experimental, "LinearSDCA", "FtrlOptimizer"),
    ],
)
def test_what_is_not_here_names_the_way(module, name, way):
    absent = getattr(module, name)

    with pytest.raises(errors.UnsupportedError, match=f"{name}.*{way}"):
        absent()
    assert not hasattr(module, "NeverThere")
