"""Checkpoints that do not fit, or are damaged, are refused before a restore.

The kind: a restore that TensorFlow lets pass, or skips, in silence. Looked at:
every mode of `Estimator` and `TPUEstimator`, with a model_fn and a model
object, Savers and init_fns of Scaffolds, warm starts, exports, variables of
strategies and in parts, renamed slots; and whoever asks a folder for its
latest checkpoint: early stopping, `train_and_evaluate`, warm starts, exporters.
"""

from __future__ import annotations

import shutil

import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.test_exports import raw_receiver
from tests.estimator.tpu import replica_model
from tfembed import errors, estimator
from tfembed.estimator.runs import checkpoints, early_stopping, sessions

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _looks_once(monkeypatch):
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN_LOOKS", 0.0)


def model_fn_of(shape, dtype=tf.float32):
    """Returns the model_fn of replica_model with another weight `w`."""

    def model_fn(features, labels, mode, params):
        weight = v1.get_variable(
            "w", shape, dtype, initializer=v1.zeros_initializer()
        )
        bias = v1.get_variable("b", [1], initializer=v1.zeros_initializer())
        one = tf.cast(tf.reshape(weight, [-1, 1])[:3], tf.float32)
        predictions = tf.matmul(features["x"], one) + bias
        if mode == estimator.ModeKeys.PREDICT:
            return estimator.tpu.TPUEstimatorSpec(
                mode, predictions={"y": predictions}
            )
        loss = tf.reduce_mean((predictions - labels) ** 2)
        return estimator.tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=replica_model.minimize(loss, params),
            eval_metrics=(replica_model.absolute_error, [labels, predictions]),
        )

    return model_fn


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a trained replica_model, whose `w` is float32 [3, 1]."""
    folder = tmp_path_factory.mktemp("trained")
    replica_model.make(folder).train(replica_model.train_fn, steps=1)
    return folder


def use(model, way, path):
    """Calls a method of a replica_model that restores a checkpoint."""
    if way == "train":
        model.train(replica_model.train_fn, max_steps=3)
    elif way == "evaluate":
        model.evaluate(replica_model.some(16))
    elif way == "predict":
        next(model.predict(replica_model.some(16)))
    else:
        model.export_saved_model(str(path / "export"), raw_receiver)


WAYS = ["train", "evaluate", "predict", "export"]


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_variable_of_another_shape_is_refused(
    tmp_path, trained, way, replicas
):
    shutil.copytree(trained, tmp_path / "model")
    model = replica_model.make(
        tmp_path / "model", replicas, model=model_fn_of([3, 2])
    )

    with pytest.raises(
        (tf.errors.InvalidArgumentError, errors.CheckpointError),
        match=r"model.ckpt-1' is not of this model.*'w' is \[3, 2\] here and "
        r"\[3, 1\] there",
    ):
        use(model, way, tmp_path)

    assert model.latest_checkpoint().endswith("model.ckpt-1")


@pytest.mark.parametrize("way", WAYS)
def test_a_variable_of_another_dtype_is_refused(tmp_path, trained, way):
    shutil.copytree(trained, tmp_path / "model")
    model = replica_model.make(
        tmp_path / "model", 0, model=model_fn_of([3, 1], tf.float64)
    )

    with pytest.raises(
        (tf.errors.InvalidArgumentError, errors.CheckpointError),
        match=r"'w' is float64 \[3, 1\] here and float32 \[3, 1\] there",
    ):
        use(model, way, tmp_path)


@pytest.mark.parametrize(
    "given, text",
    [
        (([3, 2],), r"w:0 \(\(3, 2\)\) .* w \(\[3, 1\]\)"),
        (([3, 1], tf.float64), r"'w' is float64 \[3, 1\] here and float32"),
    ],
)
def test_a_warm_start_compares_shapes_and_dtypes(
    tmp_path, trained, given, text
):
    model = replica_model.make(
        tmp_path, 0, model=model_fn_of(*given), warm_start_from=str(trained)
    )

    with pytest.raises(errors.CheckpointError, match=text):
        model.train(replica_model.train_fn, max_steps=1)


def scaffold_fn(make):
    """A model_fn with the Scaffold that a function makes from the weight."""

    def model_fn(features, labels, mode):
        spec = linear_model.model_fn(features, labels, mode)
        with v1.variable_scope("", reuse=True):
            return spec._replace(scaffold=make(v1.get_variable("weight", [3])))

    return model_fn


def other_weight(folder):
    """The path of a checkpoint whose `weight` and `old` are float32 [4]."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name in ("weight", "old"):
            v1.get_variable(name, [4])
        v1.get_variable("bias", [])
        v1.train.create_global_step()
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(folder / "model.ckpt"))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("way", ["evaluate", "predict"])
def test_the_saver_of_a_scaffold_is_checked_by_its_own_names(
    tmp_path, way, sharded
):
    path = other_weight(tmp_path)

    def renaming(weight):
        return v1.train.Scaffold(
            saver=v1.train.Saver(
                {
                    "old": weight,
                    "global_step": v1.train.get_global_step(),
                    "bias": v1.global_variables("bias")[0],
                },
                sharded=sharded,
            )
        )

    model = estimator.Estimator(scaffold_fn(renaming), str(tmp_path / "new"))

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"'old' is \[3\] here and \[4\] there",
    ):
        if way == "evaluate":
            model.evaluate(linear_model.once, checkpoint_path=path)
        else:
            next(model.predict(linear_model.once, checkpoint_path=path))


@pytest.mark.parametrize("way", WAYS[:3])
def test_what_an_init_fn_restores_is_checked(tmp_path, way):
    path = other_weight(tmp_path)

    def restoring(weight):
        saver = v1.train.Saver([weight])
        return v1.train.Scaffold(
            init_fn=lambda scaffold, session: saver.restore(session, path)
        )

    model = estimator.Estimator(scaffold_fn(restoring), str(tmp_path / "new"))

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"'weight' is \[3\] here and \[4\] there",
    ):
        if way == "train":
            model.train(linear_model.input_fn, max_steps=1)
        elif way == "evaluate":
            model.evaluate(linear_model.once)
        else:
            next(model.predict(linear_model.once))


def test_a_saver_may_reshape(tmp_path):
    path = other_weight(tmp_path)

    def reshaping(weight):
        square = v1.get_variable("square", [2, 2])
        saver = v1.train.Saver({"old": square}, reshape=True)
        return v1.train.Scaffold(
            init_fn=lambda scaffold, session: saver.restore(session, path)
        )

    def model_fn(features, labels, mode):
        spec = linear_model.model_fn(features, labels, mode)
        return spec._replace(scaffold=reshaping(None))

    model = estimator.Estimator(model_fn, str(tmp_path / "new"))
    model.train(linear_model.input_fn, max_steps=1)

    assert model.get_variable_value("square").shape == (2, 2)


def test_a_variable_without_a_shape_takes_any(tmp_path):
    def model_fn(features, labels, mode):
        size = 3 if mode == estimator.ModeKeys.TRAIN else 4
        tf.Variable(tf.zeros([size]), shape=[None], name="any")
        return linear_model.model_fn(features, labels, mode)

    model = estimator.Estimator(model_fn, str(tmp_path))
    model.train(linear_model.input_fn, max_steps=1)

    assert model.evaluate(linear_model.once)["global_step"] == 1


@pytest.mark.parametrize("parts", [2, 3])
def test_variables_in_parts_are_compared_as_a_whole(tmp_path, parts):
    def parted_fn(rows):
        def model_fn(features, labels, mode):
            v1.get_variable(
                "rows",
                [rows, 2],
                partitioner=v1.fixed_size_partitioner(parts),
            )
            return linear_model.model_fn(features, labels, mode)

        return model_fn

    model = estimator.Estimator(parted_fn(6), str(tmp_path))
    model.train(linear_model.input_fn, max_steps=1)

    model.train(linear_model.input_fn, max_steps=2)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"'rows' is \[7, 2\] here and \[6, 2\] there",
    ):
        estimator.Estimator(parted_fn(7), str(tmp_path)).train(
            linear_model.input_fn, max_steps=3
        )


# State files and data files.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a linear_model with model.ckpt-0 to -10."""
    folder = tmp_path_factory.mktemp("saved")
    model = linear_model.make(folder, save_checkpoints_steps=5)
    model.train(linear_model.input_fn, max_steps=10)
    return folder


STATES = {
    "gone": (None, "is missing"),
    "empty": (b"", "is damaged, or cut short"),
    "cut": (b'model_checkpoint_path: "model.ck', "is damaged, or cut short"),
    "rubbish": (b"\xff\x00\x9f" * 9, "is damaged, or cut short"),
    "other": (
        b'model_checkpoint_path: "model.ckpt-20"\n',
        "names '.*/model.ckpt-20', which is not there",
    ),
}


def damaged(saved, tmp_path, state):
    """Makes a folder with a damaged state file; returns it, and a text."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    content, text = STATES[state]
    if content is None:
        (folder / "checkpoint").unlink()
    else:
        (folder / "checkpoint").write_bytes(content)
    return folder, f"/checkpoint'.*latest checkpoint, {text}"


def calls_of(model, folder):
    """All calls of a linear_model that look for its latest checkpoint."""
    train = linear_model.input_fn
    warm = {"warm_start_from": str(model.model_dir)}
    return {
        "latest_checkpoint": model.latest_checkpoint,
        "train": lambda: model.train(train, steps=1),
        "train to": lambda: model.train(train, max_steps=2),
        "evaluate": lambda: model.evaluate(linear_model.once),
        "predict": lambda: next(model.predict(linear_model.once)),
        "export": lambda: model.export_saved_model(str(folder), raw_receiver),
        "value": lambda: model.get_variable_value("bias"),
        "names": model.get_variable_names,
        "warm start": lambda: estimator.Estimator(
            linear_model.model_fn, str(folder / "warm"), **warm
        ).train(train, steps=1),
        "warm export": lambda: estimator.Estimator(
            linear_model.model_fn, str(folder / "warm"), **warm
        ).export_saved_model(str(folder), raw_receiver),
        "train_and_evaluate": lambda: estimator.train_and_evaluate(
            model,
            estimator.TrainSpec(train, max_steps=2),
            estimator.EvalSpec(linear_model.once),
        ),
        "step": lambda: sessions.load_global_step_from_checkpoint_dir(
            model.model_dir
        ),
    }


RESTORES = ["train", "train to", "evaluate", "predict", "export", "value"]
RESTORES += ["warm start", "warm export", "train_and_evaluate", "step"]


@pytest.mark.parametrize(
    "call, state",
    [
        *((call, "gone") for call in ("latest_checkpoint", "names", *RESTORES)),
        *(
            (call, state)
            for call in ("train", "evaluate")
            for state in STATES
            if state != "gone"
        ),
    ],
)
def test_a_damaged_state_file_is_named_with_the_line_to_write(
    tmp_path, saved, call, state
):
    folder, text = damaged(saved, tmp_path, state)
    before = sorted(folder.iterdir())
    model = linear_model.make(folder)

    with pytest.raises(errors.CheckpointError, match=text) as raised:
        calls_of(model, tmp_path / "new")[call]()

    said = str(raised.value)
    assert "'model.ckpt-0', 'model.ckpt-5', 'model.ckpt-10'" in said
    (line,) = (one for one in said.splitlines() if one.startswith("model_ch"))
    assert [path for path in sorted(folder.iterdir()) if path in before] == (
        before
    )
    (folder / "checkpoint").write_text(f"{line}\n")
    assert model.get_variable_value("global_step") == 10


@pytest.mark.parametrize("way", WAYS)
def test_a_tpu_estimator_names_a_damaged_state_file_too(tmp_path, saved, way):
    folder, text = damaged(saved, tmp_path, "cut")
    with pytest.raises(errors.CheckpointError, match=text):
        use(replica_model.make(folder, 0), way, tmp_path)


def test_early_stopping_names_a_damaged_state_file_too(tmp_path, saved):
    folder, text = damaged(saved, tmp_path, "empty")
    hook = early_stopping.StopAtCheckpointStepHook(str(folder), 5, 0)
    values = v1.train.SessionRunValues(9, None, None)

    with pytest.raises(errors.CheckpointError, match=text):
        hook.after_run(None, values)


def test_a_state_file_without_any_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "m-7"\n')
    model = linear_model.make(tmp_path)

    with pytest.raises(
        errors.CheckpointError, match="names '.*m-7', .* No checkpoint lies in"
    ):
        model.train(linear_model.input_fn, steps=1)


@pytest.mark.parametrize(
    "files", [(), ("input_state-worker-0.ckpt-0", "notes")]
)
def test_a_folder_without_checkpoints_begins_at_step_0(tmp_path, files):
    for stem in files:
        for end in ("index", "data-00000-of-00001"):
            (tmp_path / f"{stem}.{end}").touch()
    (tmp_path / "notes.data-00000-of-00001").unlink(missing_ok=True)
    model = linear_model.make(tmp_path)

    assert model.latest_checkpoint() is None
    model.train(linear_model.input_fn, steps=1)
    assert model.latest_checkpoint().endswith("model.ckpt-1")


def test_a_checkpoint_that_is_being_saved_is_waited_for(
    tmp_path, saved, monkeypatch
):
    shutil.copytree(saved, tmp_path / "model")
    state = tmp_path / "model" / "checkpoint"
    text = state.read_text()
    state.unlink()
    monkeypatch.setattr(
        checkpoints.time, "sleep", lambda seconds: state.write_text(text)
    )

    latest = checkpoints.latest_checkpoint(str(tmp_path / "model"))
    assert latest.endswith("model.ckpt-10")


DAMAGES = {
    "cut": "model.ckpt-10' is damaged, or cut short.*is damaged or cut",
    "gone": "model.ckpt-10' lacks a file.*data-00000-of-00001; No such",
    "index": "model.ckpt-10' is damaged, or cut short.*index",
}


@pytest.mark.parametrize(
    "call, damage",
    [
        *((call, "gone") for call in RESTORES),
        ("train", "cut"),
        *((call, "index") for call in ("train to", "evaluate")),
    ],
)
def test_a_damaged_checkpoint_is_named_as_that(tmp_path, saved, call, damage):
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    end = "index" if damage == "index" else "data-00000-of-00001"
    file = folder / f"model.ckpt-10.{end}"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    model = linear_model.make(folder)

    with pytest.raises(tf.errors.OpError, match=DAMAGES[damage]):
        calls_of(model, tmp_path / "new")[call]()


def test_slots_with_the_names_of_tpus_are_compared_too(tmp_path):
    def adam(width):
        def model_fn(features, labels, mode):
            weight = v1.get_variable("weight", [3, width])
            loss = tf.reduce_sum(weight) * tf.reduce_mean(labels)
            step = v1.train.get_global_step()
            train_op = v1.train.AdamOptimizer().minimize(loss, step)
            return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    first = estimator.Estimator(adam(1), str(tmp_path / "first"))
    first.train(linear_model.input_fn, steps=1)
    with tf.Graph().as_default(), v1.Session() as session:
        names = {
            "weight/Adam": "weight/Adam/m",
            "weight/Adam_1": "weight/Adam/v",
        }
        for name in first.get_variable_names():
            value = first.get_variable_value(name)
            v1.get_variable(names.get(name, name), initializer=value)
        session.run(v1.global_variables_initializer())
        path = str(tmp_path / "second" / "model.ckpt")
        v1.train.Saver().save(session, path, global_step=1)

    same = estimator.Estimator(adam(1), str(tmp_path / "second"))
    other = estimator.Estimator(adam(2), str(tmp_path / "second"))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"'weight/Adam/m' is \[3, 2\] here and \[3, 1\] there",
    ):
        other.train(linear_model.input_fn, steps=1)
    same.train(linear_model.input_fn, steps=1)
    assert same.get_variable_value("global_step") == 2


def test_variables_of_a_strategy_are_compared(tmp_path):
    def model_fn_of_width(width):
        def model_fn(features, labels, mode):
            v1.get_variable("wide", [3, width])
            v1.get_variable(
                "mean",
                [width],
                aggregation=tf.VariableAggregation.MEAN,
                synchronization=tf.VariableSynchronization.ON_READ,
                trainable=False,
            )
            return linear_model.model_fn(features, labels, mode)

        return model_fn

    def make(width):
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        config = estimator.RunConfig(train_distribute=strategy)
        return estimator.Estimator(
            model_fn_of_width(width), str(tmp_path), config=config
        )

    make(1).train(linear_model.input_fn, max_steps=1)
    make(1).train(linear_model.input_fn, max_steps=2)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        make(2).train(linear_model.input_fn, max_steps=3)
    assert "'wide' is [3, 2] here and [3, 1] there" in str(raised.value)
    assert "'mean' is [2] here and [1] there" in str(raised.value)
