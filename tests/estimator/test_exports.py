"""Exports: SavedModels that serve, receivers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tfembed import errors, estimator
from tfembed.estimator.exports import saved_models

v1 = tf.compat.v1
FEATURES = linear_model.FEATURES.reshape(-1, 3)


def raw_receiver():
    features = {"x": v1.placeholder(tf.float32, [None, 3], name="x")}
    return estimator.export.ServingInputReceiver(features, features)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = linear_model.make(
        tmp_path_factory.mktemp("model"), save_checkpoints_steps=2
    )
    return made.train(linear_model.input_fn, steps=4)


def served(folder, **feeds):
    loaded = tf.saved_model.load(tf.compat.as_str(folder))
    return loaded.signatures["serving_default"](**feeds)


def test_an_export_predicts_what_the_model_predicts(model, tmp_path):
    folder = model.export_saved_model(str(tmp_path), raw_receiver)

    predicted = served(folder, x=tf.constant(FEATURES))
    np.testing.assert_allclose(
        predicted["y"], linear_model.predicted(4), rtol=1e-4, atol=1e-5
    )
    assert [path.name for path in tmp_path.iterdir()] == [
        tf.compat.as_str(folder).rsplit("/", 1)[-1]
    ]


@pytest.mark.parametrize("strip", [False, True])
def test_the_first_name_of_an_export_is_there(model, tmp_path, strip):
    folder = model.export_savedmodel(
        str(tmp_path), raw_receiver, strip_default_attrs=strip
    )
    with tf.Graph().as_default(), v1.Session() as session:
        graph = v1.saved_model.load(session, ["serve"], folder)
    assert graph.meta_info_def.stripped_default_attrs is strip
    with pytest.raises(ValueError, match="input_receiver_fn must be defined"):
        model.export_savedmodel(str(tmp_path), None)


def test_an_export_is_of_the_checkpoint_that_is_named(model, tmp_path):
    folder = model.export_saved_model(
        str(tmp_path),
        raw_receiver,
        checkpoint_path=f"{model.model_dir}/model.ckpt-2",
    )

    predicted = served(folder, x=tf.constant(FEATURES))
    np.testing.assert_allclose(
        predicted["y"], linear_model.predicted(2), rtol=1e-4, atol=1e-5
    )


def test_serialized_examples_are_parsed(model, tmp_path):
    receiver_fn = estimator.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    folder = model.export_saved_model(str(tmp_path), receiver_fn)
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=FEATURES[0]))
    example = tf.train.Example(
        features=tf.train.Features(feature={"x": feature})
    )

    predicted = served(
        folder, examples=tf.constant([example.SerializeToString()])
    )
    np.testing.assert_allclose(
        predicted["y"], linear_model.predicted(4)[:1], rtol=1e-4, atol=1e-5
    )


def test_features_themselves_are_fed(model, tmp_path):
    receiver_fn = estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.zeros([7, 3])}
    )
    folder = model.export_saved_model(str(tmp_path), receiver_fn)

    predicted = served(folder, x=tf.constant(FEATURES))
    np.testing.assert_allclose(
        predicted["twice"],
        2 * linear_model.predicted(4),
        rtol=1e-4,
        atol=1e-5,
    )


def test_one_export_has_graphs_of_all_modes(model, tmp_path):
    supervised = estimator.experimental.build_raw_supervised_input_receiver_fn(
        {"x": tf.zeros([4, 3])}, tf.zeros([4])
    )
    modes = estimator.ModeKeys
    folder = model.experimental_export_all_saved_models(
        str(tmp_path),
        {
            modes.TRAIN: supervised,
            modes.EVAL: supervised,
            modes.PREDICT: raw_receiver,
        },
    )

    for tag in ("serve", "train", "eval"):
        with v1.Session(graph=tf.Graph()) as session:
            v1.saved_model.load(session, [tag], tf.compat.as_str(folder))
            weight = session.run("weight/Read/ReadVariableOp:0")
        np.testing.assert_allclose(
            weight, linear_model.trained(4)[0], rtol=1e-5
        )


def test_further_files_lie_under_assets_extra(model, tmp_path):
    (tmp_path / "notes").write_text("read me")
    folder = model.export_saved_model(
        str(tmp_path / "exports"),
        raw_receiver,
        assets_extra={"a/b.txt": str(tmp_path / "notes")},
    )

    with tf.io.gfile.GFile(
        f"{tf.compat.as_str(folder)}/assets.extra/a/b.txt"
    ) as file:
        assert file.read() == "read me"


def test_a_failed_export_leaves_no_folder(model, tmp_path):
    def bad_fn(features, labels, mode):
        v1.get_variable("kernel", [3])
        return linear_model.model_fn(features, labels, mode)

    other = estimator.Estimator(bad_fn, model.model_dir)

    with pytest.raises(
        errors.CheckpointError, match=r"(?s)not load all.*infer.*kernel"
    ):
        other.export_saved_model(str(tmp_path), raw_receiver)
    assert not list(tmp_path.iterdir())


def test_exports_without_what_they_need_are_refused(model, tmp_path):
    with pytest.raises(errors.ArgumentError, match="input_receiver_fn must"):
        model.export_saved_model(str(tmp_path), None)
    with pytest.raises(errors.ArgumentError, match="No valid modes.*guess"):
        model.experimental_export_all_saved_models(
            str(tmp_path), {"guess": raw_receiver}
        )
    with pytest.raises(errors.ArgumentError, match="find trained model"):
        linear_model.make(tmp_path / "new").export_saved_model(
            str(tmp_path), raw_receiver
        )


def test_a_single_tensor_gets_a_name():
    with tf.Graph().as_default():
        tensor = tf.zeros([2])
        receiver = estimator.export.ServingInputReceiver(tensor, tensor)
        single = estimator.export.TensorServingInputReceiver(tensor, tensor)

        assert list(receiver.features) == ["feature"]
        assert list(receiver.receiver_tensors) == ["input"]
        assert single.features is tensor


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda t, cls: cls(None, t), "features must be defined"),
        (lambda t, cls: cls({"x": 1.0}, t), "feature x must be a Tensor"),
        (lambda t, cls: cls({2.5: t}, t), "must be strings or ints: 2.5"),
        (lambda t, cls: cls(t, {1: t}), "receiver_tensor keys must be str"),
        (lambda t, cls: cls(t, t, [t]), "alternatives must be a dict"),
    ],
)
def test_receivers_of_what_is_no_tensor_are_refused(make, text):
    with (
        tf.Graph().as_default(),
        pytest.raises(errors.ArgumentError, match=text),
    ):
        make(tf.zeros([2]), estimator.export.ServingInputReceiver)


def test_features_and_labels_of_one_name_are_refused():
    with pytest.raises(errors.ArgumentError, match=r"\{'x'\}"):
        saved_models.build_raw_supervised_input_receiver_fn(
            {"x": tf.zeros([2])}, {"x": tf.zeros([2])}
        )
