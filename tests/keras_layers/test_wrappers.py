"""Layers inside of wrappers, containers, branches and loops of Keras.

The kind: a layer whose `call` runs without its `__call__` before it, or whose
ids another layer prepares. `keras.layers.Embedding` is the oracle of all cases.
Tried too, and right before: Lambda and Wrapper around the layer, a RematScope,
tf.switch_case, one layer called twice; StackedRNNCells, `keras.ops.switch`. Loops
train in eager mode, and are refused in functions: slices do not add up there.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding, Embedding

SIZE, WIDTH, BATCH = 20, 4, 8
HALF = keras.initializers.Constant(0.5)
TARGETS = np.arange(BATCH, dtype=np.float32)[:, None] / 4


def _stock():
    return keras.layers.Embedding(SIZE, WIDTH, embeddings_initializer=HALF)


def _distributed():
    table = tfembed.TableConfig(None, WIDTH, HALF, name="t")
    return DistributedEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(0.1))


OURS = {
    "Embedding": lambda: Embedding(WIDTH, embeddings_initializer=HALF),
    "DistributedEmbedding": _distributed,
}


def _rows(layer):
    if isinstance(layer, keras.layers.Embedding):
        return layer.embeddings.numpy()
    if isinstance(layer, Embedding):
        return layer.table.lookup(tf.range(SIZE)).numpy()
    return layer.get_embedding_tables()["t"].lookup(tf.range(SIZE))[0].numpy()


def _head():
    weights = keras.initializers.Constant(0.3)
    return keras.layers.Dense(1, kernel_initializer=weights)


def _flat_head():
    return [keras.layers.Flatten(), _head()]


class Cell(keras.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.state_size = self.output_size = WIDTH
        self.built = True

    def call(self, ids, states):
        state = keras.ops.tanh(0.5 * states[0] + self.layer(ids[:, 0]))
        return state, [state]


class Reading(keras.Model):
    """Computes activations of ids [batch, 3] by a function of a layer."""

    def __init__(self, layer, function):
        super().__init__()
        self.layer, self.head, self.function = layer, _head(), function

    def call(self, ids):
        return self.head(self.function(self.layer, ids))


def _time_distributed(layer):
    wrapped = keras.layers.TimeDistributed(layer)
    return keras.Sequential(
        [keras.Input((3, 1), dtype="int64"), wrapped, *_flat_head()]
    )


def _time_distributed_model(layer):
    ids = keras.Input((1,), dtype="int64")
    inner = keras.Model(ids, keras.layers.Flatten()(layer(ids)))
    return _time_distributed(inner)


def _bidirectional(layer):
    keras.utils.set_random_seed(3)
    ids = keras.Input((3, 1), dtype="int64")
    rows = keras.layers.Reshape((3, WIDTH))(layer(ids))
    both = keras.layers.Bidirectional(keras.layers.LSTM(3))(rows)
    return keras.Model(ids, _head()(both))


def _unrolled(layer):
    ids = keras.Input((3, 1), dtype="int64")
    return keras.Model(
        ids, _head()(keras.layers.RNN(Cell(layer), unroll=True)(ids))
    )


def _sliced(layer):
    return Reading(
        layer,
        lambda layer, ids: layer(ids[:, 0, 0]) * layer(ids[:, 1, 0]),
    )


MODELS = {
    "TimeDistributed": _time_distributed,
    "TimeDistributed(Model)": _time_distributed_model,
    "Bidirectional": _bidirectional,
    "RNN(unroll=True)": _unrolled,
    "inputs sliced in call": _sliced,
}


def _trained(make_model, layer):
    ids = np.random.default_rng(1).integers(0, SIZE, (BATCH, 3, 1))
    model = make_model(layer)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(ids, TARGETS, batch_size=BATCH, epochs=2, verbose=0)
    return _rows(layer)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name == "Bidirectional"
        else name
        for name in MODELS
    ],
)
def test_a_layer_in_a_wrapper_trains_as_keras_own(model, ours):
    expected = _trained(MODELS[model], _stock())

    assert np.abs(expected - 0.5).max() > 1e-3
    np.testing.assert_allclose(
        _trained(MODELS[model], OURS[ours]()), expected, atol=1e-6
    )


def _nested(layer):
    inner = keras.Sequential([layer, keras.layers.GlobalAveragePooling1D()])
    return keras.Sequential([keras.Sequential([inner]), _head()])


def _nested_with_input(layer):
    inner = keras.Sequential([layer, keras.layers.GlobalAveragePooling1D()])
    return keras.Sequential([keras.Input((3,), dtype="int64"), inner, _head()])


@pytest.mark.parametrize("make_model", [_nested, _nested_with_input])
def test_sequential_models_in_each_other_wait_for_ids(make_model):
    def trained(layer):
        ids = np.random.default_rng(1).integers(0, SIZE, (BATCH, 3))
        model = make_model(layer)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(ids, TARGETS, epochs=2, verbose=0)
        return _rows(layer)

    np.testing.assert_allclose(
        trained(OURS["Embedding"]()), trained(_stock()), atol=1e-6
    )


@pytest.mark.parametrize("ours", OURS)
def test_a_norm_of_all_rows_is_refused_in_words(ours):
    wrapped = keras.layers.SpectralNormalization(OURS[ours]())

    with pytest.raises(errors.UnsupportedError, match="found by key"):
        wrapped(tf.constant([1, 2]))


@pytest.mark.parametrize("ours", OURS)
def test_two_models_train_the_layer_that_they_share(ours):
    def trained(layer):
        ids = np.random.default_rng(1).integers(0, SIZE, (BATCH,))
        for _ in range(2):
            given = keras.Input((), dtype="int64")
            model = keras.Model(given, _head()(layer(given)))
            model.compile(keras.optimizers.SGD(0.1), "mse")
            model.fit(ids, TARGETS, batch_size=BATCH, verbose=0)
        return _rows(layer)

    np.testing.assert_allclose(
        trained(OURS[ours]()), trained(_stock()), atol=1e-6
    )


def _branch(layer, ids):
    return keras.ops.cond(
        keras.ops.sum(ids) > 0,
        lambda: layer(ids[:, 0]),
        lambda: layer(ids[:, 1]),
    )


def _while(layer, ids):
    return tf.while_loop(
        lambda i, total: i < 3,
        lambda i, total: (i + 1, total + layer(ids[:, i])),
        (0, tf.zeros([BATCH, WIDTH])),
    )[1]


def _scan(layer, ids):
    return keras.ops.scan(
        lambda total, one: (total + layer(one), total),
        keras.ops.zeros([BATCH, WIDTH]),
        keras.ops.transpose(ids),
    )[0]


LOOPS = {
    "keras.ops.map": lambda layer, ids: keras.ops.sum(
        keras.ops.map(layer, ids), 1
    ),
    "keras.ops.vectorized_map": lambda layer, ids: keras.ops.sum(
        keras.ops.vectorized_map(layer, ids), 1
    ),
    "keras.ops.fori_loop": lambda layer, ids: keras.ops.fori_loop(
        0,
        3,
        lambda i, total: total + layer(ids[:, i]),
        keras.ops.zeros([BATCH, WIDTH]),
    ),
    "keras.ops.scan": _scan,
    "tf.map_fn": lambda layer, ids: tf.reduce_sum(
        tf.map_fn(
            layer,
            ids,
            fn_output_signature=tf.TensorSpec([3, WIDTH], tf.float32),
        ),
        1,
    ),
    "tf.while_loop": _while,
}


def _fit_by(function, layer):
    ids = np.random.default_rng(1).integers(0, SIZE, (BATCH, 3))
    model = Reading(layer, function)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(ids, TARGETS, batch_size=BATCH, epochs=2, verbose=0)
    return _rows(layer)


def test_a_branch_trains_rows_as_keras_own_layer_does():
    np.testing.assert_allclose(
        _fit_by(_branch, OURS["Embedding"]()),
        _fit_by(_branch, _stock()),
        atol=1e-6,
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_cannot_train_rows_is_refused_in_words(loop):
    layer = OURS["Embedding"]()
    with pytest.raises(errors.UnsupportedError, match="before the loop"):
        _fit_by(LOOPS[loop], layer)
    assert layer.table.size() == 0


def test_a_vectorized_map_gives_the_rows_of_a_plain_call():
    layer, ids = OURS["Embedding"](), tf.constant([[1, 2, 3], [3, 3, 2]])

    found = keras.ops.vectorized_map(layer, ids)
    np.testing.assert_array_equal(found, layer(ids))


@pytest.mark.parametrize(
    ("function", "what"),
    [(LOOPS["tf.while_loop"], "loop"), (_branch, "branch")],
    ids=["loop", "branch"],
)
def test_a_distributed_embedding_inside_of_control_flow_is_refused(
    function, what
):
    with pytest.raises(errors.UnsupportedError, match=f"before the {what}"):
        _fit_by(function, _distributed())


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("stacked", [False, True])
def test_the_cell_of_an_rnn_is_told_what_to_do(ours, stacked):
    layer = OURS[ours]()
    ids = keras.Input((3, 1), dtype="int64")
    cell = Cell(layer)
    cells = [cell, keras.layers.GRUCell(2)] if stacked else cell
    model = keras.Model(ids, _head()(keras.layers.RNN(cells)(ids)))
    model.compile(keras.optimizers.SGD(0.1), "mse")

    words = "unroll=True|before the loop"
    with pytest.raises(errors.UnsupportedError, match=words):
        model.fit(np.zeros((BATCH, 3, 1), int), TARGETS, verbose=0)
    np.testing.assert_array_equal(_rows(layer), 0.5)
