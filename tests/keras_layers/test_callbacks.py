"""What Keras' calls and callbacks do to tables, beside Keras' own Embedding.

Each row of the matrix trains one model three times: with `keras.layers.Embedding`,
whose weights are dense, and with each family of layers. The models begin alike and
are trained by SGD, so whatever Keras does to dense weights shows in the difference.
"""

from __future__ import annotations

import copy
import functools
import gc
import pathlib
import pickle
import tempfile
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from keras_layers import small_model
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding, Embedding

FAMILIES = ("distributed", "dynamic")
IDS = {"user": np.arange(16), "item": np.arange(16) * 7 % 16}
LABELS = np.sin(np.arange(16, dtype=np.float32))[:, None]
HALF = keras.initializers.Constant(0.5)


def rows_of(family, ids):
    """The rows [batch, 4] of users and items, from new layers."""
    if family == "distributed":
        sizes = {"user": 16, "item": None}  # A tf.Variable, a hash table.
        features = {
            name: tfembed.FeatureConfig(
                tfembed.TableConfig(size, 4, initializer=HALF, name=f"{name}s")
            )
            for name, size in sizes.items()
        }
        layer = DistributedEmbedding(
            features, tfembed.SGD(learning_rate=None), name="embedding"
        )
        return list(layer(ids).values())
    if family == "dynamic":
        return [
            de.keras.layers.Embedding(4, initializer=HALF, name=f"{name}s")(one)
            for name, one in ids.items()
        ]
    if family == "single":
        return [
            Embedding(4, embeddings_initializer=HALF, name=f"{name}s")(one)
            for name, one in ids.items()
        ]
    return [keras.layers.Embedding(16, 4, HALF)(one) for one in ids.values()]


def model_of(family, optimizer=None, **options):
    """Two ids to one number; compiled."""
    ids = {name: keras.Input((), dtype="int64", name=name) for name in IDS}
    rows = keras.layers.Concatenate()(rows_of(family, ids))
    start = keras.initializers.Constant([[x] for x in np.linspace(-1, 1, 8)])
    out = keras.layers.Dense(1, kernel_initializer=start)(rows)
    model = keras.Model(ids, out)
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    if family == "dynamic":
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)
    model.compile(optimizer, "mse", **options)
    return model


def fit(model, *callbacks, epochs=2, **options):
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **options}
    return model.fit(
        IDS, LABELS, epochs=epochs, callbacks=list(callbacks), **options
    )


def numbers(model):
    """Calls a model eagerly: a trace of `predict` for each model takes long."""
    ids = {name: tf.constant(one) for name, one in IDS.items()}
    return model(ids, training=False).numpy()


class Judge(keras.callbacks.Callback):
    """Says which epoch is the best, as metric "worth"; and what each gave."""

    def __init__(self, *worths):
        super().__init__()
        self.worths, self.given = worths, []

    def on_epoch_end(self, epoch, logs=None):
        logs["worth"] = self.worths[epoch]
        self.given.append(numbers(self.model))


def best(kind, **options):
    return kind(monitor="worth", mode="max", **options)


def early_stopping(model, folder):
    judge = Judge(1.0, 3.0, 2.0, 0.0)
    stop = best(
        keras.callbacks.EarlyStopping, patience=2, restore_best_weights=True
    )
    fit(model, judge, stop, epochs=4)
    np.testing.assert_array_equal(numbers(model), judge.given[1])
    fit(model, epochs=1)  # And training goes on.
    return model


def best_in_files(model, folder):
    judge = Judge(1.0, 3.0, 2.0, 0.0)
    keep = functools.partial(
        best, keras.callbacks.ModelCheckpoint, save_best_only=True
    )
    weights, whole = folder / "best.weights.h5", folder / "best.keras"
    fit(
        model,
        judge,
        keep(filepath=str(weights), save_weights_only=True),
        keep(filepath=str(whole)),
        epochs=4,
    )
    model.load_weights(weights)
    np.testing.assert_array_equal(numbers(model), judge.given[1])
    return keras.saving.load_model(whole)


def weights_set_again(model, folder):
    fit(model, epochs=1)
    weights = model.get_weights()
    fit(model, epochs=1)
    model.set_weights(weights)
    fit(model, epochs=1)
    return model


def cloned(model, folder):
    fit(model)
    clone = keras.models.clone_model(model)
    assert np.abs(numbers(clone) - numbers(model)).max() > 0.01  # A new one.
    clone.set_weights(model.get_weights())
    fit(model, epochs=1)  # Which has tables of its own.
    return clone


def backed_up(model, folder):
    keep = functools.partial(
        keras.callbacks.BackupAndRestore, str(folder / "backup")
    )
    fit(model, keep(delete_checkpoint=False))
    clone = keras.models.clone_model(model)
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    clone.compile(optimizer, "mse")
    fit(clone, keep(), epochs=3)  # Begins with the third.
    assert int(clone.optimizer.iterations) == 12
    return clone


def on_batches(model, folder):
    for _ in range(3):
        model.train_on_batch(IDS, LABELS)
    return model


def fitted(model, folder):
    fit(model)
    return model


def scheduled(model, folder):
    rates = (0.01, 0.3, 0.1)
    fit(
        model,
        keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch]),
        epochs=3,
    )
    return model


def reduced(model, folder):
    stall = keras.callbacks.ReduceLROnPlateau("loss", 0.1, 0, min_delta=10.0)
    fit(model, stall, epochs=3)
    assert np.asarray(model.optimizer.learning_rate) < 0.02
    return model


def by_schedule(model, folder):
    halves = keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.5)
    optimizer = keras.optimizers.SGD(halves)
    if hasattr(model.optimizer, "inner_optimizer"):
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)
    model = keras.models.clone_model(model)
    model.compile(optimizer, "mse")
    fit(model, epochs=1)
    model.save(folder / "model.keras")
    model = keras.saving.load_model(folder / "model.keras")
    fit(model, epochs=1)
    return model


def compiled_again(model, folder):
    is_dynamic = hasattr(model.optimizer, "inner_optimizer")
    fit(model, epochs=1)
    for optimizer in (keras.optimizers.Adagrad(0.1), keras.optimizers.SGD(0.1)):
        if is_dynamic:
            optimizer = de.DynamicEmbeddingOptimizer(optimizer)
        model.compile(optimizer, "mse")
        with warnings.catch_warnings():  # Of the accumulators that go.
            warnings.filterwarnings(
                "ignore", message=".*accumulator.* are gone"
            )
            fit(model, epochs=1)
    return model


def ended_by_nan(model, folder):
    labels = np.where(np.arange(16)[:, None] == 9, np.nan, LABELS)
    model.fit(
        IDS,
        labels,
        batch_size=4,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )
    assert int(model.optimizer.iterations) == 3
    return model


AS_DENSE = {
    "EarlyStopping": early_stopping,
    "ModelCheckpoint": best_in_files,
    "set_weights": weights_set_again,
    "clone_model": cloned,
    "BackupAndRestore": backed_up,
    "compile": compiled_again,
    "LearningRateScheduler": scheduled,
    "ReduceLROnPlateau": reduced,
    "a schedule of the optimizer": by_schedule,
    "TerminateOnNaN": ended_by_nan,
    "train_on_batch": on_batches,
    "steps_per_execution": fitted,
}
OPTIONS = {"steps_per_execution": {"steps_per_execution": 2}}


@functools.cache
def dense(row):
    """What a row of the matrix makes of dense weights."""
    with tempfile.TemporaryDirectory() as folder:
        return made(row, "dense", folder)


def made(row, family, folder):
    model = model_of(family, **OPTIONS.get(row, {}))
    return numbers(AS_DENSE[row](model, pathlib.Path(folder)))


# The layer for one feature has a table of `dynamic_embedding`.
CELLS = [(row, family) for row in AS_DENSE for family in FAMILIES]
CELLS.remove(("compile", "distributed"))  # Its tables have their optimizer.
CELLS += [
    (row, "single")
    for row in (
        "EarlyStopping",
        "clone_model",
        "compile",
        "LearningRateScheduler",
    )
]


@pytest.mark.parametrize(("row", "family"), CELLS)
def test_tables_fare_as_dense_weights_do(row, family, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="__array__ implementation")
        found = made(row, family, tmp_path)
    np.testing.assert_allclose(found, dense(row), 1e-5, 1e-6)


def test_rows_have_no_moving_averages_and_a_warning_says_so():
    model = model_of("distributed", keras.optimizers.SGD(0.1, use_ema=True))
    swap = keras.callbacks.SwapEMAWeights()
    match = r"\['items', 'users'\].*moving averages"
    with pytest.warns(UserWarning, match=match) as told:
        fit(model, swap, validation_data=(IDS, LABELS))
    said = [one for one in told if "moving averages" in str(one.message)]
    assert len(said) == 1


@pytest.mark.parametrize("family", ["dynamic", "single"])
def test_tables_of_dynamic_embedding_refuse_moving_averages(family):
    with pytest.raises(errors.UnsupportedError, match="use_ema=True"):
        fit(model_of(family, keras.optimizers.SGD(0.1, use_ema=True)))


@pytest.mark.parametrize("family", ["distributed", "dynamic", "single"])
def test_a_step_that_xla_does_not_compile_says_why(family):
    model = model_of(family, jit_compile=True)
    with pytest.warns(UserWarning, match="tables in host memory"):
        model.train_on_batch(IDS, LABELS)


@pytest.fixture
def folder_for_rows(tmp_path, monkeypatch):
    """Where `get_weights` keeps rows during a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_rows_go_with_the_last_weights_that_name_them(
    family, folder_for_rows
):
    model = model_of(family)
    weights = model.get_weights()
    copies = copy.deepcopy(weights)
    assert list(folder_for_rows.iterdir())
    model.set_weights(weights)
    del weights, model
    gc.collect()
    assert list(folder_for_rows.iterdir())
    del copies
    gc.collect()
    assert not list(folder_for_rows.iterdir())


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_take_their_rows_through_a_pickle(family):
    model = model_of(family)
    model.train_on_batch(IDS, LABELS)
    weights = pickle.loads(pickle.dumps(model.get_weights()))
    other = model_of(family)
    other.set_weights(weights)
    np.testing.assert_array_equal(numbers(other), numbers(model))


@pytest.mark.parametrize(
    ("family", "named"),
    [("distributed", r"\['items', 'users'\]"), ("dynamic", "items-parameter")],
)
def test_arrays_have_no_rows_to_set_and_a_warning_says_so(family, named):
    model = model_of(family)
    weights = [np.zeros(w.shape, w.dtype) for w in model.get_weights()]
    ways = r"copy\.deepcopy\(weights\)` or `weight\.copy\(\)`"
    with pytest.warns(UserWarning, match=f"hold no rows of .*{named}.*{ways}"):
        model.set_weights(weights)


class Tower(keras.Model):
    """A subclassed model around another one."""

    def __init__(self, family):
        super().__init__()
        self.inner = model_of(family)

    def call(self, ids):
        return 2.0 * self.inner(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_layers_inside_of_nested_models_are_set(family):
    model = Tower(family)
    model.compile(model.inner.optimizer, "mse")
    fit(model, epochs=1)
    weights, then = model.get_weights(), numbers(model)
    fit(model, epochs=1)
    assert np.abs(numbers(model) - then).max() > 0.01
    model.set_weights(weights)
    np.testing.assert_array_equal(numbers(model), then)


def distributed(rule, names=("users", "items"), size=4):
    """A layer over a table with a vocabulary and one without."""
    tables = [
        tfembed.TableConfig(16, size, name=names[0]),
        tfembed.TableConfig(None, size, name=names[1]),
    ]
    layer = DistributedEmbedding(
        [tfembed.FeatureConfig(table) for table in tables], rule
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.concat(layer([IDS["user"]] * 2), 1))
    small_model.apply(tape, loss, layer)
    return layer


def table_rows(layer):
    return [one.numpy() for one in layer([IDS["user"]] * 2, training=False)]


def test_tables_of_another_rule_take_rows_alone():
    layer = distributed(tfembed.optimizers.Momentum(0.1))
    other = distributed(tfembed.Adam(0.1))  # "momenta" in both.
    slots = other.embedding._variables["users"]["momenta"].numpy()
    other.set_weights(layer.get_weights())
    np.testing.assert_array_equal(table_rows(other), table_rows(layer))
    np.testing.assert_array_equal(
        other.embedding._variables["users"]["momenta"], slots
    )
    _, slots = other.get_embedding_tables()["items"].export_slots()
    np.testing.assert_array_equal(slots["momenta"], np.zeros([16, 4]))


@pytest.mark.parametrize(
    "difference", [{"names": ("users", "films")}, {"size": 8}]
)
def test_weights_of_a_layer_with_other_tables_are_refused(difference):
    layer = distributed(tfembed.SGD(0.1))
    other = distributed(tfembed.SGD(0.1), **difference)
    then = table_rows(layer)
    with pytest.raises(errors.CheckpointError, match="with the same tables"):
        layer.set_weights(other.get_weights())
    np.testing.assert_array_equal(table_rows(layer), then)


def test_a_folder_without_room_for_rows_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    layer = distributed(tfembed.SGD(0.1))
    with pytest.raises(errors.CheckpointError, match=r"'users'.*TMPDIR"):
        layer.get_weights()


@pytest.mark.parametrize("family", FAMILIES)
def test_tensorboard_gets_histograms_and_images_of_rows(family, tmp_path):
    model = model_of(family)
    board = keras.callbacks.TensorBoard(
        tmp_path, histogram_freq=1, write_images=True, write_graph=False
    )
    model.fit(IDS, LABELS, verbose=0, callbacks=[board])

    (path,) = tmp_path.glob("train/*v2")
    found = {
        value.tag: tf.make_ndarray(value.tensor)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if "/rows/" in value.tag
    }
    tags = {tag.rpartition("/rows/")[0] for tag in found}
    assert len(tags) == {"distributed": 1, "dynamic": 2}[family]
    for tag in tags:
        histogram = found[f"{tag}/rows/histogram"]
        assert histogram[0, 0] < histogram[-1, 1]
        assert histogram[:, 2].sum() > 0
        assert f"{tag}/rows/image" in found
