"""The weight of a table is no array of no rows: a use as one says so.

The kind of fault: a table shows itself as a tensor or an array without rows, and
a program computes with it. Looked at too: bare tables, what `tape.watch` and
`tape.watched_variables` take, TFRA's layers, lists of weights that were copied.
"""

from __future__ import annotations

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.keras.layers import DistributedEmbedding, Embedding

IDS, DIM = np.arange(50), 4


def distributed():
    table = tfembed.TableConfig(None, DIM, name="users")
    return DistributedEmbedding(tfembed.FeatureConfig(table), tfembed.SGD(0.1))


LAYERS = {
    "Embedding": lambda: Embedding(DIM, name="users"),
    "DistributedEmbedding": distributed,
    "de.keras.layers.Embedding": lambda: de.keras.layers.Embedding(
        DIM, name="users"
    ),
}


def trained(family):
    """A model of 50 rows, after a step."""
    ids = keras.Input((), dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(LAYERS[family]()(ids)))
    optimizer = keras.optimizers.SGD(0.1)
    if family.startswith("de."):
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)
    model.compile(optimizer, "mse")
    model.train_on_batch(IDS, np.ones(50))
    return model


@pytest.fixture(scope="module", params=list(LAYERS))
def model(request):
    return trained(request.param)


ROWS = "50 rows of 'users'"
OF_VALUES = {
    "np.asarray": np.asarray,
    "np.array": np.array,
    "np.sum": np.sum,
    "np.mean of two": lambda value: np.mean([value, value], 0),
    "np.save": lambda value: np.save("/dev/null", value),
    "+ 1": lambda value: value + 1,
    "0.5 *": lambda value: 0.5 * value,
    "np.float32 *": lambda value: np.float32(0.5) * value,
    "[0]": lambda value: value[0],
    "== 0": lambda value: value == 0,
    "tf.constant": tf.constant,
    "float": float,
}


@pytest.mark.parametrize("use", OF_VALUES)
def test_what_get_weights_gives_for_a_table_is_no_array(model, use):
    value = model.get_weights()[0]
    assert ROWS in repr(value)
    with pytest.raises(errors.DtypeError, match=ROWS):
        OF_VALUES[use](value)


def test_methods_of_arrays_are_missing_in_words(model):
    with pytest.raises(AttributeError, match=f"`mean`: .*{ROWS}"):
        model.get_weights()[0].mean()


OF_WEIGHTS = {
    "l2_loss": tf.nn.l2_loss,
    "in a function": tf.function(tf.nn.l2_loss, autograph=False),
    "keras.ops.sum": keras.ops.sum,
    "keras.ops.convert_to_numpy": keras.ops.convert_to_numpy,
    "a regularizer": keras.regularizers.L2(0.1),
    "np.asarray": np.asarray,
    "* 2": lambda weight: weight * 2,
    "tensor *": lambda weight: tf.constant(2.0) * weight,
    "-": lambda weight: -weight,
    "[0]": lambda weight: weight[0],
    "float": float,
}


@pytest.mark.parametrize("use", OF_WEIGHTS)
def test_a_weight_of_a_table_is_no_tensor(model, use):
    (weight,) = model.layers[1].trainable_weights
    assert ROWS in repr(weight)
    with pytest.raises(errors.DtypeError, match=ROWS):
        OF_WEIGHTS[use](weight)


def test_a_sum_over_all_weights_leaves_no_rows_out_in_silence(model):
    with pytest.raises(errors.DtypeError, match="activity_regularizer"):
        tf.add_n([tf.nn.l2_loss(w) for w in model.trainable_variables])


def test_the_value_of_a_table_s_weight_is_no_tensor_either(model):
    (weight,) = model.layers[1].trainable_weights
    for use in (tf.nn.l2_loss, lambda value: value * 2):
        with pytest.raises(errors.DtypeError, match=ROWS):
            use(weight.value)
    with pytest.raises(errors.DtypeError, match=ROWS):
        weight.value.numpy()


def test_what_stands_for_a_bare_table_is_no_tensor():
    watched = de.Variable(dim=DIM, name="bare").watched
    for use in (tf.nn.l2_loss, lambda value: value * 2):
        with pytest.raises(errors.DtypeError, match="embedding_lookup"):
            use(watched)


def in_silence(use):
    """What a use gives; each warning that our classes cause is an error.

    Keras itself asks for arrays of dense weights as NumPy 1 did.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="__array__ implementation")
        return use()


def numbers(model):
    return model(tf.constant(IDS), training=False).numpy()


COPIES = {
    "as they are": lambda weights: weights,
    "deepcopy": copy.deepcopy,
    "copy of each": lambda weights: [w.copy() for w in weights],
    "copy.copy of each": lambda weights: [copy.copy(w) for w in weights],
    "pickle": lambda weights: pickle.loads(pickle.dumps(weights)),
}


@pytest.mark.parametrize("way", COPIES)
def test_weights_are_set_again_in_silence(model, way):
    before = numbers(model)
    weights = in_silence(lambda: COPIES[way](model.get_weights()))
    model.layers[1](tf.constant(IDS))  # Nothing changes.
    model.layers[2].set_weights([np.ones([DIM, 1]), np.ones([1])])
    in_silence(lambda: model.set_weights(weights))
    np.testing.assert_array_equal(numbers(model), before)


WALKS = {
    "shapes": lambda model: [tuple(w.shape) for w in model.get_weights()],
    "dtypes": lambda model: [w.dtype for w in model.weights],
    "count_params": lambda model: model.count_params(),
    "repr": lambda model: repr(model.weights),
    "state": lambda model: model.set_state_tree(model.get_state_tree()),
    "stateless": lambda model: model.stateless_call(
        model.trainable_variables, model.non_trainable_variables, IDS
    ),
    "build": lambda model: keras.optimizers.Adam().build(
        model.trainable_variables
    ),
    "summary": lambda model: model.summary(print_fn=lambda *_, **__: None),
}


@pytest.mark.parametrize("walk", WALKS)
def test_walks_over_all_weights_go_on_in_silence(model, walk):
    before = numbers(model)
    in_silence(lambda: WALKS[walk](model))
    np.testing.assert_array_equal(numbers(model), before)


def test_arrays_are_asked_for_as_numpy_2_asks(model):
    (weight,) = model.layers[1].trainable_weights
    for one in (weight, weight.numpy()):
        with pytest.raises(errors.DtypeError, match=ROWS):
            one.__array__(np.float32, copy=True)


def test_weights_and_files_of_a_table_alone_warn_of_nothing(model, tmp_path):
    alone = keras.Sequential([model.layers[0], model.layers[1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone.set_weights(alone.get_weights())
        alone.save_weights(tmp_path / "a.weights.h5")
        alone.save(tmp_path / "a.keras")
        tf.train.Checkpoint(model=alone).write(str(tmp_path / "a"))


# What a program differentiates with respect to, and gives to an optimizer.
SOURCES = {
    "weight": lambda weight, tape: weight,
    "value": lambda weight, tape: weight.value,
    "watched": lambda weight, tape: tape.watched_variables()[0],
}


CASES = [(family, by) for family in LAYERS for by in SOURCES]
CASES.remove(("Embedding", "watched"))  # Keras refuses its table.


@pytest.mark.parametrize("family, by", CASES)
def test_a_table_is_trained_by_its_weight_or_the_weight_s_value(family, by):
    layer = LAYERS[family]()
    layer(tf.constant(IDS), training=False)
    (weight,) = layer.trainable_weights
    before = layer(tf.constant(IDS), training=False).numpy()
    optimizer = keras.optimizers.SGD(0.5)
    if family.startswith("de."):
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)
    with tf.GradientTape(watch_accessed_variables=by == "watched") as tape:
        if by != "watched":
            tape.watch(weight.value)
        loss = tf.reduce_sum(layer(tf.constant([3, 5])))
    source = SOURCES[by](weight, tape)
    optimizer.apply([tape.gradient(loss, source)], [source])
    change = layer(tf.constant(IDS), training=False).numpy() - before
    assert np.abs(change).max(1).nonzero()[0].tolist() == [3, 5]
